//! The specification: what each operation does to each state, as pure functions of
//! (record, request, now).
//!
//! Every function is total and takes the record as the store found it (`None` is *absent*). It returns
//! what to tell the asker and what to write, and the store does both in one atomic step. Nothing above
//! a store decides any of this again.

use std::time::Duration;

use crate::{
    Answer, Claim, Claimed, Fence, Fenced, Grant, Occupied, OnUnknown, Record, Resolution,
    Resolved, Snapshot, Standing, State, StoreTime, Tried,
};

/// What a store writes after a decision.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub enum Change {
    /// Nothing.
    Keep,
    /// This record, in place of what was found.
    Put(Record),
    /// The record goes.
    Delete,
}

/// Decides a claim. `fence` is the number to issue if it is granted: higher than any issued before.
#[must_use]
pub fn claim(
    found: Option<&Record>,
    claim: &Claim,
    fence: Fence,
    now: StoreTime,
) -> (Claimed, Change) {
    let Some(record) = found.filter(|record| !past_retention(record, now)) else {
        return grant(claim, fence, 1, now);
    };
    if record.fingerprint != claim.fingerprint {
        return (Claimed::Occupied(Occupied::Reused), Change::Keep);
    }
    // Our own claim, asked again because its reply was lost (law 7). The lease starts anew, since the
    // owner counts it from this asking; nobody else can have taken the record in between.
    if matches!(&record.state, State::InFlight { owner, .. } if *owner == claim.owner) {
        let grant = Grant { fence: record.fence, attempt: record.attempt };
        return (Claimed::Granted(grant), Change::Put(leased(record, claim.lease, now)));
    }
    let settled = settle(record, now);
    let expires_in = settled.expires_at.since(now);
    let occupied = match &settled.state {
        State::InFlight { lease_until, .. } if now <= *lease_until => {
            Occupied::InFlight { lease_left: lease_until.since(now) }
        }
        // A lapsed lease that settling left in flight: the route said `rerun`.
        State::Released | State::InFlight { .. } => {
            return grant(claim, fence, record.attempt.saturating_add(1), now);
        }
        State::Completed(answer) => Occupied::Completed { answer: answer.clone(), expires_in },
        State::Held => Occupied::Held,
    };
    (Claimed::Occupied(occupied), changed(record, settled))
}

/// Decides a renewal. A lapsed lease that nobody took is simply extended.
#[must_use]
pub fn renew(
    found: Option<&Record>,
    fence: Fence,
    lease: Duration,
    now: StoreTime,
) -> (Fenced, Change) {
    match owned(found, fence, now) {
        Some(record) if matches!(record.state, State::InFlight { .. }) => {
            applied(leased(record, lease, now))
        }
        _ => LOST,
    }
}

/// Decides the recording of an answer.
#[must_use]
pub fn complete(
    found: Option<&Record>,
    fence: Fence,
    answer: &Answer,
    now: StoreTime,
) -> (Fenced, Change) {
    let Some(record) = owned(found, fence, now) else { return LOST };
    match &record.state {
        State::InFlight { .. } | State::Held => {
            applied(finished(record, State::Completed(answer.clone()), now))
        }
        State::Completed(recorded) if recorded == answer => (Fenced::Applied, Change::Keep),
        State::Completed(_) | State::Released => LOST,
    }
}

/// Decides a release.
#[must_use]
pub fn release(
    found: Option<&Record>,
    fence: Fence,
    tried: Tried,
    now: StoreTime,
) -> (Fenced, Change) {
    let Some(record) = owned(found, fence, now) else { return LOST };
    match record.state {
        State::InFlight { .. } | State::Held => {
            let mut released = finished(record, State::Released, now);
            if tried == Tried::NotCounted {
                released.attempt = released.attempt.saturating_sub(1);
            }
            applied(released)
        }
        // Our own retry of a lost reply.
        State::Released => (Fenced::Applied, Change::Keep),
        State::Completed(_) => LOST,
    }
}

/// Decides that the outcome is unknown.
#[must_use]
pub fn hold(found: Option<&Record>, fence: Fence, now: StoreTime) -> (Fenced, Change) {
    let Some(record) = owned(found, fence, now) else { return LOST };
    match record.state {
        State::InFlight { .. } => applied(with(record, State::Held)),
        State::Held => (Fenced::Applied, Change::Keep),
        State::Completed(_) | State::Released => LOST,
    }
}

