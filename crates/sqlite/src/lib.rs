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
//! (`synchronous = FULL`). One thread writes, and commits in one go whatever has queued up while
//! the last commit was on its way (group commit), so that 64 requests at once share a sync. A
//! commit whose result is unknown is told as such, and the file is opened and read anew before
//! anything else.
//!
//! # One file, several processes
//!
//! Any number of processes on one machine may open the same file; they take turns. The file must be
//! on a local disk: SQLite's write-ahead log shares memory between processes. A network file system
//! is refused (on Linux, where the kernel reports it; see [`FileSystem`]).
//!
//! # Time
//!
//! The store's clock is the machine's boot clock, tied to the wall clock once per boot: a wall
//! clock that jumps neither lapses a lease nor brings a record back. See [`Clock`].
//!
//! # Backups
//!
//! [`backup`] copies a store while it is in use. A copy of the file that was made by other means
//! lacks what is in the log beside it. After a restore, [`Options::after_restore`] raises what must
//! not fall.
//!
//! # Together with your own data
//!
//! The records of this store are in a file of its own. Where an operation writes to a database of
//! yours in SQLite, they can be rows of that, committed together with what it wrote: see [`joint`].
//!
//! # Looking inside
//!
//! The file is an ordinary SQLite database: `sqlite3 semel.db 'SELECT * FROM claims'`. Do not write
//! to it.

mod backup;
mod clock;
mod clock_guard;
mod decide;
mod desk;
mod error;
mod file_system;
mod index;
pub mod joint;
mod load;
mod log;
mod open;
mod open_files;
mod prune;
mod queue;
mod reader;
mod running;
mod shared;
mod store;
mod sweep;
mod tables;
mod turn;
mod writer;

pub use backup::{BackedUp, Progress, Restored, backup};
pub use clock::{Clock, SystemClock};
pub use error::NoStore;
pub use file_system::FileSystem;
pub use store::{Options, SqliteStore, StoreInfo};
