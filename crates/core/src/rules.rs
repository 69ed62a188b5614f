//! The specification: what each operation does to each state, as pure functions of
//! (record, request, now).
//!
//! Every function is total and takes the record as the store found it (`None` is *absent*). It
//! returns what to tell the asker and what to write, and the store does both in one atomic step.
//! Nothing above a store decides any of this again.

use std::time::Duration;

use crate::{
    Answer, Claim, Claimant, Claimed, Fence, Fenced, Finish, Grant, Occupied, OnUnknown,
    RELEASED_RETENTION_MAX, Reason, Record, RecordAction, Release, Resolution, Resolved, Snapshot,
    State, StateView, StoreTime, limit::LimitKeys,
};

impl Record {
    /// The record of a claim that was granted at `now`.
    #[must_use]
    pub fn granted(claim: &Claim, grant: Grant, now: StoreTime) -> Self {
        Self {
            fingerprint: Some(claim.fingerprint),
            fence: grant.fence,
            owner: claim.owner,
            attempt: grant.attempt,
            on_unknown: claim.on_unknown,
            hold_for: claim.hold_for,
            retention: claim.retention,
            claimed_at: now,
            ended_at: None,
            expires_at: now.after(claim.retention),
            about: claim.about.clone(),
            node: claim.node.clone(),
            captured: claim.captured.clone(),
            reason: None,
            limits: claim.limits.keys(),
            state: State::InFlight { lease_until: now.after(claim.lease) },
        }
    }
}

/// What a store writes after a decision.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
#[expect(clippy::large_enum_variant, reason = "short-lived; a box would allocate in every write")]
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
    if record.fingerprint.is_some_and(|fingerprint| fingerprint != claim.fingerprint) {
        return (Claimed::Occupied(Occupied::FingerprintMismatch), Change::Keep);
    }
    let ours = record.owner == claim.owner;
    // Our own claim, sent again because its reply was lost (law 7). The lease restarts, since the
    // owner counts it from this call; no other claim can have taken the record in between.
    if ours && matches!(record.state, State::InFlight { .. }) {
        let grant = Grant::new(record.fence, record.attempt);
        return (Claimed::Granted(grant), Change::Put(leased(record, claim.lease, now)));
    }
    let settled = settle(record, now);
    let expires_in = settled.expires_at.since(now);
    let occupied = match &settled.state {
        State::InFlight { lease_until } if now <= *lease_until => {
            Occupied::InFlight { lease_left: lease_until.since(now) }
        }
        // A duplicate of the claim that was released: its owner has ended and uses no grant.
        State::Released if ours => Occupied::Ended,
        // An expired lease that settling left in flight: the route said `rerun`.
        State::Released | State::InFlight { .. } => {
            return grant(claim, fence, record.attempt.saturating_add(1), now);
        }
        State::Completed(answer) => Occupied::Completed { answer: answer.clone(), expires_in },
        State::Held => Occupied::Held,
    };
    (Claimed::Occupied(occupied), changed(record, settled))
}

/// Decides a renewal. An expired lease that no other owner took is extended.
#[must_use]
pub fn renew(
    found: Option<&Record>,
    by: Claimant,
    lease: Duration,
    now: StoreTime,
) -> (Fenced, Change) {
    match owned(found, by, now) {
        Some(record) if matches!(record.state, State::InFlight { .. }) => {
            applied(leased(record, lease, now))
        }
        _ => LOST,
    }
}

/// Decides the end of an execution.
#[must_use]
pub fn finish(
    found: Option<&Record>,
    by: Claimant,
    finish: &Finish,
    now: StoreTime,
) -> (Fenced, Change) {
    let Some(record) = owned(found, by, now) else { return LOST };
    match (&finish.action, &record.state) {
        // Our own retry of a lost reply (law 6).
        (RecordAction::Complete(answer), State::Completed(recorded)) if recorded == answer => {
            (Fenced::Applied, Change::Keep)
        }
        (RecordAction::Release(_) | RecordAction::Forget, State::Released)
        | (RecordAction::Hold, State::Held) => (Fenced::Applied, Change::Keep),
        (_, State::Completed(_) | State::Released) => LOST,
        (action, State::InFlight { .. } | State::Held) => {
            let mut ended = match action {
                RecordAction::Complete(answer) => {
                    finished(record, State::Completed(answer.clone()), now)
                }
                RecordAction::Release(release) => released(record, *release, now),
                RecordAction::Forget => forgotten(soon_gone(record, now)),
                RecordAction::Hold => with(record, State::Held),
            };
            ended.ended_at = Some(now);
            ended.reason.clone_from(&finish.reason);
            applied(ended)
        }
    }
}

/// Decides an operator's act on the record that was seen with the fence `seen`. `fence` is the
/// number to issue if it holds, so that the previous owner is fenced off. The act counts for the
/// state that [`view`] shows: what was held for longer than `hold_for` may be resolved until its
/// failure is written.
#[must_use]
pub fn resolve(
    found: Option<&Record>,
    seen: Fence,
    resolution: &Resolution,
    fence: Fence,
    now: StoreTime,
) -> (Resolved, Change) {
    let current = |record: &&Record| record.fence == seen && !past_retention(record, now);
    let Some(record) = found.filter(current) else { return STALE };
    let Some(shown) = view(found, now).map(|seen| seen.state) else { return STALE };
    let state = match (resolution, shown) {
        (Resolution::Completed(answer), StateView::Held) => State::Completed(answer.clone()),
        (Resolution::Released, StateView::Held) => State::Released,
        (Resolution::Completed(_) | Resolution::Released, _) => return STALE,
        (Resolution::Deleted(state), shown) => {
            let runs =
                matches!(record.state, State::InFlight { lease_until } if now <= lease_until);
            let takes = shown.name() == *state && !runs;
            return if takes { (Resolved::Applied, Change::Delete) } else { STALE };
        }
    };
    let mut resolved = finished(record, state, now);
    resolved.fence = fence;
    resolved.ended_at = Some(now);
    resolved.reason = Some(Reason::Resolved);
    (Resolved::Applied, Change::Put(resolved))
}

