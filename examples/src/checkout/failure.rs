//! How a checkout ends that makes no order, and what that says about the money.

use axum::{
    Json,
    http::StatusCode,
    response::{IntoResponse, Response},
};
use semel_tower::header::IDEMPOTENCY_OUTCOME;
use serde::Serialize;

use super::{orders::OrdersError, provider::ProviderError};

/// Why there is no receipt.
#[derive(Debug, thiserror::Error)]
pub(super) enum Failure {
    /// The provider was not asked.
    #[error("the order could not be opened: {0}")]
    NotOpened(#[source] OrdersError),
    /// What the provider said, or did not say.
    #[error(transparent)]
    Provider(#[from] ProviderError),
    /// The card was charged.
    #[error("the order could not be written: {0}")]
    NotPaid(#[source] OrdersError),
}

#[derive(Serialize)]
struct Document {
    error: &'static str,
    detail: String,
}

impl IntoResponse for Failure {
    /// The status decides what becomes of the key, unless the answer says it.
    fn into_response(self) -> Response {
        let (status, outcome, error) = match &self {
            // Kept, like the layer's own answer to that, which it gives while it remembers.
            Self::NotOpened(OrdersError::KeyReused) => {
                (StatusCode::UNPROCESSABLE_ENTITY, None, "key-reused")
            }
            // A 503 proves nothing by itself, since a proxy sends it too. This one comes before the
            // provider is called.
            Self::NotOpened(_) => {
                (StatusCode::SERVICE_UNAVAILABLE, Some("retry"), "shop-unavailable")
            }
            // Kept: a repeat gets the same answer, and the provider is not called again.
            Self::Provider(ProviderError::Declined(_)) => {
                (StatusCode::PAYMENT_REQUIRED, None, "card-declined")
            }
            // A 502 leaves open what happened, but here it is known.
            Self::Provider(ProviderError::Unreachable) => {
                (StatusCode::BAD_GATEWAY, Some("retry"), "provider-unreachable")
            }
            // Whether the card was charged is unknown, and that is what a 504 means.
            Self::Provider(ProviderError::Silent(_)) => {
                (StatusCode::GATEWAY_TIMEOUT, None, "provider-silent")
            }
            // Unknown too: an error of ours that comes after the charge.
            Self::NotPaid(_) => (StatusCode::INTERNAL_SERVER_ERROR, None, "order-not-written"),
        };
        let outcome = outcome.map(|said| [(IDEMPOTENCY_OUTCOME, said)]);
        (status, outcome, Json(Document { error, detail: self.to_string() })).into_response()
    }
}
