//! `kill -9` under load: no acknowledged write is lost.

use std::{
    fs,
    hash::{BuildHasher as _, RandomState},
    thread,
    time::Duration,
};

use semel_sqlite::SqliteStore;

use crate::child_process::{Acknowledged, ChildJob};

/// Twenty processes on one file, each killed at a random moment: after a random number of answers,
/// during a write, a sync or a checkpoint.
#[tokio::test]
async fn everything_acknowledged_survives_kill_9_at_twenty_moments() {
    let folder = tempfile::tempdir().unwrap();
    let file = folder.path().join("semel.db");
    let random = RandomState::new();
    let mut lives: Vec<Acknowledged> = Vec::new();
    for life in 0..20_u64 {
        let acks = 1 + usize::try_from(random.hash_one(("acks", life)) % 600).unwrap();
        let delay = Duration::from_micros(random.hash_one(("delay", life)) % 20_000);
        println!("life {life}: {acks} answers and {delay:?}");
        let mut child = ChildJob::new(&file, format!("life-{life}")).command().spawn().unwrap();
        let acknowledged = Acknowledged::listen(&mut child, |acknowledged, child| {
            if acknowledged.completed.len() == acks {
                thread::sleep(delay);
                child.kill().unwrap();
            }
        });
        assert!(!acknowledged.granted.is_empty());
        lives.push(acknowledged);
        let store = SqliteStore::open(&file).unwrap();
        for acknowledged in &lives {
            assert_eq!(acknowledged.missing(&store).await, [] as [String; 0], "life {life}");
        }
    }
    let completed: usize = lives.iter().map(|acknowledged| acknowledged.completed.len()).sum();
    assert!(completed > 1000, "{completed} completed: too few to mean much");
}

/// The processes above do run checkpoints: the log is small, and the file grows while it is in use.
#[test]
fn a_life_goes_through_checkpoints() {
    let folder = tempfile::tempdir().unwrap();
    let file = folder.path().join("semel.db");
    let mut child = ChildJob::new(&file, "k").command().spawn().unwrap();
    let acknowledged = Acknowledged::listen(&mut child, |acknowledged, child| {
        if acknowledged.completed.len() == 300 {
            child.kill().unwrap();
        }
    });
    let written = fs::metadata(&file).unwrap().len();
    assert!(written > 100_000, "{written} bytes after {} answers", acknowledged.completed.len());
}
