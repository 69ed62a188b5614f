//! Installing what is missing, where that takes no questions: on Debian, as the superuser.

use std::path::Path;
use std::process::Command;

use crate::run;

/// Installs packages with `apt-get`. `false` where that is not this machine's way, or not allowed.
pub(crate) fn install(packages: &[&str]) -> anyhow::Result<bool> {
    let debian = Path::new("/etc/debian_version").exists()
        && run::works(Command::new("apt-get").arg("--version"));
    if !debian || !is_superuser() {
        return Ok(false);
    }
    let mut update = Command::new("apt-get");
    run::step("apt", update.args(["update", "--quiet"]))?;
    let mut install = Command::new("apt-get");
    install.args(["install", "--yes", "--quiet", "--no-install-recommends"]);
    // The service that comes with a package is not to be started: level 1 is maintenance.
    install.args(packages).env("DEBIAN_FRONTEND", "noninteractive").env("RUNLEVEL", "1");
    run::step("apt", &mut install)?;
    Ok(true)
}

fn is_superuser() -> bool {
    run::output(Command::new("id").arg("-u")).is_ok_and(|id| id.trim() == "0")
}
