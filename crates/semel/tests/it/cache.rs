//! Cached records, and an operator who changes them.

use std::time::Duration;

use semel::core::{OnUnknown, Problem, Reply, Resolution, Resolved, StateName, Store};
use semel_testkit::flaky_store::{StoreCall, StoreCondition};

use crate::harness::{Harness, id, problem, run_ready_tasks, sleep_for, text};

#[tokio::test(start_paused = true)]
async fn a_repeat_of_a_known_record_does_not_touch_the_store() {
    let harness = Harness::new();
    harness.answer("warm", "up").await;
    run_ready_tasks().await;
    assert_eq!(harness.answer("a", "one").await, Reply::Ran(text("one")));
    assert_eq!(harness.answer("a", "two").await, Reply::Replayed(text("one")));
    let claims = harness.store.count(StoreCall::Claim);
    for _ in 0..10 {
        assert_eq!(harness.answer("a", "two").await, Reply::Replayed(text("one")));
    }
    let reused = harness.begin_as("a", 2, |_| async { crate::harness::completed("two") });
    assert_eq!(reused.await, problem(Problem::KeyReused));
    assert_eq!(harness.store.count(StoreCall::Claim), claims);
    assert_eq!(harness.events.count("Replayed(Cache)"), 11, "what it completed itself is known");
}

#[tokio::test(start_paused = true)]
async fn a_replay_from_the_store_is_known_the_next_time() {
    let harness = Harness::new();
    harness.answer("a", "one").await;
    let harness = harness.second_process();
    harness.answer("warm", "up").await;
    run_ready_tasks().await;
    assert_eq!(harness.answer("a", "two").await, Reply::Replayed(text("one")));
    let claims = harness.store.count(StoreCall::Claim);
    assert_eq!(harness.answer("a", "two").await, Reply::Replayed(text("one")));
    assert_eq!(harness.store.count(StoreCall::Claim), claims);
}

#[tokio::test(start_paused = true)]
async fn an_operators_act_is_followed_within_a_second() {
    let harness = Harness::new();
    harness.answer("warm", "up").await;
    run_ready_tasks().await;
    harness.answer("a", "one").await;
    for _ in 0..2 {
        assert_eq!(harness.answer("a", "two").await, Reply::Replayed(text("one")));
    }
    assert_eq!(harness.events.count("Replayed(Cache)"), 2);
    let fence = harness.fence("a").await;
    let forget = Resolution::Deleted(StateName::Completed);
    assert_eq!(harness.store.resolve(&id("a"), fence, &forget).await.unwrap(), Resolved::Applied);
    sleep_for(Duration::from_secs(1)).await;
    assert_eq!(harness.answer("a", "two").await, Reply::Ran(text("two")));
    assert_eq!(harness.answer("a", "three").await, Reply::Replayed(text("two")));
}

#[tokio::test(start_paused = true)]
async fn a_process_that_cannot_follow_the_epoch_asks_the_store_for_what_it_knew() {
    let harness = Harness::new();
    harness.answer("warm", "up").await;
    run_ready_tasks().await;
    harness.answer("a", "one").await;
    harness.store.set(StoreCall::Other, StoreCondition::Unavailable);
    let claims = harness.store.count(StoreCall::Claim);
    assert_eq!(harness.answer("a", "two").await, Reply::Replayed(text("one")));
    assert_eq!(harness.store.count(StoreCall::Claim), claims);
    sleep_for(Duration::from_millis(1100)).await;
    assert_eq!(harness.answer("a", "two").await, Reply::Replayed(text("one")));
    assert_eq!(harness.store.count(StoreCall::Claim), claims + 1);
    harness.store.set(StoreCall::Other, StoreCondition::Available);
    sleep_for(Duration::from_millis(400)).await;
    assert_eq!(harness.answer("a", "two").await, Reply::Replayed(text("one")));
    assert_eq!((harness.store.count(StoreCall::Claim), harness.runs()), (claims + 1, 2));
}

#[tokio::test(start_paused = true)]
async fn a_record_is_known_no_longer_than_its_retention() {
    let mut harness = Harness::new();
    harness.policy.retention = Duration::from_secs(60);
    harness.answer("warm", "up").await;
    run_ready_tasks().await;
    harness.answer("a", "one").await;
    harness.answer("a", "one").await;
    sleep_for(Duration::from_secs(59)).await;
    assert_eq!(harness.answer("a", "two").await, Reply::Replayed(text("one")));
    sleep_for(Duration::from_secs(2)).await;
    assert_eq!(harness.answer("a", "two").await, Reply::Ran(text("two")));
}

#[tokio::test(start_paused = true)]
async fn a_replayed_record_is_known_for_what_is_left_of_its_retention() {
    let mut harness = Harness::new();
    harness.policy.retention = Duration::from_secs(60);
    harness.answer("a", "one").await;
    let harness = harness.second_process();
    sleep_for(Duration::from_secs(50)).await;
    harness.answer("warm", "up").await;
    run_ready_tasks().await;
    assert_eq!(harness.answer("a", "two").await, Reply::Replayed(text("one")));
    sleep_for(Duration::from_secs(9)).await;
    assert_eq!(harness.answer("a", "two").await, Reply::Replayed(text("one")));
    sleep_for(Duration::from_secs(2)).await;
    assert_eq!(harness.answer("a", "two").await, Reply::Ran(text("two")));
}

#[tokio::test(start_paused = true)]
async fn only_completed_records_are_known() {
    let harness = Harness::new().on_unknown(OnUnknown::Hold);
    harness.answer("warm", "up").await;
    run_ready_tasks().await;
    let broken = harness.begin("a", |_| async { crate::harness::broken() });
    assert_eq!(broken.await, problem(Problem::UpstreamTimeout));
    let fence = harness.fence("a").await;
    let happened = Resolution::Completed(text("it happened"));
    assert_eq!(harness.store.resolve(&id("a"), fence, &happened).await.unwrap(), Resolved::Applied);
    assert_eq!(harness.answer("a", "two").await, Reply::Replayed(text("it happened")));
    assert_eq!(harness.runs(), 2);
}

#[tokio::test(start_paused = true)]
async fn an_engine_without_a_cache_asks_every_time() {
    let harness = Harness::with(|builder| builder.cache_bytes_max(0));
    harness.answer("warm", "up").await;
    run_ready_tasks().await;
    harness.answer("a", "one").await;
    let claims = harness.store.count(StoreCall::Claim);
    assert_eq!(harness.answer("a", "two").await, Reply::Replayed(text("one")));
    assert_eq!(harness.store.count(StoreCall::Claim), claims + 1);
}

#[tokio::test(start_paused = true)]
async fn the_engine_sweeps_and_reaps() {
    let mut harness = Harness::with(|builder| builder.sweep_every(Duration::from_secs(10)));
    harness.policy.retention = Duration::from_secs(60);
    for number in 0..1200 {
        harness.answer(&number.to_string(), "one").await;
    }
    let kept = || format!("{:?}", harness.store);
    assert!(kept().contains("records: 1200"), "{}", kept());
    harness.store.set_all(StoreCondition::Unavailable);
    sleep_for(Duration::from_secs(100)).await;
    harness.store.set_all(StoreCondition::Available);
    sleep_for(Duration::from_secs(11)).await;
    assert!(kept().contains("records: 0"), "an error does not end the sweep: {}", kept());
}
