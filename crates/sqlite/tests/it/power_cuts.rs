//! Power cuts and failing syncs: acknowledged writes are on the disk, not only in its cache.

use std::{path::PathBuf, time::Duration};

use semel_sqlite::SqliteStore;
use semel_testkit::powercut::{self, Inject, Options, Shim, Stats};
use tempfile::TempDir;

use crate::child_process::{Acknowledged, ChildJob};

struct CutDisk {
    folder: TempDir,
}

impl CutDisk {
    fn new() -> Self {
        Self { folder: tempfile::tempdir().unwrap() }
    }

    fn path(&self, name: &str) -> PathBuf {
        self.folder.path().join(name)
    }

    fn options(&self, seed: u64) -> Options {
        Options { seed, ..Options::new(self.path("watch"), self.path("shadow")) }
    }

    /// Runs a child on this disk until `acks` answers were recorded, then cuts the power.
    fn run_until_cut(&self, job: &ChildJob, options: &Options, acks: usize) -> Acknowledged {
        let shim = Shim::build(env!("CARGO_TARGET_TMPDIR").as_ref()).unwrap();
        let mut command = job.command();
        shim.apply(&mut command, options).unwrap();
        let mut child = command.spawn().unwrap();
        let acknowledged = Acknowledged::listen(&mut child, |acknowledged, child| {
            if acknowledged.completed.len() >= acks {
                child.kill().unwrap();
            }
        });
        // Fails if the library was not loaded.
        Stats::read(&self.path("shadow")).unwrap();
        acknowledged
    }

    fn job(&self, life: u64) -> ChildJob {
        ChildJob::new(self.path("watch/semel.db"), format!("life-{life}"))
    }

    /// Opens the disk in its state after the cut. The next child continues with it.
    fn recover(&self) -> SqliteStore {
        powercut::after_cut(&self.path("shadow"), &self.path("watch")).unwrap();
        let recovered = self.path("recovered");
        powercut::after_cut(&self.path("shadow"), &recovered).unwrap();
        SqliteStore::open(recovered.join("semel.db")).unwrap()
    }
}

async fn assert_survives(
    lives: u64,
    options: impl Fn(&CutDisk, u64) -> Options,
) -> Vec<Acknowledged> {
    let disk = CutDisk::new();
    let mut all = Vec::new();
    for life in 0..lives {
        let acks = 50 + usize::try_from(life * 7919 % 500).unwrap();
        all.push(disk.run_until_cut(&disk.job(life), &options(&disk, life), acks));
        let store = disk.recover();
        // The last child always; all of them now and then and at the end.
        let checked = if life % 10 == 0 || life + 1 == lives { all.len() } else { 1 };
        for acknowledged in all.iter().rev().take(checked) {
            assert_eq!(acknowledged.missing(&store).await, [] as [String; 0], "life {life}");
        }
    }
    all
}

#[tokio::test]
async fn everything_acknowledged_survives_power_cuts() {
    assert_survives(6, CutDisk::options).await;
}

#[tokio::test]
async fn everything_acknowledged_survives_power_cuts_that_tear_unsynced_writes() {
    assert_survives(6, |disk, seed| Options { early_percent: 30, ..disk.options(seed) }).await;
}

#[tokio::test]
async fn torture_everything_acknowledged_survives_many_power_cuts() {
    let lives = if semel_testkit::torture() { 300 } else { 3 };
    assert_survives(lives, |disk, seed| Options {
        early_percent: u8::try_from(seed % 3 * 20).unwrap(),
        sync_delay: Duration::from_micros(seed % 5 * 200),
        ..disk.options(seed)
    })
    .await;
}

/// A process is killed during a commit, the next one finds the unsynced writes and reports them,
/// and then the power fails.
#[tokio::test]
async fn unsynced_writes_of_a_killed_process_are_synced_before_they_are_reported() {
    let disk = CutDisk::new();
    let shim = Shim::build(env!("CARGO_TARGET_TMPDIR").as_ref()).unwrap();
    for life in 0..5 {
        // Slow syncs, so that the kill happens between a write and its sync.
        let sync_delay = Duration::from_millis(20);
        let acks = 40 + usize::try_from(life).unwrap() * 7;
        disk.run_until_cut(&disk.job(life), &Options { sync_delay, ..disk.options(life) }, acks);
        // The machine keeps running: the writes are still in its cache.
        let mut command = ChildJob { list_only: true, ..disk.job(life) }.command();
        shim.apply(&mut command, &disk.options(life)).unwrap();
        let mut child = command.spawn().unwrap();
        let acknowledged = Acknowledged::listen(&mut child, |acknowledged, child| {
            if !acknowledged.occupied.is_empty() {
                child.kill().unwrap();
            }
        });
        assert!(acknowledged.granted.len() >= acks);
        assert_eq!(acknowledged.missing(&disk.recover()).await, [] as [String; 0], "life {life}");
    }
}

#[tokio::test]
async fn a_store_that_does_not_sync_is_caught_losing_what_it_acknowledged() {
    let disk = CutDisk::new();
    // A first child that syncs, so that there is a file to recover.
    disk.run_until_cut(&disk.job(0), &disk.options(0), 10);
    powercut::after_cut(&disk.path("shadow"), &disk.path("watch")).unwrap();
    powercut::settle(&disk.path("watch"), &disk.path("shadow")).unwrap();
    let job = ChildJob { durable: false, ..disk.job(1) };
    let acknowledged = disk.run_until_cut(&job, &disk.options(1), 500);
    let lost = acknowledged.missing(&disk.recover()).await.len();
    assert!(lost > 0, "nothing was lost of {}", acknowledged.completed.len());
}

#[tokio::test]
async fn failed_and_ambiguous_syncs_lose_nothing_that_was_acknowledged() {
    let all = assert_survives(6, |disk, seed| Options {
        fail_sync_percent: 4,
        ambiguous_sync_percent: 4,
        early_percent: if seed % 2 == 0 { 0 } else { 20 },
        inject: Inject::AfterSyncs(20),
        ..disk.options(seed)
    })
    .await;
    let unknown = all
        .iter()
        .flat_map(|acknowledged| &acknowledged.errors)
        .filter(|(_, unknown)| *unknown)
        .count();
    assert!(unknown > 0, "no commit had an unknown effect: nothing was tested");
}
