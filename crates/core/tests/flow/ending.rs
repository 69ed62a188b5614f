//! What ends an execution, and what is made of it.

use semel_core::{
    Answer, Ended, Ending, Fenced, Flow, OnUnknown, Problem, Reply, Standing, Step, StoredResponse,
    Tried, Verdict,
};

use super::*;

/// What is written when `ended` ends it, and what the client gets once that is durable.
fn ends(on_unknown: OnUnknown, ended: Ended) -> (Ending, Reply) {
    let mut flow = running(on_unknown);
    let Step::Record(fence, ending) = flow.on_ended(ended, at(5)) else { panic!("not recorded") };
    assert_eq!(fence, GRANT.fence);
    let Step::Reply(reply) = flow.on_recorded(Fenced::Applied, at(6)) else { panic!("no reply") };
    assert!(flow.is_done());
    (ending, reply)
}

/// A request whose ending, sent at 0 ms, the store has not taken.
fn unrecorded(ended: Ended) -> (Flow, Step) {
    let mut flow = running(OnUnknown::Hold);
    let record = flow.on_ended(ended, at(0));
    (flow, record)
}

#[test]
fn what_was_never_reached_is_released_and_not_counted() {
    let (ending, reply) = ends(OnUnknown::Hold, Ended::NeverReached);
    assert_eq!(ending, Ending::Release(Tried::NotCounted));
    assert_eq!(reply, Reply::Problem(Problem::UpstreamUnreachable));
}

#[test]
fn a_kept_answer_is_recorded_before_it_is_given() {
    let (ending, reply) = ends(OnUnknown::Hold, answered(Verdict::Completed));
    assert_eq!(ending, Ending::Complete(answer()));
    assert_eq!(reply, Reply::Ran(answer()));
}

#[test]
fn an_answer_that_says_try_again_is_released_and_counted() {
    let (ending, reply) = ends(OnUnknown::Hold, answered(Verdict::Retry));
    assert_eq!(ending, Ending::Release(Tried::Counted));
    assert_eq!(reply, Reply::Ran(answer()));
}

#[test]
fn an_answer_that_hides_what_happened_is_given_and_ends_by_on_unknown() {
    for (on_unknown, expected) in [
        (OnUnknown::Hold, Ending::Hold),
        (OnUnknown::Rerun, Ending::Release(Tried::Counted)),
        (OnUnknown::Fail, Ending::Complete(Answer::failed())),
    ] {
        let (ending, reply) = ends(on_unknown, answered(Verdict::Unknown));
        assert_eq!(ending, expected);
        assert_eq!(reply, Reply::Ran(answer()));
    }
}

#[test]
fn what_breaks_ends_by_on_unknown() {
    for (on_unknown, expected) in [
        (OnUnknown::Hold, Ending::Hold),
        (OnUnknown::Rerun, Ending::Release(Tried::Counted)),
        (OnUnknown::Fail, Ending::Complete(Answer::failed())),
    ] {
        let (ending, reply) = ends(on_unknown, Ended::Broken);
        assert_eq!(ending, expected);
        assert_eq!(reply, Reply::Problem(Problem::UpstreamTimeout));
    }
}

#[test]
fn recording_is_tried_on_and_the_client_is_told_that_it_is_not_durable() {
    let (mut flow, record) = unrecorded(answered(Verdict::Completed));
    assert_eq!(flow.on_record_failed(&unavailable().effect_unknown(), at(0)), Step::Sleep);
    let again = flow.alarm().unwrap();
    assert_eq!(flow.on_tick(again), record, "the same fence and bytes");
    let told = flow.on_record_failed(&unavailable(), at(10_000));
    assert_eq!(told, problem(Problem::OutcomeUnrecorded));
    assert!(!flow.is_done());
    // For as long as the fence is ours, and without a second reply.
    let mut now = at(10_000);
    for _ in 0..50 {
        now = flow.alarm().unwrap();
        assert_eq!(flow.on_tick(now), record);
        assert_eq!(flow.on_record_failed(&unavailable(), now), Step::Sleep);
    }
    assert!(now > at(60_000));
    assert_eq!(flow.on_recorded(Fenced::Applied, now), Step::Done);
    assert!(flow.is_done());
}

#[test]
fn an_answer_recorded_at_the_second_try_is_given() {
    let (mut flow, record) = unrecorded(answered(Verdict::Completed));
    assert_eq!(flow.on_record_failed(&unavailable().effect_unknown(), at(0)), Step::Sleep);
    let again = flow.alarm().unwrap();
    assert_eq!(flow.on_tick(again), record);
    assert_eq!(flow.on_recorded(Fenced::Applied, again), Step::Reply(Reply::Ran(answer())));
}