/// Decides an operator's act on the record that was seen with the fence `seen`. `fence` is the number
/// to issue if it holds, so that whoever was seen before has lost.
#[must_use]
pub fn resolve(
    found: Option<&Record>,
    seen: Fence,
    resolution: &Resolution,
    fence: Fence,
    now: StoreTime,
) -> (Resolved, Change) {
    let Some(record) = owned(found, seen, now) else { return (Resolved::Stale, Change::Keep) };
    let settled = settle(record, now);
    let state = match (resolution, &settled.state) {
        (Resolution::Completed(answer), State::Held) => State::Completed(answer.clone()),
        (Resolution::Released, State::Held) => State::Released,
        (Resolution::Forgotten, State::InFlight { lease_until, .. }) if now <= *lease_until => {
            return (Resolved::Stale, Change::Keep);
        }
        (Resolution::Forgotten, _) => return (Resolved::Applied, Change::Delete),
        (Resolution::Completed(_) | Resolution::Released, _) => {
            return (Resolved::Stale, Change::Keep);
        }
    };
    let resolved = Record { fence, ..finished(&settled, state, now) };
    (Resolved::Applied, Change::Put(resolved))
}

/// Moves a lapsed record where its route said; what may be rerun waits for the next request.
#[must_use]
pub fn reap(record: &Record, now: StoreTime) -> Change {
    changed(record, settle(record, now))
}

/// Whether a sweep may delete the record: it is finished and its retention has passed.
#[must_use]
pub fn past_retention(record: &Record, now: StoreTime) -> bool {
    let finished = matches!(record.state, State::Completed(_) | State::Released);
    finished && now > record.expires_at
}

/// The record as it counts at `now`, whether or not a reaper or a sweep has come by.
#[must_use]
pub fn view(found: Option<&Record>, now: StoreTime) -> Option<Snapshot> {
    let found = found.filter(|record| !past_retention(record, now))?;
    // `operation-failed` is an answer only once it is written: until then the owner's own answer may
    // still be recorded, and nobody must have been told another (law 12).
    let record = match settle(found, now) {
        Record { state: State::Completed(_), .. } => found.clone(),
        settled => settled,
    };
    let expires_in = record.expires_at.since(now);
    let standing = match record.state {
        State::InFlight { lease_until, .. } => {
            Standing::InFlight { lease_left: lease_until.since(now) }
        }
        State::Completed(answer) => Standing::Completed { answer, expires_in },
        State::Released => Standing::Released { expires_in },
        State::Held => Standing::Held,
    };
    Some(Snapshot {
        fingerprint: record.fingerprint,
        fence: record.fence,
        attempt: record.attempt,
        on_unknown: record.on_unknown,
        age: now.since(record.claimed_at),
        standing,
    })
}

// === parts ===

const LOST: (Fenced, Change) = (Fenced::Lost, Change::Keep);

fn applied(record: Record) -> (Fenced, Change) {
    (Fenced::Applied, Change::Put(record))
}

/// The record if `fence` is its current one. Law 5 is this comparison.
fn owned(found: Option<&Record>, fence: Fence, now: StoreTime) -> Option<&Record> {
    found.filter(|record| record.fence == fence && !past_retention(record, now))
}

fn grant(claim: &Claim, fence: Fence, attempt: u32, now: StoreTime) -> (Claimed, Change) {
    let record = Record {
        fingerprint: claim.fingerprint,
        fence,
        attempt,
        on_unknown: claim.on_unknown,
        retention: claim.retention,
        claimed_at: now,
        expires_at: now.after(claim.retention),
        state: State::InFlight { owner: claim.owner, lease_until: now.after(claim.lease) },
    };
    (Claimed::Granted(Grant { fence, attempt }), Change::Put(record))
}

fn changed(found: &Record, record: Record) -> Change {
    if record == *found { Change::Keep } else { Change::Put(record) }
}

fn with(record: &Record, state: State) -> Record {
    Record { state, ..record.clone() }
}

/// Extends the lease of a record in flight; a lease never gets shorter.
fn leased(record: &Record, lease: Duration, now: StoreTime) -> Record {
    let mut leased = record.clone();
    if let State::InFlight { lease_until, .. } = &mut leased.state {
        *lease_until = now.after(lease).max(*lease_until);
    }
    leased
}

/// Ends a record. Retention counts from the claim, so that the usual end moves no expiry; only where
/// less than half of it is left does it start anew.
fn finished(record: &Record, state: State, now: StoreTime) -> Record {
    let mut finished = with(record, state);
    if record.expires_at.since(now) < record.retention / 2 {
        finished.expires_at = now.after(record.retention);
    }
    finished
}

/// Where a record belongs once its lease has lapsed; every other record as it is.
fn settle(record: &Record, now: StoreTime) -> Record {
    match (&record.state, record.on_unknown) {
        (State::InFlight { lease_until, .. }, OnUnknown::Hold) if now > *lease_until => {
            with(record, State::Held)
        }
        (State::InFlight { lease_until, .. }, OnUnknown::Fail) if now > *lease_until => {
            finished(record, State::Completed(Answer::failed()), now)
        }
        _ => record.clone(),
    }
}
