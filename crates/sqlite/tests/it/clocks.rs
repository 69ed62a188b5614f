//! Odd clocks: a wall clock that jumps, a machine that reboots.

use std::{
    sync::{
        Arc, Mutex,
        atomic::{AtomicU64, Ordering},
    },
    time::Duration,
};

use semel_core::{Claimed, Fenced, Finish, Occupied, StateView, Store};
use semel_sqlite::{BootClock, Options, SqliteStore};
use tempfile::TempDir;

use crate::child_process::{answer, claim, id};

const HOUR: u64 = 3_600_000;

/// A machine whose clocks the test sets, in milliseconds.
#[derive(Debug)]
pub(crate) struct MachineClock {
    boot_id: Mutex<String>,
    since_boot: AtomicU64,
    pub(crate) wall: AtomicU64,
}

impl BootClock for MachineClock {
    fn boot_id(&self) -> String {
        self.boot_id.lock().unwrap().clone()
    }
    fn since_boot(&self) -> Duration {
        Duration::from_millis(self.since_boot.load(Ordering::SeqCst))
    }
    fn wall(&self) -> Duration {
        Duration::from_millis(self.wall.load(Ordering::SeqCst))
    }
}

impl MachineClock {
    pub(crate) fn new() -> Arc<Self> {
        Arc::new(Self {
            boot_id: Mutex::new("first".to_owned()),
            since_boot: AtomicU64::new(60_000),
            wall: AtomicU64::new(1_000 * HOUR),
        })
    }

    /// A container on the same machine, with its own boot id.
    fn container(&self, boot_id: &str) -> Arc<Self> {
        Arc::new(Self {
            boot_id: Mutex::new(boot_id.to_owned()),
            since_boot: AtomicU64::new(self.since_boot.load(Ordering::SeqCst)),
            wall: AtomicU64::new(self.wall.load(Ordering::SeqCst)),
        })
    }

    fn pass(&self, millis: u64) {
        self.since_boot.fetch_add(millis, Ordering::SeqCst);
        self.wall.fetch_add(millis, Ordering::SeqCst);
    }

    fn boot(&self, wall: u64) {
        *self.boot_id.lock().unwrap() = "second".to_owned();
        self.since_boot.store(5_000, Ordering::SeqCst);
        self.wall.store(wall, Ordering::SeqCst);
    }
}

struct ClockFixture {
    machine: Arc<MachineClock>,
    folder: TempDir,
}

impl ClockFixture {
    fn new() -> Self {
        Self { machine: MachineClock::new(), folder: tempfile::tempdir().unwrap() }
    }

    fn open(&self) -> SqliteStore {
        self.open_on(&self.machine)
    }

    fn open_on(&self, machine: &Arc<MachineClock>) -> SqliteStore {
        let clock: Arc<dyn BootClock> = Arc::<MachineClock>::clone(machine);
        Options::new().clock(clock).open(self.folder.path().join("semel.db")).unwrap()
    }
}

/// How long ago the key was claimed, by the clock of this store.
async fn age(store: &SqliteStore, key: &str) -> Duration {
    store.get(&id(key)).await.unwrap().unwrap().age
}

async fn is_granted(store: &SqliteStore, key: &str, owner: u8) -> bool {
    matches!(store.claim(&claim(key, [owner; 16])).await.unwrap(), Claimed::Granted(_))
}

async fn complete(store: &SqliteStore, key: &str) {
    let claim = claim(key, [1; 16]);
    let Claimed::Granted(grant) = store.claim(&claim).await.unwrap() else {
        panic!("{key} is taken")
    };
    let finish = Finish::complete(answer(key));
    let done = store.finish(&claim.id, claim.claimant(grant.fence), &finish).await.unwrap();
    assert_eq!(done, Fenced::Applied);
}

#[tokio::test]
async fn a_wall_clock_that_jumps_does_not_lapse_a_lease() {
    let fixture = ClockFixture::new();
    let store = fixture.open();
    assert!(is_granted(&store, "k", 1).await);
    let now = fixture.machine.wall.load(Ordering::SeqCst);
    for wall in [now + HOUR, now - HOUR] {
        fixture.machine.wall.store(wall, Ordering::SeqCst);
        // A process from before the jump, and one from after it.
        for store in [&store, &fixture.open()] {
            assert_eq!(
                store.claim(&claim("k", [2; 16])).await.unwrap(),
                Claimed::Occupied(Occupied::InFlight { lease_left: Duration::from_secs(30) })
            );
        }
    }
    fixture.machine.pass(30_001);
    assert_eq!(
        store.claim(&claim("k", [2; 16])).await.unwrap(),
        Claimed::Occupied(Occupied::Held),
        "time that really passes does lapse it"
    );
}

