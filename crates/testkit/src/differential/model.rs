//! The model: the rules on a map, and nothing else.

use std::collections::BTreeMap;
use std::time::Duration;

use semel_core::{
    Claim, Claimant, Claimed, Fence, Fenced, Finish, Record, RecordId, Resolution, Resolved,
    Snapshot, StoreTime,
    rules::{self, Change},
};

/// What a store must do, one operation at a time.
#[derive(Debug)]
pub(super) struct Model {
    records: BTreeMap<RecordId, Record>,
    fence: u64,
    pub(super) epoch: u64,
    now: StoreTime,
}

impl Model {
    pub(super) fn new() -> Self {
        let now = StoreTime::from_millis(1_000_000);
        Self { records: BTreeMap::new(), fence: 0, epoch: 0, now }
    }

    pub(super) fn advance(&mut self, by: Duration) {
        self.now = self.now.after(by);
    }

    fn decide<T>(
        &mut self,
        id: &RecordId,
        rule: impl FnOnce(Option<&Record>, Fence, StoreTime) -> (T, Change),
    ) -> T {
        self.fence += 1;
        let fence = Fence::new(self.fence).unwrap();
        let (result, change) = rule(self.records.get(id), fence, self.now);
        self.apply(id, change);
        result
    }

    fn apply(&mut self, id: &RecordId, change: Change) {
        match change {
            Change::Keep => {}
            Change::Put(record) => {
                self.records.insert(id.clone(), record);
            }
            Change::Delete => {
                self.records.remove(id);
            }
        }
    }

    pub(super) fn claim(&mut self, claim: &Claim) -> Claimed {
        self.decide(&claim.id, |found, fence, now| rules::claim(found, claim, fence, now))
    }

    pub(super) fn renew(&mut self, id: &RecordId, by: Claimant, lease: Duration) -> Fenced {
        self.decide(id, |found, _, now| rules::renew(found, by, lease, now))
    }

    pub(super) fn finish(&mut self, id: &RecordId, by: Claimant, finish: &Finish) -> Fenced {
        self.decide(id, |found, _, now| rules::finish(found, by, finish, now))
    }

    pub(super) fn resolve(&mut self, id: &RecordId, seen: Fence, act: &Resolution) -> Resolved {
        let result =
            self.decide(id, |found, fence, now| rules::resolve(found, seen, act, fence, now));
        self.epoch += u64::from(result == Resolved::Applied);
        result
    }

    pub(super) fn get(&self, id: &RecordId) -> Option<Snapshot> {
        rules::view(self.records.get(id), self.now)
    }

    pub(super) fn reap(&mut self) {
        for (id, record) in self.records.clone() {
            self.apply(&id, rules::reap(&record, self.now));
        }
    }

    pub(super) fn sweep(&mut self) {
        let now = self.now;
        self.records.retain(|_, record| !rules::past_retention(record, now));
    }

    /// Every record that counts now, in the order of their addresses.
    pub(super) fn all(&self) -> Vec<(RecordId, Snapshot)> {
        let seen = |id: &RecordId| self.get(id).map(|seen| (id.clone(), seen));
        self.records.keys().filter_map(seen).collect()
    }
}
