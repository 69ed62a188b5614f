//! A small store on the rules, with a fault that can be switched on.
//!
//! Each fault is one that was made in earnest somewhere. Without one, the store keeps all laws.

use std::{
    collections::BTreeMap,
    sync::{Arc, Mutex, MutexGuard},
    time::Duration,
};

use async_trait::async_trait;
use semel_core::{
    Answer, Batch, Caller, Claim, Claimed, Cursor, Epoch, Fence, Fenced, Key, ListQuery, OnUnknown,
    OwnerToken, Page, Record, RecordId, Release, Resolution, Resolved, Snapshot, Standing, State,
    StateName, Store, StoreError, StoreTime, Summary,
    rules::{self, Change},
};
use semel_testkit::clock::ManualClock;

/// What is wrong with a store.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Fault {
    Nothing,
    AnswerTruncated,
    AttemptForgotten,
    BatchNeverSaysMore,
    CallerIgnored,
    CompletedReplaced,
    CompleteUnfenced,
    EpochKept,
    EpochOfTheHandle,
    EpochFallsAtRestore,
    FailedTooEarly,
    FenceFallsAtRestore,
    FenceFallsInANewStore,
    FenceOfTheRecord,
    FenceRestarts,
    ForgetsBlindly,
    HeldExpires,
    HoldUnfenced,
    InFlightLostAtRestart,
    InFlightSwept,
    KeyFolded,
    LeaseEndsEarly,
    LeaseIsRetention,
    LimitIgnored,
    ListsExpired,
    OwnerForgotten,
    OwnerIgnored,
    PageSkipsOne,
    ReapsRerun,
    ReadThenSwap,
    ReleaseUnfenced,
    RenewShortens,
    RenewUnfenced,
    RepeatLost,
    ResolveKeepsFence,
    RetentionFromTheEnd,
    SeenIgnored,
    TakeoverUnchecked,
    TwoClocks,
    UntriedCounted,
    WakesHeld,
}

#[derive(Clone, Debug, Default)]
pub(crate) struct Shared {
    pub(crate) records: BTreeMap<RecordId, Record>,
    pub(crate) fence: u64,
    pub(crate) epoch: u64,
}

#[derive(Debug)]
pub(crate) struct FaultyStore {
    pub(crate) fault: Fault,
    pub(crate) shared: Arc<Mutex<Shared>>,
    pub(crate) clock: ManualClock,
    /// How far this handle's clock is off.
    pub(crate) skew: Duration,
    pub(crate) epoch: Mutex<u64>,
}

impl FaultyStore {
    fn has(&self, fault: Fault) -> bool {
        self.fault == fault
    }

    fn enter(&self) -> (MutexGuard<'_, Shared>, StoreTime) {
        let shared = self.shared.lock().unwrap();
        let skew = if self.has(Fault::TwoClocks) { self.skew } else { Duration::ZERO };
        (shared, StoreTime::default().after(self.clock.now()).after(skew))
    }

    /// Under which address a record is kept.
    fn address(&self, id: &RecordId) -> RecordId {
        let mut id = id.clone();
        if self.has(Fault::CallerIgnored) {
            id.caller = Caller::anonymous();
        }
        if self.has(Fault::KeyFolded) {
            id.key = Key::new(&id.key.as_str().to_lowercase()).unwrap();
        }
        id
    }

    fn next_fence(&self, shared: &mut Shared, id: &RecordId) -> Fence {
        shared.fence += 1;
        let number = if self.has(Fault::FenceOfTheRecord) {
            shared.records.get(id).map_or(1, |record| record.fence.get() + 1)
        } else {
            shared.fence
        };
        Fence::new(number).unwrap()
    }

    fn decide<T>(
        &self,
        id: &RecordId,
        rule: impl FnOnce(Option<&Record>, Fence, StoreTime) -> (T, Change),
    ) -> T {
        let id = &self.address(id);
        let (mut shared, now) = self.enter();
        let fence = self.next_fence(&mut shared, id);
        let (told, change) = rule(shared.records.get(id), fence, now);
        apply(&mut shared, id, change);
        told
    }

    /// The fence to compare with: the right one, or whatever the record has.
    fn checked(&self, unfenced: Fault, found: Option<&Record>, fence: Fence) -> Fence {
        found.filter(|_| self.has(unfenced)).map_or(fence, |record| record.fence)
    }

    fn past_retention(&self, record: &Record, now: StoreTime) -> bool {
        let expired = now > record.expires_at;
        let ours = match record.state {
            State::Held => self.has(Fault::HeldExpires),
            State::InFlight { .. } => self.has(Fault::InFlightSwept),
            State::Completed(_) | State::Released => true,
        };
        expired && ours
    }

