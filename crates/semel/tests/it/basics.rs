//! Claims, executions and their ends: every row of the two state tables.

use std::time::Duration;

use semel::core::{
    ExecutionResult, OnUnknown, Problem, Reply, Resolution, StateView, Store, Verdict,
};
use semel_testkit::flaky_store::{StoreCall, StoreCondition};

use crate::harness::{
    Gate, Harness, broken, completed, ended, id, problem, run_ready_tasks, sleep_for, text,
};

const LEASE: Duration = Duration::from_secs(30);

#[tokio::test(start_paused = true)]
async fn a_new_key_runs_and_a_repeat_is_replayed() {
    let harness = Harness::new();
    assert_eq!(harness.answer("a", "one").await, Reply::Ran(text("one")));
    assert_eq!(harness.answer("a", "two").await, Reply::Replayed(text("one")));
    assert_eq!(harness.runs(), 1);
    assert_eq!(harness.events.count("Claimed"), 1);
    assert_eq!(harness.events.count("Completed"), 1);
    assert_eq!(harness.events.count("Replayed"), 1);
}

#[tokio::test(start_paused = true)]
async fn another_meaning_is_refused_at_once_completed_or_in_flight() {
    let harness = Harness::new();
    let gate = Gate::new();
    let first = harness.blocked_on(&gate, "a", "one");
    run_ready_tasks().await;
    let other = harness.begin_as("a", 2, |_| async { completed("two") });
    assert_eq!(other.await, problem(Problem::KeyReused));
    assert_eq!(harness.store.count(StoreCall::Claim), 1, "whose key it is was known");
    let elsewhere = harness.second_process().begin_as("a", 2, |_| async { completed("two") });
    assert_eq!(elsewhere.await, problem(Problem::KeyReused));
    gate.open();
    assert_eq!(first.await, Reply::Ran(text("one")));
    let later = harness.begin_as("a", 2, |_| async { completed("two") });
    assert_eq!(later.await, problem(Problem::KeyReused));
    assert_eq!(harness.runs(), 1);
}

#[tokio::test(start_paused = true)]
async fn a_repeat_is_not_refused_because_another_request_claims_its_key() {
    let harness = Harness::new();
    assert_eq!(harness.answer("a", "one").await, Reply::Ran(text("one")));
    // A new engine has an empty cache: the other claim is in progress when the repeat arrives.
    let harness = harness.second_process();
    let other = harness.begin_as("a", 2, |_| async { completed("two") });
    let repeat = harness.answer("a", "three");
    assert_eq!(other.await, problem(Problem::KeyReused));
    assert_eq!(repeat.await, Reply::Replayed(text("one")));
    assert_eq!(harness.runs(), 1);
}

#[tokio::test(start_paused = true)]
async fn a_released_key_runs_again_with_the_next_attempt_and_a_higher_fence() {
    let harness = Harness::new();
    let first = harness.begin("a", |lease| async move {
        assert_eq!(lease.attempt(), 1);
        ended(Verdict::Retry, "later")
    });
    assert_eq!(first.await, Reply::Ran(text("later")));
    let fence = harness.fence("a").await;
    let second = harness.begin("a", move |lease| async move {
        assert_eq!(lease.attempt(), 2);
        assert!(lease.fence().unwrap() > fence);
        completed("now")
    });
    assert_eq!(second.await, Reply::Ran(text("now")));
    assert_eq!(harness.runs(), 2);
}

#[tokio::test(start_paused = true)]
async fn an_unreached_operation_is_released_and_not_counted() {
    let harness = Harness::new();
    let first = harness.begin("a", |_| async { ExecutionResult::NeverReached });
    assert_eq!(first.await, problem(Problem::UpstreamUnreachable));
    let second = harness.begin("a", |lease| async move {
        assert_eq!(lease.attempt(), 1);
        completed("one")
    });
    assert_eq!(second.await, Reply::Ran(text("one")));
}

#[tokio::test(start_paused = true)]
async fn an_unknown_outcome_ends_by_on_unknown() {
    for breaks in [false, true] {
        let end = move || if breaks { broken() } else { ended(Verdict::Unknown, "502") };
        let expected =
            if breaks { problem(Problem::UpstreamTimeout) } else { Reply::Ran(text("502")) };

        let harness = Harness::new();
        assert_eq!(harness.begin("a", move |_| async move { end() }).await, expected);
        assert_eq!(harness.answer("a", "two").await, problem(Problem::OutcomeUnknown));
        assert_eq!((harness.runs(), harness.events.count("Held")), (1, 1));

        let harness = Harness::new().on_unknown(OnUnknown::Rerun);
        assert_eq!(harness.begin("a", move |_| async move { end() }).await, expected);
        assert_eq!(harness.answer("a", "two").await, Reply::Ran(text("two")));
        assert_eq!(harness.runs(), 2);

        let harness = Harness::new().on_unknown(OnUnknown::Fail);
        let failed = problem(Problem::OperationFailed);
        assert_eq!(harness.begin("a", move |_| async move { end() }).await, failed);
        let replayed = harness.answer("a", "two").await;
        assert_eq!(replayed, Reply::Replayed(semel::core::Answer::failed()));
        assert_eq!(harness.runs(), 1);
    }
}

#[tokio::test(start_paused = true)]
async fn a_panic_is_an_unknown_outcome() {
    let harness = Harness::new();
    let first = harness.begin("a", |_| async { panic!("the operation panics: this is expected") });
    assert_eq!(first.await, problem(Problem::UpstreamTimeout));
    assert_eq!(harness.state("a").await, Some(StateView::Held));
    assert_eq!(harness.events.count("Panicked"), 1);
    let early = harness.begin("b", |_| -> std::future::Ready<ExecutionResult> {
        panic!("it panics before there is a future: this is expected")
    });
    assert_eq!(early.await, problem(Problem::UpstreamTimeout));
    assert_eq!(harness.semel.drain(LEASE).await, 0);
}

