//! A store that is away: who gets an error at once, what runs unguarded, and what becomes of a
//! claim that may have been granted.

use semel_core::{
    Action, Effect, Fenced, Finish, Flow, Occupied, Policy, Release, Reply, StateView,
};

use super::{
    claim::{ask_again, not_sent},
    *,
};

fn lost() -> StoreError {
    let error = unavailable().effect_unknown();
    assert_eq!(error.effect(), Effect::Unknown);
    error
}

/// A request whose store is away, that runs unguarded since 2 s. With `lost`, its claim may have
/// been granted.
fn unguarded(policy: &Policy, error: &StoreError) -> Flow {
    let mut flow = asking(policy);
    assert_eq!(flow.on_claim_failed(error, at(2_000)), Action::Pass);
    assert!(!flow.is_done());
    flow
}

fn unguarded_reply() -> Action {
    Action::Reply(Reply::Unguarded(answer()))
}

fn held() -> Claimed {
    Claimed::Occupied(Occupied::Held)
}

#[test]
fn a_store_known_to_be_away_gives_an_error_at_once() {
    let mut flow = asking(&policy());
    assert_eq!(flow.on_store_away(at(0)), problem(Problem::StoreUnavailable));
    assert!(flow.is_done());
    assert_eq!(flow.on_store_away(at(0)), Action::Sleep, "one reply, not two");

    let mut flow = asking(&passing());
    assert_eq!(flow.on_store_away(at(0)), Action::Pass);
    assert_eq!(flow.next_tick(), None, "no claim was asked, so there is none to ask for");
    assert_eq!(flow.on_ended(answered(Verdict::Completed), at(1)), unguarded_reply());
    assert!(flow.is_done());
}

#[test]
fn a_claim_that_may_have_been_granted_is_not_forgotten_when_the_store_goes_away() {
    let mut flow = asking(&policy());
    assert_eq!(flow.on_claim_failed(&lost(), at(0)), Action::Sleep);
    let now = ask_again(&mut flow);
    assert_eq!(flow.on_store_away(now), problem(Problem::StoreUnavailable));
    assert!(flow.unsettled().is_some());
    let now = ask_again(&mut flow);
    assert_eq!(flow.on_store_away(now), Action::Sleep);
    let now = ask_again(&mut flow);
    let step = flow.on_claimed(Claimed::Granted(GRANT), now);
    assert_eq!(step, Action::Record(GRANT.fence, not_sent()));
    assert!(flow.unsettled().is_none());
}

#[test]
fn a_claim_that_may_have_been_granted_is_asked_for_until_the_store_answers() {
    let mut flow = asking(&policy());
    assert_eq!(flow.on_claim_failed(&lost(), at(2_000)), problem(Problem::StoreUnavailable));
    let mut now = at(2_000);
    let full = StoreError::new(StoreErrorKind::Full, "the disk is full");
    for error in [lost(), unavailable(), busy(), full].iter().cycle().take(1_000) {
        now = ask_again(&mut flow);
        assert_eq!(flow.on_claim_failed(error, now), Action::Sleep);
        assert!(flow.next_tick().unwrap().since(now) <= LEASE / 6);
    }
    assert!(now > at(60 * 60 * 1000), "longer than any number of leases");
    now = ask_again(&mut flow);
    let step = flow.on_claimed(Claimed::Granted(GRANT), now);
    assert_eq!(step, Action::Record(GRANT.fence, not_sent()));
    assert_eq!(flow.on_recorded(Fenced::Applied, now), Action::Done);
}

#[test]
fn a_damaged_store_is_not_asked_for_a_claim_for_ever() {
    for kind in [StoreErrorKind::Corrupt, StoreErrorKind::Newer] {
        let mut flow = asking(&policy());
        let _ = flow.on_claim_failed(&lost(), at(2_000));
        let now = ask_again(&mut flow);
        assert_eq!(flow.on_claim_failed(&StoreError::new(kind, "damaged"), now), Action::Done);
        assert!(flow.is_done());
    }
}

