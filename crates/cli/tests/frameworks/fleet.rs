//! A fleet of workers in Python and TypeScript: eight processes share messages with duplicates
//! while workers and servers are killed.

use std::{
    collections::BTreeMap,
    fs,
    io::Write as _,
    path::Path,
    process::{Child, Stdio},
    thread,
    time::{Duration, Instant},
};

use semel_testkit::{servers, wire::Proxy};
use serde_json::json;
use tempfile::TempDir;

use crate::{
    HERE, semel_clients,
    service::{self, Service},
};

const WORKERS: usize = 8;
const COPIES: usize = 3;
const FLEET_MAX: Duration = Duration::from_secs(120);
const TORTURE_MAX: Duration = Duration::from_secs(900);

/// How often connections are cut and led to another server. A call must be done between two cuts.
const LEAD_INTERVAL: Duration = Duration::from_secs(3);

/// Where the records are.
#[derive(Clone, Copy)]
enum Backend {
    /// In a file, behind one server.
    Sqlite,
    /// In PostgreSQL, behind two servers.
    Postgres,
}

/// What the workers of one run have written: the fences with which each message ran, in the order
/// of the runs.
type Runs = BTreeMap<String, Vec<u64>>;

struct Fleet {
    folder: TempDir,
    on_unknown: &'static str,
    servers: Vec<Service>,
    /// Leads to the servers in turn.
    proxy: Proxy,
}

impl Fleet {
    fn start(on_unknown: &'static str, backend: Backend) -> Self {
        let servers = match backend {
            Backend::Sqlite => vec![Service::start()],
            Backend::Postgres => {
                let server = servers::postgres();
                let store = server.url(&server.fresh_database());
                vec![Service::on(&store), Service::on(&store)]
            }
        };
        let proxy = Proxy::start(servers[0].port());
        Self { folder: TempDir::new().unwrap(), on_unknown, servers, proxy }
    }

    /// From now on every connection is to this server.
    fn lead_to(&self, server: usize) {
        self.proxy.lead_to(self.servers[server].port());
        self.proxy.cut();
    }

    fn worker(&self, number: usize, messages: &[String]) -> Option<Child> {
        let mut worker = if number.is_multiple_of(2) {
            let mut python = semel_clients::python()?;
            python.arg(format!("{HERE}/clients/semel_worker.py"));
            python
        } else {
            semel_clients::node("semel_worker.mjs")?
        };
        let input = json!({
            "messages": messages, "on_unknown": self.on_unknown,
            "runs": self.folder.path().join("runs"),
            "finished": self.folder.path().join(format!("finished-{number}")),
        });
        let url = format!("http://127.0.0.1:{}", self.proxy.port());
        service::introduce(&mut worker, &url).stdin(Stdio::piped()).stdout(Stdio::null());
        let mut child = worker.spawn().unwrap();
        child.stdin.take().unwrap().write_all(input.to_string().as_bytes()).unwrap();
        Some(child)
    }

    /// All workers append to one file. Each line was written by one `write`, which a kill does not
    /// tear.
    fn runs(&self) -> Runs {
        let mut runs = Runs::new();
        for line in fs::read_to_string(self.folder.path().join("runs")).unwrap_or_default().lines()
        {
            let (message, fence) = line.split_once(' ').unwrap();
            runs.entry(message.to_owned()).or_default().push(fence.parse().unwrap());
        }
        runs
    }
}

/// The share of a worker: every message is in the shares of several.
fn share(number: usize, messages: usize) -> Vec<String> {
    let first = number * messages / WORKERS;
    let shared = messages * COPIES / WORKERS;
    (first..first + shared).map(|message| format!("m-{}", message % messages)).collect()
}

