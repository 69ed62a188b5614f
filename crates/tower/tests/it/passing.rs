//! Unguarded requests pass unchanged.

use std::{
    convert::Infallible,
    future::{Ready, poll_fn, ready},
    task::{Context, Poll},
};

use axum::{Router, body::Body, routing::any};
use http::{Method, Request, Response};
use semel::core::Scope;
use semel_tower::{
    Callers, IdempotencyKey, IdempotencyLayer, KeyRule, header::IDEMPOTENCY_OUTCOME,
};
use tower_layer::Layer;
use tower_service::Service;

use crate::harness::{Harness, ORDER, charge, send};

#[tokio::test]
async fn other_methods_and_requests_without_a_key_run_every_time() {
    let harness = Harness::new();
    let counted = harness.clone();
    let handler = move |key: Option<IdempotencyKey>| {
        counted.run();
        async move { format!("{:?}", key.map(|key| key.0.to_string())) }
    };
    let app = Router::new().route("/", any(handler)).layer(harness.layer());
    let ask = |method: Method, key: bool| {
        let request = Request::builder().method(method).uri("/");
        let request = if key { request.header("idempotency-key", "k") } else { request };
        request.body(Body::empty()).unwrap()
    };
    for (method, key) in [
        (Method::GET, true),
        (Method::PUT, true),
        (Method::DELETE, true),
        (Method::POST, false),
        (Method::PATCH, false),
    ] {
        let before = harness.runs();
        for _ in 0..2 {
            assert_eq!(send(&app, ask(method.clone(), key)).await.text(), "None");
        }
        assert_eq!(harness.runs(), before + 2, "{method}");
    }
    let before = harness.runs();
    for _ in 0..2 {
        assert_eq!(send(&app, ask(Method::PATCH, true)).await.text(), "Some(\"k\")");
    }
    assert_eq!(harness.runs(), before + 1);
}

#[tokio::test]
async fn a_route_says_which_methods_it_guards() {
    let harness = Harness::new();
    let counted = harness.clone();
    let handler = move || {
        let run = counted.run();
        async move { run.to_string() }
    };
    let layer = harness.layer().methods([Method::PUT]);
    let app = Router::new().route("/charges", any(handler)).layer(layer);
    let ask = |method: Method| {
        let mut request = charge("k", ORDER);
        *request.method_mut() = method;
        request
    };
    assert_eq!(send(&app, ask(Method::POST)).await.text(), "1");
    assert_eq!(send(&app, ask(Method::POST)).await.text(), "2");
    assert_eq!(send(&app, ask(Method::PUT)).await.text(), "3");
    let again = send(&app, ask(Method::PUT)).await;
    assert_eq!((again.text(), again.is_replayed()), ("3", true));
    assert_eq!(harness.runs(), 3);
}

#[tokio::test]
async fn an_outcome_never_goes_out() {
    let harness = Harness::new();
    let app = harness.app(|_| async { [(IDEMPOTENCY_OUTCOME, "completed")] });
    let mut request = charge("k", ORDER);
    request.headers_mut().remove("idempotency-key");
    assert_eq!(send(&app, request).await.header("idempotency-outcome"), None);
}

#[tokio::test]
async fn a_route_that_warns_says_so_and_guards_what_has_a_key() {
    let harness = Harness::new();
    let layer = harness.layer().key(KeyRule::default().warn()).docs("https://example.org/d");
    let app = harness.app_with(layer, |run| async move { run.to_string() });
    let mut without = charge("k", ORDER);
    without.headers_mut().remove("idempotency-key");
    let answer = send(&app, without).await;
    assert_eq!(answer.text(), "1");
    assert!(answer.header("deprecation").unwrap().starts_with('@'));
    assert_eq!(answer.header("link"), Some("<https://example.org/d>; rel=\"deprecation\""));
    let answer = send(&app, charge("k", ORDER)).await;
    assert_eq!((answer.text(), answer.header("deprecation")), ("2", None));
    assert!(send(&app, charge("k", ORDER)).await.is_replayed());
}

/// A service that insists on being ready, as a clone of it is not.
struct Strict {
    ready: bool,
}

impl Clone for Strict {
    fn clone(&self) -> Self {
        Self { ready: false }
    }
}

impl<B> Service<Request<B>> for Strict {
    type Response = Response<Body>;
    type Error = Infallible;
    type Future = Ready<Result<Response<Body>, Infallible>>;

    fn poll_ready(&mut self, _: &mut Context<'_>) -> Poll<Result<(), Infallible>> {
        self.ready = true;
        Poll::Ready(Ok(()))
    }

    fn call(&mut self, _: Request<B>) -> Self::Future {
        assert!(std::mem::take(&mut self.ready), "called before it was ready");
        ready(Ok(Response::new(Body::empty())))
    }
}

#[tokio::test]
async fn the_service_that_is_called_is_the_one_that_was_ready() {
    let harness = Harness::new();
    let mut service = harness.layer().layer(Strict { ready: false });
    for key in [Some("a"), None, Some("b")] {
        let mut request = charge("k", ORDER);
        match key {
            Some(key) => _ = request.headers_mut().insert("idempotency-key", key.parse().unwrap()),
            None => _ = request.headers_mut().remove("idempotency-key"),
        }
        poll_fn(|context| Service::<Request<Body>>::poll_ready(&mut service, context))
            .await
            .unwrap();
        assert_eq!(service.call(request).await.unwrap().status(), 200);
    }
}

#[tokio::test]
async fn a_layer_within_the_same_layer_steps_aside() {
    let harness = Harness::new();
    let app = harness.app(|run| async move { format!("run {run}") }).layer(harness.layer());
    for _ in 0..3 {
        let answer = send(&app, charge("k", ORDER)).await;
        assert_eq!(answer.text(), "run 1");
    }
    assert_eq!(harness.runs(), 1);
}

#[tokio::test]
async fn a_declared_outcome_reaches_the_outer_of_two_layers() {
    let harness = Harness::new();
    let app = harness.app(|run| async move {
        (http::StatusCode::SERVICE_UNAVAILABLE, [("idempotency-outcome", "retry")], run.to_string())
    });
    let app = app.layer(harness.layer());
    for run in ["1", "2"] {
        let answer = send(&app, charge("k", ORDER)).await;
        assert_eq!(answer.text(), run);
        assert_eq!(answer.header("idempotency-outcome"), None);
    }
}

#[tokio::test]
async fn a_refusal_of_another_layer_is_no_answer_of_the_service() {
    let (inner, outer) = (Harness::new(), Harness::new());
    let mut policy = inner.clone();
    policy.policy.wait = std::time::Duration::ZERO;
    let gate = crate::harness::Gate::new();
    let held = gate.clone();
    let service = policy.app(move |_| {
        let gate = held.clone();
        async move {
            gate.wait_open().await;
            "charged"
        }
    });
    let first = tokio::spawn({
        let service = service.clone();
        async move { send(&service, charge("k", ORDER)).await }
    });
    crate::harness::wait_until(|| policy.runs() == 1).await;
    let scope = Scope::new("gateway").unwrap();
    let gateway = IdempotencyLayer::new(&outer.semel, scope, Callers::anonymous());
    let gateway = service.layer(gateway);
    send(&gateway, charge("k", ORDER)).await.assert_problem(409, "in-progress");
    gate.open();
    first.await.unwrap();
    assert_eq!(send(&gateway, charge("k", ORDER)).await.text(), "charged");
    assert_eq!(policy.runs(), 1);
}
