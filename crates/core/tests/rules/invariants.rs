//! What holds whatever is done to whatever record.

use proptest::prelude::*;
use semel_core::{
    Claimed, Fence, Grant, OnUnknown, Record, Resolution, State, StoreTime, Tried,
    rules::{self, Change},
};

use super::{answer, claim, fingerprint, owner};

/// The fence that a store would issue next.
const NEXT: u64 = 100;

/// Everything that can be done to a record.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Act {
    Claim { owner: u8, fingerprint: u8 },
    Renew,
    Complete(u8),
    Release(Tried),
    Hold,
    Resolve(u8),
    Reap,
}

fn acts() -> impl Strategy<Value = Act> {
    prop_oneof![
        (0_u8..3, 0_u8..2).prop_map(|(owner, fingerprint)| Act::Claim { owner, fingerprint }),
        Just(Act::Renew),
        (0_u8..3).prop_map(Act::Complete),
        prop_oneof![Just(Tried::Counted), Just(Tried::NotCounted)].prop_map(Act::Release),
        Just(Act::Hold),
        (0_u8..3).prop_map(Act::Resolve),
        Just(Act::Reap),
    ]
}

/// Times are small, so that ends and instants meet.
fn times() -> impl Strategy<Value = StoreTime> {
    (0_u64..20).prop_map(StoreTime::from_millis)
}

fn records() -> impl Strategy<Value = Record> {
    let state = prop_oneof![
        (0_u8..3, times()).prop_map(|(number, lease_until)| State::InFlight {
            owner: owner(number),
            lease_until
        }),
        (0_u8..3).prop_map(|number| State::Completed(numbered(number))),
        Just(State::Released),
        Just(State::Held),
    ];
    let on_unknown =
        prop_oneof![Just(OnUnknown::Hold), Just(OnUnknown::Rerun), Just(OnUnknown::Fail)];
    (0_u8..2, 1..NEXT, 0_u32..5, on_unknown, 0_u64..20, times(), times(), state).prop_map(
        |(print, number, attempt, on_unknown, retention, claimed_at, expires_at, state)| Record {
            fingerprint: fingerprint(print),
            fence: Fence::new(number).unwrap(),
            attempt,
            on_unknown,
            retention: std::time::Duration::from_millis(retention),
            claimed_at,
            expires_at,
            state,
        },
    )
}

fn numbered(number: u8) -> semel_core::Answer {
    answer(&number.to_string())
}

