//! The events of the engine: how requests end, durations, maintenance.

use std::time::Duration;

use semel::core::{OnStoreDown, Problem, Reply, StateView};
use semel_testkit::flaky_store::{FlakyStore, StoreCall, StoreCondition};

use crate::harness::{Gate, Harness, memory, problem, run_ready_tasks, sleep_for, text};

#[tokio::test(start_paused = true)]
async fn each_request_ends_with_one_event() {
    let harness = Harness::new();
    let gate = Gate::new();
    let first = harness.blocked_on(&gate, "a", "one");
    let joined = harness.answer("a", "two");
    let other = harness.begin_as("a", 2, |_| async { unreachable!() });
    gate.open();
    assert_eq!(first.await, Reply::Ran(text("one")));
    assert_eq!(joined.await, Reply::Joined(text("one")));
    assert_eq!(other.await, problem(Problem::KeyReused));
    assert_eq!(harness.answer("a", "three").await, Reply::Replayed(text("one")));
    let events = ["Answered(Own)", "Answered(Joined)", "Replayed", "Refused(KeyReused)"];
    assert_eq!(events.map(|event| harness.events.count(event)), [1; 4]);
    assert_eq!((harness.events.count("Answered"), harness.events.count("Refused")), (2, 1));
}

#[tokio::test(start_paused = true)]
async fn an_unguarded_run_is_reported_as_unguarded() {
    let mut harness = Harness::new();
    harness.policy.on_store_down = OnStoreDown::Pass;
    harness.store.set_all(StoreCondition::Unavailable);
    assert_eq!(harness.answer("a", "one").await, Reply::Unguarded(text("one")));
    assert_eq!(harness.events.count("Answered(Unguarded)"), 1);
    assert_eq!(harness.events.count("Answered"), 1);
}

#[tokio::test(start_paused = true)]
async fn questions_to_the_store_are_timed_also_when_they_fail() {
    let harness = Harness::new();
    harness.store.set(StoreCall::Claim, StoreCondition::ReplyDelayed);
    let pending = tokio::spawn(harness.answer("a", "one"));
    sleep_for(Duration::from_millis(250)).await;
    harness.store.set(StoreCall::Claim, StoreCondition::Available);
    assert_eq!(pending.await.unwrap(), Reply::Ran(text("one")));
    assert_eq!(harness.events.count("StoreReplied { operation: Claim, took: 250ms }"), 1);
    assert_eq!(harness.events.count("StoreReplied { operation: Record, took: 0ns }"), 1);
    harness.store.set(StoreCall::Claim, StoreCondition::Unavailable);
    assert_eq!(harness.answer("b", "one").await, problem(Problem::StoreUnavailable));
    let asked = harness.events.count("StoreReplied { operation: Claim");
    assert_eq!(asked, 1 + harness.events.count("StoreFailed { operation: Claim"));
    assert_eq!(harness.store.count(StoreCall::Claim), u64::try_from(asked).unwrap());
}

#[tokio::test(start_paused = true)]
async fn waiters_are_timed_in_this_process_and_for_another() {
    let harness = Harness::new();
    let elsewhere = harness.second_process();
    let gate = Gate::new();
    let first = harness.blocked_on(&gate, "a", "one");
    run_ready_tasks().await;
    let joined = tokio::spawn(harness.answer("a", "two"));
    let waiting = tokio::spawn(elsewhere.answer("a", "three"));
    sleep_for(Duration::from_secs(3)).await;
    gate.open();
    assert_eq!(first.await, Reply::Ran(text("one")));
    assert_eq!(joined.await.unwrap(), Reply::Joined(text("one")));
    assert_eq!(waiting.await.unwrap(), Reply::Replayed(text("one")));
    assert_eq!(harness.events.count("Waited { took: 3"), 1, "the first did not wait");
    assert_eq!(elsewhere.events.count("Waited { took: 3"), 1);
}

#[tokio::test(start_paused = true)]
async fn upkeep_begins_without_a_request_and_says_what_it_did() {
    let store = FlakyStore::new(memory());
    let mut dead = Harness::on(store.clone(), |builder| builder.upkeep(false));
    dead.policy.retention = Duration::from_secs(60);
    for key in ["a", "b", "c"] {
        dead.answer(key, "one").await;
    }
    let lost = dead.blocked_on(&Gate::new(), "lost", "never");
    run_ready_tasks().await;
    store.set(StoreCall::Renew, StoreCondition::Unavailable);
    sleep_for(Duration::from_secs(120)).await;

    let harness = Harness::on(store, |builder| builder);
    harness.semel.start_maintenance();
    harness.semel.start_maintenance();
    run_ready_tasks().await;
    assert_eq!(harness.state("lost").await, Some(StateView::Held));
    assert_eq!(harness.events.count("Reaped { records: 1 }"), 1);
    assert_eq!(harness.events.count("Swept { records: 3 }"), 1);
    sleep_for(Duration::from_secs(3600)).await;
    assert_eq!(
        harness.events.count("Reaped") + harness.events.count("Swept"),
        2,
        "nothing, unsaid"
    );
    drop(lost);
}

#[tokio::test(start_paused = true)]
async fn sweeps_come_as_often_as_they_are_asked_for() {
    let sweeps = |period: Option<Duration>, time: Duration| async move {
        let harness = Harness::with(|builder| match period {
            Some(period) => builder.sweep_every(period),
            None => builder,
        });
        harness.semel.start_maintenance();
        let others = |harness: &Harness| harness.store.count(StoreCall::Other);
        let fixed = Harness::with(|builder| builder.sweep_every(Duration::MAX));
        fixed.semel.start_maintenance();
        sleep_for(time).await;
        // Other store calls, such as the epoch, are equal in both; each sweeps at its start.
        others(&harness) - others(&fixed) + 1
    };
    let quarter = Duration::from_secs(15 * 60);
    assert_eq!(sweeps(None, quarter / 2).await, 1);
    assert_eq!(sweeps(None, quarter * 2 + quarter / 2).await, 3);
    assert_eq!(sweeps(Some(Duration::from_secs(60)), Duration::from_secs(330)).await, 6);
    let often = sweeps(Some(Duration::ZERO), Duration::from_secs(1)).await;
    assert!((10..=201).contains(&often), "it neither panics nor spins: {often}");
}
