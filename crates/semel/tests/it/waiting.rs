//! Requests that arrive while the operation runs, in this process or another.

use std::{sync::atomic::Ordering, time::Duration};

use semel::core::{
    Answer, ExecutionResult, ListQuery, OnUnknown, Problem, Reply, Resolution, Resolved, StateName,
    Store, Verdict,
};
use semel_testkit::flaky_store::{StoreCall, StoreCondition};

use crate::harness::{
    Gate, Harness, PendingReply, broken, ended, id, problem, run_ready_tasks, sleep_for, text,
};

const WAIT: Duration = Duration::from_secs(10);

/// Waits for all replies. Returns the answers that ran, and the other replies.
async fn replies(all: Vec<PendingReply>) -> (Vec<Answer>, Vec<Reply>) {
    let (mut ran, mut others) = (Vec::new(), Vec::new());
    for pending in all {
        let reply = pending.await;
        if let Reply::Ran(answer) = reply { ran.push(answer) } else { others.push(reply) }
    }
    (ran, others)
}

#[tokio::test(start_paused = true)]
async fn fifty_concurrent_requests_run_once_and_get_the_same_answer() {
    let harness = Harness::new();
    let gate = Gate::new();
    let all: Vec<_> = (0..50).map(|_| harness.blocked_on(&gate, "a", "one")).collect();
    run_ready_tasks().await;
    gate.open();
    let (ran, joined) = replies(all).await;
    assert_eq!((ran, joined), (vec![text("one")], vec![Reply::Joined(text("one")); 49]));
    assert_eq!(harness.runs(), 1);
    assert_eq!(harness.store.count(StoreCall::Claim), 1, "joined requests make no store call");
}

#[tokio::test(start_paused = true)]
async fn requests_that_joined_a_failing_execution_get_its_answer_and_run_nothing() {
    let ends: [fn() -> ExecutionResult; 3] =
        [|| ended(Verdict::Retry, "503"), || ended(Verdict::Unknown, "502"), broken];
    for end in ends {
        let harness = Harness::new().on_unknown(OnUnknown::Rerun);
        let gate = Gate::new();
        let all: Vec<_> = (0..50)
            .map(|_| {
                let gate = gate.clone();
                harness.begin("a", move |_| async move {
                    gate.wait_open().await;
                    end()
                })
            })
            .collect();
        run_ready_tasks().await;
        gate.open();
        let (ran, joined) = replies(all).await;
        let first = match end() {
            ExecutionResult::Answered { answer, .. } => {
                assert_eq!(ran, std::slice::from_ref(&answer));
                Reply::Joined(answer)
            }
            ExecutionResult::Broken(_) | ExecutionResult::NeverReached => {
                problem(Problem::UpstreamTimeout)
            }
        };
        assert_eq!(joined, vec![first; 50 - ran.len()]);
        assert_eq!(harness.runs(), 1);
    }
}

#[tokio::test(start_paused = true)]
async fn a_joined_request_waits_no_longer_than_its_route_allows() {
    let harness = Harness::new();
    let gate = Gate::new();
    let first = harness.blocked_on(&gate, "a", "one");
    run_ready_tasks().await;
    let begun = tokio::time::Instant::now();
    assert_eq!(harness.answer("a", "two").await, problem(Problem::InProgress));
    assert_eq!(begun.elapsed().as_secs(), WAIT.as_secs());
    gate.open();
    assert_eq!(first.await, Reply::Ran(text("one")));
}

#[tokio::test(start_paused = true)]
async fn a_route_without_waiting_answers_at_once() {
    let mut harness = Harness::new();
    harness.policy.wait = Duration::ZERO;
    let gate = Gate::new();
    let _first = harness.blocked_on(&gate, "a", "one");
    run_ready_tasks().await;
    let begun = tokio::time::Instant::now();
    assert_eq!(harness.answer("a", "two").await, problem(Problem::InProgress));
    assert_eq!(harness.second_process().answer("a", "two").await, problem(Problem::InProgress));
    assert!(begun.elapsed() < Duration::from_millis(50));
}

