//! The gateway that makes retries harmless: everything behind the program `semel`.
//!
//! It is a library only so that its tests, benchmarks and fuzz targets can reach it; the program is
//! what is promised to stay.

mod api;
pub mod cli;
pub mod config;
mod demo;
mod gateway;
mod life;
mod ops;
mod route_identity;
mod store;

/// The request path, for the fuzz targets only.
#[doc(hidden)]
pub mod fuzzing {
    pub use crate::gateway::fuzzing::Gateway;
}
