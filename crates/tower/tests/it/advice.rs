//! Advice beside an answer: whether to retry, whether it is a replay, whether the operation was
//! guarded. A service cannot set these headers in place of the layer.

use std::time::Duration;

use axum::{
    body::Body,
    response::{AppendHeaders, IntoResponse as _},
};
use http::{Response, StatusCode};
use semel::{
    Semel,
    core::{OnStoreDown, OnUnknown, Policy, Problem, RetryContext, Scope},
};
use semel_testkit::flaky_store::{StoreCall, StoreCondition};
use semel_tower::{Callers, IdempotencyLayer, NeverReached, RecordContent, Streaming, refusal};
use tower_service::Service;

use crate::harness::{Gate, Harness, ORDER, TestResponse, charge, send, wait_until};

/// The response of an inner Semel for this problem.
fn answer_of_inner_semel(problem: Problem) -> Response<semel_tower::Body<Body>> {
    refusal(problem, false, RetryContext::guarded(OnUnknown::Hold))
}

fn policy(on_unknown: OnUnknown) -> Policy {
    Policy { on_unknown, ..Policy::default() }
}

#[tokio::test]
async fn after_a_timeout_a_client_retries_only_where_the_route_runs_it_again() {
    for (on_unknown, retry) in
        [(OnUnknown::Hold, "false"), (OnUnknown::Fail, "false"), (OnUnknown::Rerun, "true")]
    {
        let harness = Harness::new().policy(policy(on_unknown));
        let mut service = harness.service(|_| Err(std::fmt::Error));
        let answer = TestResponse::read(service.call(charge("k", ORDER)).await.unwrap()).await;
        for name in ["x-should-retry", "stripe-should-retry"] {
            assert_eq!(answer.header(name), Some(retry), "{on_unknown:?} {name}");
        }
        let is_retried = retry == "true";
        assert_eq!(answer.header("retry-after"), is_retried.then_some("1"), "{on_unknown:?}");
        assert_eq!(answer.header("retry-after-ms"), is_retried.then_some("1000"));
    }
}

#[tokio::test]
async fn a_final_problem_is_final_when_it_is_replayed_too() {
    let harness = Harness::new().policy(policy(OnUnknown::Fail));
    let mut service = harness.service(|_| Err(std::fmt::Error));
    service.call(charge("k", ORDER)).await.unwrap();
    let answer = TestResponse::read(service.call(charge("k", ORDER)).await.unwrap()).await;
    answer.assert_problem(500, "operation-failed");
    assert_eq!(answer.header("x-should-retry"), Some("false"));
    assert!(answer.is_replayed());
}

#[tokio::test]
async fn a_request_that_never_ran_is_advised_to_retry() {
    let harness = Harness::new();
    let mut service = harness.service(|_| Err(NeverReached));
    let answer = TestResponse::read(service.call(charge("k", ORDER)).await.unwrap()).await;
    answer.assert_problem(502, "upstream-unreachable");
    assert_eq!(answer.header("stripe-should-retry"), Some("true"));
    assert_eq!(answer.header("retry-after"), Some("1"));
}

#[tokio::test]
async fn a_problem_in_a_header_alone_does_not_free_the_key() {
    for status in [200, 201, 303, 402, 409] {
        let harness = Harness::new();
        let status = StatusCode::from_u16(status).unwrap();
        let app = harness.app(move |run| async move {
            (status, [("idempotency-problem", "in-progress")], run.to_string())
        });
        let first = send(&app, charge("k", ORDER)).await;
        assert_eq!((first.status, first.text()), (status, "1"));
        assert_eq!(first.header("idempotency-problem"), None, "it is no problem");
        let second = send(&app, charge("k", ORDER)).await;
        assert_eq!(
            (second.text(), second.is_replayed(), harness.runs()),
            ("1", true, 1),
            "{status}"
        );
    }
}

