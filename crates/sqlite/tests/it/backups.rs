//! Backups of a store in use, and restores.

use std::{
    fs,
    path::{Path, PathBuf},
    sync::Arc,
    sync::atomic::{AtomicBool, Ordering},
};

use semel_core::{
    Claimed, Fenced, Finish, Occupied, Resolution, StateName, StateView, Store as _, StoreErrorKind,
};
use semel_sqlite::{NoStore, Options, SqliteStore, backup};
use tempfile::TempDir;

use crate::child_process::{answer, claim, id};

struct BackupFixture(TempDir);

impl BackupFixture {
    fn new() -> Self {
        Self(tempfile::tempdir().unwrap())
    }

    fn path(&self, name: &str) -> PathBuf {
        self.0.path().join(name)
    }

    /// Replaces the store by a copy, like an operator.
    fn restore(&self, copy: &Path) -> PathBuf {
        let path = self.path("semel.db");
        for suffix in ["", "-wal", "-shm"] {
            let _ = fs::remove_file(self.path(&format!("semel.db{suffix}")));
        }
        fs::copy(copy, &path).unwrap();
        path
    }
}

async fn fence(store: &SqliteStore, key: &str) -> u64 {
    match store.claim(&claim(key, [7; 16])).await.unwrap() {
        Claimed::Granted(grant) => grant.fence.get(),
        Claimed::Occupied(occupied) => panic!("{key}: {occupied:?}"),
    }
}