#[test]
fn what_promises_nothing_is_told_although_it_is_not_recorded() {
    let (mut flow, _) = unrecorded(answered(Verdict::Retry));
    let step = flow.on_record_failed(&unavailable(), at(10_000));
    assert_eq!(step, Step::Reply(Reply::Ran(answer())));
    assert!(!flow.is_done(), "the release is tried on");
}

#[test]
fn an_answer_too_large_for_the_store_is_recorded_without_its_body() {
    let large = Answer::response(&StoredResponse {
        status: 201,
        body: vec![0; 5000].into(),
        ..StoredResponse::default()
    });
    let ended = Ended::Answered { verdict: Verdict::Completed, answer: large.clone() };
    let (mut flow, _) = unrecorded(ended);
    let too_large = StoreError::new(StoreErrorKind::TooLarge, "too large");
    let smaller = Ending::Complete(Answer::not_retained(201));
    let step = flow.on_record_failed(&too_large, at(1));
    assert_eq!(step, Step::Record(GRANT.fence, smaller));
    // The client that ran it gets all of it.
    assert_eq!(flow.on_recorded(Fenced::Applied, at(2)), Step::Reply(Reply::Ran(large)));
}

#[test]
fn a_lost_fence_means_that_the_client_gets_what_the_record_says() {
    let lost = || {
        let (mut flow, _) = unrecorded(answered(Verdict::Completed));
        assert_eq!(flow.on_recorded(Fenced::Lost, at(1)), Step::Look);
        flow
    };
    let theirs = Answer::not_retained(202);
    let standing =
        Standing::Completed { answer: theirs.clone(), expires_in: Duration::from_secs(60) };
    let step = lost().on_seen(Some(&snapshot(standing)), at(2));
    assert_eq!(step, Step::Reply(Reply::Replayed(theirs)));
    for (standing, expected) in [
        (Standing::Held, Problem::OutcomeUnknown),
        (Standing::InFlight { lease_left: LEASE }, Problem::InProgress),
        (Standing::Released { expires_in: LEASE }, Problem::OutcomeUnrecorded),
    ] {
        assert_eq!(lost().on_seen(Some(&snapshot(standing)), at(2)), problem(expected));
    }
    assert_eq!(lost().on_seen(None, at(2)), problem(Problem::OutcomeUnrecorded));
    let other = Snapshot { fingerprint: fingerprint(2), ..completed() };
    assert_eq!(lost().on_seen(Some(&other), at(2)), problem(Problem::OutcomeUnrecorded));
    assert_eq!(lost().on_look_failed(at(2)), problem(Problem::OutcomeUnrecorded));
}

#[test]
fn a_lease_is_renewed_at_a_third_of_it() {
    let mut flow = running(OnUnknown::Hold);
    for third in 1..=5 {
        let due = at(third * 10_000);
        assert_eq!(flow.alarm(), Some(due));
        assert_eq!(flow.on_tick(due), Step::Renew(GRANT.fence));
        // However long the reply takes, the next third is counted from the asking.
        let heard = due.after(Duration::from_millis(700));
        assert_eq!(flow.on_renewed(Some(Fenced::Applied), heard), Step::Sleep);
    }
}

#[test]
fn a_renewal_that_fails_is_tried_again_soon() {
    let mut flow = running(OnUnknown::Hold);
    assert_eq!(flow.on_tick(at(10_000)), Step::Renew(GRANT.fence));
    assert_eq!(flow.on_renewed(None, at(10_500)), Step::Sleep);
    assert_eq!(flow.alarm(), Some(at(13_500)));
}

#[test]
fn a_lost_lease_does_not_stop_what_was_begun() {
    let mut flow = running(OnUnknown::Hold);
    assert_eq!(flow.on_tick(at(10_000)), Step::Renew(GRANT.fence));
    assert_eq!(flow.on_renewed(Some(Fenced::Lost), at(10_500)), Step::Sleep);
    assert_eq!(flow.alarm(), None, "there is nothing to renew");
    let step = flow.on_ended(answered(Verdict::Completed), at(90_000));
    assert_eq!(step, Step::Record(GRANT.fence, Ending::Complete(answer())), "late truth");
}

#[test]
fn a_renewal_that_is_answered_after_the_end_changes_nothing() {
    let mut flow = running(OnUnknown::Hold);
    assert_eq!(flow.on_tick(at(10_000)), Step::Renew(GRANT.fence));
    let _ = flow.on_ended(answered(Verdict::Completed), at(10_100));
    let before = flow.clone();
    assert_eq!(flow.on_renewed(Some(Fenced::Lost), at(10_200)), Step::Sleep);
    assert_eq!(flow, before);
}
