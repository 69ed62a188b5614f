//! Redis in front of a store: it answers repeats, and decides nothing.
//!
//! [`Front`] is a [`Store`](semel_core::Store) around another one. Every claim that is granted is
//! granted by that store. Redis only knows what the store has already said, and says it again to
//! gateways that did not hear it: this record is completed, here is its answer; this one belongs to
//! another request; this one is running elsewhere, wait. It also carries word between gateways when
//! something ends that one of them waits for, for stores that cannot.
//!
//! ```no_run
//! # async fn example(store: std::sync::Arc<dyn semel_core::Store>)
//! # -> Result<(), Box<dyn std::error::Error>> {
//! use semel_redis::{Front, Options};
//!
//! let options = Options::parse("redis://semel:secret@cache/0?prefix=semel")?;
//! let store = Front::connect(store, options).await?;
//! # Ok(()) }
//! ```
//!
//! # Where it helps
//!
//! Where several gateways share a database and keys are repeated on other gateways than the one
//! that ran them. It does not make the first run of a key any faster, and a gateway keeps what it
//! replayed in its own memory anyway. Where nothing repeats, it is not asked: looks are paid for by
//! repeats.
//!
//! # What it can do wrong
//!
//! Cost a read of the store, and nothing else. Redis may be gone, slow, flushed, replaced by an
//! empty one, restored from an old snapshot, or hold what others wrote there:
//!
//! * An entry is believed only if its checksum fits the store and the record that was asked for,
//!   if its record cannot have expired, and if it was written under the epoch that the store has
//!   now; the store must have been heard of within the last second. A completed record changes
//!   only by an operator's act, which raises the epoch. So what an operator does is followed within
//!   a second, through whichever gateway it was done.
//! * That something runs elsewhere is a hint that lives for a second. Whoever gets it waits, and
//!   the store is what is looked at while waiting.
//! * Nobody waits for Redis longer than 50 ms, and nobody asks it while an answer takes longer than
//!   that. An error, an answer that does not come within a second, or answers that are mostly
//!   slower than 5 ms take it out; it is tried again after a rest that grows from a tenth of a
//!   second to five seconds. While it is out nothing is kept for it.
//!
//! A store that was restored from a backup has forgotten what Redis may still know. Flush Redis
//! then, or change the prefix.
//!
//! It needs Redis 6 or newer, or Valkey, as one server (or whatever looks like one). The user needs
//! `+mget +set +del +publish +subscribe +ping ~PREFIX:* &PREFIX:*`. Let it evict:
//! `maxmemory-policy allkeys-lru` and no persistence suit it best.

mod appetite;
mod breaker;
mod clock;
mod core;
mod doctor;
mod entry;
mod front;
mod grants;
mod known;
mod line;
mod options;
mod post;
mod wakes;

pub use crate::core::Counts;
pub use front::Front;
pub use options::{Options, UrlError};
