//! What the tests work with: a store, records in it, and the program.

use std::{
    fs,
    path::PathBuf,
    process::{Command, Stdio},
    sync::Arc,
    thread,
    time::Duration,
};

use semel::core::{
    About, Answer, Caller, Captured, Claim, Claimant, Claimed, Fence, Field, Fingerprint, Finish,
    Grant, Key, NodeName, OwnerToken, Reason, RecordId, Scope, Snapshot, Store, StoredResponse,
};
use serde_json::Value;
use tempfile::TempDir;
use tokio::time::Instant;

pub(crate) use crate::common::CommandOutput;
use crate::common::{Records, semel_command};

/// A store in a folder of its own, and the program on it.
pub(crate) struct Harness {
    pub(crate) folder: Arc<TempDir>,
    pub(crate) records: Records,
    pub(crate) runtime: tokio::runtime::Runtime,
}

pub(crate) const HOUR: Duration = Duration::from_secs(3600);

impl Harness {
    pub(crate) fn new() -> Self {
        let harness = Self {
            folder: Arc::new(tempfile::tempdir().unwrap()),
            records: Records::fresh(),
            runtime: tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap(),
        };
        drop(harness.store());
        harness
    }

    pub(crate) fn path(&self) -> PathBuf {
        self.folder.path().join("semel.db")
    }

    pub(crate) fn store(&self) -> Box<dyn Store> {
        self.runtime.block_on(self.records.open(&self.path()))
    }

    /// A claim as a gateway makes it.
    pub(crate) fn to_claim(id: &RecordId) -> Claim {
        let fingerprint = Fingerprint::of_parts("test", &[b"one"]);
        let mut claim = Claim::new(id.clone(), fingerprint, OwnerToken::from_bytes([7; 16]));
        claim.lease = HOUR;
        claim.about = About::new("POST api.example.com/v1/charges");
        claim.node = NodeName::new("gateway-1");
        claim.captured = Captured::new([("order", "o-1")]);
        claim
    }

    pub(crate) fn claim(&self, store: &dyn Store, claim: &Claim) -> Claimant {
        let claimed = self.runtime.block_on(store.claim(claim)).unwrap();
        let Claimed::Granted(Grant { fence, .. }) = claimed else { panic!("{claimed:?}") };
        claim.claimant(fence)
    }

    pub(crate) fn finish(&self, store: &dyn Store, id: &RecordId, by: Claimant, finish: &Finish) {
        self.runtime.block_on(store.finish(id, by, finish)).unwrap();
    }

    pub(crate) fn held(&self, id: &RecordId) -> Fence {
        self.held_on(&*self.store(), id, Reason::Answered(503)).fence
    }

    pub(crate) fn held_on(&self, store: &dyn Store, id: &RecordId, reason: Reason) -> Claimant {
        let by = self.claim(store, &Self::to_claim(id));
        self.finish(store, id, by, &Finish::hold(reason));
        by
    }

    pub(crate) fn completed(&self, id: &RecordId, retention: Duration) {
        let (store, mut claim) = (self.store(), Self::to_claim(id));
        claim.retention = retention;
        let by = self.claim(&*store, &claim);
        self.finish(&*store, id, by, &Finish::complete(answer()));
    }

    pub(crate) fn seen(&self, id: &RecordId) -> Option<Snapshot> {
        self.runtime.block_on(self.store().get(id)).unwrap()
    }

    /// Runs `semel` in the store's folder, on the store unless the words say where.
    pub(crate) fn run(&self, words: &[&str]) -> CommandOutput {
        let (command, words) = words.split_first().unwrap();
        let says_where = ["--store", "--server", "--help"].iter().any(|word| words.contains(word));
        let place =
            if says_where || *command == "--help" { vec![] } else { self.records.arguments() };
        CommandOutput::of(self.semel().arg(command).args(place).args(words))
    }

    /// `semel` in the store's folder.
    pub(crate) fn semel(&self) -> Command {
        self.prepare(semel_command())
    }

    /// A command in the store's folder.
    pub(crate) fn prepare(&self, mut command: Command) -> Command {
        command.current_dir(self.folder.path()).env("USER", "zoe");
        command.env_remove("SEMEL_OPERATOR_TOKEN").stdin(Stdio::null());
        command
    }

    /// Where acts on the store itself are written down, in its folder.
    pub(crate) fn audit_name(&self) -> &'static str {
        match self.records {
            Records::Sqlite => "semel.db.audit.jsonl",
            Records::Postgres(_) => "semel.audit.jsonl",
        }
    }

    pub(crate) fn audit(&self) -> Vec<Value> {
        let text = fs::read_to_string(self.folder.path().join(self.audit_name()));
        text.unwrap_or_default().lines().map(|line| serde_json::from_str(line).unwrap()).collect()
    }
}

/// What a service answers.
pub(crate) fn answer() -> Answer {
    let headers = vec![Field::new("content-type", "application/json")];
    let body = "{\"id\":\"ch_1\"}".into();
    Answer::response(&StoredResponse { status: 201, headers, body, trailers: vec![] })
}

pub(crate) fn id(scope: &str, caller: &str, key: &str) -> RecordId {
    RecordId {
        scope: Scope::new(scope).unwrap(),
        caller: Caller::from_stored(caller).unwrap(),
        key: Key::new(key).unwrap(),
    }
}

/// Waits for something that comes soon.
#[track_caller]
pub(crate) fn wait_until(what: &str, condition: impl Fn() -> bool) {
    let begun = Instant::now();
    while !condition() {
        assert!(begun.elapsed() < Duration::from_secs(60), "timed out waiting: {what}");
        thread::sleep(Duration::from_millis(20));
    }
}
