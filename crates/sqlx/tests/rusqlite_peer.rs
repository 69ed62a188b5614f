//! A program with sqlx and one with rusqlite on one file: each operation runs once.
#![allow(clippy::unwrap_used, clippy::panic, reason = "a test reports by panicking")]

use std::{
    io::{BufRead as _, BufReader, Lines, Write as _},
    path::Path,
    process::{Child, ChildStdin, ChildStdout, Command, Stdio},
    sync::{
        Arc,
        atomic::{AtomicU32, Ordering},
    },
    time::Duration,
};

use semel::{
    Outcome, Semel,
    core::{Caller, Key, OnUnknown},
};
use semel_sqlx::sqlite::{SqliteDatabase, SqliteTransactionalStore};
use sqlx::{
    Executor as _, SqlitePool,
    sqlite::{SqliteConnectOptions, SqliteJournalMode},
};
use tempfile::TempDir;
use tokio::sync::oneshot;

/// A shop with its own file.
struct Shop {
    folder: TempDir,
    pool: SqlitePool,
    store: SqliteTransactionalStore,
    semel: Semel,
    /// How often the slow part of an operation began here.
    calls: Arc<AtomicU32>,
}

impl Shop {
    async fn new() -> Self {
        let folder = tempfile::tempdir().unwrap();
        let options = SqliteConnectOptions::new()
            .filename(folder.path().join("shop.db"))
            .create_if_missing(true)
            .journal_mode(SqliteJournalMode::Wal);
        let pool = SqlitePool::connect_with(options).await.unwrap();
        pool.execute("CREATE TABLE business (text TEXT NOT NULL)").await.unwrap();
        let store = SqliteDatabase::open(pool.clone()).await.unwrap().store();
        let semel = Semel::new(store.clone());
        Self { folder, pool, store, semel, calls: Arc::default() }
    }

    fn calls(&self) -> u32 {
        self.calls.load(Ordering::SeqCst)
    }

    /// Runs an operation whose slow part ends on a signal.
    async fn run(&self, key: &str, slow: oneshot::Receiver<()>) -> Outcome<String> {
        let (store, calls) = (self.store.clone(), Arc::clone(&self.calls));
        let once =
            self.semel.once("orders", Caller::new("shop-3").unwrap(), Key::new(key).unwrap());
        let once = once.on_unknown(OnUnknown::Rerun).wait(Duration::ZERO);
        let run = once.run(move |lease| async move {
            let mut tx = store.transaction(&lease).await?;
            calls.fetch_add(1, Ordering::SeqCst);
            slow.await?;
            sqlx::query("INSERT INTO business VALUES ('by sqlx')").execute(&mut **tx).await?;
            Ok("by sqlx".to_owned())
        });
        run.await.unwrap()
    }

    /// The same without a slow part.
    async fn run_fast(&self, key: &str) -> Outcome<String> {
        let (go, slow) = oneshot::channel();
        go.send(()).unwrap();
        self.run(key, slow).await
    }

    async fn rows(&self) -> Vec<String> {
        let rows = sqlx::query_scalar("SELECT text FROM business ORDER BY text");
        rows.fetch_all(&self.pool).await.unwrap()
    }

    fn peer(&self) -> RusqlitePeer {
        RusqlitePeer::start(&self.folder.path().join("shop.db"))
    }
}

/// The process with rusqlite: a test of `crates/sqlite` that takes commands.
struct RusqlitePeer {
    child: Child,
    /// The peer ends when this is closed.
    input: Option<ChildStdin>,
    lines: Lines<BufReader<ChildStdout>>,
}

impl RusqlitePeer {
    fn start(file: &Path) -> Self {
        let root = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../Cargo.toml");
        let mut child = Command::new(env!("CARGO"))
            .args(["test", "--quiet", "--package", "semel-sqlite", "--test", "transactional"])
            .arg("--manifest-path")
            .arg(root)
            .args(["--", "--exact", "sqlx_peer::child", "--nocapture"])
            .env("SEMEL_BESIDE_FILE", file)
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .spawn()
            .unwrap();
        let input = child.stdin.take();
        let lines = BufReader::new(child.stdout.take().unwrap()).lines();
        let mut peer = Self { child, input, lines };
        assert_eq!(peer.expect_line("READY"), "");
        peer
    }

    fn send_line(&mut self, line: &str) {
        let input = self.input.as_mut().unwrap();
        input.write_all(format!("{line}\n").as_bytes()).unwrap();
    }

    /// Waits for a line with this prefix, and returns the rest of it.
    fn expect_line(&mut self, word: &str) -> String {
        loop {
            let line = self.lines.next().unwrap().unwrap();
            if let Some(rest) = line.strip_prefix(word) {
                return rest.trim().to_owned();
            }
            assert!(!line.starts_with("ENDED") && line != "CALLED", "{line}, not {word}");
        }
    }
}

impl Drop for RusqlitePeer {
    fn drop(&mut self) {
        self.input = None;
        self.lines.by_ref().for_each(drop);
        let _ = self.child.wait();
    }
}

#[tokio::test]
async fn an_operation_running_with_rusqlite_is_not_started_with_sqlx() {
    let shop = Shop::new().await;
    let mut peer = shop.peer();
    peer.send_line("k");
    peer.expect_line("CALLED");
    // It has written nothing yet: only its claim is visible.
    let meanwhile = shop.run_fast("k").await;
    assert!(matches!(meanwhile, Outcome::InProgress), "{meanwhile:?}");
    assert!(matches!(shop.run_fast("other").await, Outcome::Ran(_)));
    peer.send_line("go on");
    assert_eq!(peer.expect_line("ENDED"), r#"Ran("by rusqlite")"#);
    let repeat = shop.run_fast("k").await;
    assert!(matches!(&repeat, Outcome::Replayed(value) if value == "by rusqlite"), "{repeat:?}");
    assert_eq!(shop.calls(), 1, "only the other key ran here");
    assert_eq!(shop.rows().await, ["by rusqlite", "by sqlx"]);
}

#[tokio::test]
async fn an_operation_running_with_sqlx_is_not_started_with_rusqlite() {
    let shop = Shop::new().await;
    let mut peer = shop.peer();
    let (go, slow) = oneshot::channel();
    let running = shop.run("k", slow);
    let meanwhile = async {
        while shop.calls() == 0 {
            tokio::time::sleep(Duration::from_millis(1)).await;
        }
        peer.send_line("k");
        assert_eq!(peer.expect_line("ENDED"), "InProgress");
        go.send(()).unwrap();
    };
    let (outcome, ()) = tokio::join!(running, meanwhile);
    assert!(matches!(outcome, Outcome::Ran(_)), "{outcome:?}");
    peer.send_line("k");
    assert_eq!(peer.expect_line("ENDED"), r#"Replayed("by sqlx")"#);
    assert_eq!((shop.calls(), shop.rows().await), (1, vec!["by sqlx".to_owned()]));
}
