//! Runs whose lease expired.

use std::time::Duration;

use semel::{
    MemoryStore, Outcome, Semel,
    core::{
        Answer, Caller, Key, OnUnknown, Problem, Reply, Resolution, Resolved, StateView, Store,
    },
};
use semel_testkit::flaky_store::{FlakyStore, StoreCall, StoreCondition};

use crate::harness::{
    Gate, Harness, begin, completed, id, memory, problem, run_ready_tasks, sleep_for, text,
};

const LEASE: Duration = Duration::from_secs(30);

/// Blocks renewals for longer than the lease; then the store recovers.
async fn lapse(store: &FlakyStore) {
    store.set(StoreCall::Renew, StoreCondition::Unavailable);
    sleep_for(LEASE * 2).await;
    store.set(StoreCall::Renew, StoreCondition::Available);
    sleep_for(LEASE).await;
}

#[tokio::test(start_paused = true)]
async fn a_run_that_was_only_held_meanwhile_is_not_lost() {
    let store = FlakyStore::new(memory());
    let semel = Semel::new(store.clone());
    let call = || semel.once("payments", Caller::new("shop-7").unwrap(), Key::new("a").unwrap());
    let gate = Gate::new();
    let held = gate.clone();
    let first = tokio::spawn(call().run(move |lease| async move {
        held.wait_open().await;
        assert!(!lease.is_lost());
        Ok(1_u32)
    }));
    run_ready_tasks().await;
    lapse(&store).await;
    store.set(StoreCall::Finish, StoreCondition::Unavailable);
    gate.open();
    let outcome = first.await.unwrap();
    store.set(StoreCall::Finish, StoreCondition::Available);
    assert_eq!(semel.drain(LEASE * 10).await, 0);
    let repeat = call().run(|_| async { Ok(2_u32) }).await;
    assert!(matches!(repeat, Ok(Outcome::Replayed(1))), "{repeat:?}");
    let undone = matches!(outcome, Ok(Outcome::Overtaken(_)));
    assert!(!undone, "the caller must undo what is recorded as done: {outcome:?}");
}

#[tokio::test(start_paused = true)]
async fn an_operators_act_is_seen_beside_a_run_that_hangs() {
    let harness = Harness::new();
    let _hangs = harness.blocked_on(&Gate::new(), "a", "late");
    run_ready_tasks().await;
    let joined = tokio::spawn({
        let mut patient = harness.operation("a", 1);
        std::sync::Arc::make_mut(&mut patient.policy).wait = LEASE * 100;
        begin(&harness.semel, patient, |_| async { completed("two") })
    });
    run_ready_tasks().await;
    lapse(&harness.store).await;
    assert_eq!(joined.await.unwrap(), problem(Problem::OutcomeUnknown));
    let fence = harness.fence("a").await;
    let happened = Resolution::Completed(text("it happened"));
    assert_eq!(harness.store.resolve(&id("a"), fence, &happened).await.unwrap(), Resolved::Applied);
    assert_eq!(harness.answer("a", "two").await, Reply::Replayed(text("it happened")));
    assert_eq!(harness.runs(), 1);
}

#[tokio::test(start_paused = true)]
async fn a_lapsed_run_under_fail_has_failed_for_good() {
    let harness = Harness::new().on_unknown(OnUnknown::Fail);
    let gate = Gate::new();
    let late = harness.blocked_on(&gate, "a", "late");
    run_ready_tasks().await;
    lapse(&harness.store).await;
    let other = harness.second_process();
    assert_eq!(other.answer("a", "two").await, Reply::Replayed(Answer::failed()));
    gate.open();
    assert_eq!(late.await, Reply::Replayed(Answer::failed()), "its answer comes too late");
    assert_eq!(harness.runs(), 1);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 4)]
async fn an_operation_that_blocks_its_thread_keeps_its_lease() {
    let mut harness = Harness::on(FlakyStore::new(MemoryStore::new()), |builder| builder)
        .on_unknown(OnUnknown::Rerun);
    harness.policy.lease = Duration::from_millis(800);
    let blocked = harness.begin("a", |_| async {
        tokio::task::block_in_place(|| std::thread::sleep(Duration::from_millis(3000)));
        completed("one")
    });
    tokio::time::sleep(Duration::from_millis(1800)).await;
    assert!(matches!(harness.state("a").await, Some(StateView::InFlight { .. })));
    assert_eq!(harness.second_process().answer("a", "two").await, Reply::Replayed(text("one")));
    assert_eq!(blocked.await, Reply::Ran(text("one")));
    assert_eq!(harness.runs(), 1);
}

#[test]
fn a_lease_outlives_the_runtime_of_the_first_request() {
    let runtime = || {
        let mut builder = tokio::runtime::Builder::new_multi_thread();
        builder.worker_threads(1).enable_all().build().unwrap()
    };
    let (first, second) = (runtime(), runtime());
    let mut harness = Harness::on(FlakyStore::new(MemoryStore::new()), |builder| builder);
    harness.policy.lease = Duration::from_millis(800);
    assert_eq!(first.block_on(async { harness.answer("a", "one").await }), Reply::Ran(text("one")));
    let gate = Gate::new();
    let running = {
        let _in = second.enter();
        harness.blocked_on(&gate, "b", "two")
    };
    drop(first);
    std::thread::sleep(Duration::from_millis(2000));
    second.block_on(async {
        let state = harness.state("b").await;
        let alive = |left: Duration| !left.is_zero();
        let is_alive =
            matches!(state, Some(StateView::InFlight { lease_left }) if alive(lease_left));
        assert!(is_alive, "{state:?}");
        gate.open();
        assert_eq!(running.await, Reply::Ran(text("two")));
    });
}

#[tokio::test]
async fn the_first_lease_of_an_engine_is_renewed_in_time_however_short() {
    let mut harness = Harness::on(FlakyStore::new(MemoryStore::new()), |builder| builder);
    harness.policy.lease = Duration::from_millis(800);
    let gate = Gate::new();
    let running = harness.blocked_on(&gate, "a", "one");
    for _ in 0..10 {
        tokio::time::sleep(Duration::from_millis(200)).await;
        let state = harness.state("a").await;
        let lapsed =
            matches!(state, Some(StateView::InFlight { lease_left }) if lease_left.is_zero());
        assert!(!lapsed, "{state:?}");
    }
    gate.open();
    assert_eq!(running.await, Reply::Ran(text("one")));
}
