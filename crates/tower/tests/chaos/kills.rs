//! `kill -9` at random moments, under load, with clients that retry.

use std::{
    collections::{BTreeMap, VecDeque},
    net::SocketAddr,
    path::Path,
    sync::{
        Arc, Mutex,
        atomic::{AtomicU64, Ordering},
    },
    time::Duration,
};

use semel::core::OnUnknown;
use tokio::{sync::watch, task::JoinSet, time::sleep};

use crate::{
    client::{self, Heard},
    service::{LEASE, Service, journal},
};

const CLIENTS: usize = 12;

/// The state of the clients: keys to send again, and final answers.
#[derive(Debug, Default)]
struct Notes {
    again: VecDeque<String>,
    done: BTreeMap<String, String>,
    unknown: Vec<String>,
}

impl Notes {
    fn take(&mut self, key: String, heard: Heard) {
        match heard {
            Heard::Done(body) => drop(self.done.insert(key, body)),
            Heard::Unknown => self.unknown.push(key),
            Heard::Again => self.again.push_back(key),
        }
    }
}

fn kills() -> u64 {
    if semel_testkit::torture() { 100 } else { 8 }
}

/// A number below `below`, from a generator whose seed was printed.
fn random(state: &mut u64, below: u64) -> u64 {
    *state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
    (*state >> 33) % below
}

/// Kills the service repeatedly under load; then sends every key once more without kills.
async fn storm(folder: &Path, on_unknown: OnUnknown) -> Notes {
    let seed = semel_testkit::seed();
    println!("SEMEL_SEED={seed}");
    let mut chance = seed;
    let notes = Arc::new(Mutex::new(Notes::default()));
    let (address, listen) = watch::channel(None);
    let mut clients = JoinSet::new();
    let next = Arc::new(AtomicU64::new(0));
    for _ in 0..CLIENTS {
        clients.spawn(retry(listen.clone(), Arc::clone(&next), Arc::clone(&notes)));
    }
    for _ in 0..kills() {
        let service = Service::start(folder, on_unknown);
        address.send_replace(Some(service.address));
        sleep(Duration::from_millis(20 + random(&mut chance, 500))).await;
        service.kill();
    }
    let service = Service::start(folder, on_unknown);
    clients.abort_all();
    while clients.join_next().await.is_some() {}
    sleep(LEASE * 2).await;
    let mut notes = std::mem::take(&mut *notes.lock().unwrap());
    // Interrupted requests are sent again too.
    for number in 0..next.load(Ordering::SeqCst) {
        let key = format!("key-{number}");
        if !notes.done.contains_key(&key) && !notes.unknown.contains(&key) {
            finish(service.address, key, &mut notes).await;
        }
    }
    let done: Vec<_> = notes.done.iter().collect();
    for some in done.chunks(CLIENTS) {
        let asked = some.iter().map(|(key, _)| {
            let (address, key) = (service.address, (*key).clone());
            async move { client::send(address, &key, millis(&key)).await.unwrap() }
        });
        let replays = asked.collect::<JoinSet<_>>().join_all().await;
        for (key, body) in some {
            let same = replays.iter().any(|replay| {
                replay.status == 201 && replay.is_replayed() && replay.text() == *body
            });
            assert!(same, "{key}: {body} is not among {replays:?}");
        }
    }
    service.kill();
    notes
}

/// Sends one key after the other, and repeats those without a final answer.
async fn retry(
    mut listen: watch::Receiver<Option<SocketAddr>>,
    next: Arc<AtomicU64>,
    notes: Arc<Mutex<Notes>>,
) {
    for turn in 0_u64.. {
        let again = if turn % 2 == 0 { notes.lock().unwrap().again.pop_front() } else { None };
        let key = again.unwrap_or_else(|| format!("key-{}", next.fetch_add(1, Ordering::SeqCst)));
        let address = *listen.borrow_and_update();
        let Some(address) = address else {
            notes.lock().unwrap().again.push_back(key);
            let _ = listen.changed().await;
            continue;
        };
        let heard = client::hear(&client::send(address, &key, millis(&key)).await);
        if heard == Heard::Again {
            sleep(Duration::from_millis(5)).await;
        }
        notes.lock().unwrap().take(key, heard);
    }
}

/// How long a key's operation takes: the same at every attempt, since it is part of the
/// fingerprint.
fn millis(key: &str) -> u64 {
    u64::try_from(key.len()).unwrap() + key.bytes().map(u64::from).sum::<u64>() % 13
}

async fn finish(address: SocketAddr, key: String, notes: &mut Notes) {
    for _ in 0..100 {
        match client::hear(&client::send(address, &key, millis(&key)).await) {
            Heard::Again => sleep(Duration::from_millis(50)).await,
            heard @ (Heard::Done(_) | Heard::Unknown) => return notes.take(key, heard),
        }
    }
    panic!("{key} never gets a final answer");
}

/// Under `hold` nothing runs twice, whatever was killed when.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_torture_of_kills_runs_no_key_twice_under_hold() {
    let folder = tempfile::tempdir().unwrap();
    let notes = storm(folder.path(), OnUnknown::Hold).await;
    let runs = journal(folder.path());
    println!("{} keys, {} done, {} unknown", runs.len(), notes.done.len(), notes.unknown.len());
    for (key, fences) in &runs {
        assert_eq!(fences.len(), 1, "{key} ran with {fences:?}");
    }
    assert!(notes.done.len() > 100, "too few to mean much");
    assert!(!notes.unknown.is_empty(), "no kill met a running operation");
    assert!(notes.done.keys().all(|key| runs.contains_key(key)), "an answer without a run");
}

/// Under `rerun` an interrupted operation runs again, each time with a higher fence, until an
/// answer is recorded; and not after that.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_torture_of_kills_reruns_with_higher_fences_under_rerun() {
    let folder = tempfile::tempdir().unwrap();
    let notes = storm(folder.path(), OnUnknown::Rerun).await;
    let runs = journal(folder.path());
    let again = runs.values().filter(|fences| fences.len() > 1).count();
    println!("{} keys, {} done, {again} ran again", runs.len(), notes.done.len());
    assert_eq!(notes.unknown, [] as [String; 0]);
    for (key, fences) in &runs {
        assert!(fences.is_sorted_by(|earlier, later| earlier < later), "{key}: {fences:?}");
        let last = fences.last().unwrap();
        let body = &notes.done[key];
        assert!(body.starts_with(&format!("{key} ran with {last} ")), "{key}: {body}: {fences:?}");
    }
    assert!(again > 0, "no kill met a running operation");
}
