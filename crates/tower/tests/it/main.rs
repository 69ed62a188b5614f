//! The layer, through the engine, on real stores: executions are counted and bytes compared.

#![allow(
    clippy::unwrap_used,
    clippy::expect_used,
    clippy::panic,
    reason = "a test reports by panicking"
)]

mod advice;
#[cfg(all(feature = "jwks-url", feature = "mtls"))]
mod builders;
mod callers;
mod crowds;
mod expiry;
mod grpc;
mod hangups;
mod harness;
mod http_connection;
mod identity;
mod issued_keys;
mod lookups;
mod memory;
mod observed;
mod observing;
mod origins;
mod passing;
mod refusals;
mod replays;
mod requests;
mod states;
mod streams;
mod tables;
mod webhook_signatures;
mod webhooks;
