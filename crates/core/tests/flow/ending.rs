//! What ends an execution, and what is made of it.

use semel_core::{
    Action, Answer, ExecutionResult, Fenced, Finish, Flow, OnUnknown, Problem, Reason,
    RecordAction, Release, Reply, StateView, StoredResponse, Verdict,
};

use super::*;

/// What is written when an execution ends so, and what the client gets once that is durable.
fn ends(on_unknown: OnUnknown, result: ExecutionResult) -> (Finish, Reply) {
    let mut flow = running(on_unknown);
    let Action::Record(fence, finish) = flow.on_ended(result, at(5)) else {
        panic!("not recorded")
    };
    assert_eq!(fence, GRANT.fence);
    let Action::Reply(reply) = flow.on_recorded(Fenced::Applied, at(6)) else { panic!("no reply") };
    assert!(flow.is_done());
    (finish, reply)
}

/// A request whose ending, sent at 0 ms, the store has not taken.
fn unrecorded(result: ExecutionResult) -> (Flow, Action) {
    unrecorded_on(OnUnknown::Hold, result)
}

fn unrecorded_on(on_unknown: OnUnknown, result: ExecutionResult) -> (Flow, Action) {
    let mut flow = running(on_unknown);
    let record = flow.on_ended(result, at(0));
    (flow, record)
}

/// The reason that [`answered`] gives.
fn reason() -> Reason {
    Reason::Answered(201)
}

#[test]
fn an_unreached_operation_is_released_and_counts_no_attempt() {
    let (finish, reply) = ends(OnUnknown::Hold, ExecutionResult::NeverReached);
    assert_eq!(finish, Finish::release(Release::NotSent, Reason::NotSent));
    assert_eq!(reply, Reply::Problem(Problem::UpstreamUnreachable));
}

#[test]
fn a_kept_answer_is_recorded_before_it_is_given() {
    let (finish, reply) = ends(OnUnknown::Hold, answered(Verdict::Completed));
    assert_eq!(finish, Finish::complete(answer()));
    assert_eq!(finish.reason, None);
    assert_eq!(reply, Reply::Ran(answer()));
}

#[test]
fn an_answer_that_says_try_again_is_released_and_counted() {
    let (finish, reply) = ends(OnUnknown::Hold, answered(Verdict::Retry));
    assert_eq!(finish, Finish::release(Release::Refused, reason()));
    assert_eq!(reply, Reply::Ran(answer()));
}

#[test]
fn an_answer_that_frees_the_key_for_any_request_is_forgotten() {
    for on_unknown in [OnUnknown::Hold, OnUnknown::Rerun, OnUnknown::Fail] {
        let (finish, reply) = ends(on_unknown, answered(Verdict::Forget));
        assert_eq!(finish, Finish::forget(reason()));
        assert_eq!(reply, Reply::Ran(answer()));
    }
}

/// What is written when the outcome is unknown, by what the route says.
fn by_on_unknown() -> [(OnUnknown, RecordAction); 3] {
    [
        (OnUnknown::Hold, RecordAction::Hold),
        (OnUnknown::Rerun, RecordAction::Release(Release::Rerun)),
        (OnUnknown::Fail, RecordAction::Complete(Answer::failed())),
    ]
}

/// What the client gets: its own reply, unless the route says `fail`.
fn expected_reply(on_unknown: OnUnknown, own: Reply) -> Reply {
    match on_unknown {
        OnUnknown::Hold | OnUnknown::Rerun => own,
        OnUnknown::Fail => Reply::Problem(Problem::OperationFailed),
    }
}

#[test]
fn an_answer_that_proves_nothing_ends_by_on_unknown() {
    for (on_unknown, action) in by_on_unknown() {
        let (finish, reply) = ends(on_unknown, answered(Verdict::Unknown));
        assert_eq!(finish.action, action);
        assert_eq!(finish.reason, Some(reason()));
        assert_eq!(reply, expected_reply(on_unknown, Reply::Ran(answer())));
    }
}

#[test]
fn a_broken_execution_ends_by_on_unknown() {
    for (on_unknown, action) in by_on_unknown() {
        let broken = ExecutionResult::Broken(Reason::ConnectionLost(312));
        let (finish, reply) = ends(on_unknown, broken);
        assert_eq!(finish.action, action);
        assert_eq!(finish.reason, Some(Reason::ConnectionLost(312)));
        assert_eq!(reply, expected_reply(on_unknown, Reply::Problem(Problem::UpstreamTimeout)));
    }
}

