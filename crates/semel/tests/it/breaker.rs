//! An open breaker: which requests fail at once, which probe, and what is replayed meanwhile.

use std::time::Duration;

use semel::core::{OnStoreDown, Problem, Reply, Resolution, Resolved, StateName, Store};
use semel_testkit::flaky_store::{StoreCall, StoreCondition};
use tokio::time::Instant;

use crate::harness::{Gate, Harness, completed, id, problem, run_ready_tasks, sleep_for, text};

const SECOND: Duration = Duration::from_secs(1);

/// An engine whose breaker is open.
async fn away(weather: StoreCondition) -> Harness {
    let harness = Harness::new();
    harness.answer("warm", "up").await;
    run_ready_tasks().await;
    lose_store(&harness, weather).await;
    harness
}

async fn lose_store(harness: &Harness, weather: StoreCondition) {
    harness.store.set_all(weather);
    assert_eq!(harness.answer("first", "one").await, problem(Problem::StoreUnavailable));
}

#[tokio::test(start_paused = true)]
async fn the_first_request_waits_for_the_store_timeout_and_the_next_ones_not_at_all() {
    for weather in [StoreCondition::Unavailable, StoreCondition::Hanging, StoreCondition::ReplyLost]
    {
        let harness = away(weather).await;
        let claims = harness.store.count(StoreCall::Claim);
        let begun = Instant::now();
        for number in 0..100 {
            let reply = harness.answer(&number.to_string(), "one").await;
            assert_eq!(reply, problem(Problem::StoreUnavailable), "{weather:?}");
        }
        assert_eq!(begun.elapsed(), Duration::ZERO, "{weather:?}");
        // Claims that may have been granted are retried concurrently.
        let settling = u64::from(weather != StoreCondition::Unavailable);
        assert!(harness.store.count(StoreCall::Claim) <= claims + settling, "{weather:?}");
        assert_eq!(harness.runs(), 1);
    }
}

#[tokio::test(start_paused = true)]
async fn one_claim_a_second_finds_out() {
    let harness = away(StoreCondition::Unavailable).await;
    let claims = harness.store.count(StoreCall::Claim);
    for round in 0..100 {
        for number in 0..10 {
            let reply = harness.answer(&format!("{round}-{number}"), "one").await;
            assert_eq!(reply, problem(Problem::StoreUnavailable));
        }
        sleep_for(SECOND / 10).await;
    }
    let probes = harness.store.count(StoreCall::Claim) - claims;
    assert!((9..=10).contains(&probes), "{probes} of 1000 in ten seconds");
}

#[tokio::test(start_paused = true)]
async fn the_first_success_ends_it() {
    for weather in [StoreCondition::Unavailable, StoreCondition::Hanging, StoreCondition::ReplyLost]
    {
        let harness = away(weather).await;
        harness.store.set_all(StoreCondition::Available);
        sleep_for(SECOND).await;
        for number in 0..10 {
            let reply = harness.answer(&number.to_string(), "one").await;
            assert_eq!(reply, Reply::Ran(text("one")), "{weather:?}");
        }
    }
}

#[tokio::test(start_paused = true)]
async fn waiting_requests_fail_as_soon_as_the_breaker_opens() {
    let mut harness = Harness::new();
    harness.store.set_all(StoreCondition::Unavailable);
    let first = tokio::spawn(harness.answer("a", "one"));
    harness.policy.store_timeout = SECOND * 60;
    let second = tokio::spawn(harness.answer("b", "one"));
    let begun = Instant::now();
    assert_eq!(first.await.unwrap(), problem(Problem::StoreUnavailable));
    assert_eq!(second.await.unwrap(), problem(Problem::StoreUnavailable));
    assert!(begun.elapsed() < SECOND * 10, "{:?}", begun.elapsed());
}

#[tokio::test(start_paused = true)]
async fn a_store_that_answers_others_is_not_away() {
    let harness = Harness::new();
    let gate = Gate::new();
    let first = harness.blocked_on(&gate, "a", "one");
    run_ready_tasks().await;
    harness.store.set(StoreCall::Claim, StoreCondition::Hanging);
    let slow = tokio::spawn(harness.answer("b", "two"));
    sleep_for(SECOND).await;
    gate.open();
    assert_eq!(first.await, Reply::Ran(text("one")), "the store records an answer");
    assert_eq!(slow.await.unwrap(), problem(Problem::StoreUnavailable));
    // So it gets the next claim, too.
    for expected in [harness.policy.store_timeout, Duration::ZERO] {
        let begun = Instant::now();
        assert_eq!(harness.answer("c", "three").await, problem(Problem::StoreUnavailable));
        assert_eq!(begun.elapsed(), expected);
    }
}

