//! Single-flight: the executions of this process, and the requests that joined them.
//!
//! A flight is a record that a request of this process is claiming or running. Concurrent requests
//! with the same fingerprint join it and never reach the store. Every change of a flight happens
//! under the lock of its shard, so that no request joins one that is over.

use std::{
    hash::BuildHasher,
    sync::{
        Arc, Mutex, MutexGuard, PoisonError,
        atomic::{AtomicU64, Ordering},
    },
};

use hashbrown::{DefaultHashBuilder, HashTable};
use semel_core::{Fingerprint, RecordId};
use tokio::sync::oneshot;

use crate::retained_reply::RetainedReply;

const SHARDS: usize = 32;

#[derive(Debug)]
pub(crate) struct Flights {
    shards: [Mutex<HashTable<FlightEntry>>; SHARDS],
    hasher: DefaultHashBuilder,
    serial: AtomicU64,
}

#[derive(Debug)]
struct FlightEntry {
    hash: u64,
    serial: u64,
    id: RecordId,
    fingerprint: Fingerprint,
    /// Whether the store has granted the claim: until then the record may belong to another
    /// fingerprint.
    granted: bool,
    joiners: Vec<oneshot::Sender<FlightResult>>,
}

/// The result that joined requests get.
#[derive(Clone, Debug)]
pub(crate) enum FlightResult {
    /// The owner has this reply.
    Reply(RetainedReply),
    /// The owner does not run it either: another process does.
    Elsewhere,
}

/// The result of [`Flights::join_or_start`].
#[derive(Debug)]
pub(crate) enum JoinResult {
    /// No flight exists: this request owns a new one.
    Owner(Flight),
    /// A flight with this fingerprint exists.
    Joiner(Fingerprint, oneshot::Receiver<FlightResult>),
    /// A flight with another fingerprint exists and has no grant yet; only the store knows which of
    /// them owns the record.
    Conflict,
}

/// A flight, which ends when this is dropped.
#[derive(Debug)]
pub(crate) struct Flight {
    flights: Arc<Flights>,
    flight_id: FlightId,
    over: bool,
}

/// Identifies a flight to tasks other than its owner.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct FlightId {
    hash: u64,
    serial: u64,
}

impl Flights {
    pub(crate) fn new() -> Self {
        Self {
            shards: std::array::from_fn(|_| Mutex::default()),
            hasher: DefaultHashBuilder::default(),
            serial: AtomicU64::new(0),
        }
    }

    pub(crate) fn join_or_start(
        self: &Arc<Self>,
        id: &RecordId,
        fingerprint: Fingerprint,
    ) -> JoinResult {
        let hash = self.hasher.hash_one(id);
        let mut shard = self.shard(hash);
        if let Some(entry) = shard.find_mut(hash, |entry| entry.id == *id) {
            if entry.fingerprint != fingerprint && !entry.granted {
                return JoinResult::Conflict;
            }
            let (sender, receiver) = oneshot::channel();
            // A request with another fingerprint is refused at once and does not wait.
            if entry.fingerprint == fingerprint {
                // Disconnected joiners are removed, or a client that reconnects repeatedly fills
                // memory.
                if entry.joiners.len() == entry.joiners.capacity() {
                    entry.joiners.retain(|joiner| !joiner.is_closed());
                }
                entry.joiners.push(sender);
            }
            return JoinResult::Joiner(entry.fingerprint, receiver);
        }
        let serial = self.serial.fetch_add(1, Ordering::Relaxed);
        let id = id.clone();
        let entry =
            FlightEntry { hash, serial, id, fingerprint, granted: false, joiners: Vec::new() };
        shard.insert_unique(hash, entry, |entry| entry.hash);
        let flight_id = FlightId { hash, serial };
        JoinResult::Owner(Flight { flights: Arc::clone(self), flight_id, over: false })
    }

    /// Ends a flight, if it is not over yet.
    pub(crate) fn finish(&self, flight_id: FlightId, result: &FlightResult) {
        for joiner in self.remove(flight_id) {
            // A disconnected client has dropped its receiver.
            let _ = joiner.send(result.clone());
        }
    }

