//! A checkout service on axum: `POST /checkouts` charges a card and makes an order, once.
//!
//! ```text
//! $ cargo run -p semel-examples --bin checkout -- /tmp/shop 127.0.0.1:8080
//! serving http://127.0.0.1:8080
//!
//! $ checkout() {
//! >   curl -i http://127.0.0.1:8080/checkouts -H 'Authorization: Bearer sk_ada' \
//! >     -H "Idempotency-Key: $1" -H 'Content-Type: application/json' \
//! >     -d "{\"item\":\"tea\",\"cents\":$2,\"card\":\"$3\"}"
//! > }
//! $ checkout k1 4900 tok_visa
//! HTTP/1.1 201 Created                   {"order":1,"cents":4900,"charge":"ch_1"}
//! $ checkout k1 4900 tok_visa            the same, and idempotent-replayed: true
//! $ checkout k1 5900 tok_visa
//! HTTP/1.1 422 Unprocessable Entity      key-reused: one key, one checkout
//! $ checkout k2 100 tok_declined
//! HTTP/1.1 402 Payment Required          final: a repeat gets the same, the card is not tried
//! $ checkout k3 100 tok_far
//! HTTP/1.1 502 Bad Gateway               nothing was charged; send it again:
//! $ checkout k3 100 tok_far
//! HTTP/1.1 201 Created                   {"order":3,"cents":100,"charge":"ch_2"}
//! $ checkout k4 100 tok_silent
//! HTTP/1.1 504 Gateway Timeout           was it charged? Unknown; and from now on:
//! $ checkout k4 100 tok_silent
//! HTTP/1.1 423 Locked                    outcome-unknown, until an operator has found out
//! $ cat /tmp/shop/statement.txt          what was charged, whatever the clients saw
//! ```
//!
//! Send one from many terminals at once, hang up in the middle, stop the service with Ctrl-C while
//! one runs and start it again: each key is charged once. What is needed for that:
//!
//! - **A layer** around the route ([`Shop::router`]), with authentication outside of it, so that it
//!   knows whose keys it keeps.
//! - **A policy for money**: what is unknown is held. No 5xx is a proof that nothing happened.
//! - **A handler that says how it ended**: `201` and `402` are final, `502` and `503` with
//!   `Idempotency-Outcome: retry` free the key, `504` and `500` leave it open.
//! - **Orders that refuse a zombie** by its fence, and a look at the provider before a second
//!   attempt charges.
//! - **A drain** at the end ([`Shop::serve`]), for those whose client has gone but who still run.

mod failure;
mod merchants;
mod orders;
mod provider;

use std::{fs, future::Future, path::Path, time::Duration};

use axum::{
    Extension, Json, Router, extract::State, http::StatusCode, middleware::from_fn_with_state,
    routing::post,
};
use semel::{
    Semel,
    core::{OnUnknown, Policy, Scope, ScopeError},
};
use semel_sqlite::SqliteStore;
use semel_tower::{
    IdempotencyAttempt, IdempotencyFence, IdempotencyKey, IdempotencyLayer, KeyRule,
};
use serde::{Deserialize, Serialize};
use tokio::net::TcpListener;

use failure::Failure;
use merchants::Merchant;
pub use merchants::Merchants;
use orders::{Order, Orders};
use provider::{Provider, ProviderError};

/// How long a stop waits for what still runs.
const DRAIN: Duration = Duration::from_secs(65);

/// What a client wants to buy.
#[derive(Clone, Debug, Deserialize)]
struct Cart {
    item: String,
    cents: u32,
    /// A token that stands for the card: a number would be hashed into the record.
    card: String,
}

/// The answer to a client that has paid.
#[derive(Debug, Serialize)]
struct Receipt {
    order: i64,
    cents: u32,
    charge: String,
}

/// The service. Clones share everything.
#[derive(Clone, Debug)]
pub struct Shop {
    semel: Semel,
    merchants: Merchants,
    orders: Orders,
    provider: Provider,
}

impl Shop {
    /// A shop with its files in this folder, whose provider takes some time for a charge.
    ///
    /// # Errors
    ///
    /// If a file cannot be opened.
    pub fn open(folder: &Path, merchants: Merchants, takes: Duration) -> anyhow::Result<Self> {
        fs::create_dir_all(folder)?;
        Ok(Self {
            semel: Semel::new(SqliteStore::open(folder.join("semel.db"))?),
            merchants,
            orders: Orders::at(&folder.join("shop.db"))?,
            provider: Provider::new(folder.join("statement.txt"), takes),
        })
    }

    /// The engine, for operators.
    #[must_use]
    pub const fn semel(&self) -> &Semel {
        &self.semel
    }

    fn idempotency(&self) -> Result<IdempotencyLayer, ScopeError> {
        let policy = Policy {
            // A card must not be charged again while the outcome is unknown.
            on_unknown: OnUnknown::Hold,
            ..Policy::default()
        };
        Ok(IdempotencyLayer::new(&self.semel, Scope::new("checkouts")?, merchants::callers())
            .key(KeyRule::default().required())
            .policy(policy))
    }

    /// The routes and their layers, the outermost last.
    ///
    /// # Errors
    ///
    /// None, as long as the scope has a valid name.
    pub fn router(&self) -> Result<Router, ScopeError> {
        let authenticate = from_fn_with_state(self.merchants.clone(), merchants::authenticate);
        Ok(Router::new()
            .route("/checkouts", post(check_out))
            .route_layer(self.idempotency()?)
            .route_layer(authenticate)
            .with_state(self.clone()))
    }

    /// Serves until shutdown, then waits for running work, and returns how many
    /// checkouts did not.
    ///
    /// # Errors
    ///
    /// If it cannot serve.
    pub async fn serve(
        self,
        listener: TcpListener,
        stop: impl Future<Output = ()> + Send + 'static,
    ) -> anyhow::Result<usize> {
        axum::serve(listener, self.router()?).with_graceful_shutdown(stop).await?;
        // The server has waited for its clients. A checkout whose client hung up still runs.
        Ok(self.semel.drain(DRAIN).await)
    }

    /// Charges the card, unless an earlier attempt has done so.
    async fn charge(
        &self,
        order: &Order,
        card: &str,
        attempt: u32,
    ) -> Result<String, ProviderError> {
        // Of the order and not of the key: two merchants may choose the same.
        let reference = format!("order-{}", order.number);
        // The operator who released the key may have been wrong about the earlier attempt.
        if attempt > 1
            && let Some(charge) = self.provider.find(&reference).await?
        {
            return Ok(charge);
        }
        self.provider.charge(&reference, card, order.cents).await
    }
}

async fn check_out(
    State(shop): State<Shop>,
    Extension(merchant): Extension<Merchant>,
    IdempotencyKey(key): IdempotencyKey,
    IdempotencyFence(fence): IdempotencyFence,
    IdempotencyAttempt(attempt): IdempotencyAttempt,
    Json(cart): Json<Cart>,
) -> Result<(StatusCode, Json<Receipt>), Failure> {
    let order =
        shop.orders.open(&merchant, &key, fence, &cart).await.map_err(Failure::NotOpened)?;
    let charge = match &order.charge {
        // An earlier run has come this far, and could not say so.
        Some(charge) => charge.clone(),
        None => {
            let charge = shop.charge(&order, &cart.card, attempt).await?;
            shop.orders.pay(order.number, fence, &charge).await.map_err(Failure::NotPaid)?;
            charge
        }
    };
    let receipt = Receipt { order: order.number, cents: order.cents, charge };
    Ok((StatusCode::CREATED, Json(receipt)))
}
