//! Processes that are killed while they share a file: each key has one row or none, and
//! acknowledged values are replayed.
//!
//! A child is this test binary again; an environment variable makes it run [`child`]. It prints
//! `ACK key value` for each acknowledged operation.

use std::{
    collections::BTreeMap,
    env,
    io::{BufRead as _, BufReader, Write as _},
    path::Path,
    process::{Child, Command, Stdio, id},
    thread,
};

use semel::{
    Outcome, Semel,
    core::{Caller, Key, OnUnknown},
};
use semel_sqlite::transactional::{SqliteDatabase, SqliteTransactionalStore};

use super::{Shop, insert};

const FILE: &str = "SEMEL_JOINT_CHILD_FILE";

/// The number of keys, and of concurrent tasks.
const KEYS: usize = 300;
const TASKS: usize = 8;

/// Runs one operation under a key until it is final. Its value names the process that ran it.
async fn pay(store: &SqliteTransactionalStore, semel: &Semel, key: usize) -> String {
    loop {
        let store = store.clone();
        let name = Key::new(&format!("k-{key}")).unwrap();
        let once = semel.once("payments", Caller::new("shop-3").unwrap(), name);
        let run = once.on_unknown(OnUnknown::Rerun).run(move |lease| async move {
            let value = format!("{key:04} by {}", id());
            let row = value.clone();
            store.transaction(&lease).await?.run(move |db| insert(db, &row)).await?;
            Ok(value)
        });
        if let Ok(Outcome::Ran(value) | Outcome::Replayed(value)) = run.await {
            return value;
        }
    }
}

#[test]
fn child() {
    let Some(file) = env::var_os(FILE) else { return };
    let runtime = tokio::runtime::Builder::new_multi_thread().enable_all().build().unwrap();
    runtime.block_on(async {
        let store = SqliteDatabase::open(Path::new(&file)).unwrap().store();
        let semel = Semel::new(store.clone());
        let tasks: Vec<_> = (0..TASKS)
            .map(|task| {
                let (store, semel) = (store.clone(), semel.clone());
                tokio::spawn(async move {
                    for key in (task..KEYS).step_by(TASKS) {
                        let value = pay(&store, &semel, key).await;
                        let mut out = std::io::stdout();
                        out.write_all(format!("\nACK {key} {value}\n").as_bytes()).unwrap();
                        out.flush().unwrap();
                    }
                })
            })
            .collect();
        for task in tasks {
            task.await.unwrap();
        }
    });
}

fn start(shop: &Shop) -> Child {
    Command::new(env::current_exe().unwrap())
        .args(["--exact", "killed_processes::child", "--nocapture"])
        .env(FILE, shop.path())
        .stdout(Stdio::piped())
        .spawn()
        .unwrap()
}

/// Runs one child after the other and kills each after some more lines than the one before, until
/// one finishes.
fn run_with_kills(shop: &Shop, mut kill_after: usize) -> (usize, Vec<(usize, String)>) {
    let (mut kills, mut acknowledged) = (0, Vec::new());
    loop {
        let mut child = start(shop);
        let lines = BufReader::new(child.stdout.take().unwrap()).lines();
        let acks = lines.map_while(Result::ok).filter_map(|line| {
            let (key, value) = line.strip_prefix("ACK ")?.split_once(' ')?;
            Some((key.parse().unwrap(), value.to_owned()))
        });
        let mut heard = 0;
        for ack in acks {
            acknowledged.push(ack);
            heard += 1;
            if heard == kill_after {
                child.kill().unwrap();
                kills += 1;
            }
        }
        if child.wait().unwrap().success() {
            return (kills, acknowledged);
        }
        kill_after += 7;
    }
}

#[test]
fn processes_that_are_killed_pay_once_and_lose_nothing() {
    let shop = Shop::new();
    let runs = thread::scope(|scope| {
        let both = [3, 5].map(|kill_after| {
            scope.spawn({
                let shop = &shop;
                move || run_with_kills(shop, kill_after)
            })
        });
        both.map(|run_with_kills| run_with_kills.join().unwrap())
    });
    let mut values = BTreeMap::new();
    for (kills, acknowledged) in runs {
        assert!(kills > 10, "only {kills} were killed");
        for (key, value) in acknowledged {
            let first = values.entry(key).or_insert_with(|| value.clone());
            assert_eq!(*first, value, "key {key} was paid twice");
        }
    }
    assert_eq!(values.len(), KEYS);
    assert_eq!(shop.committed(), values.into_values().collect::<Vec<_>>());
}
