//! `SQLite` on the simulated disk: what was acknowledged is there after the power cut, as long as
//! it syncs; and the simulation notices if it does not.

use crate::{Disk, rerun, shim, write_line};
use rusqlite::Connection;
use semel_testkit::powercut::{self, AfterFailedSync, Inject, Options, Stats};
use std::env;
use std::io::{BufRead, BufReader};
use std::path::{Path, PathBuf};
use std::process::Stdio;
use std::thread;
use std::time::Duration;

const DATABASE: &str = "POWERCUT_TEST_DATABASE";
const SYNCHRONOUS: &str = "POWERCUT_TEST_SYNCHRONOUS";
const THREADS: &str = "POWERCUT_TEST_THREADS";
const CHECKPOINT_PAGES: &str = "POWERCUT_TEST_CHECKPOINT_PAGES";
const STOP_AT_FAILURE: &str = "POWERCUT_TEST_STOP_AT_FAILURE";

/// Rows that a writer commits with `synchronous=FULL` before it takes the level under test.
const SAFE_ROWS: usize = 10;

#[test]
fn every_acknowledged_commit_survives_power_cuts_with_synchronous_full() {
    let acked = survive(12, FULL, |disk| disk.options());
    report("FULL, 12 lives", acked, 0);
}

#[test]
fn every_acknowledged_commit_survives_when_unsynced_writes_survive_in_part() {
    let acked = survive(12, FULL, |disk| Options { early_percent: 30, ..disk.options() });
    report("FULL, early 30 %, 12 lives", acked, 0);
}

#[test]
fn every_acknowledged_commit_of_several_threads_survives_slow_syncs() {
    let sync_delay = Duration::from_micros(300);
    let life = Life { threads: 3, ..FULL };
    let acked =
        survive(5, life, |disk| Options { sync_delay, early_percent: 10, ..disk.options() });
    report("FULL, 3 threads, slow syncs, early 10 %, 5 lives", acked, 0);
}

/// Cuts the power of one disk again and again, and counts the commits that lived through it.
fn survive(lives: u64, life: Life, options: impl Fn(&Disk) -> Options) -> usize {
    let disk = Disk::new();
    let mut acked = Vec::new();
    for seed in 0..lives {
        let options = Options { seed, ..options(&disk) };
        let run = disk.run(Life { acks_min: 20 + pick(seed, 300), ..life }, &options);
        assert_eq!(run.failed, [0_i64; 0]);
        let stats = Stats::read(&disk.shadow()).unwrap();
        assert_eq!(stats.early > 0, options.early_percent > 0, "{stats:?}");
        acked.extend(run.acked);
        assert_eq!(missing(&disk.recover(), &acked), [0_i64; 0], "life {seed}");
    }
    acked.len()
}

#[test]
fn synchronous_off_is_caught_losing_acknowledged_commits() {
    let disk = Disk::new();
    let run = disk.run(Life { synchronous: "OFF", ..FULL }, &disk.options());
    let found = ids(&disk.recover());
    assert!(found.len() >= SAFE_ROWS, "the synced rows are there");
    let lost = run.acked.iter().filter(|id| !found.contains(id)).count();
    assert!(lost > 0, "nothing was lost of {} commits", run.acked.len());
    report("OFF, 1 life", run.acked.len(), lost);
}

#[test]
fn synchronous_normal_loses_the_latest_commits_and_nothing_in_between() {
    let (mut acked, mut lost) = (0, 0);
    for seed in 0..4 {
        let disk = Disk::new();
        let life = Life { synchronous: "NORMAL", ..FULL };
        let run = disk.run(life, &Options { seed, ..disk.options() });
        assert_eq!(run.failed, [0_i64; 0]);
        let found = ids(&disk.recover());
        let last = *found.last().unwrap();
        assert_eq!(found, (1..=last).collect::<Vec<_>>(), "seed {seed}");
        lost += run.acked.iter().filter(|id| **id > last).count();
        acked += run.acked.len();
    }
    assert!(lost > 0, "nothing was lost of {acked} commits");
    report("NORMAL, 4 lives", acked, lost);
}

