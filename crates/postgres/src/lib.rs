//! The PostgreSQL store of Semel: many gateways share one database.
//!
//! ```no_run
//! use semel_postgres::PostgresStore;
//!
//! # async fn open() -> Result<(), Box<dyn std::error::Error>> {
//! let store = PostgresStore::connect("postgres://semel@db/semel?schema=money").await?;
//! # Ok(())
//! # }
//! ```
//!
//! # Durability
//!
//! A claim is granted and an answer acknowledged only after its commit: on the disk of the server,
//! and on its synchronous standbys if there are any. A commit with an unknown result is an error
//! whose effect is unknown. A retry with the same owner token, or with the same fence and bytes,
//! resolves it.
//!
//! # Few connections, many requests
//!
//! Claims that queue up during a commit are sent as one statement with the next, and so are
//! answers. The store adds no delay to collect more. A single new key, or its answer, is one
//! statement in one round trip; a single repeat takes a second round trip to read the record. So a
//! few connections serve a gateway with any number of concurrent requests.
//!
//! # Many processes
//!
//! Any number of processes share one database. The database makes every decision, by its clock. A
//! request that waits for another process is woken by `NOTIFY`, which is sent for watched records
//! only.
//!
//! # Through a pooler
//!
//! The store detects a pooler in transaction mode, and then keeps no state in the session:
//! statements are unnamed, and waiting requests poll.

mod background;
mod backup;
mod batch;
mod batch_writer;
mod caller_secret;
mod command;
mod command_queue;
mod digest;
mod direct;
pub mod doctor;
mod error;
mod hosts;
mod listener;
mod listing;
mod meta;
mod migrate;
mod options;
mod presence;
mod restore;
mod row;
mod session;
mod shared;
mod single;
mod statements;
mod store;
mod store_thread;
mod table_names;
mod timeline;
#[cfg(feature = "tls")]
mod tls;
#[cfg(feature = "transactional")]
pub mod transactional;

pub use backup::{Backup, BackupCommand, backup, backup_command};
pub use error::PostgresUrlError;
pub use migrate::MigrationReport;
pub use options::Options;
pub use presence::{Presence, PresentStore};
pub use restore::{PgRestoreReport, after_restore};
pub use store::PostgresStore;
