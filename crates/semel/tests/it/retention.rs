//! How long the record of a reply is kept, as the front learns it.

use std::{future::Future, time::Duration};

use semel::{
    ExecutionOutput, OperationReply, Pending,
    core::{ExecutionResult, OnStoreDown, OnUnknown, Problem, Reply, Verdict},
};
use semel_testkit::flaky_store::{StoreCall, StoreCondition};
use tokio::time::Instant;

use crate::harness::{
    Harness, broken, completed, ended, id, problem, run_ready_tasks, sleep_for, text,
};

const RETENTION: Duration = Duration::from_secs(60);

/// A timer of tokio fires up to a millisecond late, and the engine counts milliseconds.
const MILLIS: Duration = Duration::from_millis(3);

fn harness() -> Harness {
    let mut harness = Harness::new();
    harness.policy.retention = RETENTION;
    harness
}

/// Begins an operation of a second that ends with `end`.
fn begin(harness: &Harness, key: &str, end: ExecutionResult) -> Pending<()> {
    harness.semel.begin(harness.operation(key, 1), move |_| async move {
        sleep_for(Duration::from_secs(1)).await;
        ExecutionOutput::from(end)
    })
}

/// The reply, and how long its record is kept.
async fn expiry(pending: impl Future<Output = OperationReply<()>>) -> (Reply, Option<Duration>) {
    match pending.await {
        OperationReply::Replied { reply, expires_in, .. } => (reply, expires_in),
        OperationReply::Early { .. } => panic!("handed out early"),
    }
}

/// Retention counts from the claim. What is said is never more, and hardly less.
#[track_caller]
fn assert_left((reply, expires_in): (Reply, Option<Duration>), expected: &Reply, left: Duration) {
    assert_eq!(reply, *expected);
    let expires_in = expires_in.unwrap();
    assert!(expires_in <= left && expires_in + MILLIS >= left, "{expires_in:?}, not {left:?}");
}

#[tokio::test(start_paused = true)]
async fn everyone_who_gets_a_recorded_answer_learns_when_its_retention_ends() {
    let harness = harness();
    begin(&harness, "warm", completed("up")).await;
    run_ready_tasks().await;
    let elsewhere = harness.second_process();
    let owner = begin(&harness, "a", completed("one"));
    run_ready_tasks().await;
    let joiner = begin(&harness, "a", completed("two"));
    let waiter = begin(&elsewhere, "a", completed("two"));
    let (owner, joiner, waiter) = tokio::join!(expiry(owner), expiry(joiner), expiry(waiter));
    let left = RETENTION - Duration::from_secs(1);
    assert_left(owner, &Reply::Ran(text("one")), left);
    assert_left(joiner, &Reply::Joined(text("one")), left);
    // It polls the store.
    let (reply, expires_in) = waiter;
    assert_eq!(reply, Reply::Replayed(text("one")));
    let poll = Duration::from_millis(250) + MILLIS;
    assert!((left - poll..=left).contains(&expires_in.unwrap()), "{expires_in:?}");
}

#[tokio::test(start_paused = true)]
async fn a_replay_says_what_is_left_wherever_it_comes_from() {
    let harness = harness();
    harness.answer("warm", "up").await;
    run_ready_tasks().await;
    let asked = Instant::now();
    begin(&harness, "a", completed("one")).await;
    sleep_for(Duration::from_secs(20)).await;
    let replayed = Reply::Replayed(text("one"));
    let replay = |harness: &Harness| expiry(begin(harness, "a", completed("two")));
    let left = || RETENTION - asked.elapsed();
    assert_left(replay(&harness).await, &replayed, left());
    let other = harness.second_process();
    assert_left(replay(&other).await, &replayed, left());
    assert_eq!(harness.events.count("Replayed(Cache)"), 1);
    assert_eq!(other.events.count("Replayed(Store)"), 1);
    harness.store.set(StoreCall::Claim, StoreCondition::Unavailable);
    harness.store.set(StoreCall::Other, StoreCondition::Unavailable);
    sleep_for(Duration::from_secs(2)).await;
    assert_left(replay(&harness).await, &replayed, left());
    assert_eq!(harness.events.count("Replayed(CacheWhileAway)"), 1);
}

