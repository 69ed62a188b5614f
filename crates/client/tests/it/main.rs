//! The retry rules against `clients/vectors.json`.
#![allow(clippy::unwrap_used, clippy::panic, reason = "a test reports by panicking")]

mod deadline;
mod vectors;