/// What the act does to the record, and the grant it gives. Fences are current.
fn perform(act: Act, record: &Record, now: StoreTime) -> (Option<Grant>, Change) {
    let (found, current) = (Some(record), record.fence);
    let next = Fence::new(NEXT).unwrap();
    let change = match act {
        Act::Claim { owner: by, fingerprint: print } => {
            let claim =
                semel_core::Claim { owner: owner(by), fingerprint: fingerprint(print), ..claim() };
            return match rules::claim(found, &claim, next, now) {
                (Claimed::Granted(grant), change) => (Some(grant), change),
                (Claimed::Occupied(_), change) => (None, change),
            };
        }
        Act::Renew => rules::renew(found, current, claim().lease, now).1,
        Act::Complete(number) => rules::complete(found, current, &numbered(number), now).1,
        Act::Release(tried) => rules::release(found, current, tried, now).1,
        Act::Hold => rules::hold(found, current, now).1,
        Act::Resolve(0) => {
            let act = Resolution::Completed(numbered(0));
            rules::resolve(found, current, &act, next, now).1
        }
        Act::Resolve(1) => rules::resolve(found, current, &Resolution::Released, next, now).1,
        Act::Resolve(_) => {
            let act = Resolution::Forgotten(record.state_name());
            rules::resolve(found, current, &act, next, now).1
        }
        Act::Reap => rules::reap(record, now),
    };
    (None, change)
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 1024, ..ProptestConfig::default() })]

    #[test]
    fn a_fence_never_falls(act in acts(), record in records(), now in times()) {
        let (grant, change) = perform(act, &record, now);
        if let Change::Put(after) = change {
            prop_assert!(after.fence >= record.fence);
            prop_assert!(grant.is_none_or(|grant| grant.fence == after.fence));
        }
    }

    #[test]
    fn a_completed_record_changes_by_an_operator_or_past_retention_only(
        act in acts(), record in records(), now in times(),
    ) {
        let completed = matches!(record.state, State::Completed(_));
        let operator = matches!(act, Act::Resolve(_));
        if completed && !operator && !rules::past_retention(&record, now) {
            prop_assert_eq!(perform(act, &record, now), (None, Change::Keep));
        }
    }

    #[test]
    fn what_shows_as_completed_never_shows_otherwise(
        act in acts(), record in records(), now in times(), later in times(),
    ) {
        use semel_core::{Snapshot, Standing};
        let look = |record: Option<&Record>, at| match rules::view(record, at) {
            Some(Snapshot { standing: Standing::Completed { answer, .. }, .. }) => Some(answer),
            _ => None,
        };
        let Some(seen) = look(Some(&record), now) else { return Ok(()) };
        if matches!(act, Act::Resolve(_)) {
            return Ok(());
        }
        let later = later.max(now);
        let after = match perform(act, &record, later).1 {
            Change::Keep => Some(record.clone()),
            Change::Put(after) => Some(after),
            Change::Delete => None,
        };
        if !rules::past_retention(&record, later) {
            prop_assert_eq!(look(after.as_ref(), later), Some(seen));
        }
    }

    #[test]
    fn what_runs_or_is_held_never_expires(record in records(), now in times()) {
        if matches!(record.state, State::InFlight { .. } | State::Held) {
            prop_assert!(!rules::past_retention(&record, now));
            prop_assert!(rules::view(Some(&record), now).is_some());
        }
    }

    #[test]
    fn only_an_operator_deletes(act in acts(), record in records(), now in times()) {
        let (_, change) = perform(act, &record, now);
        prop_assert!(change != Change::Delete || act == Act::Resolve(2));
    }

    #[test]
    fn attempts_count_what_began(act in acts(), record in records(), now in times()) {
        let (grant, change) = perform(act, &record, now);
        let Change::Put(after) = change else { return Ok(()) };
        let anew = rules::past_retention(&record, now);
        let wanted = match (act, grant) {
            (Act::Claim { .. }, Some(_)) if anew => 1,
            (Act::Claim { .. }, Some(grant)) if grant.fence != record.fence => record.attempt + 1,
            (Act::Release(Tried::NotCounted), _) => record.attempt.saturating_sub(1),
            _ => record.attempt,
        };
        prop_assert_eq!(after.attempt, wanted);
        prop_assert!(grant.is_none_or(|grant| grant.attempt == wanted));
    }

    #[test]
    fn a_grant_is_never_given_against_a_living_lease(
        by in 0_u8..3, record in records(), now in times(),
    ) {
        let (grant, _) = perform(Act::Claim { owner: by, fingerprint: 0 }, &record, now);
        if let (State::InFlight { owner: holder, lease_until }, Some(_)) = (&record.state, grant) {
            prop_assert!(*holder == owner(by) || now > *lease_until);
            prop_assert_eq!(record.fingerprint, fingerprint(0));
        }
    }

    #[test]
    fn the_same_write_again_changes_nothing(
        act in acts(), record in records(), now in times(),
    ) {
        let repeatable = matches!(act, Act::Complete(_) | Act::Release(_) | Act::Hold | Act::Reap);
        if let (true, Change::Put(after)) = (repeatable, perform(act, &record, now).1) {
            prop_assert_eq!(perform(act, &after, now).1, Change::Keep);
        }
    }

    #[test]
    fn an_ending_is_kept_for_half_its_retention_at_least(
        act in acts(), record in records(), now in times(),
    ) {
        let ended = |state: &State| matches!(state, State::Completed(_) | State::Released);
        if let Change::Put(after) = perform(act, &record, now).1
            && ended(&after.state)
            && !ended(&record.state)
        {
            prop_assert!(after.expires_at >= record.expires_at);
            prop_assert!(after.expires_at.since(now) >= after.retention / 2);
        }
    }
}
