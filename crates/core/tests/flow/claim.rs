//! What a request meets when it asks for the claim.

use semel_core::{
    Action, Claimed, Fenced, Finish, Flow, Occupied, Policy, Problem, Reason, Release, Reply,
    StateView,
};

use super::*;

/// The reply of a request, and that it is done then.
fn met(occupied: Occupied) -> Action {
    let mut flow = asking(&policy());
    let step = flow.on_claimed(Claimed::Occupied(occupied), at(1));
    assert!(flow.is_done());
    assert_eq!(flow.next_tick(), None);
    step
}

/// Repeats the claim at the next tick. Returns the time of the tick.
pub(super) fn ask_again(flow: &mut Flow) -> ProcessTime {
    let next_tick = flow.next_tick().expect("it asks again");
    assert_eq!(flow.on_tick(next_tick), Action::Claim);
    next_tick
}

/// Gives back a grant under which nothing was sent.
pub(super) fn not_sent() -> Finish {
    Finish::release(Release::NotSent, Reason::NotSent)
}

#[test]
fn an_absent_or_released_record_is_executed() {
    let mut flow = asking(&policy());
    assert_eq!(flow.on_claimed(Claimed::Granted(GRANT), at(1)), Action::Execute(GRANT));
    assert!(!flow.is_done());
}

#[test]
fn a_completed_record_is_replayed() {
    let expires_in = Duration::from_secs(60);
    let step = met(Occupied::Completed { answer: answer(), expires_in });
    assert_eq!(step, Action::Reply(Reply::Replayed(answer())));
}

#[test]
fn another_fingerprint_is_refused() {
    assert_eq!(met(Occupied::FingerprintMismatch), problem(Problem::KeyReused));
}

#[test]
fn a_held_record_is_refused() {
    assert_eq!(met(Occupied::Held), problem(Problem::OutcomeUnknown));
}

#[test]
fn a_request_whose_claim_was_released_while_it_asked_gets_a_retry_error() {
    assert_eq!(met(Occupied::Ended), problem(Problem::InProgress));

    // The same claim again would meet the same: the next request brings its own owner token.
    let mut flow = asking(&policy());
    assert_eq!(flow.on_claim_failed(&unavailable().effect_unknown(), at(0)), Action::Sleep);
    let asked = ask_again(&mut flow);
    let step = flow.on_claimed(Claimed::Occupied(Occupied::Ended), asked);
    assert_eq!(step, problem(Problem::InProgress));
    assert!(flow.is_done());
}

#[test]
fn an_unconfirmed_claim_that_was_released_is_not_released_again() {
    let mut flow = asking(&policy());
    let unknown = unavailable().effect_unknown();
    assert_eq!(flow.on_claim_failed(&unknown, at(2_000)), problem(Problem::StoreUnavailable));
    let asked = ask_again(&mut flow);
    assert_eq!(flow.on_claimed(Claimed::Occupied(Occupied::Ended), asked), Action::Done);
    assert!(flow.is_done());
}

#[test]
fn a_route_without_waiting_refuses_a_record_in_flight_at_once() {
    let mut flow = asking(&Policy { wait: Duration::ZERO, ..policy() });
    assert_eq!(flow.on_claimed(in_flight(), at(1)), problem(Problem::InProgress));
    assert!(flow.is_done());
}

/// When a request gets an error, and which, if its store is away and fails each claim at once.
fn answered_at(policy: &Policy) -> (ProcessTime, Action) {
    let mut flow = asking(policy);
    let mut now = at(0);
    let step = loop {
        let step = flow.on_claim_failed(&unavailable(), now);
        if step != Action::Sleep {
            break step;
        }
        now = ask_again(&mut flow);
    };
    assert_eq!(flow.next_tick(), None, "nothing was granted for sure");
    (now, step)
}

