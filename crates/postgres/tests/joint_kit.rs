//! The conformance kit for records in the user's transaction, on PostgreSQL.
//!
//! It is separate from the tests in `joint`, because some of those measure time.
#![allow(clippy::unwrap_used, reason = "a test reports by panicking")]

use async_trait::async_trait;
use deadpool_postgres::{Manager, Pool};
use semel::{Stop, joint::JointStore};
use semel_postgres::joint::{InTransaction, PgDatabase, PgTransaction, create_table};
use semel_testkit::{
    joint::{JointFixture, WithinFixture},
    servers,
};
use tokio_postgres::{Client, Config, NoTls};

/// A database of its own for each case.
struct Shop {
    config: Config,
    /// Whether operations hand off their connections.
    hands_off: bool,
}

impl Shop {
    async fn new(hands_off: bool) -> Self {
        let server = servers::postgres();
        let config = server.url(&server.fresh_database()).parse().unwrap();
        let shop = Self { config, hands_off };
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
        let rows = self.connect().await.query(query, &[]).await.unwrap();
        rows.iter().map(|row| row.get(0)).collect()
    }
}

const INSERT: &str = "INSERT INTO business VALUES ($1)";

#[async_trait]
impl JointFixture for Shop {
    type Database = PgDatabase;

    async fn store(&self) -> JointStore<PgDatabase> {
        let database = PgDatabase::new(self.pool());
        if self.hands_off { database.with_connection_handoff().store() } else { database.store() }
    }

    async fn write(transaction: &mut PgTransaction, text: &str) {
        transaction.execute(INSERT, &[&text]).await.unwrap();
    }

    async fn commit_behind(transaction: &mut PgTransaction) {
        transaction.batch_execute("COMMIT; BEGIN").await.unwrap();
    }

    /// The connections of waiting operations are tested in `joint`.
    async fn rows(&self, _: &JointStore<PgDatabase>) -> Vec<String> {
        self.committed().await
    }
}

impl WithinFixture for Shop {
    type Carrier<'a> = InTransaction<'a>;

    async fn transaction<S>(&self, commit: bool, script: S)
    where
        S: for<'a, 'b> AsyncFnOnce(&'b mut InTransaction<'a>),
    {
        let mut client = self.connect().await;
        let transaction = client.transaction().await.unwrap();
        script(&mut InTransaction::of(&transaction)).await;
        if commit {
            transaction.commit().await.unwrap();
        } else {
            transaction.rollback().await.unwrap();
        }
    }

    async fn write(carrier: &mut Self::Carrier<'_>, text: &str) {
        carrier.execute(INSERT, &[&text]).await.unwrap();
    }

    async fn fail(carrier: &mut Self::Carrier<'_>) -> Stop {
        carrier.execute(INSERT, &[&None::<&str>]).await.unwrap_err().into()
    }

    async fn rows(&self) -> Vec<String> {
        self.committed().await
    }
}

mod without_handoff {
    use super::Shop;

    semel_testkit::joint!(Shop::new(false).await);
}

mod with_handoff {
    use super::Shop;

    semel_testkit::joint!(Shop::new(true).await);
}
semel_testkit::within!(Shop::new(false).await);
