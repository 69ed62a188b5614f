//! An observing layer: every request and every answer passes byte for byte, and the layer reports
//! what it would have done.

use std::{
    convert::Infallible,
    sync::{Arc, Mutex},
    time::Duration,
};

use axum::{Router, body::Body, response::IntoResponse, routing::post};
use bytes::Bytes;
use http::{HeaderMap, Request, Response, StatusCode};
use http_body::Frame;
use http_body_util::BodyExt as _;
use semel::{
    Event, EventKind, Observer, Semel,
    core::{Dialect, Problem, StateName, Store, canonical::Pointer},
};
use semel_testkit::flaky_store::StoreCondition;
use semel_tower::{DeadlineRule, IdempotencyLayer, KeyRule, NeverReached};
use tower_layer::Layer as _;
use tower_service::Service;

use crate::harness::{
    Gate, Harness, ORDER, TestResponse, begin, charge, data, send, stream, wait_until,
};

/// What the layer would have done, in order.
#[derive(Clone, Debug, Default)]
struct RecordedEvents(Arc<Mutex<Vec<String>>>);

impl Observer for RecordedEvents {
    fn on_event(&self, event: &Event<'_>) {
        let scope = event.scope.map_or("", |scope| scope.as_str());
        // A panic in here would be caught.
        if let EventKind::StoreReplied { .. } | EventKind::StoreFailed { .. } = event.kind {
            // Store calls are reported as usual; no other event may occur.
            return;
        }
        let entry = if let (EventKind::Observed(would), "payments") = (&event.kind, scope) {
            format!("{would:?}")
        } else {
            format!("{scope} {:?}", event.kind)
        };
        self.0.lock().unwrap().push(entry);
    }
}

impl RecordedEvents {
    fn harness(&self) -> Harness {
        let mut harness = Harness::new();
        harness.semel = Semel::builder(harness.store.clone()).observer(self.clone()).build();
        harness
    }

    fn all(&self) -> Vec<String> {
        self.0.lock().unwrap().clone()
    }

    /// Waits for the reports, which are concurrent to the requests.
    async fn wait_for(&self, expected: &[&str]) {
        wait_until(|| self.0.lock().unwrap().len() >= expected.len()).await;
        assert_eq!(self.all(), expected);
    }
}

fn layer(harness: &Harness) -> IdempotencyLayer {
    harness.layer().observe()
}

/// Waits until every execution is recorded.
async fn settled(harness: &Harness) {
    assert_eq!(harness.semel.drain(Duration::from_secs(60)).await, 0);
}

#[tokio::test]
async fn every_repeat_runs_and_the_outcome_that_guarding_would_have_had_is_reported() {
    let events = RecordedEvents::default();
    let harness = events.harness();
    let app = harness.app_with(layer(&harness), |run| async move { run.to_string() });
    for (run, body, expected) in [
        ("1", ORDER, &["Run"][..]),
        ("2", ORDER, &["Run", "Replay"]),
        ("3", "{}", &["Run", "Replay", "Refuse(KeyReused)"]),
        ("4", ORDER, &["Run", "Replay", "Refuse(KeyReused)", "Replay"]),
    ] {
        let answer = send(&app, charge("k", body)).await;
        assert_eq!((answer.text(), answer.is_replayed()), (run, false));
        events.wait_for(expected).await;
        settled(&harness).await;
    }
    assert_eq!(harness.runs(), 4);
}

#[tokio::test]
async fn a_problem_of_a_semel_behind_is_judged_by_all_of_its_answer() {
    // The document as it is sent, and the same with a `type` that the header contradicts.
    for (other_type, expected) in [(false, ["Run", "Run"]), (true, ["Run", "Replay"])] {
        let events = RecordedEvents::default();
        let harness = events.harness();
        let app = harness.app_with(layer(&harness), move |_| async move {
            let problem = Problem::InProgress;
            let other = Dialect::IETF.document(Problem::KeyReused, None);
            let document = if other_type { other } else { Dialect::IETF.document(problem, None) };
            let headers = [
                ("content-type", "application/problem+json"),
                ("idempotency-problem", problem.slug()),
            ];
            (StatusCode::CONFLICT, headers, document)
        });
        for known in [&expected[..1], &expected] {
            let answer = send(&app, charge("k", ORDER)).await;
            assert_eq!(answer.header("idempotency-problem"), Some("in-progress"), "it passes");
            events.wait_for(known).await;
            settled(&harness).await;
        }
    }
}

