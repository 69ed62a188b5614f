//! Python, Node, Go, Tomcat, nginx and Chromium for the tests in front of real frameworks.
//!
//! The packages are pinned beside those tests and lie in the target folder, one folder for each
//! language. A folder is made when it is missing or when the pins have changed, from whatever index
//! the machine's `pip` and `npm` are set up for. Go needs no packages: its pins are the programs
//! themselves, which are built from the standard library. Tomcat's classes, nginx and Chromium are
//! Debian's. Where a language or its packages cannot be had the tests are skipped, and the summary
//! says why.

use std::ffi::OsString;
use std::fs;
use std::os::unix::fs::symlink;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::Duration;

use anyhow::Context as _;

use crate::{debian, run};

/// Where the tests are, with their pins.
const PINS: &str = "crates/cli/tests/frameworks";

/// The copy of the pins that a folder was made from, written last: with it the folder is whole.
const STAMP: &str = "pins";

/// A machine without a network should learn so soon. With one, the packages of Python take a minute
/// on two busy cores.
const STEP_TIMEOUT: Duration = Duration::from_secs(180);

/// Where Debian's package puts nginx.
const NGINX: &str = "/usr/sbin/nginx";

/// Where Debian's package puts Chromium.
const CHROMIUM: &str = "/usr/bin/chromium";

/// The archives of Debian's Tomcat that a service needs.
const TOMCAT: [&str; 12] = [
    "annotations-api",
    "api",
    "catalina",
    "coyote",
    "el-api",
    "jaspic-api",
    "jni",
    "jsp-api",
    "juli",
    "servlet-api",
    "util",
    "util-scan",
];

const LANGUAGES: [Language; 6] = [
    Language {
        variable: "SEMEL_TEST_PYTHON",
        version: &["python3", "--version"],
        package: None,
        folder: "python",
        pins: &["requirements.txt"],
        product: "bin/python",
        make: make_python,
    },
    Language {
        variable: "SEMEL_TEST_NODE_MODULES",
        version: &["node", "--version"],
        package: None,
        folder: "node",
        pins: &["package.json", "package-lock.json"],
        product: "node_modules",
        make: make_node,
    },
    Language {
        variable: "SEMEL_TEST_GO",
        version: &["go", "version"],
        package: Some("golang-go"),
        folder: "go",
        pins: &["failures/go_failures.go", "webhooks/go_webhooks.go"],
        product: "bin",
        make: make_go,
    },
    Language {
        variable: "SEMEL_TEST_TOMCAT",
        version: &["javac", "--version"],
        package: Some("default-jdk-headless"),
        folder: "tomcat",
        pins: &["webhooks/TomcatWebhooks.java"],
        product: "classes",
        make: make_tomcat,
    },
    Language {
        variable: "SEMEL_TEST_NGINX",
        version: &[NGINX, "-v"],
        package: Some("nginx-light"),
        folder: "nginx",
        pins: &[],
        product: "nginx",
        make: make_nginx,
    },
    Language {
        variable: "SEMEL_TEST_CHROMIUM",
        version: &[CHROMIUM, "--version"],
        package: Some("chromium"),
        folder: "chromium",
        pins: &[],
        product: "chromium",
        make: make_chromium,
    },
];

/// How one language is prepared.
struct Language {
    /// What tells the tests where the product is.
    variable: &'static str,
    /// The command that shows whether it is installed.
    version: &'static [&'static str],
    /// The Debian package that brings it, where it may be installed.
    package: Option<&'static str>,
    /// The folder's name in the target folder.
    folder: &'static str,
    /// The files that say which packages, and are remembered.
    pins: &'static [&'static str],
    /// The path in the folder that the tests get.
    product: &'static str,
    /// Fills the folder, from the folder of the pins.
    make: fn(&Path, &Path) -> Result<(), String>,
}

/// Makes what is missing. The error is why some of the tests will be skipped, in a few words.
pub(crate) fn prepare(root: &Path) -> Result<(), String> {
    let missing = |language: &Language| language.prepare(root).err();
    let missing: Vec<String> = LANGUAGES.iter().filter_map(missing).collect();
    if missing.is_empty() { Ok(()) } else { Err(missing.join("; ")) }
}

/// What to tell the tests: a variable for each language that is ready.
pub(crate) fn variables(root: &Path) -> Vec<(&'static str, PathBuf)> {
    let ready = LANGUAGES.iter().filter(|language| language.is_installed());
    let ready = ready.filter(|language| language.is_ready(root));
    ready.map(|language| (language.variable, language.place(root).join(language.product))).collect()
}

impl Language {
    fn prepare(&self, root: &Path) -> Result<(), String> {
        if !self.is_installed()
            && let Some(package) = self.package
        {
            // Whether that worked is seen below.
            let _ = debian::install(&[package]);
        }
        if !self.is_installed() {
            return Err(format!("no {}", self.version.first().unwrap_or(&self.folder)));
        }
        if self.is_ready(root) {
            return Ok(());
        }
        let place = self.place(root);
        let failed = |error: anyhow::Error| format!("{error:#}");
        empty(&place).map_err(failed)?;
        (self.make)(&place, &root.join(PINS))?;
        let stamp = place.join(STAMP);
        fs::write(&stamp, self.pins(root)).context("cannot write the pins").map_err(failed)
    }

    fn is_installed(&self) -> bool {
        let [program, arguments @ ..] = self.version else { return false };
        run::works(Command::new(program).args(arguments))
    }

    /// Whether the folder was made from the pins of today.
    fn is_ready(&self, root: &Path) -> bool {
        let place = self.place(root);
        let made_from = fs::read_to_string(place.join(STAMP));
        // A virtual environment is a link to an interpreter that may be gone.
        place.join(self.product).exists() && made_from.is_ok_and(|pins| pins == self.pins(root))
    }

