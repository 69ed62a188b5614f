//! The request machine, one test for each thing it decides. The store is played by the test.
#![allow(
    clippy::unwrap_used,
    clippy::expect_used,
    clippy::panic,
    reason = "a test says what is wrong by panicking"
)]

mod away;
mod claim;
mod deadline;
mod ending;
mod former;
mod waiting;

use std::time::Duration;

use semel_core::{
    Action, Answer, Caller, Claim, Claimed, ExecutionResult, Fence, Fingerprint, Flow, Grant, Key,
    Occupied, OnStoreDown, OnUnknown, OwnerToken, Plan, Policy, Problem, ProcessTime, Reason,
    Record, RecordId, Reply, Scope, Snapshot, StateView, StoreError, StoreErrorKind, StoreTime,
    Verdict, rules,
};

const LEASE: Duration = Duration::from_secs(30);
const WAIT: Duration = Duration::from_secs(10);
const STORE_TIMEOUT: Duration = Duration::from_secs(2);
const GRANT: Grant = Grant::new(fence(7), 1);

const fn fence(number: u64) -> Fence {
    Fence::new(number).expect("not zero")
}

fn at(millis: u64) -> ProcessTime {
    ProcessTime::from_millis(1_000_000 + millis)
}

fn fingerprint(byte: u8) -> Fingerprint {
    Fingerprint::try_from(&[byte; 33][..]).unwrap()
}

fn policy() -> Policy {
    Policy { lease: LEASE, wait: WAIT, ..Policy::default() }
}

fn plan(policy: &Policy) -> Plan {
    Plan::new(policy, fingerprint(1))
}

/// A request whose claim has been asked at 0 ms.
fn asking(policy: &Policy) -> Flow {
    let (flow, step) = Flow::begin(plan(policy), at(0));
    assert_eq!(step, Action::Claim);
    flow
}

/// A request that runs since 0 ms.
fn running(on_unknown: OnUnknown) -> Flow {
    let mut flow = asking(&Policy { on_unknown, ..policy() });
    assert_eq!(flow.on_claimed(Claimed::Granted(GRANT), at(0)), Action::Execute(GRANT));
    flow
}

/// A request that learned at 0 ms that another runs.
fn waiting() -> Flow {
    let mut flow = asking(&policy());
    assert_eq!(flow.on_claimed(in_flight(), at(0)), Action::Sleep);
    flow
}

fn in_flight() -> Claimed {
    Claimed::Occupied(Occupied::InFlight { lease_left: LEASE })
}

fn answer() -> Answer {
    Answer::not_retained(201)
}

fn answered(verdict: Verdict) -> ExecutionResult {
    ExecutionResult::Answered { verdict, answer: answer(), reason: Reason::Answered(201) }
}

fn problem(problem: Problem) -> Action {
    Action::Reply(Reply::Problem(problem))
}

fn unavailable() -> StoreError {
    StoreError::new(StoreErrorKind::Unavailable, "the store is away")
}

fn busy() -> StoreError {
    StoreError::new(StoreErrorKind::Busy, "too many claims wait")
}

fn claim(on_unknown: OnUnknown) -> Claim {
    let scope = Scope::new("payments").unwrap();
    let id = RecordId::new(scope, Caller::anonymous(), Key::new("k").unwrap());
    let mut claim = Claim::new(id, fingerprint(1), OwnerToken::from_bytes([1; 16]));
    claim.lease = LEASE;
    claim.on_unknown = on_unknown;
    claim
}

fn snapshot(state: StateView) -> Snapshot {
    let begun = StoreTime::from_millis(0);
    let record = Record::granted(&claim(OnUnknown::Hold), GRANT, begun);
    let now = begun.after(Duration::from_secs(1));
    let mut snapshot = rules::view(Some(&record), now).unwrap();
    snapshot.state = state;
    snapshot
}

/// The record of another request.
fn other(mut snapshot: Snapshot) -> Snapshot {
    snapshot.fingerprint = Some(fingerprint(2));
    snapshot
}

fn completed() -> Snapshot {
    snapshot(StateView::Completed { answer: answer(), expires_in: Duration::from_secs(60) })
}

fn passing() -> Policy {
    Policy { on_store_down: OnStoreDown::Pass, ..policy() }
}
