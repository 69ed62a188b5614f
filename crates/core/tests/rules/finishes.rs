//! The result of `rules::finish` in each state, with the current fence and owner token.

use semel_core::{
    Answer, Claimed, Fenced, Finish, Occupied, OnUnknown, Reason, Record, RecordAction, Release,
    State, Verdict,
    rules::{self, Change},
};

use super::*;

fn lost() -> (Fenced, Change) {
    (Fenced::Lost, Change::Keep)
}

/// The result of a finish that is repeated after its reply was lost (law 6).
fn repeated() -> (Fenced, Change) {
    (Fenced::Applied, Change::Keep)
}

/// Expected results in the states in which the execution has already ended.
struct ExpectedWhenEnded {
    completed: (Fenced, Change),
    released: (Fenced, Change),
    held: Option<(Fenced, Change)>,
}

/// Checks a finish in every state. `expected` maps a record in flight to the record after the
/// finish.
fn check_finish(finish: &Finish, expected: impl Fn(Record) -> Record, found: &ExpectedWhenEnded) {
    let applied = |record| (Fenced::Applied, Change::Put(expected(record)));
    let finished_held = |record| found.held.clone().unwrap_or_else(|| applied(record));
    check(
        |found| rules::finish(found, by(), finish, NOW),
        [
            lost(),
            applied(running()),
            applied(lapsed(OnUnknown::Hold)),
            applied(lapsed(OnUnknown::Rerun)),
            applied(lapsed(OnUnknown::Fail)),
            found.completed.clone(),
            lost(),
            found.released.clone(),
            lost(),
            found.released.clone(),
            finished_held(held()),
            finished_held(held_too_long()),
        ],
    );
}

#[test]
fn an_answer_completes_what_is_in_flight_or_held_and_leaves_no_reason() {
    let finish = Finish::complete(answer("new"));
    let ends = |record| {
        changed(record, |record| {
            record.state = State::Completed(answer("new"));
            record.ended_at = Some(NOW);
            record.reason = None;
        })
    };
    check_finish(
        &finish,
        ends,
        &ExpectedWhenEnded { completed: lost(), released: lost(), held: None },
    );
}

#[test]
fn a_repeated_answer_is_applied_and_writes_nothing() {
    let same = Finish::complete(answer("recorded"));
    assert_eq!(rules::finish(Some(&completed()), by(), &same, NOW), repeated());
    assert_eq!(rules::finish(Some(&past(completed())), by(), &same, NOW), lost());
}

#[test]
fn a_refusal_releases_and_counts_its_attempt() {
    let finish = Finish::release(Release::Refused, Reason::Answered(403));
    let ends = |record| ended(record, State::Released, NOW, Reason::Answered(403));
    check_finish(
        &finish,
        ends,
        &ExpectedWhenEnded { completed: lost(), released: repeated(), held: None },
    );
}

#[test]
fn an_unknown_outcome_on_a_rerun_route_releases_and_counts_its_attempt() {
    let finish = Finish::unknown(OnUnknown::Rerun, Reason::Answered(503));
    assert_eq!(finish.action, RecordAction::Release(Release::Rerun));
    let ends = |record| ended(record, State::Released, NOW, Reason::Answered(503));
    check_finish(
        &finish,
        ends,
        &ExpectedWhenEnded { completed: lost(), released: repeated(), held: None },
    );
}

#[test]
fn a_request_that_was_not_sent_is_not_counted_as_an_attempt() {
    let finish = Finish::release(Release::NotSent, Reason::NotSent);
    let ends = |record| {
        let released = ended(record, State::Released, NOW, Reason::NotSent);
        changed(released, |record| record.attempt = 1)
    };
    check_finish(
        &finish,
        ends,
        &ExpectedWhenEnded { completed: lost(), released: repeated(), held: None },
    );
}

