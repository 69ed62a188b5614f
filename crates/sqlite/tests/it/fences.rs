//! Fences always rise (law 11), after the file was lost, replaced or restored too.

use std::{
    fs,
    path::Path,
    sync::{Arc, atomic::Ordering},
    time::{Duration, SystemTime},
};

use semel_core::{Claimed, Store as _};
use semel_sqlite::{Options, SqliteStore};

use crate::{child_process::claim, clocks::MachineClock};

/// The fences of the next `count` claims of new keys.
async fn fences(store: &SqliteStore, prefix: &str, count: usize) -> Vec<u64> {
    let mut fences = Vec::new();
    for number in 0..count {
        match store.claim(&claim(&format!("{prefix}-{number}"), [1; 16])).await.unwrap() {
            Claimed::Granted(grant) => fences.push(grant.fence.get()),
            Claimed::Occupied(occupied) => panic!("{occupied:?}"),
        }
    }
    fences
}

fn remove(path: &Path) {
    for entry in fs::read_dir(path.parent().unwrap()).unwrap() {
        fs::remove_file(entry.unwrap().path()).unwrap();
    }
}

fn micros() -> u64 {
    let now = SystemTime::UNIX_EPOCH.elapsed().unwrap();
    u64::try_from(now.as_micros()).unwrap()
}

#[tokio::test]
async fn the_first_fence_of_a_store_is_the_wall_clock_in_microseconds() {
    let folder = tempfile::tempdir().unwrap();
    let before = micros();
    let store = SqliteStore::open(folder.path().join("semel.db")).unwrap();
    let opened = micros();
    let issued = fences(&store, "k", 3).await;
    assert!((before..=opened + 1).contains(&issued[0]), "{before} {issued:?} {opened}");
    assert_eq!(issued, [issued[0], issued[0] + 1, issued[0] + 2]);
}

#[tokio::test]
async fn fences_rise_after_the_file_was_lost() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("semel.db");
    let old = fences(&SqliteStore::open(&path).unwrap(), "k", 20).await;
    remove(&path);
    let new = fences(&SqliteStore::open(&path).unwrap(), "k", 20).await;
    assert!(new.iter().min() > old.iter().max(), "{new:?} after {old:?}");
}

#[tokio::test]
async fn fences_rise_after_an_older_copy_was_put_in_place() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("semel.db");
    fences(&SqliteStore::open(&path).unwrap(), "before", 5).await;
    let copy = fs::read(&path).unwrap();
    let old = fences(&SqliteStore::open(&path).unwrap(), "lost", 20).await;
    remove(&path);
    fs::write(&path, copy).unwrap();
    let new = fences(&SqliteStore::open(&path).unwrap(), "lost", 20).await;
    assert!(new.iter().min() > old.iter().max(), "{new:?} after {old:?}");
}

#[tokio::test]
async fn fences_rise_though_the_wall_clock_was_set_back() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("semel.db");
    let machine = MachineClock::new();
    let open = || Options::new().clock(Arc::<MachineClock>::clone(&machine)).open(&path).unwrap();
    let old = fences(&open(), "old", 5).await;
    let hour = u64::try_from(Duration::from_secs(3600).as_millis()).unwrap();
    machine.wall.fetch_sub(hour, Ordering::SeqCst);
    let new = fences(&open(), "new", 5).await;
    assert_eq!(new[0], old[4] + 1);
}
