//! What a backend gives the kit of the transactional stores.

use async_trait::async_trait;
use semel::{
    OperationError,
    transactional::{Database, TransactionalStore, UserTransaction},
};

/// An empty database for one case alone, with a table for records and one for business rows.
#[async_trait]
pub trait TransactionalFixture: Send + Sync + 'static {
    /// The database under test.
    type Database: Database;

    /// A store of its own, as another process would have it: with its own connections, at least two
    /// and at most four of them.
    async fn store(&self) -> TransactionalStore<Self::Database>;

    /// Adds a business row in the transaction of an operation.
    async fn write(transaction: &mut <Self::Database as Database>::Transaction, text: &str);

    /// Commits behind our back, and opens another transaction where the first one was. What cannot
    /// be done need not be.
    async fn commit_behind(transaction: &mut <Self::Database as Database>::Transaction);

    /// The business rows that are committed, sorted; asked through the connections of a store
    /// where it shares them with its user.
    async fn rows(&self, store: &TransactionalStore<Self::Database>) -> Vec<String>;
}

/// An empty database as above, whose user opens transactions himself.
pub trait UserTransactionFixture: Send + Sync + 'static {
    /// An open transaction.
    type UserTransaction<'a>: UserTransaction;

    /// Opens a transaction on a connection of its own, does this in it, and then commits or rolls
    /// back.
    fn transaction<S>(&self, commit: bool, script: S) -> impl Future<Output = ()>
    where
        S: for<'a, 'b> AsyncFnOnce(&'b mut Self::UserTransaction<'a>);

    /// Adds a business row.
    fn write(
        user_transaction: &mut Self::UserTransaction<'_>,
        text: &str,
    ) -> impl Future<Output = ()>;

    /// Does something that the database refuses, and gives the error.
    fn fail(
        user_transaction: &mut Self::UserTransaction<'_>,
    ) -> impl Future<Output = OperationError>;

    /// The business rows that are committed, sorted.
    fn rows(&self) -> impl Future<Output = Vec<String>>;
}
