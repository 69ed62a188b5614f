//! A store that is away, hangs, or answers into the void.

use std::time::Duration;

use semel::core::{OnStoreDown, OnUnknown, Problem, Reply, Standing};
use semel_testkit::unsteady::{Verb, Weather};

use crate::bench::{Bench, Gate, pass, problem, settle, text};

const LEASE: Duration = Duration::from_secs(30);

/// How often a claim goes through while the store is away.
const PROBE_INTERVAL: Duration = Duration::from_secs(1);

#[tokio::test(start_paused = true)]
async fn without_a_store_nothing_runs() {
    for weather in [Weather::Away, Weather::Stuck, Weather::Deaf] {
        let bench = Bench::new();
        bench.store.set(Verb::Claim, weather);
        let begun = tokio::time::Instant::now();
        assert_eq!(bench.answer("a", "one").await, problem(Problem::StoreUnavailable));
        let store_timeout = bench.policy.store_timeout;
        assert_eq!(begun.elapsed().as_millis(), store_timeout.as_millis(), "{weather:?}");
        assert_eq!(bench.runs(), 0);
        // What may have been granted is given back, and the next one runs as the first.
        bench.store.set(Verb::Claim, Weather::Fair);
        pass(PROBE_INTERVAL).await;
        assert_eq!(bench.semel.drain(LEASE * 10).await, 0);
        let next = bench.begin("a", |lease| async move {
            assert_eq!(lease.attempt(), 1);
            crate::bench::completed("two")
        });
        assert_eq!(next.await, Reply::Ran(text("two")), "{weather:?}");
        assert_eq!(bench.runs(), 1);
    }
}

#[tokio::test(start_paused = true)]
async fn a_store_that_comes_back_soon_is_not_noticed() {
    for weather in [Weather::Away, Weather::Stuck, Weather::Deaf] {
        let bench = Bench::new();
        bench.store.set(Verb::Claim, weather);
        let pending = tokio::spawn(bench.answer("a", "one"));
        pass(Duration::from_secs(1)).await;
        bench.store.set(Verb::Claim, Weather::Fair);
        assert_eq!(pending.await.unwrap(), Reply::Ran(text("one")), "{weather:?}");
        assert_eq!(bench.runs(), 1);
    }
}

#[tokio::test(start_paused = true)]
async fn a_busy_store_is_told_at_once() {
    let bench = Bench::new();
    bench.store.set(Verb::Claim, Weather::Busy);
    let begun = tokio::time::Instant::now();
    assert_eq!(bench.answer("a", "one").await, problem(Problem::TooManyInFlight));
    assert!(begun.elapsed() < Duration::from_millis(10));
}

#[tokio::test(start_paused = true)]
async fn what_is_not_durable_is_not_acknowledged() {
    for weather in [Weather::Away, Weather::Stuck, Weather::Deaf] {
        let bench = Bench::new();
        bench.store.set(Verb::Record, weather);
        let joined_gate = Gate::new();
        let first = bench.behind(&joined_gate, "a", "one");
        settle().await;
        let joined = bench.answer("a", "two");
        joined_gate.open();
        assert_eq!(first.await, problem(Problem::OutcomeUnrecorded), "{weather:?}");
        assert_eq!(joined.await, problem(Problem::OutcomeUnrecorded), "{weather:?}");
        assert_eq!(bench.semel.in_flight(), 1, "it goes on trying");
        // For longer than the lease, and back: late truth into a held record.
        pass(LEASE * 3).await;
        bench.store.set(Verb::Record, Weather::Fair);
        assert_eq!(bench.semel.drain(LEASE).await, 0);
        assert_eq!(bench.answer("a", "three").await, Reply::Replayed(text("one")));
        assert_eq!(bench.runs(), 1);
    }
}

#[tokio::test(start_paused = true)]
async fn a_repeat_while_the_answer_cannot_be_recorded_waits_for_it() {
    let bench = Bench::new();
    bench.store.set(Verb::Record, Weather::Away);
    assert_eq!(bench.answer("a", "one").await, problem(Problem::OutcomeUnrecorded));
    let repeat = tokio::spawn(bench.answer("a", "two"));
    pass(Duration::from_secs(2)).await;
    bench.store.set(Verb::Record, Weather::Fair);
    assert_eq!(repeat.await.unwrap(), Reply::Replayed(text("one")));
    assert_eq!(bench.runs(), 1);
}

#[tokio::test(start_paused = true)]
async fn a_store_away_for_longer_than_the_lease_leaves_a_zombie_without_a_voice() {
    let bench = Bench::new().on_unknown(OnUnknown::Rerun);
    let gate = Gate::new();
    let zombie = bench.behind(&gate, "a", "zombie");
    settle().await;
    bench.store.set_all(Weather::Away);
    gate.open();
    pass(LEASE * 2).await;
    assert_eq!(zombie.await, problem(Problem::OutcomeUnrecorded));
    bench.store.set(Verb::Claim, Weather::Fair);
    let second = Gate::new();
    let running = bench.neighbour().behind(&second, "a", "second");
    settle().await;
    bench.store.set_all(Weather::Fair);
    assert_eq!(bench.semel.drain(LEASE).await, 0, "the zombie was refused");
    assert!(matches!(bench.standing("a").await, Some(Standing::InFlight { .. })));
    second.open();
    assert_eq!(running.await, Reply::Ran(text("second")));
    assert_eq!(bench.answer("a", "three").await, Reply::Replayed(text("second")));
    assert_eq!(bench.runs(), 2);
}

#[tokio::test(start_paused = true)]
async fn a_renewal_that_hangs_does_not_stop_the_operation() {
    let bench = Bench::new();
    bench.store.set(Verb::Renew, Weather::Stuck);
    let long = bench.begin("a", |_| async {
        pass(Duration::from_secs(25)).await;
        crate::bench::completed("one")
    });
    assert_eq!(long.await, Reply::Ran(text("one")));
    assert_eq!(bench.answer("a", "two").await, Reply::Replayed(text("one")));
}

#[tokio::test(start_paused = true)]
async fn hanging_up_while_the_store_hangs_changes_nothing() {
    for verb in [Verb::Claim, Verb::Record] {
        let bench = Bench::new();
        bench.store.set(verb, Weather::Stuck);
        let pending = tokio::spawn(bench.answer("a", "one"));
        settle().await;
        pending.abort();
        let _ = pending.await;
        bench.store.set(verb, Weather::Fair);
        assert_eq!(bench.semel.drain(LEASE).await, 0);
        assert_eq!(bench.answer("a", "two").await, Reply::Replayed(text("one")), "{verb:?}");
        assert_eq!(bench.runs(), 1);
    }
}

#[tokio::test(start_paused = true)]
async fn a_lease_that_is_too_short_to_be_one_is_lengthened() {
    let mut bench = Bench::new();
    bench.policy.lease = Duration::ZERO;
    bench.policy.on_store_down = OnStoreDown::Pass;
    assert_eq!(bench.answer("a", "one").await, Reply::Ran(text("one")));
    assert_eq!(bench.answer("a", "two").await, Reply::Replayed(text("one")));
    assert_eq!(bench.events.count("Passed"), 0);
}