#[test]
fn recording_is_retried_and_the_client_learns_that_it_is_not_durable() {
    let (mut flow, record) = unrecorded(answered(Verdict::Completed));
    assert_eq!(flow.on_record_failed(&unavailable().effect_unknown(), at(0)), Action::Sleep);
    let again = flow.next_tick().unwrap();
    assert_eq!(flow.on_tick(again), record, "the same fence and bytes");
    let expected_reply = flow.on_record_failed(&unavailable(), at(10_000));
    assert_eq!(expected_reply, problem(Problem::OutcomeUnrecorded));
    assert!(!flow.is_done());
    // For as long as the fence is ours, and without a second reply.
    let mut now = at(10_000);
    for _ in 0..50 {
        now = flow.next_tick().unwrap();
        assert_eq!(flow.on_tick(now), record);
        assert_eq!(flow.on_record_failed(&unavailable(), now), Action::Sleep);
    }
    assert!(now > at(60_000));
    assert_eq!(flow.on_recorded(Fenced::Applied, now), Action::Done);
    assert!(flow.is_done());
}

#[test]
fn an_answer_recorded_at_the_second_try_is_given() {
    let (mut flow, record) = unrecorded(answered(Verdict::Completed));
    assert_eq!(flow.on_record_failed(&unavailable().effect_unknown(), at(0)), Action::Sleep);
    let again = flow.next_tick().unwrap();
    assert_eq!(flow.on_tick(again), record);
    assert_eq!(flow.on_recorded(Fenced::Applied, again), Action::Reply(Reply::Ran(answer())));
}

#[test]
fn a_reply_that_promises_nothing_is_sent_although_it_is_not_recorded() {
    let (mut flow, _) = unrecorded(answered(Verdict::Retry));
    let step = flow.on_record_failed(&unavailable(), at(10_000));
    assert_eq!(step, Action::Reply(Reply::Ran(answer())));
    assert!(!flow.is_done(), "the release is tried on");
}

#[test]
fn a_failure_that_is_not_durable_is_not_acknowledged() {
    let broken = ExecutionResult::Broken(Reason::TimedOut(60_000));
    for result in [answered(Verdict::Unknown), broken] {
        let (mut flow, record) = unrecorded_on(OnUnknown::Fail, result);
        assert_eq!(flow.on_record_failed(&unavailable(), at(9_999)), Action::Sleep);
        let expected_reply = flow.on_record_failed(&unavailable(), at(10_000));
        assert_eq!(expected_reply, problem(Problem::OutcomeUnrecorded));
        let again = flow.next_tick().unwrap();
        assert_eq!(flow.on_tick(again), record, "the failure is tried on");
        assert_eq!(flow.on_recorded(Fenced::Applied, again), Action::Done);
    }
}

#[test]
fn a_failure_too_large_for_the_store_is_tried_on() {
    let (mut flow, _) = unrecorded_on(OnUnknown::Fail, answered(Verdict::Unknown));
    let too_large = StoreError::new(StoreErrorKind::TooLarge, "too large");
    assert_eq!(flow.on_record_failed(&too_large, at(1)), Action::Sleep);
}

#[test]
fn an_answer_too_large_for_the_store_is_recorded_without_its_body() {
    let large = Answer::response(&StoredResponse {
        status: 201,
        body: vec![0; 5000].into(),
        ..StoredResponse::default()
    });
    let result = ExecutionResult::Answered {
        verdict: Verdict::Completed,
        answer: large.clone(),
        reason: reason(),
    };
    let (mut flow, _) = unrecorded(result);
    let too_large = StoreError::new(StoreErrorKind::TooLarge, "too large");
    let smaller = Finish::complete(Answer::not_retained(201));
    let step = flow.on_record_failed(&too_large, at(1));
    assert_eq!(step, Action::Record(GRANT.fence, smaller));
    // The client that ran it gets all of it.
    assert_eq!(flow.on_recorded(Fenced::Applied, at(2)), Action::Reply(Reply::Ran(large)));
}

#[test]
fn a_lost_fence_means_that_the_client_gets_what_the_record_says() {
    let lost = || {
        let (mut flow, _) = unrecorded(answered(Verdict::Completed));
        assert_eq!(flow.on_recorded(Fenced::Lost, at(1)), Action::Look);
        flow
    };
    let theirs = Answer::not_retained(202);
    let state =
        StateView::Completed { answer: theirs.clone(), expires_in: Duration::from_secs(60) };
    let step = lost().on_seen(Some(&snapshot(state)), at(2));
    assert_eq!(step, Action::Reply(Reply::Replayed(theirs)));
    for (state, expected) in [
        (StateView::Held, Problem::OutcomeUnknown),
        (StateView::InFlight { lease_left: LEASE }, Problem::InProgress),
        (StateView::Released { expires_in: LEASE }, Problem::OutcomeUnrecorded),
    ] {
        assert_eq!(lost().on_seen(Some(&snapshot(state)), at(2)), problem(expected));
    }
    assert_eq!(lost().on_seen(None, at(2)), problem(Problem::OutcomeUnrecorded));
    let other = other(completed());
    assert_eq!(lost().on_seen(Some(&other), at(2)), problem(Problem::OutcomeUnrecorded));
    assert_eq!(lost().on_look_failed(at(2)), problem(Problem::OutcomeUnrecorded));
}