#[test]
fn a_store_that_is_away_is_asked_until_the_store_timeout_and_no_longer() {
    assert_eq!(Policy::default().store_timeout, STORE_TIMEOUT);
    for store_timeout in [STORE_TIMEOUT, Duration::from_millis(5), LEASE * 2] {
        let answered = answered_at(&Policy { store_timeout, ..policy() });
        let wanted = (at(0).after(store_timeout), problem(Problem::StoreUnavailable));
        assert_eq!(answered, wanted);
        let answered = answered_at(&Policy { store_timeout, ..passing() });
        assert_eq!(answered, (at(0).after(store_timeout), Action::Pass));
    }
}

#[test]
fn a_claim_that_fails_at_the_store_timeout_is_not_asked_again() {
    let millis = |duration: Duration| u64::try_from(duration.as_millis()).unwrap();
    for store_timeout in [STORE_TIMEOUT, Duration::from_millis(300), LEASE * 2] {
        let policy = Policy { store_timeout, ..policy() };
        let mut flow = asking(&policy);
        let last = at(millis(store_timeout) - 1);
        assert_eq!(flow.on_claim_failed(&unavailable(), last), Action::Sleep);
        let mut flow = asking(&policy);
        let over = at(millis(store_timeout));
        let step = flow.on_claim_failed(&unavailable(), over);
        assert_eq!(step, problem(Problem::StoreUnavailable), "{store_timeout:?}");
        assert!(flow.is_done());
    }
}

#[test]
fn a_store_that_is_damaged_is_not_asked_again() {
    let mut flow = asking(&policy());
    let damaged = StoreError::new(StoreErrorKind::Corrupt, "damaged");
    assert_eq!(flow.on_claim_failed(&damaged, at(1)), problem(Problem::StoreUnavailable));
    assert!(flow.is_done());
}

#[test]
fn a_busy_store_gives_an_error_at_once() {
    let mut flow = asking(&policy());
    assert_eq!(flow.on_claim_failed(&busy(), at(1)), problem(Problem::TooManyInFlight));
    assert!(flow.is_done());
}

#[test]
fn a_busy_store_is_never_passed_by() {
    let mut flow = asking(&passing());
    assert_eq!(flow.on_claim_failed(&busy(), at(1)), problem(Problem::TooManyInFlight));
}

#[test]
fn a_claim_whose_reply_was_lost_is_asked_again() {
    let mut flow = asking(&policy());
    assert_eq!(flow.on_claim_failed(&unavailable().effect_unknown(), at(0)), Action::Sleep);
    let asked = ask_again(&mut flow);
    assert_eq!(flow.on_claimed(Claimed::Granted(GRANT), asked), Action::Execute(GRANT));
    // The lease is counted from the second asking.
    assert_eq!(flow.next_tick(), Some(asked.after(LEASE / 3)));
}

#[test]
fn an_unused_claim_is_given_back() {
    let mut flow = asking(&policy());
    let unknown = unavailable().effect_unknown();
    assert_eq!(flow.on_claim_failed(&unknown, at(10_000)), problem(Problem::StoreUnavailable));
    assert!(!flow.is_done(), "the claim may have been granted");
    let asked = ask_again(&mut flow);
    let give_back = not_sent();
    let step = flow.on_claimed(Claimed::Granted(GRANT), asked);
    assert_eq!(step, Action::Record(GRANT.fence, give_back));
    assert_eq!(flow.on_recorded(Fenced::Applied, asked), Action::Done);
    assert!(flow.is_done());
}

#[test]
fn an_unconfirmed_claim_that_was_not_granted_is_not_released() {
    let mut flow = asking(&policy());
    let _ = flow.on_claim_failed(&unavailable().effect_unknown(), at(10_000));
    let asked = ask_again(&mut flow);
    assert_eq!(flow.on_claimed(in_flight(), asked), Action::Done);
    assert!(flow.is_done());
}

