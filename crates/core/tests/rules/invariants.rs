//! What holds whatever is done to whatever record.

use proptest::prelude::*;
use semel_core::{
    Answer, Claimant, Claimed, Fence, Fenced, Finish, Grant, OnUnknown, RELEASED_RETENTION_MAX,
    Reason, Record, RecordAction, Release, Resolution, State, StoreTime,
    rules::{self, Change},
};

use super::{Duration, answer, changed, claim, fingerprint, owner, running};

/// The fence that a store would issue next.
const NEXT: u64 = 100;

/// Everything that can be done to a record.
#[derive(Clone, Debug, PartialEq, Eq)]
enum Act {
    Claim { owner: u8, fingerprint: u8 },
    Renew,
    Finish(Finish),
    Resolve(u8),
    Reap,
}

impl Act {
    /// Whether it ends the execution and says that no work was begun.
    fn says_nothing_ran(&self) -> bool {
        let Self::Finish(finish) = self else { return false };
        matches!(
            finish.action,
            RecordAction::Forget | RecordAction::Release(Release::NotSent | Release::Refused)
        )
    }
}

fn acts() -> impl Strategy<Value = Act> {
    prop_oneof![
        2 => (0_u8..3, 0_u8..2).prop_map(|(owner, fingerprint)| Act::Claim { owner, fingerprint }),
        1 => Just(Act::Renew),
        6 => finishes().prop_map(Act::Finish),
        2 => (0_u8..3).prop_map(Act::Resolve),
        2 => Just(Act::Reap),
    ]
}

fn finishes() -> impl Strategy<Value = Finish> {
    prop_oneof![
        (0_u8..3).prop_map(|number| Finish::complete(numbered(number))),
        Just(Finish::unknown(OnUnknown::Fail, Reason::Panicked)),
        Just(Finish::release(Release::NotSent, Reason::NotSent)),
        Just(Finish::release(Release::Refused, Reason::Answered(429))),
        Just(Finish::release(Release::Rerun, Reason::Answered(503))),
        Just(Finish::hold(Reason::TimedOut(7))),
        Just(Finish::forget(Reason::Answered(307))),
    ]
}

/// Small, so that ends and instants meet; some around half hours, because an hour is a limit.
fn millis() -> impl Strategy<Value = u64> {
    let half_hours = prop_oneof![3 => Just(0_u64), 1 => 0_u64..6];
    (half_hours, 0_u64..20).prop_map(|(half_hours, millis)| half_hours * 1_800_000 + millis)
}

fn times() -> impl Strategy<Value = StoreTime> {
    millis().prop_map(StoreTime::from_millis)
}

fn durations() -> impl Strategy<Value = Duration> {
    millis().prop_map(Duration::from_millis)
}

/// A state, and whether the record is forgotten.
fn states() -> impl Strategy<Value = (State, bool)> {
    prop_oneof![
        times().prop_map(|lease_until| (State::InFlight { lease_until }, false)),
        (0_u8..3).prop_map(|number| (State::Completed(numbered(number)), false)),
        any::<bool>().prop_map(|forgotten| (State::Released, forgotten)),
        Just((State::Held, false)),
    ]
}

fn records() -> impl Strategy<Value = Record> {
    let on_unknown =
        prop_oneof![Just(OnUnknown::Hold), Just(OnUnknown::Rerun), Just(OnUnknown::Fail)];
    let claimed = (0_u8..2, 1..NEXT, 0_u8..3, 1_u32..5, times());
    let kept = (durations(), times(), proptest::option::of(durations()), times());
    (claimed, on_unknown, kept, states()).prop_map(
        |((print, number, by, attempt, claimed_at), on_unknown, kept, (state, forgotten))| {
            let (retention, expires_at, hold_for, ended_at) = kept;
            let in_flight = matches!(state, State::InFlight { .. });
            let answered = matches!(state, State::Completed(_));
            changed(running(), |record| {
                record.fingerprint = (!forgotten).then(|| fingerprint(print));
                record.fence = Fence::new(number).unwrap();
                record.owner = owner(by);
                record.attempt = if forgotten { 0 } else { attempt };
                record.on_unknown = on_unknown;
                record.hold_for = hold_for;
                record.retention = retention;
                record.claimed_at = claimed_at;
                record.ended_at = (!in_flight).then_some(ended_at);
                record.expires_at = expires_at;
                record.reason = (!in_flight && !answered).then_some(Reason::Answered(599));
                record.state = state;
            })
        },
    )
}

fn numbered(number: u8) -> Answer {
    answer(&number.to_string())
}

