//! The test harness: guarded services whose runs are counted, requests, answers.

use std::{
    convert::Infallible,
    future::Future,
    pin::Pin,
    sync::{
        Arc,
        atomic::{AtomicU32, Ordering},
    },
    task::{Context, Poll},
};

use axum::{Router, body::Body, response::IntoResponse, routing::post};
use bytes::Bytes;
use http::{HeaderName, Request, Response, StatusCode};
use semel::{
    MemoryStore, Semel,
    core::{Policy, Scope},
};
use semel_testkit::flaky_store::FlakyStore;
pub(crate) use semel_testkit::{gate::Gate, http::TestResponse};
use semel_tower::{Callers, IdempotencyLayer};
use tokio::sync::mpsc;
use tower_layer::Layer;
use tower_service::Service;

/// An engine and a counter of runs.
#[derive(Clone)]
pub(crate) struct Harness {
    pub(crate) semel: Semel,
    pub(crate) store: FlakyStore,
    pub(crate) policy: Policy,
    runs: Arc<AtomicU32>,
}

impl Harness {
    /// On a store in memory, on tokio's clock.
    pub(crate) fn new() -> Self {
        let origin = tokio::time::Instant::now();
        Self::on(FlakyStore::new(MemoryStore::with_clock(move || origin.elapsed())))
    }

    pub(crate) fn on(store: FlakyStore) -> Self {
        let semel = Semel::new(store.clone());
        Self { semel, store, policy: Policy::default(), runs: Arc::default() }
    }

    /// A second process on the same store.
    pub(crate) fn second_process(&self) -> Self {
        Self { semel: Semel::new(self.store.clone()), ..self.clone() }
    }

    pub(crate) fn policy(mut self, policy: Policy) -> Self {
        self.policy = policy;
        self
    }

    pub(crate) fn runs(&self) -> u32 {
        self.runs.load(Ordering::SeqCst)
    }

    /// Counts one run and returns its number.
    pub(crate) fn run(&self) -> u32 {
        self.runs.fetch_add(1, Ordering::SeqCst) + 1
    }

    pub(crate) fn layer(&self) -> IdempotencyLayer {
        let scope = Scope::new("payments").unwrap();
        let merchants = Callers::header(HeaderName::from_static("x-merchant")).unwrap();
        let callers = merchants.or(Callers::anonymous());
        IdempotencyLayer::new(&self.semel, scope, callers).policy(self.policy.clone())
    }

    /// A guarded `POST /charges` with this handler, counted.
    pub(crate) fn app<F, Fut, R>(&self, handler: F) -> Router
    where
        F: Fn(u32) -> Fut + Clone + Send + Sync + 'static,
        Fut: Future<Output = R> + Send + 'static,
        R: IntoResponse,
    {
        self.app_with(self.layer(), handler)
    }

    /// A guarded `POST /charges` that waits for the gate and then answers with the number of its
    /// run.
    pub(crate) fn app_blocked_on(&self, gate: &Gate) -> Router {
        let gate = gate.clone();
        self.app(move |run| {
            let gate = gate.clone();
            async move {
                gate.wait_open().await;
                (StatusCode::CREATED, run.to_string())
            }
        })
    }

    pub(crate) fn app_with<F, Fut, R>(&self, layer: IdempotencyLayer, handler: F) -> Router
    where
        F: Fn(u32) -> Fut + Clone + Send + Sync + 'static,
        Fut: Future<Output = R> + Send + 'static,
        R: IntoResponse,
    {
        let harness = self.clone();
        let handler = move |_body: Bytes| {
            let run = harness.run();
            let handler = handler.clone();
            async move { handler(run).await }
        };
        Router::new().route("/charges", post(handler)).layer(layer)
    }

    /// A guarded service that is not axum's, counted.
    pub(crate) fn service<F, E>(&self, answer: F) -> <IdempotencyLayer as Layer<Plain<F>>>::Service
    where
        F: Fn(Request<semel_tower::Body<Body>>) -> Result<Response<Body>, E> + Clone,
    {
        self.layer().layer(Plain { answer, harness: self.clone() })
    }
}

/// A service that is a function.
#[derive(Clone)]
pub(crate) struct Plain<F> {
    answer: F,
    harness: Harness,
}

impl<F, E> Service<Request<semel_tower::Body<Body>>> for Plain<F>
where
    F: Fn(Request<semel_tower::Body<Body>>) -> Result<Response<Body>, E>,
{
    type Response = Response<Body>;
    type Error = E;
    type Future = std::future::Ready<Result<Response<Body>, E>>;

    fn poll_ready(&mut self, _: &mut Context<'_>) -> Poll<Result<(), E>> {
        Poll::Ready(Ok(()))
    }

    fn call(&mut self, request: Request<semel_tower::Body<Body>>) -> Self::Future {
        self.harness.run();
        std::future::ready((self.answer)(request))
    }
}

/// Sends a request and reads the answer to its end.
pub(crate) async fn send(app: &Router, request: Request<Body>) -> TestResponse {
    TestResponse::read(begin(app, request).await).await
}

/// Sends a request.
pub(crate) async fn begin(app: &Router, request: Request<Body>) -> Response<Body> {
    let Ok(response) = app.clone().call(request).await.map_err(|never: Infallible| match never {});
    response
}

/// `POST /charges` with a key and this JSON.
pub(crate) fn charge(key: &str, body: &'static str) -> Request<Body> {
    Request::post("/charges")
        .header("idempotency-key", key)
        .header("content-type", "application/json")
        .body(Body::from(body))
        .unwrap()
}

pub(crate) const ORDER: &str = r#"{"amount":100,"to":"zoe"}"#;

/// Waits until `condition` holds.
pub(crate) async fn wait_until(condition: impl Fn() -> bool) {
    for _ in 0..10_000 {
        if condition() {
            return;
        }
        tokio::time::sleep(std::time::Duration::from_millis(1)).await;
    }
    panic!("timed out waiting for a condition");
}

/// A body that a test writes frame by frame.
pub(crate) type Frames = mpsc::Sender<Result<http_body::Frame<Bytes>, semel_tower::BoxError>>;

pub(crate) fn data(text: &'static str) -> Result<http_body::Frame<Bytes>, semel_tower::BoxError> {
    Ok(http_body::Frame::data(Bytes::from_static(text.as_bytes())))
}

/// A body without a known size, and where its frames come from.
pub(crate) fn stream() -> (Frames, Body) {
    let (sender, receiver) = mpsc::channel(16);
    (sender, Body::new(Stream(receiver)))
}

struct Stream(mpsc::Receiver<Result<http_body::Frame<Bytes>, semel_tower::BoxError>>);

impl http_body::Body for Stream {
    type Data = Bytes;
    type Error = semel_tower::BoxError;

    fn poll_frame(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
    ) -> Poll<Option<Result<http_body::Frame<Bytes>, Self::Error>>> {
        self.0.poll_recv(context)
    }
}
