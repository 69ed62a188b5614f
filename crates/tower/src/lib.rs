//! Makes an HTTP service retry-safe: an idempotency layer for axum, hyper, tonic and anything else
//! that is a `tower::Service` over `http` types.
//!
//! A network cannot distinguish "my request failed" from "my request succeeded and the answer was
//! lost", so clients retry, and a retried `POST /charges` charges twice. Behind this layer it does
//! not: a client names its operation with an `Idempotency-Key`, the operation runs once, and every
//! repeat gets the first answer back, byte for byte.
//!
//! # Getting started
//!
//! ```text
//! cargo add semel semel-tower semel-sqlite
//! cargo add axum tokio --features tokio/full
//! ```
//!
//! ```no_run
//! use std::{env, time::Duration};
//!
//! use axum::{Router, routing::post};
//! use semel::{Semel, core::Scope};
//! use semel_sqlite::SqliteStore;
//! use semel_tower::{Callers, IdempotencyLayer, KeyRule, Secret};
//!
//! async fn charge() -> &'static str {
//!     // Talk to the bank.
//!     "charged"
//! }
//!
//! #[tokio::main]
//! async fn main() -> Result<(), Box<dyn std::error::Error>> {
//!     // One engine for the whole process, on a store that survives a crash.
//!     let semel = Semel::new(SqliteStore::open("semel.db")?);
//!
//!     // Random, and the same in every process and after every restart.
//!     let secret = Secret::new(env::var("CALLER_SECRET")?)?;
//!     let callers = Callers::authorization(&secret);
//!
//!     let idempotency = IdempotencyLayer::new(&semel, Scope::new("payments")?, callers)
//!         .key(KeyRule::default().required());
//!     let app: Router = Router::new().route("/charges", post(charge)).route_layer(idempotency);
//!
//!     let listener = tokio::net::TcpListener::bind("127.0.0.1:3000").await?;
//!     let stop = async {
//!         let _ = tokio::signal::ctrl_c().await;
//!     };
//!     axum::serve(listener, app).with_graceful_shutdown(stop).await?;
//!
//!     // The server has waited for its clients. An operation whose client disconnected still runs.
//!     semel.drain(Duration::from_secs(65)).await;
//!     Ok(())
//! }
//! ```
//!
//! Send it twice, and it has charged once; the second answer says `idempotent-replayed: true`:
//!
//! ```text
//! curl -i http://127.0.0.1:3000/charges -d amount=100 \
//!   -H 'Authorization: Bearer sk_live_51H' \
//!   -H 'Idempotency-Key: 8e03978e-40d5-43dd-bc93-6894a57f9324'
//! ```
//!
//! In a test, take a store in memory and call the service itself:
//!
//! ```
//! # use axum::{Router, routing::post};
//! use axum::{body::Body, http::Request};
//! use semel::MemoryStore;
//! # use semel::{Semel, core::Scope};
//! # use semel_tower::{Callers, IdempotencyLayer, KeyRule, Secret};
//! use tower_service::Service;
//! # async fn charge() -> &'static str { "charged" }
//! # #[tokio::main(flavor = "current_thread")]
//! # async fn main() -> Result<(), Box<dyn std::error::Error>> {
//! # let callers = Callers::authorization(&Secret::new("9f86d081884c7d659a2feaa0c55ad015")?);
//!
//! let semel = Semel::new(MemoryStore::new());
//! # let idempotency = IdempotencyLayer::new(&semel, Scope::new("payments")?, callers)
//! #     .key(KeyRule::default().required());
//! // The layer as above.
//! let mut app: Router = Router::new().route("/charges", post(charge)).route_layer(idempotency);
//!
//! let request = || {
//!     Request::post("/charges")
//!         .header("authorization", "Bearer sk_live_51H")
//!         .header("idempotency-key", "8e03978e-40d5-43dd-bc93-6894a57f9324")
//!         .body(Body::from("amount=100"))
//! };
//! let first = app.call(request()?).await?;
//! assert_eq!(first.status(), 200);
//! let again = app.call(request()?).await?;
//! assert_eq!(again.status(), 200);
//! assert_eq!(again.headers()["idempotent-replayed"], "true");
//! # Ok(())
//! # }
//! ```
//!
//! # How a request is handled
//!
//! POST and PATCH requests that carry a key are guarded ([`IdempotencyLayer::methods`] and
//! [`IdempotencyLayer::key`] change this); everything else passes through. A guarded
//! request
//!
//! - **runs**, if its key is new. Its client gets the answer after it is recorded;
//! - **joins**, if the same request is running: it waits for the answer of the first, up to
//!   [`Policy::wait`](semel::core::Policy::wait), and gets 409 `in-progress` after that;
//! - is a **replay**, if it was answered before: same status, same bytes, same headers, and
//!   `Idempotent-Replayed: true`;
//! - is **refused** with 422 `key-reused`, if the key was used for another request: another method,
//!   host, path, query or body;
//! - gets 423 `outcome-unknown`, if the outcome of the first one is unknown. Nothing runs again
//!   until an operator has resolved it: see [`OnUnknown`](semel::core::OnUnknown).
//!
//! A refusal is a problem document (RFC 9457) with an `error` member that Stripe's SDKs understand.
//! `x-should-retry` and `stripe-should-retry` say whether to send the same request again, by
//! [`Problem::retry_after`](semel::core::Problem::retry_after). An operation that ran although the
//! store was unavailable is marked with
//! [`Idempotency-Guarded: false`](header::IDEMPOTENCY_GUARDED).
//!
//! ```
//! # use axum::{Router, body::Body, http::{HeaderName, Request}, routing::post};
//! # use semel::{MemoryStore, Semel, core::Scope};
//! # use semel_tower::{Callers, IdempotencyLayer, KeyRule};
//! # use tower_service::Service;
//! # #[tokio::main(flavor = "current_thread")]
//! # async fn main() -> Result<(), Box<dyn std::error::Error>> {
//! # let semel = Semel::new(MemoryStore::new());
//! let merchants = Callers::header(HeaderName::from_static("x-merchant-id"))?;
//! let layer = IdempotencyLayer::new(&semel, Scope::new("payments")?, merchants)
//!     .key(KeyRule::default().required());
//! let app: Router = Router::new().route("/charges", post(|| async { "charged" })).layer(layer);
//! # let mut app = app;
//!
//! let charge = |key: Option<&str>, merchant: &str, body: &'static str| {
//!     let request = Request::post("/charges")
//!         .header("x-merchant-id", merchant)
//!         .header("content-type", "application/json");
//!     let request = match key {
//!         Some(key) => request.header("idempotency-key", key),
//!         None => request,
//!     };
//!     request.body(Body::from(body))
//! };
//!
//! let first = app.call(charge(Some("k"), "7", r#"{"amount":100,"to":"zoe"}"#)?).await?;
//! assert_eq!(first.status(), 200);
//!
//! // Another spelling of the same JSON is the same request.
//! let again = app.call(charge(Some("k"), "7", r#"{ "to": "zoe", "amount": 1e2 }"#)?).await?;
//! assert_eq!(again.headers()["idempotent-replayed"], "true");
//!
//! let other = app.call(charge(Some("k"), "7", r#"{"amount":1000,"to":"zoe"}"#)?).await?;
//! assert_eq!(other.status(), 422);
//!
//! // Keys of another merchant are separate.
//! let other = app.call(charge(Some("k"), "8", r#"{"amount":1000,"to":"zoe"}"#)?).await?;
//! assert_eq!(other.status(), 200);
//!
//! let missing = app.call(charge(None, "7", "{}")?).await?;
//! assert_eq!(missing.status(), 400);
//! assert_eq!(missing.headers()["content-type"], "application/problem+json");
//! # Ok(())
//! # }
//! ```
//!
//! # Callers
//!
//! Two customers may choose the same key, and must not get each other's answers. So each layer
//! needs [`Callers`], the rules that identify the caller of a request; without them it does not
//! compile. A request without an identified caller is refused with 403 `caller-unidentified`.
//!
//! **Pitfall:** a JSON Web Token is reissued every few minutes, so it would name a different caller
//! at every retry, and the retry would run again. [`Callers::authorization`] refuses it. Verify the
//! token in a layer of your own, outside this one, and take the caller from its claims:
//!
//! ```
//! use semel::core::Caller;
//! use semel_tower::Callers;
//!
//! #[derive(Clone)]
//! struct Claims { subject: String }
//!
//! let callers = Callers::from_fn(|request| {
//!     let claims = request.extensions.get::<Claims>();
//!     // An invalid subject is refused; it never passes as anonymous.
//!     claims.map(|claims| Caller::new(&claims.subject)).transpose()
//! });
//! # let _ = callers;
//! ```
//!
//! Where one credential acts for several accounts, or each host is a tenant, combine the rules:
//! `Callers::authorization(&secret).and(Callers::host())`. See [`Callers::and`].
//!
//! # How an answer is judged
//!
//! The first row that fits:
//!
//! | answer | record |
//! |---|---|
//! | declares its outcome, see below | as declared |
//! | 307, 308, 421: nothing ran here | forgotten: the key is free for any request |
//! | 401, 403, 405, 425, 429, 501 | released: a retry runs |
//! | a 4xx with `Retry-After` or `x-should-retry: true` | released |
//! | any other 2xx, 3xx or 4xx, but 408 and 499 | completed: a repeat gets the answer again |
//! | 408, 499 and every other 5xx; a handler that fails or panics | unknown: held |
//!
//! 408, 500 and 503 prove nothing, because timeouts of frameworks and proxies send them while the
//! work continues. [`Policy`](semel::core::Policy) changes all of that. A handler that knows more
//! declares the outcome, with the header `Idempotency-Outcome` (`completed`, `retry`, `forget` or
//! `unknown`) or with a [`Verdict`](semel::core::Verdict) as an extension of its response. `retry`
//! and `forget` count from status 400 on; on a success the outcome is unknown, and the
//! [`Observer`](semel::Observer) is notified of the contradiction.
//!
//! ```
//! # use axum::{Router, body::Body, http::Request, routing::post};
//! # use semel::{MemoryStore, Semel, core::Scope};
//! # use semel_tower::{Callers, IdempotencyLayer};
//! # use tower_service::Service;
//! use axum::{Extension, http::StatusCode};
//! use semel::core::Verdict;
//!
//! /// The transaction was rolled back: nothing happened.
//! async fn charge() -> (StatusCode, Extension<Verdict>, &'static str) {
//!     (StatusCode::SERVICE_UNAVAILABLE, Extension(Verdict::Retry), "try again")
//! }
//!
//! # #[tokio::main(flavor = "current_thread")]
//! # async fn main() -> Result<(), Box<dyn std::error::Error>> {
//! # let semel = Semel::new(MemoryStore::new());
//! # let layer = IdempotencyLayer::new(&semel, Scope::new("payments")?, Callers::anonymous());
//! # let mut app: Router = Router::new().route("/charges", post(charge)).layer(layer);
//! # let request = || {
//! #     Request::post("/charges").header("idempotency-key", "k").body(Body::empty())
//! # };
//! assert_eq!(app.call(request()?).await?.status(), 503);
//! // Without the verdict the key would be held, and this would be `outcome-unknown`.
//! assert_eq!(app.call(request()?).await?.status(), 503);
//! # Ok(())
//! # }
//! ```
//!
//! **Pitfall:** a layer that turns a panic into a 500 makes it look like any other. Where 500 is
//! on [`Policy::release`](semel::core::Policy::release), put that layer outside this one.
//!
//! # What is replayed
//!
//! Status, body, trailers, and the headers that describe the answer: `Content-*`, `Location`,
//! `ETag`, `Last-Modified`, `Link`, `Vary`, `Cache-Control`, `Access-Control-*` and what
//! [`IdempotencyLayer::keep_headers`] adds, in their order and number. `Set-Cookie`, `Date` and
//! their like go to the first client only. A guarded handler is asked for an answer without content
//! coding, so that a replay fits every client; compress outside this layer.
//!
//! **An answer larger** than
//! [`Policy::response_bytes_max`](semel::core::Policy::response_bytes_max), `text/event-stream`,
//! and an answer with the extension [`Streaming`] are streamed through. The last chunk is held
//! back until it is recorded that the operation ran. The answer itself is not recorded, so a repeat
//! gets 410 `response-not-retained`.
//!
//! **Sensitive content** need not be stored: [`IdempotencyLayer::record`] leaves out the body, or
//! replaces members of it. Replays that lack one say `Idempotent-Replayed: redacted`. A request
//! that joined the first one gets what a repeat gets.
//!
//! **A truncated answer** is judged by its head where its length was known
//! (`Content-Length`, no `Trailer`, not gRPC), and is not retained. Otherwise the outcome is
//! unknown.
//!
//! If the operation cannot be recorded, the body ends with an error, so that the client sees a
//! truncated answer. **Pitfall:** HTTP/1.0 has neither chunks nor a length for a stream, so there a
//! truncated stream looks complete. Do not stream to HTTP/1.0 clients.
//!
//! ```
//! # use axum::{Router, body::Body, http::Request, routing::post};
//! # use semel::{MemoryStore, Semel, core::Scope};
//! # use semel_tower::{Callers, IdempotencyLayer};
//! # use tower_service::Service;
//! use axum::{Extension, response::IntoResponse};
//! use semel_tower::Streaming;
//!
//! async fn export() -> impl IntoResponse {
//!     (Extension(Streaming), "line after line")
//! }
//!
//! # #[tokio::main(flavor = "current_thread")]
//! # async fn main() -> Result<(), Box<dyn std::error::Error>> {
//! # let semel = Semel::new(MemoryStore::new());
//! # let layer = IdempotencyLayer::new(&semel, Scope::new("exports")?, Callers::anonymous());
//! # let mut app: Router = Router::new().route("/exports", post(export)).layer(layer);
//! # let request = || {
//! #     Request::post("/exports").header("idempotency-key", "k").body(Body::empty())
//! # };
//! let first = app.call(request()?).await?;
//! assert_eq!(first.status(), 200);
//! assert_eq!(axum::body::to_bytes(first.into_body(), 100).await?, "line after line");
//! assert_eq!(app.call(request()?).await?.status(), 410);
//! # Ok(())
//! # }
//! ```
//!
//! # Observing
//!
//! In front of a service with existing traffic, begin with [`IdempotencyLayer::observe`]: every
//! request passes as if there were no layer, and an [`Observer`](semel::Observer) receives what the
//! layer would have done with it.
//!
//! # Disconnects
//!
//! A client that disconnects changes nothing. The operation runs in a task of the engine and is
//! recorded, and a retry gets its answer. An answer without a reader is still read for a limited
//! time ([`IdempotencyLayer::read_on`]).
//!
//! # In the handler
//!
//! With the feature `axum`, which is on by default, a handler extracts [`IdempotencyKey`],
//! [`IdempotencyFence`] and [`IdempotencyAttempt`], and its transaction as a [`Tx`] where the store
//! shares it. The first three are also in the [`Lease`] among the extensions of the request, which
//! derives keys for calls that the handler makes in turn: do not forward a client's own key, since
//! another client may send the same.
//!
//! ```
//! # use axum::{Router, body::Body, http::Request, routing::post};
//! # use semel::{MemoryStore, Semel, core::Scope};
//! # use semel_tower::{Callers, IdempotencyLayer};
//! # use tower_service::Service;
//! use axum::Extension;
//! use semel_tower::{IdempotencyAttempt, Lease};
//!
//! async fn charge(attempt: IdempotencyAttempt, Extension(lease): Extension<Lease>) -> String {
//!     // From the second attempt on, check what the earlier one did.
//!     format!("attempt {}; the bank gets the key {}", attempt.0, lease.key_for("bank"))
//! }
//!
//! # #[tokio::main(flavor = "current_thread")]
//! # async fn main() -> Result<(), Box<dyn std::error::Error>> {
//! # let semel = Semel::new(MemoryStore::new());
//! # let layer = IdempotencyLayer::new(&semel, Scope::new("payments")?, Callers::anonymous());
//! # let mut app: Router = Router::new().route("/charges", post(charge)).layer(layer);
//! # let request = Request::post("/charges").header("idempotency-key", "k").body(Body::empty())?;
//! let answer = app.call(request).await?;
//! assert_eq!(answer.status(), 200);
//! let said = axum::body::to_bytes(answer.into_body(), 1000).await?;
//! assert!(said.starts_with(b"attempt 1; the bank gets the key "));
//! # Ok(())
//! # }
//! ```
//!
//! # Webhooks
//!
//! [`IdempotencyLayer::inbox`] guards a receiver of signed webhooks: Standard Webhooks, Svix,
//! Stripe, GitHub, or any other sender that signs with HMAC. A request without a valid signature is
//! refused with 401 `signature-invalid` before a store call, so a forgery cannot use up the key of
//! the genuine event; and each genuine event runs once, however often it is delivered.
//!
//! ```
//! # use axum::{Router, body::Body, http::Request, routing::post};
//! # use semel::{MemoryStore, Semel, core::Scope};
//! # use tower_service::Service;
//! use semel_tower::{IdempotencyLayer, Signature};
//!
//! # #[tokio::main(flavor = "current_thread")]
//! # async fn main() -> Result<(), Box<dyn std::error::Error>> {
//! # let semel = Semel::new(MemoryStore::new());
//! let signature = Signature::github(["It's a Secret to Everybody"])?;
//! let inbox = IdempotencyLayer::inbox(&semel, Scope::new("webhooks.github")?, signature);
//! let app: Router = Router::new().route("/", post(|| async { "merged" })).layer(inbox);
//! # let mut app = app;
//!
//! let unsigned = Request::post("/").header("x-github-delivery", "1").body(Body::from("{}"))?;
//! assert_eq!(app.call(unsigned).await?.status(), 401);
//! # Ok(())
//! # }
//! ```
//!
//! # gRPC
//!
//! A request over HTTP/2 whose content type is `application/grpc` is guarded by the same rules,
//! with the key in its metadata. An answer with that content type is judged by `grpc-status`, any
//! other answer by its HTTP status. A refusal is an answer of trailers only with `grpc-status`,
//! `grpc-message`, `idempotency-problem` and `grpc-retry-pushback-ms`. Over HTTP/1.1 the content
//! type means nothing. A layer that translates gRPC-Web belongs outside this one.
//!
//! **Pitfall:** a guarded request is read to its end before the handler starts. So a call that
//! streams for long, or in both directions, must not carry a key: its client would wait for an
//! answer, and its handler for the end. An answer that is a stream of messages needs [`Streaming`]
//! among its extensions, or it is collected before its first message is sent.
//!
//! # Features
//!
//! | feature | default | what it is for |
//! |---|---|---|
//! | `axum` | on | extractors, and the whole path of a nested route |
//! | `compression` | on | decodes gzip and deflate before a body is fingerprinted |
//! | `transactional` | on | the extractor of a transaction that carries the record |
//! | `webhooks` | on | signatures of webhooks |
//! | `jwt`, `jwks-url` | off | callers that a verified JSON Web Token names |
//! | `mtls` | off | callers that a client certificate names |
//!
//! Without `compression` a compressed body is compared as it was sent.
//!
//! # The order of layers
//!
//! Outside go layers that concern one request: tracing, timeouts of the client, CORS (allow
//! `Idempotency-Key`, expose `Idempotent-Replayed`), compression, authentication, rate limits.
//! Inside goes what must happen once. A timeout *inside* interrupts an operation: whether it
//! answers 408, 503 or 504, the outcome is unknown and the key is held.
//!
//! A guarded handler runs in a task of its own, so that a disconnect does not cancel it: `tracing`
//! spans and task-locals of outer layers do not reach it, extensions of the request do. The server
//! limits how long a client may take to send its body.
//!
//! In axum, [`route_layer`](axum::Router::route_layer) guards routes only, and
//! [`layer`](axum::Router::layer) guards the fallback too, whose 404 would be recorded.