/// What the act does to the record, and the grant it gives. Owners write with the current fence.
fn perform(act: &Act, record: &Record, now: StoreTime) -> (Option<Grant>, Change) {
    let (found, current) = (Some(record), record.fence);
    let next = Fence::new(NEXT).unwrap();
    let change = match act {
        Act::Claim { owner: by, fingerprint: print } => {
            let mut claim = claim();
            claim.owner = owner(*by);
            claim.fingerprint = fingerprint(*print);
            return match rules::claim(found, &claim, next, now) {
                (Claimed::Granted(grant), change) => (Some(grant), change),
                (Claimed::Occupied(_), change) => (None, change),
            };
        }
        Act::Renew => rules::renew(found, record.claimant(), claim().lease, now).1,
        Act::Finish(finish) => rules::finish(found, record.claimant(), finish, now).1,
        Act::Resolve(0) => {
            let act = Resolution::Completed(numbered(0));
            rules::resolve(found, current, &act, next, now).1
        }
        Act::Resolve(1) => rules::resolve(found, current, &Resolution::Released, next, now).1,
        Act::Resolve(_) => {
            let act = Resolution::Deleted(record.state_name());
            rules::resolve(found, current, &act, next, now).1
        }
        Act::Reap => rules::reap(record, now),
    };
    (None, change)
}

