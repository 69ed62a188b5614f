//! Quotas: how many records and bytes the store may hold, in total and per caller of a scope.
//!
//! The store's usage is measured every few seconds, so that admission needs no store call. The
//! records of a caller are counted in this process, as its operations end: other processes count
//! their own, and a restart begins at zero. A count is never too high for long, so that no caller
//! is refused because of others; it may be too low.
//! Anonymous requests share no caller: only their held records have a quota, by the address that
//! sent them.

use std::{
    collections::HashMap,
    net::IpAddr,
    sync::{
        Mutex,
        atomic::{AtomicBool, Ordering},
    },
};

use semel_core::{
    Caller, Claim, Problem, ProcessTime, RELEASED_RETENTION_MAX, RecordAction, Release, Scope,
    Usage,
};

use crate::per_caller::{CallerMap, PerCaller, ScopedCallerRef, lock};

/// How many callers a shard counts. When it is full, those with the fewest records are dropped.
const CALLERS_MAX: usize = 4096;

/// The number of steps in a retention: records are removed from the count up to one step too early.
const STEPS: u64 = 16;

/// The maximum number of steps of one caller, over all its retentions.
const STEPS_MAX: usize = 64;

/// Bytes that a record counts besides its answer.
const ANSWERLESS_BYTES: u64 = 256;

/// At most this part of a small file system is kept free.
const DISK_PART: u64 = 20;

/// Limits on the store's contents. The default has no limits.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Quotas {
    /// Records in the store. Above it, new keys are refused with `store-full`.
    pub records: u64,
    /// Bytes that the records take in the store. Above it, new keys are refused with `store-full`.
    pub store_bytes: u64,
    /// Bytes that stay free on the file system of the store, but no more than a twentieth of it.
    /// Below it, new keys are refused with `store-full`.
    pub disk_free_min: u64,
    /// Records of one caller in one scope that this process made and that have not expired. Above
    /// it, new keys of the caller are refused with `too-many-records`. Anonymous callers have no
    /// such quota.
    pub records_per_caller: u64,
    /// Bytes of these records: their answers, and 256 bytes for each. Above it, new keys of the
    /// caller are refused with `too-many-records`.
    pub bytes_per_caller: u64,
    /// Held records of one caller in one scope. Above it, new keys of the caller are refused with
    /// `too-many-records`. Counts what this process held, and what
    /// [`Semel::set_held`](crate::Semel::set_held) reports. Anonymous requests are counted by the
    /// address of their [`Sender`](crate::Sender), and only what this process held.
    pub held_per_caller: u64,
}

impl Default for Quotas {
    fn default() -> Self {
        Self {
            records: u64::MAX,
            store_bytes: u64::MAX,
            disk_free_min: 0,
            records_per_caller: u64::MAX,
            bytes_per_caller: u64::MAX,
            held_per_caller: u64::MAX,
        }
    }
}

impl Quotas {
    /// How many bytes must stay free on a file system of this size.
    #[must_use]
    pub fn disk_free_min(&self, total: u64) -> u64 {
        self.disk_free_min.min(total / DISK_PART)
    }

    fn is_full(&self, usage: &Usage) -> bool {
        usage.records.is_some_and(|records| records >= self.records)
            || usage.bytes.is_some_and(|bytes| bytes >= self.store_bytes)
            || usage.disk.is_some_and(|disk| disk.available < self.disk_free_min(disk.total))
    }

    const fn has_caller_limit(&self) -> bool {
        self.records_per_caller != u64::MAX
            || self.bytes_per_caller != u64::MAX
            || self.held_per_caller != u64::MAX
    }
}

/// How much of its quotas an engine uses, as last measured.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub struct QuotaUsage {
    /// The store's usage.
    pub store: Usage,
    /// Records of the caller that has the most.
    pub caller_records: u64,
    /// Bytes of the records of the caller that has the most.
    pub caller_bytes: u64,
    /// Held records of the caller, or anonymous address, that has the most.
    pub caller_held: u64,
}

/// The quotas of an engine, and their usage.
#[derive(Debug)]
pub(crate) struct QuotaTracker {
    limits: Quotas,
    usage: Mutex<QuotaUsage>,
    full: AtomicBool,
    callers: PerCaller<CallerCount>,
    /// Anonymous requests, by scope and address. Names of callers are not in this map.
    addresses: PerCaller<CallerCount>,
}

