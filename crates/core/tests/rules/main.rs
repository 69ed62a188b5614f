//! The rules of a store, cell by cell: what each operation does to each state.
#![allow(clippy::unwrap_used, reason = "a test may panic")]

mod claims;
mod invariants;
mod operators;
mod owners;
mod upkeep;

use std::time::Duration;

use semel_core::{
    Answer, Caller, Claim, Fence, Fingerprint, Key, OnUnknown, OwnerToken, Record, RecordId, Scope,
    State, StoreTime, StoredResponse, rules::Change,
};

/// When everything here happens.
const NOW: StoreTime = StoreTime::from_millis(1_000_000_000);
const LEASE: Duration = Duration::from_secs(10);
const RETENTION: Duration = Duration::from_secs(100);
const TICK: Duration = Duration::from_millis(1);
/// How old the claim of a record is that has neither lapsed nor expired.
const AGE: Duration = Duration::from_secs(4);

/// The ten columns of the table, by name.
fn columns() -> [(&'static str, Option<Record>); 10] {
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
        ("held", Some(held())),
    ]
}

/// Applies a rule to every column and compares with what is wanted, column by column.
fn check<T: PartialEq + std::fmt::Debug>(
    rule: impl Fn(Option<&Record>) -> (T, Change),
    wanted: [(T, Change); 10],
) {
    for ((name, found), wanted) in columns().into_iter().zip(wanted) {
        assert_eq!(rule(found.as_ref()), wanted, "{name}");
    }
}

// === records ===

fn record(state: State, age: Duration) -> Record {
    let claimed_at = StoreTime::from_millis(NOW.as_millis() - age.as_millis() as u64);
    Record {
        fingerprint: fingerprint(1),
        fence: fence(7),
        attempt: 2,
        on_unknown: OnUnknown::Hold,
        retention: RETENTION,
        claimed_at,
        expires_at: claimed_at.after(RETENTION),
        state,
    }
}

fn running() -> Record {
    record(in_flight(LEASE - AGE), AGE)
}

fn lapsed(on_unknown: OnUnknown) -> Record {
    let lease_until = StoreTime::from_millis(NOW.as_millis() - 1);
    let state = State::InFlight { owner: owner(1), lease_until };
    Record { on_unknown, ..record(state, LEASE + TICK) }
}

fn completed() -> Record {
    record(State::Completed(answer("recorded")), AGE)
}

fn released() -> Record {
    record(State::Released, AGE)
}

fn held() -> Record {
    record(State::Held, AGE)
}

/// The same record with its retention just over.
fn past(finished: Record) -> Record {
    record(finished.state, RETENTION + TICK)
}

/// The same record in another state.
fn put(mut record: Record, state: State) -> Change {
    record.state = state;
    Change::Put(record)
}

fn in_flight(left: Duration) -> State {
    State::InFlight { owner: owner(1), lease_until: NOW.after(left) }
}

// === values ===

/// A claim by somebody else with an equal fingerprint.
fn claim() -> Claim {
    let key = Key::new("key").unwrap();
    Claim {
        id: RecordId::new(Scope::new("scope").unwrap(), Caller::anonymous(), key),
        fingerprint: fingerprint(1),
        owner: owner(2),
        lease: LEASE,
        retention: RETENTION,
        on_unknown: OnUnknown::Rerun,
    }
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
