//! A fleet of workers in Python and TypeScript: eight processes share messages with duplicates
//! while workers and the server are killed.

use std::{
    collections::BTreeMap,
    fs,
    io::Write as _,
    path::Path,
    process::{Child, Stdio},
    thread,
    time::{Duration, Instant},
};

use serde_json::json;
use tempfile::TempDir;

use crate::{HERE, semel_clients, service::Service};

const WORKERS: usize = 8;
const COPIES: usize = 3;
const FLEET_MAX: Duration = Duration::from_secs(120);

/// What the workers of one run have written: the fences with which each message ran, in order.
type Runs = BTreeMap<String, Vec<u64>>;

struct Fleet {
    folder: TempDir,
    on_unknown: &'static str,
    service: Service,
}

impl Fleet {
    fn worker(&self, number: usize, messages: &[String]) -> Option<Child> {
        let mut worker = if number.is_multiple_of(2) {
            let mut python = semel_clients::python()?;
            python.arg(format!("{HERE}/clients/semel_worker.py"));
            python
        } else {
            semel_clients::node("semel_worker.mjs")?
        };
        let runs = self.folder.path().join(format!("runs-{number}"));
        let input = json!({
            "messages": messages, "on_unknown": self.on_unknown, "runs": runs,
            "finished": self.folder.path().join(format!("finished-{number}")),
        });
        self.service.introduce(&mut worker).stdin(Stdio::piped()).stdout(Stdio::null());
        let mut child = worker.spawn().unwrap();
        child.stdin.take().unwrap().write_all(input.to_string().as_bytes()).unwrap();
        Some(child)
    }

    /// Each line was written by one `write`, which a kill does not tear.
    fn runs(&self) -> Runs {
        let mut runs = Runs::new();
        for number in 0..WORKERS {
            let file = self.folder.path().join(format!("runs-{number}"));
            for line in fs::read_to_string(file).unwrap_or_default().lines() {
                let (message, fence) = line.split_once(' ').unwrap();
                runs.entry(message.to_owned()).or_default().push(fence.parse().unwrap());
            }
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

/// Kills workers and the server in turn while messages are left. A worker that was killed is
/// started again with its whole share, as a broker delivers again.
#[expect(clippy::disallowed_methods, reason = "a test has a limit of time")]
fn work(on_unknown: &'static str, messages: usize) -> Option<(Fleet, usize)> {
    let mut fleet =
        Fleet { folder: TempDir::new().unwrap(), on_unknown, service: Service::start() };
    let start = |fleet: &Fleet, number| fleet.worker(number, &share(number, messages));
    let workers: Option<Vec<Child>> = (0..WORKERS).map(|number| start(&fleet, number)).collect();
    let mut workers = workers?;
    let (began, mut kills, mut progress) = (Instant::now(), 0, 0);
    loop {
        assert!(began.elapsed() < FLEET_MAX, "the fleet takes too long");
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
                fleet.service.restart();
            }
            workers[victim] = start(&fleet, victim)?;
            kills += 1;
        }
        thread::sleep(Duration::from_millis(20));
    }
    for (number, worker) in workers.iter_mut().enumerate() {
        assert!(worker.wait().unwrap().success(), "worker {number}");
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

fn messages() -> usize {
    if std::env::var_os("SEMEL_TORTURE").is_some() { 20_000 / COPIES } else { 240 }
}

#[test]
fn a_fleet_of_workers_runs_each_message_once_under_hold_torture() {
    let messages = messages();
    let Some((fleet, kills)) = work("hold", messages) else { return };
    assert!(kills >= 3, "{kills}");
    let runs = fleet.runs();
    assert!(runs.values().all(|fences| fences.len() == 1), "{runs:?}");
    // A worker that is killed leaves at most the message that it had.
    let held = held(fleet.folder.path());
    assert!(held <= kills && messages - runs.len() <= held, "{kills} {held} {}", runs.len());
}

#[test]
fn a_fleet_of_workers_reruns_each_message_with_a_rising_fence_torture() {
    let messages = messages();
    let Some((fleet, kills)) = work("rerun", messages) else { return };
    assert!(kills >= 3, "{kills}");
    let runs = fleet.runs();
    assert_eq!(runs.len(), messages);
    assert_eq!(held(fleet.folder.path()), 0);
    let again: usize = runs.values().map(|fences| fences.len() - 1).sum();
    assert!(again <= kills, "{again} of {kills}");
    for (message, fences) in runs {
        let mut rising = fences.clone();
        rising.sort_unstable();
        rising.dedup();
        assert_eq!(rising.len(), fences.len(), "{message} ran twice with one fence: {fences:?}");
    }
}
