//! The gateway in front of real frameworks, called by real clients that retry.
//!
//! `cargo xtask test` prepares Python, Node, Go, Tomcat, nginx and Chromium and says in variables
//! where they are. Without them a test that needs one says so and passes.
#![allow(
    clippy::unwrap_used,
    clippy::expect_used,
    clippy::panic,
    reason = "a test reports by panicking"
)]
#![allow(clippy::print_stdout, reason = "a long test tells what it has seen")]

#[path = "../common/mod.rs"]
mod common;

mod app;
mod axum_failures;
#[path = "../../../../contrib/fence/axum_fence.rs"]
#[allow(unreachable_pub, reason = "the file is copied into a service, where it is a module")]
mod axum_fence;
mod axum_fences;
mod browser;
mod bypasses;
mod client;
mod client_guides;
mod dashboard;
mod failures;
mod fences;
mod fleet;
mod gateway;
mod http;
mod http_proxy;
mod idle;
mod journal;
mod lossy_sdks;
mod manifests;
mod misbehaving_proxy;
mod once;
mod pages;
mod process;
mod retries;
mod schemathesis;
mod script;
mod scripted_api;
mod sdks;
mod semel_clients;
mod service;
mod spellings;
mod sql_orders;
mod stripe_retries;
mod vendor_sdk;
mod webhook_services;

/// Where the apps, the clients and their pins are.
const HERE: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/tests/frameworks");
