//! What an observer hears of: how requests end, how long things take, what upkeep does.

use std::time::Duration;

use semel::core::{OnStoreDown, Problem, Reply, Standing};
use semel_testkit::unsteady::{Unsteady, Verb, Weather};

use crate::bench::{Bench, Gate, memory, pass, problem, settle, text};

#[tokio::test(start_paused = true)]
async fn each_request_ends_with_one_event() {
    let bench = Bench::new();
    let gate = Gate::new();
    let first = bench.behind(&gate, "a", "one");
    let joined = bench.answer("a", "two");
    let other = bench.begin_as("a", 2, |_| async { unreachable!() });
    gate.open();
    assert_eq!(first.await, Reply::Ran(text("one")));
    assert_eq!(joined.await, Reply::Joined(text("one")));
    assert_eq!(other.await, problem(Problem::KeyReused));
    assert_eq!(bench.answer("a", "three").await, Reply::Replayed(text("one")));
    let events = ["Answered(Own)", "Answered(Joined)", "Replayed", "Refused(KeyReused)"];
    assert_eq!(events.map(|event| bench.events.count(event)), [1; 4]);
    assert_eq!((bench.events.count("Answered"), bench.events.count("Refused")), (2, 1));
}

#[tokio::test(start_paused = true)]
async fn an_unguarded_run_is_told_as_one() {
    let mut bench = Bench::new();
    bench.policy.on_store_down = OnStoreDown::Pass;
    bench.store.set_all(Weather::Away);
    assert_eq!(bench.answer("a", "one").await, Reply::Unguarded(text("one")));
    assert_eq!(bench.events.count("Answered(Unguarded)"), 1);
    assert_eq!(bench.events.count("Answered"), 1);
}

#[tokio::test(start_paused = true)]
async fn questions_to_the_store_are_timed_also_when_they_fail() {
    let bench = Bench::new();
    bench.store.set(Verb::Claim, Weather::Late);
    let pending = tokio::spawn(bench.answer("a", "one"));
    pass(Duration::from_millis(250)).await;
    bench.store.set(Verb::Claim, Weather::Fair);
    assert_eq!(pending.await.unwrap(), Reply::Ran(text("one")));
    assert_eq!(bench.events.count("Asked { operation: Claim, took: 250ms }"), 1);
    assert_eq!(bench.events.count("Asked { operation: Record, took: 0ns }"), 1);
    bench.store.set(Verb::Claim, Weather::Away);
    assert_eq!(bench.answer("b", "one").await, problem(Problem::StoreUnavailable));
    let asked = bench.events.count("Asked { operation: Claim");
    assert_eq!(asked, 1 + bench.events.count("StoreFailed { operation: Claim"));
    assert_eq!(bench.store.count(Verb::Claim), u64::try_from(asked).unwrap());
}

#[tokio::test(start_paused = true)]
async fn who_waits_is_timed_here_and_elsewhere() {
    let bench = Bench::new();
    let elsewhere = bench.neighbour();
    let gate = Gate::new();
    let first = bench.behind(&gate, "a", "one");
    settle().await;
    let joined = tokio::spawn(bench.answer("a", "two"));
    let waiting = tokio::spawn(elsewhere.answer("a", "three"));
    pass(Duration::from_secs(3)).await;
    gate.open();
    assert_eq!(first.await, Reply::Ran(text("one")));
    assert_eq!(joined.await.unwrap(), Reply::Joined(text("one")));
    assert_eq!(waiting.await.unwrap(), Reply::Replayed(text("one")));
    assert_eq!(bench.events.count("Waited { took: 3"), 1, "the first did not wait");
    assert_eq!(elsewhere.events.count("Waited { took: 3"), 1);
}

#[tokio::test(start_paused = true)]
async fn upkeep_begins_without_a_request_and_says_what_it_did() {
    let store = Unsteady::new(memory());
    let mut dead = Bench::on(store.clone(), |builder| builder.upkeep(false));
    dead.policy.retention = Duration::from_secs(60);
    for key in ["a", "b", "c"] {
        dead.answer(key, "one").await;
    }
    let lost = dead.behind(&Gate::new(), "lost", "never");
    settle().await;
    store.set(Verb::Renew, Weather::Away);
    pass(Duration::from_secs(120)).await;

    let bench = Bench::on(store, |builder| builder);
    bench.semel.keep_house();
    bench.semel.keep_house();
    settle().await;
    assert_eq!(bench.standing("lost").await, Some(Standing::Held));
    assert_eq!(bench.events.count("Reaped { records: 1 }"), 1);
    assert_eq!(bench.events.count("Swept { records: 3 }"), 1);
    pass(Duration::from_secs(3600)).await;
    assert_eq!(bench.events.count("Reaped") + bench.events.count("Swept"), 2, "nothing, unsaid");
    drop(lost);
}

#[tokio::test(start_paused = true)]
async fn sweeps_come_as_often_as_they_are_asked_for() {
    let sweeps = |period: Option<Duration>, time: Duration| async move {
        let bench = Bench::with(|builder| match period {
            Some(period) => builder.sweep_every(period),
            None => builder,
        });
        bench.semel.keep_house();
        let others = |bench: &Bench| bench.store.count(Verb::Other);
        let fixed = Bench::with(|builder| builder.sweep_every(Duration::MAX));
        fixed.semel.keep_house();
        pass(time).await;
        // What is asked besides, such as the epoch, is the same in both; each swept at its start.
        others(&bench) - others(&fixed) + 1
    };
    let quarter = Duration::from_secs(15 * 60);
    assert_eq!(sweeps(None, quarter / 2).await, 1);
    assert_eq!(sweeps(None, quarter * 2 + quarter / 2).await, 3);
    assert_eq!(sweeps(Some(Duration::from_secs(60)), Duration::from_secs(330)).await, 6);
    let often = sweeps(Some(Duration::ZERO), Duration::from_secs(1)).await;
    assert!((10..=201).contains(&often), "it neither panics nor spins: {often}");
}
