//! The packages of a released program: an archive, a Debian package, a bill of materials, and
//! their checksums.

use std::fs;
use std::os::unix::fs::PermissionsExt as _;
use std::path::{Path, PathBuf};
use std::process::Command;

use anyhow::{Context as _, bail};

use crate::{run, supply};

/// The version of the workspace.
const VERSION: &str = env!("CARGO_PKG_VERSION");

/// The largest program that is released.
const PROGRAM_BYTES_MAX: u64 = 25_000_000;

/// Files that every package has beside the program, by their place in the repository.
const DOCUMENTS: [&str; 5] =
    ["README.md", "CHANGELOG.md", "SECURITY.md", "LICENSE-MIT", "LICENSE-APACHE"];

/// The completions of a shell: its name, and where Debian's packages put them.
const COMPLETIONS: [(&str, &str); 3] = [
    ("bash", "usr/share/bash-completion/completions/semel"),
    ("zsh", "usr/share/zsh/vendor-completions/_semel"),
    ("fish", "usr/share/fish/vendor_completions.d/semel.fish"),
];

/// The program and what else goes into its packages.
#[derive(Debug)]
pub(crate) struct ReleasedProgram<'a> {
    pub(crate) root: &'a Path,
    pub(crate) program: &'a Path,
    /// Where the packages are written.
    pub(crate) folder: PathBuf,
    /// The time of all files, in seconds since 1970, so that the same tree gives the same bytes.
    pub(crate) epoch: String,
}

impl ReleasedProgram<'_> {
    /// Writes all packages and their checksums.
    pub(crate) fn make(&self) -> anyhow::Result<()> {
        let bytes = fs::metadata(self.program)?.len();
        if bytes > PROGRAM_BYTES_MAX {
            bail!("{} has {bytes} bytes, more than {PROGRAM_BYTES_MAX}", self.program.display());
        }
        println!("{bytes} bytes in {}", self.program.display());
        empty(&self.folder)?;
        self.archive()?;
        if run::works(Command::new("dpkg-deb").arg("--version")) {
            self.debian_package(1)?;
        } else {
            println!("{}", run::notice("no dpkg-deb: the Debian package was left out"));
        }
        supply::sbom(self.root)?;
        fs::copy(self.root.join("target/semel.cdx.json"), self.folder.join("semel.cdx.json"))?;
        let sums = self.checksums()?;
        fs::write(self.folder.join("SHA256SUMS"), &sums)?;
        println!("in {}:\n{sums}", self.folder.display());
        Ok(())
    }

    /// The archive for systems without a package: program, unit, man pages, completions.
    fn archive(&self) -> anyhow::Result<()> {
        let name = format!("semel-{VERSION}-{}-linux", std::env::consts::ARCH);
        let tree = self.folder.join(&name);
        install(self.program, &tree.join("semel"), 0o755)?;
        let files = ["contrib/systemd/semel.service", "config.default.toml", "config.schema.json"];
        for file in DOCUMENTS.iter().chain(&files) {
            let name = Path::new(file).file_name().context("a file has a name")?;
            install(&self.root.join(file), &tree.join(name), 0o644)?;
        }
        self.man_pages(&tree.join("man"))?;
        for (shell, place) in COMPLETIONS {
            let name = Path::new(place).file_name().context("a file has a name")?;
            self.completions(shell, &tree.join("completions").join(name))?;
        }
        let mut tar = Command::new("tar");
        tar.current_dir(&self.folder).args(["--create", "--gzip", "--sort=name", "--owner=0"]);
        tar.args(["--group=0", "--numeric-owner"]).arg(format!("--mtime=@{}", self.epoch));
        tar.arg(format!("--file={name}.tar.gz")).arg(&name);
        run::step("archive", &mut tar)?;
        fs::remove_dir_all(&tree).context("cannot remove the tree of the archive")
    }

    /// The Debian package with this revision, and where it is.
    pub(crate) fn debian_package(&self, revision: u32) -> anyhow::Result<PathBuf> {
        let tree = self.folder.join("debian");
        empty(&tree)?;
        let contrib = self.root.join("contrib");
        install(self.program, &tree.join("usr/bin/semel"), 0o755)?;
        let unit = contrib.join("systemd/semel.service");
        install(&unit, &tree.join("lib/systemd/system/semel.service"), 0o644)?;
        let settings = contrib.join("debian/semel.toml");
        install(&settings, &tree.join("etc/semel/semel.toml"), 0o640)?;
        for file in DOCUMENTS.iter().chain(&["config.default.toml"]) {
            install(&self.root.join(file), &tree.join("usr/share/doc/semel").join(file), 0o644)?;
        }
        self.man_pages(&tree.join("usr/share/man/man1"))?;
        for (shell, place) in COMPLETIONS {
            self.completions(shell, &tree.join(place))?;
        }
        for script in ["postinst", "prerm", "postrm"] {
            let from = contrib.join("debian").join(script);
            install(&from, &tree.join("DEBIAN").join(script), 0o755)?;
        }
        fs::write(tree.join("DEBIAN/conffiles"), "/etc/semel/semel.toml\n")?;
        let architecture = run::output(Command::new("dpkg").arg("--print-architecture"))?;
        let control = self.control(architecture.trim(), revision)?;
        fs::write(tree.join("DEBIAN/control"), control)?;
        let package =
            self.folder.join(format!("semel_{VERSION}-{revision}_{}.deb", architecture.trim()));
        let mut build = Command::new("dpkg-deb");
        build.args(["--build", "--root-owner-group"]).args([&tree, &package]);
        run::step("deb", build.env("SOURCE_DATE_EPOCH", &self.epoch))?;
        fs::remove_dir_all(&tree).context("cannot remove the tree of the package")?;
        Ok(package)
    }

    fn control(&self, architecture: &str, revision: u32) -> anyhow::Result<String> {
        let program = fs::read(self.program)?;
        let minor = glibc_minor(&program).context("the program does not use glibc")?;
        Ok(format!(
            "Package: semel\n\
             Version: {VERSION}-{revision}\n\
             Architecture: {architecture}\n\
             Maintainer: The Semel contributors\n\
             Depends: libc6 (>= 2.{minor}), libgcc-s1, passwd\n\
             Section: net\n\
             Priority: optional\n\
             Description: gateway that runs each idempotency key once\n \
             Semel stands in front of an HTTP API and makes every retry harmless: each\n \
             idempotency key runs once, and every repeat gets the first answer back, byte for\n \
             byte. If the outcome of an operation is unknown, it says so instead of guessing.\n"
        ))
    }

    fn man_pages(&self, folder: &Path) -> anyhow::Result<()> {
        fs::create_dir_all(folder)?;
        run::output(Command::new(self.program).arg("man").arg(folder))?;
        for page in fs::read_dir(folder)? {
            run::output(Command::new("gzip").args(["-9", "--no-name"]).arg(page?.path()))?;
        }
        Ok(())
    }

    fn completions(&self, shell: &str, place: &Path) -> anyhow::Result<()> {
        let script = run::output(Command::new(self.program).args(["completions", shell]))?;
        write(place, script.as_bytes(), 0o644)
    }

    /// What `sha256sum --check` reads.
    fn checksums(&self) -> anyhow::Result<String> {
        let mut names = Vec::new();
        for file in fs::read_dir(&self.folder)? {
            names.push(file?.file_name());
        }
        names.sort();
        run::output(Command::new("sha256sum").current_dir(&self.folder).args(names))
    }
}

