//! The value of an operation, which only the request that began it gets.

use std::{sync::Arc, time::Duration};

use semel::{
    ExecutionOutput, Lease, OperationReply, OwnExecution, Pending,
    core::{Problem, Reply, StateView},
};
use tokio::sync::{Notify, oneshot};

use crate::harness::{Harness, begin, completed, problem, sleep_for, text};

/// Begins an operation that hands out the receiving side of a channel and writes to it until its
/// reader is gone; then it waits for `finish` and answers.
fn streams(harness: &Harness, finish: &Arc<Notify>) -> Pending<oneshot::Receiver<&'static str>> {
    let finish = Arc::clone(finish);
    harness.semel.begin(harness.operation("a", 1), |_| async {
        let (mut body_tx, body) = oneshot::channel();
        let rest = Box::pin(async move {
            body_tx.closed().await;
            finish.notified().await;
            completed("one")
        });
        ExecutionOutput::Early(body, rest)
    })
}

fn replied<T>(reply: OperationReply<T>) -> (Reply, Option<OwnExecution<T>>) {
    match reply {
        OperationReply::Replied { reply, own, .. } => (reply, own),
        OperationReply::Early { .. } => panic!("handed out early"),
    }
}

#[tokio::test(start_paused = true)]
async fn a_value_goes_to_the_request_that_ran_and_to_no_other() {
    let harness = Harness::new();
    let run = || {
        harness.semel.begin(harness.operation("a", 1), |lease: Lease| {
            // The grant is known when the operation is called, and not only when it runs.
            let fence = lease.fence();
            async move { ExecutionOutput::Ended(completed("one"), Some(fence)) }
        })
    };
    let (owner, joiner) = (run(), run());
    let (reply, execution) = replied(owner.await);
    let OwnExecution { lease, value } = execution.unwrap();
    assert_eq!(reply, Reply::Ran(text("one")));
    assert!(lease.fence().is_some() && value == Some(lease.fence()));
    let (reply, execution) = replied(joiner.await);
    assert!(reply == Reply::Joined(text("one")) && execution.is_none());
    let (reply, execution) = replied(run().await);
    assert!(reply == Reply::Replayed(text("one")) && execution.is_none());
}

#[tokio::test(start_paused = true)]
async fn a_value_that_is_handed_out_early_arrives_before_the_end_and_the_reply_after_it() {
    let harness = Harness::new();
    let finish = Arc::new(Notify::new());
    let OperationReply::Early { value, lease, mut recorded } = streams(&harness, &finish).await
    else {
        panic!("not handed out early")
    };
    assert!(matches!(harness.state("a").await, Some(StateView::InFlight { .. })));
    assert!(lease.fence().is_some());
    drop(value);
    let early = tokio::time::timeout(Duration::from_secs(100), &mut recorded).await;
    assert!(early.is_err(), "nothing is recorded yet");
    finish.notify_one();
    assert_eq!(recorded.await, Reply::Ran(text("one")));
    assert!(matches!(harness.state("a").await, Some(StateView::Completed { .. })));
}

#[tokio::test(start_paused = true)]
async fn an_operation_runs_on_if_its_request_is_gone_before_the_value_comes() {
    let harness = Harness::new();
    let finish = Arc::new(Notify::new());
    drop(streams(&harness, &finish));
    let joiner = begin(&harness.semel, harness.operation("a", 1), |_| async { completed("two") });
    finish.notify_one();
    assert_eq!(joiner.await, Reply::Joined(text("one")), "the reader counts as gone");
    assert_eq!(harness.semel.drain(Duration::from_secs(60)).await, 0);
}

#[tokio::test(start_paused = true)]
async fn a_panic_after_the_value_was_handed_out_leaves_the_outcome_unknown() {
    let harness = Harness::new();
    let pending = harness.semel.begin(harness.operation("a", 1), |_| async {
        ExecutionOutput::Early((), Box::pin(async { panic!("the rest panics: this is expected") }))
    });
    assert_eq!(pending.reply().await, problem(Problem::UpstreamTimeout));
    assert!(matches!(harness.state("a").await, Some(StateView::Held)));
}

#[tokio::test(start_paused = true)]
async fn a_client_that_waits_no_longer_knows_that_its_operation_runs() {
    let harness = Harness::new();
    let mut operation = harness.operation("a", 1);
    operation.deadline = Some(harness.semel.deadline_in(Duration::from_secs(1)));
    let pending = harness.semel.begin(operation, |_| async {
        sleep_for(Duration::from_secs(2)).await;
        ExecutionOutput::Ended(completed("late"), Some("value"))
    });
    let (reply, execution) = replied(pending.await);
    assert_eq!(reply, problem(Problem::DeadlineExceededInFlight));
    let OwnExecution { lease, value } = execution.unwrap();
    assert!(lease.fence().is_some() && value.is_none());
}
