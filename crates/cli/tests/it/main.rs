//! End-to-end tests: the real binary over real sockets, in front of an upstream that counts
//! requests.

#![allow(
    clippy::unwrap_used,
    clippy::expect_used,
    clippy::panic,
    clippy::print_stderr,
    reason = "a test reports by panicking"
)]

#[path = "../common/mod.rs"]
mod common;

mod advice;
mod basics;
mod client_certificates;
mod crashes;
mod deadlines;
mod dialects;
mod ends;
mod fair_shares;
mod hangups;
mod identity;
mod issued_keys;
mod limits;
mod meets;
mod neighbours;
mod operators;
mod origins;
mod prometheus;
mod quotas;
mod reconciles;
mod redaction;
mod refusals;
mod reloads;
mod remembered;
mod renewed_credentials;
mod replaced_files;
mod resolves;
mod rollout;
mod routes;
mod service_api;
mod starts;
mod stops;
mod stores;
mod tables;
mod traces;
mod velocity;
mod verified_callers;
mod webhooks;
