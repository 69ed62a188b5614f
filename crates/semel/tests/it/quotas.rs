//! Quotas per caller and for the store. Only new keys are refused.

use std::time::Duration;

use semel::{
    Quotas, Semel,
    core::{
        Batch, Caller, OnUnknown, Problem, RELEASED_RETENTION_MAX, Reply, Resolution, Resolved,
        Scope, StateView, Store, Verdict,
    },
};
use semel_testkit::flaky_store::StoreCondition;

use crate::harness::{
    Gate, Harness, PendingReply, begin, broken, completed, ended, id, problem, sleep_for, text,
};

/// Longer than the interval between two measurements of the usage.
const USAGE_INTERVAL: Duration = Duration::from_secs(6);

/// An engine without a cache: replays come from the store.
fn harness(quotas: Quotas) -> Harness {
    let mut harness = Harness::with(|builder| builder.quotas(quotas).cache_bytes_max(0));
    harness.policy.retention = Duration::from_secs(2 * 60 * 60);
    harness
}

async fn begin_as_other_caller(harness: &Harness, key: &str) -> Reply {
    let mut operation = harness.operation(key, 1);
    operation.id.caller = Caller::new("shop-8").unwrap();
    begin(&harness.semel, operation, |_| async { completed("theirs") }).await
}

#[tokio::test(start_paused = true)]
async fn a_caller_over_its_quota_is_refused_new_keys_and_nothing_else() {
    let harness = harness(Quotas { records_per_caller: 2, ..Quotas::default() });
    for key in ["a", "b"] {
        assert_eq!(harness.answer(key, "one").await, Reply::Ran(text("one")));
    }
    assert_eq!(harness.answer("c", "one").await, problem(Problem::TooManyRecords));
    assert_eq!(harness.state("c").await, None, "a refusal creates no record");
    assert_eq!(harness.answer("a", "two").await, Reply::Replayed(text("one")));
    assert_eq!(begin_as_other_caller(&harness, "c").await, Reply::Ran(text("theirs")));
    assert_eq!(harness.runs(), 2);
    sleep_for(harness.policy.retention).await;
    assert_eq!(harness.answer("c", "one").await, Reply::Ran(text("one")));
}

/// The same name in another scope, where another rule may have found it.
async fn in_another_scope(harness: &Harness, key: &str) -> Reply {
    let mut operation = harness.operation(key, 1);
    operation.id.scope = Scope::new("signup").unwrap();
    begin(&harness.semel, operation, |_| async { completed("theirs") }).await
}

#[tokio::test(start_paused = true)]
async fn a_caller_of_the_same_name_in_another_scope_has_a_quota_of_its_own() {
    let quotas = Quotas { records_per_caller: 2, held_per_caller: 2, ..Quotas::default() };
    let harness = harness(quotas).on_unknown(OnUnknown::Hold);
    for key in ["a", "b"] {
        harness.begin(key, |_| async { broken() }).await;
    }
    assert_eq!(harness.answer("c", "one").await, problem(Problem::TooManyRecords));
    assert_eq!(in_another_scope(&harness, "c").await, Reply::Ran(text("theirs")));
    assert_eq!(in_another_scope(&harness, "d").await, Reply::Ran(text("theirs")));
    assert_eq!(in_another_scope(&harness, "e").await, problem(Problem::TooManyRecords));
}

#[tokio::test(start_paused = true)]
async fn a_released_record_counts_for_an_hour_and_may_run_again() {
    let harness = harness(Quotas { records_per_caller: 2, ..Quotas::default() });
    let refused = |key: &str| harness.begin(key, |_| async { ended(Verdict::Retry, "no") });
    refused("a").await;
    refused("b").await;
    refused("a").await;
    assert_eq!(harness.runs(), 3, "a key that has a record runs again");
    assert_eq!(refused("c").await, problem(Problem::TooManyRecords));
    sleep_for(RELEASED_RETENTION_MAX).await;
    assert_eq!(refused("c").await, Reply::Ran(text("no")));
}

