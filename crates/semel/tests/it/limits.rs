//! Limits, and the shutdown of a process.

use std::{
    future::poll_fn,
    sync::atomic::{AtomicU32, Ordering},
    time::Duration,
};

use semel::{
    Event, Observer, Sender,
    core::{Caller, OnStoreDown, Problem, Reply, Scope},
};
use semel_testkit::flaky_store::{StoreCall, StoreCondition};

use crate::harness::{Gate, Harness, begin, completed, problem, run_ready_tasks, sleep_for, text};

#[tokio::test(start_paused = true)]
async fn running_executions_are_limited() {
    let harness = Harness::with(|builder| builder.in_flight_max(2));
    let gate = Gate::new();
    let first = harness.blocked_on(&gate, "a", "one");
    let second = harness.blocked_on(&gate, "b", "one");
    assert_eq!(harness.answer("c", "one").await, problem(Problem::TooManyInFlight));
    let joined = harness.answer("a", "two");
    gate.open();
    assert_eq!(first.await, Reply::Ran(text("one")));
    assert_eq!(second.await, Reply::Ran(text("one")));
    assert_eq!(joined.await, Reply::Joined(text("one")));
    assert_eq!(harness.answer("c", "one").await, Reply::Ran(text("one")));
    assert_eq!(harness.runs(), 3);
}

#[tokio::test(start_paused = true)]
async fn a_caller_has_only_so_much_under_way() {
    let harness = Harness::with(|builder| builder.per_caller_max(2));
    let gate = Gate::new();
    let _first = harness.blocked_on(&gate, "a", "one");
    let _joined = harness.answer("a", "one");
    assert_eq!(harness.answer("b", "one").await, problem(Problem::TooManyInFlight));
    assert_eq!(harness.answer("a", "one").await, problem(Problem::TooManyInFlight));
    let mut other = harness.operation("b", 1);
    other.id.caller = Caller::new("shop-8").unwrap();
    let theirs = begin(&harness.semel, other, |_| async { completed("theirs") });
    assert_eq!(theirs.await, Reply::Ran(text("theirs")));
    let mut elsewhere = harness.operation("b", 1);
    elsewhere.id.scope = Scope::new("signup").unwrap();
    let theirs = begin(&harness.semel, elsewhere, |_| async { completed("theirs") });
    assert_eq!(theirs.await, Reply::Ran(text("theirs")), "the same name in another scope");
}

#[tokio::test(start_paused = true)]
async fn waiters_are_limited_in_this_process_and_for_another() {
    let harness = Harness::with(|builder| builder.waiting_max(1));
    let gate = Gate::new();
    let _first = harness.blocked_on(&gate, "a", "one");
    let joined = harness.answer("a", "one");
    assert_eq!(harness.answer("a", "one").await, problem(Problem::TooManyInFlight));
    drop(joined);

    let other = Harness::on(harness.store.clone(), |builder| builder.waiting_max(1));
    run_ready_tasks().await;
    let waiting = tokio::spawn(other.answer("a", "one"));
    run_ready_tasks().await;
    let begun = tokio::time::Instant::now();
    assert_eq!(other.answer("a", "one").await, problem(Problem::TooManyInFlight));
    assert!(begun.elapsed() < Duration::from_millis(50), "the next one is refused at once");
    waiting.abort();
    let _ = waiting.await;
    assert_eq!((other.semel.waiting(), other.semel.in_flight()), (0, 0));
}

#[tokio::test(start_paused = true)]
async fn a_process_that_ends_waits_for_what_runs() {
    let harness = Harness::new();
    assert_eq!(harness.semel.drain(Duration::from_secs(1)).await, 0);
    let gate = Gate::new();
    drop(harness.blocked_on(&gate, "a", "one"));
    assert_eq!(harness.semel.drain(Duration::from_secs(1)).await, 1);
    let draining = tokio::spawn({
        let semel = harness.semel.clone();
        async move { semel.drain(Duration::from_secs(60)).await }
    });
    run_ready_tasks().await;
    let begun = tokio::time::Instant::now();
    gate.open();
    assert_eq!(draining.await.unwrap(), 0);
    assert!(begun.elapsed() < Duration::from_secs(1), "it does not wait for longer");
    assert_eq!(harness.second_process().answer("a", "two").await, Reply::Replayed(text("one")));
}

#[test]
fn an_engine_outlives_its_runtime() {
    let run = |harness: Option<Harness>, key: &'static str, seconds| {
        let mut builder = tokio::runtime::Builder::new_current_thread();
        let runtime = builder.enable_all().start_paused(true).build().unwrap();
        runtime.block_on(async move {
            let harness = harness.unwrap_or_else(Harness::new);
            // One that is dropped in the middle.
            drop(harness.blocked_on(&Gate::new(), "left", "never"));
            sleep_for(Duration::from_secs(seconds)).await;
            assert_eq!(harness.answer(key, "one").await, Reply::Ran(text("one")));
            for _ in 0..2 {
                assert_eq!(harness.answer(key, "two").await, Reply::Replayed(text("one")));
            }
            harness
        })
    };
    let harness = run(None, "a", 1);
    assert_eq!(harness.semel.in_flight(), 0, "it went down with its runtime");
    assert_eq!(harness.events.count("Replayed(Cache)"), 2);
    let harness = run(Some(harness), "b", 10);
    assert_eq!(harness.runs(), 3);
    assert_eq!(harness.events.count("Replayed(Cache)"), 4, "the epoch is followed again");
}