    /// The pins as one text.
    fn pins(&self, root: &Path) -> String {
        let read = |name: &&str| fs::read_to_string(root.join(PINS).join(name)).unwrap_or_default();
        self.pins.iter().map(read).collect()
    }

    fn place(&self, root: &Path) -> PathBuf {
        target(root).join("frameworks").join(self.folder)
    }
}

fn make_python(place: &Path, pins: &Path) -> Result<(), String> {
    if !has_venv() {
        // Debian keeps it in a package of its own. Whether that worked is seen below.
        let _ = debian::install(&["python3-venv"]);
    }
    if !has_venv() {
        return Err("python3 has no venv".to_owned());
    }
    let mut venv = Command::new("python3");
    step("venv", venv.args(["-m", "venv"]).arg(place))?;
    let mut pip = Command::new(place.join("bin/python"));
    pip.args(["-m", "pip", "install", "--quiet", "--no-input", "--disable-pip-version-check"]);
    // Nothing is compiled: that would take minutes, and more tools.
    pip.args(["--only-binary", ":all:", "--retries", "1"]);
    step("pip", pip.arg("--requirement").arg(pins.join("requirements.txt")))
}

fn has_venv() -> bool {
    run::works(Command::new("python3").args(["-c", "import ensurepip, venv"]))
}

fn make_node(place: &Path, pins: &Path) -> Result<(), String> {
    if !run::works(Command::new("npm").arg("--version")) {
        return Err("no npm".to_owned());
    }
    for name in ["package.json", "package-lock.json"] {
        fs::copy(pins.join(name), place.join(name)).map_err(|error| format!("{name}: {error}"))?;
    }
    let mut npm = Command::new("npm");
    npm.current_dir(place).args(["ci", "--ignore-scripts", "--no-audit", "--no-fund"]);
    step("npm", npm.args(["--loglevel", "error", "--fetch-retries", "1"]))
}

/// With the standard library only: nothing is fetched, and nothing is written outside the folder.
fn make_go(place: &Path, pins: &Path) -> Result<(), String> {
    for (program, source) in
        [("failures", "failures/go_failures.go"), ("webhooks", "webhooks/go_webhooks.go")]
    {
        let mut go = Command::new("go");
        go.current_dir(place).args(["build", "-o", &format!("bin/{program}")]);
        go.env("GOPROXY", "off").env("GOTOOLCHAIN", "local").env("GOFLAGS", "");
        go.env("GOCACHE", place.join("cache")).env("GOPATH", place.join("path"));
        step("go", go.arg(pins.join(source)))?;
    }
    Ok(())
}

/// The service and, beside it, links to the archives that it runs with.
fn make_tomcat(place: &Path, pins: &Path) -> Result<(), String> {
    let archive = |name: &&str| Path::new("/usr/share/java").join(format!("tomcat10-{name}.jar"));
    let archives: Vec<PathBuf> = TOMCAT.iter().map(archive).collect();
    let is_there = || archives.iter().all(|archive| archive.exists());
    if !is_there() {
        // Whether that worked is seen below.
        let _ = debian::install(&["libtomcat10-java"]);
    }
    if !is_there() {
        return Err("no libtomcat10-java".to_owned());
    }
    let classes = place.join("classes");
    fs::create_dir_all(&classes).map_err(|error| format!("tomcat: {error}"))?;
    for archive in &archives {
        let link = classes.join(archive.file_name().unwrap_or_default());
        symlink(archive, link).map_err(|error| format!("tomcat: {error}"))?;
    }
    let mut javac = Command::new("javac");
    javac.args(["-Xlint:-deprecation", "-nowarn", "-d"]).arg(&classes);
    javac.arg("-classpath").arg(classes.join("*"));
    step("javac", javac.arg(pins.join("webhooks/TomcatWebhooks.java")))
}

fn make_nginx(place: &Path, _pins: &Path) -> Result<(), String> {
    symlink(NGINX, place.join("nginx")).map_err(|error| format!("nginx: {error}"))
}

fn make_chromium(place: &Path, _pins: &Path) -> Result<(), String> {
    symlink(CHROMIUM, place.join("chromium")).map_err(|error| format!("chromium: {error}"))
}

fn step(name: &str, command: &mut Command) -> Result<(), String> {
    run::step_within(name, command, STEP_TIMEOUT).map_err(|error| {
        eprintln!("{error:#}");
        format!("{name} failed")
    })
}

/// An empty folder at this place, whatever was there.
fn empty(place: &Path) -> anyhow::Result<()> {
    if place.exists() {
        fs::remove_dir_all(place).with_context(|| format!("cannot empty {}", place.display()))?;
    }
    fs::create_dir_all(place).with_context(|| format!("cannot make {}", place.display()))
}

/// Cargo's target folder.
fn target(root: &Path) -> PathBuf {
    let own: Option<OsString> = std::env::var_os("CARGO_TARGET_DIR");
    own.map_or_else(|| root.join("target"), |folder| root.join(folder))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_pins_are_where_they_are_looked_for() {
        let root = crate::root();
        for language in &LANGUAGES {
            for name in language.pins {
                assert!(root.join(PINS).join(name).exists(), "{name}");
            }
        }
    }

    #[test]
    fn no_pin_names_a_host() {
        let root = crate::root();
        let [python, node, ..] = &LANGUAGES;
        assert!(!python.pins(&root).contains("://"));
        assert!(!node.pins(&root).contains("\"resolved\""));
    }

    #[test]
    fn a_folder_without_its_stamp_is_not_ready() {
        let nowhere = Path::new("nowhere");
        assert!(LANGUAGES.iter().all(|language| !language.is_ready(nowhere)));
        assert!(variables(nowhere).is_empty());
    }
}
