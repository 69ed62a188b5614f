//! The rules of a store, cell by cell: what each operation does to each state.
#![allow(clippy::unwrap_used, reason = "a test may panic")]

mod claims;
mod diagram;
mod expiry;
mod finishes;
mod invariants;
mod operators;
mod owners;
mod upkeep;

use std::time::Duration;

use semel_core::{
    About, Answer, Caller, Captured, Claim, Claimant, Fence, Fingerprint, Grant, Key, NodeName,
    OnUnknown, OwnerToken, Reason, Record, RecordId, Scope, State, StoreTime, StoredResponse,
    rules::Change,
};

/// When everything here happens.
const NOW: StoreTime = StoreTime::from_millis(1_000_000_000);
const LEASE: Duration = Duration::from_secs(10);
const RETENTION: Duration = Duration::from_secs(100);
const HOLD_FOR: Duration = Duration::from_secs(3);
const TICK: Duration = Duration::from_millis(1);
/// How old the claim of a record is whose lease and retention have not expired.
const AGE: Duration = Duration::from_secs(4);

/// How many columns the table of states has.
const COLUMNS: usize = 12;

/// The columns of the table, by name.
fn columns() -> [(&'static str, Option<Record>); COLUMNS] {
    [
        ("absent", None),
        ("running", Some(running())),
        ("lapsed, hold", Some(lapsed(OnUnknown::Hold))),
        ("lapsed, rerun", Some(lapsed(OnUnknown::Rerun))),
        ("lapsed, fail", Some(lapsed(OnUnknown::Fail))),
        ("completed", Some(completed())),
        ("completed, past retention", Some(past(completed()))),
        ("released", Some(released())),
        ("released, past retention", Some(past(released()))),
        ("forgotten", Some(forgotten())),
        ("held", Some(held())),
        ("held, past hold_for", Some(held_too_long())),
    ]
}

/// Applies a rule to every column and compares with what is wanted, column by column.
fn check<T: PartialEq + std::fmt::Debug>(
    rule: impl Fn(Option<&Record>) -> (T, Change),
    wanted: [(T, Change); COLUMNS],
) {
    for ((name, found), wanted) in columns().into_iter().zip(wanted) {
        assert_eq!(rule(found.as_ref()), wanted, "{name}");
    }
}

// === records ===

/// The same record after a change.
fn changed(mut record: Record, change: impl FnOnce(&mut Record)) -> Record {
    change(&mut record);
    record
}

/// A record of the claim by owner 1, which was granted this long ago with fence 7 as attempt 2.
fn record(state: State, age: Duration) -> Record {
    let mut claim = claim();
    claim.owner = owner(1);
    claim.on_unknown = OnUnknown::Hold;
    claim.hold_for = Some(HOLD_FOR);
    claim.about = About::new("POST api.example.com/v1/charges");
    claim.node = NodeName::new("node-1");
    claim.captured = Captured::new([("order", "o-1")]);
    let granted = Record::granted(&claim, Grant::new(fence(7), 2), before(age));
    changed(granted, |record| record.state = state)
}

fn running() -> Record {
    record(in_flight(LEASE - AGE), AGE)
}

fn lapsed(on_unknown: OnUnknown) -> Record {
    let state = State::InFlight { lease_until: before(TICK) };
    changed(record(state, LEASE + TICK), |record| record.on_unknown = on_unknown)
}

fn completed() -> Record {
    let completed = record(State::Completed(answer("recorded")), AGE);
    changed(completed, |record| record.ended_at = Some(before(TICK)))
}

fn released() -> Record {
    ended(record(State::Released, AGE), State::Released, before(TICK), Reason::Answered(429))
}

fn forgotten() -> Record {
    changed(released(), |record| {
        record.fingerprint = None;
        record.attempt = 0;
        record.reason = Some(Reason::NotSent);
    })
}

/// Held, in the last millisecond of `hold_for`.
fn held() -> Record {
    ended(record(State::Held, AGE), State::Held, before(HOLD_FOR), Reason::TimedOut(60_000))
}

fn held_too_long() -> Record {
    changed(held(), |record| record.ended_at = Some(before(HOLD_FOR + TICK)))
}

/// The same record with its retention just over.
fn past(finished: Record) -> Record {
    changed(finished, |record| {
        record.claimed_at = before(RETENTION + TICK);
        record.expires_at = before(TICK);
    })
}

/// The same record in another state, with the time and the reason of its end.
fn ended(record: Record, state: State, at: StoreTime, reason: Reason) -> Record {
    changed(record, |record| {
        record.state = state;
        record.ended_at = Some(at);
        record.reason = Some(reason);
    })
}

/// The same record as it is once its lease has expired and its route says `hold`.
fn lease_expired(record: Record) -> Record {
    let State::InFlight { lease_until } = record.state else { return record };
    ended(record, State::Held, lease_until, Reason::LeaseExpired)
}

/// The same record, ended now with `operation-failed`.
fn failed(record: Record, reason: Reason) -> Record {
    ended(record, State::Completed(Answer::failed()), NOW, reason)
}

fn in_flight(left: Duration) -> State {
    State::InFlight { lease_until: NOW.after(left) }
}

// === values ===

/// A claim by another owner with an equal fingerprint.
fn claim() -> Claim {
    let key = Key::new("key").unwrap();
    let id = RecordId::new(Scope::new("scope").unwrap(), Caller::anonymous(), key);
    let mut claim = Claim::new(id, fingerprint(1), owner(2));
    claim.lease = LEASE;
    claim.retention = RETENTION;
    claim.on_unknown = OnUnknown::Rerun;
    claim.hold_for = None;
    claim.about = About::new("POST api.example.com/v2/charges");
    claim.node = NodeName::new("node-2");
    claim.captured = Captured::new([("order", "o-2")]);
    claim
}

/// The owner of the records here.
fn by() -> Claimant {
    Claimant::new(fence(7), owner(1))
}

fn before(duration: Duration) -> StoreTime {
    StoreTime::from_millis(NOW.as_millis() - duration.as_millis() as u64)
}

fn fence(number: u64) -> Fence {
    Fence::new(number).unwrap()
}

fn owner(number: u8) -> OwnerToken {
    OwnerToken::from_bytes([number; 16])
}

fn fingerprint(number: u8) -> Fingerprint {
    // The first byte is the version.
    let mut bytes = [number; 33];
    bytes[0] = 1;
    Fingerprint::try_from(bytes.as_slice()).unwrap()
}

fn answer(body: &str) -> Answer {
    let body = body.to_owned().into();
    Answer::response(&StoredResponse { status: 201, body, ..StoredResponse::default() })
}