#[test]
fn commits_acknowledged_between_failed_syncs_survive() {
    for (seed, after_failed_sync) in [(1, AfterFailedSync::Lose), (2, AfterFailedSync::Keep)] {
        let disk = Disk::new();
        let options = Options {
            seed,
            after_failed_sync,
            fail_sync_percent: 10,
            ambiguous_sync_percent: 10,
            inject: Inject::AfterSyncs(30),
            ..disk.options()
        };
        let run = disk.run(FULL, &options);
        let stats = Stats::read(&disk.shadow()).unwrap();
        assert!(stats.failed > 0 && stats.ambiguous > 0, "{stats:?}");
        assert_ne!(run.failed, [0_i64; 0]);
        assert_eq!(missing(&disk.recover(), &run.acked), [0_i64; 0], "{after_failed_sync:?}");
        report("FULL, failing syncs, 1 life", run.acked.len(), 0);
    }
}

#[test]
fn a_commit_whose_sync_failed_is_gone_after_the_cut() {
    let disk = Disk::new();
    let inject = Inject::AfterSyncs(100);
    let options = Options { fail_sync_percent: 100, inject, ..disk.options() };
    let run = disk.run(UNTIL_FAILURE, &options);
    let found = disk.recover();
    assert_eq!(missing(&found, &run.acked), [0_i64; 0]);
    assert_eq!(missing(&found, &run.failed), run.failed);
}

#[test]
fn a_commit_whose_sync_was_ambiguous_is_there_after_the_cut() {
    let disk = Disk::new();
    let inject = Inject::WhenArmed;
    let options = Options { ambiguous_sync_percent: 100, inject, ..disk.options() };
    let run = disk.run(UNTIL_FAILURE, &options);
    let found = disk.recover();
    assert_eq!(missing(&found, &run.acked), [0_i64; 0]);
    assert_eq!(missing(&found, &run.failed), [0_i64; 0]);
}

// The parent's side.

/// What the child does, and when it is killed.
#[derive(Clone, Copy)]
struct Life {
    synchronous: &'static str,
    threads: u8,
    /// The first commit that fails is the last one; else the child goes on.
    stop_at_failure: bool,
    /// The length of the log that triggers a checkpoint; without any if 0.
    checkpoint_pages: u32,
    /// The kill comes after so many acknowledgements, or after the failure if it stops there.
    acks_min: usize,
}

const FULL: Life = Life {
    synchronous: "FULL",
    threads: 1,
    stop_at_failure: false,
    checkpoint_pages: 50,
    acks_min: 250,
};

/// Without checkpoints, every sync is that of a commit's own frames. After one, the log's new
/// header is synced before them, and a failure there is never ambiguous.
const UNTIL_FAILURE: Life = Life { stop_at_failure: true, checkpoint_pages: 0, ..FULL };

/// What one life of the child said before it was killed.
#[derive(Default)]
struct Run {
    acked: Vec<i64>,
    failed: Vec<i64>,
}

impl Disk {
    /// Runs a child on what the last power cut left and cuts the power again. Whatever the child
    /// said until its end counts, even after the decision to kill it.
    fn run(&self, life: Life, options: &Options) -> Run {
        powercut::after_cut(&self.shadow(), &self.watch()).unwrap();
        let mut command = rerun("sqlite::sqlite_child");
        command.env(DATABASE, self.watch().join("test.db")).env(SYNCHRONOUS, life.synchronous);
        command.env(THREADS, life.threads.to_string());
        command.env(CHECKPOINT_PAGES, life.checkpoint_pages.to_string());
        if life.stop_at_failure {
            command.env(STOP_AT_FAILURE, "1");
        }
        shim().apply(&mut command, options).unwrap();
        let mut child = command.stdout(Stdio::piped()).spawn().unwrap();
        let mut lines = BufReader::new(child.stdout.take().unwrap());
        let (mut run, mut killed, mut line) = (Run::default(), false, String::new());
        while lines.read_line(&mut line).unwrap() > 0 && line.ends_with('\n') {
            run.hear(line.trim_end());
            line.clear();
            if options.inject == Inject::WhenArmed && run.acked.len() == life.acks_min {
                powercut::arm(&self.shadow()).unwrap();
            }
            if !killed && run.is_over(life) {
                let micros = u64::try_from(pick(options.seed, 3000)).unwrap();
                thread::sleep(Duration::from_micros(micros));
                child.kill().unwrap();
                killed = true;
            }
        }
        child.wait().unwrap();
        assert!(killed, "the child ended by itself");
        assert!(Stats::read(&self.shadow()).unwrap().syncs > 0, "the library was not loaded");
        run
    }

