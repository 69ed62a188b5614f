//! The unique index, in memory: from a record's hash to the ids of claims that may belong to it.
//!
//! A unique index on disk costs one random page per claim; this one costs thirteen bytes per slot
//! and is rebuilt when a file is opened. An entry is only a candidate: the writer compares the
//! whole row before it decides anything, and ignores an id without a row.
//!
//! It has 256 shards, so that growing one moves only a 256th of the entries. The writer changes the
//! index; readers only look up.

use std::{
    hash::{BuildHasher as _, RandomState},
    sync::{
        Mutex, MutexGuard, PoisonError,
        atomic::{AtomicI64, Ordering},
    },
};

use hashbrown::{HashTable, hash_table};
use semel_core::RecordId;

const SHARDS: usize = 256;

/// The bits of a hash that come from scope, caller and key together. The other bits of an entry,
/// twelve and those of its shard, distinguish keys well enough for a listing; these bits
/// distinguish a million callers of one key, for every claim.
const RECORD_BITS: u64 = 0xF_FFFF;

/// The lower half of the hash and the id, packed in twelve bytes.
type IndexEntry = [u32; 3];

#[derive(Debug)]
pub(crate) struct ClaimIndex {
    shards: Vec<Mutex<HashTable<IndexEntry>>>,
    /// Random for each process: a client cannot choose keys that collide.
    seed: RandomState,
    last: AtomicI64,
}

impl ClaimIndex {
    pub(crate) fn new() -> Self {
        let shards = (0..SHARDS).map(|_| Mutex::default()).collect();
        Self { shards, seed: RandomState::new(), last: AtomicI64::new(0) }
    }

    /// The hash of a record. The first half and the upper part of the second come from the key
    /// alone, so that all records of a key are in one shard; the rest comes from scope, caller and
    /// key, so that one key of many callers does not collide.
    pub(crate) fn hash(&self, scope: &str, caller: &str, key: &str) -> u64 {
        let record = self.seed.hash_one((scope, caller, key));
        self.key_hash(key) | (record & RECORD_BITS)
    }

    fn key_hash(&self, key: &str) -> u64 {
        self.seed.hash_one(key) & !RECORD_BITS
    }

    /// At most `limit` ids above `after` that may belong to records of this key, rising.
    pub(crate) fn with_key(&self, key: &str, after: i64, limit: usize) -> Vec<i64> {
        let hash = self.key_hash(key);
        let same = |entry: &&IndexEntry| u64::from(entry[0]) & !RECORD_BITS == u64::from(low(hash));
        let shard = self.shard(hash);
        let mut found: Vec<i64> =
            shard.iter().filter(same).map(id_of).filter(|id| *id > after).collect();
        drop(shard);
        found.sort_unstable();
        found.truncate(limit);
        found
    }

    /// The hash of the record `id`.
    pub(crate) fn hash_of(&self, id: &RecordId) -> u64 {
        self.hash(id.scope.as_str(), id.caller.as_str(), id.key.as_str())
    }

    /// The greatest id in the file so far; the next claim gets a greater one.
    pub(crate) fn last(&self) -> i64 {
        self.last.load(Ordering::Acquire)
    }

    pub(crate) fn set_last(&self, id: i64) {
        self.last.store(id, Ordering::Release);
    }

    /// The ids that may belong to `hash`, the newest first.
    pub(crate) fn candidates(&self, hash: u64) -> Candidates {
        let mut found = Candidates::default();
        let shard = self.shard(hash);
        for entry in shard.iter_hash(spread(low(hash))) {
            if entry[0] == low(hash) {
                found.push(id_of(entry));
            }
        }
        drop(shard);
        found.sort();
        found
    }

    /// Adds an entry unless it exists: a rolled-back or reread claim may be added twice.
    pub(crate) fn insert(&self, hash: u64, id: i64) {
        let entry = entry(hash, id);
        let mut shard = self.shard(hash);
        let same = |other: &IndexEntry| *other == entry;
        if let hash_table::Entry::Vacant(place) =
            shard.entry(spread(entry[0]), same, |e| spread(e[0]))
        {
            place.insert(entry);
        }
    }

    /// Adds an entry that does not exist yet.
    pub(crate) fn insert_new(&self, hash: u64, id: i64) {
        let entry = entry(hash, id);
        self.shard(hash).insert_unique(spread(entry[0]), entry, |other| spread(other[0]));
    }

    /// Removes the entry from `hash` to this id, if it exists.
    pub(crate) fn remove(&self, hash: u64, id: i64) {
        let entry = entry(hash, id);
        if let Ok(found) = self.shard(hash).find_entry(spread(entry[0]), |other| *other == entry) {
            found.remove();
        }
    }

    /// Drops the entries of one shard whose rows do not exist; `false` when there is no such shard.
    pub(crate) fn prune<E>(
        &self,
        shard: usize,
        mut exists: impl FnMut(i64) -> Result<bool, E>,
    ) -> Result<bool, E> {
        let Some(shard) = self.shards.get(shard) else { return Ok(false) };
        let mut failed = None;
        lock(shard).retain(|entry| {
            exists(id_of(entry)).unwrap_or_else(|error| {
                failed = Some(error);
                true
            })
        });
        failed.map_or(Ok(true), Err)
    }

