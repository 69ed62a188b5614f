//! The SQLite store against the world: crashes, power cuts, neighbours, bad files and odd clocks.
#![allow(clippy::unwrap_used, clippy::panic, reason = "a test reports by panicking")]

mod child;
mod clocks;
mod crashes;
mod files;
mod neighbours;
mod powercuts;
