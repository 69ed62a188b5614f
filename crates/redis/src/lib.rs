//! A Redis cache in front of a store: it answers repeats, and decides nothing.
//!
//! [`RedisCache`] is a [`Store`](semel_core::Store) around another one. Only that store grants
//! claims. Redis caches what the store has already answered, for other gateways: this record is
//! completed, with this answer; this key belongs to another request; this operation runs elsewhere,
//! wait. For stores without notifications, Redis also notifies a waiting gateway when the operation
//! ends.
//!
//! ```no_run
//! # async fn example(store: std::sync::Arc<dyn semel_core::Store>)
//! # -> Result<(), Box<dyn std::error::Error>> {
//! use semel_redis::{RedisCache, Options};
//!
//! let options = Options::parse("redis://semel:secret@cache/0?prefix=semel")?;
//! let store = RedisCache::connect(store, options).await?;
//! # Ok(()) }
//! ```
//!
//! # Where it helps
//!
//! Where several gateways share a database and keys are repeated on other gateways than the one
//! that ran them. It does not make the first run of a key faster, and a gateway keeps replayed
//! answers in its own memory anyway. Without repeats it is not queried once the lookup budget is
//! used up: each repeat earns lookups.
//!
//! # Failure modes
//!
//! A faulty Redis costs a request at most one extra read of the store and 50 ms. Redis may be
//! unreachable, slow, flushed, replaced by an empty one, restored from an old snapshot, or contain
//! foreign data:
//!
//! * An entry is used only if its checksum matches the store and the record, if its record cannot
//!   have expired, and if it was written under the store's current epoch, which must have been read
//!   within the last second. A completed record changes only by an operator's act, which raises the
//!   epoch. So every gateway follows an operator's act within a second.
//! * The hint that an operation runs elsewhere expires after a second. A request that gets the
//!   hint waits, and polls the store while it waits.
//! * No request waits for Redis longer than 50 ms, and none queries it while a reply takes longer
//!   than that. An error, no reply within a second, or replies that are mostly slower than 5 ms
//!   take it out of use; it is retried with a backoff from a tenth of a second to five seconds.
//!   Nothing is queued for it meanwhile.
//!
//! After a restore of the store from a backup, Redis may have newer records than the store. Flush
//! Redis then, or change the prefix.
//!
//! The cache needs Redis 6 or newer, or Valkey, as one server (or a proxy that acts as one). The
//! user needs `+mget +set +del +publish +subscribe +ping ~PREFIX:* &PREFIX:*`. Configure Redis to
//! evict: `maxmemory-policy allkeys-lru` and no persistence suit it best.

mod breaker;
mod cache;
mod clock;
mod connection;
mod doctor;
mod entry;
mod epoch;
mod grants;
mod lookup;
mod lookup_budget;
mod notifications;
mod options;
mod request_queue;

pub use cache::RedisCache;
pub use lookup::CacheCounts;
pub use options::{Options, RedisUrlError};
