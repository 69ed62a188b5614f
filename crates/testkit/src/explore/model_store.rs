//! The explorer's store: one record, changed by the rules of the core and by nothing else, unless a
//! bug of a store is planted here.

use std::time::Duration;

use semel_core::{
    Claim, Claimant, Claimed, Fence, Fenced, Finish, Record, RecordAction, Resolution, Resolved,
    Snapshot, State, StoreTime,
    rules::{self, Change},
};

use super::setup::Bug;

/// What the store keeps.
#[derive(Clone, Default, Hash)]
pub(super) struct ModelStore {
    pub(super) record: Option<Record>,
    /// The highest fence issued.
    fence: u64,
}

impl ModelStore {
    pub(super) fn claim(&mut self, claim: &Claim, now: StoreTime, bug: Option<Bug>) -> Claimed {
        let now = match self.lease_until() {
            Some(until) if bug == Some(Bug::LeaseNeverLapses) => now.min(until),
            _ => now,
        };
        if self.held_is_forgotten(now, bug) {
            self.record = None;
        }
        let (claimed, change) =
            rules::claim(self.record.as_ref(), claim, self.next_fence(bug), now);
        self.put(change);
        claimed
    }

    /// Only for [`Bug::TakeoverInTwoSteps`]: the record goes to the claim if its fence is `read`.
    pub(super) fn swap(&mut self, read: Fence, claim: &Claim, now: StoreTime) -> Claimed {
        let mut swapped = self.record.clone();
        match &mut swapped {
            Some(Record { fence, state: State::InFlight { lease_until, .. }, .. })
                if *fence == read =>
            {
                *lease_until = StoreTime::default();
            }
            _ => return self.claim(claim, now, None),
        }
        let (claimed, change) = rules::claim(swapped.as_ref(), claim, self.next_fence(None), now);
        self.put(change);
        claimed
    }

    pub(super) fn renew(&mut self, by: Claimant, lease: Duration, now: StoreTime) -> Fenced {
        let (fenced, change) = rules::renew(self.record.as_ref(), by, lease, now);
        self.put(change);
        fenced
    }

    pub(super) fn end(
        &mut self,
        by: Claimant,
        finish: &Finish,
        now: StoreTime,
        bug: Option<Bug>,
    ) -> Fenced {
        let found = self.record.as_ref();
        let unchecked = match &finish.action {
            RecordAction::Complete(_) => bug == Some(Bug::CompleteUnfenced),
            RecordAction::Release(_) | RecordAction::Forget => bug == Some(Bug::ReleaseUnfenced),
            RecordAction::Hold => false,
        };
        let by = found.filter(|_| unchecked).map_or(by, Record::claimant);
        let (fenced, change) = rules::finish(found, by, finish, now);
        self.put(change);
        fenced
    }

    pub(super) fn view(&self, now: StoreTime) -> Option<Snapshot> {
        rules::view(self.record.as_ref(), now)
    }

    pub(super) fn resolve(
        &mut self,
        seen: Fence,
        resolution: &Resolution,
        now: StoreTime,
        bug: Option<Bug>,
    ) -> Resolved {
        let found = self.record.as_ref();
        let blind = bug == Some(Bug::ActIsBlind);
        let seen = found.filter(|_| blind).map_or(seen, |record| record.fence);
        let fence = self.next_fence(bug);
        let (resolved, change) = rules::resolve(found, seen, resolution, fence, now);
        self.put(change);
        resolved
    }

    /// Moves the record where it belongs, and says whether it did.
    pub(super) fn reap(&mut self, now: StoreTime) -> bool {
        let change = self.record.as_ref().map_or(Change::Keep, |record| rules::reap(record, now));
        let reaped = change != Change::Keep;
        self.put(change);
        reaped
    }

    /// Deletes the record if it may, and says whether it did.
    pub(super) fn sweep(&mut self, now: StoreTime, bug: Option<Bug>) -> bool {
        let past = self.is_past_retention(now) || self.held_is_forgotten(now, bug);
        if past {
            self.record = None;
        }
        past
    }

    pub(super) fn is_past_retention(&self, now: StoreTime) -> bool {
        self.record.as_ref().is_some_and(|record| rules::past_retention(record, now))
    }

    pub(super) fn lease_until(&self) -> Option<StoreTime> {
        match self.record.as_ref()?.state {
            State::InFlight { lease_until } => Some(lease_until),
            State::Completed(_) | State::Released | State::Held => None,
        }
    }

    fn held_is_forgotten(&self, now: StoreTime, bug: Option<Bug>) -> bool {
        let held = |record: &&Record| record.state == State::Held && record.expires_at < now;
        bug == Some(Bug::HeldExpires) && self.record.as_ref().filter(held).is_some()
    }

    fn next_fence(&self, bug: Option<Bug>) -> Fence {
        let highest = match &self.record {
            found if bug == Some(Bug::FenceRestarts) => found.as_ref().map_or(0, |r| r.fence.get()),
            _ => self.fence,
        };
        Fence::new(highest + 1).expect("one more is not zero")
    }

    fn put(&mut self, change: Change) {
        match change {
            Change::Keep => {}
            Change::Put(mut record) => {
                // No rule reads these times; without them, worlds that behave alike are one.
                record.claimed_at = StoreTime::default();
                record.ended_at = record.ended_at.map(|_| StoreTime::default());
                self.fence = self.fence.max(record.fence.get());
                self.record = Some(record);
            }
            Change::Delete => self.record = None,
        }
    }
}