/// The newest minor version of glibc 2 whose symbols a program uses.
fn glibc_minor(program: &[u8]) -> Option<u32> {
    const NAME: &[u8] = b"GLIBC_2.";
    let found = program.windows(NAME.len()).enumerate().filter(|(_, part)| *part == NAME);
    let minors = found.filter_map(|(at, _)| {
        let rest = program.get(at + NAME.len()..)?;
        let digits = rest.iter().take_while(|byte| byte.is_ascii_digit()).count();
        str::from_utf8(rest.get(..digits)?).ok()?.parse().ok()
    });
    minors.max()
}

fn install(from: &Path, to: &Path, mode: u32) -> anyhow::Result<()> {
    let bytes = fs::read(from).with_context(|| format!("cannot read {}", from.display()))?;
    write(to, &bytes, mode)
}

fn write(place: &Path, bytes: &[u8], mode: u32) -> anyhow::Result<()> {
    let folder = place.parent().context("a file is in a folder")?;
    fs::create_dir_all(folder).with_context(|| format!("cannot make {}", folder.display()))?;
    fs::write(place, bytes).with_context(|| format!("cannot write {}", place.display()))?;
    Ok(fs::set_permissions(place, fs::Permissions::from_mode(mode))?)
}

fn empty(folder: &Path) -> anyhow::Result<()> {
    if folder.exists() {
        fs::remove_dir_all(folder).with_context(|| format!("cannot empty {}", folder.display()))?;
    }
    fs::create_dir_all(folder).with_context(|| format!("cannot make {}", folder.display()))
}