#[tokio::test]
async fn a_problem_of_a_semel_behind_is_recognized_and_passed_on() {
    for (problem, runs) in [
        (Problem::InProgress, 2),
        (Problem::StoreUnavailable, 2),
        (Problem::OutcomeUnknown, 1),
        (Problem::OutcomeUnrecorded, 1),
        (Problem::OperationFailed, 1),
    ] {
        let harness = Harness::new();
        let app =
            harness.app(move |_| async move { answer_of_inner_semel(problem).into_response() });
        let first = send(&app, charge("k", ORDER)).await;
        first.assert_problem(problem.status(), problem.slug());
        assert_eq!(first.header("idempotency-problem"), Some(problem.slug()));
        send(&app, charge("k", ORDER)).await;
        assert_eq!(harness.runs(), runs, "{problem:?}");
    }
}

#[tokio::test]
async fn a_final_problem_of_a_semel_behind_is_final_in_the_replay_too() {
    let harness = Harness::new();
    let app =
        harness.app(|_| async { answer_of_inner_semel(Problem::OperationFailed).into_response() });
    for replayed in [false, true] {
        let answer = send(&app, charge("k", ORDER)).await;
        answer.assert_problem(500, "operation-failed");
        assert_eq!(answer.header("idempotency-problem"), Some("operation-failed"));
        assert_eq!(answer.header("stripe-should-retry"), Some("false"));
        assert_eq!(answer.is_replayed(), replayed);
    }
    assert_eq!(harness.runs(), 1);
}

#[tokio::test]
async fn a_stream_is_no_problem() {
    let harness = Harness::new();
    let app = harness.app(|_| async {
        // One without `Retry-After`, which frees the key by itself.
        let mut response = answer_of_inner_semel(Problem::KeyReused).into_response();
        response.extensions_mut().insert(Streaming);
        response
    });
    let first = send(&app, charge("k", ORDER)).await;
    assert_eq!((first.status.as_u16(), first.header("idempotency-problem")), (422, None));
    send(&app, charge("k", ORDER)).await.assert_problem(410, "response-not-retained");
    assert_eq!(harness.runs(), 1);
}

#[tokio::test]
async fn a_service_cannot_mark_its_first_answer_as_a_replay_or_as_unguarded() {
    let harness = Harness::new();
    let app = harness.app(|_| async {
        let marks = [("idempotent-replayed", "true"), ("idempotency-guarded", "false")];
        let numbers = [("idempotency-fence", "7"), ("idempotency-attempt", "1")];
        (marks, AppendHeaders(numbers), "ok")
    });
    let first = send(&app, charge("k", ORDER)).await;
    assert_eq!((first.header("idempotent-replayed"), first.text()), (None, "ok"));
    for name in ["idempotency-guarded", "idempotency-fence", "idempotency-attempt"] {
        assert_eq!(first.header(name), None, "{name}");
    }
    let second = send(&app, charge("k", ORDER)).await;
    assert!(second.is_replayed());
    assert_eq!(second.header("idempotency-guarded"), None);
}

#[tokio::test]
async fn the_replay_of_a_layer_inside_is_the_first_answer_of_the_one_around_it() {
    let inner = Harness::new();
    let service = inner.app(|run| async move { run.to_string() });
    send(&service, charge("k", ORDER)).await;
    let scope = Scope::new("gateway").unwrap();
    let semel = Semel::new(semel::MemoryStore::new());
    let app = service.layer(IdempotencyLayer::new(&semel, scope, Callers::anonymous()));
    for replayed in [false, true] {
        let answer = send(&app, charge("k", ORDER)).await;
        assert_eq!((answer.text(), answer.is_replayed()), ("1", replayed));
    }
}

/// A harness whose store does not reply to claims, on a route that passes unguarded.
fn passing() -> Harness {
    let policy = Policy {
        on_store_down: OnStoreDown::Pass,
        lease: Duration::from_secs(3),
        ..Policy::default()
    };
    let harness = Harness::new().policy(policy);
    harness.store.set(StoreCall::Claim, StoreCondition::Unavailable);
    harness
}

