//! Files that are removed or replaced while a store has them open.

use std::{
    fs,
    path::{Path, PathBuf},
    time::Duration,
};

use semel_core::{
    Claimed, Effect, Fenced, Finish, StateView, Store as _, StoreError, StoreErrorKind,
};
use semel_sqlite::SqliteStore;
use tempfile::TempDir;

use crate::child_process::{answer, claim, id};

/// A store with the completed key `done`.
struct OpenStore {
    folder: TempDir,
    store: SqliteStore,
}

impl OpenStore {
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
                    seen.is_some_and(|seen| matches!(seen.state, StateView::Completed { .. }))
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
async fn a_removed_file_is_noticed_by_the_next_write_and_not_recreated() {
    let fixture = OpenStore::new().await;
    for suffix in ["", "-wal", "-shm"] {
        fs::remove_file(fixture.path(suffix)).unwrap();
    }
    // A write to the removed file has an effect if that file is put back.
    for effect in [Effect::Unknown, Effect::None, Effect::None] {
        let error = fixture.refusal().await;
        assert_eq!((error.kind(), error.effect()), (StoreErrorKind::Unavailable, effect));
        assert!(error.to_string().contains("was removed while it was open"), "{error}");
    }
    assert!(fixture.store.get(&id("done")).await.is_err(), "reads are refused too");
    assert!(!fixture.path("").exists());
}

#[tokio::test]
async fn a_removed_file_is_noticed_while_the_writer_is_idle() {
    let fixture = OpenStore::new().await;
    fixture.until(|seen| matches!(seen, Ok(true))).await;
    fs::remove_file(fixture.path("")).unwrap();
    fixture.until(Result::is_err).await;
}

#[tokio::test]
async fn a_file_that_was_moved_away_is_used_again_once_it_is_back() {
    let fixture = OpenStore::new().await;
    let away = fixture.folder.path().join("away");
    fs::rename(fixture.path(""), &away).unwrap();
    assert!(fixture.refusal().await.to_string().contains("was removed"));
    fs::rename(&away, fixture.path("")).unwrap();
    fixture.until(|seen| matches!(seen, Ok(true))).await;
    let claimed = fixture.store.claim(&claim("new", [1; 16])).await.unwrap();
    assert!(matches!(claimed, Claimed::Granted(_)), "{claimed:?}");
    let again = fixture.store.claim(&claim("done", [2; 16])).await.unwrap();
    assert!(matches!(again, Claimed::Occupied(_)), "{again:?}");
}

/// Like a second server that finds an empty folder.
#[tokio::test]
async fn a_new_store_in_the_place_of_the_old_one_is_not_written_to() {
    let fixture = OpenStore::new().await;
    for suffix in ["", "-wal", "-shm"] {
        fs::remove_file(fixture.path(suffix)).unwrap();
    }
    let other = SqliteStore::open(fixture.path("")).unwrap();
    for effect in [Effect::Unknown, Effect::None, Effect::None] {
        let error = fixture.refusal().await;
        assert_eq!((error.kind(), error.effect()), (StoreErrorKind::Corrupt, effect));
        assert!(error.to_string().contains("another file has taken the place"), "{error}");
    }
    drop(other);
    assert_eq!(claims_in(&fixture.path("")), 0);
}

#[tokio::test]
async fn a_copy_in_the_place_of_the_file_is_refused_until_a_restart() {
    let fixture = OpenStore::new().await;
    let copy = fixture.folder.path().join("copy");
    fs::copy(fixture.path(""), &copy).unwrap();
    fs::rename(&copy, fixture.path("")).unwrap();
    assert!(fixture.refusal().await.to_string().contains("another file has taken the place"));
    assert!(fixture.refusal().await.to_string().contains("another file has taken the place"));
}

#[tokio::test]
async fn a_removed_log_is_noticed_and_nothing_that_was_acknowledged_is_lost() {
    let fixture = OpenStore::new().await;
    fs::remove_file(fixture.path("-wal")).unwrap();
    assert!(fixture.refusal().await.to_string().contains("semel.db-wal"));
    let (path, OpenStore { folder, store }) = (fixture.path(""), fixture);
    drop(store);
    let store = SqliteStore::open(&path).unwrap();
    let seen = store.get(&id("done")).await.unwrap().unwrap();
    assert!(matches!(seen.state, StateView::Completed { .. }), "{seen:?}");
    drop(folder);
}
