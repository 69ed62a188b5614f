//! Semel at work: a checkout on axum, a gRPC service on tonic, a nightly job.

pub mod nightly;
