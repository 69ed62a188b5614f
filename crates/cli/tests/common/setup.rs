//! The configuration of a gateway under test, and its start.

use std::{
    fmt::Display,
    fs,
    net::SocketAddr,
    path::{Path, PathBuf},
    sync::Arc,
    time::Duration,
};

use semel::core::Store;
use semel_testkit::program::Program;
use tempfile::TempDir;
use tokio::time::{Instant, sleep};

use super::{Gateway, Records, TEST_TIMEOUT, Upstream, WriteBlock, semel_command};

const CONFIG_ARGUMENT: &str = "--config=semel.toml";

/// The configuration of a gateway, in pieces of TOML. Its folder, and so its store, is shared by
/// all
/// gateways that are started from it.
#[derive(Clone, Debug)]
pub(crate) struct Setup {
    folder: Arc<TempDir>,
    records: Records,
    /// The whole configuration, instead of the pieces.
    whole: Option<String>,
    head: String,
    /// As a TOML value.
    upstream: String,
    gateway: String,
    defaults: String,
    tables: String,
    api: &'static str,
    arguments: Vec<String>,
    environment: Vec<(String, String)>,
}

impl Setup {
    /// The service API alone, with a token `jobs` of the role `app`.
    pub(crate) fn service_api(records: Records) -> Self {
        let token = "[[api.token]]\nname = \"jobs\"\nrole = \"app\"\nsecret_env = \"JOBS_TOKEN\"";
        let setup = Self::on_store(records, "").tables(token);
        setup.environment("JOBS_TOKEN", super::JOBS_TOKEN)
    }

    /// Whether it has no upstream, and so serves the API alone.
    pub(super) fn is_api_alone(&self) -> bool {
        let has_upstream = self.upstream != "\"\"" || self.gateway.contains("upstream");
        !has_upstream && self.whole.is_none()
    }

    /// In front of the upstream at this URL, guarding every POST and PATCH, for callers with a
    /// credential and without.
    pub(crate) fn new(upstream: &str) -> Self {
        Self::on_store(Records::fresh(), upstream)
    }

    /// The same on a store that may have been used.
    pub(crate) fn on_store(records: Records, upstream: &str) -> Self {
        let mut arguments = records.arguments();
        arguments.push(CONFIG_ARGUMENT.to_owned());
        Self {
            folder: Arc::new(TempDir::new().unwrap()),
            whole: None,
            head: records.line().to_owned(),
            records,
            upstream: format!("\"{upstream}\""),
            gateway: String::new(),
            defaults: String::new(),
            tables: String::new(),
            api: "127.0.0.1:0",
            arguments,
            environment: vec![("SEMEL_SECRET".to_owned(), "a secret that all share".to_owned())],
        }
    }

    /// The same without a file, by arguments only.
    pub(crate) fn without_config_file(upstream: &str) -> Self {
        Self::without_config_file_on(Records::fresh(), upstream)
    }

    /// The same on a store that may have been used.
    pub(crate) fn without_config_file_on(records: Records, upstream: &str) -> Self {
        let mut setup = Self::on_store(records, upstream);
        let typed = ["--upstream", upstream, "--listen", "127.0.0.1:0"].map(str::to_owned);
        setup.arguments = setup.records.arguments();
        setup.arguments.extend(typed);
        setup
    }

    /// On a store in memory and without an API, in front of an upstream at this address.
    pub(crate) fn at(upstream: SocketAddr) -> Self {
        Self::upstream(format_args!("\"http://{upstream}\""))
    }

    /// The same in front of an upstream that speaks HTTP/2 without TLS.
    pub(crate) fn at_http2(upstream: SocketAddr) -> Self {
        Self::upstream(format_args!("{{ url = \"http://{upstream}\", protocol = \"http2\" }}"))
    }

    /// The same in front of the upstream that this TOML value describes.
    pub(crate) fn upstream(upstream: impl Display) -> Self {
        let setup = Self::on_store(Records::Sqlite, "");
        let (environment, head) = (Vec::new(), "store = \"memory:\"".to_owned());
        Self { upstream: upstream.to_string(), head, api: "off", environment, ..setup }
    }

    /// By this configuration, which says where the store is, on free ports of this machine.
    pub(crate) fn configured(text: &str) -> Self {
        let setup = Self::on_store(Records::Sqlite, "");
        Self { whole: Some(text.to_owned()), ..setup }.argument("--listen=127.0.0.1:0")
    }

    /// The same in front of another upstream.
    pub(crate) fn with_upstream(&self, upstream: &Upstream) -> Self {
        Self { upstream: format!("\"{}\"", upstream.url()), ..self.clone() }
    }