#[test]
fn a_client_under_whose_fence_nothing_ran_gets_its_own_answer_under_any_owner() {
    for (result, reply) in [
        (answered(Verdict::Forget), Reply::Ran(answer())),
        (answered(Verdict::Retry), Reply::Ran(answer())),
        (ExecutionResult::NeverReached, Reply::Problem(Problem::UpstreamUnreachable)),
    ] {
        for on_unknown in [OnUnknown::Hold, OnUnknown::Rerun, OnUnknown::Fail] {
            let (mut flow, _) = unrecorded_on(on_unknown, result.clone());
            let step = flow.on_recorded(Fenced::Lost, at(1));
            assert_eq!(step, Action::Reply(reply.clone()), "{result:?}");
            assert!(flow.is_done());
        }
    }
}

#[test]
fn a_lost_fence_on_an_unknown_outcome_means_a_look() {
    for (on_unknown, _) in by_on_unknown() {
        for result in [answered(Verdict::Unknown), ExecutionResult::Broken(Reason::Panicked)] {
            let (mut flow, _) = unrecorded_on(on_unknown, result);
            assert_eq!(flow.on_recorded(Fenced::Lost, at(1)), Action::Look);
            let theirs = Action::Reply(Reply::Replayed(answer()));
            assert_eq!(flow.on_seen(Some(&completed()), at(2)), theirs);
        }
    }
}

#[test]
fn a_lost_fence_of_a_record_that_was_forgotten_meanwhile_is_unrecorded() {
    let (mut flow, _) = unrecorded(answered(Verdict::Completed));
    assert_eq!(flow.on_recorded(Fenced::Lost, at(1)), Action::Look);
    let mut forgotten = snapshot(StateView::Released { expires_in: LEASE });
    forgotten.fingerprint = None;
    assert_eq!(flow.on_seen(Some(&forgotten), at(2)), problem(Problem::OutcomeUnrecorded));
}

#[test]
fn a_lease_is_renewed_at_a_third_of_it() {
    let mut flow = running(OnUnknown::Hold);
    for third in 1..=5 {
        let due = at(third * 10_000);
        assert_eq!(flow.next_tick(), Some(due));
        assert_eq!(flow.on_tick(due), Action::Renew(GRANT.fence));
        // However long the reply takes, the next third is counted from the asking.
        let heard = due.after(Duration::from_millis(700));
        assert_eq!(flow.on_renewed(Some(Fenced::Applied), heard), Action::Sleep);
    }
}

#[test]
fn a_renewal_that_fails_is_tried_again_soon() {
    let mut flow = running(OnUnknown::Hold);
    assert_eq!(flow.on_tick(at(10_000)), Action::Renew(GRANT.fence));
    assert_eq!(flow.on_renewed(None, at(10_500)), Action::Sleep);
    assert_eq!(flow.next_tick(), Some(at(13_500)));
}

#[test]
fn a_lost_lease_does_not_stop_what_was_begun() {
    let mut flow = running(OnUnknown::Hold);
    assert_eq!(flow.on_tick(at(10_000)), Action::Renew(GRANT.fence));
    assert_eq!(flow.on_renewed(Some(Fenced::Lost), at(10_500)), Action::Sleep);
    assert_eq!(flow.next_tick(), None, "there is nothing to renew");
    let step = flow.on_ended(answered(Verdict::Completed), at(90_000));
    assert_eq!(step, Action::Record(GRANT.fence, Finish::complete(answer())), "late truth");
}

#[test]
fn a_renewal_that_is_answered_after_the_end_changes_nothing() {
    let mut flow = running(OnUnknown::Hold);
    assert_eq!(flow.on_tick(at(10_000)), Action::Renew(GRANT.fence));
    let _ = flow.on_ended(answered(Verdict::Completed), at(10_100));
    let before = flow.clone();
    assert_eq!(flow.on_renewed(Some(Fenced::Lost), at(10_200)), Action::Sleep);
    assert_eq!(flow, before);
}
