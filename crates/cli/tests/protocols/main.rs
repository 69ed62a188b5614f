//! What the gateway speaks, through the real program over real sockets: HTTP/1.1, HTTP/2, gRPC,
//! TLS, WebSocket, server-sent events, and the manners of a proxy. Upstreams count what they get.

#![allow(
    clippy::unwrap_used,
    clippy::expect_used,
    clippy::panic,
    reason = "a test reports by panicking"
)]

#[path = "../common/mod.rs"]
mod common;

mod answers;
mod authority;
mod bodies;
mod client;
mod events;
mod grpc;
mod http2;
mod https;
mod hygiene;
mod large;
mod memory;
mod observed;
mod opinions;
mod pooling;
mod raw;
mod refused;
mod spellings;
mod streams;
mod versions;
mod websocket;
mod windows;

use std::future::Future;

use common::{TEST_TIMEOUT, wait_until};

/// Waits for what comes soon, if it comes at all.
async fn soon<T>(what: impl Future<Output = T>) -> T {
    tokio::time::timeout(TEST_TIMEOUT, what).await.expect("this takes too long")
}
