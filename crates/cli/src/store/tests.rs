//! Which stores are opened, which are created, and which are refused.

use super::*;
use semel_config::Overrides;

fn config(folder: &Path, head: &str) -> Config {
    let source = format!(
        "store = \"sqlite:semel.db\"\n{head}\n[gateway]\nupstream = \"http://127.0.0.1:1\"\n"
    );
    let file = folder.join("semel.toml");
    Config::read(Some(&file), &source, &Overrides::default(), &|_| None).unwrap()
}

async fn refusal(config: &Config) -> String {
    match open(config).await {
        Ok(_) => panic!("it was opened"),
        Err(error) => format!("{error:#}"),
    }
}

#[tokio::test]
async fn a_store_is_created_where_no_trace_of_an_earlier_store_exists() {
    let folder = tempfile::tempdir().unwrap();
    let config = config(folder.path(), "");
    let created_at = open(&config).await.unwrap().created_at;
    assert_eq!(open(&config).await.unwrap().created_at, created_at);
}

#[tokio::test]
async fn a_lost_store_is_not_created_again() {
    let folder = tempfile::tempdir().unwrap();
    let config = config(folder.path(), "");
    drop(open(&config).await.unwrap());
    let path = folder.path().join("semel.db");
    fs::remove_file(&path).unwrap();
    for _ in 0..2 {
        let error = refusal(&config).await;
        assert!(error.contains("semel.db.secret (a secret that Semel wrote)"), "{error}");
        let command = format!("semel migrate --new-store --store sqlite:{}", path.display());
        assert!(error.ends_with(&command), "{error}");
        assert!(!path.exists());
    }
    // A file that lost its content is no store either.
    fs::write(&path, "").unwrap();
    assert!(refusal(&config).await.contains("--new-store"));
}

/// The secret is drawn after the store: a start that was cut off in between is no loss.
#[tokio::test]
async fn a_start_that_was_cut_off_is_made_good() {
    let folder = tempfile::tempdir().unwrap();
    let config = config(folder.path(), "");
    drop(SqliteStore::open(folder.path().join("semel.db")).unwrap());
    drop(open(&config).await.unwrap());
    assert!(folder.path().join("semel.db.secret").exists());
}

/// Creates the database and its log as the first start does, and commits one table, as the first
/// migration would. Copies the database and the first `log_bytes` of its log to `folder`, as a kill
/// or a power cut at that moment leaves them.
fn cut_off_first_start(folder: &Path, log_bytes: usize) {
    let running = tempfile::tempdir().unwrap();
    let file = |folder: &Path, suffix: &str| folder.join(format!("semel.db{suffix}"));
    let connection = rusqlite::Connection::open(file(running.path(), "")).unwrap();
    connection.execute_batch("PRAGMA journal_mode = WAL; CREATE TABLE claims (id)").unwrap();
    fs::copy(file(running.path(), ""), file(folder, "")).unwrap();
    let log = fs::read(file(running.path(), "-wal")).unwrap();
    assert!(log_bytes < log.len(), "the commit would be whole");
    fs::write(file(folder, "-wal"), &log[..log_bytes]).unwrap();
}

#[tokio::test]
async fn a_start_that_was_cut_off_while_it_created_the_store_is_made_good() {
    for log_bytes in [0, 32, 5000] {
        let folder = tempfile::tempdir().unwrap();
        let config = config(folder.path(), "");
        cut_off_first_start(folder.path(), log_bytes);
        let created_at = open(&config).await.unwrap().created_at;
        assert_eq!(open(&config).await.unwrap().created_at, created_at, "{log_bytes}");
    }
}

#[tokio::test]
async fn only_the_store_that_is_named_is_used() {
    let folder = tempfile::tempdir().unwrap();
    let any = config(folder.path(), "");
    let store = open(&any).await.unwrap().store;
    let id = public_id(store.identity().await.unwrap().unwrap());
    drop(store);
    let named = config(folder.path(), &format!("store_id = \"{id}\""));
    drop(open(&named).await.unwrap());
    let other = "00000000000000000000000000000000";
    let error = refusal(&config(folder.path(), &format!("store_id = \"{other}\""))).await;
    assert!(error.contains(&id) && error.contains(other), "{error}");
    let empty = tempfile::tempdir().unwrap();
    let error = refusal(&config(empty.path(), &format!("store_id = \"{id}\""))).await;
    assert!(error.contains("`store_id = ") && error.contains("--new-store"), "{error}");
    assert_eq!(fs::read_dir(empty.path()).unwrap().count(), 0, "nothing was made");
}

#[tokio::test]
async fn a_missing_folder_is_reported() {
    let folder = tempfile::tempdir().unwrap();
    let config = config(&folder.path().join("missing"), "");
    let error = refusal(&config).await;
    assert!(error.contains("missing does not exist"), "{error}");
}

#[tokio::test]
async fn a_file_that_is_not_a_store_is_refused() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("semel.db");
    fs::write(&path, "not a database, whatever its name says".repeat(100)).unwrap();
    let error = refusal(&config(folder.path(), "")).await;
    assert!(error.contains("not a SQLite database"), "{error}");
}

#[tokio::test]
async fn a_store_that_must_be_there_is_not_made() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("semel.db");
    let url = StoreUrl::Sqlite(path.clone());
    assert!(open_existing(&url).await.is_err());
    assert!(!path.exists());
    fs::write(&path, "").unwrap();
    assert!(open_existing(&url).await.is_err(), "an empty file is no store");
    drop(SqliteStore::open(&path).unwrap());
    assert!(open_existing(&url).await.is_ok());
}