/// Kills workers and servers in turn while messages are left. A worker that was killed is started
/// again with its whole share, as a broker delivers again. Where there are two servers, connections
/// change between them all the time.
#[expect(clippy::disallowed_methods, reason = "a test has a limit of time")]
fn work(on_unknown: &'static str, backend: Backend, messages: usize) -> Option<(Fleet, usize)> {
    let mut fleet = Fleet::start(on_unknown, backend);
    let start = |fleet: &Fleet, number| fleet.worker(number, &share(number, messages));
    let workers: Option<Vec<Child>> = (0..WORKERS).map(|number| start(&fleet, number)).collect();
    let mut workers = workers?;
    let (began, mut kills, mut progress) = (Instant::now(), 0, 0);
    let mut led = began;
    let limit = if is_torture() { TORTURE_MAX } else { FLEET_MAX };
    loop {
        assert!(began.elapsed() < limit, "the fleet takes too long");
        let done = fleet.runs().len();
        let running = |worker: &mut Child| worker.try_wait().unwrap().is_none();
        if !workers.iter_mut().any(running) {
            break;
        }
        // A kill after each eighth of the messages.
        if done >= progress + messages / 8 && done < messages {
            progress = done;
            let victim = kills % WORKERS;
            workers[victim].kill().unwrap();
            workers[victim].wait().unwrap();
            if kills % 3 == 1 {
                let server = kills % fleet.servers.len();
                fleet.lead_to((server + 1) % fleet.servers.len());
                fleet.servers[server].restart();
            }
            workers[victim] = start(&fleet, victim)?;
            kills += 1;
        }
        if fleet.servers.len() > 1 && led.elapsed() > LEAD_INTERVAL {
            led = Instant::now();
            let seconds = usize::try_from(began.elapsed().as_secs()).unwrap();
            fleet.lead_to(seconds % fleet.servers.len());
        }
        thread::sleep(Duration::from_millis(20));
    }
    for (number, worker) in workers.iter_mut().enumerate() {
        let status = worker.wait().unwrap();
        assert!(status.success(), "worker {number}: {status}");
        assert!(fleet.folder.path().join(format!("finished-{number}")).exists());
    }
    Some((fleet, kills))
}

/// How many messages the workers found held.
fn held(folder: &Path) -> usize {
    let mut held = std::collections::BTreeSet::new();
    for number in 0..WORKERS {
        let text = fs::read_to_string(folder.join(format!("finished-{number}"))).unwrap();
        held.extend(text.lines().map(str::to_owned));
    }
    held.len()
}

fn is_torture() -> bool {
    std::env::var_os("SEMEL_TORTURE").is_some()
}

fn messages() -> usize {
    if is_torture() { 20_000 / COPIES } else { 160 }
}

fn runs_each_message_once_under_hold(backend: Backend) {
    let messages = messages();
    let Some((fleet, kills)) = work("hold", backend, messages) else { return };
    assert!(kills >= 3, "{kills}");
    let runs = fleet.runs();
    assert!(runs.values().all(|fences| fences.len() == 1), "{runs:?}");
    // A worker that is killed leaves at most the message that it had.
    let held = held(fleet.folder.path());
    assert!(held <= kills && messages - runs.len() <= held, "{kills} {held} {}", runs.len());
}

fn reruns_each_message_with_a_rising_fence(backend: Backend) {
    let messages = messages();
    let Some((fleet, kills)) = work("rerun", backend, messages) else { return };
    assert!(kills >= 3, "{kills}");
    let runs = fleet.runs();
    assert_eq!(runs.len(), messages);
    assert_eq!(held(fleet.folder.path()), 0);
    let again: usize = runs.values().map(|fences| fences.len() - 1).sum();
    assert!(again <= kills, "{again} of {kills}");
    for (message, fences) in runs {
        let is_rising = fences.is_sorted_by(|before, next| before < next);
        assert!(is_rising, "{message} ran again without a higher fence: {fences:?}");
    }
}

#[test]
fn a_fleet_of_workers_runs_each_message_once_under_hold_torture() {
    runs_each_message_once_under_hold(Backend::Sqlite);
}

#[test]
fn a_fleet_of_workers_reruns_each_message_with_a_rising_fence_torture() {
    reruns_each_message_with_a_rising_fence(Backend::Sqlite);
}

#[test]
fn a_fleet_with_two_servers_runs_each_message_once_under_hold_torture() {
    runs_each_message_once_under_hold(Backend::Postgres);
}

#[test]
fn a_fleet_with_two_servers_reruns_each_message_with_a_rising_fence_torture() {
    reruns_each_message_with_a_rising_fence(Backend::Postgres);
}
