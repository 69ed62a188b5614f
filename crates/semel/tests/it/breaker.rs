//! A store that is known to be away: who gets an error at once, who probes, and what is replayed
//! meanwhile.

use std::time::Duration;

use semel::core::{OnStoreDown, Problem, Reply, Resolution, Resolved, StateName, Store};
use semel_testkit::unsteady::{Verb, Weather};
use tokio::time::Instant;

use crate::bench::{Bench, Gate, completed, id, pass, problem, settle, text};

const SECOND: Duration = Duration::from_secs(1);

/// An engine that has learnt that its store is away.
async fn away(weather: Weather) -> Bench {
    let bench = Bench::new();
    bench.answer("warm", "up").await;
    settle().await;
    lose_store(&bench, weather).await;
    bench
}

async fn lose_store(bench: &Bench, weather: Weather) {
    bench.store.set_all(weather);
    assert_eq!(bench.answer("first", "one").await, problem(Problem::StoreUnavailable));
}

#[tokio::test(start_paused = true)]
async fn the_first_request_waits_for_the_store_timeout_and_the_next_ones_not_at_all() {
    for weather in [Weather::Away, Weather::Stuck, Weather::Deaf] {
        let bench = away(weather).await;
        let claims = bench.store.count(Verb::Claim);
        let begun = Instant::now();
        for number in 0..100 {
            let reply = bench.answer(&number.to_string(), "one").await;
            assert_eq!(reply, problem(Problem::StoreUnavailable), "{weather:?}");
        }
        assert_eq!(begun.elapsed(), Duration::ZERO, "{weather:?}");
        // Claims that may have been granted are retried concurrently.
        let settling = u64::from(weather != Weather::Away);
        assert!(bench.store.count(Verb::Claim) <= claims + settling, "{weather:?}");
        assert_eq!(bench.runs(), 1);
    }
}

#[tokio::test(start_paused = true)]
async fn one_claim_a_second_finds_out() {
    let bench = away(Weather::Away).await;
    let claims = bench.store.count(Verb::Claim);
    for round in 0..100 {
        for number in 0..10 {
            let reply = bench.answer(&format!("{round}-{number}"), "one").await;
            assert_eq!(reply, problem(Problem::StoreUnavailable));
        }
        pass(SECOND / 10).await;
    }
    let probes = bench.store.count(Verb::Claim) - claims;
    assert!((9..=10).contains(&probes), "{probes} of 1000 in ten seconds");
}

#[tokio::test(start_paused = true)]
async fn the_first_success_ends_it() {
    for weather in [Weather::Away, Weather::Stuck, Weather::Deaf] {
        let bench = away(weather).await;
        bench.store.set_all(Weather::Fair);
        pass(SECOND).await;
        for number in 0..10 {
            let reply = bench.answer(&number.to_string(), "one").await;
            assert_eq!(reply, Reply::Ran(text("one")), "{weather:?}");
        }
    }
}

#[tokio::test(start_paused = true)]
async fn whoever_waits_already_is_told_as_soon_as_it_is_known() {
    let mut bench = Bench::new();
    bench.store.set_all(Weather::Away);
    let first = tokio::spawn(bench.answer("a", "one"));
    bench.policy.store_timeout = SECOND * 60;
    let second = tokio::spawn(bench.answer("b", "one"));
    let begun = Instant::now();
    assert_eq!(first.await.unwrap(), problem(Problem::StoreUnavailable));
    assert_eq!(second.await.unwrap(), problem(Problem::StoreUnavailable));
    assert!(begun.elapsed() < SECOND * 10, "{:?}", begun.elapsed());
}

#[tokio::test(start_paused = true)]
async fn a_store_that_answers_others_is_not_away() {
    let bench = Bench::new();
    let gate = Gate::new();
    let first = bench.behind(&gate, "a", "one");
    settle().await;
    bench.store.set(Verb::Claim, Weather::Stuck);
    let slow = tokio::spawn(bench.answer("b", "two"));
    pass(SECOND).await;
    gate.open();
    assert_eq!(first.await, Reply::Ran(text("one")), "the store records an answer");
    assert_eq!(slow.await.unwrap(), problem(Problem::StoreUnavailable));
    // So it gets the next claim, too.
    for expected in [bench.policy.store_timeout, Duration::ZERO] {
        let begun = Instant::now();
        assert_eq!(bench.answer("c", "three").await, problem(Problem::StoreUnavailable));
        assert_eq!(begun.elapsed(), expected);
    }
}

#[tokio::test(start_paused = true)]
async fn a_busy_store_is_not_away() {
    let bench = Bench::new();
    bench.store.set(Verb::Claim, Weather::Busy);
    for number in 0..10 {
        let reply = bench.answer(&number.to_string(), "one").await;
        assert_eq!(reply, problem(Problem::TooManyInFlight));
    }
    assert_eq!(bench.store.count(Verb::Claim), 10);
    bench.store.set(Verb::Claim, Weather::Fair);
    assert_eq!(bench.answer("a", "one").await, Reply::Ran(text("one")));
}

