//! The retrying client against real servers and processes.
#![allow(clippy::unwrap_used, clippy::panic, reason = "a test reports by panicking")]

mod deadline;
mod vectors;
