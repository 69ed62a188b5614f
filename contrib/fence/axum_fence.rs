//! Refuses the writes of a zombie: an attempt that a later one has replaced.

use axum::{
    extract::FromRequestParts,
    http::{StatusCode, request::Parts},
    response::{IntoResponse, Response},
};
use rusqlite::{Transaction, params};

const CLAIM: &str = "\
    INSERT INTO operation_fence (operation, fence) VALUES ($1, $2)
    ON CONFLICT (operation) DO UPDATE SET fence = excluded.fence
    WHERE operation_fence.fence <= excluded.fence";

/// The fence of the request. Extract it in each handler that writes.
pub struct RequestFence(i64);

/// Why a handler may not write.
pub enum FenceError {
    /// A later attempt of the operation has written already.
    Stale,
    /// The database failed.
    Database(rusqlite::Error),
}

impl RequestFence {
    /// Call it first in the transaction that writes. The operation names what is written.
    pub fn claim(&self, transaction: &Transaction<'_>, operation: &str) -> Result<(), FenceError> {
        match transaction.execute(CLAIM, params![operation, self.0])? {
            0 => Err(FenceError::Stale),
            _ => Ok(()),
        }
    }
}

impl<S: Sync> FromRequestParts<S> for RequestFence {
    type Rejection = (StatusCode, &'static str);

    async fn from_request_parts(parts: &mut Parts, _: &S) -> Result<Self, Self::Rejection> {
        let line = parts.headers.get("idempotency-fence").and_then(|line| line.to_str().ok());
        let fence = line.and_then(|line| line.parse().ok()).map(Self);
        fence.ok_or((StatusCode::BAD_REQUEST, "this request needs Idempotency-Fence"))
    }
}

impl From<rusqlite::Error> for FenceError {
    fn from(error: rusqlite::Error) -> Self {
        Self::Database(error)
    }
}

impl IntoResponse for FenceError {
    fn into_response(self) -> Response {
        let unknown = [("idempotency-outcome", "unknown")];
        match self {
            Self::Stale => {
                let text = "a later attempt of this operation has written already";
                (StatusCode::CONFLICT, unknown, text).into_response()
            }
            Self::Database(error) => {
                (StatusCode::INTERNAL_SERVER_ERROR, error.to_string()).into_response()
            }
        }
    }
}
