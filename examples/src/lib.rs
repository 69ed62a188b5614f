//! Semel at work: a checkout on axum, a gRPC service on tonic, a nightly job.

pub mod checkout;
mod database;
pub mod grpc;
pub mod nightly;
pub mod stop;

/// The examples on the project's front page compile.
#[cfg(doctest)]
#[doc = include_str!("../../README.md")]
struct FrontPage;

/// The examples of the guide "Rolling it out" compile and run.
#[cfg(doctest)]
#[doc = include_str!("../../docs/guide/rolling-it-out.md")]
struct RollingItOut;
