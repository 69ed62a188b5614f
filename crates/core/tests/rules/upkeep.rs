//! What a reaper and a sweep do, and what a look shows.

use semel_core::{
    Answer, OnUnknown, Snapshot, Standing, State, StateName,
    rules::{self, Change},
};

use super::*;

#[test]
fn a_reaper_moves_lapsed_holds_and_fails_only() {
    let reap = |found: Option<&Record>| {
        ((), found.map_or(Change::Keep, |record| rules::reap(record, NOW)))
    };
    let keep = || ((), Change::Keep);
    check(
        reap,
        [
            keep(),
            keep(),
            ((), put(lapsed(OnUnknown::Hold), State::Held)),
            keep(),
            ((), put(lapsed(OnUnknown::Fail), State::Completed(Answer::failed()))),
            keep(),
            keep(),
            keep(),
            keep(),
            keep(),
        ],
    );
}

#[test]
fn a_failure_after_half_the_retention_is_kept_anew() {
    let old = Record { claimed_at: StoreTime::from_millis(0), ..lapsed(OnUnknown::Fail) };
    let old = Record { expires_at: StoreTime::from_millis(1), ..old };
    let anew = Record { expires_at: NOW.after(RETENTION), ..old.clone() };
    assert_eq!(rules::reap(&old, NOW), put(anew, State::Completed(Answer::failed())));
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
    let last = record(State::Released, RETENTION);
    assert!(!rules::past_retention(&last, NOW));
    assert!(rules::past_retention(&last, NOW.after(TICK)));
}

#[test]
fn a_look_shows_each_state_as_it_counts() {
    let (none, zero) = (None::<Standing>, Duration::ZERO);
    let expires_in = RETENTION - AGE;
    let wanted = [
        none.clone(),
        Some(Standing::InFlight { lease_left: LEASE - AGE }),
        Some(Standing::Held),
        Some(Standing::InFlight { lease_left: zero }),
        Some(Standing::InFlight { lease_left: zero }),
        Some(Standing::Completed { answer: answer("recorded"), expires_in }),
        none.clone(),
        Some(Standing::Released { expires_in }),
        none,
        Some(Standing::Held),
    ];
    for ((name, found), wanted) in columns().into_iter().zip(wanted) {
        let wanted = wanted.zip(found.as_ref()).map(|(standing, record)| Snapshot {
            fingerprint: record.fingerprint,
            fence: record.fence,
            attempt: record.attempt,
            on_unknown: record.on_unknown,
            age: NOW.since(record.claimed_at),
            standing,
        });
        assert_eq!(rules::view(found.as_ref(), NOW), wanted, "{name}");
    }
}

#[test]
fn a_look_and_a_record_name_their_state_alike() {
    for record in [running(), completed(), released(), held()] {
        let seen = rules::view(Some(&record), NOW).map(|seen| seen.standing.name());
        assert_eq!(seen, Some(record.state_name()));
    }
    let names = [StateName::InFlight, StateName::Completed, StateName::Released, StateName::Held];
    assert_eq!(names.map(StateName::as_str), ["in_flight", "completed", "released", "held"]);
}