#[tokio::test(start_paused = true)]
async fn hanging_up_changes_nothing() {
    let harness = Harness::new();
    // Before it was ever polled.
    drop(harness.answer("a", "one"));
    run_ready_tasks().await;
    assert_eq!(harness.answer("a", "two").await, Reply::Replayed(text("one")));

    // During the operation, with one joined request and one that joined and disconnected.
    let gate = Gate::new();
    let first = harness.blocked_on(&gate, "b", "one");
    run_ready_tasks().await;
    let joined = harness.answer("b", "two");
    drop(harness.answer("b", "three"));
    drop(first);
    gate.open();
    assert_eq!(joined.await, Reply::Joined(text("one")));
    assert_eq!(harness.answer("b", "four").await, Reply::Replayed(text("one")));
    assert_eq!(harness.runs(), 2);
}

#[tokio::test(start_paused = true)]
async fn a_long_operation_keeps_its_lease() {
    let harness = Harness::new();
    let long = harness.begin("a", |lease| async move {
        sleep_for(LEASE * 10).await;
        assert!(!lease.is_lost());
        completed("one")
    });
    sleep_for(LEASE * 5).await;
    assert!(matches!(harness.state("a").await, Some(StateView::InFlight { .. })));
    assert_eq!(long.await, Reply::Ran(text("one")));
    assert_eq!(harness.answer("a", "two").await, Reply::Replayed(text("one")));
}

#[tokio::test(start_paused = true)]
async fn a_held_record_takes_its_late_answer() {
    let harness = Harness::new();
    let gate = Gate::new();
    let first = harness.blocked_on(&gate, "a", "late");
    run_ready_tasks().await;
    // Not renewed for longer than its lease: the reaper holds it.
    harness.store.set(StoreCall::Renew, StoreCondition::Unavailable);
    sleep_for(LEASE * 2).await;
    assert_eq!(harness.state("a").await, Some(StateView::Held));
    assert_eq!(harness.second_process().answer("a", "two").await, problem(Problem::OutcomeUnknown));
    gate.open();
    assert_eq!(first.await, Reply::Ran(text("late")));
    assert_eq!(harness.answer("a", "two").await, Reply::Replayed(text("late")));
    assert_eq!(harness.runs(), 1);
}

#[tokio::test(start_paused = true)]
async fn a_zombie_gets_what_the_record_says() {
    let harness = Harness::new().on_unknown(OnUnknown::Rerun);
    let gate = Gate::new();
    let zombie = harness.blocked_on(&gate, "a", "zombie");
    run_ready_tasks().await;
    let fence = harness.fence("a").await;
    harness.store.set(StoreCall::Renew, StoreCondition::Unavailable);
    sleep_for(LEASE * 2).await;
    let second = harness.second_process().begin("a", move |lease| async move {
        assert!(lease.fence().unwrap() > fence);
        assert_eq!(lease.attempt(), 2);
        completed("second")
    });
    assert_eq!(second.await, Reply::Ran(text("second")));
    gate.open();
    assert_eq!(zombie.await, Reply::Replayed(text("second")));
    assert_eq!(harness.events.count("Lost"), 1);
    assert_eq!(harness.answer("a", "three").await, Reply::Replayed(text("second")));
}

#[tokio::test(start_paused = true)]
async fn a_lost_lease_is_shown_to_the_operation() {
    let harness = Harness::new().on_unknown(OnUnknown::Rerun);
    let (gate, seen) = (Gate::new(), Gate::new());
    let (held, lost) = (gate.clone(), seen.clone());
    let zombie = harness.begin("a", |lease| async move {
        held.wait_open().await;
        while !lease.is_lost() {
            sleep_for(Duration::from_millis(100)).await;
        }
        lost.open();
        completed("zombie")
    });
    run_ready_tasks().await;
    harness.store.set(StoreCall::Renew, StoreCondition::Unavailable);
    sleep_for(LEASE * 2).await;
    assert_eq!(harness.second_process().answer("a", "second").await, Reply::Ran(text("second")));
    harness.store.set(StoreCall::Renew, StoreCondition::Available);
    gate.open();
    seen.wait_open().await;
    assert_eq!(zombie.await, Reply::Replayed(text("second")));
}

#[tokio::test(start_paused = true)]
async fn a_process_that_died_leaves_a_lease_that_lapses() {
    let dead = Harness::new();
    let gate = Gate::new();
    let _never = dead.blocked_on(&gate, "a", "one");
    run_ready_tasks().await;
    dead.store.set(StoreCall::Renew, StoreCondition::Unavailable);
    sleep_for(LEASE + Duration::from_secs(1)).await;
    let harness = dead.second_process();
    assert_eq!(harness.answer("a", "two").await, problem(Problem::OutcomeUnknown));
    let fence = harness.fence("a").await;
    let did_not_happen = harness.store.resolve(&id("a"), fence, &Resolution::Released).await;
    assert!(did_not_happen.is_ok());
    assert_eq!(harness.answer("a", "two").await, Reply::Ran(text("two")));
}

#[tokio::test(start_paused = true)]
async fn past_its_retention_a_released_key_is_as_new() {
    let mut harness = Harness::new();
    harness.policy.retention = Duration::from_secs(60);
    harness.begin("a", |_| async { ended(Verdict::Retry, "later") }).await;
    sleep_for(Duration::from_secs(61)).await;
    let other = harness.begin_as("a", 2, |lease| async move {
        assert_eq!(lease.attempt(), 1);
        completed("another meaning")
    });
    assert_eq!(other.await, Reply::Ran(text("another meaning")));
}
