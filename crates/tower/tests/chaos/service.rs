//! The service: this test binary, started with environment variables that make it serve.
//!
//! Every run of its handler leaves a line in a journal, written before anything else happens: the
//! effect that must not happen twice. The answer is different for every run, so that equal bytes
//! mean the same run.

use std::{
    collections::BTreeMap,
    env, fs,
    io::{BufRead as _, BufReader, Lines, Read as _, Write as _},
    net::SocketAddr,
    path::{Path, PathBuf},
    process::{Child, ChildStdout, Command, Stdio},
    sync::Arc,
    time::Duration,
};

use axum::{Router, extract::State, http::StatusCode, routing::post};
use semel::{
    Semel,
    core::{OnUnknown, Policy, Scope},
};
use semel_sqlite::SqliteStore;
use semel_tower::{
    Callers, IdempotencyAttempt, IdempotencyFence, IdempotencyKey, IdempotencyLayer,
};

const FOLDER: &str = "SEMEL_SERVICE_FOLDER";
const RERUN: &str = "SEMEL_SERVICE_RERUN";

pub(crate) const LEASE: Duration = Duration::from_secs(1);

/// A running service, killed when it is dropped.
#[derive(Debug)]
pub(crate) struct Service {
    child: Child,
    pub(crate) address: SocketAddr,
    /// Kept open: the test runner prints after a minute, and must not find it closed.
    _said: Lines<BufReader<ChildStdout>>,
}

impl Service {
    /// Starts one on the store and the journal in this folder.
    pub(crate) fn start(folder: &Path, on_unknown: OnUnknown) -> Self {
        let mut child = Command::new(env::current_exe().unwrap())
            .args(["--exact", "service::serve", "--nocapture"])
            .env(FOLDER, folder)
            .env(RERUN, (on_unknown == OnUnknown::Rerun).to_string())
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .spawn()
            .unwrap();
        let mut lines = BufReader::new(child.stdout.take().unwrap()).lines();
        let said = |line: std::io::Result<String>| {
            line.unwrap().strip_prefix("serving ").map(|address| address.parse().unwrap())
        };
        let address = lines.find_map(said).unwrap();
        Self { child, address, _said: lines }
    }

    pub(crate) fn kill(mut self) {
        self.child.kill().unwrap();
        self.child.wait().unwrap();
    }

    /// Sends it a signal by name, such as `STOP`.
    pub(crate) fn signal(&self, name: &str) {
        let process = self.child.id().to_string();
        let sent = Command::new("kill").args(["-s", name, &process]).status().unwrap();
        assert!(sent.success());
    }
}

impl Drop for Service {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

/// The fences that each key ran with, in the order of their runs.
pub(crate) fn journal(folder: &Path) -> BTreeMap<String, Vec<u64>> {
    let mut runs: BTreeMap<String, Vec<u64>> = BTreeMap::new();
    for line in fs::read_to_string(folder.join("journal")).unwrap().lines() {
        let (key, fence) = line.split_once(' ').unwrap();
        runs.entry(key.to_owned()).or_default().push(fence.parse().unwrap());
    }
    runs
}

#[test]
fn serve() {
    #[expect(clippy::disallowed_methods, reason = "how the parent tells the child what to do")]
    let text = |name: &str| env::var(name);
    let Ok(folder) = text(FOLDER) else { return };
    let folder = PathBuf::from(folder);
    let on_unknown =
        if text(RERUN).unwrap() == "true" { OnUnknown::Rerun } else { OnUnknown::Hold };
    // The process must not outlive its parent.
    std::thread::spawn(|| {
        let _ = std::io::stdin().read_to_end(&mut Vec::new());
        std::process::exit(0);
    });
    let runtime =
        tokio::runtime::Builder::new_multi_thread().worker_threads(2).enable_all().build().unwrap();
    runtime.block_on(async {
        let policy = Policy {
            lease: LEASE,
            wait: Duration::from_millis(300),
            on_unknown,
            ..Policy::default()
        };
        let app = app(&folder, policy);
        let listener = tokio::net::TcpListener::bind("127.0.0.1:0").await.unwrap();
        // The harness leaves its own line open.
        println!("\nserving {}", listener.local_addr().unwrap());
        std::io::stdout().flush().unwrap();
        axum::serve(listener, app).await.unwrap();
    });
}

fn app(folder: &Path, policy: Policy) -> Router {
    let semel = Semel::new(SqliteStore::open(folder.join("semel.db")).unwrap());
    let layer = IdempotencyLayer::new(&semel, Scope::new("charges").unwrap(), Callers::anonymous())
        .policy(policy);
    let journal =
        fs::OpenOptions::new().append(true).create(true).open(folder.join("journal")).unwrap();
    Router::new().route("/charges", post(charge)).layer(layer).with_state(Arc::new(journal))
}

/// Charges the card, which takes as many milliseconds as the body says.
async fn charge(
    State(journal): State<Arc<fs::File>>,
    IdempotencyKey(key): IdempotencyKey,
    IdempotencyFence(fence): IdempotencyFence,
    IdempotencyAttempt(attempt): IdempotencyAttempt,
    body: String,
) -> (StatusCode, String) {
    // One write, so that lines of several processes do not mix.
    (&*journal).write_all(format!("{key} {fence}\n").as_bytes()).unwrap();
    tokio::time::sleep(Duration::from_millis(body.parse().unwrap())).await;
    (StatusCode::CREATED, format!("{key} ran with {fence} at attempt {attempt}"))
}