#[test]
fn a_client_waits_no_longer_for_a_call_than_for_the_claim() {
    let mut flow = asking(&policy());
    assert_eq!(flow.claim_timeout(at(0)), STORE_TIMEOUT);
    assert_eq!(flow.claim_timeout(at(1_500)), Duration::from_millis(500));
    assert_eq!(flow.claim_timeout(at(2_000)), Duration::from_millis(50));
    let _ = flow.on_claim_failed(&lost(), at(2_000));
    assert_eq!(flow.claim_timeout(at(3_000)), STORE_TIMEOUT, "no client waits for it any more");
}

#[test]
fn an_unguarded_execution_without_a_claim_is_not_recorded() {
    for (result, reply) in [
        (answered(Verdict::Completed), unguarded_reply()),
        (answered(Verdict::Unknown), unguarded_reply()),
        (ExecutionResult::NeverReached, problem(Problem::UpstreamUnreachable)),
        (ExecutionResult::Broken(Reason::Panicked), problem(Problem::UpstreamTimeout)),
    ] {
        // What is not durable is no `operation-failed`.
        let policy = Policy { on_unknown: OnUnknown::Fail, ..passing() };
        let mut flow = unguarded(&policy, &unavailable());
        assert_eq!(flow.next_tick(), None);
        assert_eq!(flow.on_tick(at(90_000)), Action::Sleep);
        assert_eq!(flow.on_ended(result, at(90_000)), reply);
        assert!(flow.is_done());
    }
}

#[test]
fn an_unguarded_run_whose_claim_turns_out_to_be_granted_is_like_any_other() {
    let mut flow = unguarded(&passing(), &lost());
    let asked = ask_again(&mut flow);
    assert_eq!(flow.on_claimed(Claimed::Granted(GRANT), asked), Action::Guard(GRANT));
    assert_eq!(flow.next_tick(), Some(asked.after(LEASE / 3)));
    assert_eq!(flow.on_tick(asked.after(LEASE / 3)), Action::Renew(GRANT.fence));
    let step = flow.on_ended(answered(Verdict::Completed), at(90_000));
    assert_eq!(step, Action::Record(GRANT.fence, Finish::complete(answer())));
    assert_eq!(flow.on_recorded(Fenced::Applied, at(90_000)), Action::Reply(Reply::Ran(answer())));
    assert!(flow.is_done());
}

#[test]
fn an_unguarded_run_that_ended_before_its_claim_was_answered_is_recorded_after_its_reply() {
    let unknown = |on_unknown| Finish::unknown(on_unknown, Reason::Answered(201));
    for (verdict, on_unknown, finish) in [
        (Verdict::Completed, OnUnknown::Hold, Finish::complete(answer())),
        (Verdict::Forget, OnUnknown::Hold, Finish::forget(Reason::Answered(201))),
        (Verdict::Retry, OnUnknown::Hold, Finish::release(Release::Refused, Reason::Answered(201))),
        (Verdict::Unknown, OnUnknown::Hold, unknown(OnUnknown::Hold)),
        (Verdict::Unknown, OnUnknown::Rerun, unknown(OnUnknown::Rerun)),
        (Verdict::Unknown, OnUnknown::Fail, unknown(OnUnknown::Fail)),
    ] {
        let mut flow = unguarded(&Policy { on_unknown, ..passing() }, &lost());
        assert_eq!(flow.on_ended(answered(verdict), at(2_005)), unguarded_reply());
        assert!(flow.unsettled().is_some());
        let now = ask_again(&mut flow);
        let step = flow.on_claimed(Claimed::Granted(GRANT), now);
        assert_eq!(step, Action::Record(GRANT.fence, finish));
        assert_eq!(flow.on_recorded(Fenced::Applied, now), Action::Done);
    }
}

