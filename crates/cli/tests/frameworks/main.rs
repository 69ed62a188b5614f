//! The gateway in front of real frameworks, called by real clients that retry.
//!
//! `cargo xtask test` prepares Python, Node, Go, Tomcat and nginx and says in variables where they
//! are. Without them a test that needs one says so and passes.
#![allow(clippy::unwrap_used, clippy::panic, reason = "a test reports by panicking")]
#![allow(clippy::print_stdout, reason = "a long test tells what it has seen")]

mod app;
mod axum_failures;
mod bypasses;
mod client;
mod failures;
mod gateway;
mod http;
mod http_proxy;
mod idle;
mod journal;
mod lossy_sdks;
mod misbehaving_proxy;
mod pages;
mod process;
mod retries;
mod script;
mod scripted_api;
mod sdks;
mod semel_clients;
mod spellings;
mod stripe_retries;
mod vendor_sdk;
mod webhook_services;

/// Where the apps, the clients and their pins are.
const HERE: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/tests/frameworks");
