//! The gateway under test: the real binary, a process of its own.

use std::{fs, net::SocketAddr, process::ExitStatus, time::Duration};

use semel::core::{ListQuery, StateName, Summary};
use semel_testkit::program::Program;
use tokio::time::{Instant, sleep};

use super::{Client, ClientRequest, Setup, TEST_TIMEOUT, TestResponse, send};

/// The text before the address of the gateway's clients in its log.
pub(super) const LISTENING: &str = "listening on http";

/// The text before the address of the API in its log.
const API: &str = "api on http";

/// A gateway that runs, killed when it is dropped.
#[derive(Debug)]
pub(crate) struct Gateway {
    // Dropped before the folder that it works in.
    program: Program,
    pub(crate) setup: Setup,
}

impl Gateway {
    pub(super) fn new(setup: Setup, program: Program) -> Self {
        Self { program, setup }
    }

    /// Starts one in front of the upstream at this URL with nothing but defaults.
    pub(crate) async fn in_front_of(upstream: &str) -> Self {
        Setup::new(upstream).start().await
    }

    /// Starts one on a store in memory in front of an upstream at this address.
    pub(crate) async fn at(upstream: SocketAddr) -> Self {
        Setup::at(upstream).start().await
    }

    pub(crate) fn address(&self) -> SocketAddr {
        self.program.logged_address(LISTENING).expect("it listens")
    }

    pub(super) fn is_listening(&self) -> bool {
        let listener = if self.setup.is_api_alone() { API } else { LISTENING };
        self.program.logged_address(listener).is_some()
    }

    /// Waits until it listens.
    pub(super) fn wait_for_listener(&self) {
        let _ = self.program.wait_for_address(LISTENING);
    }

    /// Where operators reach it. Its line comes after that of the gateway's listener.
    pub(crate) fn api(&self) -> SocketAddr {
        self.program.wait_for_address(API)
    }

    /// The lines that it has logged so far.
    pub(crate) fn log_lines(&self) -> Vec<String> {
        self.program.log_lines()
    }

    /// Its log so far.
    pub(crate) fn log(&self) -> String {
        self.program.log()
    }

    /// Waits until it has logged this text.
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
    pub(crate) async fn send(&self, request: ClientRequest) -> TestResponse {
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
        self.program.id()
    }

    /// The most memory that it has had, in KiB.
    pub(crate) fn memory_peak_kib(&self) -> u64 {
        let status = fs::read_to_string(format!("/proc/{}/status", self.process())).unwrap();
        let line = status.lines().find_map(|line| line.strip_prefix("VmHWM:")).unwrap();
        line.trim().trim_end_matches("kB").trim().parse().unwrap()
    }

    /// Sends it a signal by name, such as `TERM`.
    pub(crate) fn signal(&self, name: &str) {
        self.program.signal(name);
    }

    /// Ends it as a power cut would.
    pub(crate) fn kill(self) {
        self.program.kill();
    }

    pub(crate) fn exit_status(&self) -> Option<ExitStatus> {
        self.program.exit_status()
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

    /// Stops it, and asserts that nothing is left over: it ends with success, and no record is in
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