#[test]
fn a_busy_store_does_not_make_a_request_forget_what_it_may_own() {
    let mut flow = asking(&policy());
    assert_eq!(flow.on_claim_failed(&unavailable().effect_unknown(), at(0)), Action::Sleep);
    let asked = ask_again(&mut flow);
    // The first asking may have been granted: it is not dropped, neither now nor after the reply.
    assert_eq!(flow.on_claim_failed(&busy(), asked), Action::Sleep);
    let _ = ask_again(&mut flow);
    assert_eq!(flow.on_claim_failed(&busy(), at(10_000)), problem(Problem::TooManyInFlight));
    assert!(!flow.is_done());
    let asked = ask_again(&mut flow);
    let step = flow.on_claimed(Claimed::Granted(GRANT), asked);
    assert_eq!(step, Action::Record(GRANT.fence, not_sent()));
}

#[test]
fn a_grant_that_comes_later_than_its_lease_is_asked_again() {
    let mut flow = asking(&policy());
    // One hundredth of the lease is not relied on.
    assert_eq!(flow.on_claimed(Claimed::Granted(GRANT), at(29_700)), Action::Claim);
    assert_eq!(flow.on_claimed(Claimed::Granted(GRANT), at(29_701)), Action::Execute(GRANT));
}

#[test]
fn a_grant_in_the_last_moment_of_its_lease_is_used() {
    let mut flow = asking(&policy());
    assert_eq!(flow.on_claimed(Claimed::Granted(GRANT), at(29_699)), Action::Execute(GRANT));
}

#[test]
fn grants_that_are_always_late_are_given_back() {
    let mut flow = asking(&policy());
    assert_eq!(flow.on_claimed(Claimed::Granted(GRANT), at(30_000)), Action::Claim);
    let step = flow.on_claimed(Claimed::Granted(GRANT), at(60_000));
    assert_eq!(step, problem(Problem::StoreUnavailable));
    let asked = ask_again(&mut flow);
    let step = flow.on_claimed(Claimed::Granted(GRANT), asked);
    assert_eq!(step, Action::Record(GRANT.fence, not_sent()));
    assert_eq!(flow.on_recorded(Fenced::Lost, asked), Action::Done);
}

#[test]
fn a_record_that_was_held_before_its_late_grant_arrived_is_given_back() {
    let mut flow = asking(&policy());
    assert_eq!(flow.on_claimed(Claimed::Granted(GRANT), at(30_000)), Action::Claim);
    assert_eq!(flow.on_claimed(Claimed::Occupied(Occupied::Held), at(30_001)), Action::Look);
    let step = flow.on_seen(Some(&snapshot(StateView::Held)), at(30_001));
    assert_eq!(step, Action::Record(GRANT.fence, not_sent()));
    let step = flow.on_recorded(Fenced::Applied, at(30_002));
    assert_eq!(step, problem(Problem::StoreUnavailable), "nothing was done, and it is said so");
}

/// A request that failed at 2 s because the store is away, and claims again at `when`: its claim
/// may have been granted. The record is held by then.
fn held_while_the_store_was_away(policy: &Policy, when: ProcessTime) -> (Flow, Action) {
    let mut flow = asking(policy);
    let lost = unavailable().effect_unknown();
    let _ = flow.on_claim_failed(&lost, at(2_000));
    assert_eq!(flow.on_tick(when), Action::Claim);
    let step = flow.on_claimed(Claimed::Occupied(Occupied::Held), when);
    (flow, step)
}

#[test]
fn a_held_grant_whose_reply_was_lost_is_given_back() {
    let now = at(31_000);
    let (mut flow, step) = held_while_the_store_was_away(&policy(), now);
    assert_eq!(step, Action::Look, "the record knows the fence");
    let step = flow.on_seen(Some(&snapshot(StateView::Held)), now);
    // The owner token, which goes with the fence, makes sure that it is this claim.
    assert_eq!(step, Action::Record(GRANT.fence, not_sent()));
    assert_eq!(flow.on_recorded(Fenced::Lost, now), Action::Done);
    assert!(flow.is_done());
}

