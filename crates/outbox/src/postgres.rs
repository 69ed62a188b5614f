//! The outbox in a PostgreSQL database.

mod operator;
mod relay_store;
mod ring;
mod schema;
mod send;

pub use operator::{backlog, drop_messages, list, retry};
pub use relay_store::PgOutbox;
pub use schema::{SCHEMA, create_tables};
pub use send::{SEND, send, send_all};

use crate::OutboxError;

/// An error of the driver, as one of the outbox.
fn database_error(error: tokio_postgres::Error) -> OutboxError {
    OutboxError::because("the database reports an error", error)
}