/// As with a synchronous standby that hangs: reads succeed, commits do not.
#[tokio::test(start_paused = true)]
async fn a_store_that_can_only_be_read_is_away_to_new_keys() {
    let harness = Harness::with(|builder| builder.cache_bytes_max(0));
    harness.answer("known", "one").await;
    harness.store.set_all(StoreCondition::GrantUnconfirmed);
    let known = async || harness.answer("known", "two").await;
    let first = tokio::spawn(harness.answer("first", "one"));
    for _ in 0..10 {
        sleep_for(SECOND / 10).await;
        assert_eq!(known().await, Reply::Replayed(text("one")));
    }
    assert_eq!(first.await.unwrap(), problem(Problem::StoreUnavailable));
    let claims = harness.store.count(StoreCall::Claim);
    for round in 0..10 {
        assert_eq!(known().await, Reply::Replayed(text("one")), "{round}");
        let crowd = (0..10).map(|number| harness.answer(&format!("{round}-{number}"), "one"));
        for reply in crowd.map(tokio::spawn).collect::<Vec<_>>() {
            assert_eq!(reply.await.unwrap(), problem(Problem::StoreUnavailable));
        }
    }
    let asked = harness.store.count(StoreCall::Claim) - claims;
    assert!(asked < 50, "{asked} claims were sent, most of them with nothing to wait for");
    harness.store.set_all(StoreCondition::Available);
    assert_eq!(harness.semel.drain(SECOND * 60).await, 0);
    assert_eq!(harness.answer("first", "two").await, Reply::Ran(text("two")), "it is not held");
}

/// Only repeats arrive after the store recovers: they are answered all the same.
#[tokio::test(start_paused = true)]
async fn repeats_are_answered_though_none_proves_a_write() {
    let harness = Harness::with(|builder| builder.cache_bytes_max(0));
    harness.answer("known", "one").await;
    lose_store(&harness, StoreCondition::Unavailable).await;
    harness.store.set_all(StoreCondition::Available);
    sleep_for(SECOND).await;
    for _ in 0..100 {
        assert_eq!(harness.answer("known", "two").await, Reply::Replayed(text("one")));
    }
    sleep_for(SECOND).await;
    assert_eq!(harness.answer("new", "two").await, Reply::Ran(text("two")));
}

#[tokio::test(start_paused = true)]
async fn a_route_with_a_short_store_timeout_refuses_no_requests_of_other_routes() {
    let mut harness = Harness::new();
    harness.answer("warm", "up").await;
    harness.store.set(StoreCall::Claim, StoreCondition::Hanging);
    let store_timeout = harness.policy.store_timeout;
    harness.policy.store_timeout = SECOND / 10;
    for key in ["a", "b", "c"] {
        assert_eq!(harness.answer(key, "one").await, problem(Problem::StoreUnavailable));
    }
    harness.policy.store_timeout = store_timeout;
    let other = tokio::spawn(harness.answer("other", "one"));
    sleep_for(SECOND / 2).await;
    harness.store.set(StoreCall::Claim, StoreCondition::Available);
    assert_eq!(other.await.unwrap(), Reply::Ran(text("one")), "the store was slow, not away");
}

#[tokio::test(start_paused = true)]
async fn a_busy_store_is_not_away() {
    let harness = Harness::new();
    harness.store.set(StoreCall::Claim, StoreCondition::Busy);
    for number in 0..10 {
        let reply = harness.answer(&number.to_string(), "one").await;
        assert_eq!(reply, problem(Problem::TooManyInFlight));
    }
    assert_eq!(harness.store.count(StoreCall::Claim), 10);
    harness.store.set(StoreCall::Claim, StoreCondition::Available);
    assert_eq!(harness.answer("a", "one").await, Reply::Ran(text("one")));
}

#[tokio::test(start_paused = true)]
async fn a_cached_record_is_replayed_for_five_minutes() {
    for weather in [StoreCondition::Unavailable, StoreCondition::Hanging] {
        let harness = Harness::new();
        harness.answer("warm", "up").await;
        run_ready_tasks().await;
        assert_eq!(harness.answer("a", "one").await, Reply::Ran(text("one")));
        lose_store(&harness, weather).await;
        for _ in 0..29 {
            let begun = Instant::now();
            assert_eq!(harness.answer("a", "two").await, Reply::Replayed(text("one")));
            let reused = harness.begin_as("a", 2, |_| async { completed("two") });
            assert_eq!(reused.await, problem(Problem::KeyReused));
            assert_eq!(begun.elapsed(), Duration::ZERO, "{weather:?}");
            sleep_for(SECOND * 10).await;
        }
        assert_eq!(harness.events.count("Replayed(CacheWhileAway)"), 29);
        sleep_for(SECOND * 10).await;
        assert_eq!(harness.answer("a", "two").await, problem(Problem::StoreUnavailable));
        harness.store.set_all(StoreCondition::Available);
        sleep_for(SECOND).await;
        assert_eq!(harness.answer("a", "two").await, Reply::Replayed(text("one")));
        assert_eq!((harness.runs(), harness.events.count("Replayed(CacheWhileAway)")), (2, 29));
    }
}

