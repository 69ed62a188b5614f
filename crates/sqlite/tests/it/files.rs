//! Unusable files: each is refused with a clear error and left unchanged.

use std::{fs, path::Path};

use rusqlite::Connection;
use semel_core::{
    Claimed, Effect, Fenced, Finish, ListQuery, StateName, Store, StoreError, StoreErrorKind,
};
use semel_sqlite::SqliteStore;
use semel_testkit::powercut::{self, Inject, Options, Shim};

use crate::child_process::{Acknowledged, ChildJob, answer, claim, id};
use semel_testkit::with;

fn refusal(path: &Path) -> StoreError {
    let error = SqliteStore::open(path).map(drop).unwrap_err();
    let text = error.to_string();
    assert!(text.contains(path.to_str().unwrap()), "the error names the file: {text}");
    assert_eq!(error.effect(), Effect::None);
    error
}

#[test]
fn the_database_of_another_program_is_refused_and_left_alone() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("accounts.db");
    let other = Connection::open(&path).unwrap();
    other
        .execute_batch("CREATE TABLE accounts (id INTEGER); INSERT INTO accounts VALUES (7)")
        .unwrap();
    drop(other);
    let before = fs::read(&path).unwrap();
    let error = refusal(&path);
    assert_eq!(error.kind(), StoreErrorKind::Corrupt);
    assert!(error.to_string().contains("another program"), "{error}");
    assert_eq!(fs::read(&path).unwrap(), before);
}

#[test]
fn a_file_that_is_not_a_database_is_refused_and_left_alone() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("notes.txt");
    let text = "remember the milk\n".repeat(1000);
    fs::write(&path, &text).unwrap();
    assert_eq!(refusal(&path).kind(), StoreErrorKind::Corrupt);
    assert_eq!(fs::read_to_string(&path).unwrap(), text);
}

#[test]
fn a_newer_format_is_refused_by_its_number() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("semel.db");
    drop(SqliteStore::open(&path).unwrap());
    Connection::open(&path).unwrap().pragma_update(None, "user_version", 99).unwrap();
    let error = refusal(&path);
    assert_eq!(error.kind(), StoreErrorKind::Newer);
    assert!(error.to_string().contains("version 99"), "{error}");
}

#[test]
fn a_format_that_was_never_released_is_refused_with_advice() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("semel.db");
    drop(SqliteStore::open(&path).unwrap());
    let file = Connection::open(&path).unwrap();
    file.pragma_update(None, "user_version", 2).unwrap();
    file.execute("DELETE FROM meta WHERE name IN ('backup_at', 'created_at')", []).unwrap();
    drop(file);
    let error = refusal(&path);
    assert!(error.to_string().contains("never released"), "{error}");
}

#[test]
fn a_missing_folder_is_named() {
    let folder = tempfile::tempdir().unwrap();
    let error = refusal(&folder.path().join("no/such/folder/semel.db"));
    assert_eq!(error.kind(), StoreErrorKind::Unavailable);
    assert!(error.to_string().contains("folder exists"), "{error}");
}

#[test]
fn a_network_file_system_is_refused_before_any_file_is_created() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("semel.db");
    let nfs = semel_sqlite::Options::new().file_system_magic(0x6969);
    let error = nfs.open(&path).map(drop).unwrap_err();
    assert_eq!((error.kind(), error.effect()), (StoreErrorKind::Unavailable, Effect::None));
    assert!(error.to_string().contains("network file system (NFS)"), "{error}");
    assert_eq!(fs::read_dir(folder.path()).unwrap().count(), 0);
    drop(SqliteStore::open(&path).unwrap());
    assert!(nfs.open(&path).is_err(), "one that was moved there is refused as well");
}

#[tokio::test]
async fn a_damaged_page_is_an_error_for_its_record_and_not_for_the_others() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("semel.db");
    drop(SqliteStore::open(&path).unwrap());
    let store = SqliteStore::open(&path).unwrap();
    for key in ["good", "bad"] {
        store.claim(&claim(key, [1; 16])).await.unwrap();
    }
    drop(store);
    // A value that Semel never writes stands for damage that SQLite itself does not notice.
    let file = Connection::open(&path).unwrap();
    file.execute("UPDATE claims SET on_unknown = 77 WHERE key = 'bad'", []).unwrap();
    drop(file);
    let store = SqliteStore::open(&path).unwrap();
    let (good, bad) = (claim("good", [2; 16]), claim("bad", [2; 16]));
    let (good, bad) = tokio::join!(store.claim(&good), store.claim(&bad));
    let error = bad.unwrap_err();
    assert_eq!((error.kind(), error.effect()), (StoreErrorKind::Corrupt, Effect::None));
    good.unwrap();
    assert!(store.get(&id("bad")).await.is_err());
}