#[tokio::test(start_paused = true)]
async fn an_unguarded_run_is_marked_for_its_client() {
    let harness = passing();
    let app = harness.app(|run| async move { run.to_string() });
    for run in ["1", "2"] {
        let answer = send(&app, charge("k", ORDER)).await;
        assert_eq!((answer.text(), answer.header("idempotency-guarded")), (run, Some("false")));
    }
    harness.store.set(StoreCall::Claim, StoreCondition::Available);
    // The recovery of the store is noticed within a second.
    tokio::time::sleep(Duration::from_secs(1)).await;
    let guarded = send(&app, charge("other", ORDER)).await;
    assert_eq!(guarded.header("idempotency-guarded"), None);
}

/// Its claim was granted, but the reply was lost: the answer is recorded when the store recovers,
/// and only as much as the route records.
#[tokio::test(start_paused = true)]
async fn an_unguarded_run_is_recorded_as_its_route_configures() {
    for (content, replay) in [(RecordContent::Full, 200), (RecordContent::Status, 410)] {
        let harness = passing();
        harness.store.set(StoreCall::Claim, StoreCondition::ReplyLost);
        let headers = [("x-balance", "4242")];
        let app = harness
            .app_with(harness.layer().record(content), move |_| async move { (headers, "4242") });
        let first = send(&app, charge("k", ORDER)).await;
        assert_eq!((first.text(), first.header("x-balance")), ("4242", Some("4242")));
        assert_eq!(first.header("idempotency-guarded"), Some("false"));
        harness.store.set(StoreCall::Claim, StoreCondition::Available);
        assert_eq!(harness.semel.drain(Duration::from_secs(30)).await, 0);
        let second = send(&app, charge("k", ORDER)).await;
        assert_eq!(second.status.as_u16(), replay);
        assert_eq!(second.header("x-balance"), None);
        assert_eq!(second.header("idempotency-guarded"), None);
        assert_eq!(harness.runs(), 1);
    }
}

#[tokio::test(start_paused = true)]
async fn a_request_that_joins_an_unguarded_run_gets_advice_too() {
    let (harness, gate) = (passing(), Gate::new());
    let app = harness.app_blocked_on(&gate);
    let first = tokio::spawn({
        let app = app.clone();
        async move { send(&app, charge("k", ORDER)).await }
    });
    wait_until(|| harness.runs() == 1).await;
    let joined = tokio::spawn({
        let app = app.clone();
        async move { send(&app, charge("k", ORDER)).await }
    });
    wait_until(|| harness.semel.waiting() == 1).await;
    gate.open();
    for answer in [first.await.unwrap(), joined.await.unwrap()] {
        assert_eq!((answer.status.as_u16(), answer.text()), (201, "1"));
        assert_eq!(answer.header("idempotency-guarded"), Some("false"));
    }
    assert_eq!(harness.runs(), 1);
}

#[tokio::test(start_paused = true)]
async fn a_timeout_without_a_store_is_marked_too() {
    let harness = passing();
    let mut service = harness.service(|_| Err(std::fmt::Error));
    let answer = TestResponse::read(service.call(charge("k", ORDER)).await.unwrap()).await;
    answer.assert_problem(504, "upstream-timeout");
    assert_eq!(answer.header("idempotency-guarded"), Some("false"));
    assert_eq!(answer.header("x-should-retry"), Some("false"));
}

#[tokio::test(start_paused = true)]
async fn an_unrecorded_answer_is_requested_again() {
    let harness = Harness::new();
    let app = harness.app(|_| async { "charged" });
    harness.store.set(StoreCall::Finish, StoreCondition::Unavailable);
    let answer = send(&app, charge("k", ORDER)).await;
    answer.assert_problem(504, "outcome-unknown");
    assert_eq!(answer.header("x-should-retry"), Some("true"));
    assert_eq!(answer.header("retry-after-ms"), Some("1000"));
    harness.store.set(StoreCall::Finish, StoreCondition::Available);
    tokio::time::sleep(Duration::from_secs(60)).await;
    assert!(send(&app, charge("k", ORDER)).await.is_replayed());
}