    fn view(&self, found: Option<&Record>, now: StoreTime) -> Option<Snapshot> {
        let found = found.filter(|record| !self.past_retention(record, now));
        let mut seen = rules::view(found, now)?;
        let lapsed = seen.standing == Standing::InFlight { lease_left: Duration::ZERO };
        if self.has(Fault::FailedTooEarly) && lapsed && seen.on_unknown == OnUnknown::Fail {
            let expires_in = Duration::from_secs(1);
            seen.standing = Standing::Completed { answer: Answer::failed(), expires_in };
        }
        Some(seen)
    }

    fn upkeep(&self, limit: u32, rule: impl Fn(&Record, StoreTime) -> Change) -> Batch {
        let (mut shared, now) = self.enter();
        let limit = if self.has(Fault::LimitIgnored) { u32::MAX } else { limit };
        let mut batch = Batch::default();
        for (id, record) in shared.records.clone() {
            let change = rule(&record, now);
            if change == Change::Keep {
                continue;
            }
            if batch.done == limit {
                batch.more = !self.has(Fault::BatchNeverSaysMore);
                break;
            }
            apply(&mut shared, &id, change);
            batch.done += 1;
        }
        batch
    }

    /// A claim with the faults of a claim.
    fn faulty_claim(
        &self,
        found: Option<&Record>,
        claim: &Claim,
        fence: Fence,
        now: StoreTime,
    ) -> (Claimed, Change) {
        let found = found.filter(|record| !self.past_retention(record, now));
        let (mut found, mut claim) = (found.cloned(), claim.clone());
        if self.has(Fault::LeaseIsRetention) {
            claim.lease = claim.retention;
        }
        if let Some(record) = &mut found {
            if let State::InFlight { owner, lease_until } = &mut record.state {
                if self.has(Fault::LeaseEndsEarly) && *lease_until == now {
                    *lease_until = StoreTime::from_millis(now.as_millis() - 1);
                }
                if self.has(Fault::TakeoverUnchecked) && now > *lease_until {
                    record.fingerprint = claim.fingerprint;
                }
                if self.has(Fault::OwnerIgnored) {
                    *owner = claim.owner;
                }
                if self.has(Fault::OwnerForgotten) {
                    *owner = OwnerToken::from_bytes([7; 16]);
                }
            }
            if self.has(Fault::WakesHeld) && record.state == State::Held {
                record.state = State::Released;
            }
            if self.has(Fault::AttemptForgotten) {
                record.attempt = 0;
            }
        }
        rules::claim(found.as_ref(), &claim, fence, now)
    }
}

fn apply(shared: &mut Shared, id: &RecordId, change: Change) {
    match change {
        Change::Keep => {}
        Change::Put(record) => {
            shared.records.insert(id.clone(), record);
        }
        Change::Delete => {
            shared.records.remove(id);
        }
    }
}

#[async_trait]
impl Store for FaultyStore {
    async fn claim(&self, claim: &Claim) -> Result<Claimed, StoreError> {
        if !self.has(Fault::ReadThenSwap) {
            return Ok(self.decide(&claim.id, |found, fence, now| {
                self.faulty_claim(found, claim, fence, now)
            }));
        }
        let (told, change) = {
            let (mut shared, now) = self.enter();
            let fence = self.next_fence(&mut shared, &claim.id);
            rules::claim(shared.records.get(&claim.id), claim, fence, now)
        };
        tokio::task::yield_now().await;
        apply(&mut self.enter().0, &claim.id, change);
        Ok(told)
    }

    async fn renew(&self, id: &RecordId, fence: Fence, by: Duration) -> Result<Fenced, StoreError> {
        Ok(self.decide(id, |found, _, now| {
            let fence = self.checked(Fault::RenewUnfenced, found, fence);
            let (told, mut change) = rules::renew(found, fence, by, now);
            if let (true, Change::Put(Record { state: State::InFlight { lease_until, .. }, .. })) =
                (self.has(Fault::RenewShortens), &mut change)
            {
                *lease_until = now.after(by);
            }
            (told, change)
        }))
    }

