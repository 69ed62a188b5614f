//! The tables and the function of the outbox.

use tokio_postgres::Client;

use super::database_error;
use crate::OutboxError;

/// The script that creates the tables and the function `semel_send`, for a migration of your own.
/// It may be run again. `semel migrate --outbox` runs it.
pub const SCHEMA: &str = include_str!("../sql/postgres/schema.sql");

/// The advisory lock under which the tables are created, in case two programs start at once.
const CREATE_TABLES_LOCK: i64 = 0x5e3e_1000_0b0c_0001;

/// Creates the [tables](SCHEMA) in the first schema of the connection's `search_path`.
///
/// # Errors
///
/// If the role may not create them.
pub async fn create_tables(client: &Client) -> Result<(), OutboxError> {
    // Several statements in one message are one transaction.
    let sql = format!("SELECT pg_advisory_xact_lock({CREATE_TABLES_LOCK}); {SCHEMA}");
    client.batch_execute(&sql).await.map_err(database_error)
}
