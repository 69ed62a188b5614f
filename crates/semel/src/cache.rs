//! A cache of completed records (law 12).
//!
//! It contains records that were replayed, since a repeated request tends to be repeated again, and
//! records that this process completed, so that their repeats are answered while the store is
//! unavailable. Among many entries that are never repeated, the table evicts those first that were
//! never read.
//!
//! A completed record changes only by an operator's action, and each of those increments the
//! store's epoch. So an entry is valid only under the epoch that was known *before* its record was
//! read or written, and only if the store replied within the last second; while the store is
//! unavailable, for five minutes.

use std::{
    sync::atomic::{AtomicU64, Ordering},
    time::Duration,
};

use hashbrown::DefaultHashBuilder;
use quick_cache::{
    Weighter,
    sync::{Cache as Table, DefaultLifecycle},
};
use semel_core::{Answer, Epoch, Fingerprint, Problem, ProcessTime, RecordId, Reply};

use crate::{observer::ReplaySource, retained_reply::RetainedReply};

/// How long the store's epoch is trusted, counted from before it was requested.
pub(crate) const EPOCH_TTL: Duration = Duration::from_secs(1);

/// How long records are replayed without the store, counted from its last reply.
const AWAY_TTL: Duration = Duration::from_secs(5 * 60);

/// The size of an entry beside its bytes: the table's slot, three shared strings, the answer's
/// handle.
const ENTRY_OVERHEAD_BYTES: usize = 300;

/// The size of a small entry, to size the table.
const ENTRY_BYTES_TYPICAL: u64 = 1024;

#[derive(Debug)]
pub(crate) struct Cache {
    table: Table<RecordId, CacheEntry, EntryWeight, DefaultHashBuilder>,
    known: KnownEpoch,
}

#[derive(Clone, Debug)]
struct CacheEntry {
    fingerprint: Fingerprint,
    answer: Answer,
    expires: ProcessTime,
    epoch: Epoch,
}

/// The last known epoch. The single polling task writes the epoch first, and readers read it last,
/// so that an epoch is never older than its time.
#[derive(Debug, Default)]
struct KnownEpoch {
    epoch: AtomicU64,
    /// The millisecond after its request was sent; zero if none was ever received.
    asked: AtomicU64,
}

impl KnownEpoch {
    fn read(&self) -> Option<(Epoch, ProcessTime)> {
        let asked = self.asked.load(Ordering::Acquire).checked_sub(1)?;
        let epoch = Epoch(self.epoch.load(Ordering::Acquire));
        Some((epoch, ProcessTime::from_millis(asked)))
    }

    fn write(&self, epoch: Epoch, asked: ProcessTime) {
        self.epoch.store(epoch.0, Ordering::Release);
        self.asked.store(asked.as_millis().saturating_add(1), Ordering::Release);
    }
}

#[derive(Clone, Debug)]
struct EntryWeight;

impl Weighter<RecordId, CacheEntry> for EntryWeight {
    fn weight(&self, id: &RecordId, entry: &CacheEntry) -> u64 {
        let id = id.scope.as_str().len() + id.caller.as_str().len() + id.key.as_str().len();
        u64::try_from(id + entry.answer.as_bytes().len() + ENTRY_OVERHEAD_BYTES).unwrap_or(u64::MAX)
    }
}

impl Cache {
    pub(crate) fn new(bytes_max: u64) -> Self {
        let items = usize::try_from(bytes_max / ENTRY_BYTES_TYPICAL).unwrap_or(usize::MAX);
        let (hasher, lifecycle) = (DefaultHashBuilder::default(), DefaultLifecycle::default());
        let table = Table::with(items, bytes_max, EntryWeight, hasher, lifecycle);
        Self { table, known: KnownEpoch::default() }
    }

    /// The epoch to take before a record is read or written, so that it can be cached.
    pub(crate) fn epoch(&self) -> Option<Epoch> {
        self.known.read().map(|(epoch, _)| epoch)
    }

    /// The store replied `epoch` to a request sent at `asked`.
    pub(crate) fn set_epoch(&self, epoch: Epoch, asked: ProcessTime) {
        if self.epoch().is_some_and(|known| known != epoch) {
            self.table.clear();
        }
        self.known.write(epoch, asked);
    }

    /// The reply to a request whose record is cached as completed.
    pub(crate) fn get(
        &self,
        id: &RecordId,
        fingerprint: Fingerprint,
        from: ReplaySource,
        now: ProcessTime,
    ) -> Option<RetainedReply> {
        let (epoch, asked) = self.known.read()?;
        let ttl = if from == ReplaySource::CacheWhileAway { AWAY_TTL } else { EPOCH_TTL };
        if now >= asked.after(ttl) {
            return None;
        }
        let entry = self.table.get(id)?;
        if entry.epoch != epoch || entry.expires <= now {
            self.table.remove(id);
            return None;
        }
        if entry.fingerprint != fingerprint {
            return Some(Reply::Problem(Problem::KeyReused).into());
        }
        let left = entry.expires.since(now);
        Some(RetainedReply::new(Reply::Replayed(entry.answer), Some(left)))
    }

