//! The embedded store of Semel: one SQLite file, no server, every law kept.
//!
//! ```
//! use semel_sqlite::SqliteStore;
//! # let folder = tempfile::tempdir()?;
//! # let path = folder.path().join("semel.db");
//!
//! let store = SqliteStore::open(&path)?;
//! # drop(store);
//! # Ok::<(), Box<dyn std::error::Error>>(())
//! ```
//!
//! # Durability
//!
//! A claim is granted and an answer acknowledged only after the commit that holds it is on disk
//! (`synchronous = FULL`). One thread writes. Each commit holds everything that was queued during
//! the commit before it (group commit), so 64 concurrent requests share one sync. A commit with an
//! unknown result is reported as such, and the store reopens and rereads the file before it does
//! anything else.
//!
//! # One file, several processes
//!
//! Any number of processes on one machine may open the same file; a lock between them is fair. The
//! file must be on a local disk: SQLite's write-ahead log shares memory between processes. A
//! network file system is refused (on Linux, where the kernel reports it; see [`FileSystem`]).
//!
//! # Time
//!
//! The store's clock is the machine's boot clock, anchored to the wall clock once per boot: a jump
//! of the wall clock neither lapses a lease nor restores an expired record. See [`BootClock`].
//!
//! # Backups
//!
//! [`backup`] copies a store while it is in use. A copy of the file made by other means lacks the
//! contents of the write-ahead log. After a restore, [`Options::after_restore`] raises the fence
//! floor and the epoch.
//!
//! # Together with your own data
//!
//! The records of this store are in a separate file. If an operation writes to your own SQLite
//! database, its record can be a row there, committed together with its writes: see
//! [`transactional`].
//!
//! # Looking inside
//!
//! The file is an ordinary SQLite database: `sqlite3 semel.db 'SELECT * FROM claims'`. Do not write
//! to it.

mod apply;
mod backup;
mod clock;
mod clock_guard;
mod command;
mod counters;
mod error;
mod fair_lock;
mod file_system;
mod in_flight_cache;
mod index;
mod index_loader;
mod open;
mod open_files;
mod prune;
mod queue;
mod reader;
mod reply_batching;
mod shared;
mod store;
mod sweep;
mod tables;
#[cfg(feature = "transactional")]
pub mod transactional;
mod wal;
mod writer;

pub use backup::{BackupProgress, BackupReport, SqliteRestoreReport, backup};
pub use clock::{BootClock, SystemClock};
pub use error::NoStore;
pub use file_system::FileSystem;
pub use shared::StoreInfo;
pub use store::{Options, SqliteStore};