    /// The database as the power cut left it. A copy, so that the next life does its own recovery.
    fn recover(&self) -> Connection {
        let copy = self.root.path().join("recovered");
        powercut::after_cut(&self.shadow(), &copy).unwrap();
        let database = Connection::open(copy.join("test.db")).unwrap();
        let check = "PRAGMA integrity_check";
        let verdict: String = database.query_row(check, [], |row| row.get(0)).unwrap();
        assert_eq!(verdict, "ok");
        database
    }
}

impl Run {
    fn hear(&mut self, line: &str) {
        match line.split_once(' ') {
            Some(("ack", id)) => self.acked.push(id.parse().unwrap()),
            Some(("failed", id)) => self.failed.push(id.parse().unwrap()),
            _ => {} // The test harness talks, too.
        }
    }

    fn is_over(&self, life: Life) -> bool {
        if life.stop_at_failure {
            !self.failed.is_empty()
        } else {
            self.acked.len() >= life.acks_min
        }
    }
}

/// A number that looks random, the same for the same seed.
fn pick(seed: u64, below: u64) -> usize {
    let mixed = (seed + 1).wrapping_mul(0x9e37_79b9_7f4a_7c15).rotate_left(31);
    usize::try_from(mixed.wrapping_mul(0xbf58_476d_1ce4_e5b9) % below).unwrap()
}

fn ids(database: &Connection) -> Vec<i64> {
    let wrong = "SELECT count(*) FROM kept WHERE body <> CAST(id AS TEXT) || hex(zeroblob(400))";
    let wrong: i64 = database.query_row(wrong, [], |row| row.get(0)).unwrap();
    assert_eq!(wrong, 0, "every row is whole");
    let mut query = database.prepare("SELECT id FROM kept ORDER BY id").unwrap();
    query.query_map([], |row| row.get(0)).unwrap().collect::<Result<_, _>>().unwrap()
}

fn missing(database: &Connection, wanted: &[i64]) -> Vec<i64> {
    let found = ids(database);
    wanted.iter().copied().filter(|id| found.binary_search(id).is_err()).collect()
}

fn report(what: &str, acked: usize, lost: usize) {
    eprintln!("{what}: {acked} acknowledged, {lost} lost");
}

// The children's side.

#[test]
fn sqlite_child() {
    let Some(path) = env::var_os(DATABASE).map(PathBuf::from) else { return };
    let synchronous = env::var_os(SYNCHRONOUS).unwrap().into_string().unwrap();
    let threads = number(THREADS);
    write_line("");
    // Closed again before the writers start, which checkpoints and deletes the log.
    let first = next_id(&open(&path).unwrap());
    thread::scope(|scope| {
        for thread in 0..threads {
            let ids =
                (first + thread..first + 1_000_000).step_by(usize::try_from(threads).unwrap());
            let (path, synchronous) = (&path, &synchronous);
            scope.spawn(move || commit_all(path, synchronous, ids));
        }
    });
}

fn commit_all(path: &Path, synchronous: &str, ids: impl Iterator<Item = i64>) {
    let database = open(path).unwrap();
    for (count, id) in ids.enumerate() {
        if count == SAFE_ROWS {
            database.pragma_update(None, "synchronous", synchronous).unwrap();
        }
        let insert = "INSERT INTO kept VALUES (?1, CAST(?1 AS TEXT) || hex(zeroblob(400)))";
        if database.execute(insert, [id]).is_ok() {
            write_line(&format!("ack {id}"));
        } else {
            write_line(&format!("failed {id}"));
            if env::var_os(STOP_AT_FAILURE).is_some() {
                thread::sleep(Duration::from_secs(60));
            }
        }
        if count % 40 == 39 {
            // Another connection comes and goes: its descriptors must not take ours along.
            let _ = next_id(&Connection::open(path).unwrap());
        }
    }
}

fn number(variable: &str) -> i64 {
    env::var_os(variable).unwrap().to_str().unwrap().parse().unwrap()
}

fn next_id(database: &Connection) -> i64 {
    let next = "SELECT ifnull(max(id), 0) + 1 FROM kept";
    database.query_row(next, [], |row| row.get(0)).unwrap()
}

fn open(path: &Path) -> rusqlite::Result<Connection> {
    let database = Connection::open(path)?;
    database.pragma_update(None, "journal_mode", "WAL")?;
    database.pragma_update(None, "synchronous", "FULL")?;
    database.pragma_update(None, "wal_autocheckpoint", number(CHECKPOINT_PAGES))?;
    let table = "CREATE TABLE IF NOT EXISTS kept (id INTEGER PRIMARY KEY, body TEXT NOT NULL)";
    database.execute_batch(table)?;
    Ok(database)
}
