//! The gateway: the real program, in front of an app.

use std::{
    fs::{self, File},
    net::SocketAddr,
    process::Command,
    time::Duration,
};

use tempfile::TempDir;

use crate::{app::App, process::Process};

/// A running gateway with a store of its own.
#[derive(Debug)]
pub(crate) struct Gateway {
    process: Process,
    folder: TempDir,
}

impl Gateway {
    /// Started as the first page of the documentation does.
    pub(crate) fn in_front_of(upstream: SocketAddr) -> Self {
        let folder = TempDir::new().unwrap();
        let mut semel = semel(&folder);
        Self::start(semel.arg("--upstream").arg(format!("http://{upstream}")), folder)
    }

    /// With one thread, so that every request meets the connections that the one before it left.
    /// They are used again until they have been idle for so long.
    pub(crate) fn of_one_thread_before(app: &App, pool_idle: Option<Duration>) -> Self {
        let folder = TempDir::new().unwrap();
        let url = format!("url = \"http://{}\"", app.address());
        let idle = pool_idle.map(|time| format!(", pool_idle = \"{}ms\"", time.as_millis()));
        let upstream = format!("{{ {url}{} }}", idle.unwrap_or_default());
        let file = folder.path().join("semel.toml");
        fs::write(&file, format!("[gateway]\nthreads = 1\nupstream = {upstream}\n")).unwrap();
        Self::start(semel(&folder).arg("--config").arg(file), folder)
    }

    /// By a file. Callers are distinguished by their credentials.
    pub(crate) fn configured(text: &str) -> Self {
        let folder = TempDir::new().unwrap();
        let file = folder.path().join("semel.toml");
        fs::write(&file, text).unwrap();
        let mut semel = serve(&folder);
        semel.env("SEMEL_TEST_WEBHOOK_SECRET", "whsec_a_secret_of_the_tests");
        Self::start(semel.arg("--config").arg(file), folder)
    }

    /// Keeps the gateway from writing to its store for as long as what it returns lives: what a
    /// process does that stops in its turn.
    pub(crate) fn stop_store(&self) -> File {
        let turn = self.folder.path().join("semel.db-turn");
        let turn = File::options().append(true).open(turn).unwrap();
        turn.lock().unwrap();
        turn
    }

    fn start(semel: &mut Command, folder: TempDir) -> Self {
        Self { process: Process::start(semel), folder }
    }

    pub(crate) fn address(&self) -> SocketAddr {
        self.process.address
    }
}

fn semel(folder: &TempDir) -> Command {
    let mut semel = serve(folder);
    semel.args(["--caller", "anonymous"]);
    semel
}

fn serve(folder: &TempDir) -> Command {
    let mut semel = Command::new(env!("CARGO_BIN_EXE_semel"));
    let store = folder.path().join("semel.db");
    semel.args(["serve", "--listen", "127.0.0.1:0", "--api", "off"]);
    semel.args(["--store", &format!("sqlite:{}", store.display())]);
    semel
}
