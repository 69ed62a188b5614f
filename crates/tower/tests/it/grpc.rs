//! gRPC: `grpc-status` decides about the record, and errors are sent as `grpc-status`.

use axum::body::Body;
use bytes::Bytes;
use http::{HeaderMap, Request, Response, Version};
use http_body::Frame;
use semel_tower::KeyRule;
use tower_service::Service;

use crate::harness::{Gate, Harness, TestResponse, stream};

const MESSAGE: &[u8] = b"\0\0\0\0\x02hi";

fn unary(key: &str) -> Request<Body> {
    Request::post("/charges.Charges/Create")
        .version(Version::HTTP_2)
        .header("content-type", "application/grpc+proto")
        .header("te", "trailers")
        .header("idempotency-key", key)
        .body(Body::from(MESSAGE))
        .unwrap()
}

/// A response of one message and trailers.
fn response_with_trailers(status: &'static str) -> Response<Body> {
    let mut trailers = HeaderMap::new();
    trailers.insert("grpc-status", status.parse().unwrap());
    trailers.insert("x-meta", "m".parse().unwrap());
    let (frames, body) = stream();
    frames.try_send(Ok(Frame::data(Bytes::from_static(MESSAGE)))).unwrap();
    frames.try_send(Ok(Frame::trailers(trailers))).unwrap();
    Response::builder().header("content-type", "application/grpc").body(body).unwrap()
}

fn trailers_only_response(status: &'static str) -> Response<Body> {
    Response::builder()
        .header("content-type", "application/grpc")
        .header("grpc-status", status)
        .header("grpc-message", "no")
        .body(Body::empty())
        .unwrap()
}

async fn call<S>(service: &mut S) -> TestResponse
where
    S: Service<Request<Body>, Response = Response<semel_tower::Body<Body>>>,
    S::Error: std::fmt::Debug,
{
    TestResponse::read(service.call(unary("k")).await.unwrap()).await
}

type Never = std::convert::Infallible;

#[tokio::test]
async fn an_answer_is_replayed_with_its_trailers() {
    let harness = Harness::new();
    let mut service = harness.service(|request| {
        assert_eq!(request.headers()["grpc-accept-encoding"], "identity");
        Ok::<_, Never>(response_with_trailers("0"))
    });
    let first = call(&mut service).await;
    let second = call(&mut service).await;
    assert!(second.is_replayed());
    assert_eq!((first.body, first.trailers.clone()), (second.body, second.trailers));
    assert_eq!(first.trailers.unwrap()["x-meta"], "m");
    assert_eq!(harness.runs(), 1);
}

#[tokio::test]
async fn the_grpc_status_determines_the_verdict_although_the_http_status_is_200() {
    // INVALID_ARGUMENT completes the record, UNAUTHENTICATED releases it. UNKNOWN and UNAVAILABLE
    // leave the outcome unknown: a proxy sends UNAVAILABLE for a broken stream. The same holds for
    // trailers and for Trailers-Only responses.
    for (status, again, runs) in
        [("3", None, 1), ("16", None, 2), ("2", Some("9"), 1), ("14", Some("9"), 1)]
    {
        for answer in [response_with_trailers, trailers_only_response] {
            let harness = Harness::new();
            let mut service = harness.service(move |_| Ok::<_, Never>(answer(status)));
            call(&mut service).await;
            let second = call(&mut service).await;
            assert_eq!(harness.runs(), runs, "{status}");
            if again.is_some() {
                assert_eq!(second.header("grpc-status"), again);
                assert_eq!(second.header("idempotency-problem"), Some("outcome-unknown"));
            }
        }
    }
}

#[tokio::test]
async fn an_answer_without_trailers_leaves_the_outcome_unknown() {
    let harness = Harness::new();
    let mut service = harness.service(|_| {
        let response = Response::builder().header("content-type", "application/grpc");
        Ok::<_, Never>(response.body(Body::from(MESSAGE)).unwrap())
    });
    call(&mut service).await;
    let second = call(&mut service).await;
    assert_eq!(second.header("idempotency-problem"), Some("outcome-unknown"));
    assert_eq!(harness.runs(), 1);
}

#[tokio::test]
async fn problems_are_trailers_only_responses() {
    let harness = Harness::new();
    let layer = harness.layer().key(KeyRule::default().required());
    let app = harness.app_with(layer, |_| async { "ok" });
    let mut missing = unary("k");
    missing.headers_mut().remove("idempotency-key");
    for (request, status, slug, pushback) in
        [(missing, "3", "key-missing", "-1"), (unary("a b"), "3", "key-malformed", "-1")]
    {
        let answer = crate::harness::send(&app, request).await;
        assert_eq!(answer.status, 200);
        assert_eq!(answer.header("content-type"), Some("application/grpc"));
        assert_eq!(answer.header("grpc-status"), Some(status));
        assert_eq!(answer.header("idempotency-problem"), Some(slug));
        assert_eq!(answer.header("grpc-retry-pushback-ms"), Some(pushback));
        assert!(answer.header("grpc-message").is_some_and(|text| !text.is_empty()));
        assert!(answer.body.is_empty());
    }
}

