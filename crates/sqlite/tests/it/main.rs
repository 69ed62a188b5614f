//! The SQLite store against the world: crashes, power cuts, neighbours, bad files and odd clocks.
//! They kill processes and cut the power as Linux knows it.
#![cfg(all(target_os = "linux", target_pointer_width = "64"))]
#![allow(clippy::unwrap_used, clippy::panic, reason = "a test reports by panicking")]
#![allow(clippy::print_stdout, reason = "what is random is printed, for when the test fails")]

mod backups;
mod child;
mod clocks;
mod crashes;
mod fences;
mod files;
mod neighbours;
mod powercuts;
mod replaced;
