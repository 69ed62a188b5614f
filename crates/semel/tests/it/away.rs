//! A store that is unavailable, hangs, or whose replies are lost.

use std::time::Duration;

use semel::core::{OnStoreDown, OnUnknown, Problem, Reply, StateView};
use semel_testkit::flaky_store::{StoreCall, StoreCondition};

use crate::harness::{Gate, Harness, problem, run_ready_tasks, sleep_for, text};

const LEASE: Duration = Duration::from_secs(30);

/// The interval between probing claims while the store is unavailable.
const PROBE_INTERVAL: Duration = Duration::from_secs(1);

#[tokio::test(start_paused = true)]
async fn without_a_store_nothing_runs() {
    for weather in [StoreCondition::Unavailable, StoreCondition::Hanging, StoreCondition::ReplyLost]
    {
        let harness = Harness::new();
        harness.store.set(StoreCall::Claim, weather);
        let begun = tokio::time::Instant::now();
        assert_eq!(harness.answer("a", "one").await, problem(Problem::StoreUnavailable));
        let store_timeout = harness.policy.store_timeout;
        assert_eq!(begun.elapsed().as_millis(), store_timeout.as_millis(), "{weather:?}");
        assert_eq!(harness.runs(), 0);
        // A possible grant is given back, and the next request runs as the first.
        harness.store.set(StoreCall::Claim, StoreCondition::Available);
        sleep_for(PROBE_INTERVAL).await;
        assert_eq!(harness.semel.drain(LEASE * 10).await, 0);
        let next = harness.begin("a", |lease| async move {
            assert_eq!(lease.attempt(), 1);
            crate::harness::completed("two")
        });
        assert_eq!(next.await, Reply::Ran(text("two")), "{weather:?}");
        assert_eq!(harness.runs(), 1);
    }
}

#[tokio::test(start_paused = true)]
async fn a_store_that_comes_back_soon_is_not_noticed() {
    for weather in [StoreCondition::Unavailable, StoreCondition::Hanging, StoreCondition::ReplyLost]
    {
        let harness = Harness::new();
        harness.store.set(StoreCall::Claim, weather);
        let pending = tokio::spawn(harness.answer("a", "one"));
        sleep_for(Duration::from_secs(1)).await;
        harness.store.set(StoreCall::Claim, StoreCondition::Available);
        assert_eq!(pending.await.unwrap(), Reply::Ran(text("one")), "{weather:?}");
        assert_eq!(harness.runs(), 1);
    }
}

#[tokio::test(start_paused = true)]
async fn a_busy_store_is_reported_at_once() {
    let harness = Harness::new();
    harness.store.set(StoreCall::Claim, StoreCondition::Busy);
    let begun = tokio::time::Instant::now();
    assert_eq!(harness.answer("a", "one").await, problem(Problem::TooManyInFlight));
    assert!(begun.elapsed() < Duration::from_millis(10));
}

#[tokio::test(start_paused = true)]
async fn an_operation_that_is_not_durable_is_not_acknowledged() {
    for weather in [StoreCondition::Unavailable, StoreCondition::Hanging, StoreCondition::ReplyLost]
    {
        let harness = Harness::new();
        harness.store.set(StoreCall::Finish, weather);
        let joined_gate = Gate::new();
        let first = harness.blocked_on(&joined_gate, "a", "one");
        run_ready_tasks().await;
        let joined = harness.answer("a", "two");
        joined_gate.open();
        assert_eq!(first.await, problem(Problem::OutcomeUnrecorded), "{weather:?}");
        assert_eq!(joined.await, problem(Problem::OutcomeUnrecorded), "{weather:?}");
        assert_eq!(harness.semel.in_flight(), 1, "it goes on trying");
        // Unavailable for longer than the lease, and back: the late answer goes into a held record.
        sleep_for(LEASE * 3).await;
        harness.store.set(StoreCall::Finish, StoreCondition::Available);
        assert_eq!(harness.semel.drain(LEASE).await, 0);
        assert_eq!(harness.answer("a", "three").await, Reply::Replayed(text("one")));
        assert_eq!(harness.runs(), 1);
    }
}

