//! The executions of this process, and who joined them.
//!
//! A flight is a record that somebody in this process is claiming or running. Requests of the same
//! meaning that come meanwhile join it and never reach the store. Everything about a flight happens
//! under the lock of its shard, so that nobody joins one that is over.

use std::{
    hash::BuildHasher,
    sync::{
        Arc, Mutex, MutexGuard, PoisonError,
        atomic::{AtomicU64, Ordering},
    },
};

use hashbrown::{DefaultHashBuilder, HashTable};
use semel_core::{Fingerprint, RecordId, Reply};
use tokio::sync::oneshot;

const SHARDS: usize = 32;

#[derive(Debug)]
pub(crate) struct Flights {
    shards: [Mutex<HashTable<Entry>>; SHARDS],
    hasher: DefaultHashBuilder,
    serial: AtomicU64,
}

#[derive(Debug)]
struct Entry {
    hash: u64,
    serial: u64,
    id: RecordId,
    fingerprint: Fingerprint,
    /// Whether the store has granted the claim: until then the record may belong to another
    /// fingerprint.
    granted: bool,
    joiners: Vec<oneshot::Sender<Landed>>,
}

/// What those who joined are told.
#[derive(Clone, Debug)]
pub(crate) enum Landed {
    /// The owner has this reply.
    Reply(Reply),
    /// The owner does not run it either: somebody elsewhere does.
    Elsewhere,
}

/// What a request finds.
#[derive(Debug)]
pub(crate) enum Boarding {
    /// Nobody here runs it: this request does.
    Owner(Flight),
    /// Somebody here runs it, and it means this.
    Joiner(Fingerprint, oneshot::Receiver<Landed>),
    /// Somebody here asks for the same key and means something else; only the store knows whose it
    /// is.
    Stranger,
}

/// A flight, over when this is dropped.
#[derive(Debug)]
pub(crate) struct Flight {
    flights: Arc<Flights>,
    ticket: Ticket,
    over: bool,
}

/// Names a flight to others than its owner.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Ticket {
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

    pub(crate) fn board(self: &Arc<Self>, id: &RecordId, fingerprint: Fingerprint) -> Boarding {
        let hash = self.hasher.hash_one(id);
        let mut shard = self.shard(hash);
        if let Some(entry) = shard.find_mut(hash, |entry| entry.id == *id) {
            if entry.fingerprint != fingerprint && !entry.granted {
                return Boarding::Stranger;
            }
            let (sender, receiver) = oneshot::channel();
            // Who means something else is told so at once, and waits for nothing.
            if entry.fingerprint == fingerprint {
                // Those who hung up are forgotten, or a client that keeps doing so fills memory.
                if entry.joiners.len() == entry.joiners.capacity() {
                    entry.joiners.retain(|joiner| !joiner.is_closed());
                }
                entry.joiners.push(sender);
            }
            return Boarding::Joiner(entry.fingerprint, receiver);
        }
        let serial = self.serial.fetch_add(1, Ordering::Relaxed);
        let id = id.clone();
        let entry = Entry { hash, serial, id, fingerprint, granted: false, joiners: Vec::new() };
        shard.insert_unique(hash, entry, |entry| entry.hash);
        let ticket = Ticket { hash, serial };
        Boarding::Owner(Flight { flights: Arc::clone(self), ticket, over: false })
    }

    /// Ends a flight, if it is not over yet.
    pub(crate) fn land(&self, ticket: Ticket, landed: &Landed) {
        for joiner in self.leave(ticket) {
            // Who hung up does not listen.
            let _ = joiner.send(landed.clone());
        }
    }

    fn leave(&self, ticket: Ticket) -> Vec<oneshot::Sender<Landed>> {
        let mut shard = self.shard(ticket.hash);
        let found = shard.find_entry(ticket.hash, |entry| entry.serial == ticket.serial);
        found.map(|found| found.remove().0.joiners).unwrap_or_default()
    }

    fn shard(&self, hash: u64) -> MutexGuard<'_, HashTable<Entry>> {
        let [first, ..] = &self.shards;
        // The table takes its buckets from the low bits and its tags from the high ones.
        let shard = usize::try_from((hash >> 40) & 0xffff).unwrap_or(0) % SHARDS;
        let shard = self.shards.get(shard).unwrap_or(first);
        shard.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Flight {
    /// The store granted the claim.
    pub(crate) fn granted(&self) -> Ticket {
        let Ticket { hash, serial } = self.ticket;
        let mut shard = self.flights.shard(hash);
        if let Some(entry) = shard.find_mut(hash, |entry| entry.serial == serial) {
            entry.granted = true;
        }
        self.ticket
    }

    /// Ends the flight; whoever comes now begins anew.
    pub(crate) fn land(mut self, landed: &Landed) {
        self.over = true;
        self.flights.land(self.ticket, landed);
    }
}

impl Drop for Flight {
    /// Without a word, for whoever is left: the runtime is going down, or the driver panicked.
    fn drop(&mut self) {
        if !self.over {
            drop(self.flights.leave(self.ticket));
        }
    }
}

#[cfg(test)]
mod tests {
    use semel_core::{Caller, Key, Problem, Scope};

    use super::*;

    fn id() -> RecordId {
        RecordId::new(Scope::new("s").unwrap(), Caller::anonymous(), Key::new("k").unwrap())
    }

    fn fingerprint(byte: u8) -> Fingerprint {
        Fingerprint::from_bytes(&[byte; 33]).unwrap()
    }

    fn own(flights: &Arc<Flights>) -> Flight {
        let Boarding::Owner(flight) = flights.board(&id(), fingerprint(1)) else {
            panic!("somebody else owns it");
        };
        flight
    }

    #[test]
    fn the_first_owns_it_and_the_others_hear_of_its_end() {
        let flights = Arc::new(Flights::new());
        let flight = own(&flights);
        let Boarding::Joiner(theirs, mut receiver) = flights.board(&id(), fingerprint(1)) else {
            panic!("not joined");
        };
        assert_eq!(theirs, fingerprint(1));
        flight.land(&Landed::Reply(Reply::Problem(Problem::InProgress)));
        assert!(matches!(receiver.try_recv(), Ok(Landed::Reply(Reply::Problem(_)))));
        drop(own(&flights));
    }

    #[test]
    fn another_meaning_is_only_judged_once_the_claim_is_granted() {
        let flights = Arc::new(Flights::new());
        let flight = own(&flights);
        assert!(matches!(flights.board(&id(), fingerprint(2)), Boarding::Stranger));
        flight.granted();
        let Boarding::Joiner(theirs, _) = flights.board(&id(), fingerprint(2)) else {
            panic!("not joined");
        };
        assert_eq!(theirs, fingerprint(1));
    }

    #[test]
    fn a_flight_that_ends_does_not_end_the_next_one() {
        let flights = Arc::new(Flights::new());
        let first = own(&flights);
        first.land(&Landed::Elsewhere);
        let _second = own(&flights);
        assert!(matches!(flights.board(&id(), fingerprint(1)), Boarding::Joiner(..)));
    }

    #[test]
    fn who_hung_up_is_forgotten() {
        let flights = Arc::new(Flights::new());
        let flight = own(&flights);
        for _ in 0..1000 {
            drop(flights.board(&id(), fingerprint(1)));
        }
        assert!(flights.leave(flight.ticket).len() < 10);
    }
}