async fn complete(store: &SqliteStore, key: &str) {
    let claim = claim(key, [1; 16]);
    let Claimed::Granted(grant) = store.claim(&claim).await.unwrap() else {
        panic!("{key} is taken")
    };
    let finish = Finish::complete(answer(key));
    let done = store.finish(&claim.id, claim.claimant(grant.fence), &finish).await.unwrap();
    assert_eq!(done, Fenced::Applied);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_copy_made_during_writes_is_a_consistent_snapshot() {
    let fixture = BackupFixture::new();
    let path = fixture.path("semel.db");
    let store = Arc::new(Options::new().checkpoint_pages(10).open(&path).unwrap());
    for number in 0..200 {
        complete(&store, &format!("before-{number}")).await;
    }
    let stop = Arc::new(AtomicBool::new(false));
    let writing = {
        let (store, stop) = (Arc::clone(&store), Arc::clone(&stop));
        tokio::spawn(async move {
            let mut number = 0;
            while !stop.load(Ordering::SeqCst) {
                complete(&store, &format!("during-{number}")).await;
                number += 1;
            }
            number
        })
    };
    for round in 0..5 {
        let copy = fixture.path(&format!("copy-{round}"));
        let mut reports = Vec::new();
        let made = backup(&path, &copy, |progress| reports.push(progress)).unwrap();
        assert_eq!(made.bytes, fs::metadata(&copy).unwrap().len());
        let last = reports.last().unwrap();
        assert!(last.bytes_done == last.bytes_total && last.bytes_total > 0, "{last:?}");
        assert_eq!(made.id, store.info().id);
        let file = rusqlite::Connection::open(&copy).unwrap();
        let unanswered = "SELECT (SELECT count(*) FROM claims) - (SELECT count(*) FROM answers)";
        let unanswered: i64 = file.query_row(unanswered, [], |row| row.get(0)).unwrap();
        assert!((0..=1).contains(&unanswered), "{unanswered}: one is written at a time");
        drop(file);
        Options::new().after_restore(&copy).unwrap();
        let copied = SqliteStore::open(&copy).unwrap();
        for number in 0..200 {
            let seen = copied.get(&id(&format!("before-{number}"))).await.unwrap().unwrap();
            assert!(matches!(seen.state, StateView::Completed { .. }), "{seen:?}");
        }
    }
    stop.store(true, Ordering::SeqCst);
    assert!(writing.await.unwrap() > 0, "others wrote meanwhile");
}

#[tokio::test]
async fn a_copy_is_one_file_for_its_owner_alone_and_replaces_nothing() {
    let fixture = BackupFixture::new();
    let (path, folder) = (fixture.path("semel.db"), tempfile::tempdir().unwrap());
    let store = SqliteStore::open(&path).unwrap();
    complete(&store, "k").await;
    let copy = folder.path().join("copy.db");
    backup(&path, &copy, |_| ()).unwrap();
    #[cfg(unix)]
    {
        use std::os::unix::fs::PermissionsExt as _;
        assert_eq!(fs::metadata(&copy).unwrap().permissions().mode() & 0o777, 0o600);
    }
    let before = fs::read(&copy).unwrap();
    let error = backup(&path, &copy, |_| ()).unwrap_err();
    assert!(error.to_string().contains("exists already"), "{error}");
    assert_eq!(fs::read(&copy).unwrap(), before);
    let error = backup(&path, folder.path().join("no/such/copy.db"), |_| ()).unwrap_err();
    assert!(error.to_string().contains("cannot be created"), "{error}");
    let error = backup(fixture.path("no.db"), folder.path().join("other"), |_| ()).unwrap_err();
    assert!(NoStore::is_cause_of(&error), "{error}");
    let left: Vec<_> = fs::read_dir(folder.path()).unwrap().collect();
    assert_eq!(left.len(), 1, "{left:?}");
}

#[tokio::test]
async fn a_copy_is_refused_until_fences_are_raised() {
    let fixture = BackupFixture::new();
    let (path, copy) = (fixture.path("semel.db"), fixture.path("copy"));
    let store = SqliteStore::open(&path).unwrap();
    complete(&store, "k").await;
    backup(&path, &copy, |_| ()).unwrap();
    drop(store);
    let path = fixture.restore(&copy);
    let error = SqliteStore::open(&path).unwrap_err();
    assert_eq!(error.kind(), StoreErrorKind::Unavailable);
    assert!(error.to_string().contains("semel migrate --after-restore"), "{error}");
    Options::new().after_restore(&path).unwrap();
    let store = SqliteStore::open(&path).unwrap();
    let claimed = store.claim(&claim("k", [2; 16])).await.unwrap();
    assert!(matches!(claimed, Claimed::Occupied(Occupied::Completed { .. })), "{claimed:?}");
}

#[tokio::test]
async fn after_a_restore_fences_and_the_epoch_have_risen() {
    let fixture = BackupFixture::new();
    let (path, copy) = (fixture.path("semel.db"), fixture.path("copy"));
    let store = SqliteStore::open(&path).unwrap();
    complete(&store, "done").await;
    let kept = fence(&store, "running").await;
    backup(&path, &copy, |_| ()).unwrap();
    let (mut issued, seen) = (Vec::new(), store.get(&id("done")).await.unwrap().unwrap().fence);
    for number in 0..50 {
        issued.push(fence(&store, &format!("lost-{number}")).await);
    }
    let forget = Resolution::Deleted(StateName::Completed);
    store.resolve(&id("done"), seen, &forget).await.unwrap();
    let epoch = store.epoch().await.unwrap();
    drop(store);
    let path = fixture.restore(&copy);
    let restored = Options::new().after_restore(&path).unwrap();
    assert_eq!(restored.last_fence.unwrap().get(), kept);
    assert_eq!((restored.in_flight, restored.epoch_before.0), (1, 0));
    assert!(restored.backup_at.is_some());
    assert!(restored.fence_floor.get() > *issued.iter().max().unwrap());
    let store = SqliteStore::open(&path).unwrap();
    assert_eq!(store.epoch().await.unwrap(), restored.epoch);
    assert!(restored.epoch > epoch, "{restored:?}");
    for number in 0..50 {
        let again = fence(&store, &format!("lost-{number}")).await;
        assert!(again > restored.fence_floor.get(), "{again} {restored:?}");
    }
    drop(store);
    let again = Options::new().after_restore(&path).unwrap();
    assert_eq!(again.backup_at, None);
    assert!(again.epoch > restored.epoch && again.fence_floor > restored.fence_floor);
}

#[test]
fn a_missing_store_is_not_created_without_create_if_missing() {
    let fixture = BackupFixture::new();
    let path = fixture.path("semel.db");
    let existing = Options::new().create_if_missing(false);
    assert!(NoStore::is_cause_of(&existing.open(&path).unwrap_err()));
    assert!(NoStore::is_cause_of(&existing.after_restore(&path).unwrap_err()));
    assert!(!path.exists());
    fs::write(&path, "").unwrap();
    assert!(NoStore::is_cause_of(&existing.open(&path).unwrap_err()), "an empty file is no store");
    assert!(NoStore::is_cause_of(&Options::new().after_restore(&path).unwrap_err()));
    assert!(SqliteStore::open(&path).unwrap().info().is_new);
    let store = existing.open(&path).unwrap();
    assert!(!store.info().is_new && !store.info().is_used);
}

#[tokio::test]
async fn a_store_says_whether_it_was_used() {
    let fixture = BackupFixture::new();
    let path = fixture.path("semel.db");
    let first = SqliteStore::open(&path).unwrap().info().clone();
    complete(&SqliteStore::open(&path).unwrap(), "k").await;
    let info = SqliteStore::open(&path).unwrap().info().clone();
    assert!(info.is_used && !info.is_new);
    assert_eq!((info.id, info.created_at), (first.id, first.created_at));
    assert!(info.created_at.elapsed().unwrap().as_secs() < 3600);
}