/// Moves a record whose lease expired where its route said, and ends one that was held for longer
/// than `hold_for`. What may be rerun waits for the next request.
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

/// The record as it counts at `now`, whether or not a reaper or a sweep has run.
///
/// An expired lease shows as held where the route said `hold`. Where it said `fail` it shows as in
/// flight with nothing left until a claim or a reaper has written the failure: the owner may still
/// complete it, and what shows as completed must never change (law 12). So does a record that was
/// held for longer than `hold_for`: it shows as held until its failure is written.
#[must_use]
pub fn view(found: Option<&Record>, now: StoreTime) -> Option<Snapshot> {
    let record = found.filter(|record| !past_retention(record, now))?;
    let expires_in = record.expires_at.since(now);
    let mut reason = record.reason.clone();
    let mut ended_at = record.ended_at;
    let state = match &record.state {
        State::InFlight { lease_until }
            if now > *lease_until && record.on_unknown == OnUnknown::Hold =>
        {
            reason = Some(Reason::LeaseExpired);
            ended_at = Some(*lease_until);
            StateView::Held
        }
        State::InFlight { lease_until } => {
            StateView::InFlight { lease_left: lease_until.since(now) }
        }
        State::Completed(answer) => StateView::Completed { answer: answer.clone(), expires_in },
        State::Released => StateView::Released { expires_in },
        State::Held => StateView::Held,
    };
    Some(Snapshot {
        fingerprint: record.fingerprint,
        fence: record.fence,
        attempt: record.attempt,
        on_unknown: record.on_unknown,
        hold_for: record.hold_for,
        age: now.since(record.claimed_at),
        ended: ended_at.map(|at| now.since(at)),
        about: record.about.clone(),
        node: record.node.clone(),
        captured: record.captured.clone(),
        reason,
        state,
    })
}

// === parts ===

const LOST: (Fenced, Change) = (Fenced::Lost, Change::Keep);
const STALE: (Resolved, Change) = (Resolved::Stale, Change::Keep);

fn applied(record: Record) -> (Fenced, Change) {
    (Fenced::Applied, Change::Put(record))
}

/// The record if `by` owns it. Law 5 is this comparison.
fn owned(found: Option<&Record>, by: Claimant, now: StoreTime) -> Option<&Record> {
    found.filter(|record| record.claimant() == by && !past_retention(record, now))
}

fn grant(claim: &Claim, fence: Fence, attempt: u32, now: StoreTime) -> (Claimed, Change) {
    let grant = Grant::new(fence, attempt);
    (Claimed::Granted(grant), Change::Put(Record::granted(claim, grant, now)))
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
    if let State::InFlight { lease_until } = &mut leased.state {
        *lease_until = now.after(lease).max(*lease_until);
    }
    leased
}

/// Ends a record. Retention counts from the claim, so that the usual end moves no expiry; only
/// where less than half of it is left does it restart.
fn finished(record: &Record, state: State, now: StoreTime) -> Record {
    let mut finished = with(record, state);
    finished.limits = LimitKeys::default();
    if record.expires_at.since(now) < record.retention / 2 {
        finished.expires_at = now.after(record.retention);
    }
    finished
}

fn released(record: &Record, release: Release, now: StoreTime) -> Record {
    match release {
        Release::Rerun => finished(record, State::Released, now),
        Release::Refused => soon_gone(record, now),
        Release::NotSent => {
            let mut released = soon_gone(record, now);
            released.attempt = record.attempt.saturating_sub(1);
            if released.attempt == 0 { forgotten(released) } else { released }
        }
    }
}

/// Releases a record under which no work was begun: it is not worth its whole retention.
fn soon_gone(record: &Record, now: StoreTime) -> Record {
    let mut released = finished(record, State::Released, now);
    released.expires_at = released.expires_at.min(now.after(RELEASED_RETENTION_MAX));
    released
}

/// Nothing ran under the key, so any request may take it. Fence and owner stay: a later claim gets
/// a higher fence, and a stale duplicate of this one is recognised.
fn forgotten(mut released: Record) -> Record {
    released.fingerprint = None;
    released.attempt = 0;
    released
}

/// Where a record belongs once its lease has expired or it was held for too long; every other
/// record as it is.
fn settle(record: &Record, now: StoreTime) -> Record {
    match (&record.state, record.on_unknown) {
        (State::InFlight { lease_until }, OnUnknown::Hold) if now > *lease_until => {
            let mut held = with(record, State::Held);
            held.ended_at = Some(*lease_until);
            held.reason = Some(Reason::LeaseExpired);
            settle(&held, now)
        }
        (State::InFlight { lease_until }, OnUnknown::Fail) if now > *lease_until => {
            failed(record, Reason::LeaseExpired, now)
        }
        (State::Held, _) if held_too_long(record, now) => failed(record, Reason::HoldExpired, now),
        _ => record.clone(),
    }
}

fn held_too_long(record: &Record, now: StoreTime) -> bool {
    let limit = record.ended_at.zip(record.hold_for);
    limit.is_some_and(|(held_at, hold_for)| now > held_at.after(hold_for))
}

fn failed(record: &Record, reason: Reason, now: StoreTime) -> Record {
    let mut failed = finished(record, State::Completed(Answer::failed()), now);
    failed.ended_at = Some(now);
    failed.reason = Some(reason);
    failed
}
