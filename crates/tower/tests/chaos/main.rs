//! A real service in processes of its own that are killed, stopped and set beside each other.
#![cfg(target_os = "linux")]
#![allow(clippy::unwrap_used, clippy::panic, reason = "a test reports by panicking")]
#![allow(clippy::print_stdout, reason = "what is random is printed, for when the test fails")]

mod client;
mod kills;
mod neighbours;
mod service;