#[tokio::test(start_paused = true)]
async fn a_caller_with_too_many_held_records_is_refused_new_keys_until_they_are_resolved() {
    let quotas = Quotas { held_per_caller: 2, ..Quotas::default() };
    let harness = harness(quotas).on_unknown(OnUnknown::Hold);
    let lost = |key: &str| harness.begin(key, |_| async { broken() });
    lost("a").await;
    lost("b").await;
    assert_eq!(lost("c").await, problem(Problem::TooManyRecords));
    assert_eq!(harness.answer("a", "one").await, problem(Problem::OutcomeUnknown));
    assert_eq!(begin_as_other_caller(&harness, "c").await, Reply::Ran(text("theirs")));
    let (id, fence) = (id("a"), harness.fence("a").await);
    let resolved = harness.store.resolve(&id, fence, &Resolution::Released).await.unwrap();
    assert_eq!(resolved, Resolved::Applied);
    harness.semel.set_held([(id.scope, id.caller)]);
    assert_eq!(harness.answer("c", "one").await, Reply::Ran(text("one")));
}

/// An engine on a store with three records, its maximum.
async fn full_store() -> (Harness, Gate, PendingReply) {
    let harness = harness(Quotas { records: 3, ..Quotas::default() });
    let gate = Gate::new();
    assert_eq!(harness.answer("done", "one").await, Reply::Ran(text("one")));
    harness.begin("released", |_| async { ended(Verdict::Retry, "no") }).await;
    let running = harness.blocked_on(&gate, "running", "late");
    sleep_for(USAGE_INTERVAL).await;
    (harness, gate, running)
}

#[tokio::test(start_paused = true)]
async fn a_full_store_refuses_new_keys_but_replays_and_finishes_running_operations() {
    let (harness, gate, running) = full_store().await;
    assert_eq!(harness.semel.quota_usage().store.records, Some(3));
    for _ in 0..2 {
        assert_eq!(harness.answer("new", "one").await, problem(Problem::StoreFull));
        assert_eq!(begin_as_other_caller(&harness, "new").await, problem(Problem::StoreFull));
    }
    assert_eq!(harness.state("new").await, None, "a refusal creates no record");
    assert_eq!(harness.answer("done", "two").await, Reply::Replayed(text("one")));
    // Its lease is renewed several times.
    sleep_for(3 * harness.policy.lease).await;
    let state = harness.state("running").await;
    assert!(matches!(state, Some(StateView::InFlight { lease_left }) if !lease_left.is_zero()));
    gate.open();
    assert_eq!(running.await, Reply::Ran(text("late")));
    assert_eq!(harness.answer("running", "two").await, Reply::Replayed(text("late")));
    assert_eq!(
        harness.answer("released", "now").await,
        Reply::Ran(text("now")),
        "it adds no record"
    );
    assert_eq!(harness.runs(), 4);
}

#[tokio::test(start_paused = true)]
async fn a_swept_store_accepts_new_keys_again() {
    let (harness, gate, running) = full_store().await;
    assert_eq!(harness.answer("new", "one").await, problem(Problem::StoreFull));
    gate.open();
    running.await;
    sleep_for(harness.policy.retention).await;
    let Batch { done, .. } = harness.store.sweep(100).await.unwrap();
    assert!(done <= 3, "the engine sweeps as well");
    sleep_for(USAGE_INTERVAL).await;
    assert_eq!(harness.semel.quota_usage().store.records, Some(0));
    assert_eq!(harness.answer("new", "one").await, Reply::Ran(text("one")));
}

#[tokio::test(start_paused = true)]
async fn an_unavailable_store_counts_neither_as_full_nor_as_empty() {
    let (harness, ..) = full_store().await;
    harness.store.set_all(StoreCondition::Unavailable);
    sleep_for(USAGE_INTERVAL).await;
    assert_eq!(harness.semel.quota_usage().store.records, Some(3), "the last measurement is kept");
    assert_eq!(harness.answer("new", "one").await, problem(Problem::StoreUnavailable));
}

#[tokio::test(start_paused = true)]
async fn without_quotas_nothing_is_refused() {
    let semel = Semel::new(crate::harness::memory());
    assert_eq!(semel.quotas(), Quotas::default());
    let harness = Harness::new();
    for number in 0..100 {
        let reply = harness.answer(&format!("k{number}"), "one").await;
        assert_eq!(reply, Reply::Ran(text("one")));
    }
}
