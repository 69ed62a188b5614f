//! A client that disconnects changes nothing: the execution belongs to the server.

use std::{future::Future, pin::pin, task::Poll};

use http::StatusCode;
use semel_testkit::flaky_store::{StoreCall, StoreCondition};

use crate::harness::{Gate, Harness, ORDER, begin, charge, data, send, stream, wait_until};

/// Polls a request once and drops it.
async fn hang_up<T>(request: impl Future<Output = T>) {
    let mut request = pin!(request);
    std::future::poll_fn(|context| {
        assert!(request.as_mut().poll(context).is_pending(), "answered at once");
        Poll::Ready(())
    })
    .await;
}

#[tokio::test]
async fn while_its_body_is_read() {
    let harness = Harness::new();
    let app = harness.app(|run| async move { run.to_string() });
    let (frames, body) = stream();
    frames.send(data("{\"amount\":")).await.unwrap();
    hang_up(begin(&app, charge("k", "").map(|_| body))).await;
    assert!(frames.is_closed(), "reading has stopped");
    assert_eq!((harness.semel.in_flight(), harness.store.count(StoreCall::Claim)), (0, 0));
    let answer = send(&app, charge("k", ORDER)).await;
    assert_eq!((answer.text(), answer.is_replayed()), ("1", false));
    assert_eq!(harness.runs(), 1);
}

#[tokio::test]
async fn before_the_claim_is_asked() {
    let harness = Harness::new();
    let app = harness.app(|run| async move { run.to_string() });
    hang_up(begin(&app, charge("k", ORDER))).await;
    assert_eq!(harness.store.count(StoreCall::Claim), 0);
    wait_until(|| harness.runs() == 1).await;
    wait_until(|| harness.semel.in_flight() == 0).await;
    let answer = send(&app, charge("k", ORDER)).await;
    assert_eq!((answer.text(), answer.is_replayed(), harness.runs()), ("1", true, 1));
}

#[tokio::test]
async fn before_the_claim_is_granted() {
    let harness = Harness::new();
    let app = harness.app(|run| async move { run.to_string() });
    harness.store.set(StoreCall::Claim, StoreCondition::Hanging);
    hang_up(begin(&app, charge("k", ORDER))).await;
    harness.store.set(StoreCall::Claim, StoreCondition::Available);
    wait_until(|| harness.runs() == 1).await;
    wait_until(|| harness.semel.in_flight() == 0).await;
    let answer = send(&app, charge("k", ORDER)).await;
    assert_eq!((answer.text(), answer.is_replayed()), ("1", true));
}

#[tokio::test]
async fn while_the_handler_runs() {
    let (harness, gate) = (Harness::new(), Gate::new());
    let app = harness.app_blocked_on(&gate);
    hang_up(begin(&app, charge("k", ORDER))).await;
    wait_until(|| harness.runs() == 1).await;
    gate.open();
    wait_until(|| harness.semel.in_flight() == 0).await;
    let answer = send(&app, charge("k", ORDER)).await;
    assert_eq!((answer.status, answer.text()), (StatusCode::CREATED, "1"));
    assert!(answer.is_replayed());
    assert_eq!(harness.runs(), 1);
}

#[tokio::test]
async fn while_the_answer_is_recorded() {
    let harness = Harness::new();
    let app = harness.app(|run| async move { run.to_string() });
    harness.store.set(StoreCall::Finish, StoreCondition::Hanging);
    let request = tokio::spawn({
        let app = app.clone();
        async move { send(&app, charge("k", ORDER)).await }
    });
    wait_until(|| harness.store.count(StoreCall::Finish) == 1).await;
    request.abort();
    assert!(request.await.unwrap_err().is_cancelled(), "nothing went out before it was durable");
    harness.store.set(StoreCall::Finish, StoreCondition::Available);
    wait_until(|| harness.semel.in_flight() == 0).await;
    let answer = send(&app, charge("k", ORDER)).await;
    assert_eq!((answer.text(), answer.is_replayed(), harness.runs()), ("1", true, 1));
}

#[tokio::test]
async fn a_joined_request_that_disconnects_affects_no_other() {
    let (harness, gate) = (Harness::new(), Gate::new());
    let app = harness.app_blocked_on(&gate);
    let first = tokio::spawn({
        let app = app.clone();
        async move { send(&app, charge("k", ORDER)).await }
    });
    wait_until(|| harness.runs() == 1).await;
    hang_up(begin(&app, charge("k", ORDER))).await;
    gate.open();
    assert_eq!(first.await.unwrap().text(), "1");
    assert_eq!(harness.runs(), 1);
}
