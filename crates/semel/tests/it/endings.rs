//! Executions that do not complete: forgotten, failed, or ended before the reply to their claim.

use std::time::Duration;

use semel::core::{Answer, OnUnknown, Problem, Reply, Resolution, Resolved, Store, Verdict};
use semel_testkit::flaky_store::{StoreCall, StoreCondition};

use crate::harness::{
    Gate, Harness, broken, completed, ended, id, problem, run_ready_tasks, sleep_for, text,
};

const LEASE: Duration = Duration::from_secs(30);

#[tokio::test(start_paused = true)]
async fn a_forgotten_key_is_free_for_any_request_with_a_higher_fence() {
    let harness = Harness::new();
    let gate = Gate::new();
    let held = gate.clone();
    let first = harness.begin("a", move |_| async move {
        held.wait_open().await;
        ended(Verdict::Forget, "307")
    });
    run_ready_tasks().await;
    let fence = harness.fence("a").await;
    let joined: Vec<_> = (0..9).map(|_| harness.answer("a", "never")).collect();
    gate.open();
    assert_eq!(first.await, Reply::Ran(text("307")));
    for reply in joined {
        assert_eq!(reply.await, Reply::Joined(text("307")));
    }
    assert_eq!(harness.runs(), 1);
    let other = harness.begin_as("a", 2, move |lease| async move {
        assert_eq!(lease.attempt(), 1);
        assert!(lease.fence() > Some(fence));
        completed("two")
    });
    assert_eq!(other.await, Reply::Ran(text("two")));
    assert_eq!(harness.answer("a", "three").await, problem(Problem::KeyReused));
    assert_eq!(harness.runs(), 2);
}

#[tokio::test(start_paused = true)]
async fn under_fail_the_owner_and_all_who_joined_get_the_one_failure() {
    let harness = Harness::new().on_unknown(OnUnknown::Fail);
    for (key, end) in [("a", broken as fn() -> _), ("b", || ended(Verdict::Unknown, "503"))] {
        let gate = Gate::new();
        let all: Vec<_> = (0..50)
            .map(|_| {
                let gate = gate.clone();
                harness.begin(key, move |_| async move {
                    gate.wait_open().await;
                    end()
                })
            })
            .collect();
        run_ready_tasks().await;
        gate.open();
        for reply in all {
            assert_eq!(reply.await, problem(Problem::OperationFailed));
        }
        let repeat = harness.second_process().answer(key, "two").await;
        assert_eq!(repeat, Reply::Replayed(Answer::failed()));
    }
    assert_eq!(harness.runs(), 2);
}

#[tokio::test(start_paused = true)]
async fn a_failure_that_is_not_durable_is_not_reported() {
    let harness = Harness::new().on_unknown(OnUnknown::Fail);
    harness.store.set(StoreCall::Finish, StoreCondition::Unavailable);
    let gate = Gate::new();
    let held = gate.clone();
    let first = harness.begin("a", move |_| async move {
        held.wait_open().await;
        broken()
    });
    run_ready_tasks().await;
    let joined = harness.answer("a", "two");
    gate.open();
    assert_eq!(first.await, problem(Problem::OutcomeUnrecorded));
    assert_eq!(joined.await, problem(Problem::OutcomeUnrecorded));
    harness.store.set(StoreCall::Finish, StoreCondition::Available);
    assert_eq!(harness.semel.drain(LEASE).await, 0);
    assert_eq!(harness.answer("a", "three").await, Reply::Replayed(Answer::failed()));
    assert_eq!(harness.runs(), 1);
}

/// A claim whose reply was lost is held, and an operator releases it, while its client still waits
/// for the store.
#[tokio::test(start_paused = true)]
async fn a_claim_that_ended_before_its_owner_was_notified_runs_nothing() {
    let mut harness = Harness::new();
    harness.policy.store_timeout = LEASE * 10;
    harness.store.set(StoreCall::Claim, StoreCondition::ReplyLost);
    let pending = tokio::spawn(harness.answer("a", "one"));
    run_ready_tasks().await;
    harness.store.set(StoreCall::Claim, StoreCondition::Unavailable);
    sleep_for(LEASE * 2).await;
    let fence = harness.fence("a").await;
    let released = harness.store.resolve(&id("a"), fence, &Resolution::Released).await.unwrap();
    assert_eq!(released, Resolved::Applied);
    harness.store.set(StoreCall::Claim, StoreCondition::Available);
    assert_eq!(pending.await.unwrap(), problem(Problem::InProgress));
    assert_eq!((harness.runs(), harness.semel.drain(LEASE).await), (0, 0));
    // The next request has a claim of its own.
    assert_eq!(harness.answer("a", "two").await, Reply::Ran(text("two")));
    assert_eq!(harness.answer("a", "three").await, Reply::Replayed(text("two")));
    assert_eq!(harness.runs(), 1);
}