#[test]
fn a_first_attempt_that_was_not_sent_is_forgotten() {
    let finish = Finish::release(Release::NotSent, Reason::NotSent);
    for attempt in [0, 1] {
        let first = changed(running(), |record| record.attempt = attempt);
        let wanted =
            changed(ended(first.clone(), State::Released, NOW, Reason::NotSent), |record| {
                record.fingerprint = None;
                record.attempt = 0;
            });
        assert!(wanted.is_forgotten());
        let result = rules::finish(Some(&first), by(), &finish, NOW);
        assert_eq!(result, (Fenced::Applied, Change::Put(wanted)));
    }
}

#[test]
fn forgetting_keeps_the_row_with_its_fence_and_owner() {
    let finish = Finish::forget(Reason::Answered(307));
    let ends = |record| {
        let released = ended(record, State::Released, NOW, Reason::Answered(307));
        changed(released, |record| {
            record.fingerprint = None;
            record.attempt = 0;
        })
    };
    assert_eq!(ends(running()).claimant(), by());
    check_finish(
        &finish,
        ends,
        &ExpectedWhenEnded { completed: lost(), released: repeated(), held: None },
    );
}

#[test]
fn an_unknown_outcome_holds_what_is_in_flight() {
    let finish = Finish::unknown(OnUnknown::Hold, Reason::ConnectionLost(312));
    assert_eq!(finish.action, RecordAction::Hold);
    let ends = |record| ended(record, State::Held, NOW, Reason::ConnectionLost(312));
    let found = ExpectedWhenEnded { completed: lost(), released: lost(), held: Some(repeated()) };
    check_finish(&finish, ends, &found);
}

#[test]
fn an_unknown_outcome_on_a_fail_route_completes_with_its_reason() {
    let finish = Finish::unknown(OnUnknown::Fail, Reason::Panicked);
    assert_eq!(finish.action, RecordAction::Complete(Answer::failed()));
    let ends = |record| failed(record, Reason::Panicked);
    check_finish(
        &finish,
        ends,
        &ExpectedWhenEnded { completed: lost(), released: lost(), held: None },
    );
    let once = failed(running(), Reason::Panicked);
    assert_eq!(rules::finish(Some(&once), by(), &finish, NOW), repeated());
}

/// The record after this finish, which must be applied.
fn finished(record: &Record, finish: &Finish) -> Record {
    match rules::finish(Some(record), by(), finish, NOW) {
        (Fenced::Applied, Change::Put(after)) => after,
        other => unreachable!("{finish:?} of {record:?}: {other:?}"),
    }
}

#[test]
fn a_forget_can_be_repeated_after_a_lost_reply_until_another_claim() {
    let forget = Finish::forget(Reason::Declared(Verdict::Forget));
    let forgotten = finished(&running(), &forget);
    for later in [Duration::ZERO, TICK, RETENTION / 2] {
        let result = rules::finish(Some(&forgotten), by(), &forget, NOW.after(later));
        assert_eq!(result, repeated(), "after {later:?}");
    }

    // Another request takes the key. The retry of the forget must not free it again.
    let mut other = claim();
    other.fingerprint = fingerprint(2);
    let (_, Change::Put(taken)) = rules::claim(Some(&forgotten), &other, fence(9), NOW) else {
        unreachable!("a forgotten record is granted")
    };
    assert_eq!(taken.attempt, 1);
    assert_eq!(rules::finish(Some(&taken), by(), &forget, NOW), lost());
}

#[test]
fn a_stale_duplicate_of_a_claim_is_recognised_after_every_release() {
    let mut stale = claim();
    stale.owner = owner(1);
    let first = changed(running(), |record| record.attempt = 1);
    for finish in [
        Finish::release(Release::NotSent, Reason::NotSent),
        Finish::release(Release::Refused, Reason::Answered(429)),
        Finish::release(Release::Rerun, Reason::Answered(503)),
        Finish::forget(Reason::Answered(421)),
    ] {
        let after = finished(&first, &finish);
        let result = rules::claim(Some(&after), &stale, fence(9), NOW);
        let ended = Claimed::Occupied(Occupied::Ended);
        assert_eq!(result, (ended, Change::Keep), "{finish:?}");
    }
}