#[tokio::test]
async fn a_repeat_of_a_running_call_gets_aborted_with_pushback() {
    let mut harness = Harness::new();
    harness.policy.wait = std::time::Duration::ZERO;
    let gate = Gate::new();
    let handler = {
        let gate = gate.clone();
        move |_| {
            let gate = gate.clone();
            async move { gate.wait_open().await }
        }
    };
    let app = axum::Router::new().fallback({
        let harness = harness.clone();
        move || {
            let run = harness.run();
            handler(run)
        }
    });
    let app = app.layer(harness.layer());
    let first = tokio::spawn({
        let app = app.clone();
        async move { crate::harness::send(&app, unary("k")).await }
    });
    crate::harness::wait_until(|| harness.runs() == 1).await;
    let second = crate::harness::send(&app, unary("k")).await;
    assert_eq!(second.header("grpc-status"), Some("10"));
    assert_eq!(second.header("grpc-retry-pushback-ms"), Some("1000"));
    gate.open();
    first.await.unwrap();
    assert_eq!(harness.runs(), 1);
}

#[tokio::test]
async fn an_idempotency_problem_counts_only_in_a_trailers_only_response_with_its_own_status() {
    let with_problem_header = |mut response: Response<Body>| {
        response.headers_mut().insert("idempotency-problem", "in-progress".parse().unwrap());
        response
    };
    // OK and INVALID_ARGUMENT are recorded. ABORTED is the status of `in-progress`, so that answer
    // is passed on and not recorded.
    for (answer, status, runs, passed_on) in [
        (response_with_trailers as fn(_) -> _, "0", 1, None),
        (response_with_trailers, "3", 1, None),
        (trailers_only_response, "3", 1, None),
        (trailers_only_response, "10", 2, Some("in-progress")),
    ] {
        let harness = Harness::new();
        let mut service =
            harness.service(move |_| Ok::<_, Never>(with_problem_header(answer(status))));
        let first = call(&mut service).await;
        assert_eq!(first.header("idempotency-problem"), passed_on, "{status}");
        call(&mut service).await;
        assert_eq!(harness.runs(), runs, "{status}");
    }
}

#[tokio::test]
async fn a_grpc_content_type_over_http_1_is_ignored_in_a_request() {
    for version in [Version::HTTP_10, Version::HTTP_11] {
        let harness = Harness::new();
        let app = harness.app(|run| async move { run.to_string() });
        let request = |key: &str| {
            let request = Request::post("/charges").version(version);
            let request = request.header("content-type", "application/grpc");
            request.header("idempotency-key", key).body(Body::from("{}")).unwrap()
        };
        let first = crate::harness::send(&app, request("k")).await;
        let again = crate::harness::send(&app, request("k")).await;
        assert_eq!((first.text(), again.text()), ("1", "1"));
        assert!(again.is_replayed());
        let malformed = crate::harness::send(&app, request("a b")).await;
        assert_eq!(malformed.status, 400);
        assert_eq!(malformed.header("content-type"), Some("application/problem+json"));
    }
}

#[tokio::test]
async fn a_grpc_content_type_over_http_1_is_ignored_in_an_answer() {
    let harness = Harness::new();
    let mut service = harness.service(|_| {
        let response = Response::builder().header("content-type", "application/grpc");
        Ok::<_, Never>(response.body(Body::from("echo")).unwrap())
    });
    for replayed in [false, true] {
        let mut request = unary("k");
        *request.version_mut() = Version::HTTP_11;
        let answer = TestResponse::read(service.call(request).await.unwrap()).await;
        assert_eq!((answer.text(), answer.is_replayed()), ("echo", replayed));
    }
    assert_eq!(harness.runs(), 1);
}

#[tokio::test]
async fn an_answer_that_is_not_grpc_is_judged_as_plain_http() {
    for (status, again) in [(200, None), (422, None), (500, Some("outcome-unknown"))] {
        let harness = Harness::new();
        let mut service = harness.service(move |_| {
            let response = Response::builder().status(status).header("content-type", "text/plain");
            Ok::<_, Never>(response.body(Body::from("page")).unwrap())
        });
        let first = call(&mut service).await;
        assert_eq!(first.text(), "page");
        let second = call(&mut service).await;
        assert_eq!(second.header("idempotency-problem"), again, "{status}");
        assert_eq!(second.is_replayed(), again.is_none(), "{status}");
        assert_eq!(harness.runs(), 1);
    }
}