#[test]
fn an_unguarded_run_never_reached_gives_its_claim_back() {
    let mut flow = unguarded(&passing(), &lost());
    let step = flow.on_ended(ExecutionResult::NeverReached, at(2_005));
    assert_eq!(step, problem(Problem::UpstreamUnreachable));
    let now = ask_again(&mut flow);
    let step = flow.on_claimed(Claimed::Granted(GRANT), now);
    assert_eq!(step, Action::Record(GRANT.fence, not_sent()));
}

#[test]
fn an_unguarded_run_beside_another_owners_record_writes_nothing() {
    for claimed in [in_flight(), Claimed::Occupied(Occupied::Ended), held()] {
        let mut flow = unguarded(&passing(), &lost());
        let asked = ask_again(&mut flow);
        assert_eq!(flow.on_claimed(claimed, asked), Action::Sleep);
        assert_eq!(flow.next_tick(), None, "it is known whose record it is");
        assert_eq!(flow.on_ended(answered(Verdict::Completed), at(3_000)), unguarded_reply());
        assert!(flow.is_done());
    }
}

#[test]
fn the_answer_of_an_unguarded_run_completes_its_claim_that_was_held_meanwhile() {
    // While it runs there is nothing to write.
    let mut flow = unguarded(&passing(), &lost());
    assert_eq!(flow.on_tick(at(31_000)), Action::Claim);
    assert_eq!(flow.on_claimed(held(), at(31_000)), Action::Sleep);
    assert_eq!(flow.on_ended(answered(Verdict::Completed), at(31_001)), unguarded_reply());
    let now = ask_again(&mut flow);
    assert_eq!(flow.on_claimed(held(), now), Action::Look);
    assert!(flow.unsettled().is_some());
    let step = flow.on_seen(Some(&snapshot(StateView::Held)), now);
    assert_eq!(step, Action::Record(GRANT.fence, Finish::complete(answer())));
    assert_eq!(flow.on_recorded(Fenced::Applied, now), Action::Done);
}

#[test]
fn a_busy_store_is_never_passed_by_with_a_claim_that_may_have_been_granted() {
    let mut flow = asking(&passing());
    assert_eq!(flow.on_claim_failed(&lost(), at(0)), Action::Sleep);
    let _ = ask_again(&mut flow);
    assert_eq!(flow.on_claim_failed(&busy(), at(2_000)), problem(Problem::TooManyInFlight));
    assert_eq!(flow.on_ended(answered(Verdict::Completed), at(2_001)), Action::Sleep);
    let now = ask_again(&mut flow);
    let step = flow.on_claimed(Claimed::Granted(GRANT), now);
    assert_eq!(step, Action::Record(GRANT.fence, not_sent()));
}

#[test]
fn a_joiner_of_an_unguarded_run_gets_an_unguarded_reply() {
    let (mut flow, _) = Flow::join(plan(&passing()), fingerprint(1), at(0));
    assert_eq!(flow.on_joined(Reply::Unguarded(answer())), unguarded_reply());
}

#[test]
fn a_claim_that_may_have_been_granted_is_given_back_though_the_reply_is_known() {
    let replayed = || Reply::Replayed(answer());
    let mut flow = asking(&policy());
    assert_eq!(flow.on_known(replayed(), Some(&unavailable()), at(1)), Action::Reply(replayed()));
    assert!(flow.is_done());

    let mut flow = asking(&passing());
    assert_eq!(flow.on_known(replayed(), Some(&lost()), at(1)), Action::Reply(replayed()));
    assert_eq!(flow.unsettled(), Some(&not_sent()));
}

/// The row of its own claim becomes visible before the claim is answered.
#[test]
fn an_unguarded_run_retries_its_claim_though_a_reply_is_known() {
    let mut flow = unguarded(&passing(), &lost());
    let now = ask_again(&mut flow);
    let in_progress = Reply::Problem(Problem::InProgress);
    assert_eq!(flow.on_known(in_progress, None, now), Action::Sleep);
    let now = ask_again(&mut flow);
    assert_eq!(flow.on_claimed(Claimed::Granted(GRANT), now), Action::Guard(GRANT));
}
