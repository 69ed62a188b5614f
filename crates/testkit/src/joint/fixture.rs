//! What a backend gives the kit of the joint stores.

use async_trait::async_trait;
use semel::{
    Stop,
    joint::{Carrier, Database, JointStore},
};

/// An empty database for one case alone, with a table for records and one for business rows.
#[async_trait]
pub trait JointFixture: Send + Sync + 'static {
    /// The database under test.
    type Database: Database;

    /// A store of its own, as another process would have it: with its own connections, at least two
    /// and at most four of them.
    async fn store(&self) -> JointStore<Self::Database>;

    /// Adds a business row in the transaction of an operation.
    async fn write(transaction: &mut <Self::Database as Database>::Transaction, text: &str);

    /// Commits behind our back, and opens another transaction where the first one was. What cannot
    /// be done need not be.
    async fn commit_behind(transaction: &mut <Self::Database as Database>::Transaction);

    /// The business rows that are committed, sorted; asked through the connections of a store
    /// where it shares them with its user.
    async fn rows(&self, store: &JointStore<Self::Database>) -> Vec<String>;
}

/// An empty database as above, whose user opens transactions himself.
pub trait WithinFixture: Send + Sync + 'static {
    /// An open transaction.
    type Carrier<'a>: Carrier;

    /// Opens a transaction on a connection of its own, does this in it, and then commits or rolls
    /// back.
    fn transaction<S>(&self, commit: bool, script: S) -> impl Future<Output = ()>
    where
        S: for<'a, 'b> AsyncFnOnce(&'b mut Self::Carrier<'a>);

    /// Adds a business row.
    fn write(carrier: &mut Self::Carrier<'_>, text: &str) -> impl Future<Output = ()>;

    /// Does something that the database refuses, and gives the error.
    fn fail(carrier: &mut Self::Carrier<'_>) -> impl Future<Output = Stop>;

    /// The business rows that are committed, sorted.
    fn rows(&self) -> impl Future<Output = Vec<String>>;
}
