//! A layer that only observes: every request and every answer passes byte for byte, and what would
//! have been done is told.

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
    core::{Problem, StateName, Store, canonical::Pointer},
};
use semel_testkit::unsteady::Weather;
use semel_tower::{IdempotencyLayer, KeyRule, NeverReached};
use tower_layer::Layer as _;
use tower_service::Service;

use crate::bench::{Answer, Bench, Gate, ORDER, begin, charge, data, send, stream, until};

/// What a layer would have done, in order.
#[derive(Clone, Debug, Default)]
struct Told(Arc<Mutex<Vec<String>>>);

impl Observer for Told {
    fn on_event(&self, event: &Event<'_>) {
        let scope = event.scope.map_or("", |scope| scope.as_str());
        // A panic in here would be caught.
        if let EventKind::Asked { .. } | EventKind::StoreFailed { .. } = event.kind {
            // What the store is asked is told as ever; nothing else may happen.
            return;
        }
        let told = if let (EventKind::Would(would), "payments") = (&event.kind, scope) {
            format!("{would:?}")
        } else {
            format!("{scope} {:?}", event.kind)
        };
        self.0.lock().unwrap().push(told);
    }
}

impl Told {
    fn bench(&self) -> Bench {
        let mut bench = Bench::new();
        bench.semel = Semel::builder(bench.store.clone()).observer(self.clone()).build();
        bench
    }

    fn all(&self) -> Vec<String> {
        self.0.lock().unwrap().clone()
    }

    /// Waits for what is told beside the requests.
    async fn say(&self, expected: &[&str]) {
        until(|| self.0.lock().unwrap().len() >= expected.len()).await;
        assert_eq!(self.all(), expected);
    }
}

fn layer(bench: &Bench) -> IdempotencyLayer {
    bench.layer().observe()
}

/// Waits until everything that ran is remembered.
async fn settled(bench: &Bench) {
    assert_eq!(bench.semel.drain(Duration::from_secs(60)).await, 0);
}

#[tokio::test]
async fn every_repeat_runs_and_what_would_have_been_done_is_told() {
    let told = Told::default();
    let bench = told.bench();
    let app = bench.app_with(layer(&bench), |run| async move { run.to_string() });
    for (run, body, expected) in [
        ("1", ORDER, &["Run"][..]),
        ("2", ORDER, &["Run", "Replay"]),
        ("3", "{}", &["Run", "Replay", "Refuse(KeyReused)"]),
        ("4", ORDER, &["Run", "Replay", "Refuse(KeyReused)", "Replay"]),
    ] {
        let answer = send(&app, charge("k", body)).await;
        assert_eq!((answer.text(), answer.is_replayed()), (run, false));
        told.say(expected).await;
        settled(&bench).await;
    }
    assert_eq!(bench.runs(), 4);
}

#[tokio::test]
async fn a_problem_of_a_semel_behind_is_judged_by_all_of_its_answer() {
    // The document as it is sent, and the same with a `type` that the header contradicts.
    for (other_type, expected) in [(false, ["Run", "Run"]), (true, ["Run", "Replay"])] {
        let told = Told::default();
        let bench = told.bench();
        let app = bench.app_with(layer(&bench), move |_| async move {
            let problem = Problem::InProgress;
            let other = Problem::KeyReused.document(None);
            let document = if other_type { other } else { problem.document(None) };
            let headers = [
                ("content-type", "application/problem+json"),
                ("idempotency-problem", problem.slug()),
            ];
            (StatusCode::CONFLICT, headers, document)
        });
        for known in [&expected[..1], &expected] {
            let answer = send(&app, charge("k", ORDER)).await;
            assert_eq!(answer.header("idempotency-problem"), Some("in-progress"), "it passes");
            told.say(known).await;
            settled(&bench).await;
        }
    }
}

