//! The program `semel`: its commands, the server that they start, and the demo.
//!
//! It is a library only for its tests; only the program has a stable interface.

mod app;
pub mod cli;
mod demo;
mod route_identity;
mod store;
mod supervisor;
