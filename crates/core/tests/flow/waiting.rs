//! Waiters (the owner is in another process) and joiners (the owner is in this process).

use semel_core::{
    Action, ExecutionResult, Fenced, Finish, Flow, Problem, Reply, State, StateView, StoreTime,
    rules,
};

use super::*;

/// Advances to the next tick, and returns its time and the action.
fn advance_to_next_tick(flow: &mut Flow) -> (ProcessTime, Action) {
    let next_tick = flow.next_tick().expect("it waits for something");
    (next_tick, flow.on_tick(next_tick))
}

/// The action of a waiter that reads a record in this state.
fn action_on_record(state: StateView) -> Action {
    let mut flow = waiting();
    let (now, step) = advance_to_next_tick(&mut flow);
    assert_eq!(step, Action::Look);
    let step = flow.on_seen(Some(&snapshot(state)), now);
    assert!(flow.is_done());
    step
}

#[test]
fn a_waiter_polls_until_the_record_is_completed() {
    let mut flow = waiting();
    for _ in 0..3 {
        let (now, step) = advance_to_next_tick(&mut flow);
        assert_eq!(step, Action::Look);
        let running = snapshot(StateView::InFlight { lease_left: LEASE });
        assert_eq!(flow.on_seen(Some(&running), now), Action::Sleep);
    }
    let (now, step) = advance_to_next_tick(&mut flow);
    assert_eq!(step, Action::Look);
    assert_eq!(flow.on_seen(Some(&completed()), now), Action::Reply(Reply::Replayed(answer())));
    assert!(flow.is_done());
}

#[test]
fn the_poll_interval_of_a_waiter_doubles_up_to_250_ms() {
    let mut flow = waiting();
    let (mut before, mut intervals) = (at(0), Vec::new());
    for _ in 0..8 {
        let (now, _) = advance_to_next_tick(&mut flow);
        intervals.push(now.since(before).as_millis());
        before = now;
        assert_eq!(flow.on_look_failed(now), Action::Sleep);
    }
    assert_eq!(intervals, [10, 20, 40, 80, 160, 250, 250, 250]);
}

#[test]
fn a_waiter_gets_in_progress_after_the_wait_timeout() {
    let mut flow = waiting();
    let (last, step) = loop {
        let (now, step) = advance_to_next_tick(&mut flow);
        if step != Action::Look {
            break (now, step);
        }
        assert_eq!(flow.on_look_failed(now), Action::Sleep);
    };
    assert_eq!(step, problem(Problem::InProgress));
    assert_eq!(last, at(10_000));
}

#[test]
fn a_waiter_never_becomes_an_owner() {
    let released = StateView::Released { expires_in: LEASE };
    assert_eq!(action_on_record(released), problem(Problem::InProgress));
    let lapsed = StateView::InFlight { lease_left: Duration::ZERO };
    assert_eq!(action_on_record(lapsed), problem(Problem::InProgress));
    let mut flow = waiting();
    let (now, _) = advance_to_next_tick(&mut flow);
    assert_eq!(flow.on_seen(None, now), problem(Problem::InProgress));
}

#[test]
fn a_waiter_of_a_held_record_gets_outcome_unknown() {
    assert_eq!(action_on_record(StateView::Held), problem(Problem::OutcomeUnknown));
}

#[test]
fn a_waiter_whose_record_has_another_fingerprint_gets_key_reused() {
    let mut flow = waiting();
    let (now, _) = advance_to_next_tick(&mut flow);
    let other = other(completed());
    assert_eq!(flow.on_seen(Some(&other), now), problem(Problem::KeyReused));
}

#[test]
fn a_notified_waiter_reads_the_record_at_once() {
    let mut flow = waiting();
    assert_eq!(flow.on_tick(at(1)), Action::Look);
}

#[test]
fn a_waiter_does_not_get_a_failure_that_is_not_recorded() {
    let claim = claim(OnUnknown::Fail);
    let begun = StoreTime::from_millis(0);
    let (_, rules::Change::Put(record)) = rules::claim(None, &claim, GRANT.fence, begun) else {
        panic!("an absent record is granted")
    };
    let lapsed = begun.after(LEASE).after(Duration::from_millis(1));

    // The failure is not recorded yet, so the late answer of the owner may still be recorded. The
    // waiter gets `in-progress`.
    let mut flow = waiting();
    let (now, _) = advance_to_next_tick(&mut flow);
    let seen = rules::view(Some(&record), lapsed);
    assert_eq!(flow.on_seen(seen.as_ref(), now), problem(Problem::InProgress));
    let late = Finish::complete(answer());
    let by = claim.claimant(GRANT.fence);
    let (fenced, change) = rules::finish(Some(&record), by, &late, lapsed);
    assert_eq!(fenced, Fenced::Applied);
    assert!(matches!(
        change,
        rules::Change::Put(after) if after.state == State::Completed(answer())
    ));

    // Once the failure is recorded, every repeat gets it.
    let rules::Change::Put(reaped) = rules::reap(&record, lapsed) else { panic!("not reaped") };
    let mut flow = waiting();
    let (now, _) = advance_to_next_tick(&mut flow);
    let step = flow.on_seen(rules::view(Some(&reaped), lapsed).as_ref(), now);
    assert_eq!(step, Action::Reply(Reply::Replayed(Answer::failed())));
}