#[test]
fn a_record_that_is_no_longer_held_is_not_released() {
    let now = at(31_000);
    for seen in [None, Some(completed()), Some(snapshot(StateView::InFlight { lease_left: LEASE }))]
    {
        let (mut flow, _) = held_while_the_store_was_away(&policy(), now);
        assert_eq!(flow.on_seen(seen.as_ref(), now), Action::Done);
        assert!(flow.is_done());
    }
}

#[test]
fn a_look_for_the_fence_that_fails_is_tried_again() {
    let now = at(31_000);
    let (mut flow, _) = held_while_the_store_was_away(&policy(), now);
    assert_eq!(flow.on_look_failed(now), Action::Sleep);
    let asked = ask_again(&mut flow);
    let step = flow.on_claimed(Claimed::Occupied(Occupied::Held), asked);
    assert_eq!(step, Action::Look);
    assert_eq!(flow.on_look_failed(at(300_001)), Action::Sleep, "as long as a claim is asked");
    assert!(flow.unsettled().is_some());
}

#[test]
fn a_record_held_before_our_lease_can_have_expired_is_not_ours() {
    let (flow, step) = held_while_the_store_was_away(&policy(), at(29_000));
    assert_eq!(step, Action::Done);
    assert!(flow.is_done());
}

#[test]
fn a_client_whose_unconfirmed_claim_was_held_learns_that_nothing_ran() {
    // Only where the store may take longer than the lease.
    let held = || {
        let mut flow = asking(&Policy { store_timeout: LEASE * 2, ..policy() });
        assert_eq!(
            flow.on_claim_failed(&unavailable().effect_unknown(), at(29_000)),
            Action::Sleep
        );
        assert_eq!(flow.on_tick(at(31_000)), Action::Claim);
        let step = flow.on_claimed(Claimed::Occupied(Occupied::Held), at(31_000));
        assert_eq!(step, Action::Look);
        flow
    };
    let mut flow = held();
    let step = flow.on_seen(Some(&snapshot(StateView::Held)), at(31_001));
    assert_eq!(step, Action::Record(GRANT.fence, not_sent()));
    // Nothing of this request ran, also where the record has another owner.
    let step = flow.on_recorded(Fenced::Lost, at(31_002));
    assert_eq!(step, problem(Problem::StoreUnavailable));
    let mut flow = held();
    assert_eq!(flow.on_seen(None, at(31_001)), problem(Problem::OutcomeUnknown));
    assert!(flow.is_done());
}

#[test]
fn a_first_use_of_a_key_that_must_be_known_is_given_back_and_refused() {
    let plan = plan(&policy()).with_known_key_only(true);
    let (mut flow, step) = Flow::begin(plan, at(0));
    assert_eq!(step, Action::Claim);
    let step = flow.on_claimed(Claimed::Granted(GRANT), at(0));
    let Action::Record(fence, finish) = step else { panic!("{step:?}") };
    assert_eq!(fence, GRANT.fence);
    assert_eq!(finish, Finish::release(Release::NotSent, Reason::NotSent));
    assert_eq!(flow.on_recorded(Fenced::Applied, at(1)), problem(Problem::TokenInvalid));
    assert!(flow.is_done());
}

#[test]
fn a_known_key_runs_again_and_replays_as_ever() {
    let plan = plan(&policy()).with_known_key_only(true);
    let again = Grant::new(GRANT.fence, 2);
    let (mut flow, _) = Flow::begin(plan, at(0));
    assert_eq!(flow.on_claimed(Claimed::Granted(again), at(0)), Action::Execute(again));
    let (mut flow, _) = Flow::begin(plan, at(0));
    let completed = Occupied::Completed { answer: answer(), expires_in: LEASE };
    let step = flow.on_claimed(Claimed::Occupied(completed), at(0));
    assert_eq!(step, Action::Reply(Reply::Replayed(answer())));
}

#[test]
fn a_key_that_must_be_known_does_not_pass_an_unavailable_store() {
    let plan = plan(&passing()).with_known_key_only(true);
    let (mut flow, _) = Flow::begin(plan, at(0));
    assert_eq!(flow.on_store_away(at(0)), problem(Problem::StoreUnavailable));
}
