//! What a handler can extract about its operation.

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

/// The key of the request, chosen by its client.
///
/// For calls that the handler makes in turn, use [`Lease::key_for`]: another client may send the
/// same key.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct IdempotencyKey(pub Key);

/// The fence of this run, higher than that of every earlier run under the same key.
///
/// A handler that stores it with its own data, and refuses to overwrite a higher one, is safe from
/// zombies: runs that lost their lease and continue.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct IdempotencyFence(pub Fence);

/// The number of this run, from 1. From 2 on, check what the earlier run may have done before you
/// repeat it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct IdempotencyAttempt(pub u32);

/// The handler extracts what only a guarded request has. Answers 500: such a route must be guarded
/// and must require a key; other routes use an `Option`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum NotGuarded {
    /// There is no lease.
    NoLease,
    /// The store was unavailable, and the route ran the operation unguarded.
    NoFence,
    /// The layer's store is not the one in the router's state, or another part of the handler uses
    /// the transaction.
    NoTransaction,
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
            Self::NoTransaction => {
                "no transaction of the store in the router's state is open for this request: give \
                 the layer an engine on that store, and extract one transaction"
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

pub(crate) fn lease(parts: &Parts) -> Result<&Lease, NotGuarded> {
    parts.extensions.get().ok_or(NotGuarded::NoLease)
}

/// Implements both extractor traits for a type that is read from a lease.
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
