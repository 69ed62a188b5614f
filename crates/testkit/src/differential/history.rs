//! A history: operations on a few records, drawn at random and printed so that a reader can follow.

use std::{fmt, time::Duration};

use proptest::{collection::vec, prelude::*};
use semel_core::{OnUnknown, Release, StateName};

/// How many records a history knows.
pub(super) const RECORDS: usize = 3;
const OPERATIONS_MAX: usize = 40;

/// Operations, each through one of two handles.
#[derive(Clone)]
pub(super) struct RandomHistory(pub(super) Vec<(HandleChoice, HistoryStep)>);

/// Which handle an operation goes through.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum HandleChoice {
    First,
    Second,
}

#[derive(Clone, Debug)]
pub(super) enum HistoryStep {
    Claim(Request),
    Renew { record: usize, by: By, lease: Duration },
    Finish { record: usize, by: By, end: HistoryEnd },
    Resolve { record: usize, seen: FenceChoice, act: HistoryAct },
    Advance(Duration),
    List(Filter),
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
    pub(super) hold_for: Option<Duration>,
}

/// Who writes: a fence, and the owner token that was granted with it or that of this owner.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct By {
    pub(super) fence: FenceChoice,
    pub(super) owner: Option<u8>,
}

/// How an execution ends.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum HistoryEnd {
    Complete(u8),
    Release(Release),
    Hold,
    Forget,
}

/// The filter of a listing.
#[derive(Clone, Debug)]
pub(super) struct Filter {
    pub(super) key: Option<usize>,
    pub(super) state: Option<StateName>,
    pub(super) age_min: Duration,
    pub(super) age_max: Option<Duration>,
    pub(super) lapsed: bool,
    pub(super) reason: Option<&'static str>,
    pub(super) limit: u32,
}

/// A fence by how it came about, since two stores number differently.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum FenceChoice {
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
pub(super) enum HistoryAct {
    Completed(u8),
    Released,
    /// As it was seen in this state, or as it stands now.
    Forgotten(Option<StateName>),
}

impl fmt::Debug for RandomHistory {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        writeln!(f, "a history of {} operations:", self.0.len())?;
        for (at, (handle, operation)) in self.0.iter().enumerate() {
            let handle = if *handle == HandleChoice::First { " " } else { "'" };
            writeln!(f, "  {at:2}{handle} {operation:?}")?;
        }
        Ok(())
    }
}

/// Any history.
pub(super) fn histories() -> impl Strategy<Value = RandomHistory> {
    let handle = prop_oneof![3 => Just(HandleChoice::First), 1 => Just(HandleChoice::Second)];
    vec((handle, operation()), 1..OPERATIONS_MAX).prop_map(RandomHistory)
}

fn operation() -> impl Strategy<Value = HistoryStep> {
    let record = || prop_oneof![4 => Just(0_usize), 1 => 1..RECORDS];
    prop_oneof![
        8 => request(record()).prop_map(HistoryStep::Claim),
        2 => (record(), by(), duration())
            .prop_map(|(record, by, lease)| HistoryStep::Renew { record, by, lease }),
        10 => (record(), by(), end())
            .prop_map(|(record, by, end)| HistoryStep::Finish { record, by, end }),
        3 => (record(), fence(), act())
            .prop_map(|(record, seen, act)| HistoryStep::Resolve { record, seen, act }),
        6 => long_duration().prop_map(HistoryStep::Advance),
        2 => filter().prop_map(HistoryStep::List),
        1 => Just(HistoryStep::Reap),
        1 => Just(HistoryStep::Sweep),
    ]
}

fn request(record: impl Strategy<Value = usize>) -> impl Strategy<Value = Request> {
    let fingerprint = prop_oneof![6 => Just(0_u8), 1 => Just(1_u8)];
    let on_unknown =
        prop_oneof![Just(OnUnknown::Hold), Just(OnUnknown::Rerun), Just(OnUnknown::Fail)];
    let hold_for = proptest::option::of(duration());
    (record, 0_u8..3, fingerprint, duration(), retention(), on_unknown, hold_for).prop_map(
        |(record, owner, fingerprint, lease, retention, on_unknown, hold_for)| Request {
            record,
            owner,
            fingerprint,
            lease,
            retention,
            on_unknown,
            hold_for,
        },
    )
}

fn by() -> impl Strategy<Value = By> {
    let owner = prop_oneof![6 => Just(None), 1 => (0_u8..3).prop_map(Some)];
    (fence(), owner).prop_map(|(fence, owner)| By { fence, owner })
}

fn end() -> impl Strategy<Value = HistoryEnd> {
    let release = [Release::NotSent, Release::Refused, Release::Rerun];
    prop_oneof![
        4 => (0_u8..3).prop_map(HistoryEnd::Complete),
        3 => proptest::sample::select(release.to_vec()).prop_map(HistoryEnd::Release),
        2 => Just(HistoryEnd::Hold),
        2 => Just(HistoryEnd::Forget),
    ]
}

fn filter() -> impl Strategy<Value = Filter> {
    let reasons = ["upstream answered", "lease expired", "connection lost", "nothing"];
    let reason = proptest::option::of(proptest::sample::select(reasons.to_vec()));
    let age_max = proptest::option::of(duration());
    let key = proptest::option::of(0..RECORDS);
    (key, state(), duration(), age_max, any::<bool>(), reason, 0_u32..3).prop_map(
        |(key, state, age_min, age_max, lapsed, reason, limit)| Filter {
            key,
            state,
            age_min,
            age_max,
            lapsed: lapsed && state.is_none(),
            reason,
            limit,
        },
    )
}

fn fence() -> impl Strategy<Value = FenceChoice> {
    prop_oneof![
        8 => Just(FenceChoice::Current),
        2 => (1_usize..3).prop_map(FenceChoice::Stale),
        1 => Just(FenceChoice::Foreign),
        1 => Just(FenceChoice::Unissued),
    ]
}

fn act() -> impl Strategy<Value = HistoryAct> {
    prop_oneof![
        2 => (0_u8..3).prop_map(HistoryAct::Completed),
        2 => Just(HistoryAct::Released),
        1 => Just(HistoryAct::Forgotten(None)),
        1 => state().prop_map(HistoryAct::Forgotten),
    ]
}

fn state() -> impl Strategy<Value = Option<StateName>> {
    let names = [StateName::InFlight, StateName::Completed, StateName::Released, StateName::Held];
    proptest::option::of(proptest::sample::select(names.to_vec()))
}

/// Mostly short; else whole hours, which no store rounds.
fn retention() -> impl Strategy<Value = Duration> {
    let hours = (1_u64..3).prop_map(|hours| Duration::from_secs(hours * 60 * 60));
    prop_oneof![4 => duration(), 1 => hours]
}

/// Mostly short; else about as long as a released record is kept at most.
fn long_duration() -> impl Strategy<Value = Duration> {
    let hour = 3_600_000_u64;
    let long = (hour - 2)..(hour + 3);
    prop_oneof![9 => duration(), 1 => long.prop_map(Duration::from_millis)]
}

/// Few lengths, so that leases, retentions and what passes meet at their ends, one tick apart.
fn duration() -> impl Strategy<Value = Duration> {
    let millis = prop_oneof![4 => 0_u64..6, 2 => 9_u64..12, 1 => 100_u64..102];
    millis.prop_map(Duration::from_millis)
}