#[test]
fn a_request_that_joins_a_refused_owner_is_refused_too() {
    const KEYS: u32 = 20_000;
    let mut builder = tokio::runtime::Builder::new_multi_thread();
    let runtime = builder.worker_threads(1).enable_all().build().unwrap();
    let _in = runtime.enter();
    let harness = Harness::with(|builder| builder.in_flight_max(0));
    let (semel, turn) = (&harness.semel, &AtomicU32::new(0));
    let ask = || {
        let _in = runtime.enter();
        let refused = |key: &u32| {
            // Both threads begin with the same key at the same time.
            turn.fetch_add(1, Ordering::SeqCst);
            while turn.load(Ordering::SeqCst) < (key + 1) * 2 {
                std::hint::spin_loop();
            }
            let operation = harness.operation(&key.to_string(), 1);
            let pending = begin(semel, operation, |_| async { completed("never") });
            runtime.block_on(pending) == problem(Problem::TooManyInFlight)
        };
        (0..KEYS).filter(refused).count()
    };
    let refused: usize = std::thread::scope(|scope| {
        let threads = [0, 1].map(|_| scope.spawn(ask));
        threads.into_iter().map(|thread| thread.join().unwrap()).sum()
    });
    assert_eq!(refused, 40_000, "nothing ran, so nothing is unknown");
}

#[tokio::test(start_paused = true)]
async fn an_unguarded_run_is_drained_once_its_claim_is_settled() {
    let mut harness = Harness::with(|builder| builder.in_flight_max(10));
    harness.policy.on_store_down = OnStoreDown::Pass;
    harness.store.set_all(StoreCondition::ReplyLost);
    let tasks = || tokio::runtime::Handle::current().metrics().num_alive_tasks();
    let before = tasks();
    for round in 0..20 {
        let all = [0; 10].map(|_| harness.answer(&format!("{round}"), "unguarded"));
        for pending in all {
            let _ = pending.await;
        }
    }
    assert!(tasks() - before <= 30, "{} tasks are left", tasks() - before);
    assert_eq!(harness.semel.in_flight(), 0, "nothing runs any more");
    let left = harness.semel.drain(Duration::from_secs(600)).await;
    assert!((1..=10).contains(&left), "{left} claims have no answer");
    harness.store.set_all(StoreCondition::Available);
    assert_eq!(harness.semel.drain(Duration::from_secs(600)).await, 0);
}

#[tokio::test(start_paused = true)]
async fn a_store_that_hangs_does_not_keep_an_engine_alive() {
    let harness = Harness::new();
    harness.store.set(StoreCall::Other, StoreCondition::Hanging);
    harness.answer("a", "one").await;
    run_ready_tasks().await;
    let store = std::sync::Arc::downgrade(harness.semel.store());
    drop(harness);
    sleep_for(Duration::from_secs(60)).await;
    assert!(store.upgrade().is_none());
}

#[tokio::test(start_paused = true)]
async fn a_listener_that_panics_changes_nothing() {
    #[derive(Debug)]
    struct Panics;
    impl Observer for Panics {
        fn on_event(&self, _: &Event<'_>) {
            panic!("the listener panics: this is expected");
        }
    }
    let harness = Harness::with(|builder| builder.observer(Panics));
    assert_eq!(harness.answer("a", "one").await, Reply::Ran(text("one")));
    assert_eq!(harness.answer("a", "two").await, Reply::Replayed(text("one")));
    assert_eq!(harness.semel.in_flight(), 0);
}

#[tokio::test]
async fn bodies_being_read_are_limited_too() {
    let harness = Harness::with(|builder| builder.in_flight_max(1));
    let mut first = harness.semel.admit(Sender::default()).unwrap();
    assert_eq!(harness.answer("a", "one").await, Reply::Ran(text("one")), "what runs is apart");
    assert_eq!((harness.semel.arriving(), harness.semel.evicted()), (1, 0));
    let second = harness.semel.admit(Sender::default()).unwrap();
    poll_fn(|context| first.poll_evicted(context)).await;
    assert_eq!((harness.semel.arriving(), harness.semel.evicted()), (1, 1));
    drop((first, second));
    assert_eq!(harness.semel.arriving(), 0);
    let none = Harness::with(|builder| builder.in_flight_max(0));
    assert_eq!(none.semel.admit(Sender::default()).unwrap_err(), Problem::TooManyInFlight);
}
