//! The rows of the two state tables that need a second request, a second process, an operator, or a
//! store that was unavailable.

use std::{
    future::Future,
    pin::Pin,
    task::{Context, Poll},
    time::Duration,
};

use axum::{Router, body::Body, response::IntoResponse};
use http::{Request, Response, StatusCode};
use semel::core::{
    Answer as Recorded, Caller, Fence, Key, ListQuery, OnUnknown, Policy, Reason, RecordId,
    Resolution, Resolved, Scope, StateName, Store,
};
use semel_testkit::{
    flaky_store::{StoreCall, StoreCondition},
    with,
};
use semel_tower::{BoxError, NeverReached};
use tokio::task::JoinHandle;
use tower_layer::Layer;
use tower_service::Service;

use crate::harness::{Gate, Harness, ORDER, TestResponse, charge, send, wait_until};

const LEASE: Duration = Duration::from_secs(30);

fn harness(on_unknown: OnUnknown) -> Harness {
    Harness::new().policy(Policy { on_unknown, lease: LEASE, ..Policy::default() })
}

/// A guarded route that counts its runs and answers behind a gate.
fn app_blocked_on(harness: &Harness, gate: &Gate) -> Router {
    let gate = gate.clone();
    harness.app(move |run| {
        let gate = gate.clone();
        async move {
            gate.wait_open().await;
            (StatusCode::CREATED, [("location", format!("/charges/{run}"))], run.to_string())
        }
    })
}

/// A request on its way.
fn on_its_way(app: &Router) -> JoinHandle<TestResponse> {
    let app = app.clone();
    tokio::spawn(async move { send(&app, charge("k", ORDER)).await })
}

#[track_caller]
fn is_replay_of_run(answer: &TestResponse, run: &str) {
    assert_eq!((answer.status, answer.text()), (StatusCode::CREATED, run));
    assert_eq!(answer.header("location"), Some(format!("/charges/{run}").as_str()));
    assert!(answer.is_replayed());
}

fn id() -> RecordId {
    let scope = Scope::new("payments").unwrap();
    RecordId::new(scope, Caller::anonymous(), Key::new("k").unwrap())
}

async fn fence(harness: &Harness) -> Fence {
    harness.store.get(&id()).await.unwrap().unwrap().fence
}

async fn resolve(harness: &Harness, resolution: Resolution) {
    let resolved = harness.store.resolve(&id(), fence(harness).await, &resolution).await;
    assert_eq!(resolved.unwrap(), Resolved::Applied);
}

/// A run whose lease expires.
async fn lapsed(on_unknown: OnUnknown) -> (Harness, Gate, JoinHandle<TestResponse>) {
    let (harness, gate) = (harness(on_unknown), Gate::new());
    harness.store.set(StoreCall::Renew, StoreCondition::Unavailable);
    let first = on_its_way(&app_blocked_on(&harness, &gate));
    wait_until(|| harness.runs() == 1).await;
    tokio::time::sleep(LEASE * 2).await;
    (harness, gate, first)
}

#[tokio::test(start_paused = true)]
async fn an_expired_lease_under_hold_is_held_until_its_owner_finishes() {
    let (harness, gate, first) = lapsed(OnUnknown::Hold).await;
    let elsewhere = app_blocked_on(&harness.second_process(), &gate);
    for _ in 0..2 {
        send(&elsewhere, charge("k", ORDER)).await.assert_problem(423, "outcome-unknown");
    }
    gate.open();
    let first = first.await.unwrap();
    assert_eq!((first.status, first.text()), (StatusCode::CREATED, "1"), "late truth");
    assert!(!first.is_replayed());
    is_replay_of_run(&send(&elsewhere, charge("k", ORDER)).await, "1");
    assert_eq!(harness.runs(), 1);
}

#[tokio::test(start_paused = true)]
async fn an_expired_lease_under_fail_has_failed_and_refuses_its_owner() {
    let (harness, gate, first) = lapsed(OnUnknown::Fail).await;
    let elsewhere = app_blocked_on(&harness.second_process(), &gate);
    let failed = send(&elsewhere, charge("k", ORDER)).await;
    failed.assert_problem(500, "operation-failed");
    assert!(failed.is_replayed());
    gate.open();
    assert_eq!(first.await.unwrap(), failed, "what the record says");
    assert_eq!(send(&elsewhere, charge("k", ORDER)).await, failed);
    assert_eq!(harness.runs(), 1);
}

#[tokio::test(start_paused = true)]
async fn a_lapsed_lease_under_rerun_runs_again_and_the_second_answer_counts() {
    let (harness, gate, first) = lapsed(OnUnknown::Rerun).await;
    let other_gate = Gate::new();
    let elsewhere = app_blocked_on(&harness.second_process(), &other_gate);
    let second = on_its_way(&elsewhere);
    wait_until(|| harness.runs() == 2).await;
    other_gate.open();
    assert_eq!(second.await.unwrap().text(), "2");
    gate.open();
    is_replay_of_run(&first.await.unwrap(), "2");
    is_replay_of_run(&send(&elsewhere, charge("k", ORDER)).await, "2");
    assert_eq!(harness.runs(), 2);
}