    fn remove(&self, flight_id: FlightId) -> Vec<oneshot::Sender<FlightResult>> {
        let mut shard = self.shard(flight_id.hash);
        let found = shard.find_entry(flight_id.hash, |entry| entry.serial == flight_id.serial);
        found.map(|found| found.remove().0.joiners).unwrap_or_default()
    }

    fn shard(&self, hash: u64) -> MutexGuard<'_, HashTable<FlightEntry>> {
        let [first, ..] = &self.shards;
        // The hash table uses the low bits for buckets and the high bits for tags.
        let shard = usize::try_from((hash >> 40) & 0xffff).unwrap_or(0) % SHARDS;
        let shard = self.shards.get(shard).unwrap_or(first);
        shard.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Flight {
    /// The store granted the claim.
    pub(crate) fn granted(&self) -> FlightId {
        let FlightId { hash, serial } = self.flight_id;
        let mut shard = self.flights.shard(hash);
        if let Some(entry) = shard.find_mut(hash, |entry| entry.serial == serial) {
            entry.granted = true;
        }
        self.flight_id
    }

    /// Ends the flight; the next request starts a new one.
    pub(crate) fn finish(mut self, result: &FlightResult) {
        self.over = true;
        self.flights.finish(self.flight_id, result);
    }
}

impl Drop for Flight {
    /// Drops the joiners without a result: the runtime is shutting down, or the driver panicked.
    fn drop(&mut self) {
        if !self.over {
            drop(self.flights.remove(self.flight_id));
        }
    }
}

#[cfg(test)]
mod tests {
    use semel_core::{Caller, Key, Problem, Reply, Scope};

    use super::*;

    fn id() -> RecordId {
        RecordId::new(Scope::new("s").unwrap(), Caller::anonymous(), Key::new("k").unwrap())
    }

    fn fingerprint(byte: u8) -> Fingerprint {
        Fingerprint::from_bytes(&[byte; 33]).unwrap()
    }

    fn own(flights: &Arc<Flights>) -> Flight {
        let JoinResult::Owner(flight) = flights.join_or_start(&id(), fingerprint(1)) else {
            panic!("another request owns it");
        };
        flight
    }

    #[test]
    fn the_first_request_owns_the_flight_and_the_others_get_its_result() {
        let flights = Arc::new(Flights::new());
        let flight = own(&flights);
        let JoinResult::Joiner(theirs, mut receiver) = flights.join_or_start(&id(), fingerprint(1))
        else {
            panic!("not joined");
        };
        assert_eq!(theirs, fingerprint(1));
        let reply = RetainedReply::from(Reply::Problem(Problem::InProgress));
        flight.finish(&FlightResult::Reply(reply.clone()));
        let Ok(FlightResult::Reply(received)) = receiver.try_recv() else { panic!("no reply") };
        assert_eq!(received, reply);
        drop(own(&flights));
    }

    #[test]
    fn another_fingerprint_is_compared_only_once_the_claim_is_granted() {
        let flights = Arc::new(Flights::new());
        let flight = own(&flights);
        assert!(matches!(flights.join_or_start(&id(), fingerprint(2)), JoinResult::Conflict));
        flight.granted();
        let JoinResult::Joiner(theirs, _) = flights.join_or_start(&id(), fingerprint(2)) else {
            panic!("not joined");
        };
        assert_eq!(theirs, fingerprint(1));
    }

    #[test]
    fn a_flight_that_ends_does_not_end_the_next_one() {
        let flights = Arc::new(Flights::new());
        let first = own(&flights);
        first.finish(&FlightResult::Elsewhere);
        let _second = own(&flights);
        assert!(matches!(flights.join_or_start(&id(), fingerprint(1)), JoinResult::Joiner(..)));
    }

    #[test]
    fn disconnected_joiners_are_removed() {
        let flights = Arc::new(Flights::new());
        let flight = own(&flights);
        for _ in 0..1000 {
            drop(flights.join_or_start(&id(), fingerprint(1)));
        }
        assert!(flights.remove(flight.flight_id).len() < 10);
    }
}
