//! gRPC: judged by its own status, refused in its own way.

use axum::body::Body;
use bytes::Bytes;
use http::{HeaderMap, Request, Response};
use http_body::Frame;
use semel_tower::KeyRule;
use tower_service::Service;

use crate::bench::{Answer, Bench, Gate, stream};

const MESSAGE: &[u8] = b"\0\0\0\0\x02hi";

fn unary(key: &str) -> Request<Body> {
    Request::post("/charges.Charges/Create")
        .header("content-type", "application/grpc+proto")
        .header("te", "trailers")
        .header("idempotency-key", key)
        .body(Body::from(MESSAGE))
        .unwrap()
}

/// A message and its trailers.
fn answered(status: &'static str) -> Response<Body> {
    let mut trailers = HeaderMap::new();
    trailers.insert("grpc-status", status.parse().unwrap());
    trailers.insert("x-meta", "m".parse().unwrap());
    let (frames, body) = stream();
    frames.try_send(Ok(Frame::data(Bytes::from_static(MESSAGE)))).unwrap();
    frames.try_send(Ok(Frame::trailers(trailers))).unwrap();
    Response::builder().header("content-type", "application/grpc").body(body).unwrap()
}

fn refused(status: &'static str) -> Response<Body> {
    Response::builder()
        .header("content-type", "application/grpc")
        .header("grpc-status", status)
        .header("grpc-message", "no")
        .body(Body::empty())
        .unwrap()
}

async fn call<S>(service: &mut S) -> Answer
where
    S: Service<Request<Body>, Response = Response<semel_tower::Body<Body>>>,
    S::Error: std::fmt::Debug,
{
    Answer::read(service.call(unary("k")).await.unwrap()).await
}

type Never = std::convert::Infallible;

#[tokio::test]
async fn an_answer_is_kept_with_its_trailers() {
    let bench = Bench::new();
    let mut service = bench.service(|request| {
        assert_eq!(request.headers()["grpc-accept-encoding"], "identity");
        Ok::<_, Never>(answered("0"))
    });
    let first = call(&mut service).await;
    let second = call(&mut service).await;
    assert!(second.is_replayed());
    assert_eq!((first.body, first.trailers.clone()), (second.body, second.trailers));
    assert_eq!(first.trailers.unwrap()["x-meta"], "m");
    assert_eq!(bench.runs(), 1);
}

#[tokio::test]
async fn the_grpc_status_decides_though_the_http_status_is_200() {
    // INVALID_ARGUMENT is kept, UNAUTHENTICATED released; UNKNOWN and UNAVAILABLE prove nothing: a
    // proxy sends the latter for a stream that broke. In trailers or without.
    for (status, again, runs) in
        [("3", None, 1), ("16", None, 2), ("2", Some("9"), 1), ("14", Some("9"), 1)]
    {
        for answer in [answered, refused] {
            let bench = Bench::new();
            let mut service = bench.service(move |_| Ok::<_, Never>(answer(status)));
            call(&mut service).await;
            let second = call(&mut service).await;
            assert_eq!(bench.runs(), runs, "{status}");
            if again.is_some() {
                assert_eq!(second.header("grpc-status"), again);
                assert_eq!(second.header("idempotency-problem"), Some("outcome-unknown"));
            }
        }
    }
}

#[tokio::test]
async fn an_answer_without_trailers_leaves_the_outcome_unknown() {
    let bench = Bench::new();
    let mut service = bench.service(|_| {
        let response = Response::builder().header("content-type", "application/grpc");
        Ok::<_, Never>(response.body(Body::from(MESSAGE)).unwrap())
    });
    call(&mut service).await;
    let second = call(&mut service).await;
    assert_eq!(second.header("idempotency-problem"), Some("outcome-unknown"));
    assert_eq!(bench.runs(), 1);
}

#[tokio::test]
async fn problems_are_answers_of_trailers_only() {
    let bench = Bench::new();
    let layer = bench.layer().key(KeyRule::default().required());
    let app = bench.app_with(layer, |_| async { "ok" });
    let mut missing = unary("k");
    missing.headers_mut().remove("idempotency-key");
    for (request, status, slug, pushback) in
        [(missing, "3", "key-missing", "-1"), (unary("a b"), "3", "key-malformed", "-1")]
    {
        let answer = crate::bench::send(&app, request).await;
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
async fn a_call_that_still_runs_is_aborted_with_pushback() {
    let mut bench = Bench::new();
    bench.policy.wait = std::time::Duration::ZERO;
    let gate = Gate::new();
    let handler = {
        let gate = gate.clone();
        move |_| {
            let gate = gate.clone();
            async move { gate.pass().await }
        }
    };
    let app = axum::Router::new().fallback({
        let bench = bench.clone();
        move || {
            let run = bench.run();
            handler(run)
        }
    });
    let app = app.layer(bench.layer());
    let first = tokio::spawn({
        let app = app.clone();
        async move { crate::bench::send(&app, unary("k")).await }
    });
    crate::bench::until(|| bench.runs() == 1).await;
    let second = crate::bench::send(&app, unary("k")).await;
    assert_eq!(second.header("grpc-status"), Some("10"));
    assert_eq!(second.header("grpc-retry-pushback-ms"), Some("1000"));
    gate.open();
    first.await.unwrap();
    assert_eq!(bench.runs(), 1);
}

#[tokio::test]
async fn a_problem_beside_a_message_or_another_code_does_not_count() {
    let stated = |mut response: Response<Body>| {
        response.headers_mut().insert("idempotency-problem", "in-progress".parse().unwrap());
        response
    };
    // OK and INVALID_ARGUMENT are kept, ABORTED is what the problem is sent with.
    for (answer, status, runs, passed_on) in [
        (answered as fn(_) -> _, "0", 1, None),
        (answered, "3", 1, None),
        (refused, "3", 1, None),
        (refused, "10", 2, Some("in-progress")),
    ] {
        let bench = Bench::new();
        let mut service = bench.service(move |_| Ok::<_, Never>(stated(answer(status))));
        let first = call(&mut service).await;
        assert_eq!(first.header("idempotency-problem"), passed_on, "{status}");
        call(&mut service).await;
        assert_eq!(bench.runs(), runs, "{status}");
    }
}