    pub(crate) fn put(
        &self,
        id: &RecordId,
        fingerprint: Fingerprint,
        answer: Answer,
        expires: ProcessTime,
        epoch: Epoch,
    ) {
        let entry = CacheEntry { fingerprint, answer, expires, epoch };
        self.table.insert(id.clone(), entry);
    }
}

#[cfg(test)]
mod tests {
    use semel_core::{Caller, Key, Scope};

    use super::*;

    const LATER: Duration = Duration::from_secs(3600);

    fn id(key: &str) -> RecordId {
        RecordId::new(Scope::new("s").unwrap(), Caller::anonymous(), Key::new(key).unwrap())
    }

    fn fingerprint(byte: u8) -> Fingerprint {
        Fingerprint::from_bytes(&[byte; 33]).unwrap()
    }

    fn at(millis: u64) -> ProcessTime {
        ProcessTime::from_millis(millis)
    }

    fn filled() -> Cache {
        let cache = Cache::new(1 << 20);
        cache.set_epoch(Epoch(3), at(0));
        cache.put(&id("k"), fingerprint(1), Answer::failed(), at(0).after(LATER), Epoch(3));
        cache
    }

    fn found(cache: &Cache, byte: u8, now: u64) -> Option<Reply> {
        let found = cache.get(&id("k"), fingerprint(byte), ReplaySource::Cache, at(now));
        found.map(|found| found.reply)
    }

    fn hits(cache: &Cache, now: u64) -> bool {
        found(cache, 1, now).is_some()
    }

    fn hits_while_away(cache: &Cache, now: u64) -> bool {
        cache.get(&id("k"), fingerprint(1), ReplaySource::CacheWhileAway, at(now)).is_some()
    }

    #[test]
    fn a_record_is_found_by_its_id_and_compared_by_its_fingerprint() {
        let cache = filled();
        assert_eq!(found(&cache, 1, 10), Some(Reply::Replayed(Answer::failed())));
        assert_eq!(found(&cache, 2, 10), Some(Reply::Problem(Problem::KeyReused)));
        let other = cache.get(&id("other"), fingerprint(1), ReplaySource::Cache, at(10));
        assert_eq!(other, None);
    }

    #[test]
    fn a_cached_answer_is_not_trusted_a_second_after_the_last_epoch() {
        let cache = filled();
        assert!(hits(&cache, 999));
        assert!(!hits(&cache, 1000));
        cache.set_epoch(Epoch(3), at(2000));
        assert!(hits(&cache, 2500), "it was not forgotten, only not trusted");
    }

    #[test]
    fn while_the_store_is_away_a_record_counts_for_five_minutes_and_never_past_its_retention() {
        let cache = filled();
        assert!(hits_while_away(&cache, 299_999));
        assert!(!hits_while_away(&cache, 300_000));
        cache.put(&id("k"), fingerprint(1), Answer::failed(), at(60_000), Epoch(3));
        assert!(hits_while_away(&cache, 59_999));
        assert!(!hits_while_away(&cache, 60_000));
    }

    #[test]
    fn an_operators_act_empties_it() {
        let cache = filled();
        cache.set_epoch(Epoch(4), at(100));
        assert!(!hits(&cache, 200) && !hits_while_away(&cache, 200));
    }

    #[test]
    fn a_record_read_before_an_operators_action_is_not_cached() {
        let cache = filled();
        let before = cache.epoch().unwrap();
        cache.set_epoch(Epoch(4), at(100));
        cache.put(&id("k"), fingerprint(1), Answer::failed(), at(0).after(LATER), before);
        assert!(!hits(&cache, 200));
        cache.put(&id("k"), fingerprint(1), Answer::failed(), at(0).after(LATER), before);
        assert!(!hits_while_away(&cache, 200));
    }

    #[test]
    fn a_record_past_its_retention_is_gone() {
        let cache = Cache::new(1 << 20);
        cache.set_epoch(Epoch(0), at(0));
        cache.put(&id("k"), fingerprint(1), Answer::failed(), at(500), Epoch(0));
        let found = cache.get(&id("k"), fingerprint(1), ReplaySource::Cache, at(499)).unwrap();
        assert_eq!(found.expires_in, Some(Duration::from_millis(1)));
        assert!(!hits(&cache, 500));
    }

    #[test]
    fn the_cache_stays_within_its_byte_limit() {
        let cache = Cache::new(1 << 20);
        cache.set_epoch(Epoch(0), at(0));
        for number in 0..10_000 {
            let id = id(&number.to_string());
            cache.put(&id, fingerprint(1), Answer::failed(), at(0).after(LATER), Epoch(0));
        }
        assert!(cache.table.weight() <= 1 << 20);
        assert!(cache.table.len() > 1000);
    }
}
