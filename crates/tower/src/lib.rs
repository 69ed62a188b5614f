//! Makes an HTTP service retry-safe: an idempotency layer for anything that is a
//! `tower::Service` over `http` types, such as axum, hyper and tonic.

mod body;
mod caller;
mod capture;
mod config;
#[cfg(feature = "axum")]
mod extract;
mod future;
mod gather;
mod grpc;
mod guard;
pub mod header;
mod kept;
mod key;
mod layer;
mod pump;
mod refusal;
mod reply;
mod request;
mod service;
#[cfg(test)]
mod testing;

pub use body::Body;
pub use caller::{Callers, SECRET_BYTES_MIN, Secret, SecretError};
pub use capture::{NeverReached, Streaming};
#[cfg(feature = "axum")]
pub use extract::{IdempotencyAttempt, IdempotencyFence, IdempotencyKey, NotGuarded};
pub use future::ResponseFuture;
pub use key::KeyRule;
pub use layer::IdempotencyLayer;
pub use pump::DRAIN_AFTER_HANG_UP;
pub use semel::Lease;
pub use service::Idempotency;

/// An error of any kind, as bodies and inner services have it.
pub type BoxError = Box<dyn std::error::Error + Send + Sync>;