#[cfg(feature = "jwks-url")]
#[tokio::test]
async fn a_request_that_comes_before_the_keys_is_judged_with_them() {
    use semel_testkit::issuer::{
        AUDIENCE, Algorithm, ISSUER, JwksAnswer, JwksServer, SigningKey, claims, key_set,
    };
    use semel_tower::{Callers, Jwks, JwtVerifier};

    let events = RecordedEvents::default();
    let harness = events.harness();
    let key = SigningKey::generate("k", Algorithm::ES256);
    let server = JwksServer::start(JwksAnswer::Text(key_set(&[&key]))).await;
    let keys = Jwks::url(&server.url()).unwrap();
    let callers = Callers::jwt(&JwtVerifier::new(&keys, ISSUER, [AUDIENCE]));
    let app =
        harness.app_with(layer(&harness).callers(callers), |run| async move { run.to_string() });
    let mut request = charge("k", ORDER);
    let token = format!("Bearer {}", key.sign(&claims("zoe")));
    request.headers_mut().insert("authorization", token.parse().unwrap());
    assert_eq!(send(&app, request).await.text(), "1");
    events.wait_for(&["Run"]).await;
}

#[tokio::test]
async fn a_request_that_would_be_refused_before_it_runs_passes_and_is_reported() {
    let malformed = |request: &mut Request<Body>| {
        request.headers_mut().insert("idempotency-key", "\"".parse().unwrap());
    };
    let missing = |request: &mut Request<Body>| {
        request.headers_mut().remove("idempotency-key");
    };
    let broken = |request: &mut Request<Body>| *request.body_mut() = Body::from("{");
    let large = |request: &mut Request<Body>| *request.body_mut() = Body::from(vec![b' '; 2 << 20]);
    let grows = |request: &mut Request<Body>| {
        let (frames, body) = stream();
        frames.try_send(Ok(Frame::data(vec![b' '; 2 << 20].into()))).unwrap();
        *request.body_mut() = body;
    };
    let unidentified = |request: &mut Request<Body>| {
        request.headers_mut().insert("cookie", "session=7".parse().unwrap());
    };
    let late = |request: &mut Request<Body>| {
        request.headers_mut().insert("request-timeout", "0".parse().unwrap());
    };
    let unreadable = |request: &mut Request<Body>| {
        request.headers_mut().insert("grpc-timeout", "soon".parse().unwrap());
    };
    type Spoil<'a> = &'a dyn Fn(&mut Request<Body>);
    let spoil: [(Spoil<'_>, bool, &str); 9] = [
        (&malformed, false, "Refuse(KeyMalformed)"),
        (&missing, false, "Keyless"),
        (&missing, true, "Refuse(KeyMissing)"),
        (&broken, false, "Refuse(BodyMalformed)"),
        (&large, false, "Refuse(BodyTooLarge)"),
        (&grows, false, "Refuse(BodyTooLarge)"),
        (&unidentified, false, "Refuse(CallerUnidentified)"),
        (&late, false, "Refuse(DeadlineExceeded)"),
        (&unreadable, false, "Refuse(DeadlineMalformed)"),
    ];
    for (spoil, required, expected) in spoil {
        let events = RecordedEvents::default();
        let harness = events.harness();
        let rule = KeyRule::default();
        let layer = layer(&harness).key(if required { rule.required() } else { rule.warn() });
        let layer = layer.deadline(DeadlineRule::default());
        let limit = axum::extract::DefaultBodyLimit::disable();
        let app = harness.app_with(layer, |run| async move { run.to_string() }).layer(limit);
        let mut request = charge("k", ORDER);
        spoil(&mut request);
        let answer = send(&app, request).await;
        assert_eq!((answer.status, answer.text()), (StatusCode::OK, "1"), "{expected}");
        assert_eq!(answer.header("deprecation"), None);
        events.wait_for(&[expected]).await;
    }
}

#[tokio::test]
async fn a_key_in_the_body_is_found_while_the_service_reads_it() {
    let events = RecordedEvents::default();
    let harness = events.harness();
    let rule = KeyRule::json(Pointer::parse("/id").unwrap()).required();
    let app = harness.app_with(layer(&harness).key(rule), async |_| StatusCode::NOT_FOUND);
    let event = |body: &'static str| Request::post("/charges").body(Body::from(body)).unwrap();
    // Under such a key no error is kept, so that the second would have run too.
    for expected in [&["Run"][..], &["Run", "Run"]] {
        assert_eq!(send(&app, event(r#"{"id":"evt_1"}"#)).await.status, 404);
        events.wait_for(expected).await;
        settled(&harness).await;
    }
    assert_eq!(send(&app, event(r#"{"no":"id"}"#)).await.status, 404);
    events.wait_for(&["Run", "Run", "Refuse(KeyMissing)"]).await;
}

#[tokio::test]
async fn an_answer_is_judged_by_the_policy_of_the_key_that_was_found() {
    let events = RecordedEvents::default();
    let harness = events.harness();
    let rule = KeyRule::json(Pointer::parse("/id").unwrap()).or(KeyRule::default());
    let app = harness.app_with(layer(&harness).key(rule), async |_| StatusCode::NOT_FOUND);
    // The body could have named the key, but a header did, under which an error is kept.
    for expected in [&["Run"][..], &["Run", "Replay"]] {
        assert_eq!(send(&app, charge("k", ORDER)).await.status, 404);
        events.wait_for(expected).await;
        settled(&harness).await;
    }
}

/// Everything that a service received and sent: heads, every frame, trailers.
#[derive(Clone, Debug, Default, PartialEq)]
struct Exchange {
    request: Vec<String>,
    answer: Vec<String>,
}

/// A service that answers with headers of every kind, and echoes frame by frame.
#[derive(Clone)]
struct Echo(Arc<Mutex<Vec<String>>>);

impl<B> Service<Request<B>> for Echo
where
    B: http_body::Body<Data = Bytes> + Send + 'static + Unpin,
    B::Error: std::fmt::Display + Send,
{
    type Response = Response<Body>;
    type Error = Infallible;
    type Future =
        std::pin::Pin<Box<dyn Future<Output = Result<Response<Body>, Infallible>> + Send>>;

    fn poll_ready(
        &mut self,
        _: &mut std::task::Context<'_>,
    ) -> std::task::Poll<Result<(), Infallible>> {
        std::task::Poll::Ready(Ok(()))
    }

    fn call(&mut self, request: Request<B>) -> Self::Future {
        let seen = Arc::clone(&self.0);
        Box::pin(async move {
            let (parts, mut body) = request.into_parts();
            let head = format!("{} {} {:?}", parts.method, parts.uri, parts.headers);
            let hint = (body.size_hint().lower(), body.size_hint().upper(), body.is_end_stream());
            seen.lock().unwrap().push(format!("{head} {hint:?} {}", parts.extensions.len()));
            let (frames, answer) = stream();
            tokio::spawn(async move {
                while let Some(frame) = body.frame().await {
                    let frame = frame.map_err(|error| error.to_string().into());
                    seen.lock().unwrap().push(format!("{frame:?}"));
                    let _ = frames.send(frame).await;
                }
            });
            Ok(Response::builder()
                .status(202)
                .header("set-cookie", "a=1")
                .header("set-cookie", "b=2")
                .header("date", "yesterday")
                .header("idempotency-outcome", "retry")
                .header("content-type", "text/event-stream")
                .body(answer)
                .unwrap())
        })
    }
}

/// Sends a request of these frames, and stores everything.
async fn exchange<S, B>(mut service: S, seen: &Mutex<Vec<String>>, chunks: &[Bytes]) -> Exchange
where
    S: Service<Request<Body>, Response = Response<B>, Error = Infallible>,
    B: http_body::Body<Data = Bytes> + Unpin,
    B::Error: std::fmt::Debug,
{
    let (frames, body) = stream();
    let mut trailers = HeaderMap::new();
    trailers.insert("checksum", "7".parse().unwrap());
    let last = Frame::trailers(trailers);
    let request = Request::post("/charges?a=b")
        .header("idempotency-key", "k")
        .header("idempotency-fence", "7")
        .header("accept-encoding", "gzip")
        .body(body)
        .unwrap();
    let (parts, mut answer) = service.call(request).await.unwrap().into_parts();
    let mut got = vec![format!("{} {:?} {:?}", parts.status, parts.headers, answer.size_hint())];
    // One after the other: if anything were collected on the way, this would never end.
    for chunk in chunks.iter().cloned().map(Frame::data).chain([last]) {
        frames.send(Ok(chunk)).await.unwrap();
        let frame = tokio::time::timeout(Duration::from_secs(60), answer.frame()).await;
        got.push(format!("{frame:?}"));
    }
    drop(frames);
    got.push(format!("{:?}", answer.frame().await.is_none()));
    Exchange { request: seen.lock().unwrap().drain(..).collect(), answer: got }
}

#[tokio::test]
async fn a_service_cannot_tell_whether_it_is_observed_and_nor_can_a_client() {
    let events = RecordedEvents::default();
    let harness = events.harness();
    let seen: Arc<Mutex<Vec<String>>> = Arc::default();
    let small = [Bytes::from_static(b"{\"a\":"), Bytes::new(), Bytes::from_static(b"1}")];
    // Far over the limit: two megabytes against one.
    let large: Vec<Bytes> = (0..32).map(|chunk| Bytes::from(vec![chunk; 64 << 10])).collect();
    let mut expected: Vec<&str> = Vec::new();
    for (chunks, would) in [(&small[..], "Run"), (&large, "Refuse(BodyTooLarge)")] {
        let without = exchange(Echo(Arc::clone(&seen)), &seen, chunks).await;
        let observed = layer(&harness).layer(Echo(Arc::clone(&seen)));
        let with = exchange(observed, &seen, chunks).await;
        assert_eq!(with, without);
        assert_eq!(with.answer.len(), chunks.len() + 3);
        expected.push(would);
        events.wait_for(&expected).await;
    }
}

#[tokio::test]
async fn a_store_that_is_away_or_hangs_delays_no_request() {
    for weather in [StoreCondition::Unavailable, StoreCondition::Hanging, StoreCondition::ReplyLost]
    {
        let events = RecordedEvents::default();
        let harness = events.harness();
        harness.store.set_all(weather);
        let app = harness.app_with(layer(&harness), |run| async move { run.to_string() });
        for run in ["1", "2", "3"] {
            // A store that hangs stays so until the end of the test.
            let answer = tokio::time::timeout(Duration::from_secs(60), async {
                send(&app, charge("k", ORDER)).await
            });
            assert_eq!(answer.await.unwrap().text(), run, "{weather:?}");
        }
        assert_eq!(harness.runs(), 3);
        harness.store.set_all(StoreCondition::Available);
    }
}

#[tokio::test]
async fn a_repeat_beside_the_first_would_have_joined_it() {
    let events = RecordedEvents::default();
    let harness = events.harness();
    let gate = Gate::new();
    let held = gate.clone();
    let app = harness.app_with(layer(&harness), move |run| {
        let gate = held.clone();
        async move {
            gate.wait_open().await;
            run.to_string()
        }
    });
    let first = tokio::spawn({
        let app = app.clone();
        async move { send(&app, charge("k", ORDER)).await }
    });
    events.wait_for(&["Run"]).await;
    let second = tokio::spawn(async move { send(&app, charge("k", ORDER)).await });
    events.wait_for(&["Run", "Join"]).await;
    assert_eq!(harness.runs(), 2);
    gate.open();
    let (first, second) = (first.await.unwrap(), second.await.unwrap());
    assert_eq!((first.text(), second.text()), ("1", "2"));
}

#[tokio::test]
async fn after_a_client_hung_up_its_retry_would_have_been_answered() {
    let events = RecordedEvents::default();
    let harness = events.harness();
    let gate = Gate::new();
    let held = gate.clone();
    let app = harness.app_with(layer(&harness), move |run| {
        let gate = held.clone();
        async move {
            gate.wait_open().await;
            run.to_string()
        }
    });
    let impatient = app.clone();
    let first = tokio::spawn(async move { send(&impatient, charge("k", ORDER)).await });
    events.wait_for(&["Run"]).await;
    first.abort();
    assert!(first.await.is_err());
    settled(&harness).await;
    gate.open();
    assert_eq!(send(&app, charge("k", ORDER)).await.text(), "2");
    events.wait_for(&["Run", "Replay"]).await;
}

#[tokio::test]
async fn answers_decide_as_they_would_if_they_were_guarded() {
    let events = || ([("content-type", "text/event-stream")], "data: 1\n\n").into_response();
    let says = || ([("idempotency-outcome", "unknown")], "said").into_response();
    let large = || Body::from(vec![b' '; 2 << 20]).into_response();
    let answers: [(&dyn Fn() -> Response<Body>, &str); 7] = [
        (&|| StatusCode::CREATED.into_response(), "Replay"),
        (&|| StatusCode::TOO_MANY_REQUESTS.into_response(), "Run"),
        (&|| StatusCode::SERVICE_UNAVAILABLE.into_response(), "Refuse(OutcomeUnknown)"),
        (&|| StatusCode::BAD_GATEWAY.into_response(), "Refuse(OutcomeUnknown)"),
        (&says, "Refuse(OutcomeUnknown)"),
        (&events, "Refuse(ResponseNotRetained)"),
        (&large, "Refuse(ResponseNotRetained)"),
    ];
    for (answer, expected) in answers {
        let events = RecordedEvents::default();
        let harness = events.harness();
        let reply = Arc::new(Mutex::new(vec![answer(), answer()]));
        let app = harness.app_with(layer(&harness), move |_| {
            let reply = reply.lock().unwrap().pop().unwrap();
            async move { reply }
        });
        for all in [&["Run"][..], &["Run", expected]] {
            send(&app, charge("k", ORDER)).await;
            events.wait_for(all).await;
            settled(&harness).await;
        }
    }
}

#[tokio::test]
async fn an_error_of_the_service_goes_to_its_caller_and_decides_the_outcome() {
    async fn fails<E>(error: E, expected: &str)
    where
        E: Clone + Into<semel_tower::BoxError> + Send + std::fmt::Debug + 'static,
    {
        let events = RecordedEvents::default();
        let harness = events.harness();
        for all in [&["Run"][..], &["Run", expected]] {
            let error = error.clone();
            let service = tower_fn(move |request: Request<semel_tower::Body<Body>>| {
                let error = error.clone();
                async move {
                    request.into_body().collect().await.unwrap();
                    Err::<Response<Body>, _>(error)
                }
            });
            layer(&harness).layer(service).call(charge("k", ORDER)).await.unwrap_err();
            events.wait_for(all).await;
            settled(&harness).await;
        }
    }
    fails(NeverReached, "Run").await;
    fails(std::fmt::Error, "Refuse(OutcomeUnknown)").await;
}

/// A function as a service.
#[derive(Clone)]
struct Function<F>(F);

const fn tower_fn<F>(function: F) -> Function<F> {
    Function(function)
}

impl<F, Fut, R, T, E> Service<R> for Function<F>
where
    F: FnMut(R) -> Fut,
    Fut: Future<Output = Result<T, E>>,
{
    type Response = T;
    type Error = E;
    type Future = Fut;

    fn poll_ready(&mut self, _: &mut std::task::Context<'_>) -> std::task::Poll<Result<(), E>> {
        std::task::Poll::Ready(Ok(()))
    }

    fn call(&mut self, request: R) -> Fut {
        (self.0)(request)
    }
}

#[tokio::test]
async fn after_a_panic_a_repeat_would_get_outcome_unknown() {
    let events = RecordedEvents::default();
    let harness = events.harness();
    let app = harness.app_with(layer(&harness), |run| async move {
        assert_ne!(run, 1, "the first panics");
        run.to_string()
    });
    let first = app.clone();
    let first = tokio::spawn(async move { send(&first, charge("k", ORDER)).await });
    assert!(first.await.unwrap_err().is_panic());
    events.wait_for(&["Run"]).await;
    settled(&harness).await;
    assert_eq!(send(&app, charge("k", ORDER)).await.text(), "2");
    events.wait_for(&["Run", "Refuse(OutcomeUnknown)"]).await;
}

#[tokio::test]
async fn grpc_is_judged_by_its_trailers() {
    for (status, expected) in [("0", "Replay"), ("16", "Run"), ("2", "Refuse(OutcomeUnknown)")] {
        let events = RecordedEvents::default();
        let harness = events.harness();
        for all in [&["Run"][..], &["Run", expected]] {
            let service = tower_fn(move |request: Request<semel_tower::Body<Body>>| async move {
                request.into_body().collect().await.unwrap();
                let (frames, body) = stream();
                frames.send(data("message")).await.unwrap();
                let mut trailers = HeaderMap::new();
                trailers.insert("grpc-status", status.parse().unwrap());
                frames.send(Ok(Frame::trailers(trailers))).await.unwrap();
                let response = Response::builder().header("content-type", "application/grpc");
                Ok::<_, Infallible>(response.body(body).unwrap())
            });
            let mut call = charge("k", "message");
            *call.version_mut() = http::Version::HTTP_2;
            call.headers_mut().insert("content-type", "application/grpc".parse().unwrap());
            let answer =
                TestResponse::read(layer(&harness).layer(service).call(call).await.unwrap()).await;
            assert_eq!(answer.trailers.unwrap()["grpc-status"], status);
            events.wait_for(all).await;
            settled(&harness).await;
        }
    }
}

#[tokio::test]
async fn a_body_that_the_service_does_not_read_is_unseen() {
    let events = RecordedEvents::default();
    let harness = events.harness();
    let app: Router =
        Router::new().route("/charges", post(async || "unread")).layer(layer(&harness));
    let (frames, body) = stream();
    frames.send(data("{")).await.unwrap();
    let mut request = charge("k", ORDER);
    *request.body_mut() = body;
    assert_eq!(send(&app, request).await.text(), "unread");
    events.wait_for(&["Unread"]).await;
}

#[tokio::test]
async fn observed_records_do_not_count_when_the_layer_starts_to_guard() {
    let events = RecordedEvents::default();
    let harness = events.harness();
    let observing = harness.app_with(layer(&harness), |run| async move { run.to_string() });
    assert_eq!(send(&observing, charge("k", ORDER)).await.text(), "1");
    events.wait_for(&["Run"]).await;
    settled(&harness).await;
    let guarding = harness.second_process();
    let app = guarding.app(|run| async move { run.to_string() });
    // Its first answer was not kept, so it runs, as it would have without the observation.
    assert_eq!(TestResponse::read(begin(&app, charge("k", ORDER)).await).await.text(), "2");
    assert!(send(&app, charge("k", ORDER)).await.is_replayed());
    let records = harness.store.list(&semel::core::ListQuery::default()).await.unwrap().items;
    let mut scopes: Vec<&str> = records.iter().map(|record| record.id.scope.as_str()).collect();
    scopes.sort_unstable();
    assert_eq!(scopes, ["payments", "payments~observed"]);
    assert!(records.iter().all(|record| record.state == StateName::Completed));
}
