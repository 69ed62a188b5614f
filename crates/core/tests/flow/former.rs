//! Records under which an operation was remembered before.

use semel_core::{Action, Flow, Plan, Reply, StateView, StoredResponse, flow::would_begin};

use super::*;

fn guarded(state: StateView) -> Option<Reply> {
    plan(&policy()).reply_of_former(&snapshot(state), false)
}

fn observed(plan: Plan, answer: Answer) -> Option<Reply> {
    let state = StateView::Completed { answer, expires_in: LEASE };
    plan.reply_of_former(&snapshot(state), true)
}

#[test]
fn a_former_record_is_met_like_the_record_itself() {
    let refused = |problem| Some(Reply::Problem(problem));
    assert_eq!(
        guarded(StateView::Completed { answer: answer(), expires_in: LEASE }),
        Some(Reply::Replayed(answer()))
    );
    assert_eq!(guarded(StateView::Held), refused(Problem::OutcomeUnknown));
    assert_eq!(guarded(StateView::InFlight { lease_left: LEASE }), refused(Problem::InProgress));
    assert_eq!(guarded(StateView::Released { expires_in: LEASE }), None);
    for state in [StateView::Held, StateView::Released { expires_in: LEASE }] {
        let reply = plan(&policy()).reply_of_former(&other(snapshot(state)), false);
        assert_eq!(reply, refused(Problem::KeyReused));
    }
}

#[test]
fn a_former_record_that_was_forgotten_takes_any_request() {
    let mut forgotten = snapshot(StateView::Released { expires_in: LEASE });
    forgotten.fingerprint = None;
    assert_eq!(plan(&policy()).reply_of_former(&forgotten, false), None);
}

#[test]
fn a_former_record_whose_owner_is_gone_runs_again_only_where_its_route_said_so() {
    for (on_unknown, expected) in
        [(OnUnknown::Rerun, None), (OnUnknown::Fail, Some(Reply::Problem(Problem::InProgress)))]
    {
        let mut lapsed = snapshot(StateView::InFlight { lease_left: Duration::ZERO });
        lapsed.on_unknown = on_unknown;
        assert_eq!(plan(&policy()).reply_of_former(&lapsed, false), expected);
    }
}

#[test]
fn an_observed_answer_is_not_retained_and_never_held() {
    let hold = plan(&policy());
    // The record of an observed answer is its status; its body is not there.
    let status = Answer::response(&StoredResponse { status: 201, ..Default::default() });
    assert_eq!(observed(hold, status), Some(Reply::Replayed(Answer::not_retained(201))));
    assert_eq!(observed(hold, answer()), Some(Reply::Replayed(answer())));
    assert_eq!(hold.reply_of_former(&snapshot(StateView::Held), true), None);
}

#[test]
fn an_unknown_outcome_that_was_observed_is_judged_by_the_policy() {
    let fail = plan(&Policy { on_unknown: OnUnknown::Fail, ..policy() });
    let failed = Answer::failed();
    assert_eq!(observed(fail, failed.clone()), Some(Reply::Replayed(failed.clone())));
    let unknown = Some(Reply::Problem(Problem::OutcomeUnknown));
    assert_eq!(observed(plan(&policy()), failed), unknown);
}

#[test]
fn only_what_would_begin_is_looked_up() {
    assert!(would_begin(None));
    let mut forgotten = snapshot(StateView::Released { expires_in: LEASE });
    assert!(!would_begin(Some(&forgotten)), "it would be a second attempt");
    forgotten.fingerprint = None;
    assert!(would_begin(Some(&forgotten)));
    assert!(!would_begin(Some(&completed())));
}

#[test]
fn a_request_that_a_former_record_answers_claims_nothing() {
    let mut flow: Flow = asking(&policy());
    let step = flow.on_known(Reply::Replayed(answer()), None, at(1));
    assert_eq!(step, Action::Reply(Reply::Replayed(answer())));
    assert!(flow.is_done());
    assert_eq!(
        flow.on_known(Reply::Replayed(answer()), None, at(1)),
        Action::Sleep,
        "one reply, not two"
    );
}