#![cfg_attr(
    not(all(feature = "axum", feature = "transactional", feature = "webhooks")),
    allow(rustdoc::broken_intra_doc_links, reason = "the links are those of the default features")
)]

mod body;
mod buffered_body;
mod caller;
mod capture;
mod collect;
mod config;
mod content_coding;
mod cors;
mod deadline;
#[cfg(feature = "axum")]
mod extract;
mod former;
mod future;
mod grpc;
mod guard;
mod handler_signals;
pub mod header;
mod held_status;
mod host;
mod issued_key;
mod key;
mod key_issuer;
mod layer;
mod lookup;
mod lookup_path;
mod memory;
mod observe;
mod offload;
mod outcome;
mod refusal;
mod replay_headers;
mod reply;
mod request;
mod response_facts;
mod service;
#[cfg(feature = "webhooks")]
mod signature;
#[cfg(not(feature = "webhooks"))]
#[path = "signature/disabled.rs"]
mod signature;
mod subject;
mod tee_body;
#[cfg(test)]
mod testing;
mod trace_parent;
#[cfg(all(feature = "axum", feature = "transactional"))]
mod transaction;
mod upstream_problem;
mod velocity;

pub use body::Body;
#[cfg(feature = "mtls")]
pub use caller::ClientCertificateError;
#[cfg(feature = "jwks-url")]
pub use caller::check_jwks_url;
pub use caller::{
    Callers, CallersError, CertificateField, ClientCertificate, ClientContext, Network,
    NetworkError, SECRET_BYTES_MIN, Secret, SecretError,
};
#[cfg(feature = "jwt")]
pub use caller::{Jwks, JwksError, JwtVerifier};
pub use config::{READ_ON_DEFAULT, RecordContent};
pub use cors::{AllowedOrigin, AllowedOriginError, Cors, ResponseCors, preflighted_method};
pub use deadline::{DeadlineHeader, DeadlineRule};
#[cfg(feature = "axum")]
pub use extract::{IdempotencyAttempt, IdempotencyFence, IdempotencyKey, NotGuarded};
pub use future::ResponseFuture;
pub use grpc::is_grpc_request;
pub use handler_signals::{CallBroken, EndsWithConnection, NeverReached, Streaming};
pub use held_status::HeldStatus;
pub use issued_key::{ISSUED_KEY_BYTES, IssuedKeys};
pub use key::{KeyLocation, KeyRule};
pub use layer::IdempotencyLayer;
pub use lookup_path::{LookupPath, LookupPathError};
pub use memory::{MemoryBudget, PeerMemory};
pub use outcome::{RequestOutcome, RequestOutcomeKind};
pub use refusal::CallerFailure;
pub use replay_headers::may_be_kept;
pub use reply::{add_retry_advice, refusal, refusal_in};
pub use semel::{INBOX_RETENTION, Lease, Sender};
pub use service::Idempotency;
#[cfg(feature = "webhooks")]
pub use signature::{
    Encoding, HmacAlgorithm, HmacScheme, Signature, SignatureError, SignatureInvalid, TOLERANCE,
};
pub use subject::{ABOUT_BYTES_MAX, CAPTURED_BYTES_MAX, CaptureSource, Subject};
pub use trace_parent::TraceParent;
#[cfg(all(feature = "axum", feature = "transactional"))]
pub use transaction::Tx;
pub use velocity::{LimitAction, LimitValue, LimitsUnsupported, VelocityRule};

/// An error of any kind, as bodies and inner services have it.
pub type BoxError = Box<dyn std::error::Error + Send + Sync>;
