//! Files that are removed or replaced while a store has them open.

use std::{
    fs,
    path::{Path, PathBuf},
    time::Duration,
};

use semel_core::{
    Claimed, Effect, Fenced, Finish, Standing, Store as _, StoreError, StoreErrorKind,
};
use semel_sqlite::SqliteStore;
use tempfile::TempDir;

use crate::child::{answer, claim, id};

/// A store with the completed key `done`.
struct World {
    folder: TempDir,
    store: SqliteStore,
}

impl World {
    async fn new() -> Self {
        let folder = tempfile::tempdir().unwrap();
        let store = SqliteStore::open(folder.path().join("semel.db")).unwrap();
        let claim = claim("done", [1; 16]);
        let Claimed::Granted(grant) = store.claim(&claim).await.unwrap() else {
            panic!("the store is new")
        };
        let finish = Finish::complete(answer("done"));
        let done = store.finish(&claim.id, claim.claimant(grant.fence), &finish).await.unwrap();
        assert_eq!(done, Fenced::Applied);
        Self { folder, store }
    }

    fn path(&self, suffix: &str) -> PathBuf {
        self.folder.path().join(format!("semel.db{suffix}"))
    }

    async fn refusal(&self) -> StoreError {
        self.store.claim(&claim("new", [1; 16])).await.unwrap_err()
    }

    /// Reads the record until the result of the store changes.
    async fn until(&self, mut reached: impl FnMut(&Result<bool, StoreError>) -> bool) {
        let asking = async {
            loop {
                let seen = self.store.get(&id("done")).await.map(|seen| {
                    seen.is_some_and(|seen| matches!(seen.standing, Standing::Completed { .. }))
                });
                if reached(&seen) {
                    return;
                }
                tokio::time::sleep(Duration::from_millis(20)).await;
            }
        };
        tokio::time::timeout(Duration::from_secs(20), asking).await.unwrap();
    }
}

fn claims_in(path: &Path) -> i64 {
    let file = rusqlite::Connection::open(path).unwrap();
    file.query_row("SELECT count(*) FROM claims", [], |row| row.get(0)).unwrap()
}

#[tokio::test]
async fn a_removed_file_is_noticed_by_the_next_write_and_not_made_again() {
    let world = World::new().await;
    for suffix in ["", "-wal", "-shm"] {
        fs::remove_file(world.path(suffix)).unwrap();
    }
    let error = world.refusal().await;
    assert_eq!((error.kind(), error.effect()), (StoreErrorKind::Unavailable, Effect::None));
    assert!(error.to_string().contains("was removed while it was open"), "{error}");
    for _ in 0..3 {
        assert!(world.refusal().await.to_string().contains("was removed"));
    }
    assert!(world.store.get(&id("done")).await.is_err(), "what is read counts for nobody either");
    assert!(!world.path("").exists());
}

#[tokio::test]
async fn a_removed_file_is_noticed_while_nobody_writes() {
    let world = World::new().await;
    world.until(|seen| matches!(seen, Ok(true))).await;
    fs::remove_file(world.path("")).unwrap();
    world.until(Result::is_err).await;
}

#[tokio::test]
async fn a_file_that_was_moved_away_is_used_again_once_it_is_back() {
    let world = World::new().await;
    let away = world.folder.path().join("away");
    fs::rename(world.path(""), &away).unwrap();
    assert!(world.refusal().await.to_string().contains("was removed"));
    fs::rename(&away, world.path("")).unwrap();
    world.until(|seen| matches!(seen, Ok(true))).await;
    let claimed = world.store.claim(&claim("new", [1; 16])).await.unwrap();
    assert!(matches!(claimed, Claimed::Granted(_)), "{claimed:?}");
    let again = world.store.claim(&claim("done", [2; 16])).await.unwrap();
    assert!(matches!(again, Claimed::Occupied(_)), "{again:?}");
}

/// As a second server does that finds an empty folder.
#[tokio::test]
async fn a_new_store_in_the_place_of_the_old_one_is_not_written_to() {
    let world = World::new().await;
    for suffix in ["", "-wal", "-shm"] {
        fs::remove_file(world.path(suffix)).unwrap();
    }
    let other = SqliteStore::open(world.path("")).unwrap();
    for _ in 0..3 {
        let error = world.refusal().await;
        assert_eq!((error.kind(), error.effect()), (StoreErrorKind::Corrupt, Effect::None));
        assert!(error.to_string().contains("another file has taken the place"), "{error}");
    }
    drop(other);
    assert_eq!(claims_in(&world.path("")), 0);
}

#[tokio::test]
async fn a_copy_in_the_place_of_the_file_is_refused_until_a_restart() {
    let world = World::new().await;
    let copy = world.folder.path().join("copy");
    fs::copy(world.path(""), &copy).unwrap();
    fs::rename(&copy, world.path("")).unwrap();
    assert!(world.refusal().await.to_string().contains("another file has taken the place"));
    assert!(world.refusal().await.to_string().contains("another file has taken the place"));
}

#[tokio::test]
async fn a_removed_log_is_noticed_and_nothing_that_was_acknowledged_is_lost() {
    let world = World::new().await;
    fs::remove_file(world.path("-wal")).unwrap();
    assert!(world.refusal().await.to_string().contains("semel.db-wal"));
    let (path, World { folder, store }) = (world.path(""), world);
    drop(store);
    let store = SqliteStore::open(&path).unwrap();
    let seen = store.get(&id("done")).await.unwrap().unwrap();
    assert!(matches!(seen.standing, Standing::Completed { .. }), "{seen:?}");
    drop(folder);
}