#[tokio::test]
async fn what_would_be_refused_before_it_runs_passes_and_is_told() {
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
    let nobody = |request: &mut Request<Body>| {
        request.headers_mut().insert("cookie", "session=7".parse().unwrap());
    };
    type Spoil<'a> = &'a dyn Fn(&mut Request<Body>);
    let spoil: [(Spoil<'_>, bool, &str); 7] = [
        (&malformed, false, "Refuse(KeyMalformed)"),
        (&missing, false, "Keyless"),
        (&missing, true, "Refuse(KeyMissing)"),
        (&broken, false, "Refuse(BodyMalformed)"),
        (&large, false, "Refuse(BodyTooLarge)"),
        (&grows, false, "Refuse(BodyTooLarge)"),
        (&nobody, false, "Refuse(CallerUnidentified)"),
    ];
    for (spoil, required, expected) in spoil {
        let told = Told::default();
        let bench = told.bench();
        let rule = KeyRule::default();
        let layer = layer(&bench).key(if required { rule.required() } else { rule.warn() });
        let limit = axum::extract::DefaultBodyLimit::disable();
        let app = bench.app_with(layer, |run| async move { run.to_string() }).layer(limit);
        let mut request = charge("k", ORDER);
        spoil(&mut request);
        let answer = send(&app, request).await;
        assert_eq!((answer.status, answer.text()), (StatusCode::OK, "1"), "{expected}");
        assert_eq!(answer.header("deprecation"), None);
        told.say(&[expected]).await;
    }
}

#[tokio::test]
async fn a_key_in_the_body_is_found_while_the_service_reads_it() {
    let told = Told::default();
    let bench = told.bench();
    let rule = KeyRule::json(Pointer::parse("/id").unwrap()).required();
    let app = bench.app_with(layer(&bench).key(rule), async |_| StatusCode::NOT_FOUND);
    let event = |body: &'static str| Request::post("/charges").body(Body::from(body)).unwrap();
    // Under such a key no error is kept, so that the second would have run too.
    for expected in [&["Run"][..], &["Run", "Run"]] {
        assert_eq!(send(&app, event(r#"{"id":"evt_1"}"#)).await.status, 404);
        told.say(expected).await;
        settled(&bench).await;
    }
    assert_eq!(send(&app, event(r#"{"no":"id"}"#)).await.status, 404);
    told.say(&["Run", "Run", "Refuse(KeyMissing)"]).await;
}

#[tokio::test]
async fn an_answer_is_judged_by_the_policy_of_the_key_that_was_found() {
    let told = Told::default();
    let bench = told.bench();
    let rule = KeyRule::json(Pointer::parse("/id").unwrap()).or(KeyRule::default());
    let app = bench.app_with(layer(&bench).key(rule), async |_| StatusCode::NOT_FOUND);
    // The body could have named the key, but a header did, under which an error is kept.
    for expected in [&["Run"][..], &["Run", "Replay"]] {
        assert_eq!(send(&app, charge("k", ORDER)).await.status, 404);
        told.say(expected).await;
        settled(&bench).await;
    }
}

/// Everything that a service got and gave: heads, every frame, trailers.
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

/// Sends a request of these frames, and takes down everything.
async fn exchange<S, B>(mut service: S, seen: &Mutex<Vec<String>>, pieces: &[Bytes]) -> Exchange
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
    // One after the other: if anything were collected on the way, this would wait for ever.
    for piece in pieces.iter().cloned().map(Frame::data).chain([last]) {
        frames.send(Ok(piece)).await.unwrap();
        let frame = tokio::time::timeout(Duration::from_secs(60), answer.frame()).await;
        got.push(format!("{frame:?}"));
    }
    drop(frames);
    got.push(format!("{:?}", answer.frame().await.is_none()));
    Exchange { request: seen.lock().unwrap().drain(..).collect(), answer: got }
}

#[tokio::test]
async fn a_service_cannot_tell_whether_it_is_observed_and_nor_can_a_client() {
    let told = Told::default();
    let bench = told.bench();
    let seen: Arc<Mutex<Vec<String>>> = Arc::default();
    let small = [Bytes::from_static(b"{\"a\":"), Bytes::new(), Bytes::from_static(b"1}")];
    // Far over the limit: two megabytes against one.
    let large: Vec<Bytes> = (0..32).map(|piece| Bytes::from(vec![piece; 64 << 10])).collect();
    let mut expected: Vec<&str> = Vec::new();
    for (pieces, would) in [(&small[..], "Run"), (&large, "Refuse(BodyTooLarge)")] {
        let without = exchange(Echo(Arc::clone(&seen)), &seen, pieces).await;
        let observed = layer(&bench).layer(Echo(Arc::clone(&seen)));
        let with = exchange(observed, &seen, pieces).await;
        assert_eq!(with, without);
        assert_eq!(with.answer.len(), pieces.len() + 3);
        expected.push(would);
        told.say(&expected).await;
    }
}

#[tokio::test]
async fn a_store_that_is_away_or_hangs_is_not_noticed_by_anybody() {
    for weather in [Weather::Away, Weather::Stuck, Weather::Deaf] {
        let told = Told::default();
        let bench = told.bench();
        bench.store.set_all(weather);
        let app = bench.app_with(layer(&bench), |run| async move { run.to_string() });
        for run in ["1", "2", "3"] {
            // A store that hangs stays so until the end of the test.
            let answer = tokio::time::timeout(Duration::from_secs(60), async {
                send(&app, charge("k", ORDER)).await
            });
            assert_eq!(answer.await.unwrap().text(), run, "{weather:?}");
        }
        assert_eq!(bench.runs(), 3);
        bench.store.set_all(Weather::Fair);
    }
}

#[tokio::test]
async fn a_repeat_beside_the_first_would_have_joined_it() {
    let told = Told::default();
    let bench = told.bench();
    let gate = Gate::new();
    let held = gate.clone();
    let app = bench.app_with(layer(&bench), move |run| {
        let gate = held.clone();
        async move {
            gate.pass().await;
            run.to_string()
        }
    });
    let first = tokio::spawn({
        let app = app.clone();
        async move { send(&app, charge("k", ORDER)).await }
    });
    told.say(&["Run"]).await;
    let second = tokio::spawn(async move { send(&app, charge("k", ORDER)).await });
    told.say(&["Run", "Join"]).await;
    assert_eq!(bench.runs(), 2);
    gate.open();
    let (first, second) = (first.await.unwrap(), second.await.unwrap());
    assert_eq!((first.text(), second.text()), ("1", "2"));
}

#[tokio::test]
async fn after_a_client_hung_up_its_retry_would_have_been_answered() {
    let told = Told::default();
    let bench = told.bench();
    let gate = Gate::new();
    let held = gate.clone();
    let app = bench.app_with(layer(&bench), move |run| {
        let gate = held.clone();
        async move {
            gate.pass().await;
            run.to_string()
        }
    });
    let impatient = app.clone();
    let first = tokio::spawn(async move { send(&impatient, charge("k", ORDER)).await });
    told.say(&["Run"]).await;
    first.abort();
    assert!(first.await.is_err());
    settled(&bench).await;
    gate.open();
    assert_eq!(send(&app, charge("k", ORDER)).await.text(), "2");
    told.say(&["Run", "Replay"]).await;
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
        let told = Told::default();
        let bench = told.bench();
        let reply = Arc::new(Mutex::new(vec![answer(), answer()]));
        let app = bench.app_with(layer(&bench), move |_| {
            let reply = reply.lock().unwrap().pop().unwrap();
            async move { reply }
        });
        for all in [&["Run"][..], &["Run", expected]] {
            send(&app, charge("k", ORDER)).await;
            told.say(all).await;
            settled(&bench).await;
        }
    }
}

#[tokio::test]
async fn an_error_of_the_service_goes_to_whoever_called_and_decides_too() {
    async fn fails<E>(error: E, expected: &str)
    where
        E: Clone + Into<semel_tower::BoxError> + Send + std::fmt::Debug + 'static,
    {
        let told = Told::default();
        let bench = told.bench();
        for all in [&["Run"][..], &["Run", expected]] {
            let error = error.clone();
            let service = tower_fn(move |request: Request<semel_tower::Body<Body>>| {
                let error = error.clone();
                async move {
                    request.into_body().collect().await.unwrap();
                    Err::<Response<Body>, _>(error)
                }
            });
            layer(&bench).layer(service).call(charge("k", ORDER)).await.unwrap_err();
            told.say(all).await;
            settled(&bench).await;
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
async fn after_a_panic_a_repeat_would_be_told_that_nobody_knows() {
    let told = Told::default();
    let bench = told.bench();
    let app = bench.app_with(layer(&bench), |run| async move {
        assert_ne!(run, 1, "the first panics");
        run.to_string()
    });
    let first = app.clone();
    let first = tokio::spawn(async move { send(&first, charge("k", ORDER)).await });
    assert!(first.await.unwrap_err().is_panic());
    told.say(&["Run"]).await;
    settled(&bench).await;
    assert_eq!(send(&app, charge("k", ORDER)).await.text(), "2");
    told.say(&["Run", "Refuse(OutcomeUnknown)"]).await;
}

#[tokio::test]
async fn grpc_is_judged_by_its_trailers() {
    for (status, expected) in [("0", "Replay"), ("16", "Run"), ("2", "Refuse(OutcomeUnknown)")] {
        let told = Told::default();
        let bench = told.bench();
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
            call.headers_mut().insert("content-type", "application/grpc".parse().unwrap());
            let answer = Answer::read(layer(&bench).layer(service).call(call).await.unwrap()).await;
            assert_eq!(answer.trailers.unwrap()["grpc-status"], status);
            told.say(all).await;
            settled(&bench).await;
        }
    }
}

#[tokio::test]
async fn a_body_that_the_service_does_not_read_is_unseen() {
    let told = Told::default();
    let bench = told.bench();
    let app: Router = Router::new().route("/charges", post(async || "unread")).layer(layer(&bench));
    let (frames, body) = stream();
    frames.send(data("{")).await.unwrap();
    let mut request = charge("k", ORDER);
    *request.body_mut() = body;
    assert_eq!(send(&app, request).await.text(), "unread");
    told.say(&["Unseen"]).await;
}

#[tokio::test]
async fn what_was_observed_does_not_count_when_the_layer_begins_to_guard() {
    let told = Told::default();
    let bench = told.bench();
    let observing = bench.app_with(layer(&bench), |run| async move { run.to_string() });
    assert_eq!(send(&observing, charge("k", ORDER)).await.text(), "1");
    told.say(&["Run"]).await;
    settled(&bench).await;
    let guarding = bench.neighbour();
    let app = guarding.app(|run| async move { run.to_string() });
    // Nobody kept its first answer, so it runs: as it would have without the observation.
    assert_eq!(Answer::read(begin(&app, charge("k", ORDER)).await).await.text(), "2");
    assert!(send(&app, charge("k", ORDER)).await.is_replayed());
    let records = bench.store.list(&semel::core::ListQuery::default()).await.unwrap().items;
    let mut scopes: Vec<&str> = records.iter().map(|record| record.id.scope.as_str()).collect();
    scopes.sort_unstable();
    assert_eq!(scopes, ["payments", "payments~observed"]);
    assert!(records.iter().all(|record| record.state == StateName::Completed));
}