/// Installs the Debian package into a folder, upgrades it, removes and purges it, and has systemd
/// verify the unit. The system itself is left alone.
pub(crate) fn torture(release: &ReleasedProgram<'_>) -> anyhow::Result<()> {
    for tool in ["dpkg-deb", "systemd-analyze"] {
        if !run::works(Command::new(tool).arg("--version")) {
            println!("{}", run::notice(&format!("the Debian package is not tried: no {tool}")));
            return Ok(());
        }
    }
    let place = release.folder.join("installed");
    empty(&place.join("var/lib/dpkg/updates"))?;
    fs::create_dir_all(place.join("var/lib/dpkg/info"))?;
    fs::write(place.join("var/lib/dpkg/status"), "")?;
    let dpkg = |name: &str, arguments: &[&str]| {
        let mut dpkg = Command::new("dpkg");
        dpkg.arg(format!("--instdir={}", place.display()));
        dpkg.arg(format!("--admindir={}", place.join("var/lib/dpkg").display()));
        dpkg.args(["--force-script-chrootless", "--force-depends", "--force-not-root"]);
        dpkg.args(["--force-confold", "--log=/dev/null"]).args(arguments);
        run::step(name, &mut dpkg)
    };
    let (first, second) = (release.debian_package(1)?, release.debian_package(2)?);
    let text = |path: &Path| path.display().to_string();
    dpkg("install", &["--install", &text(&first)])?;
    let settings = place.join("etc/semel/semel.toml");
    let (program, unit) =
        (place.join("usr/bin/semel"), place.join("lib/systemd/system/semel.service"));
    let mut check = Command::new(&program);
    check.args(["config", "check", "--store", "memory:"]).arg(&settings);
    run::step("config", &mut check)?;
    let mut verify = Command::new("systemd-analyze");
    verify.args(["verify", "--man=no", "--recursive-errors=no"]).arg(runnable(&unit, &place)?);
    run::step("unit", &mut verify)?;
    // An operator's settings and records survive an upgrade and a removal.
    let edited = fs::read_to_string(&settings)? + "# edited\n";
    fs::write(&settings, &edited)?;
    let store = place.join("var/lib/semel/semel.db");
    write(&store, b"records", 0o640)?;
    dpkg("upgrade", &["--install", &text(&second)])?;
    dpkg("remove", &["--remove", "semel"])?;
    if program.exists() || unit.exists() || fs::read_to_string(&settings)? != edited {
        bail!("a removal left the program, or did not keep the edited configuration");
    }
    dpkg("purge", &["--purge", "semel"])?;
    if settings.exists() || !store.exists() {
        bail!("a purge left the configuration, or removed the store");
    }
    fs::remove_file(second)?;
    fs::remove_dir_all(&place).context("cannot remove the installed package")
}

/// A copy of the unit that starts the program where it was installed.
fn runnable(unit: &Path, place: &Path) -> anyhow::Result<PathBuf> {
    let text = fs::read_to_string(unit)?;
    let program = format!("ExecStart={}", place.join("usr/bin/semel").display());
    let copy = place.join("semel.service");
    fs::write(&copy, text.replace("ExecStart=/usr/bin/semel", &program))?;
    Ok(copy)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_newest_glibc_is_found() {
        assert_eq!(glibc_minor(b"\0GLIBC_2.2.5\0GLIBC_2.34\0GLIBC_2.9\0"), Some(34));
        assert_eq!(glibc_minor(b"GLIBC_PRIVATE"), None);
    }

    #[test]
    fn the_unit_and_the_manifests_leave_time_for_the_drain() {
        let contrib = crate::root().join("contrib");
        let read = |name: &str| fs::read_to_string(contrib.join(name)).unwrap();
        let number = |text: &str, name: &str| -> u64 {
            let line = text.lines().find_map(|line| line.trim().strip_prefix(name)).unwrap();
            let digits = line.chars().skip_while(|c| !c.is_ascii_digit());
            digits.take_while(char::is_ascii_digit).collect::<String>().parse().unwrap()
        };
        assert!(number(&read("systemd/semel.service"), "TimeoutStopSec=") >= 65 + 10 + 5);
        for name in ["kubernetes/gateway.yaml", "kubernetes/sidecar.yaml"] {
            let text = read(name);
            let (notice, drain) = (number(&text, "drain_notice = "), number(&text, "drain = "));
            let grace = number(&text, "terminationGracePeriodSeconds:");
            assert!(
                notice >= 5 && grace >= notice + drain + 10,
                "{name}: {notice} {drain} {grace}"
            );
        }
    }

    #[test]
    fn the_image_has_no_root_and_no_shell() {
        let file = fs::read_to_string(crate::root().join("contrib/docker/Dockerfile")).unwrap();
        let (_, image) = file.rsplit_once("\nFROM ").unwrap();
        assert!(image.starts_with("scratch\n"), "{image}");
        assert!(image.contains("\nUSER 65532:65532\n"), "{image}");
        assert!(image.contains("\nENTRYPOINT [\"/usr/bin/semel\"]\n"), "{image}");
    }
}