#[tokio::test(start_paused = true)]
async fn late_truth_beats_a_guess_when_the_store_takes_it_again() {
    let (harness, gate) = (harness(OnUnknown::Hold), Gate::new());
    gate.open();
    harness.store.set(StoreCall::Finish, StoreCondition::Unavailable);
    harness.store.set(StoreCall::Renew, StoreCondition::Unavailable);
    let app = app_blocked_on(&harness, &gate);
    send(&app, charge("k", ORDER)).await.assert_problem(504, "outcome-unknown");
    tokio::time::sleep(LEASE * 2).await;
    let elsewhere = app_blocked_on(&harness.second_process(), &gate);
    send(&elsewhere, charge("k", ORDER)).await.assert_problem(423, "outcome-unknown");
    harness.store.set(StoreCall::Finish, StoreCondition::Available);
    wait_until(|| harness.semel.in_flight() == 0).await;
    for app in [app, elsewhere] {
        is_replay_of_run(&send(&app, charge("k", ORDER)).await, "1");
    }
    assert_eq!(harness.runs(), 1);
}

#[tokio::test(start_paused = true)]
async fn a_store_away_for_longer_than_the_lease_and_back_has_lost_nothing() {
    let (harness, gate) = (harness(OnUnknown::Hold), Gate::new());
    let app = app_blocked_on(&harness, &gate);
    let first = on_its_way(&app);
    wait_until(|| harness.runs() == 1).await;
    harness.store.set_all(StoreCondition::Unavailable);
    tokio::time::sleep(LEASE).await;
    gate.open();
    first.await.unwrap().assert_problem(504, "outcome-unknown");
    tokio::time::sleep(LEASE).await;
    let elsewhere = app_blocked_on(&harness.second_process(), &gate);
    send(&elsewhere, charge("k", ORDER)).await.assert_problem(503, "store-unavailable");
    harness.store.set_all(StoreCondition::Available);
    wait_until(|| harness.semel.in_flight() == 0).await;
    for app in [app, elsewhere] {
        is_replay_of_run(&send(&app, charge("k", ORDER)).await, "1");
    }
    assert_eq!(harness.runs(), 1);
}

/// A service that counts its runs and ends behind a gate.
#[derive(Clone)]
struct Ends {
    harness: Harness,
    gate: Gate,
    how: fn() -> Result<Response<Body>, BoxError>,
}

impl Service<Request<semel_tower::Body<Body>>> for Ends {
    type Response = Response<Body>;
    type Error = BoxError;
    type Future = Pin<Box<dyn Future<Output = Result<Response<Body>, BoxError>> + Send>>;

    fn poll_ready(&mut self, _: &mut Context<'_>) -> Poll<Result<(), BoxError>> {
        Poll::Ready(Ok(()))
    }

    fn call(&mut self, _: Request<semel_tower::Body<Body>>) -> Self::Future {
        self.harness.run();
        let (gate, how) = (self.gate.clone(), self.how);
        Box::pin(async move {
            gate.wait_open().await;
            how()
        })
    }
}

/// What the owner, a joined request and a later one get, and how often it ran.
async fn three(how: fn() -> Result<Response<Body>, BoxError>) -> ([TestResponse; 3], u32) {
    let (harness, gate) = (Harness::new(), Gate::new());
    let service = harness.layer().layer(Ends { harness: harness.clone(), gate: gate.clone(), how });
    let ask = || {
        let mut service = service.clone();
        tokio::spawn(async move {
            TestResponse::read(service.call(charge("k", ORDER)).await.unwrap()).await
        })
    };
    let owner = ask();
    wait_until(|| harness.runs() == 1).await;
    let joined = ask();
    wait_until(|| harness.semel.waiting() == 1).await;
    gate.open();
    let (owner, joined) = (owner.await.unwrap(), joined.await.unwrap());
    assert_eq!(harness.runs(), 1, "one who joins never runs it");
    let after = ask().await.unwrap();
    ([owner, joined, after], harness.runs())
}

#[tokio::test]
async fn a_held_record_says_what_it_is_about_and_why() {
    let harness = Harness::new();
    let app = harness.app(|_| async { StatusCode::SERVICE_UNAVAILABLE });
    let mut request = charge("k", ORDER);
    *request.uri_mut() = "/charges?card=4242".parse().unwrap();
    request.headers_mut().insert("host", "shop.example".parse().unwrap());
    send(&app, request).await;
    let query = with(ListQuery::new(), |query| query.limit = 10);
    let [held] = &harness.store.list(&query).await.unwrap().items[..] else { panic!("not one") };
    assert_eq!(held.state, StateName::Held);
    assert_eq!(held.about.as_str(), "POST shop.example/charges");
    assert_eq!(held.reason, Some(Reason::Answered(503)));
}

