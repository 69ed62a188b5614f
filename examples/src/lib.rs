//! Semel at work: a checkout on axum, a gRPC service on tonic, a nightly job.

pub mod checkout;
mod database;
pub mod grpc;
pub mod nightly;
pub mod stop;
