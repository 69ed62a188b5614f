//! The PostgreSQL store of Semel: many gateways, one database, every law kept.
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
//! A claim is granted and an answer acknowledged only after the commit that holds it: on this
//! server's disk, and on its synchronous standbys where it has any. A commit whose result is
//! unknown is told as such; asking again with the same owner token, or the same fence and bytes,
//! resolves it.
//!
//! # Few connections, many requests
//!
//! Claims that queue up while a commit is on its way go as one statement with the next, and so do
//! answers. There is no delay to collect more, and a new key or its answer, alone, goes as one
//! statement in one round trip; a repeat that comes alone takes a second one to read what is there.
//! So a handful of connections serve a gateway, however many requests it has under way.
//!
//! # Many processes
//!
//! Any number of processes share one database. Every decision is taken in it, by its clock. Who
//! waits for a request that runs in another process is told by `NOTIFY`, where somebody waits at
//! all.
//!
//! # Through a pooler
//!
//! A pooler in transaction mode is recognised, and nothing is then kept in the session: statements
//! have no names, and who waits looks again and again.

mod backup;
mod batch;
mod digest;
pub mod doctor;
mod doors;
mod error;
mod hosts;
mod house;
pub mod joint;
mod lane;
mod list;
mod listen;
mod migrate;
mod names;
mod office;
mod options;
mod presence;
mod question;
mod queue;
mod restore;
mod row;
mod secret;
mod session;
mod single;
mod statements;
mod store;
mod timeline;
mod tls;

pub use backup::{Backup, BackupCommand, backup, backup_command};
pub use error::UrlError;
pub use migrate::Migrated;
pub use options::Options;
pub use presence::{Presence, PresentStore};
pub use restore::{Restored, after_restore};
pub use store::PostgresStore;