#[tokio::test]
async fn a_long_running_claim_is_marked_and_found_at_the_next_opening() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("semel.db");
    let store = semel_sqlite::Options::new().checkpoint_pages(10).open(&path).unwrap();
    let Claimed::Granted(long) = store.claim(&claim("long", [1; 16])).await.unwrap() else {
        panic!("the key is free")
    };
    for number in 0..300 {
        let key = format!("short-{number}");
        let claim = claim(&key, [1; 16]);
        let Claimed::Granted(grant) = store.claim(&claim).await.unwrap() else {
            panic!("the key is free")
        };
        let finish = Finish::complete(answer(&key));
        store.finish(&claim.id, claim.claimant(grant.fence), &finish).await.unwrap();
    }
    drop(store);
    let file = Connection::open(&path).unwrap();
    let number = |sql: &str| file.query_row(sql, [], |row| row.get::<_, i64>(0)).unwrap();
    assert!(number("SELECT value FROM meta WHERE name = 'settled'") > 100);
    assert_eq!(number("SELECT count(*) FROM states WHERE state = 0"), 1);
    assert!(number("SELECT value FROM meta WHERE name = 'seen_at'") > 0);
    drop(file);
    let store = SqliteStore::open(&path).unwrap();
    let in_flight = with(ListQuery::new(), |it| it.state = Some(StateName::InFlight));
    let found = store.list(&in_flight).await.unwrap().items;
    assert_eq!(found.iter().map(|one| one.fence).collect::<Vec<_>>(), [long.fence]);
    let by = claim("long", [1; 16]).claimant(long.fence);
    let finish = Finish::complete(answer("long"));
    let ended = store.finish(&id("long"), by, &finish).await.unwrap();
    assert_eq!(ended, Fenced::Applied);
    assert!(store.list(&in_flight).await.unwrap().items.is_empty());
}

#[test]
fn a_truncated_file_is_refused() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("semel.db");
    drop(SqliteStore::open(&path).unwrap());
    let whole = fs::read(&path).unwrap();
    fs::write(&path, &whole[..whole.len() / 2]).unwrap();
    assert_eq!(refusal(&path).kind(), StoreErrorKind::Corrupt);
}

/// Root ignores file permissions, so the child runs as another user.
#[cfg(unix)]
fn as_unprivileged_user(command: &mut std::process::Command) {
    use std::os::unix::{fs::MetadataExt as _, process::CommandExt as _};
    if fs::metadata("/proc/self").unwrap().uid() == 0 {
        command.uid(65_534).gid(65_534);
    }
}

#[cfg(unix)]
fn permissions(path: &Path, mode: u32) {
    use std::os::unix::fs::PermissionsExt as _;
    fs::set_permissions(path, fs::Permissions::from_mode(mode)).unwrap();
}

/// Opens the file in an unprivileged child, and returns its output.
#[cfg(unix)]
fn child_error(path: &Path) -> String {
    // Copied to where every user may run it: the build folder may be private.
    let program = path.parent().unwrap().join("program");
    let job = ChildJob::new(path, "k").command();
    fs::copy(job.get_program(), &program).unwrap();
    permissions(&program, 0o755);
    let mut command = std::process::Command::new(program);
    command.args(job.get_args());
    command.envs(job.get_envs().filter_map(|(name, value)| Some((name, value?))));
    as_unprivileged_user(&mut command);
    let output = command.stderr(std::process::Stdio::piped()).output().unwrap();
    assert!(!output.status.success());
    String::from_utf8_lossy(&output.stderr).into_owned() + &String::from_utf8_lossy(&output.stdout)
}

#[test]
#[cfg(unix)]
fn a_read_only_file_is_refused() {
    let folder = tempfile::tempdir_in(std::env::temp_dir()).unwrap();
    permissions(folder.path(), 0o777);
    let path = folder.path().join("semel.db");
    drop(SqliteStore::open(&path).unwrap());
    permissions(&path, 0o444);
    let text = child_error(&path);
    assert!(text.contains("read-only"), "{text}");
}

