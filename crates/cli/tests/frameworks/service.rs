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

/// The secret of a token for operators.
const OPERATOR_TOKEN: &str = "a-token-for-operators-which-is-long-enough";

/// The secret that servers on one store share.
const SECRET: &str = "a-secret-of-the-tests-that-two-servers-share";

/// A token for every scope.
const CONFIGURATION: &str = "[[api.token]]\nname = \"tests\"\nrole = \"app\"\n\
    secret_env = \"SEMEL_TOKEN\"\n";

/// A running server, with records in a file of its own unless it is given another store.
#[derive(Debug)]
pub(crate) struct Service {
    process: Option<Process>,
    folder: TempDir,
    address: SocketAddr,
    store: String,
}

impl Service {
    pub(crate) fn start() -> Self {
        Self::configured(CONFIGURATION)
    }

    /// On a store that other servers share.
    pub(crate) fn on(store: &str) -> Self {
        let text = format!("secret_env = \"SEMEL_SECRET\"\n{CONFIGURATION}");
        Self::begin(&text, Some(store.to_owned()))
    }

    /// By a configuration whose tokens have their secrets in `SEMEL_TOKEN`, `BILLING_TOKEN` or
    /// `OPERATOR_TOKEN`.
    pub(crate) fn configured(text: &str) -> Self {
        Self::begin(text, None)
    }

    fn begin(text: &str, store: Option<String>) -> Self {
        let folder = TempDir::new().unwrap();
        let file = || format!("sqlite:{}", folder.path().join("semel.db").display());
        let store = store.unwrap_or_else(file);
        fs::write(folder.path().join("semel.toml"), text).unwrap();
        // The same address after a restart.
        let address = TcpListener::bind("127.0.0.1:0").unwrap().local_addr().unwrap();
        let mut service = Self { process: None, folder, address, store };
        service.restart();
        service
    }

    /// Kills the server, where it runs, and starts it again at the same address.
    pub(crate) fn restart(&mut self) {
        drop(self.process.take());
        let mut semel = crate::common::semel_command();
        semel.arg("serve").arg("--config").arg(self.folder.path().join("semel.toml"));
        semel.args(["--api", &self.address.to_string()]);
        semel.args(["--store", &self.store]).env("SEMEL_SECRET", SECRET);
        self.process = Some(Process::start(with_tokens(&mut semel)));
    }

    pub(crate) fn port(&self) -> u16 {
        self.address.port()
    }

    pub(crate) fn url(&self) -> String {
        format!("http://{}", self.address)
    }

    /// Tells a client where the server is and how to authenticate.
    pub(crate) fn introduce<'a>(&self, command: &'a mut Command) -> &'a mut Command {
        introduce(command, &self.url())
    }
}

/// Tells a client where a service is and how to authenticate.
pub(crate) fn introduce<'a>(command: &'a mut Command, url: &str) -> &'a mut Command {
    with_tokens(command.env("SEMEL_API", url).env("NO_PROXY", "127.0.0.1"))
}

fn with_tokens(command: &mut Command) -> &mut Command {
    command.env("SEMEL_TOKEN", TOKEN).env("BILLING_TOKEN", TOKEN);
    command.env("OPERATOR_TOKEN", OPERATOR_TOKEN)
}
