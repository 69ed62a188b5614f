//! A small store that applies `semel_core::rules`, with fault injection.
//!
//! Each fault was a bug in a real store. With `Fault::Nothing` the store keeps all laws.

use std::{
    collections::BTreeMap,
    sync::{Arc, Mutex, MutexGuard},
    time::Duration,
};

use async_trait::async_trait;
use bytes::Bytes;
use semel_core::{
    Answer, Batch, Caller, Claim, Claimant, Claimed, Cursor, Epoch, Fence, Fenced, Finish, Key,
    ListQuery, OnUnknown, OwnerToken, Page, Reason, Record, RecordAction, RecordId, Release,
    Resolution, Resolved, Snapshot, State, StateView, Store, StoreError, StoreTime, Summary,
    rules::{self, Change},
    store::check_metadata,
};
use semel_testkit::clock::ManualClock;

/// What is wrong with a store.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Fault {
    Nothing,
    AnswerTruncated,
    AttemptForgotten,
    BatchMoreNeverSet,
    CallerIgnored,
    CompletedReplaced,
    CompleteUnfenced,
    AboutLost,
    EpochNotRaised,
    EpochPerHandle,
    EpochFallsAtRestore,
    FailedTooEarly,
    FenceFallsAtRestore,
    FenceFallsInANewStore,
    FencePerRecord,
    FenceRestarts,
    DeleteIgnoresState,
    DuplicateGranted,
    ForgottenKeepsItsFingerprint,
    HeldExpires,
    HoldForIgnored,
    HoldUnfenced,
    InFlightLostAtRestart,
    InFlightSwept,
    KeyCaseFolded,
    LeaseEndsEarly,
    LeaseIsRetention,
    LimitIgnored,
    ListsExpired,
    RepeatedClaimRefused,
    RivalTreatedAsOwner,
    OwnerTokenUnchecked,
    PageSkipsOne,
    ReapsRerun,
    ReadThenSwap,
    ReasonLost,
    ReleasedKeptTooLong,
    ReleaseUnfenced,
    RenewShortens,
    RenewUnfenced,
    RepeatedFinishLost,
    ResolveKeepsFence,
    RetentionFromFinish,
    ExpectedFenceIgnored,
    TakeoverFingerprintUnchecked,
    ClockPerHandle,
    NotSentCounted,
    HeldGranted,
}

#[derive(Clone, Debug, Default)]
pub(crate) struct Shared {
    pub(crate) records: BTreeMap<RecordId, Record>,
    pub(crate) fence: u64,
    pub(crate) epoch: u64,
    pub(crate) metadata: BTreeMap<Box<str>, Bytes>,
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

    fn lock_and_now(&self) -> (MutexGuard<'_, Shared>, StoreTime) {
        let shared = self.shared.lock().unwrap();
        let skew = if self.has(Fault::ClockPerHandle) { self.skew } else { Duration::ZERO };
        (shared, StoreTime::default().after(self.clock.now()).after(skew))
    }

    /// The id under which a record is stored.
    fn stored_id(&self, id: &RecordId) -> RecordId {
        let mut id = id.clone();
        if self.has(Fault::CallerIgnored) {
            id.caller = Caller::anonymous();
        }
        if self.has(Fault::KeyCaseFolded) {
            id.key = Key::new(&id.key.as_str().to_lowercase()).unwrap();
        }
        id
    }

