//! The gateway under test: the real binary, a process of its own.

use std::{
    fs,
    io::{BufRead as _, BufReader},
    net::SocketAddr,
    path::PathBuf,
    process::{Child, Command, ExitStatus, Stdio},
    sync::{Arc, Mutex},
    time::Duration,
};

use semel::core::{ListQuery, StateName, Store, Summary};
use tempfile::TempDir;
use tokio::time::{Instant, sleep};

use super::{Answer, Client, ClientRequest, Records, TEST_TIMEOUT, Upstream, WriteBlock, send};

/// What a gateway is to be like. Its folder, and so its store, is shared by all that are started
/// from it.
#[derive(Clone)]
pub(crate) struct Setup {
    folder: Arc<TempDir>,
    records: Records,
    head: String,
    upstream: String,
    gateway: String,
    defaults: String,
    tables: String,
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

    /// In front of an upstream, guarding every POST and PATCH, for callers with a credential and
    /// without.
    pub(crate) fn new(upstream: &str) -> Self {
        Self::on_store(Records::fresh(), upstream)
    }

    /// The same on a store that may have been used.
    pub(crate) fn on_store(records: Records, upstream: &str) -> Self {
        let mut arguments = records.arguments();
        arguments.push("--config=semel.toml".to_owned());
        Self {
            folder: Arc::new(TempDir::new().unwrap()),
            head: records.line().to_owned(),
            records,
            upstream: upstream.to_owned(),
            gateway: String::new(),
            defaults: String::new(),
            tables: String::new(),
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

    /// The same in front of another upstream.
    pub(crate) fn with_upstream(&self, upstream: &Upstream) -> Self {
        Self { upstream: upstream.url(), ..self.clone() }
    }

    /// Sets the lines before the first table.
    pub(crate) fn head(mut self, lines: &str) -> Self {
        lines.clone_into(&mut self.head);
        self
    }

    /// Adds lines to `[gateway]`.
    pub(crate) fn gateway(mut self, lines: &str) -> Self {
        self.gateway.push_str(lines);
        self.gateway.push('\n');
        self
    }

    /// Adds lines to `[defaults]`.
    pub(crate) fn defaults(mut self, lines: &str) -> Self {
        self.defaults.push_str(lines);
        self.defaults.push('\n');
        self
    }

    /// Adds tables after all others, such as routes.
    pub(crate) fn tables(mut self, tables: &str) -> Self {
        self.tables.push_str(tables);
        self.tables.push('\n');
        self
    }

    /// Adds an argument of `semel serve`.
    pub(crate) fn argument(mut self, argument: &str) -> Self {
        self.arguments.push(argument.to_owned());
        self
    }

    pub(crate) fn environment(mut self, name: &str, value: &str) -> Self {
        self.environment.push((name.to_owned(), value.to_owned()));
        self
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
        if upstream.is_empty() {
            return format!("{head}\n{tables}");
        }
        let upstream = if gateway.contains("upstream") {
            String::new()
        } else {
            format!("upstream = \"{upstream}\"\n")
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
        let listens = if self.upstream.is_empty() { "api on http" } else { "listening on http" };
        while gateway.logged_address(listens).is_none() {
            assert!(Instant::now() < end, "it does not listen: {:?}", gateway.log_lines());
            assert!(gateway.exit_status().is_none(), "it has ended: {:?}", gateway.log_lines());
            sleep(Duration::from_millis(5)).await;
        }
        gateway
    }

    /// Starts a gateway that may not come to listen.
    pub(crate) fn spawn(&self) -> Gateway {
        if self.arguments.iter().any(|argument| argument == "--config=semel.toml") {
            self.write();
        }
        let mut child = Command::new(env!("CARGO_BIN_EXE_semel"))
            .current_dir(self.folder.path())
            .args(["serve", "--api", "127.0.0.1:0"])
            .args(&self.arguments)
            .envs(self.environment.iter().map(|(name, value)| (name, value)))
            .stdin(Stdio::null())
            .stdout(Stdio::null())
            .stderr(Stdio::piped())
            .spawn()
            .unwrap();
        let log: Arc<Mutex<Vec<String>>> = Arc::default();
        let lines = BufReader::new(child.stderr.take().unwrap()).lines();
        let listener = Arc::clone(&log);
        std::thread::spawn(move || {
            for line in lines.map_while(Result::ok) {
                listener.lock().unwrap().push(line);
            }
        });
        Gateway { setup: self.clone(), child: Mutex::new(child), log }
    }
}

/// A gateway that runs, killed when it is dropped.
pub(crate) struct Gateway {
    pub(crate) setup: Setup,
    child: Mutex<Child>,
    log: Arc<Mutex<Vec<String>>>,
}

impl Gateway {
    /// Starts one in front of an upstream with nothing but defaults.
    pub(crate) async fn in_front_of(upstream: &str) -> Self {
        Setup::new(upstream).start().await
    }

    pub(crate) fn address(&self) -> SocketAddr {
        self.logged_address("listening on http").expect("it listens")
    }

    /// Where operators reach it. It says so after where it listens, and that may be on its way.
    pub(crate) fn api(&self) -> SocketAddr {
        let end = Instant::now() + TEST_TIMEOUT;
        loop {
            if let Some(address) = self.logged_address("api on http") {
                return address;
            }
            assert!(Instant::now() < end, "it has no API: {:?}", self.log_lines());
            std::thread::sleep(Duration::from_millis(5));
        }
    }

    fn logged_address(&self, before: &str) -> Option<SocketAddr> {
        self.log_lines().iter().find_map(|line| {
            let (_, after) = line.split_once(before)?;
            let (_, after) = after.split_once("://")?;
            after.split([' ', '/', ',']).next()?.parse().ok()
        })
    }

    /// The lines that it has written to its standard error so far.
    pub(crate) fn log_lines(&self) -> Vec<String> {
        self.log.lock().unwrap().clone()
    }

    /// Waits until it has said something.
    pub(crate) async fn wait_for_log(&self, text: &str) {
        let end = Instant::now() + TEST_TIMEOUT;
        while !self.log_lines().iter().any(|line| line.contains(text)) {
            assert!(Instant::now() < end, "no log line has {text:?}: {:#?}", self.log_lines());
            sleep(Duration::from_millis(5)).await;
        }
    }

    pub(crate) async fn connect(&self) -> Client {
        Client::connect(self.address()).await
    }

    /// Sends a request on a connection of its own.
    pub(crate) async fn send(&self, request: ClientRequest) -> Answer {
        send(self.address(), request).await
    }

    /// The records of its store.
    pub(crate) async fn records(&self) -> Vec<Summary> {
        let page = self.setup.store().await.list(&ListQuery::default()).await.unwrap();
        assert_eq!(page.next, None, "more than one page");
        page.items
    }

    /// The state of the record of a key, if there is one.
    pub(crate) async fn state(&self, key: &str) -> Option<StateName> {
        let records = self.records().await;
        records.iter().find(|record| record.id.key.as_str() == key).map(|record| record.state)
    }

    pub(crate) fn process(&self) -> u32 {
        self.child.lock().unwrap().id()
    }

    /// Sends it a signal by name, such as `TERM`.
    pub(crate) fn signal(&self, name: &str) {
        let process = self.process().to_string();
        let sent = Command::new("kill").args(["-s", name, &process]).status().unwrap();
        assert!(sent.success());
    }

    /// Ends it as a power cut would.
    pub(crate) fn kill(self) {
        let mut child = self.child.lock().unwrap();
        child.kill().unwrap();
        child.wait().unwrap();
    }

    pub(crate) fn exit_status(&self) -> Option<ExitStatus> {
        self.child.lock().unwrap().try_wait().unwrap()
    }

    /// Waits until it has ended.
    pub(crate) async fn wait_for_exit(&self) -> ExitStatus {
        let end = Instant::now() + TEST_TIMEOUT;
        loop {
            if let Some(status) = self.exit_status() {
                return status;
            }
            assert!(Instant::now() < end, "it does not end: {:#?}", self.log_lines());
            sleep(Duration::from_millis(5)).await;
        }
    }

    /// Tells it to stop, and looks that nothing is left over: it ends well, and no record is in
    /// flight.
    pub(crate) async fn assert_clean_shutdown(self) {
        self.signal("TERM");
        let status = self.wait_for_exit().await;
        assert!(status.success(), "{status}: {:#?}", self.log_lines());
        for record in self.records().await {
            assert_ne!(record.state, StateName::InFlight, "{record:?}");
        }
    }
}

impl Drop for Gateway {
    fn drop(&mut self) {
        let child = self.child.get_mut().unwrap();
        let _ = child.kill();
        let _ = child.wait();
        if std::thread::panicking() {
            eprintln!("log of the gateway: {:#?}", self.log.lock().unwrap());
        }
    }
}