    async fn complete(
        &self,
        id: &RecordId,
        fence: Fence,
        answer: &Answer,
    ) -> Result<Fenced, StoreError> {
        Ok(self.decide(id, |found, _, now| {
            let fence = self.checked(Fault::CompleteUnfenced, found, fence);
            let mut found = found.cloned();
            if let Some(Record { state: state @ State::Completed(_), .. }) = &mut found {
                if self.has(Fault::CompletedReplaced) {
                    *state = State::Held;
                }
                if self.has(Fault::RepeatLost) {
                    *state = State::Released;
                }
            }
            let (told, mut change) = rules::complete(found.as_ref(), fence, answer, now);
            if let Change::Put(record) = &mut change {
                if self.has(Fault::AnswerTruncated) && answer.as_bytes().len() > 65_536 {
                    let cut = answer.as_bytes().slice(..65_536);
                    record.state = State::Completed(Answer::from_stored(cut).unwrap());
                }
                if self.has(Fault::RetentionFromTheEnd) {
                    record.expires_at = now.after(record.retention);
                }
            }
            (told, change)
        }))
    }

    async fn release(
        &self,
        id: &RecordId,
        at: Fence,
        tried: Release,
    ) -> Result<Fenced, StoreError> {
        let tried = if self.has(Fault::UntriedCounted) { Release::Rerun } else { tried };
        Ok(self.decide(id, |found, _, now| {
            rules::release(found, self.checked(Fault::ReleaseUnfenced, found, at), tried, now)
        }))
    }

    async fn hold(&self, id: &RecordId, fence: Fence) -> Result<Fenced, StoreError> {
        Ok(self.decide(id, |found, _, now| {
            rules::hold(found, self.checked(Fault::HoldUnfenced, found, fence), now)
        }))
    }

    async fn get(&self, id: &RecordId) -> Result<Option<Snapshot>, StoreError> {
        let (shared, now) = self.enter();
        Ok(self.view(shared.records.get(&self.address(id)), now))
    }

    async fn list(&self, query: &ListQuery) -> Result<Page, StoreError> {
        let (shared, now) = self.enter();
        let skip = usize::from(query.after.is_some() && self.has(Fault::PageSkipsOne));
        let mut records: Vec<_> = shared.records.iter().collect();
        records.sort_by_key(|(_, record)| record.fence);
        let lines = records.into_iter().filter_map(|(id, record)| {
            let seen = self.view(Some(record), now);
            let expired = self.has(Fault::ListsExpired).then_some(StateName::Completed);
            Some(Summary {
                id: id.clone(),
                state: seen.as_ref().map(|seen| seen.standing.name()).or(expired)?,
                fence: record.fence,
                attempt: record.attempt,
                age: now.since(record.claimed_at),
            })
        });
        let after = query.after.map_or(0, |cursor| cursor.0);
        let lines = lines.filter(|line| line.fence.get() > after && query.takes(line)).skip(skip);
        let limit = usize::try_from(query.page_size()).unwrap();
        let mut items: Vec<Summary> = lines.take(limit + 1).collect();
        let more = items.len() > limit;
        items.truncate(limit);
        let last = items.last().map(|last| Cursor(last.fence.get()));
        Ok(Page { items, next: last.filter(|_| more) })
    }

    async fn resolve(
        &self,
        id: &RecordId,
        seen: Fence,
        act: &Resolution,
    ) -> Result<Resolved, StoreError> {
        let told = self.decide(id, |found, fence, now| {
            let seen = self.checked(Fault::SeenIgnored, found, seen);
            let fence = if self.has(Fault::ResolveKeepsFence) { seen } else { fence };
            let mut act = act.clone();
            if let (true, Resolution::Deleted(state), Some(seen)) =
                (self.has(Fault::ForgetsBlindly), &mut act, rules::view(found, now))
            {
                *state = seen.standing.name();
            }
            rules::resolve(found, seen, &act, fence, now)
        });
        if told == Resolved::Applied && !self.has(Fault::EpochKept) {
            self.shared.lock().unwrap().epoch += 1;
            *self.epoch.lock().unwrap() += 1;
        }
        Ok(told)
    }

    async fn reap(&self, limit: u32) -> Result<Batch, StoreError> {
        Ok(self.upkeep(limit, |record, now| {
            let mut record = record.clone();
            if self.has(Fault::ReapsRerun) && record.on_unknown == OnUnknown::Rerun {
                record.on_unknown = OnUnknown::Hold;
            }
            rules::reap(&record, now)
        }))
    }

    async fn sweep(&self, limit: u32) -> Result<Batch, StoreError> {
        Ok(self.upkeep(limit, |record, now| {
            if self.past_retention(record, now) { Change::Delete } else { Change::Keep }
        }))
    }

    async fn epoch(&self) -> Result<Epoch, StoreError> {
        if self.has(Fault::EpochOfTheHandle) {
            return Ok(Epoch(*self.epoch.lock().unwrap()));
        }
        Ok(Epoch(self.enter().0.epoch))
    }
}