/// Nothing of the answer is lost on another, and none of them is a replay.
#[track_caller]
fn are_the_same(one: &TestResponse, other: &TestResponse) {
    assert_eq!(one, other);
    assert!(!one.is_replayed());
}

#[tokio::test]
async fn a_request_that_joins_a_retryable_run_gets_its_answer_and_the_next_runs() {
    for how in [
        || Ok((StatusCode::TOO_MANY_REQUESTS, "not now").into_response()),
        || {
            let said = [("idempotency-outcome", "retry")];
            Ok((StatusCode::SERVICE_UNAVAILABLE, said, "not now").into_response())
        },
    ] as [fn() -> _; 2]
    {
        let ([owner, joined, after], runs) = three(how).await;
        assert_eq!(owner.text(), "not now");
        are_the_same(&owner, &joined);
        are_the_same(&owner, &after);
        assert_eq!(runs, 2);
    }
}

#[tokio::test]
async fn a_request_that_joins_an_unknown_outcome_gets_its_answer_and_the_next_gets_unknown() {
    for how in [
        // As timeout middleware answers while the work goes on.
        || Ok((StatusCode::SERVICE_UNAVAILABLE, "who knows").into_response()),
        || Ok(([("idempotency-outcome", "unknown")], "who knows").into_response()),
    ] as [fn() -> _; 2]
    {
        let ([owner, joined, after], runs) = three(how).await;
        assert_eq!(owner.text(), "who knows");
        are_the_same(&owner, &joined);
        after.assert_problem(423, "outcome-unknown");
        assert_eq!(runs, 1);
    }
}

#[tokio::test]
async fn a_request_that_joins_a_broken_run_gets_the_same_problem_as_its_owner() {
    let ([owner, joined, after], runs) = three(|| Err("the connection was reset".into())).await;
    owner.assert_problem(504, "upstream-timeout");
    are_the_same(&owner, &joined);
    after.assert_problem(423, "outcome-unknown");
    assert_eq!(runs, 1);
}

#[tokio::test]
async fn a_request_that_joins_an_unreachable_upstream_gets_that_problem_and_the_next_runs() {
    let ([owner, joined, after], runs) = three(|| Err(NeverReached.into())).await;
    owner.assert_problem(502, "upstream-unreachable");
    are_the_same(&owner, &joined);
    are_the_same(&owner, &after);
    assert_eq!(runs, 2);
}

#[tokio::test(start_paused = true)]
async fn an_operators_act_is_followed_within_a_second_by_who_knew_the_answer() {
    let (harness, gate) = (Harness::new(), Gate::new());
    gate.open();
    let app = app_blocked_on(&harness, &gate);
    send(&app, charge("warm", ORDER)).await;
    tokio::time::sleep(Duration::from_millis(10)).await;
    send(&app, charge("k", ORDER)).await;
    is_replay_of_run(&send(&app, charge("k", ORDER)).await, "2");
    let claims = harness.store.count(StoreCall::Claim);
    is_replay_of_run(&send(&app, charge("k", ORDER)).await, "2");
    assert_eq!(harness.store.count(StoreCall::Claim), claims, "it is known without the store");
    resolve(&harness, Resolution::Deleted(StateName::Completed)).await;
    tokio::time::sleep(Duration::from_secs(1)).await;
    let again = send(&app, charge("k", ORDER)).await;
    assert_eq!((again.text(), again.is_replayed()), ("3", false));
    is_replay_of_run(&send(&app, charge("k", ORDER)).await, "3");
    assert_eq!(harness.runs(), 3);
}

#[tokio::test]
async fn an_operator_says_what_happened_to_what_is_held() {
    let harness = Harness::new();
    let app = harness.app(|run| async move {
        let status = if run == 1 { StatusCode::BAD_GATEWAY } else { StatusCode::CREATED };
        (status, run.to_string())
    });
    send(&app, charge("k", ORDER)).await;
    send(&app, charge("k", ORDER)).await.assert_problem(423, "outcome-unknown");
    resolve(&harness, Resolution::Released).await;
    let second = send(&app, charge("k", ORDER)).await;
    assert_eq!((second.status, second.text()), (StatusCode::CREATED, "2"));

    let harness = Harness::new();
    let app = harness.app(|_| async { StatusCode::BAD_GATEWAY });
    send(&app, charge("k", ORDER)).await;
    let headers = [(&b"content-type"[..], &b"text/plain"[..])];
    let happened = Recorded::encode(201, &headers, &[], b"it happened");
    resolve(&harness, Resolution::Completed(happened)).await;
    let answer = send(&app, charge("k", ORDER)).await;
    assert_eq!((answer.status, answer.text()), (StatusCode::CREATED, "it happened"));
    assert_eq!(answer.header("content-type"), Some("text/plain"));
    assert!(answer.is_replayed());
    assert_eq!(harness.runs(), 1);
}
