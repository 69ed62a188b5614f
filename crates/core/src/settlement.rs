//! What a change of a record does to the counters of its velocity limits.
//!
//! A store takes the record first. It loads the counters of [`LimitWork::keys`] in rising order,
//! calls [`LimitWork::apply`], and writes those that changed with the record. A refused claim
//! changes nothing.

use crate::{
    Answer, Claim, Claimed, Content, Finish, Reason, Record, RecordAction, RecordId, Release,
    State, StoreTime,
    limit::{
        ClaimLimits, CounterSet, LimitEnd, LimitKey, LimitKeys, LimitRefusal, LimitSet,
        OperationId, admit,
    },
    rules::Change,
    store::Occupied,
};

/// What the end of an attempt means for the counters in which its record has reserved a unit.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct Settlement {
    keys: LimitKeys,
    end: LimitEnd,
}

impl Settlement {
    /// What the change of a record settles; `None` if its reservations stay or it has none. The
    /// `finish` is that of the owner, if it caused the change.
    #[must_use]
    pub fn of(before: &Record, change: &Change, finish: Option<&Finish>) -> Option<Self> {
        if before.limits.is_empty() {
            return None;
        }
        let kept = match change {
            Change::Keep => return None,
            Change::Put(after) if after.fence == before.fence && !after.limits.is_empty() => {
                return None;
            }
            Change::Put(Record { state: State::Completed(answer), .. }) => Some(answer),
            Change::Put(_) | Change::Delete => None,
        };
        Some(Self::ended(before.limits.clone(), before.claimed_at, kept, finish))
    }

    /// The settlement of an attempt that ended with this recorded answer, or without one.
    #[must_use]
    pub fn ended(
        keys: LimitKeys,
        claimed_at: StoreTime,
        kept: Option<&Answer>,
        finish: Option<&Finish>,
    ) -> Self {
        let not_sent = RecordAction::Release(Release::NotSent);
        let kept = kept.map(status_of);
        let answered = match finish.and_then(|finish| finish.reason.as_ref()) {
            Some(Reason::Answered(status)) => Some(*status),
            _ => None,
        };
        let end = LimitEnd {
            reached: finish.is_none_or(|finish| finish.action != not_sent),
            kept,
            status: answered.or(kept),
            tag: finish.and_then(|finish| finish.tag.clone()),
            claimed_at,
        };
        Self { keys, end }
    }

    /// The counters to load.
    pub fn keys(&self) -> impl Iterator<Item = LimitKey> {
        self.keys.iter()
    }

    /// Settles the reservations of the operation. A counter without one stays as it is, so a
    /// repeated settlement changes nothing.
    pub fn apply(&self, operation: OperationId, counters: &mut CounterSet, now: StoreTime) {
        for key in self.keys.iter() {
            counters.settle(key, operation, &self.end, now);
        }
    }
}

/// The status of an answer; a failure and damaged bytes count as 500.
fn status_of(answer: &Answer) -> u16 {
    match answer.read() {
        Ok(Content::Response(response)) => response.status,
        Ok(Content::NotRetained { status }) => status,
        Ok(Content::Failed) | Err(_) => 500,
    }
}

/// What a decided change of a record has to do with counters.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct LimitWork {
    operation: OperationId,
    settlement: Option<Settlement>,
    limits: ClaimLimits,
}

impl LimitWork {
    /// The work of a claim that [`rules::claim`](crate::rules::claim) decided; `None` if there is
    /// nothing to do. A repeated claim of the same owner has its units already.
    #[must_use]
    pub fn of_claim(
        found: Option<&Record>,
        decided: &(Claimed, Change),
        claim: &Claim,
    ) -> Option<Self> {
        let (claimed, change) = decided;
        let settlement = found.and_then(|found| Settlement::of(found, change, None));
        let repeated = match (claimed, found) {
            (Claimed::Granted(grant), Some(found)) => found.fence == grant.fence,
            (Claimed::Granted(_), None) => false,
            (Claimed::Occupied(_), _) => true,
        };
        let limits = if repeated { ClaimLimits::default() } else { claim.limits.clone() };
        Self::new(&claim.id, settlement, limits)
    }

    /// The work of any other change of a record.
    #[must_use]
    pub fn of_change(
        id: &RecordId,
        found: Option<&Record>,
        change: &Change,
        finish: Option<&Finish>,
    ) -> Option<Self> {
        let settlement = found.and_then(|found| Settlement::of(found, change, finish));
        Self::new(id, settlement, ClaimLimits::default())
    }

    fn new(id: &RecordId, settlement: Option<Settlement>, limits: ClaimLimits) -> Option<Self> {
        let is_needed = settlement.is_some() || !limits.is_empty();
        is_needed.then(|| Self { operation: OperationId::of(id), settlement, limits })
    }

    /// The counters to load, rising.
    #[must_use]
    pub fn keys(&self) -> LimitKeys {
        let settled = self.settlement.iter().flat_map(Settlement::keys);
        LimitKeys::new(settled.chain(self.limits.iter().map(|limit| limit.key)))
    }

    /// Settles what ended and reserves what begins. After a refusal the store drops the counters
    /// and writes nothing.
    pub fn apply(
        &self,
        counters: &mut CounterSet,
        now: StoreTime,
    ) -> Result<LimitSet, LimitRefusal> {
        if let Some(settlement) = &self.settlement {
            settlement.apply(self.operation, counters, now);
        }
        admit(&self.limits, self.operation, counters, now)
    }
}

/// The outcome of a claim once its limits were decided.
#[must_use]
pub fn limited(
    decided: (Claimed, Change),
    admitted: Result<LimitSet, LimitRefusal>,
) -> (Claimed, Change) {
    match (admitted, decided) {
        (Err(refusal), _) => (Claimed::Occupied(Occupied::Limited(refusal)), Change::Keep),
        (Ok(exceeded), (Claimed::Granted(mut grant), change)) => {
            grant.exceeded = exceeded;
            (Claimed::Granted(grant), change)
        }
        (Ok(_), decided) => decided,
    }
}