#[test]
#[cfg(unix)]
fn a_read_only_folder_is_refused() {
    let folder = tempfile::tempdir_in(std::env::temp_dir()).unwrap();
    permissions(folder.path(), 0o755);
    let path = folder.path().join("semel.db");
    drop(SqliteStore::open(&path).unwrap());
    // The child does not own the folder and may not write to it.
    permissions(&path, 0o666);
    let text = child_error(&path);
    assert!(text.contains("writ"), "{text}");
}

#[test]
#[cfg(unix)]
fn a_new_file_is_for_its_owner_alone() {
    use std::os::unix::fs::PermissionsExt as _;
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("semel.db");
    let store = SqliteStore::open(&path).unwrap();
    for entry in fs::read_dir(folder.path()).unwrap() {
        let entry = entry.unwrap();
        let mode = entry.metadata().unwrap().permissions().mode() & 0o777;
        assert_eq!(mode, 0o600, "{:?}", entry.file_name());
    }
    drop(store);
}

/// The folder is moved away while syncs fail, like an unmounted disk. A store that created a new
/// file there would grant every claim again.
#[tokio::test]
async fn a_missing_file_is_waited_for_and_not_recreated() {
    let folder = tempfile::tempdir().unwrap();
    let (watch, shadow) = (folder.path().join("watch"), folder.path().join("shadow"));
    let (disk, away) = (watch.join("disk"), watch.join("away"));
    fs::create_dir_all(&disk).unwrap();
    let inject = Inject::WhenArmed;
    let options = Options { fail_sync_percent: 100, inject, ..Options::new(&watch, &shadow) };
    let shim = Shim::build(env!("CARGO_TARGET_TMPDIR").as_ref()).unwrap();
    let job = ChildJob::new(disk.join("semel.db"), "k");
    let mut command = job.command();
    shim.apply(&mut command, &options).unwrap();
    let mut child = command.spawn().unwrap();
    let (mut stage, mut from) = (0, 0);
    let acknowledged = Acknowledged::listen(&mut child, |acknowledged, child| match stage {
        0 if acknowledged.completed.len() >= 50 => {
            powercut::arm(&shadow).unwrap();
            (stage, from) = (1, acknowledged.errors.len());
        }
        1 if acknowledged.errors.len() >= from + 20 => {
            fs::rename(&disk, &away).unwrap();
            fs::create_dir(&disk).unwrap();
            powercut::disarm(&shadow).unwrap();
            (stage, from) = (2, acknowledged.errors.len());
        }
        2 if acknowledged.errors.len() >= from + 40 => {
            assert!(!disk.join("semel.db").exists(), "a new file was made");
            fs::remove_dir_all(&disk).unwrap();
            fs::rename(&away, &disk).unwrap();
            (stage, from) = (3, acknowledged.completed.len());
        }
        3 if acknowledged.completed.len() >= from + 100 => child.kill().unwrap(),
        _ => {}
    });
    assert_eq!(stage, 3);
    let store = SqliteStore::open(&job.file).unwrap();
    assert_eq!(acknowledged.missing(&store).await, [] as [String; 0]);
}

#[tokio::test]
async fn a_full_disk_fails_new_claims_keeps_acknowledged_ones_and_recovers_by_itself() {
    let folder = tempfile::tempdir().unwrap();
    let (watch, shadow) = (folder.path().join("watch"), folder.path().join("shadow"));
    let options =
        Options { full: true, inject: Inject::WhenArmed, ..Options::new(&watch, &shadow) };
    let shim = Shim::build(env!("CARGO_TARGET_TMPDIR").as_ref()).unwrap();
    let job = ChildJob::new(watch.join("semel.db"), "k");
    let mut command = job.command();
    shim.apply(&mut command, &options).unwrap();
    let mut child = command.spawn().unwrap();
    let (mut full, mut healthy_at) = (false, None);
    let acknowledged = Acknowledged::listen(&mut child, |acknowledged, child| {
        if !full && acknowledged.completed.len() >= 100 {
            powercut::arm(&shadow).unwrap();
            full = true;
        }
        if full && healthy_at.is_none() && acknowledged.errors.len() >= 50 {
            powercut::disarm(&shadow).unwrap();
            healthy_at = Some(acknowledged.completed.len());
        }
        if healthy_at.is_some_and(|count| acknowledged.completed.len() >= count + 200) {
            child.kill().unwrap();
        }
    });
    assert!(acknowledged.errors.len() >= 50);
    let store = SqliteStore::open(&job.file).unwrap();
    assert_eq!(acknowledged.missing(&store).await, [] as [String; 0]);
}
