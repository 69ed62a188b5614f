//! Runs without a claim, on a route that passes while the store is unavailable; and claims that may
//! have been granted all the same.

use std::time::Duration;

use semel::core::{ExecutionResult, OnStoreDown, OnUnknown, Problem, Reply, StateView, Verdict};
use semel_testkit::flaky_store::{FlakyStore, StoreCall, StoreCondition};

use crate::harness::{
    Gate, Harness, broken, completed, ended, memory, problem, run_ready_tasks, sleep_for, text,
};

const LEASE: Duration = Duration::from_secs(30);

fn passing() -> Harness {
    let mut harness = Harness::new();
    harness.policy.on_store_down = OnStoreDown::Pass;
    harness
}

#[tokio::test(start_paused = true)]
async fn an_unavailable_store_lets_a_fail_open_route_run_unguarded() {
    let harness = passing();
    harness.store.set_all(StoreCondition::Unavailable);
    let pending = harness.begin("a", |lease| async move {
        assert_eq!(lease.fence(), None);
        assert!(lease.can_begin());
        completed("unguarded")
    });
    assert_eq!(pending.await, Reply::Unguarded(text("unguarded")));
    assert_eq!((harness.runs(), harness.events.count("Passed")), (1, 1));
    harness.store.set_all(StoreCondition::Available);
    sleep_for(Duration::from_secs(1)).await;
    assert_eq!(harness.answer("a", "guarded").await, Reply::Ran(text("guarded")), "none was asked");
}

#[tokio::test(start_paused = true)]
async fn a_request_that_joins_an_unguarded_run_learns_that_it_is_unguarded() {
    let harness = passing();
    harness.store.set_all(StoreCondition::Unavailable);
    let gate = Gate::new();
    let first = harness.blocked_on(&gate, "a", "one");
    sleep_for(Duration::from_secs(3)).await;
    let second = harness.answer("a", "two");
    gate.open();
    assert_eq!(first.await, Reply::Unguarded(text("one")));
    assert_eq!(second.await, Reply::Unguarded(text("one")));
    assert_eq!(harness.runs(), 1);
}

/// An unguarded run whose claim was granted, with its reply lost, is recorded when the store
/// recovers, even after the length of its lease.
#[tokio::test(start_paused = true)]
async fn an_unguarded_run_whose_claim_was_granted_is_recorded_like_any_other() {
    let ends = [
        (
            (|| completed("one")) as fn() -> ExecutionResult,
            OnUnknown::Hold,
            Reply::Replayed(text("one")),
        ),
        (broken, OnUnknown::Hold, problem(Problem::OutcomeUnknown)),
        (broken, OnUnknown::Rerun, Reply::Ran(text("two"))),
        (broken, OnUnknown::Fail, Reply::Replayed(semel::core::Answer::failed())),
        (|| ended(Verdict::Forget, "307"), OnUnknown::Hold, Reply::Ran(text("two"))),
        (|| ExecutionResult::NeverReached, OnUnknown::Hold, Reply::Ran(text("two"))),
    ];
    for (end, on_unknown, repeat) in ends {
        for away in [Duration::from_secs(5), LEASE * 100] {
            let harness = passing().on_unknown(on_unknown);
            harness.store.set(StoreCall::Claim, StoreCondition::ReplyLost);
            let outcome = harness.begin("a", move |_| async move { end() }).await;
            assert!(
                matches!(outcome, Reply::Unguarded(_) | Reply::Problem(_)),
                "it is not recorded yet: {outcome:?}"
            );
            harness.store.set(StoreCall::Claim, StoreCondition::Unavailable);
            sleep_for(away).await;
            harness.store.set(StoreCall::Claim, StoreCondition::Available);
            assert_eq!(harness.semel.drain(LEASE).await, 0);
            assert_eq!(harness.answer("a", "two").await, repeat, "{on_unknown:?} {away:?}");
            let runs = 1 + u32::from(matches!(repeat, Reply::Ran(_)));
            assert_eq!(harness.runs(), runs, "{on_unknown:?} {away:?}");
        }
    }
}

#[tokio::test(start_paused = true)]
async fn an_unguarded_run_is_guarded_as_soon_as_its_claim_turns_out_to_be_granted() {
    let harness = passing().on_unknown(OnUnknown::Rerun);
    harness.store.set(StoreCall::Claim, StoreCondition::ReplyLost);
    let gate = Gate::new();
    let held = gate.clone();
    let first = harness.begin("a", move |lease| async move {
        assert_eq!(lease.fence(), None);
        held.wait_open().await;
        assert!(lease.fence().is_some() && !lease.is_lost());
        completed("one")
    });
    sleep_for(Duration::from_secs(3)).await;
    harness.store.set(StoreCall::Claim, StoreCondition::Available);
    // Its lease is renewed for as long as it runs: no other owner may rerun it.
    sleep_for(LEASE * 5).await;
    let mut neighbour = harness.second_process();
    neighbour.policy.wait = Duration::ZERO;
    assert_eq!(neighbour.answer("a", "two").await, problem(Problem::InProgress));
    gate.open();
    assert_eq!(first.await, Reply::Ran(text("one")), "it is durable");
    assert_eq!(neighbour.answer("a", "two").await, Reply::Replayed(text("one")));
    assert_eq!(harness.runs(), 1);
}

