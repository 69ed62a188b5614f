//! Installing what is missing, where that takes no questions: on Debian, as the superuser.
//!
//! A package that brings a service would start it, and PostgreSQL's would make a database cluster
//! first. The tests start servers of their own, so neither is wanted here.

use std::fs;
use std::io::Write as _;
use std::os::unix::fs::OpenOptionsExt as _;
use std::path::Path;
use std::process::Command;

use anyhow::bail;

use crate::run;

/// The servers that tests start: a program of each, and the package that it comes with.
const SERVERS: [(&str, &str); 5] = [
    ("/usr/lib/postgresql/15/bin/postgres", "postgresql-15"),
    ("/usr/sbin/pgbouncer", "pgbouncer"),
    ("/usr/bin/redis-server", "redis-server"),
    ("/usr/sbin/nats-server", "nats-server"),
    ("/usr/bin/prometheus", "prometheus"),
];

/// Sees to it that the servers are there which the tests start.
pub(crate) fn need_servers() -> anyhow::Result<()> {
    let missing = || SERVERS.iter().filter(|(program, _)| !Path::new(program).exists());
    let packages: Vec<&str> = missing().map(|(_, package)| *package).collect();
    if packages.is_empty() || (install(&packages)? && missing().next().is_none()) {
        return Ok(());
    }
    let programs: Vec<&str> = missing().map(|(program, _)| *program).collect();
    bail!(
        "the tests start real servers, and these are not here: {}; install them, on Debian 12 \
         with: apt-get install {}",
        programs.join(", "),
        packages.join(" ")
    );
}

/// Installs packages with `apt-get`. `false` where that is not this machine's way, or not allowed.
pub(crate) fn install(packages: &[&str]) -> anyhow::Result<bool> {
    let debian = Path::new("/etc/debian_version").exists()
        && run::works(Command::new("apt-get").arg("--version"));
    if !debian || !is_superuser() {
        return Ok(false);
    }
    let _quiet = no_services();
    if packages.iter().any(|package| package.starts_with("postgresql")) {
        no_cluster();
    }
    let mut update = Command::new("apt-get");
    run::step("apt", update.args(["update", "--quiet"]))?;
    let mut install = Command::new("apt-get");
    install.args(["install", "--yes", "--quiet", "--no-install-recommends"]);
    install.args(packages).env("DEBIAN_FRONTEND", "noninteractive");
    run::step("apt", &mut install)?;
    Ok(true)
}

/// Forbids every service to start for as long as the value lives, with or without systemd.
///
/// Where the file is there already, the owner of the machine has decided and it stays.
fn no_services() -> Option<Policy> {
    let mut options = fs::OpenOptions::new();
    let file = options.write(true).create_new(true).mode(0o755).open(Policy::FILE);
    // 101 is "forbidden", as invoke-rc.d and deb-systemd-invoke read it.
    file.and_then(|mut file| file.write_all(b"#!/bin/sh\nexit 101\n")).ok().map(|()| Policy)
}

/// The file that says which services may start, until it is dropped.
struct Policy;

impl Policy {
    const FILE: &str = "/usr/sbin/policy-rc.d";
}

impl Drop for Policy {
    fn drop(&mut self) {
        drop(fs::remove_file(Self::FILE));
    }
}

/// Asks PostgreSQL's package, if it is new here, to make no cluster that starts with the machine.
fn no_cluster() {
    const FILE: &str = "/etc/postgresql-common/createcluster.conf";
    if !Path::new(FILE).exists() {
        drop(fs::create_dir_all("/etc/postgresql-common"));
        drop(fs::write(FILE, "create_main_cluster = false\n"));
    }
}

fn is_superuser() -> bool {
    run::output(Command::new("id").arg("-u")).is_ok_and(|id| id.trim() == "0")
}