#[tokio::test(start_paused = true)]
async fn a_repeat_while_the_answer_cannot_be_recorded_waits_for_it() {
    let harness = Harness::new();
    harness.store.set(StoreCall::Finish, StoreCondition::Unavailable);
    assert_eq!(harness.answer("a", "one").await, problem(Problem::OutcomeUnrecorded));
    let repeat = tokio::spawn(harness.answer("a", "two"));
    sleep_for(Duration::from_secs(2)).await;
    harness.store.set(StoreCall::Finish, StoreCondition::Available);
    assert_eq!(repeat.await.unwrap(), Reply::Replayed(text("one")));
    assert_eq!(harness.runs(), 1);
}

#[tokio::test(start_paused = true)]
async fn a_store_away_for_longer_than_the_lease_refuses_the_zombies_answer() {
    let harness = Harness::new().on_unknown(OnUnknown::Rerun);
    let gate = Gate::new();
    let zombie = harness.blocked_on(&gate, "a", "zombie");
    run_ready_tasks().await;
    harness.store.set_all(StoreCondition::Unavailable);
    gate.open();
    sleep_for(LEASE * 2).await;
    assert_eq!(zombie.await, problem(Problem::OutcomeUnrecorded));
    harness.store.set(StoreCall::Claim, StoreCondition::Available);
    let second = Gate::new();
    let running = harness.second_process().blocked_on(&second, "a", "second");
    run_ready_tasks().await;
    harness.store.set_all(StoreCondition::Available);
    assert_eq!(harness.semel.drain(LEASE).await, 0, "the zombie was refused");
    assert!(matches!(harness.state("a").await, Some(StateView::InFlight { .. })));
    second.open();
    assert_eq!(running.await, Reply::Ran(text("second")));
    assert_eq!(harness.answer("a", "three").await, Reply::Replayed(text("second")));
    assert_eq!(harness.runs(), 2);
}

#[tokio::test(start_paused = true)]
async fn a_renewal_that_hangs_does_not_stop_the_operation() {
    let harness = Harness::new();
    harness.store.set(StoreCall::Renew, StoreCondition::Hanging);
    let long = harness.begin("a", |_| async {
        sleep_for(Duration::from_secs(25)).await;
        crate::harness::completed("one")
    });
    assert_eq!(long.await, Reply::Ran(text("one")));
    assert_eq!(harness.answer("a", "two").await, Reply::Replayed(text("one")));
}

#[tokio::test(start_paused = true)]
async fn hanging_up_while_the_store_hangs_changes_nothing() {
    for verb in [StoreCall::Claim, StoreCall::Finish] {
        let harness = Harness::new();
        harness.store.set(verb, StoreCondition::Hanging);
        let pending = tokio::spawn(harness.answer("a", "one"));
        run_ready_tasks().await;
        pending.abort();
        let _ = pending.await;
        harness.store.set(verb, StoreCondition::Available);
        assert_eq!(harness.semel.drain(LEASE).await, 0);
        assert_eq!(harness.answer("a", "two").await, Reply::Replayed(text("one")), "{verb:?}");
        assert_eq!(harness.runs(), 1);
    }
}

#[tokio::test(start_paused = true)]
async fn a_lease_that_is_too_short_to_be_one_is_lengthened() {
    let mut harness = Harness::new();
    harness.policy.lease = Duration::ZERO;
    harness.policy.on_store_down = OnStoreDown::Pass;
    assert_eq!(harness.answer("a", "one").await, Reply::Ran(text("one")));
    assert_eq!(harness.answer("a", "two").await, Reply::Replayed(text("one")));
    assert_eq!(harness.events.count("Passed"), 0);
}
