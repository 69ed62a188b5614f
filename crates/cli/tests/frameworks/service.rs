//! A Semel server that serves the service API alone.

use std::{
    fs,
    net::{SocketAddr, TcpListener},
    process::Command,
};

use tempfile::TempDir;

use crate::process::Process;

/// The secret of every token in the configurations here.
pub(crate) const TOKEN: &str = "a-token-of-the-tests-which-is-long-enough";

/// A token for every scope.
const CONFIGURATION: &str = "[[api.token]]\nname = \"tests\"\nrole = \"app\"\n\
    secret_env = \"SEMEL_TOKEN\"\n";

/// A running server, with records in a file of its own.
#[derive(Debug)]
pub(crate) struct Service {
    process: Option<Process>,
    folder: TempDir,
    address: SocketAddr,
}

impl Service {
    pub(crate) fn start() -> Self {
        Self::configured(CONFIGURATION)
    }

    /// By a configuration whose tokens have their secrets in `SEMEL_TOKEN` or `BILLING_TOKEN`.
    pub(crate) fn configured(text: &str) -> Self {
        let folder = TempDir::new().unwrap();
        fs::write(folder.path().join("semel.toml"), text).unwrap();
        // The same address after a restart.
        let address = TcpListener::bind("127.0.0.1:0").unwrap().local_addr().unwrap();
        let mut service = Self { process: None, folder, address };
        service.restart();
        service
    }

    /// Kills the server, where it runs, and starts it again at the same address.
    pub(crate) fn restart(&mut self) {
        drop(self.process.take());
        let mut semel = crate::common::semel_command();
        semel.arg("serve").arg("--config").arg(self.folder.path().join("semel.toml"));
        semel.args(["--api", &self.address.to_string()]);
        let store = self.folder.path().join("semel.db");
        semel.args(["--store", &format!("sqlite:{}", store.display())]);
        self.process = Some(Process::start(with_tokens(&mut semel)));
    }

    pub(crate) fn url(&self) -> String {
        format!("http://{}", self.address)
    }

    /// Tells a client where the server is and how to authenticate.
    pub(crate) fn introduce<'a>(&self, command: &'a mut Command) -> &'a mut Command {
        with_tokens(command.env("SEMEL_API", self.url()).env("NO_PROXY", "127.0.0.1"))
    }
}

fn with_tokens(command: &mut Command) -> &mut Command {
    command.env("SEMEL_TOKEN", TOKEN).env("BILLING_TOKEN", TOKEN)
}