    /// The same in a folder that a test has made.
    pub(crate) fn in_folder(self, folder: &Arc<TempDir>) -> Self {
        Self { folder: Arc::clone(folder), ..self }
    }

    /// Keeps the records in a file.
    pub(crate) fn on_disk(self) -> Self {
        let line = self.records.line();
        self.head(line)
    }

    /// Sets the lines before the first table.
    pub(crate) fn head(mut self, lines: &str) -> Self {
        lines.clone_into(&mut self.head);
        self
    }

    /// Adds lines to `[gateway]`.
    pub(crate) fn gateway(mut self, lines: impl Display) -> Self {
        self.gateway += &format!("{lines}\n");
        self
    }

    /// Adds lines to `[defaults]`.
    pub(crate) fn defaults(mut self, lines: impl Display) -> Self {
        self.defaults += &format!("{lines}\n");
        self
    }

    /// Adds tables after all others, such as routes.
    pub(crate) fn tables(mut self, tables: impl Display) -> Self {
        self.tables += &format!("{tables}\n");
        self
    }

    /// Adds an argument of `semel serve`.
    pub(crate) fn argument(mut self, argument: &str) -> Self {
        self.arguments.push(argument.to_owned());
        self
    }

    /// Adds arguments of `semel serve`.
    pub(crate) fn arguments(mut self, arguments: impl IntoIterator<Item = String>) -> Self {
        self.arguments.extend(arguments);
        self
    }

    pub(crate) fn environment(mut self, name: &str, value: &str) -> Self {
        self.environment.push((name.to_owned(), value.to_owned()));
        self
    }

    /// Where the gateway runs, gone with the last of its setups and gateways.
    pub(crate) fn folder(&self) -> &Path {
        self.folder.path()
    }

    /// The file of a SQLite store.
    pub(crate) fn database(&self) -> PathBuf {
        self.folder.path().join("semel.db")
    }

    /// The store that all gateways of this setup share.
    pub(crate) async fn store(&self) -> Box<dyn Store> {
        self.records.open(&self.database()).await
    }

    /// Keeps every process from writing to the store, until what it returns is dropped.
    pub(crate) async fn block_writes(&self) -> WriteBlock {
        self.records.block_writes(&self.database()).await
    }

    pub(crate) fn file(&self) -> PathBuf {
        self.folder.path().join("semel.toml")
    }

    pub(crate) fn text(&self) -> String {
        let Self { head, upstream, gateway, defaults, tables, .. } = self;
        if let Some(whole) = &self.whole {
            return whole.clone();
        }
        if self.is_api_alone() {
            return format!("{head}\n{tables}");
        }
        let upstream = if gateway.contains("upstream") {
            String::new()
        } else {
            format!("upstream = {upstream}\n")
        };
        let caller = if defaults.contains("caller") {
            ""
        } else {
            "caller = [\"authorization\", \"anonymous\"]\n"
        };
        format!(
            "{head}\n\
             [gateway]\nlisten = \"127.0.0.1:0\"\n{upstream}{gateway}\
             [defaults]\n{caller}{defaults}\
             {tables}"
        )
    }

    /// Writes the configuration, whole or not at all.
    pub(crate) fn write(&self) {
        let new = self.file().with_extension("new");
        fs::write(&new, self.text()).unwrap();
        fs::rename(new, self.file()).unwrap();
    }

    /// Starts a gateway and waits until it listens.
    pub(crate) async fn start(&self) -> Gateway {
        let gateway = self.spawn();
        let end = Instant::now() + TEST_TIMEOUT;
        while !gateway.is_listening() {
            assert!(Instant::now() < end, "it does not listen: {:?}", gateway.log_lines());
            assert!(gateway.exit_status().is_none(), "it has ended: {:?}", gateway.log_lines());
            sleep(Duration::from_millis(5)).await;
        }
        gateway
    }

    /// The same outside of a runtime.
    pub(crate) fn start_blocking(&self) -> Gateway {
        let gateway = self.spawn();
        gateway.wait_for_listener();
        gateway
    }

    /// Starts a gateway that may not come to listen.
    pub(crate) fn spawn(&self) -> Gateway {
        if self.arguments.iter().any(|argument| argument == CONFIG_ARGUMENT) {
            self.write();
        }
        let mut command = semel_command();
        command.current_dir(self.folder.path()).args(["serve", "--api", self.api]);
        command.args(&self.arguments);
        command.envs(self.environment.iter().map(|(name, value)| (name, value)));
        Gateway::new(self.clone(), Program::start(&mut command))
    }
}
