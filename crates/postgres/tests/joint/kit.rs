//! What every database must show whose transactions carry records.

use async_trait::async_trait;
use semel::{Stop, joint::JointStore};
use semel_postgres::joint::{InTransaction, PgDatabase, PgTransaction};
use semel_testkit::joint::{JointFixture, WithinFixture};
use tokio_postgres::{Config, NoTls};

use super::bench::{Bench, insert, process};

#[async_trait]
impl JointFixture for Bench {
    type Database = PgDatabase;

    async fn store(&self) -> JointStore<PgDatabase> {
        process(&self.url, 2).store
    }

    async fn write(transaction: &mut PgTransaction, text: &str) {
        insert(transaction, text).await.unwrap();
    }

    async fn commit_behind(transaction: &mut PgTransaction) {
        transaction.batch_execute("COMMIT; BEGIN").await.unwrap();
    }

    async fn rows(&self, _: &JointStore<PgDatabase>) -> Vec<String> {
        self.entries().await
    }
}

impl WithinFixture for Bench {
    type Carrier<'a> = InTransaction<'a>;

    async fn transaction<S>(&self, commit: bool, script: S)
    where
        S: for<'a, 'b> AsyncFnOnce(&'b mut InTransaction<'a>),
    {
        let config: Config = self.url.parse().unwrap();
        let (mut client, connection) = config.connect(NoTls).await.unwrap();
        tokio::spawn(connection);
        let transaction = client.transaction().await.unwrap();
        script(&mut InTransaction::of(&transaction)).await;
        if commit {
            transaction.commit().await.unwrap();
        } else {
            transaction.rollback().await.unwrap();
        }
    }

    async fn write(carrier: &mut Self::Carrier<'_>, text: &str) {
        carrier.execute("INSERT INTO ledger (entry) VALUES ($1)", &[&text]).await.unwrap();
    }

    async fn fail(carrier: &mut Self::Carrier<'_>) -> Stop {
        carrier.execute("INSERT INTO ledger (entry) VALUES (NULL)", &[]).await.unwrap_err().into()
    }

    async fn rows(&self) -> Vec<String> {
        let mut rows = self.entries().await;
        rows.sort();
        rows
    }
}

semel_testkit::joint!(Bench::new().await);
semel_testkit::within!(Bench::new().await);