    fn next_fence(&self, shared: &mut Shared, id: &RecordId) -> Fence {
        shared.fence += 1;
        let number = if self.has(Fault::FencePerRecord) {
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
        let id = &self.stored_id(id);
        let (mut shared, now) = self.lock_and_now();
        let fence = self.next_fence(&mut shared, id);
        let (result, change) = rule(shared.records.get(id), fence, now);
        apply(&mut shared, id, change);
        result
    }

    /// The claimant to check a write against: `by`, or with a fault that of the record.
    fn claimant_to_check(&self, unfenced: Fault, found: Option<&Record>, by: Claimant) -> Claimant {
        match found {
            Some(record) if self.has(unfenced) => record.claimant(),
            Some(record) if self.has(Fault::OwnerTokenUnchecked) => {
                Claimant::new(by.fence, record.owner)
            }
            _ => by,
        }
    }

    fn is_past_retention(&self, record: &Record, now: StoreTime) -> bool {
        let expired = now > record.expires_at;
        let ours = match record.state {
            State::Held => self.has(Fault::HeldExpires),
            State::InFlight { .. } => self.has(Fault::InFlightSwept),
            State::Completed(_) | State::Released => true,
        };
        expired && ours
    }

    fn view(&self, found: Option<&Record>, now: StoreTime) -> Option<Snapshot> {
        let found = found.filter(|record| !self.is_past_retention(record, now));
        let mut seen = rules::view(found, now)?;
        let lapsed = seen.state == StateView::InFlight { lease_left: Duration::ZERO };
        if self.has(Fault::FailedTooEarly) && lapsed && seen.on_unknown == OnUnknown::Fail {
            let expires_in = Duration::from_secs(1);
            seen.state = StateView::Completed { answer: Answer::failed(), expires_in };
        }
        Some(seen)
    }

    fn run_batch(&self, limit: u32, rule: impl Fn(&Record, StoreTime) -> Change) -> Batch {
        let (mut shared, now) = self.lock_and_now();
        let limit = if self.has(Fault::LimitIgnored) { u32::MAX } else { limit };
        let mut batch = Batch::default();
        for (id, record) in shared.records.clone() {
            let change = rule(&record, now);
            if change == Change::Keep {
                continue;
            }
            if batch.done == limit {
                batch.more = !self.has(Fault::BatchMoreNeverSet);
                break;
            }
            apply(&mut shared, &id, change);
            batch.done += 1;
        }
        batch
    }

    /// Applies `rules::claim`, with the faults that affect a claim.
    fn faulty_claim(
        &self,
        found: Option<&Record>,
        claim: &Claim,
        fence: Fence,
        now: StoreTime,
    ) -> (Claimed, Change) {
        let found = found.filter(|record| !self.is_past_retention(record, now));
        let (mut found, mut claim) = (found.cloned(), claim.clone());
        if self.has(Fault::LeaseIsRetention) {
            claim.lease = claim.retention;
        }
        if let Some(record) = &mut found {
            if let State::InFlight { lease_until } = &mut record.state {
                if self.has(Fault::LeaseEndsEarly) && *lease_until == now {
                    *lease_until = StoreTime::from_millis(now.as_millis() - 1);
                }
                if self.has(Fault::TakeoverFingerprintUnchecked) && now > *lease_until {
                    record.fingerprint = Some(claim.fingerprint);
                }
                if self.has(Fault::RivalTreatedAsOwner) {
                    record.owner = claim.owner;
                }
                if self.has(Fault::RepeatedClaimRefused) {
                    record.owner = OwnerToken::from_bytes([7; 16]);
                }
            }
            if self.has(Fault::DuplicateGranted) && record.state == State::Released {
                record.owner = OwnerToken::from_bytes([7; 16]);
            }
            if self.has(Fault::HeldGranted) && record.state == State::Held {
                record.state = State::Released;
            }
            if self.has(Fault::AttemptForgotten) {
                record.attempt = 0;
            }
        }
        let (result, mut change) = rules::claim(found.as_ref(), &claim, fence, now);
        if let Change::Put(record) = &mut change {
            if self.has(Fault::AboutLost) {
                record.about = semel_core::About::default();
            }
            if self.has(Fault::HoldForIgnored) {
                record.hold_for = None;
            }
        }
        (result, change)
    }

    /// Applies `rules::finish`, with the faults that affect a finish.
    fn faulty_finish(
        &self,
        found: Option<&Record>,
        by: Claimant,
        finish: &Finish,
        now: StoreTime,
    ) -> (Fenced, Change) {
        let unfenced = match &finish.action {
            RecordAction::Complete(_) => Fault::CompleteUnfenced,
            RecordAction::Release(_) | RecordAction::Forget => Fault::ReleaseUnfenced,
            RecordAction::Hold => Fault::HoldUnfenced,
        };
        let by = self.claimant_to_check(unfenced, found, by);
        let (mut found, mut finish) = (found.cloned(), finish.clone());
        if let Some(Record { state: state @ State::Completed(_), .. }) = &mut found {
            if self.has(Fault::CompletedReplaced) {
                *state = State::Held;
            }
            if self.has(Fault::RepeatedFinishLost) {
                *state = State::Released;
            }
        }
        let not_sent = RecordAction::Release(Release::NotSent);
        if self.has(Fault::NotSentCounted) && finish.action == not_sent {
            finish.action = RecordAction::Release(Release::Refused);
        }
        if self.has(Fault::ReasonLost) {
            finish.reason = finish.reason.map(|_| Reason::text("something"));
        }
        let print = found.as_ref().and_then(|record| record.fingerprint);
        let (result, mut change) = rules::finish(found.as_ref(), by, &finish, now);
        if let Change::Put(record) = &mut change {
            self.apply_record_faults(record, &finish, now);
            if self.has(Fault::ForgottenKeepsItsFingerprint) {
                record.fingerprint = print;
            }
        }
        (result, change)
    }

    fn apply_record_faults(&self, record: &mut Record, finish: &Finish, now: StoreTime) {
        if let RecordAction::Complete(answer) = &finish.action {
            if self.has(Fault::AnswerTruncated) && answer.as_bytes().len() > 65_536 {
                let cut = answer.as_bytes().slice(..65_536);
                record.state = State::Completed(Answer::from_stored(cut).unwrap());
            }
            if self.has(Fault::RetentionFromFinish) {
                record.expires_at = now.after(record.retention);
            }
        }
        if self.has(Fault::ReleasedKeptTooLong) && record.state == State::Released {
            record.expires_at = record.claimed_at.after(record.retention);
        }
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
        let (result, change) = {
            let (mut shared, now) = self.lock_and_now();
            let fence = self.next_fence(&mut shared, &claim.id);
            rules::claim(shared.records.get(&claim.id), claim, fence, now)
        };
        tokio::task::yield_now().await;
        apply(&mut self.lock_and_now().0, &claim.id, change);
        Ok(result)
    }

    async fn renew(
        &self,
        id: &RecordId,
        by: Claimant,
        lease: Duration,
    ) -> Result<Fenced, StoreError> {
        Ok(self.decide(id, |found, _, now| {
            let by = self.claimant_to_check(Fault::RenewUnfenced, found, by);
            let (result, mut change) = rules::renew(found, by, lease, now);
            if let (true, Change::Put(Record { state: State::InFlight { lease_until }, .. })) =
                (self.has(Fault::RenewShortens), &mut change)
            {
                *lease_until = now.after(lease);
            }
            (result, change)
        }))
    }

    async fn finish(
        &self,
        id: &RecordId,
        by: Claimant,
        finish: &Finish,
    ) -> Result<Fenced, StoreError> {
        Ok(self.decide(id, |found, _, now| self.faulty_finish(found, by, finish, now)))
    }

    async fn get(&self, id: &RecordId) -> Result<Option<Snapshot>, StoreError> {
        let (shared, now) = self.lock_and_now();
        Ok(self.view(shared.records.get(&self.stored_id(id)), now))
    }

    async fn list(&self, query: &ListQuery) -> Result<Page, StoreError> {
        let (shared, now) = self.lock_and_now();
        let skip = usize::from(query.after.is_some() && self.has(Fault::PageSkipsOne));
        let mut records: Vec<_> = shared.records.iter().collect();
        records.sort_by_key(|(_, record)| record.fence);
        let examined = u64::try_from(records.len()).unwrap();
        let lines = records.into_iter().filter_map(|(id, record)| {
            // The record as it was when it expired.
            let expired = || rules::view(Some(record), record.expires_at);
            let seen = self.view(Some(record), now);
            let seen = if self.has(Fault::ListsExpired) { seen.or_else(expired) } else { seen };
            Some(Summary::new(id.clone(), seen?))
        });
        let after = query.after.map_or(0, |cursor| cursor.0);
        let lines = lines.filter(|line| line.fence.get() > after && query.takes(line)).skip(skip);
        let limit = usize::try_from(query.page_size()).unwrap();
        let mut items: Vec<Summary> = lines.take(limit + 1).collect();
        let more = items.len() > limit;
        items.truncate(limit);
        let last = items.last().map(|last| Cursor(last.fence.get()));
        Ok(Page::new(items, last.filter(|_| more), examined))
    }

    async fn resolve(
        &self,
        id: &RecordId,
        seen: Fence,
        act: &Resolution,
    ) -> Result<Resolved, StoreError> {
        let result = self.decide(id, |found, fence, now| {
            let current = found.filter(|_| self.has(Fault::ExpectedFenceIgnored));
            let seen = current.map_or(seen, |record| record.fence);
            let fence = if self.has(Fault::ResolveKeepsFence) { seen } else { fence };
            let mut act = act.clone();
            if let (true, Resolution::Deleted(state), Some(seen)) =
                (self.has(Fault::DeleteIgnoresState), &mut act, rules::view(found, now))
            {
                *state = seen.state.name();
            }
            rules::resolve(found, seen, &act, fence, now)
        });
        if result == Resolved::Applied && !self.has(Fault::EpochNotRaised) {
            self.shared.lock().unwrap().epoch += 1;
            *self.epoch.lock().unwrap() += 1;
        }
        Ok(result)
    }

    async fn reap(&self, limit: u32) -> Result<Batch, StoreError> {
        Ok(self.run_batch(limit, |record, now| {
            let mut record = record.clone();
            if self.has(Fault::ReapsRerun) && record.on_unknown == OnUnknown::Rerun {
                record.on_unknown = OnUnknown::Hold;
            }
            rules::reap(&record, now)
        }))
    }

    async fn sweep(&self, limit: u32) -> Result<Batch, StoreError> {
        Ok(self.run_batch(limit, |record, now| {
            if self.is_past_retention(record, now) { Change::Delete } else { Change::Keep }
        }))
    }

    async fn metadata(&self, prefix: &str) -> Result<Vec<(Box<str>, Bytes)>, StoreError> {
        let shared = self.shared.lock().unwrap();
        let below = shared.metadata.iter().filter(|(name, _)| name.starts_with(prefix));
        Ok(below.map(|(name, value)| (name.clone(), value.clone())).collect())
    }

    async fn set_metadata(&self, name: &str, value: Option<&[u8]>) -> Result<(), StoreError> {
        check_metadata(name, value)?;
        let mut shared = self.shared.lock().unwrap();
        shared.metadata.remove(name);
        let value = value.map(Bytes::copy_from_slice);
        shared.metadata.extend(value.map(|value| (name.into(), value)));
        Ok(())
    }

    async fn epoch(&self) -> Result<Epoch, StoreError> {
        if self.has(Fault::EpochPerHandle) {
            return Ok(Epoch(*self.epoch.lock().unwrap()));
        }
        Ok(Epoch(self.lock_and_now().0.epoch))
    }
}