    pub(crate) fn len(&self) -> usize {
        self.shards.iter().map(|shard| lock(shard).len()).sum()
    }

    fn shard(&self, hash: u64) -> MutexGuard<'_, HashTable<IndexEntry>> {
        let [top, ..] = hash.to_be_bytes();
        lock(&self.shards[usize::from(top)])
    }
}

/// The ids of one hash: nearly always none or one.
#[derive(Debug, Default)]
pub(crate) struct Candidates {
    first: Option<i64>,
    others: Vec<i64>,
}

impl Candidates {
    fn push(&mut self, id: i64) {
        match self.first {
            None => self.first = Some(id),
            Some(_) => self.others.push(id),
        }
    }

    fn sort(&mut self) {
        if self.others.is_empty() {
            return;
        }
        self.others.extend(self.first);
        self.others.sort_unstable();
        self.first = self.others.pop();
        self.others.reverse();
    }

    pub(crate) fn iter(&self) -> impl Iterator<Item = i64> + '_ {
        self.first.into_iter().chain(self.others.iter().copied())
    }
}

fn lock(shard: &Mutex<HashTable<IndexEntry>>) -> MutexGuard<'_, HashTable<IndexEntry>> {
    shard.lock().unwrap_or_else(PoisonError::into_inner)
}

fn low(hash: u64) -> u32 {
    let [_, _, _, _, a, b, c, d] = hash.to_be_bytes();
    u32::from_be_bytes([a, b, c, d])
}

fn entry(hash: u64, id: i64) -> IndexEntry {
    let [a, b, c, d, e, f, g, h] = id.to_be_bytes();
    [low(hash), u32::from_be_bytes([a, b, c, d]), u32::from_be_bytes([e, f, g, h])]
}

fn id_of(entry: &IndexEntry) -> i64 {
    (i64::from(entry[1]) << 32) | i64::from(entry[2])
}

/// Spreads 32 random bits over the 64 that the table reads its position and its tag from.
fn spread(low: u32) -> u64 {
    u64::from(low).wrapping_mul(0x9e37_79b9_7f4a_7c15)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn ids(index: &ClaimIndex, hash: u64) -> Vec<i64> {
        index.candidates(hash).iter().collect()
    }

    #[test]
    fn one_hash_may_lead_to_several_ids_the_newest_first() {
        let index = ClaimIndex::new();
        for id in [5, 1 << 40, 9] {
            index.insert(u64::MAX - 7, id);
        }
        index.insert(7, 6);
        assert_eq!(ids(&index, u64::MAX - 7), [1 << 40, 9, 5]);
        assert_eq!(ids(&index, 8), [0_i64; 0]);
    }

    #[test]
    fn an_entry_is_removed_only_if_it_still_points_at_the_id() {
        let index = ClaimIndex::new();
        index.insert(3, 1);
        index.insert(3, 2);
        index.remove(3, 7);
        index.remove(3, 1);
        assert_eq!(ids(&index, 3), [2]);
        assert_eq!(index.len(), 1);
    }

    #[test]
    fn an_entry_is_there_once_however_often_it_is_added() {
        let index = ClaimIndex::new();
        index.insert(3, 1);
        index.insert(3, 1);
        index.remove(3, 1);
        assert_eq!(index.len(), 0);
    }

    #[test]
    fn pruning_drops_what_leads_nowhere() {
        let index = ClaimIndex::new();
        for id in 0..1000_u32 {
            index.insert(u64::from(id).wrapping_mul(0x9e37_79b9_7f4a_7c15), i64::from(id));
        }
        for shard in 0..=SHARDS {
            let more = index.prune(shard, |id| Ok::<_, ()>(id % 4 == 0)).unwrap();
            assert_eq!(more, shard < SHARDS);
        }
        assert_eq!(index.len(), 250);
    }

    #[test]
    fn the_records_of_a_key_are_found_without_their_callers() {
        let index = ClaimIndex::new();
        for id in 0..1000 {
            let caller = format!("caller-{}", id % 10);
            let key = format!("key-{}", id / 10);
            index.insert(index.hash("s", &caller, &key), id);
        }
        let found = index.with_key("key-42", 0, 1000);
        assert!((420..430).all(|id| found.contains(&id)), "{found:?}");
        assert!(found.len() < 20, "few others: {found:?}");
        assert_eq!(index.with_key("key-42", 424, 2), [425, 426]);
    }

    /// Order numbers that begin at 1 for each of many merchants.
    #[test]
    fn one_key_of_many_callers_leads_to_few_records() {
        const CALLERS: i64 = 200_000;
        let index = ClaimIndex::new();
        let hash = |caller: i64| index.hash("orders", &format!("merchant-{caller}"), "1");
        for caller in 0..CALLERS {
            index.insert(hash(caller), caller);
        }
        let sample = (0..CALLERS).step_by(100);
        let found: usize = sample.clone().map(|caller| ids(&index, hash(caller)).len()).sum();
        assert!(found < sample.count() * 3 / 2, "{found}");
    }

    #[test]
    fn an_entry_takes_twelve_bytes() {
        assert_eq!(size_of::<IndexEntry>(), 12);
    }
}