/// The same problem as the reply of the owner and of a joiner.
fn problem_for_both(problem: Problem) -> (Reply, Reply) {
    (Reply::Problem(problem), Reply::Problem(problem))
}

#[test]
fn a_joiner_on_a_fail_route_gets_the_failure_that_its_owner_gets_once_it_is_durable() {
    let mut owner = running(OnUnknown::Fail);
    let broken = ExecutionResult::Broken(Reason::Panicked);
    let step = owner.on_ended(broken, at(5));
    assert!(matches!(step, Action::Record(..)), "the failure is recorded before the reply");
    let Action::Reply(reply) = owner.on_recorded(Fenced::Applied, at(6)) else {
        panic!("no reply")
    };
    let plan = plan(&Policy { on_unknown: OnUnknown::Fail, ..policy() });
    let (mut joiner, _) = Flow::join(plan, fingerprint(1), at(1));
    assert_eq!(joiner.on_joined(reply), problem(Problem::OperationFailed));
}

#[test]
fn a_waiter_of_a_forgotten_record_gets_in_progress() {
    let mut flow = waiting();
    let (now, _) = advance_to_next_tick(&mut flow);
    let mut forgotten = snapshot(StateView::Released { expires_in: LEASE });
    forgotten.fingerprint = None;
    assert_eq!(flow.on_seen(Some(&forgotten), now), problem(Problem::InProgress));
}

#[test]
fn a_joiner_gets_what_the_owner_gets() {
    for (owners, joiners) in [
        (Reply::Ran(answer()), Reply::Joined(answer())),
        (Reply::Replayed(answer()), Reply::Replayed(answer())),
        problem_for_both(Problem::UpstreamTimeout),
        problem_for_both(Problem::UpstreamUnreachable),
        problem_for_both(Problem::OutcomeUnrecorded),
    ] {
        let (mut flow, step) = Flow::join(plan(&policy()), fingerprint(1), at(0));
        assert_eq!(step, Action::Sleep);
        assert_eq!(flow.on_joined(owners), Action::Reply(joiners));
        assert!(flow.is_done());
    }
}

#[test]
fn a_joiner_with_another_fingerprint_gets_an_error_at_once() {
    let (mut flow, step) = Flow::join(plan(&policy()), fingerprint(2), at(0));
    assert_eq!(step, problem(Problem::KeyReused));
    assert!(flow.is_done());
    assert_eq!(flow.next_tick(), None);
    assert_eq!(flow.on_joined(Reply::Ran(answer())), Action::Sleep, "one reply, not two");
}

#[test]
fn a_joiner_gets_in_progress_after_the_wait_timeout() {
    let (mut flow, _) = Flow::join(plan(&policy()), fingerprint(1), at(0));
    assert_eq!(flow.on_tick(at(9_999)), Action::Sleep);
    assert_eq!(flow.on_tick(at(10_000)), problem(Problem::InProgress));
    assert!(flow.is_done());
    assert_eq!(flow.on_joined(Reply::Ran(answer())), Action::Sleep, "one reply, not two");
}

#[test]
fn a_joiner_of_a_waiter_waits_for_the_owner() {
    let (mut flow, _) = Flow::join(plan(&policy()), fingerprint(1), at(0));
    assert!(!flow.is_waiting());
    assert_eq!(flow.on_elsewhere(at(4_000)), Action::Sleep);
    assert!(flow.is_waiting());
    let (now, step) = advance_to_next_tick(&mut flow);
    assert_eq!(step, Action::Look);
    assert_eq!(flow.on_seen(Some(&completed()), now), Action::Reply(Reply::Replayed(answer())));

    // Its wait timeout counts from its own start.
    let (mut flow, _) = Flow::join(plan(&policy()), fingerprint(1), at(0));
    let _ = flow.on_elsewhere(at(4_000));
    assert_eq!(flow.on_tick(at(10_000)), problem(Problem::InProgress));
    assert_eq!(flow.on_elsewhere(at(10_000)), Action::Sleep, "one reply, not two");
}

#[test]
fn a_waiter_whose_driver_watches_the_record_never_reads_it_itself() {
    let (mut flow, _) = Flow::begin(plan(&policy()).watched(), at(0));
    assert_eq!(flow.on_claimed(in_flight(), at(0)), Action::Sleep);
    assert_eq!(flow.next_tick(), Some(at(10_000)));
    let lease_left = Duration::from_secs(1);
    let alive = snapshot(StateView::InFlight { lease_left });
    assert_eq!(flow.on_seen(Some(&alive), at(2_000)), Action::Sleep);
    assert_eq!(flow.on_look_failed(at(3_000)), Action::Sleep);
    assert_eq!(flow.next_tick(), Some(at(10_000)));
    assert_eq!(flow.on_tick(at(10_000)), problem(Problem::InProgress));
}
