//! Two processes on one file: one winner per key, and neither starves.

use std::{collections::BTreeMap, thread};

use semel_sqlite::SqliteStore;

use crate::child::{Job, Said, together};

const KEYS: u64 = 6000;

#[tokio::test]
async fn of_two_processes_that_claim_the_same_keys_one_wins_each() {
    let folder = tempfile::tempdir().unwrap();
    let job = Job { keys: KEYS, ..Job::new(folder.path().join("semel.db"), "shared") };
    let listeners: Vec<_> = together(&[job.clone(), job.clone()])
        .into_iter()
        .map(|mut child| thread::spawn(move || Said::listen(&mut child, |_, _| ())))
        .collect();
    let both: Vec<Said> = listeners.into_iter().map(|one| one.join().unwrap()).collect();
    let mut winners: BTreeMap<&str, usize> = BTreeMap::new();
    for (key, _) in both.iter().flat_map(|said| &said.granted) {
        *winners.entry(key).or_default() += 1;
    }
    assert_eq!(winners.len(), usize::try_from(KEYS).unwrap());
    assert!(winners.values().all(|count| *count == 1), "a key was granted twice");
    let store = SqliteStore::open(&job.file).unwrap();
    for said in &both {
        assert_eq!(said.errors, []);
        assert_eq!(said.missing(&store).await, [] as [String; 0]);
    }
}

#[test]
fn of_two_busy_processes_neither_starves() {
    let folder = tempfile::tempdir().unwrap();
    let file = folder.path().join("semel.db");
    let jobs = ["one", "two"].map(|name| Job { keys: KEYS, tasks: 256, ..Job::new(&file, name) });
    let started = together(&jobs);
    // Whoever finishes first stops the clock; the other must have come far by then.
    let (sender, receiver) = std::sync::mpsc::channel();
    let listeners: Vec<_> = started
        .into_iter()
        .enumerate()
        .map(|(number, mut child)| {
            let sender = sender.clone();
            thread::spawn(move || {
                Said::listen(&mut child, |said, _| {
                    let _ = sender.send((number, said.completed.len()));
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
