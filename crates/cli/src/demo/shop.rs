//! The payment API of the demo. It has no idempotency: it carries out every request.

use std::net::SocketAddr;

use axum::{
    Form, Router,
    extract::State,
    http::{StatusCode, header},
    response::{IntoResponse, Response},
    routing::{get, post},
};
use tokio::{net::TcpListener, task::JoinSet};

use super::{
    cards::{Cards, Charge, ConnectionBroken},
    orders::Cents,
};

/// A payment API at work, until it is dropped.
#[derive(Debug)]
pub(super) struct Shop {
    pub(super) address: SocketAddr,
    pub(super) cards: Cards,
    _server: JoinSet<()>,
}

/// What `POST /charges` takes.
#[derive(Debug, serde::Deserialize)]
struct PaymentForm {
    #[serde(default = "guest")]
    customer: String,
    cents: u64,
}

fn guest() -> String {
    "guest".to_owned()
}

impl Shop {
    /// Opens one with an empty ledger, on a free port of this machine.
    pub(super) async fn open() -> anyhow::Result<Self> {
        let listener = TcpListener::bind(("127.0.0.1", 0)).await?;
        let address = listener.local_addr()?;
        let cards = Cards::new();
        let router = Router::new()
            .route("/charges", post(charge))
            .route("/ledger", get(ledger))
            .with_state(cards.clone());
        let mut server = JoinSet::new();
        server.spawn(async move {
            // It serves until the task is aborted, and never ends with an error.
            let _ = axum::serve(listener, router).await;
        });
        Ok(Self { address, cards, _server: server })
    }
}

async fn charge(State(cards): State<Cards>, Form(payment): Form<PaymentForm>) -> Response {
    match cards.charge(&payment.customer, Cents(payment.cents)).await {
        Ok(charge) => created(&charge),
        Err(ConnectionBroken) => {
            (StatusCode::GATEWAY_TIMEOUT, "no answer from the card network\n").into_response()
        }
    }
}

fn created(charge: &Charge) -> Response {
    let json = [(header::CONTENT_TYPE, "application/json")];
    (StatusCode::CREATED, json, charge.receipt()).into_response()
}

async fn ledger(State(cards): State<Cards>) -> String {
    let line = |charge: Charge| {
        let Charge { id, customer, amount } = charge;
        format!("{id:<6} {customer:<10} {amount:>9}\n")
    };
    cards.ledger().into_iter().map(line).collect()
}
