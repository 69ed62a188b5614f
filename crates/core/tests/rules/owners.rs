//! What an owner may write, with the current fence and with another.

use semel_core::{
    Fenced, OnUnknown, Record, State, Tried,
    rules::{self, Change},
};

use super::*;

fn lost() -> (Fenced, Change) {
    (Fenced::Lost, Change::Keep)
}

fn again() -> (Fenced, Change) {
    (Fenced::Applied, Change::Keep)
}

fn applied(record: Record, state: State) -> (Fenced, Change) {
    (Fenced::Applied, put(record, state))
}

#[test]
fn a_renewal_extends_what_is_in_flight() {
    let renewed = |record| applied(record, in_flight(LEASE));
    check(
        |found| rules::renew(found, fence(7), LEASE, NOW),
        [
            lost(),
            renewed(running()),
            renewed(lapsed(OnUnknown::Hold)),
            renewed(lapsed(OnUnknown::Rerun)),
            renewed(lapsed(OnUnknown::Fail)),
            lost(),
            lost(),
            lost(),
            lost(),
            lost(),
        ],
    );
}

#[test]
fn a_renewal_never_shortens_the_lease() {
    let (told, change) = rules::renew(Some(&running()), fence(7), TICK, NOW);
    assert_eq!((told, change), (Fenced::Applied, Change::Put(running())));
}

#[test]
fn an_answer_completes_what_is_in_flight_or_held() {
    let answer = answer("new");
    let done = |record| applied(record, State::Completed(answer.clone()));
    check(
        |found| rules::complete(found, fence(7), &answer, NOW),
        [
            lost(),
            done(running()),
            done(lapsed(OnUnknown::Hold)),
            done(lapsed(OnUnknown::Rerun)),
            done(lapsed(OnUnknown::Fail)),
            lost(),
            lost(),
            lost(),
            lost(),
            done(held()),
        ],
    );
}

#[test]
fn a_repeated_answer_is_applied_and_writes_nothing() {
    let same = answer("recorded");
    assert_eq!(rules::complete(Some(&completed()), fence(7), &same, NOW), again());
    assert_eq!(rules::complete(Some(&past(completed())), fence(7), &same, NOW), lost());
}

#[test]
fn a_release_frees_what_is_in_flight_or_held() {
    let freed = |record| applied(record, State::Released);
    check(
        |found| rules::release(found, fence(7), Tried::Counted, NOW),
        [
            lost(),
            freed(running()),
            freed(lapsed(OnUnknown::Hold)),
            freed(lapsed(OnUnknown::Rerun)),
            freed(lapsed(OnUnknown::Fail)),
            lost(),
            lost(),
            again(),
            lost(),
            freed(held()),
        ],
    );
}

#[test]
fn a_release_of_what_never_began_takes_its_attempt_back_once() {
    let freed = |record| applied(Record { attempt: 1, ..record }, State::Released);
    check(
        |found| rules::release(found, fence(7), Tried::NotCounted, NOW),
        [
            lost(),
            freed(running()),
            freed(lapsed(OnUnknown::Hold)),
            freed(lapsed(OnUnknown::Rerun)),
            freed(lapsed(OnUnknown::Fail)),
            lost(),
            lost(),
            again(),
            lost(),
            freed(held()),
        ],
    );
}

#[test]
fn an_unknown_outcome_holds_what_is_in_flight() {
    let holds = |record| applied(record, State::Held);
    check(
        |found| rules::hold(found, fence(7), NOW),
        [
            lost(),
            holds(running()),
            holds(lapsed(OnUnknown::Hold)),
            holds(lapsed(OnUnknown::Rerun)),
            holds(lapsed(OnUnknown::Fail)),
            lost(),
            lost(),
            lost(),
            lost(),
            again(),
        ],
    );
}

#[test]
fn another_fence_writes_nothing_in_any_state() {
    for (name, found) in columns() {
        let found = found.as_ref();
        for number in [1, 6, 8, u64::MAX] {
            let told = [
                rules::renew(found, fence(number), LEASE, NOW),
                rules::complete(found, fence(number), &answer("recorded"), NOW),
                rules::release(found, fence(number), Tried::Counted, NOW),
                rules::release(found, fence(number), Tried::NotCounted, NOW),
                rules::hold(found, fence(number), NOW),
            ];
            assert_eq!(told, [(); 5].map(|()| lost()), "{name}, fence {number}");
        }
    }
}

#[test]
fn an_ending_moves_no_expiry_while_half_of_the_retention_is_left() {
    let half = record(in_flight(LEASE), RETENTION / 2);
    let kept = half.expires_at;
    let (_, change) = rules::release(Some(&half), fence(7), Tried::Counted, NOW);
    assert_eq!(change, put(half, State::Released));
    let late = record(in_flight(LEASE), RETENTION / 2 + TICK);
    let (_, change) = rules::release(Some(&late), fence(7), Tried::Counted, NOW);
    let anew = Record { expires_at: NOW.after(RETENTION), ..late };
    assert_ne!(anew.expires_at, kept);
    assert_eq!(change, put(anew, State::Released));
}
