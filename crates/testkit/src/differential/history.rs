//! A history: operations on a few records, drawn at random and printed so that a reader can follow.

use std::{fmt, time::Duration};

use proptest::{collection::vec, prelude::*};
use semel_core::{OnUnknown, StateName, Tried};

/// How many records a history knows.
pub(super) const RECORDS: usize = 3;
const OPERATIONS_MAX: usize = 40;

/// Operations, each through one of two handles.
#[derive(Clone)]
pub(super) struct History(pub(super) Vec<(Door, Operation)>);

/// Which handle an operation goes through.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Door {
    First,
    Second,
}

#[derive(Clone, Debug)]
pub(super) enum Operation {
    Claim(Request),
    Renew { record: usize, fence: Named, lease: Duration },
    Complete { record: usize, fence: Named, answer: u8 },
    Release { record: usize, fence: Named, tried: Tried },
    Hold { record: usize, fence: Named },
    Resolve { record: usize, seen: Named, act: Act },
    Advance(Duration),
    List { state: Option<StateName>, age_min: Duration, limit: u32 },
    Reap,
    Sweep,
}

/// A claim: few owners and fingerprints, so that they meet.
#[derive(Clone, Debug)]
pub(super) struct Request {
    pub(super) record: usize,
    pub(super) owner: u8,
    pub(super) fingerprint: u8,
    pub(super) lease: Duration,
    pub(super) retention: Duration,
    pub(super) on_unknown: OnUnknown,
}

/// A fence by how it came about, since two stores number differently.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Named {
    /// The newest one of the record.
    Current,
    /// One that many before it.
    Stale(usize),
    /// The newest one of another record.
    Foreign,
    /// A number that was never issued.
    Unissued,
}

/// An operator's act.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Act {
    Completed(u8),
    Released,
    /// As it was seen in this state, or as it stands now.
    Forgotten(Option<StateName>),
}

impl fmt::Debug for History {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        writeln!(f, "a history of {} operations:", self.0.len())?;
        for (at, (door, operation)) in self.0.iter().enumerate() {
            let door = if *door == Door::First { " " } else { "'" };
            writeln!(f, "  {at:2}{door} {operation:?}")?;
        }
        Ok(())
    }
}

/// Any history.
pub(super) fn histories() -> impl Strategy<Value = History> {
    let door = prop_oneof![3 => Just(Door::First), 1 => Just(Door::Second)];
    vec((door, operation()), 1..OPERATIONS_MAX).prop_map(History)
}

fn operation() -> impl Strategy<Value = Operation> {
    let record = || prop_oneof![4 => Just(0_usize), 1 => 1..RECORDS];
    let tried = prop_oneof![Just(Tried::Counted), Just(Tried::NotCounted)];
    prop_oneof![
        8 => request(record()).prop_map(Operation::Claim),
        2 => (record(), fence(), duration())
            .prop_map(|(record, fence, lease)| Operation::Renew { record, fence, lease }),
        4 => (record(), fence(), 0_u8..3)
            .prop_map(|(record, fence, answer)| Operation::Complete { record, fence, answer }),
        3 => (record(), fence(), tried)
            .prop_map(|(record, fence, tried)| Operation::Release { record, fence, tried }),
        2 => (record(), fence()).prop_map(|(record, fence)| Operation::Hold { record, fence }),
        3 => (record(), fence(), act())
            .prop_map(|(record, seen, act)| Operation::Resolve { record, seen, act }),
        6 => duration().prop_map(Operation::Advance),
        1 => (state(), duration(), 0_u32..3)
            .prop_map(|(state, age_min, limit)| Operation::List { state, age_min, limit }),
        1 => Just(Operation::Reap),
        1 => Just(Operation::Sweep),
    ]
}

fn request(record: impl Strategy<Value = usize>) -> impl Strategy<Value = Request> {
    let fingerprint = prop_oneof![6 => Just(0_u8), 1 => Just(1_u8)];
    let on_unknown =
        prop_oneof![Just(OnUnknown::Hold), Just(OnUnknown::Rerun), Just(OnUnknown::Fail)];
    (record, 0_u8..3, fingerprint, duration(), duration(), on_unknown).prop_map(
        |(record, owner, fingerprint, lease, retention, on_unknown)| Request {
            record,
            owner,
            fingerprint,
            lease,
            retention,
            on_unknown,
        },
    )
}

fn fence() -> impl Strategy<Value = Named> {
    prop_oneof![
        8 => Just(Named::Current),
        2 => (1_usize..3).prop_map(Named::Stale),
        1 => Just(Named::Foreign),
        1 => Just(Named::Unissued),
    ]
}

fn act() -> impl Strategy<Value = Act> {
    prop_oneof![
        2 => (0_u8..3).prop_map(Act::Completed),
        2 => Just(Act::Released),
        1 => Just(Act::Forgotten(None)),
        1 => state().prop_map(Act::Forgotten),
    ]
}

fn state() -> impl Strategy<Value = Option<StateName>> {
    let names = [StateName::InFlight, StateName::Completed, StateName::Released, StateName::Held];
    proptest::option::of(proptest::sample::select(names.to_vec()))
}

/// Few lengths, so that leases, retentions and what passes meet at their ends, one tick apart.
fn duration() -> impl Strategy<Value = Duration> {
    let millis = prop_oneof![4 => 0_u64..6, 2 => 9_u64..12, 1 => 100_u64..102];
    millis.prop_map(Duration::from_millis)
}
