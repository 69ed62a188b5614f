//! A payment API on axum whose orders, ledger and idempotency records are one transaction.
//!
//! ```text
//! $ cargo run -p semel-examples --bin payments -- postgres://shop@localhost/shop 127.0.0.1:8080
//!                                        or sqlite:shop.db
//! serving http://127.0.0.1:8080
//!
//! $ pay() {
//! >   curl -i http://127.0.0.1:8080/payments -H 'X-Merchant-Id: ada' \
//! >     -H "Idempotency-Key: $1" -H 'Content-Type: application/json' -d "{\"cents\":$2}"
//! > }
//! $ pay k1 4900
//! HTTP/1.1 201 Created                   {"order":1,"cents":4900}
//! $ pay k1 4900                          the same, and idempotent-replayed: true
//! $ pay k2 2000000
//! HTTP/1.1 402 Payment Required          declined, finally: the order that was begun is gone
//! ```
//!
//! Kill it with `kill -9` in the middle, as often as you like: each key is in the ledger once or
//! not at all, and a client that got `201` gets it again. The word `separate` at the end of the
//! command switches that off: then the business commits by itself and the record follows, as it is
//! usually done, and a kill between the two pays twice.
//!
//! With `outbox MAILBOX`, each payment also sends a message in its transaction, and a relay
//! delivers it to a file whose inbox removes repeats. With `publish MAILBOX`, the service commits
//! the payment by itself and delivers then, and a kill between the two loses the message.

pub mod mailbox;
pub mod postgres;
pub mod sqlite;

use std::{
    path::{Path, PathBuf},
    time::Duration,
};

use axum::{
    Json, Router,
    http::{HeaderName, StatusCode},
    response::{IntoResponse, Response},
};
use semel::{
    Semel,
    core::{OnUnknown, Policy, Scope},
};
use semel_outbox::{InvalidMessage, OutgoingMessage};
use semel_tower::{Callers, IdempotencyLayer, KeyRule};
use serde::{Deserialize, Serialize};
use tokio::{net::TcpListener, time::sleep};

/// How the record of an answer comes to be.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Mode {
    /// By the commit that holds the payment.
    OneTransaction,
    /// By a commit of its own, after that of the payment.
    Separate,
    /// By the commit that holds the payment and a message, for the mailbox in this file.
    Outbox(PathBuf),
    /// As `Separate`, and a message is delivered after the commit of the payment.
    Publish(PathBuf),
}

/// What no card is charged.
const CENTS_MAX: i64 = 1_000_000;

/// To write a receipt takes a moment.
const A_RECEIPT_TAKES: Duration = Duration::from_millis(5);

/// How long a stop waits for what still runs.
const DRAIN: Duration = Duration::from_secs(65);

/// What a client wants to pay.
#[derive(Clone, Copy, Debug, Deserialize)]
pub struct Payment {
    cents: i64,
}

/// The answer to a client that has paid.
#[derive(Clone, Copy, Debug, Serialize)]
pub struct Receipt {
    order: i64,
    cents: i64,
}

impl Receipt {
    async fn write(self) -> Self {
        sleep(A_RECEIPT_TAKES).await;
        self
    }
}

impl IntoResponse for Receipt {
    fn into_response(self) -> Response {
        (StatusCode::CREATED, Json(self)).into_response()
    }
}

/// Why nothing was paid.
#[derive(Debug)]
pub enum Failure {
    /// A final no: it is recorded, and what was written on the way is rolled back.
    Declined,
    /// Everything is rolled back, and a retry runs again.
    Database,
}

impl From<InvalidMessage> for Failure {
    fn from(_: InvalidMessage) -> Self {
        Self::Database
    }
}

impl IntoResponse for Failure {
    fn into_response(self) -> Response {
        match self {
            Self::Declined => (StatusCode::PAYMENT_REQUIRED, "the card is declined\n"),
            Self::Database => (StatusCode::INTERNAL_SERVER_ERROR, "nothing was paid\n"),
        }
        .into_response()
    }
}

/// How long a relay may stay silent until that of a restarted process takes over.
const RELAY_LEASE: Duration = Duration::from_secs(2);

/// The message about a payment.
fn paid(key: &str, receipt: Receipt) -> Result<OutgoingMessage, InvalidMessage> {
    let Receipt { order, cents } = receipt;
    let payload = format!(r#"{{"order":{order},"cents":{cents}}}"#);
    OutgoingMessage::new("payment.made", payload)?.key(key)
}

/// The layer around the route.
fn guarded(semel: &Semel, mode: &Mode) -> anyhow::Result<IdempotencyLayer> {
    let merchants = Callers::header(HeaderName::from_static("x-merchant-id"))?;
    // What was rolled back may run again. Where it was not, this is what pays twice: a process that
    // is gone for a second counts as if it had done nothing.
    let mut policy = Policy { on_unknown: OnUnknown::Rerun, ..Policy::default() };
    if matches!(mode, Mode::Separate | Mode::Publish(_)) {
        policy.lease = Duration::from_secs(1);
    }
    let layer = IdempotencyLayer::new(semel, Scope::new("payments")?, merchants);
    Ok(layer.key(KeyRule::default().required()).policy(policy))
}

/// The service on a database: `postgres://…`, or `sqlite:PATH`.
///
/// # Errors
///
/// If the database cannot be opened.
pub async fn open(database: &str, mode: Mode) -> anyhow::Result<(Router, Semel)> {
    match database.strip_prefix("sqlite:") {
        Some(path) => sqlite::open(Path::new(path), &mode),
        None => postgres::open(database, &mode).await,
    }
}

/// Serves until it is asked to stop, and then lets end what runs.
///
/// # Errors
///
/// If the listener fails.
pub async fn serve(
    app: Router,
    semel: Semel,
    listener: TcpListener,
    asked: impl Future<Output = ()> + Send + 'static,
) -> anyhow::Result<usize> {
    axum::serve(listener, app).with_graceful_shutdown(asked).await?;
    Ok(semel.drain(DRAIN).await)
}
