//! What a handler learns about the operation that it runs.

use std::{error, fmt};

use axum::{
    extract::{FromRequestParts, OptionalFromRequestParts},
    http::{StatusCode, request::Parts},
    response::{IntoResponse, Response},
};
use semel::{
    Lease,
    core::{Fence, Key},
};

/// The key of the request: what its client calls the operation.
///
/// Pass a key that is derived from it to whatever the handler calls in turn.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct IdempotencyKey(pub Key);

/// The fence of this run: higher than that of every earlier run under the same key.
///
/// A handler that writes it beside its own data, and refuses to write over a higher one, cannot be
/// overtaken by a zombie: a run that was taken for dead and wakes up.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct IdempotencyFence(pub Fence);

/// Which run of the operation this is, from 1. In a higher one, look before you repeat what the
/// earlier one may have done.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct IdempotencyAttempt(pub u32);

/// The handler asked for what only a guarded request has. Answers 500: a route that needs it must
/// be guarded, and must require a key; any other takes an `Option`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum NotGuarded {
    /// There is no lease.
    NoLease,
    /// The store was away, and the route chose to run the operation unguarded.
    NoFence,
}

impl fmt::Display for NotGuarded {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::NoLease => {
                "no idempotency layer guards this route, or the request had no key: require one, \
                 or extract an Option"
            }
            Self::NoFence => {
                "the store is away and this route runs unguarded then, without a fence: extract an \
                 Option"
            }
        })
    }
}

impl error::Error for NotGuarded {}

impl IntoResponse for NotGuarded {
    fn into_response(self) -> Response {
        (StatusCode::INTERNAL_SERVER_ERROR, self.to_string()).into_response()
    }
}

fn lease(parts: &Parts) -> Result<&Lease, NotGuarded> {
    parts.extensions.get().ok_or(NotGuarded::NoLease)
}

/// Both ways to extract a type that is read from a lease.
macro_rules! from_lease {
    ($name:ident, $read:expr) => {
        impl<S: Sync> FromRequestParts<S> for $name {
            type Rejection = NotGuarded;

            async fn from_request_parts(parts: &mut Parts, _: &S) -> Result<Self, NotGuarded> {
                lease(parts).and_then($read).map(Self)
            }
        }

        impl<S: Sync> OptionalFromRequestParts<S> for $name {
            type Rejection = std::convert::Infallible;

            async fn from_request_parts(
                parts: &mut Parts,
                _: &S,
            ) -> Result<Option<Self>, Self::Rejection> {
                Ok(lease(parts).and_then($read).ok().map(Self))
            }
        }
    };
}

from_lease!(IdempotencyKey, |lease| Ok(lease.key().clone()));
from_lease!(IdempotencyFence, |lease| lease.fence().ok_or(NotGuarded::NoFence));
from_lease!(IdempotencyAttempt, |lease| Ok(lease.attempt()));
