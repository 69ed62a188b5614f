//! Limits, and the end of a process.

use std::time::Duration;

use semel::core::{Problem, Reply};

use crate::bench::{Bench, Gate, pass, problem, settle, text};

#[tokio::test(start_paused = true)]
async fn what_runs_is_limited() {
    let bench = Bench::with(|builder| builder.in_flight_max(2));
    let gate = Gate::new();
    let first = bench.behind(&gate, "a", "one");
    let second = bench.behind(&gate, "b", "one");
    assert_eq!(bench.answer("c", "one").await, problem(Problem::TooManyInFlight));
    let joined = bench.answer("a", "two");
    gate.open();
    assert_eq!(first.await, Reply::Ran(text("one")));
    assert_eq!(second.await, Reply::Ran(text("one")));
    assert_eq!(joined.await, Reply::Joined(text("one")));
    assert_eq!(bench.answer("c", "one").await, Reply::Ran(text("one")));
    assert_eq!(bench.runs(), 3);
}

#[tokio::test(start_paused = true)]
async fn a_caller_has_only_so_much_under_way() {
    let bench = Bench::with(|builder| builder.per_caller_max(2));
    let gate = Gate::new();
    let _first = bench.behind(&gate, "a", "one");
    let _joined = bench.answer("a", "one");
    assert_eq!(bench.answer("b", "one").await, problem(Problem::TooManyInFlight));
    assert_eq!(bench.answer("a", "one").await, problem(Problem::TooManyInFlight));
    let mut other = bench.operation("b", 1);
    other.id.caller = semel::core::Caller::new("shop-8").unwrap();
    let theirs = bench.semel.begin(other, |_| async { crate::bench::completed("theirs") });
    assert_eq!(theirs.await, Reply::Ran(text("theirs")));
}

#[tokio::test(start_paused = true)]
async fn who_waits_is_limited_here_and_elsewhere() {
    let bench = Bench::with(|builder| builder.waiting_max(1));
    let gate = Gate::new();
    let _first = bench.behind(&gate, "a", "one");
    let joined = bench.answer("a", "one");
    assert_eq!(bench.answer("a", "one").await, problem(Problem::TooManyInFlight));
    drop(joined);

    let other = Bench::on(bench.store.clone(), |builder| builder.waiting_max(1));
    settle().await;
    let waiting = tokio::spawn(other.answer("a", "one"));
    settle().await;
    let begun = tokio::time::Instant::now();
    assert_eq!(other.answer("a", "one").await, problem(Problem::TooManyInFlight));
    assert!(begun.elapsed() < Duration::from_millis(50), "the next one is told at once");
    waiting.abort();
    let _ = waiting.await;
    assert_eq!((other.semel.waiting(), other.semel.in_flight()), (0, 0));
}

#[tokio::test(start_paused = true)]
async fn a_process_that_ends_waits_for_what_runs() {
    let bench = Bench::new();
    assert_eq!(bench.semel.drain(Duration::from_secs(1)).await, 0);
    let gate = Gate::new();
    drop(bench.behind(&gate, "a", "one"));
    assert_eq!(bench.semel.drain(Duration::from_secs(1)).await, 1);
    let draining = tokio::spawn({
        let semel = bench.semel.clone();
        async move { semel.drain(Duration::from_secs(60)).await }
    });
    settle().await;
    let begun = tokio::time::Instant::now();
    gate.open();
    assert_eq!(draining.await.unwrap(), 0);
    assert!(begun.elapsed() < Duration::from_secs(1), "it does not wait for longer");
    assert_eq!(bench.neighbour().answer("a", "two").await, Reply::Replayed(text("one")));
}

#[test]
fn an_engine_outlives_its_runtime() {
    let run = |bench: Option<Bench>, key: &'static str, seconds| {
        let mut builder = tokio::runtime::Builder::new_current_thread();
        let runtime = builder.enable_all().start_paused(true).build().unwrap();
        runtime.block_on(async move {
            let bench = bench.unwrap_or_else(Bench::new);
            // One that is left behind in the middle.
            drop(bench.behind(&Gate::new(), "left", "never"));
            pass(Duration::from_secs(seconds)).await;
            assert_eq!(bench.answer(key, "one").await, Reply::Ran(text("one")));
            assert_eq!(bench.answer(key, "two").await, Reply::Replayed(text("one")));
            bench
        })
    };
    let bench = run(None, "a", 1);
    assert_eq!(bench.semel.in_flight(), 0, "it went down with its runtime");
    assert_eq!(bench.events.count("Replayed { cached: true }"), 1);
    let bench = run(Some(bench), "b", 10);
    assert_eq!(bench.runs(), 3);
    assert_eq!(bench.events.count("Replayed { cached: true }"), 2, "the epoch is followed again");
}