#[tokio::test(start_paused = true)]
async fn what_is_known_to_be_completed_is_replayed_for_five_minutes() {
    for weather in [Weather::Away, Weather::Stuck] {
        let bench = Bench::new();
        bench.answer("warm", "up").await;
        settle().await;
        assert_eq!(bench.answer("a", "one").await, Reply::Ran(text("one")));
        lose_store(&bench, weather).await;
        for _ in 0..29 {
            let begun = Instant::now();
            assert_eq!(bench.answer("a", "two").await, Reply::Replayed(text("one")));
            let reused = bench.begin_as("a", 2, |_| async { completed("two") });
            assert_eq!(reused.await, problem(Problem::KeyReused));
            assert_eq!(begun.elapsed(), Duration::ZERO, "{weather:?}");
            pass(SECOND * 10).await;
        }
        assert_eq!(bench.events.count("Replayed(CacheWhileAway)"), 29);
        pass(SECOND * 10).await;
        assert_eq!(bench.answer("a", "two").await, problem(Problem::StoreUnavailable));
        bench.store.set_all(Weather::Fair);
        pass(SECOND).await;
        assert_eq!(bench.answer("a", "two").await, Reply::Replayed(text("one")));
        assert_eq!((bench.runs(), bench.events.count("Replayed(CacheWhileAway)")), (2, 29));
    }
}

#[tokio::test(start_paused = true)]
async fn what_is_known_to_be_completed_neither_waits_nor_runs_again() {
    let mut bench = Bench::new();
    bench.policy.on_store_down = OnStoreDown::Pass;
    bench.answer("warm", "up").await;
    settle().await;
    bench.answer("a", "one").await;
    bench.store.set_all(Weather::Away);
    pass(SECOND * 5).await;
    // The store is not known to be away yet. This request finds out, and knows its answer.
    let begun = Instant::now();
    assert_eq!(bench.answer("a", "two").await, Reply::Replayed(text("one")));
    assert_eq!(begun.elapsed(), Duration::ZERO);
    assert_eq!(bench.answer("b", "three").await, Reply::Unguarded(text("three")));
    assert_eq!((bench.runs(), bench.events.count("Replayed(CacheWhileAway)")), (3, 1));
}

#[tokio::test(start_paused = true)]
async fn what_is_replayed_while_the_store_is_away_is_never_past_its_retention() {
    let mut bench = Bench::new();
    bench.policy.retention = SECOND * 60;
    bench.answer("warm", "up").await;
    settle().await;
    bench.answer("a", "one").await;
    lose_store(&bench, Weather::Away).await;
    pass(SECOND * 57).await;
    assert_eq!(bench.answer("a", "two").await, Reply::Replayed(text("one")));
    pass(SECOND).await;
    assert_eq!(bench.answer("a", "two").await, problem(Problem::StoreUnavailable));
}

#[tokio::test(start_paused = true)]
async fn what_an_operator_changed_is_not_known_when_the_store_goes_away() {
    let bench = Bench::new();
    bench.answer("warm", "up").await;
    settle().await;
    bench.answer("a", "one").await;
    let fence = bench.fence("a").await;
    let delete = Resolution::Deleted(StateName::Completed);
    assert_eq!(bench.store.resolve(&id("a"), fence, &delete).await.unwrap(), Resolved::Applied);
    pass(SECOND).await;
    lose_store(&bench, Weather::Away).await;
    assert_eq!(bench.answer("a", "two").await, problem(Problem::StoreUnavailable));
}

#[tokio::test(start_paused = true)]
async fn a_crowd_does_not_storm_a_store_that_hangs() {
    let bench = Bench::new();
    bench.store.set_all(Weather::Stuck);
    let crowd = |round: u32| {
        let all = (0..500).map(|number| bench.answer(&format!("{round}-{number}"), "one"));
        all.map(tokio::spawn).collect::<Vec<_>>()
    };
    let first = crowd(0);
    settle().await;
    assert_eq!(bench.store.count(Verb::Claim), 500, "nobody knows yet");
    for told in first {
        assert_eq!(told.await.unwrap(), problem(Problem::StoreUnavailable));
    }
    let before = bench.store.count(Verb::Claim);
    for round in 1..=60 {
        for told in crowd(round) {
            assert_eq!(told.await.unwrap(), problem(Problem::StoreUnavailable));
        }
        pass(SECOND).await;
    }
    let asked = bench.store.count(Verb::Claim) - before;
    assert!(asked < 150, "{asked} of 30,000 claims were asked in one to three minutes");
    // All that may have been granted is given back.
    bench.store.set_all(Weather::Fair);
    assert_eq!(bench.semel.drain(SECOND * 60).await, 0);
    for number in 0..500 {
        assert_eq!(bench.answer(&format!("0-{number}"), "two").await, Reply::Ran(text("two")));
    }
    assert_eq!(bench.runs(), 500);
}

/// An operator deletes a record, and this process, cut off, still knows it: the claim that it asks
/// is granted unheard.
#[tokio::test(start_paused = true)]
async fn a_claim_beside_a_known_record_is_given_back() {
    let bench = Bench::new();
    bench.answer("warm", "up").await;
    settle().await;
    bench.answer("a", "one").await;
    bench.store.set(Verb::Other, Weather::Away);
    pass(SECOND * 2).await;
    bench.store.set(Verb::Other, Weather::Fair);
    let (fence, delete) = (bench.fence("a").await, Resolution::Deleted(StateName::Completed));
    assert_eq!(bench.store.resolve(&id("a"), fence, &delete).await.unwrap(), Resolved::Applied);
    bench.store.set(Verb::Other, Weather::Away);
    bench.store.set(Verb::Claim, Weather::Deaf);
    assert_eq!(bench.answer("a", "two").await, Reply::Replayed(text("one")));
    bench.store.set_all(Weather::Fair);
    assert_eq!(bench.semel.drain(SECOND * 60).await, 0);
    pass(SECOND * 60).await;
    assert_eq!(bench.answer("a", "three").await, Reply::Ran(text("three")), "it is not held");
    assert_eq!(bench.runs(), 3);
}