#[tokio::test]
async fn a_wall_clock_that_jumps_back_does_not_resurrect_a_record() {
    let fixture = ClockFixture::new();
    let store = fixture.open();
    complete(&store, "k").await;
    fixture.machine.pass(HOUR + 1);
    assert_eq!(store.get(&id("k")).await.unwrap(), None);
    fixture.machine.wall.fetch_sub(HOUR, Ordering::SeqCst);
    for store in [&store, &fixture.open()] {
        assert_eq!(store.get(&id("k")).await.unwrap(), None);
    }
}

#[tokio::test]
async fn a_wall_clock_that_jumps_ahead_does_not_expire_a_record() {
    let fixture = ClockFixture::new();
    let store = fixture.open();
    complete(&store, "k").await;
    fixture.machine.wall.fetch_add(100 * HOUR, Ordering::SeqCst);
    for store in [&store, &fixture.open()] {
        let seen = store.get(&id("k")).await.unwrap().unwrap();
        assert!(matches!(seen.state, StateView::Completed { .. }));
    }
}

#[tokio::test]
async fn after_a_boot_time_goes_on_by_the_wall_clock() {
    let fixture = ClockFixture::new();
    let store = fixture.open();
    complete(&store, "done").await;
    assert!(is_granted(&store, "running", 1).await);
    drop(store);
    fixture.machine.boot(1_000 * HOUR + 31_000);
    let store = fixture.open();
    let seen = store.get(&id("done")).await.unwrap().unwrap();
    assert_eq!(seen.age, Duration::from_secs(31));
    let seen = store.get(&id("running")).await.unwrap().unwrap();
    assert_eq!(seen.state, StateView::Held, "its owner died with the machine");
}

#[tokio::test]
async fn after_a_boot_with_a_lost_wall_clock_time_does_not_go_back() {
    let fixture = ClockFixture::new();
    let store = fixture.open();
    complete(&store, "old").await;
    fixture.machine.pass(HOUR + 1);
    complete(&store, "new").await;
    assert_eq!(store.get(&id("old")).await.unwrap(), None);
    drop(store);
    fixture.machine.boot(0);
    let store = fixture.open();
    assert_eq!(store.get(&id("old")).await.unwrap(), None);
    let seen = store.get(&id("new")).await.unwrap().unwrap();
    assert_eq!(seen.age, Duration::ZERO);
}

#[test]
fn a_machine_without_a_boot_id_is_refused() {
    let fixture = ClockFixture::new();
    fixture.machine.boot_id.lock().unwrap().clear();
    let clock: Arc<dyn BootClock> = Arc::<MachineClock>::clone(&fixture.machine);
    let opened = Options::new().clock(clock).open(fixture.folder.path().join("semel.db"));
    assert!(opened.map(drop).unwrap_err().to_string().contains("boot"));
}

/// A wall clock that was set between two openings is a difference between two clocks.
#[tokio::test]
async fn containers_with_boot_ids_of_their_own_agree_on_the_later_clock() {
    for step in [HOUR, 0] {
        let fixture = ClockFixture::new();
        let store = fixture.open();
        assert!(is_granted(&store, "first", 1).await);
        fixture.machine.pass(10_000);
        let container = fixture.machine.container("another");
        // Ahead by an hour; or set back, but not before the latest instant in the file.
        container.wall.store(step * 2_000, Ordering::SeqCst);
        let other = fixture.open_on(&container);
        assert!(is_granted(&other, "second", 2).await);
        assert_ne!(age(&other, "first").await, Duration::from_secs(10));
        for (store, key) in [(&store, "third"), (&other, "fourth")] {
            assert!(is_granted(store, key, 1).await);
        }
        let ages = (age(&store, "first").await, age(&other, "first").await);
        assert_eq!(ages.0, ages.1);
        assert!(ages.0 >= Duration::from_secs(10), "time did not go back: {ages:?}");
        let third = fixture.open_on(&fixture.machine.container("another"));
        assert_eq!(age(&third, "first").await, ages.0, "the file has the later clock");
    }
}

#[tokio::test]
async fn a_process_whose_boot_clock_is_ahead_sets_the_others_forward() {
    let fixture = ClockFixture::new();
    let store = fixture.open();
    assert!(is_granted(&store, "first", 1).await);
    let namespace = fixture.machine.container("first");
    namespace.since_boot.fetch_add(20_000, Ordering::SeqCst);
    let other = fixture.open_on(&namespace);
    assert!(is_granted(&other, "second", 2).await);
    for round in 0..5 {
        assert!(is_granted(&store, &format!("a-{round}"), 1).await);
        assert!(is_granted(&other, &format!("b-{round}"), 1).await);
    }
    for store in [&store, &other, &fixture.open()] {
        assert_eq!(age(store, "second").await, Duration::ZERO);
        assert_eq!(age(store, "first").await, Duration::from_secs(20));
    }
}
