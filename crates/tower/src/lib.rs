//! Makes an HTTP service retry-safe: an idempotency layer for anything that is a
//! `tower::Service` over `http` types, such as axum, hyper and tonic.