/// The counts of one caller.
#[derive(Debug, Default)]
struct CallerCount {
    held: u64,
    records: u64,
    bytes: u64,
    expiring: Vec<ExpiringRecords>,
}

/// Records that expire at the same time.
#[derive(Debug)]
struct ExpiringRecords {
    /// In seconds of the process's clock.
    at: u64,
    records: u64,
    bytes: u64,
}

impl QuotaTracker {
    pub(crate) fn new(limits: Quotas) -> Self {
        Self {
            limits,
            usage: Mutex::default(),
            full: AtomicBool::new(false),
            callers: PerCaller::new(),
            addresses: PerCaller::new(),
        }
    }

    pub(crate) const fn limits(&self) -> Quotas {
        self.limits
    }

    pub(crate) fn usage(&self) -> QuotaUsage {
        *lock(&self.usage)
    }

    /// The problem with which a new record of this caller is refused; `None` if it fits.
    pub(crate) fn refuses(
        &self,
        caller: ScopedCallerRef<'_>,
        peer: Option<IpAddr>,
        now: ProcessTime,
    ) -> Option<Problem> {
        let is_over = self.limits.has_caller_limit()
            && match (caller.caller.is_anonymous(), peer) {
                (false, _) => self.is_over(&self.callers, caller, now),
                (true, Some(peer)) => {
                    let address = ScopedCallerRef { caller: &address(peer), ..caller };
                    self.is_over(&self.addresses, address, now)
                }
                (true, None) => false,
            };
        if is_over {
            return Some(Problem::TooManyRecords);
        }
        self.full.load(Ordering::Relaxed).then_some(Problem::StoreFull)
    }

    fn is_over(
        &self,
        counts: &PerCaller<CallerCount>,
        caller: ScopedCallerRef<'_>,
        now: ProcessTime,
    ) -> bool {
        counts.shard(caller).get_mut(&caller).is_some_and(|count| {
            count.expire(seconds(now));
            count.records >= self.limits.records_per_caller
                || count.bytes >= self.limits.bytes_per_caller
                || count.held >= self.limits.held_per_caller
        })
    }

    /// Counts the record of an execution that ended. A record that an earlier attempt left is
    /// counted again only when it is kept for longer than that one said.
    pub(crate) fn count(
        &self,
        claim: &Claim,
        peer: Option<IpAddr>,
        action: &RecordAction,
        attempt: u32,
        now: ProcessTime,
    ) {
        if !self.limits.has_caller_limit() {
            return;
        }
        let (caller, is_held) =
            (ScopedCallerRef::of(&claim.id), matches!(action, RecordAction::Hold));
        if caller.caller.is_anonymous() {
            if let Some(peer) = peer.filter(|_| is_held) {
                let address = ScopedCallerRef { caller: &address(peer), ..caller };
                change(&self.addresses, address, now, |count| count.hold());
            }
            return;
        }
        let kept = match action {
            RecordAction::Release(_) | RecordAction::Forget if attempt > 1 => return,
            RecordAction::Complete(_)
            | RecordAction::Hold
            | RecordAction::Release(Release::Rerun) => claim.retention,
            RecordAction::Release(Release::Refused | Release::NotSent) | RecordAction::Forget => {
                claim.retention.min(RELEASED_RETENTION_MAX)
            }
        };
        let answer = match action {
            RecordAction::Complete(answer) => answer.as_bytes().len(),
            RecordAction::Release(_) | RecordAction::Hold | RecordAction::Forget => 0,
        };
        let bytes = u64::try_from(answer).unwrap_or(u64::MAX).saturating_add(ANSWERLESS_BYTES);
        change(&self.callers, caller, now, |count| {
            count.add(kept.as_secs(), bytes, seconds(now));
            if is_held {
                count.hold();
            }
        });
    }

    /// Replaces the number of held records of each caller. Of anonymous ones only the number in a
    /// scope is known: the counts of its addresses are reduced to that in proportion.
    pub(crate) fn set_held(&self, held: CallerMap<u64>) {
        for mut shard in self.callers.shards() {
            shard.values_mut().for_each(|count| count.held = 0);
        }
        let mut anonymous: HashMap<Scope, u64> = HashMap::new();
        for (caller, number) in held {
            if caller.caller.is_anonymous() {
                anonymous.insert(caller.scope, number);
            } else {
                self.callers.shard(caller.as_ref()).entry(caller).or_default().held = number;
            }
        }
        self.reduce_addresses(&anonymous);
    }