/// As with a synchronous standby that hangs: the row of the claim is visible before the claim is
/// answered.
#[tokio::test(start_paused = true)]
async fn an_unguarded_run_does_not_take_its_own_record_for_that_of_another() {
    let mut harness = Harness::with(|builder| builder.cache_bytes_max(0));
    harness.policy.on_store_down = OnStoreDown::Pass;
    let harness = harness.on_unknown(OnUnknown::Rerun);
    harness.answer("known", "up").await;
    harness.store.set_all(StoreCondition::GrantUnconfirmed);
    let gate = Gate::new();
    let first = harness.blocked_on(&gate, "a", "one");
    for _ in 0..3 {
        // A repeat shows that the store can be read.
        sleep_for(Duration::from_secs(1)).await;
        assert_eq!(harness.answer("known", "again").await, Reply::Replayed(text("up")));
    }
    assert_eq!(harness.events.count("Passed"), 1);
    sleep_for(LEASE / 3).await;
    harness.store.set_all(StoreCondition::Available);
    sleep_for(LEASE * 5).await;
    let mut neighbour = harness.second_process();
    neighbour.policy.wait = Duration::ZERO;
    assert_eq!(neighbour.answer("a", "two").await, problem(Problem::InProgress));
    gate.open();
    assert_eq!(first.await, Reply::Ran(text("one")));
    assert_eq!(harness.runs(), 2, "the known one and the first");
}

#[tokio::test(start_paused = true)]
async fn an_unguarded_run_beside_a_completed_record_changes_nothing() {
    let harness = passing();
    harness.second_process().answer("a", "theirs").await;
    harness.store.set(StoreCall::Claim, StoreCondition::ReplyLost);
    let outcome = harness.answer("a", "mine").await;
    assert_eq!(outcome, Reply::Unguarded(text("mine")));
    harness.store.set(StoreCall::Claim, StoreCondition::Available);
    assert_eq!(harness.semel.drain(LEASE).await, 0);
    assert_eq!(harness.answer("a", "three").await, Reply::Replayed(text("theirs")));
    assert_eq!(harness.runs(), 2);
}

#[tokio::test(start_paused = true)]
async fn a_client_of_an_unguarded_run_does_not_wait_for_the_store() {
    let harness = passing();
    harness.store.set(StoreCall::Claim, StoreCondition::Hanging);
    let gate = Gate::new();
    let first = tokio::spawn(harness.blocked_on(&gate, "a", "one"));
    // The claim is retried, and hangs, when the run ends.
    sleep_for(Duration::from_millis(2_100)).await;
    let begun = tokio::time::Instant::now();
    gate.open();
    assert_eq!(first.await.unwrap(), Reply::Unguarded(text("one")));
    assert_eq!(begun.elapsed(), Duration::ZERO);
    harness.store.set(StoreCall::Claim, StoreCondition::Available);
    assert_eq!(harness.semel.drain(LEASE).await, 0);
    assert_eq!(harness.answer("a", "two").await, Reply::Replayed(text("one")));
    assert_eq!(harness.runs(), 1);
}

#[tokio::test(start_paused = true)]
async fn a_claim_that_was_granted_unheard_is_not_left_to_be_held() {
    for weather in [StoreCondition::ReplyLost, StoreCondition::ReplyDelayed] {
        let harness = Harness::new();
        harness.store.set(StoreCall::Claim, weather);
        assert_eq!(harness.answer("a", "one").await, problem(Problem::StoreUnavailable));
        // A reaper runs elsewhere while the store is unavailable here.
        harness.store.set(StoreCall::Claim, StoreCondition::Unavailable);
        sleep_for(LEASE * 100).await;
        assert_eq!(harness.state("a").await, Some(StateView::Held), "{weather:?}");
        harness.store.set(StoreCall::Claim, StoreCondition::Available);
        assert_eq!(harness.semel.drain(LEASE).await, 0);
        let next = harness.begin("a", |lease| async move {
            assert_eq!(lease.attempt(), 1);
            completed("two")
        });
        assert_eq!(next.await, Reply::Ran(text("two")), "{weather:?}");
        assert_eq!(harness.runs(), 1);
    }
}

#[tokio::test(start_paused = true)]
async fn a_held_record_of_another_owner_is_left_alone() {
    let records = memory();
    let harness = Harness::on(FlakyStore::new(records.clone()), |builder| builder);
    harness.store.set(StoreCall::Claim, StoreCondition::Hanging);
    assert_eq!(harness.answer("a", "one").await, problem(Problem::StoreUnavailable));
    sleep_for(LEASE * 2).await;
    // Nothing of the claim above has reached the store.
    let neighbour = Harness::on(FlakyStore::new(records), |builder| builder);
    let theirs = neighbour.begin("a", |_| async { broken() });
    assert_eq!(theirs.await, problem(Problem::UpstreamTimeout));
    harness.store.set(StoreCall::Claim, StoreCondition::Available);
    assert_eq!(harness.semel.drain(LEASE).await, 0);
    assert_eq!(harness.state("a").await, Some(StateView::Held));
}

#[tokio::test(start_paused = true)]
async fn hanging_up_on_an_unguarded_run_changes_nothing() {
    let harness = passing();
    harness.store.set(StoreCall::Claim, StoreCondition::ReplyLost);
    let gate = Gate::new();
    let pending = tokio::spawn(harness.blocked_on(&gate, "a", "one"));
    sleep_for(Duration::from_secs(3)).await;
    pending.abort();
    let _ = pending.await;
    harness.store.set(StoreCall::Claim, StoreCondition::Available);
    sleep_for(LEASE * 2).await;
    gate.open();
    run_ready_tasks().await;
    assert_eq!(harness.semel.drain(LEASE).await, 0);
    assert_eq!(harness.answer("a", "two").await, Reply::Replayed(text("one")));
    assert_eq!(harness.runs(), 1);
}