/// Whether the state is one that ends and expires.
fn is_finished(record: &Record) -> bool {
    matches!(record.state, State::Completed(_) | State::Released)
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 2048, ..ProptestConfig::default() })]

    #[test]
    fn a_fence_never_falls(act in acts(), record in records(), now in times()) {
        let (grant, change) = perform(&act, &record, now);
        if let Change::Put(after) = change {
            prop_assert!(after.fence >= record.fence);
            prop_assert!(grant.is_none_or(|grant| grant.fence == after.fence));
        }
    }

    #[test]
    fn only_the_owner_with_its_fence_writes(
        finish in finishes(), record in records(), number in 1..=NEXT, by in 0_u8..3,
        now in times(),
    ) {
        let by = Claimant::new(Fence::new(number).unwrap(), owner(by));
        let others = [
            by,
            Claimant::new(record.fence, by.owner),
            Claimant::new(by.fence, record.owner),
        ];
        for by in others.into_iter().filter(|by| *by != record.claimant()) {
            let lost = (Fenced::Lost, Change::Keep);
            prop_assert_eq!(rules::finish(Some(&record), by, &finish, now), lost.clone());
            prop_assert_eq!(rules::renew(Some(&record), by, claim().lease, now), lost);
        }
    }

    #[test]
    fn a_completed_record_changes_by_an_operator_or_past_retention_only(
        act in acts(), record in records(), now in times(),
    ) {
        let completed = matches!(record.state, State::Completed(_));
        let operator = matches!(act, Act::Resolve(_));
        if completed && !operator && !rules::past_retention(&record, now) {
            prop_assert_eq!(perform(&act, &record, now), (None, Change::Keep));
        }
    }

    #[test]
    fn a_record_seen_as_completed_stays_completed(
        act in acts(), record in records(), now in times(), later in times(),
    ) {
        use semel_core::{Snapshot, StateView};
        let look = |record: Option<&Record>, at| match rules::view(record, at) {
            Some(Snapshot { state: StateView::Completed { answer, .. }, .. }) => Some(answer),
            _ => None,
        };
        let Some(seen) = look(Some(&record), now) else { return Ok(()) };
        if matches!(act, Act::Resolve(_)) {
            return Ok(());
        }
        let later = later.max(now);
        let after = match perform(&act, &record, later).1 {
            Change::Keep => Some(record.clone()),
            Change::Put(after) => Some(after),
            Change::Delete => None,
        };
        if !rules::past_retention(&record, later) {
            prop_assert_eq!(look(after.as_ref(), later), Some(seen));
        }
    }

    #[test]
    fn a_running_or_held_record_never_expires(record in records(), now in times()) {
        if matches!(record.state, State::InFlight { .. } | State::Held) {
            prop_assert!(!rules::past_retention(&record, now));
            prop_assert!(rules::view(Some(&record), now).is_some());
        }
    }

    #[test]
    fn only_an_operator_deletes(act in acts(), record in records(), now in times()) {
        let (_, change) = perform(&act, &record, now);
        prop_assert!(change != Change::Delete || act == Act::Resolve(2));
    }

    #[test]
    fn attempts_count_what_began(act in acts(), record in records(), now in times()) {
        let (grant, change) = perform(&act, &record, now);
        let Change::Put(after) = change else { return Ok(()) };
        let restarted = rules::past_retention(&record, now);
        let action = if let Act::Finish(finish) = &act { Some(&finish.action) } else { None };
        let wanted = match (action, grant) {
            (None, Some(_)) if restarted => 1,
            (None, Some(grant)) if grant.fence != record.fence => record.attempt + 1,
            (Some(RecordAction::Release(Release::NotSent)), _) => record.attempt - 1,
            (Some(RecordAction::Forget), _) => 0,
            _ => record.attempt,
        };
        prop_assert_eq!(after.attempt, wanted);
        prop_assert!(grant.is_none_or(|grant| grant.attempt == wanted));
        let forgotten = after.state == State::Released && wanted == 0;
        prop_assert_eq!(after.is_forgotten(), forgotten);
    }

    #[test]
    fn a_grant_is_never_given_against_a_living_lease(
        by in 0_u8..3, record in records(), now in times(),
    ) {
        let (grant, _) = perform(&Act::Claim { owner: by, fingerprint: 0 }, &record, now);
        if let (State::InFlight { lease_until }, Some(_)) = (&record.state, grant) {
            prop_assert!(record.owner == owner(by) || now > *lease_until);
            prop_assert_eq!(record.fingerprint, Some(fingerprint(0)));
        }
    }

    #[test]
    fn a_claim_is_never_granted_to_the_owner_of_a_release(
        print in 0_u8..2, record in records(), now in times(),
    ) {
        if record.state == State::Released && !rules::past_retention(&record, now) {
            let mut duplicate = claim();
            (duplicate.owner, duplicate.fingerprint) = (record.owner, fingerprint(print));
            let result = rules::claim(Some(&record), &duplicate, Fence::new(NEXT).unwrap(), now);
            prop_assert!(matches!(result, (Claimed::Occupied(_), Change::Keep)));
        }
    }

    #[test]
    fn the_same_write_again_is_applied_and_changes_nothing(
        finish in finishes(), record in records(), now in times(),
    ) {
        let by = record.claimant();
        if let (_, Change::Put(after)) = rules::finish(Some(&record), by, &finish, now)
            && !rules::past_retention(&after, now)
        {
            let result = rules::finish(Some(&after), by, &finish, now);
            prop_assert_eq!(result, (Fenced::Applied, Change::Keep));
        }
    }

    #[test]
    fn a_reaper_that_comes_again_changes_nothing(record in records(), now in times()) {
        if let Change::Put(after) = rules::reap(&record, now) {
            prop_assert_eq!(rules::reap(&after, now), Change::Keep);
        }
    }

    #[test]
    fn a_record_whose_execution_has_not_begun_expires_within_an_hour(
        act in acts(), record in records(), now in times(),
    ) {
        if let Change::Put(after) = perform(&act, &record, now).1
            && act.says_nothing_ran()
        {
            prop_assert_eq!(&after.state, &State::Released);
            prop_assert!(after.expires_at <= now.after(RELEASED_RETENTION_MAX));
            let least = (record.retention / 2).min(RELEASED_RETENTION_MAX);
            prop_assert!(after.expires_at.since(now) >= least);
        }
    }

    #[test]
    fn every_other_ending_is_kept_for_half_its_retention_at_least(
        act in acts(), record in records(), now in times(),
    ) {
        if let Change::Put(after) = perform(&act, &record, now).1
            && is_finished(&after)
            && !is_finished(&record)
            && !act.says_nothing_ran()
        {
            prop_assert!(after.expires_at >= record.expires_at);
            prop_assert!(after.expires_at.since(now) >= after.retention / 2);
        }
    }

    #[test]
    fn a_record_says_when_and_why_it_ended(act in acts(), record in records(), now in times()) {
        let Change::Put(after) = perform(&act, &record, now).1 else { return Ok(()) };
        let in_flight = matches!(after.state, State::InFlight { .. });
        prop_assert_eq!(after.ended_at.is_none(), in_flight);
        prop_assert!(after.ended_at.is_none_or(|ended_at| ended_at <= now));
        let answered = matches!(&after.state, State::Completed(kept) if *kept != Answer::failed());
        let resolved = matches!(act, Act::Resolve(_));
        prop_assert_eq!(after.reason.is_none(), in_flight || (answered && !resolved));
    }

    #[test]
    fn the_description_of_a_record_changes_only_with_a_new_claim(
        act in acts(), record in records(), now in times(),
    ) {
        let (grant, change) = perform(&act, &record, now);
        let Change::Put(after) = change else { return Ok(()) };
        let taken = grant.is_some_and(|grant| grant.fence != record.fence);
        let wanted = if taken { claim() } else {
            let mut same = claim();
            same.about = record.about.clone();
            same.node = record.node.clone();
            same.captured = record.captured.clone();
            same.owner = record.owner;
            same
        };
        prop_assert_eq!(after.about, wanted.about);
        prop_assert_eq!(after.node, wanted.node);
        prop_assert_eq!(after.captured, wanted.captured);
        prop_assert!(taken || after.owner == wanted.owner);
    }
}
