//! Power cuts and failing syncs: what was acknowledged is on the disk, not only in its cache.

use std::{path::PathBuf, time::Duration};

use semel_sqlite::SqliteStore;
use semel_testkit::powercut::{self, Inject, Options, Shim, Stats};
use tempfile::TempDir;

use crate::child::{Job, Said};

struct Disk {
    folder: TempDir,
}

impl Disk {
    fn new() -> Self {
        Self { folder: tempfile::tempdir().unwrap() }
    }

    fn path(&self, name: &str) -> PathBuf {
        self.folder.path().join(name)
    }

    fn options(&self, seed: u64) -> Options {
        Options { seed, ..Options::new(self.path("watch"), self.path("shadow")) }
    }

    /// Runs a child on this disk until it has had `acks` answers recorded, then cuts the power.
    fn live(&self, job: &Job, options: &Options, acks: usize) -> Said {
        let shim = Shim::build(env!("CARGO_TARGET_TMPDIR").as_ref()).unwrap();
        let mut command = job.command();
        shim.apply(&mut command, options).unwrap();
        let mut child = command.spawn().unwrap();
        let said = Said::listen(&mut child, |said, child| {
            if said.completed.len() >= acks {
                child.kill().unwrap();
            }
        });
        // Fails if the library was not loaded.
        Stats::read(&self.path("shadow")).unwrap();
        said
    }

    fn job(&self, life: u64) -> Job {
        Job::new(self.path("watch/semel.db"), format!("life-{life}"))
    }

    /// The disk as it is after the cut; the next life goes on with it.
    fn recover(&self) -> SqliteStore {
        powercut::after_cut(&self.path("shadow"), &self.path("watch")).unwrap();
        let recovered = self.path("recovered");
        powercut::after_cut(&self.path("shadow"), &recovered).unwrap();
        SqliteStore::open(recovered.join("semel.db")).unwrap()
    }
}

async fn survive(lives: u64, options: impl Fn(&Disk, u64) -> Options) -> Vec<Said> {
    let disk = Disk::new();
    let mut all = Vec::new();
    for life in 0..lives {
        let acks = 50 + usize::try_from(life * 7919 % 500).unwrap();
        all.push(disk.live(&disk.job(life), &options(&disk, life), acks));
        let store = disk.recover();
        // All lives now and then and in the end, the last one always.
        let checked = if life % 10 == 0 || life + 1 == lives { all.len() } else { 1 };
        for said in all.iter().rev().take(checked) {
            assert_eq!(said.missing(&store).await, [] as [String; 0], "life {life}");
        }
    }
    all
}

#[tokio::test]
async fn everything_acknowledged_survives_power_cuts() {
    survive(6, Disk::options).await;
}

#[tokio::test]
async fn everything_acknowledged_survives_power_cuts_that_tear_unsynced_writes() {
    survive(6, |disk, seed| Options { early_percent: 30, ..disk.options(seed) }).await;
}

#[tokio::test]
async fn torture_everything_acknowledged_survives_many_power_cuts() {
    let lives = if semel_testkit::torture() { 300 } else { 3 };
    survive(lives, |disk, seed| Options {
        early_percent: u8::try_from(seed % 3 * 20).unwrap(),
        sync_delay: Duration::from_micros(seed % 5 * 200),
        ..disk.options(seed)
    })
    .await;
}

/// A process is killed in the middle of a commit, the next one finds what was written but not
/// synced and tells others of it, and then the power fails.
#[tokio::test]
async fn what_a_killed_process_left_is_durable_before_anyone_is_told_of_it() {
    let disk = Disk::new();
    let shim = Shim::build(env!("CARGO_TARGET_TMPDIR").as_ref()).unwrap();
    for life in 0..5 {
        // Slow syncs, so that the kill strikes between a write and its sync.
        let sync_delay = Duration::from_millis(20);
        let acks = 40 + usize::try_from(life).unwrap() * 7;
        disk.live(&disk.job(life), &Options { sync_delay, ..disk.options(life) }, acks);
        // The machine goes on: what was written is still in its cache.
        let mut command = Job { look: true, ..disk.job(life) }.command();
        shim.apply(&mut command, &disk.options(life)).unwrap();
        let mut child = command.spawn().unwrap();
        let said = Said::listen(&mut child, |said, child| {
            if !said.occupied.is_empty() {
                child.kill().unwrap();
            }
        });
        assert!(said.granted.len() >= acks);
        assert_eq!(said.missing(&disk.recover()).await, [] as [String; 0], "life {life}");
    }
}

#[tokio::test]
async fn a_store_that_does_not_sync_is_caught_losing_what_it_acknowledged() {
    let disk = Disk::new();
    // A first life that syncs, so that there is a file to recover.
    disk.live(&disk.job(0), &disk.options(0), 10);
    powercut::after_cut(&disk.path("shadow"), &disk.path("watch")).unwrap();
    powercut::settle(&disk.path("watch"), &disk.path("shadow")).unwrap();
    let job = Job { durable: false, ..disk.job(1) };
    let said = disk.live(&job, &disk.options(1), 500);
    let lost = said.missing(&disk.recover()).await.len();
    assert!(lost > 0, "nothing was lost of {}", said.completed.len());
}

#[tokio::test]
async fn failed_and_ambiguous_syncs_lose_nothing_that_was_acknowledged() {
    let all = survive(6, |disk, seed| Options {
        fail_sync_percent: 4,
        ambiguous_sync_percent: 4,
        early_percent: if seed % 2 == 0 { 0 } else { 20 },
        inject: Inject::AfterSyncs(20),
        ..disk.options(seed)
    })
    .await;
    let unknown = all.iter().flat_map(|said| &said.errors).filter(|(_, unknown)| *unknown).count();
    assert!(unknown > 0, "no commit was told to be of unknown effect: nothing was tested");
}