#[tokio::test(start_paused = true)]
async fn a_record_under_a_former_identity_says_its_own_retention() {
    let harness = harness();
    let asked = Instant::now();
    begin(&harness, "a", completed("one")).await;
    sleep_for(Duration::from_secs(20)).await;
    let mut renamed = harness.operation("b", 1);
    renamed.former = vec![id("a")];
    let pending = harness.semel.begin(renamed, |_| async { ExecutionOutput::from(broken()) });
    let left = RETENTION - asked.elapsed();
    assert_left(expiry(pending).await, &Reply::Replayed(text("one")), left);
}

#[tokio::test(start_paused = true)]
async fn an_owner_that_was_replaced_learns_the_retention_of_its_successor() {
    let harness = harness().on_unknown(OnUnknown::Rerun);
    harness.store.set(StoreCall::Renew, StoreCondition::Unavailable);
    let first = harness.semel.begin(harness.operation("a", 1), |_| async {
        sleep_for(Duration::from_secs(40)).await;
        ExecutionOutput::<()>::from(completed("one"))
    });
    sleep_for(Duration::from_secs(35)).await;
    let asked = Instant::now();
    let successor = harness.second_process();
    assert_left(
        expiry(begin(&successor, "a", completed("two"))).await,
        &Reply::Ran(text("two")),
        RETENTION - Duration::from_secs(1),
    );
    let replaced = expiry(first).await;
    assert_left(replaced, &Reply::Replayed(text("two")), RETENTION - asked.elapsed());
}

#[tokio::test(start_paused = true)]
async fn a_failure_that_is_recorded_expires_and_what_is_not_recorded_does_not() {
    for (on_unknown, end, reply, expires) in [
        (OnUnknown::Fail, broken(), problem(Problem::OperationFailed), true),
        (OnUnknown::Hold, broken(), problem(Problem::UpstreamTimeout), false),
        (OnUnknown::Rerun, broken(), problem(Problem::UpstreamTimeout), false),
        (OnUnknown::Hold, ended(Verdict::Retry, "503"), Reply::Ran(text("503")), false),
        (OnUnknown::Hold, ended(Verdict::Forget, "307"), Reply::Ran(text("307")), false),
        (OnUnknown::Hold, ended(Verdict::Unknown, "500"), Reply::Ran(text("500")), false),
    ] {
        let harness = harness().on_unknown(on_unknown);
        let (owner, joiner) = (begin(&harness, "a", end), begin(&harness, "a", broken()));
        let (owner, joiner) = tokio::join!(expiry(owner), expiry(joiner));
        assert_eq!(owner.0, reply);
        for (reply, expires_in) in [owner, joiner] {
            assert_eq!(expires_in.is_some(), expires, "{reply:?}: {expires_in:?}");
        }
    }
}

#[tokio::test(start_paused = true)]
async fn an_operation_without_a_claim_or_beyond_its_retention_has_none() {
    let mut harness = harness();
    harness.policy.on_store_down = OnStoreDown::Pass;
    harness.store.set(StoreCall::Claim, StoreCondition::Unavailable);
    let (reply, expires_in) = expiry(begin(&harness, "a", completed("one"))).await;
    assert_eq!((reply, expires_in), (Reply::Unguarded(text("one")), None));
    harness.store.set(StoreCall::Claim, StoreCondition::Available);
    sleep_for(Duration::from_secs(2)).await;
    harness.policy.retention = Duration::from_millis(500);
    // Its retention restarts at its end; the owner does not rely on that.
    let (reply, expires_in) = expiry(begin(&harness, "b", completed("one"))).await;
    assert_eq!((reply, expires_in), (Reply::Ran(text("one")), None));
}
