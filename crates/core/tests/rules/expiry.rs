//! How long an ended record is kept.

use semel_core::{
    Finish, RELEASED_RETENTION_MAX, Reason, Record, Release, State,
    rules::{self, Change},
};

use super::*;

const DAY: Duration = Duration::from_secs(24 * 60 * 60);

/// When a record in flight expires that has this retention and age and ends so.
fn expiry(retention: Duration, age: Duration, finish: &Finish) -> StoreTime {
    let record = changed(record(in_flight(LEASE), age), |record| {
        record.retention = retention;
        record.expires_at = record.claimed_at.after(retention);
    });
    match rules::finish(Some(&record), by(), finish, NOW).1 {
        Change::Put(after) => after.expires_at,
        other @ (Change::Keep | Change::Delete) => unreachable!("{finish:?}: {other:?}"),
    }
}

/// Ends after which the record is worth its whole retention.
fn kept() -> [Finish; 2] {
    [Finish::complete(answer("new")), Finish::release(Release::Rerun, Reason::Answered(503))]
}

/// Ends that prove that no work was begun.
fn not_begun() -> [Finish; 3] {
    [
        Finish::release(Release::NotSent, Reason::NotSent),
        Finish::release(Release::Refused, Reason::Answered(429)),
        Finish::forget(Reason::Answered(307)),
    ]
}

#[test]
fn an_ending_moves_no_expiry_while_half_of_the_retention_is_left() {
    for finish in kept().into_iter().chain(not_begun()) {
        let half = RETENTION / 2;
        assert_eq!(expiry(RETENTION, half, &finish), NOW.after(half), "{finish:?}");
        let restarted = expiry(RETENTION, half + TICK, &finish);
        assert_eq!(restarted, NOW.after(RETENTION), "{finish:?}");
    }
}

#[test]
fn holding_moves_no_expiry() {
    let hold = Finish::hold(Reason::Panicked);
    assert_eq!(expiry(RETENTION, RETENTION * 7, &hold), before(RETENTION * 6));
}

#[test]
fn an_execution_that_may_have_begun_is_kept_for_its_retention() {
    for finish in kept() {
        assert_eq!(expiry(DAY, AGE, &finish), NOW.after(DAY - AGE), "{finish:?}");
        assert_eq!(expiry(DAY, DAY, &finish), NOW.after(DAY), "{finish:?}");
    }
}

#[test]
fn an_execution_that_has_not_begun_is_kept_for_an_hour_at_most() {
    assert_eq!(RELEASED_RETENTION_MAX, Duration::from_secs(3600));
    for finish in not_begun() {
        for age in [Duration::ZERO, AGE, DAY / 2, DAY, DAY * 7] {
            let wanted = NOW.after(RELEASED_RETENTION_MAX);
            assert_eq!(expiry(DAY, age, &finish), wanted, "{finish:?} after {age:?}");
        }
        let shorter = RELEASED_RETENTION_MAX - TICK;
        let wanted = NOW.after(shorter);
        assert_eq!(expiry(shorter, Duration::ZERO, &finish), wanted, "{finish:?}");
    }
}

#[test]
fn a_failure_after_half_the_retention_restarts_retention() {
    let old =
        |state| changed(record(state, RETENTION * 7), |record| record.on_unknown = OnUnknown::Fail);
    let lapsed = old(State::InFlight { lease_until: before(TICK) });
    let held = changed(old(State::Held), |record| record.ended_at = Some(before(RETENTION)));
    for (record, reason) in [(lapsed, Reason::LeaseExpired), (held, Reason::HoldExpired)] {
        let restarted = |record: &mut Record| record.expires_at = NOW.after(RETENTION);
        let wanted = changed(failed(record.clone(), reason), restarted);
        assert_eq!(rules::reap(&record, NOW), Change::Put(wanted));
    }
}

#[test]
fn only_what_is_finished_passes_its_retention() {
    for (name, found) in columns() {
        let Some(record) = found else { continue };
        let finished = matches!(record.state, State::Completed(_) | State::Released);
        let over = name.ends_with("past retention");
        assert_eq!(rules::past_retention(&record, NOW), over, "{name}");
        let end = StoreTime::from_millis(u64::MAX);
        assert_eq!(rules::past_retention(&record, end), finished, "{name} at the end of time");
    }
}

#[test]
fn a_record_is_kept_to_its_last_millisecond() {
    for kept in [completed(), released(), forgotten()] {
        let last = kept.expires_at;
        assert!(!rules::past_retention(&kept, last));
        assert!(rules::past_retention(&kept, last.after(TICK)));
    }
}