#[tokio::test(start_paused = true)]
async fn a_waiter_in_another_process_gets_the_answer_soon_after_it_is_recorded() {
    let harness = Harness::new();
    let gate = Gate::new();
    let first = harness.blocked_on(&gate, "a", "one");
    run_ready_tasks().await;
    let other = harness.second_process();
    let waiting: Vec<_> = (0..50).map(|_| other.answer("a", "two")).collect();
    let waiting: Vec<_> = waiting.into_iter().map(tokio::spawn).collect();
    sleep_for(Duration::from_secs(2)).await;
    assert_eq!(other.semel.waiting(), 50);
    assert_eq!(other.semel.in_flight(), 0, "a waiter does not run");
    gate.open();
    assert_eq!(first.await, Reply::Ran(text("one")));
    let begun = tokio::time::Instant::now();
    for reply in waiting {
        assert_eq!(reply.await.unwrap(), Reply::Replayed(text("one")));
    }
    assert!(begun.elapsed() <= Duration::from_millis(300));
    assert_eq!((harness.runs(), other.semel.waiting()), (1, 0));
}

#[tokio::test(start_paused = true)]
async fn one_task_polls_for_all_waiters() {
    let harness = Harness::new();
    let gate = Gate::new();
    let _first = harness.blocked_on(&gate, "a", "one");
    run_ready_tasks().await;
    let other = harness.second_process();
    let waiting: Vec<_> = (0..100).map(|_| other.answer("a", "two")).map(tokio::spawn).collect();
    sleep_for(WAIT + Duration::from_secs(1)).await;
    for reply in waiting {
        assert_eq!(reply.await.unwrap(), problem(Problem::InProgress));
    }
    let polls = harness.store.count(StoreCall::Get);
    assert!((30..60).contains(&polls), "{polls} polls in ten seconds");
    sleep_for(WAIT).await;
    assert!(harness.store.count(StoreCall::Get) <= polls + 1, "no waiter, no poll");
}

#[tokio::test(start_paused = true)]
async fn a_waiter_in_another_process_never_runs_the_operation() {
    let harness = Harness::new();
    let gate = Gate::new();
    let held = gate.clone();
    let _first = harness.begin("a", move |_| async move {
        held.wait_open().await;
        ended(Verdict::Retry, "503")
    });
    run_ready_tasks().await;
    let waiting = tokio::spawn(harness.second_process().answer("a", "two"));
    run_ready_tasks().await;
    gate.open();
    assert_eq!(waiting.await.unwrap(), problem(Problem::InProgress));
    assert_eq!(harness.runs.load(Ordering::SeqCst), 1);
}

#[tokio::test(start_paused = true)]
async fn an_unavailable_store_does_not_end_a_wait() {
    let harness = Harness::new();
    let gate = Gate::new();
    let first = harness.blocked_on(&gate, "a", "one");
    run_ready_tasks().await;
    let waiting = tokio::spawn(harness.second_process().answer("a", "two"));
    run_ready_tasks().await;
    harness.store.set(StoreCall::Get, StoreCondition::Unavailable);
    sleep_for(Duration::from_secs(3)).await;
    gate.open();
    assert_eq!(first.await, Reply::Ran(text("one")));
    harness.store.set(StoreCall::Get, StoreCondition::Available);
    assert_eq!(waiting.await.unwrap(), Reply::Replayed(text("one")));
}

#[tokio::test(start_paused = true)]
async fn a_waiter_does_not_see_a_state_older_than_its_claim() {
    let harness = Harness::new();
    let (first, second) = (Gate::new(), Gate::new());
    let running = harness.blocked_on(&first, "a", "one");
    run_ready_tasks().await;
    let other = harness.second_process();
    let early = tokio::spawn(other.answer("a", "two"));
    run_ready_tasks().await;
    // The reply of the poll that sees the first answer is delayed. Meanwhile an operator deletes
    // the record, it runs once more, and another waiter arrives for that run.
    harness.store.set(StoreCall::Get, StoreCondition::Hanging);
    sleep_for(Duration::from_millis(300)).await;
    first.open();
    assert_eq!(running.await, Reply::Ran(text("one")));
    harness.store.set(StoreCall::Get, StoreCondition::ReplyDelayed);
    run_ready_tasks().await;
    let forget = Resolution::Deleted(StateName::Completed);
    let listed = harness.store.list(&ListQuery::default()).await.unwrap();
    let fence = listed.items.first().unwrap().fence;
    assert_eq!(harness.store.resolve(&id("a"), fence, &forget).await.unwrap(), Resolved::Applied);
    sleep_for(Duration::from_secs(1)).await;
    let again = harness.blocked_on(&second, "a", "three");
    run_ready_tasks().await;
    let late = tokio::spawn(other.answer("a", "four"));
    run_ready_tasks().await;
    harness.store.set(StoreCall::Get, StoreCondition::Available);
    assert_eq!(early.await.unwrap(), Reply::Replayed(text("one")));
    second.open();
    assert_eq!(again.await, Reply::Ran(text("three")));
    assert_eq!(late.await.unwrap(), Reply::Replayed(text("three")));
}