#[tokio::test(start_paused = true)]
async fn a_cached_record_neither_waits_nor_runs_again() {
    let mut harness = Harness::new();
    harness.policy.on_store_down = OnStoreDown::Pass;
    harness.answer("warm", "up").await;
    run_ready_tasks().await;
    harness.answer("a", "one").await;
    harness.store.set_all(StoreCondition::Unavailable);
    sleep_for(SECOND * 5).await;
    // The breaker is still closed. This request opens it, and is answered from the cache.
    let begun = Instant::now();
    assert_eq!(harness.answer("a", "two").await, Reply::Replayed(text("one")));
    assert_eq!(begun.elapsed(), Duration::ZERO);
    assert_eq!(harness.answer("b", "three").await, Reply::Unguarded(text("three")));
    assert_eq!((harness.runs(), harness.events.count("Replayed(CacheWhileAway)")), (3, 1));
}

#[tokio::test(start_paused = true)]
async fn a_replay_while_the_store_is_away_is_never_past_its_retention() {
    let mut harness = Harness::new();
    harness.policy.retention = SECOND * 60;
    harness.answer("warm", "up").await;
    run_ready_tasks().await;
    harness.answer("a", "one").await;
    lose_store(&harness, StoreCondition::Unavailable).await;
    sleep_for(SECOND * 57).await;
    assert_eq!(harness.answer("a", "two").await, Reply::Replayed(text("one")));
    sleep_for(SECOND).await;
    assert_eq!(harness.answer("a", "two").await, problem(Problem::StoreUnavailable));
}

#[tokio::test(start_paused = true)]
async fn a_record_that_an_operator_changed_is_not_replayed_from_the_cache() {
    let harness = Harness::new();
    harness.answer("warm", "up").await;
    run_ready_tasks().await;
    harness.answer("a", "one").await;
    let fence = harness.fence("a").await;
    let delete = Resolution::Deleted(StateName::Completed);
    assert_eq!(harness.store.resolve(&id("a"), fence, &delete).await.unwrap(), Resolved::Applied);
    sleep_for(SECOND).await;
    lose_store(&harness, StoreCondition::Unavailable).await;
    assert_eq!(harness.answer("a", "two").await, problem(Problem::StoreUnavailable));
}

#[tokio::test(start_paused = true)]
async fn a_crowd_does_not_storm_a_store_that_hangs() {
    let harness = Harness::new();
    harness.store.set_all(StoreCondition::Hanging);
    let crowd = |round: u32| {
        let all = (0..500).map(|number| harness.answer(&format!("{round}-{number}"), "one"));
        all.map(tokio::spawn).collect::<Vec<_>>()
    };
    let first = crowd(0);
    run_ready_tasks().await;
    assert_eq!(harness.store.count(StoreCall::Claim), 500, "the breaker is still closed");
    for reply in first {
        assert_eq!(reply.await.unwrap(), problem(Problem::StoreUnavailable));
    }
    let before = harness.store.count(StoreCall::Claim);
    for round in 1..=60 {
        for reply in crowd(round) {
            assert_eq!(reply.await.unwrap(), problem(Problem::StoreUnavailable));
        }
        sleep_for(SECOND).await;
    }
    let asked = harness.store.count(StoreCall::Claim) - before;
    assert!(asked < 150, "{asked} of 30,000 claims were asked in one to three minutes");
    // Every possible grant is given back.
    harness.store.set_all(StoreCondition::Available);
    assert_eq!(harness.semel.drain(SECOND * 60).await, 0);
    for number in 0..500 {
        assert_eq!(harness.answer(&format!("0-{number}"), "two").await, Reply::Ran(text("two")));
    }
    assert_eq!(harness.runs(), 500);
}

/// An operator deletes a record that this disconnected process still has cached: its claim is
/// granted, and the reply is lost.
#[tokio::test(start_paused = true)]
async fn a_claim_beside_a_known_record_is_given_back() {
    let harness = Harness::new();
    harness.answer("warm", "up").await;
    run_ready_tasks().await;
    harness.answer("a", "one").await;
    harness.store.set(StoreCall::Other, StoreCondition::Unavailable);
    sleep_for(SECOND * 2).await;
    harness.store.set(StoreCall::Other, StoreCondition::Available);
    let (fence, delete) = (harness.fence("a").await, Resolution::Deleted(StateName::Completed));
    assert_eq!(harness.store.resolve(&id("a"), fence, &delete).await.unwrap(), Resolved::Applied);
    harness.store.set(StoreCall::Other, StoreCondition::Unavailable);
    harness.store.set(StoreCall::Claim, StoreCondition::ReplyLost);
    assert_eq!(harness.answer("a", "two").await, Reply::Replayed(text("one")));
    harness.store.set_all(StoreCondition::Available);
    assert_eq!(harness.semel.drain(SECOND * 60).await, 0);
    sleep_for(SECOND * 60).await;
    assert_eq!(harness.answer("a", "three").await, Reply::Ran(text("three")), "it is not held");
    assert_eq!(harness.runs(), 3);
}
