//! The databases under test.

use std::time::Duration;

use deadpool_postgres::{Manager, Pool};
use rusqlite::Connection;
use semel_outbox::{
    AsideEntry, Backlog, OperatorScope, OutgoingMessage, Relay, RelayOptions, RelayStore, Sink,
    postgres::{self, PgOutbox},
    sqlite::{self, SqliteOutbox},
};
use semel_testkit::servers;
use tempfile::TempDir;
use tokio::{sync::oneshot, task::JoinHandle};
use tokio_postgres::{Config, NoTls};

pub(crate) const LEASE: Duration = Duration::from_secs(1);

/// A message with a key and a payload.
pub(crate) fn message(key: &str, payload: &str) -> OutgoingMessage {
    OutgoingMessage::new("orders", payload).unwrap().key(key).unwrap()
}

/// A database with an outbox.
pub(crate) trait Backend {
    type Store: RelayStore;
    fn store(&self) -> Self::Store;
    /// Sends messages in one transaction, and commits it or not.
    async fn transaction(&self, messages: &[OutgoingMessage], commit: bool);
    async fn backlog(&self) -> Backlog;
    async fn list(&self) -> Vec<AsideEntry>;
    async fn retry(&self, scope: OperatorScope) -> u64;
    async fn drop_messages(&self, scope: OperatorScope) -> u64;

    async fn send(&self, messages: &[OutgoingMessage]) {
        self.transaction(messages, true).await;
    }

    fn relay(&self, sink: impl Sink) -> RunningRelay {
        RunningRelay::start(Relay::new(self.store(), sink))
    }
}

/// A relay as a task of the test.
#[derive(Debug)]
pub(crate) struct RunningRelay {
    stop: oneshot::Sender<()>,
    task: JoinHandle<()>,
}

impl RunningRelay {
    pub(crate) fn start(relay: Relay<impl RelayStore>) -> Self {
        let mut options = RelayOptions::default();
        options.attempts_max = 2;
        let (stop, stopped) = oneshot::channel::<()>();
        let shutdown = async move { drop(stopped.await) };
        Self { stop, task: tokio::spawn(relay.options(options).run(shutdown)) }
    }

    pub(crate) async fn stop(self) {
        drop(self.stop);
        self.task.await.unwrap();
    }

    /// Ends it without a word, as a kill does.
    pub(crate) async fn abort(self) {
        self.task.abort();
        assert!(self.task.await.unwrap_err().is_cancelled());
    }
}

#[derive(Debug)]
pub(crate) struct PgBackend {
    pub(crate) pool: Pool,
}

impl PgBackend {
    pub(crate) async fn fresh() -> Self {
        let server = servers::postgres();
        Self::at(&server.url(&server.fresh_database())).await
    }

    pub(crate) async fn at(url: &str) -> Self {
        let config: Config = url.parse().unwrap();
        let pool = Pool::builder(Manager::new(config, NoTls)).max_size(8).build().unwrap();
        postgres::create_tables(&pool.get().await.unwrap()).await.unwrap();
        Self { pool }
    }
}

impl Backend for PgBackend {
    type Store = PgOutbox;

    fn store(&self) -> PgOutbox {
        PgOutbox::new(self.pool.clone()).with_lease(LEASE)
    }

    async fn transaction(&self, messages: &[OutgoingMessage], commit: bool) {
        let mut client = self.pool.get().await.unwrap();
        let transaction = client.transaction().await.unwrap();
        for message in messages {
            postgres::send(transaction.client(), message).await.unwrap();
        }
        if commit {
            transaction.commit().await.unwrap()
        } else {
            transaction.rollback().await.unwrap()
        }
    }

    async fn backlog(&self) -> Backlog {
        postgres::backlog(&self.pool.get().await.unwrap(), 1000).await.unwrap()
    }

    async fn list(&self) -> Vec<AsideEntry> {
        postgres::list(&self.pool.get().await.unwrap(), false, 100).await.unwrap()
    }

    async fn retry(&self, scope: OperatorScope) -> u64 {
        postgres::retry(&self.pool.get().await.unwrap(), &scope).await.unwrap()
    }

    async fn drop_messages(&self, scope: OperatorScope) -> u64 {
        postgres::drop_messages(&self.pool.get().await.unwrap(), &scope).await.unwrap()
    }
}

#[derive(Debug)]
pub(crate) struct SqliteBackend(TempDir);

impl SqliteBackend {
    pub(crate) fn fresh() -> Self {
        let backend = Self(TempDir::new().unwrap());
        sqlite::create_tables(&backend.connection()).unwrap();
        backend
    }

    fn connection(&self) -> Connection {
        let connection = Connection::open(self.0.path().join("shop.db")).unwrap();
        connection.busy_timeout(Duration::from_secs(10)).unwrap();
        connection
    }
}

impl Backend for SqliteBackend {
    type Store = SqliteOutbox;

    fn store(&self) -> SqliteOutbox {
        SqliteOutbox::open(self.0.path().join("shop.db")).unwrap().with_lease(LEASE)
    }

    async fn transaction(&self, messages: &[OutgoingMessage], commit: bool) {
        let mut connection = self.connection();
        let transaction = connection.transaction().unwrap();
        for message in messages {
            sqlite::send(&transaction, message).unwrap();
        }
        if commit { transaction.commit().unwrap() } else { transaction.rollback().unwrap() }
    }

    async fn backlog(&self) -> Backlog {
        sqlite::backlog(&self.connection(), 1000).unwrap()
    }

    async fn list(&self) -> Vec<AsideEntry> {
        sqlite::list(&self.connection(), false, 100).unwrap()
    }

    async fn retry(&self, scope: OperatorScope) -> u64 {
        sqlite::retry(&self.connection(), &scope).unwrap()
    }

    async fn drop_messages(&self, scope: OperatorScope) -> u64 {
        sqlite::drop_messages(&self.connection(), &scope).unwrap()
    }
}