    fn reduce_addresses(&self, held: &HashMap<Scope, u64>) {
        let mut counted: HashMap<Scope, u64> = HashMap::new();
        for shard in self.addresses.shards() {
            for (address, count) in shard.iter() {
                let sum = counted.entry(address.scope.clone()).or_default();
                *sum = sum.saturating_add(count.held);
            }
        }
        for mut shard in self.addresses.shards() {
            for (address, count) in shard.iter_mut() {
                let held = held.get(&address.scope).copied().unwrap_or_default();
                let counted = counted.get(&address.scope).copied().unwrap_or_default();
                if held < counted {
                    let part = u128::from(count.held) * u128::from(held) / u128::from(counted);
                    count.held = u64::try_from(part).unwrap_or(u64::MAX);
                }
            }
        }
    }

    /// Stores the measured usage, and drops callers without records.
    pub(crate) fn set_usage(&self, store: Usage, now: ProcessTime) {
        let mut usage = QuotaUsage { store, ..QuotaUsage::default() };
        for mut counts in self.callers.shards().chain(self.addresses.shards()) {
            drop_expired(&mut counts, seconds(now));
            for count in counts.values() {
                usage.caller_records = usage.caller_records.max(count.records);
                usage.caller_bytes = usage.caller_bytes.max(count.bytes);
                usage.caller_held = usage.caller_held.max(count.held);
            }
        }
        self.full.store(self.limits.is_full(&store), Ordering::Relaxed);
        *lock(&self.usage) = usage;
    }
}

impl CallerCount {
    const fn hold(&mut self) {
        self.held = self.held.saturating_add(1);
    }

    fn add(&mut self, kept: u64, bytes: u64, now: u64) {
        let step = (kept / STEPS).max(1);
        // Rounded down: a record that counts for too long would refuse a caller within its quota.
        let at = now.saturating_add(kept) / step * step;
        if at <= now {
            return;
        }
        let is_full = self.expiring.len() >= STEPS_MAX;
        let known = self.expiring.iter_mut().rev();
        let mut known = known.filter(|expiring| expiring.at == at || (is_full && expiring.at < at));
        match known.next() {
            Some(expiring) => {
                expiring.records = expiring.records.saturating_add(1);
                expiring.bytes = expiring.bytes.saturating_add(bytes);
            }
            None if is_full => return,
            None => self.expiring.push(ExpiringRecords { at, records: 1, bytes }),
        }
        self.records = self.records.saturating_add(1);
        self.bytes = self.bytes.saturating_add(bytes);
    }

    fn expire(&mut self, now: u64) {
        let Self { records, bytes, .. } = self;
        self.expiring.retain(|expiring| {
            let counts = expiring.at > now;
            if !counts {
                *records = records.saturating_sub(expiring.records);
                *bytes = bytes.saturating_sub(expiring.bytes);
            }
            counts
        });
    }

    const fn total(&self) -> u64 {
        self.records.saturating_add(self.held)
    }
}

/// The name under which anonymous requests from this address are counted.
fn address(peer: IpAddr) -> Caller {
    Caller::new(&peer.to_string()).unwrap_or_else(|_| Caller::anonymous())
}

/// Changes the count of a caller, after making room for it.
fn change(
    callers: &PerCaller<CallerCount>,
    caller: ScopedCallerRef<'_>,
    now: ProcessTime,
    act: impl FnOnce(&mut CallerCount),
) {
    let mut counts = callers.shard(caller);
    if counts.len() >= CALLERS_MAX && !counts.contains_key(&caller) {
        evict_lightest(&mut counts, seconds(now));
    }
    act(counts.entry((&caller).into()).or_default());
}

fn drop_expired(counts: &mut CallerMap<CallerCount>, now: u64) {
    counts.retain(|_, count| {
        count.expire(now);
        count.total() > 0
    });
}

/// Drops at least half of the callers, those with the fewest records: they are far from any quota.
fn evict_lightest(counts: &mut CallerMap<CallerCount>, now: u64) {
    drop_expired(counts, now);
    let mut totals: Vec<u64> = counts.values().map(CallerCount::total).collect();
    let middle = totals.len() / 2;
    if totals.len() < CALLERS_MAX / 2 {
        return;
    }
    let (_, median, _) = totals.select_nth_unstable(middle);
    let median = *median;
    counts.retain(|_, count| count.total() > median);
}

const fn seconds(now: ProcessTime) -> u64 {
    now.as_millis() / 1000
}

#[cfg(test)]
mod tests;
