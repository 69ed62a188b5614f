//! The conformance kit for records in the user's transaction, on PostgreSQL.
//!
//! It is separate from the tests in `transactional`, because some of those measure time.
#![allow(clippy::unwrap_used, reason = "a test reports by panicking")]

use std::sync::LazyLock;

use async_trait::async_trait;
use deadpool_postgres::{Manager, Pool};
use semel::{OperationError, transactional::TransactionalStore};
use semel_postgres::transactional::{PgDatabase, PgTransaction, PgUserTransaction, create_table};
use semel_testkit::{
    servers::{self, PgBouncer},
    transactional::{TransactionalFixture, UserTransactionFixture},
};
use tokio_postgres::{Client, Config, NoTls, types::Type};

/// How operations reach the database.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Connection {
    Direct,
    /// By statements without a name.
    Unnamed,
    /// The same through a pooler in transaction mode.
    Pooler,
}

/// One for all cases.
static POOLER: LazyLock<PgBouncer> = LazyLock::new(|| PgBouncer::start(servers::postgres()));

/// A database of its own for each case.
struct Shop {
    config: Config,
    connection: Connection,
}

impl Shop {
    async fn new(connection: Connection) -> Self {
        let server = servers::postgres();
        let database = server.fresh_database();
        let url = match connection {
            Connection::Direct | Connection::Unnamed => server.url(&database),
            Connection::Pooler => POOLER.url(&database),
        };
        let shop = Self { config: url.parse().unwrap(), connection };
        create_table(&shop.pool()).await.unwrap();
        let table = "CREATE TABLE business (text text COLLATE \"C\" NOT NULL)";
        shop.connect().await.batch_execute(table).await.unwrap();
        shop
    }

    fn pool(&self) -> Pool {
        Pool::builder(Manager::new(self.config.clone(), NoTls)).max_size(2).build().unwrap()
    }

    async fn connect(&self) -> Client {
        let (client, connection) = self.config.connect(NoTls).await.unwrap();
        tokio::spawn(connection);
        client
    }

    async fn committed(&self) -> Vec<String> {
        let query = "SELECT text FROM business ORDER BY text";
        let rows = self.connect().await.query_typed(query, &[]).await.unwrap();
        rows.iter().map(|row| row.get(0)).collect()
    }
}

const INSERT: &str = "INSERT INTO business VALUES ($1)";

#[async_trait]
impl TransactionalFixture for Shop {
    type Database = PgDatabase;

    async fn store(&self) -> TransactionalStore<PgDatabase> {
        let database = PgDatabase::new(self.pool());
        match self.connection {
            Connection::Direct => database.store(),
            Connection::Unnamed | Connection::Pooler => database.with_unnamed_statements().store(),
        }
    }

    async fn write(transaction: &mut PgTransaction, text: &str) {
        transaction.execute_typed(INSERT, &[(&text, Type::TEXT)]).await.unwrap();
    }

    async fn commit_behind(transaction: &mut PgTransaction) {
        transaction.batch_execute("COMMIT; BEGIN").await.unwrap();
    }

    /// The connections of waiting operations are tested in `transactional`.
    async fn rows(&self, _: &TransactionalStore<PgDatabase>) -> Vec<String> {
        self.committed().await
    }
}

impl UserTransactionFixture for Shop {
    type UserTransaction<'a> = PgUserTransaction<'a>;

    async fn transaction<S>(&self, commit: bool, script: S)
    where
        S: for<'a, 'b> AsyncFnOnce(&'b mut PgUserTransaction<'a>),
    {
        let mut client = self.connect().await;
        let transaction = client.transaction().await.unwrap();
        script(&mut PgUserTransaction::of(&transaction)).await;
        if commit {
            transaction.commit().await.unwrap();
        } else {
            transaction.rollback().await.unwrap();
        }
    }

    async fn write(user_transaction: &mut Self::UserTransaction<'_>, text: &str) {
        user_transaction.execute_typed(INSERT, &[(&text, Type::TEXT)]).await.unwrap();
    }

    async fn fail(user_transaction: &mut Self::UserTransaction<'_>) -> OperationError {
        let none = None::<&str>;
        user_transaction.execute_typed(INSERT, &[(&none, Type::TEXT)]).await.unwrap_err().into()
    }

    async fn rows(&self) -> Vec<String> {
        self.committed().await
    }
}

mod direct {
    use super::{Connection, Shop};

    semel_testkit::transactional!(Shop::new(Connection::Direct).await);
}

mod unnamed {
    use super::{Connection, Shop};

    semel_testkit::transactional!(Shop::new(Connection::Unnamed).await);
}

mod through_a_pooler {
    use super::{Connection, Shop};

    semel_testkit::transactional!(Shop::new(Connection::Pooler).await);
    semel_testkit::in_transaction!(Shop::new(Connection::Pooler).await);
}

semel_testkit::in_transaction!(Shop::new(Connection::Direct).await);
