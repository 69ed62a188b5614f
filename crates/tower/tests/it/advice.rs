//! What a client learns besides its answer: whether to retry, whether it was a replay, whether
//! the operation was guarded. A service cannot say these things in the place of the layer.

use std::time::Duration;

use axum::{body::Body, response::IntoResponse as _};
use http::{Response, StatusCode};
use semel::{
    Semel,
    core::{OnStoreDown, OnUnknown, Policy, Problem, RetryContext, Scope},
};
use semel_testkit::unsteady::{Verb, Weather};
use semel_tower::{Callers, IdempotencyLayer, NeverReached, RecordContent, Streaming, refusal};
use tower_service::Service;

use crate::bench::{Answer, Bench, Gate, ORDER, charge, send, until};

/// What a Semel behind sends for this problem.
fn behind(problem: Problem) -> Response<semel_tower::Body<Body>> {
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
        let bench = Bench::new().policy(policy(on_unknown));
        let mut service = bench.service(|_| Err(std::fmt::Error));
        let answer = Answer::read(service.call(charge("k", ORDER)).await.unwrap()).await;
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
    let bench = Bench::new().policy(policy(OnUnknown::Fail));
    let mut service = bench.service(|_| Err(std::fmt::Error));
    service.call(charge("k", ORDER)).await.unwrap();
    let answer = Answer::read(service.call(charge("k", ORDER)).await.unwrap()).await;
    answer.is_problem(500, "operation-failed");
    assert_eq!(answer.header("x-should-retry"), Some("false"));
    assert!(answer.is_replayed());
}

#[tokio::test]
async fn what_never_ran_is_retried() {
    let bench = Bench::new();
    let mut service = bench.service(|_| Err(NeverReached));
    let answer = Answer::read(service.call(charge("k", ORDER)).await.unwrap()).await;
    answer.is_problem(502, "upstream-unreachable");
    assert_eq!(answer.header("stripe-should-retry"), Some("true"));
    assert_eq!(answer.header("retry-after"), Some("1"));
}

#[tokio::test]
async fn a_problem_in_a_header_alone_does_not_free_the_key() {
    for status in [200, 201, 303, 402, 409] {
        let bench = Bench::new();
        let status = StatusCode::from_u16(status).unwrap();
        let app = bench.app(move |run| async move {
            (status, [("idempotency-problem", "in-progress")], run.to_string())
        });
        let first = send(&app, charge("k", ORDER)).await;
        assert_eq!((first.status, first.text()), (status, "1"));
        assert_eq!(first.header("idempotency-problem"), None, "it is no problem");
        let second = send(&app, charge("k", ORDER)).await;
        assert_eq!((second.text(), second.is_replayed(), bench.runs()), ("1", true, 1), "{status}");
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
        let bench = Bench::new();
        let app = bench.app(move |_| async move { behind(problem).into_response() });
        let first = send(&app, charge("k", ORDER)).await;
        first.is_problem(problem.status(), problem.slug());
        assert_eq!(first.header("idempotency-problem"), Some(problem.slug()));
        send(&app, charge("k", ORDER)).await;
        assert_eq!(bench.runs(), runs, "{problem:?}");
    }
}

#[tokio::test]
async fn a_final_problem_of_a_semel_behind_is_final_in_the_replay_too() {
    let bench = Bench::new();
    let app = bench.app(|_| async { behind(Problem::OperationFailed).into_response() });
    for replayed in [false, true] {
        let answer = send(&app, charge("k", ORDER)).await;
        answer.is_problem(500, "operation-failed");
        assert_eq!(answer.header("idempotency-problem"), Some("operation-failed"));
        assert_eq!(answer.header("stripe-should-retry"), Some("false"));
        assert_eq!(answer.is_replayed(), replayed);
    }
    assert_eq!(bench.runs(), 1);
}

#[tokio::test]
async fn a_stream_is_no_problem() {
    let bench = Bench::new();
    let app = bench.app(|_| async {
        // One without `Retry-After`, which frees the key by itself.
        let mut response = behind(Problem::KeyReused).into_response();
        response.extensions_mut().insert(Streaming);
        response
    });
    let first = send(&app, charge("k", ORDER)).await;
    assert_eq!((first.status.as_u16(), first.header("idempotency-problem")), (422, None));
    send(&app, charge("k", ORDER)).await.is_problem(410, "response-not-retained");
    assert_eq!(bench.runs(), 1);
}

#[tokio::test]
async fn a_service_cannot_mark_its_first_answer_as_a_replay_or_as_unguarded() {
    let bench = Bench::new();
    let app = bench.app(|_| async {
        ([("idempotent-replayed", "true"), ("idempotency-guarded", "false")], "ok")
    });
    let first = send(&app, charge("k", ORDER)).await;
    assert_eq!((first.header("idempotent-replayed"), first.text()), (None, "ok"));
    assert_eq!(first.header("idempotency-guarded"), None);
    let second = send(&app, charge("k", ORDER)).await;
    assert!(second.is_replayed());
    assert_eq!(second.header("idempotency-guarded"), None);
}

