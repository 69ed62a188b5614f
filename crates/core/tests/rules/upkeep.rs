//! What a reaper does, and what a look shows.

use semel_core::{
    Finish, OnUnknown, Reason, Snapshot, State, StateName, StateView,
    rules::{self, Change},
};

use super::*;

#[test]
fn a_reaper_moves_lapsed_holds_and_fails_and_what_was_held_too_long() {
    let reap = |found: Option<&Record>| {
        ((), found.map_or(Change::Keep, |record| rules::reap(record, NOW)))
    };
    let keep = || ((), Change::Keep);
    check(
        reap,
        [
            keep(),
            keep(),
            ((), Change::Put(lease_expired(lapsed(OnUnknown::Hold)))),
            keep(),
            ((), Change::Put(failed(lapsed(OnUnknown::Fail), Reason::LeaseExpired))),
            keep(),
            keep(),
            keep(),
            keep(),
            keep(),
            keep(),
            ((), Change::Put(failed(held_too_long(), Reason::HoldExpired))),
        ],
    );
}

/// The state, how long ago the record ended, and why, as a look shows them.
type Shown = (StateView, Option<Duration>, Option<Reason>);

#[test]
fn a_look_shows_each_state_as_it_counts() {
    let zero = Duration::ZERO;
    let expires_in = RETENTION - AGE;
    let replay = StateView::Completed { answer: answer("recorded"), expires_in };
    let free = StateView::Released { expires_in };
    let timed_out = Some(Reason::TimedOut(60_000));
    let wanted: [Option<Shown>; COLUMNS] = [
        None,
        Some((StateView::InFlight { lease_left: LEASE - AGE }, None, None)),
        Some((StateView::Held, Some(TICK), Some(Reason::LeaseExpired))),
        Some((StateView::InFlight { lease_left: zero }, None, None)),
        Some((StateView::InFlight { lease_left: zero }, None, None)),
        Some((replay, Some(TICK), None)),
        None,
        Some((free.clone(), Some(TICK), Some(Reason::Answered(429)))),
        None,
        Some((free, Some(TICK), Some(Reason::NotSent))),
        Some((StateView::Held, Some(HOLD_FOR), timed_out.clone())),
        Some((StateView::Held, Some(HOLD_FOR + TICK), timed_out)),
    ];
    for ((name, found), wanted) in columns().into_iter().zip(wanted) {
        let seen = rules::view(found.as_ref(), NOW);
        let shown = |seen: &Snapshot| (seen.state.clone(), seen.ended, seen.reason.clone());
        assert_eq!(seen.as_ref().map(shown), wanted, "{name}");
        let (Some(seen), Some(record)) = (seen, found) else { continue };
        assert_eq!(seen.fingerprint, record.fingerprint, "{name}");
        assert_eq!((seen.fence, seen.attempt), (record.fence, record.attempt), "{name}");
        assert_eq!(seen.on_unknown, record.on_unknown, "{name}");
        assert_eq!(seen.hold_for, record.hold_for, "{name}");
        assert_eq!(seen.age, NOW.since(record.claimed_at), "{name}");
        assert_eq!(seen.about, record.about, "{name}");
        assert_eq!(seen.node, record.node, "{name}");
        assert_eq!(seen.captured, record.captured, "{name}");
    }
}

#[test]
fn a_look_shows_an_expired_lease_as_held_whether_or_not_a_reaper_has_come_by() {
    let lapsed = lapsed(OnUnknown::Hold);
    let Change::Put(reaped) = rules::reap(&lapsed, NOW) else { unreachable!("it is held") };
    for later in [Duration::ZERO, TICK, HOLD_FOR, RETENTION * 2] {
        let at = NOW.after(later);
        assert_eq!(rules::view(Some(&lapsed), at), rules::view(Some(&reaped), at), "{later:?}");
    }
}

#[test]
fn a_look_and_a_record_name_their_state_alike() {
    for record in [running(), completed(), released(), forgotten(), held()] {
        let seen = rules::view(Some(&record), NOW).map(|seen| seen.state.name());
        assert_eq!(seen, Some(record.state_name()));
    }
    let names = [StateName::InFlight, StateName::Completed, StateName::Released, StateName::Held];
    assert_eq!(names.map(StateName::as_str), ["in_flight", "completed", "released", "held"]);
}

// === hold_for ===

#[test]
fn hold_for_counts_from_the_end_of_the_lease_where_the_owner_was_silent() {
    let lapsed = lapsed(OnUnknown::Hold);
    let lease_until = before(TICK);
    let last = lease_until.after(HOLD_FOR);
    let held = lease_expired(lapsed.clone());
    assert_eq!(rules::reap(&lapsed, last), Change::Put(held.clone()));
    // However late the first reaper comes, the record has been held since its lease expired.
    let over = last.after(TICK);
    for found in [&lapsed, &held] {
        let Change::Put(after) = rules::reap(found, over) else { unreachable!("it ends") };
        let wanted = changed(failed(held.clone(), Reason::HoldExpired), |record| {
            record.ended_at = Some(over);
        });
        assert_eq!(after, wanted);
    }
}

#[test]
fn hold_for_counts_from_the_owners_word_where_it_said_hold() {
    let finish = Finish::hold(Reason::Panicked);
    let (_, Change::Put(held)) = rules::finish(Some(&running()), by(), &finish, NOW) else {
        unreachable!("it is held")
    };
    let last = NOW.after(HOLD_FOR);
    assert_eq!(rules::reap(&held, last), Change::Keep);
    assert_ne!(rules::reap(&held, last.after(TICK)), Change::Keep);
}

#[test]
fn a_record_without_hold_for_is_held_until_someone_resolves_it() {
    let held = changed(held(), |record| record.hold_for = None);
    let end = StoreTime::from_millis(u64::MAX);
    assert_eq!(rules::reap(&held, end), Change::Keep);
    let state = rules::view(Some(&held), end).map(|seen| seen.state);
    assert_eq!(state, Some(StateView::Held));
}

#[test]
fn a_late_answer_beats_an_unwritten_failure_by_hold_for() {
    let late = Finish::complete(answer("late"));
    let (_, Change::Put(after)) = rules::finish(Some(&held_too_long()), by(), &late, NOW) else {
        unreachable!("late truth beats a guess")
    };
    assert_eq!(after.state, State::Completed(answer("late")));
    assert_eq!(rules::reap(&after, NOW), Change::Keep);
}
