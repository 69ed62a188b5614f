//! Two processes on one file: one winner per key, and neither starves.

use std::{collections::BTreeMap, thread};

use semel_sqlite::SqliteStore;

use crate::child_process::{Acknowledged, ChildJob, start_together};

const KEYS: u64 = 6000;

#[tokio::test]
async fn of_two_processes_that_claim_the_same_keys_one_wins_each() {
    let folder = tempfile::tempdir().unwrap();
    let job = ChildJob { keys: KEYS, ..ChildJob::new(folder.path().join("semel.db"), "shared") };
    let listeners: Vec<_> = start_together(&[job.clone(), job.clone()])
        .into_iter()
        .map(|mut child| thread::spawn(move || Acknowledged::listen(&mut child, |_, _| ())))
        .collect();
    let both: Vec<Acknowledged> = listeners.into_iter().map(|one| one.join().unwrap()).collect();
    let mut winners: BTreeMap<&str, usize> = BTreeMap::new();
    for (key, _) in both.iter().flat_map(|acknowledged| &acknowledged.granted) {
        *winners.entry(key).or_default() += 1;
    }
    assert_eq!(winners.len(), usize::try_from(KEYS).unwrap());
    assert!(winners.values().all(|count| *count == 1), "a key was granted twice");
    let store = SqliteStore::open(&job.file).unwrap();
    for acknowledged in &both {
        assert_eq!(acknowledged.errors, []);
        assert_eq!(acknowledged.missing(&store).await, [] as [String; 0]);
    }
}

#[test]
fn of_two_busy_processes_neither_starves() {
    let folder = tempfile::tempdir().unwrap();
    let file = folder.path().join("semel.db");
    let jobs = ["one", "two"].map(|name| ChildJob {
        keys: KEYS,
        tasks: 256,
        ..ChildJob::new(&file, name)
    });
    let started = start_together(&jobs);
    // When the first process finishes, the other must have come far.
    let (sender, receiver) = std::sync::mpsc::channel();
    let listeners: Vec<_> = started
        .into_iter()
        .enumerate()
        .map(|(number, mut child)| {
            let sender = sender.clone();
            thread::spawn(move || {
                Acknowledged::listen(&mut child, |acknowledged, _| {
                    let _ = sender.send((number, acknowledged.completed.len()));
                })
            })
        })
        .collect();
    drop(sender);
    let mut done = [0; 2];
    while let Ok((number, completed)) = receiver.recv() {
        done[number] = completed;
        if completed == usize::try_from(KEYS).unwrap() {
            break;
        }
    }
    drop(receiver);
    for listener in listeners {
        assert_eq!(listener.join().unwrap().errors, []);
    }
    let slower = done[0].min(done[1]);
    assert!(slower > usize::try_from(KEYS / 3).unwrap(), "{done:?}");
}

#[test]
fn a_new_file_may_be_opened_by_many_at_the_same_time() {
    for _ in 0..20 {
        let folder = tempfile::tempdir().unwrap();
        let file = folder.path().join("semel.db");
        let openers: Vec<_> = (0..8)
            .map(|_| {
                let file = file.clone();
                thread::spawn(move || SqliteStore::open(file).map(drop))
            })
            .collect();
        for opener in openers {
            opener.join().unwrap().unwrap();
        }
    }
}