#[tokio::test]
async fn the_replay_of_a_layer_inside_is_the_first_answer_of_the_one_around_it() {
    let inner = Bench::new();
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

/// A bench whose store does not answer claims, on a route that passes it by.
fn passing() -> Bench {
    let policy = Policy {
        on_store_down: OnStoreDown::Pass,
        lease: Duration::from_secs(3),
        ..Policy::default()
    };
    let bench = Bench::new().policy(policy);
    bench.store.set(Verb::Claim, Weather::Away);
    bench
}

#[tokio::test(start_paused = true)]
async fn what_ran_without_its_store_is_marked_for_its_client() {
    let bench = passing();
    let app = bench.app(|run| async move { run.to_string() });
    for run in ["1", "2"] {
        let answer = send(&app, charge("k", ORDER)).await;
        assert_eq!((answer.text(), answer.header("idempotency-guarded")), (run, Some("false")));
    }
    bench.store.set(Verb::Claim, Weather::Fair);
    // That the store is back is noticed within a second.
    tokio::time::sleep(Duration::from_secs(1)).await;
    let guarded = send(&app, charge("other", ORDER)).await;
    assert_eq!(guarded.header("idempotency-guarded"), None);
}

/// Its claim was granted, but the reply was lost: the answer is recorded when the store is back,
/// and of that no more than the route says.
#[tokio::test(start_paused = true)]
async fn what_ran_without_its_store_is_recorded_as_its_route_says() {
    for (content, replay) in [(RecordContent::Full, 200), (RecordContent::Status, 410)] {
        let bench = passing();
        bench.store.set(Verb::Claim, Weather::Deaf);
        let headers = [("x-balance", "4242")];
        let app = bench
            .app_with(bench.layer().record(content), move |_| async move { (headers, "4242") });
        let first = send(&app, charge("k", ORDER)).await;
        assert_eq!((first.text(), first.header("x-balance")), ("4242", Some("4242")));
        assert_eq!(first.header("idempotency-guarded"), Some("false"));
        bench.store.set(Verb::Claim, Weather::Fair);
        assert_eq!(bench.semel.drain(Duration::from_secs(30)).await, 0);
        let second = send(&app, charge("k", ORDER)).await;
        assert_eq!(second.status.as_u16(), replay);
        assert_eq!(second.header("x-balance"), None);
        assert_eq!(second.header("idempotency-guarded"), None);
        assert_eq!(bench.runs(), 1);
    }
}

#[tokio::test(start_paused = true)]
async fn one_who_joins_what_runs_without_its_store_is_told_too() {
    let (bench, gate) = (passing(), Gate::new());
    let app = bench.app_behind(&gate);
    let first = tokio::spawn({
        let app = app.clone();
        async move { send(&app, charge("k", ORDER)).await }
    });
    until(|| bench.runs() == 1).await;
    let joined = tokio::spawn({
        let app = app.clone();
        async move { send(&app, charge("k", ORDER)).await }
    });
    until(|| bench.semel.waiting() == 1).await;
    gate.open();
    for answer in [first.await.unwrap(), joined.await.unwrap()] {
        assert_eq!((answer.status.as_u16(), answer.text()), (201, "1"));
        assert_eq!(answer.header("idempotency-guarded"), Some("false"));
    }
    assert_eq!(bench.runs(), 1);
}

#[tokio::test(start_paused = true)]
async fn a_timeout_without_a_store_is_marked_too() {
    let bench = passing();
    let mut service = bench.service(|_| Err(std::fmt::Error));
    let answer = Answer::read(service.call(charge("k", ORDER)).await.unwrap()).await;
    answer.is_problem(504, "upstream-timeout");
    assert_eq!(answer.header("idempotency-guarded"), Some("false"));
    assert_eq!(answer.header("x-should-retry"), Some("false"));
}

#[tokio::test(start_paused = true)]
async fn what_cannot_be_recorded_is_asked_for_again() {
    let bench = Bench::new();
    let app = bench.app(|_| async { "charged" });
    bench.store.set(Verb::Record, Weather::Away);
    let answer = send(&app, charge("k", ORDER)).await;
    answer.is_problem(504, "outcome-unknown");
    assert_eq!(answer.header("x-should-retry"), Some("true"));
    assert_eq!(answer.header("retry-after-ms"), Some("1000"));
    bench.store.set(Verb::Record, Weather::Fair);
    tokio::time::sleep(Duration::from_secs(60)).await;
    assert!(send(&app, charge("k", ORDER)).await.is_replayed());
}
