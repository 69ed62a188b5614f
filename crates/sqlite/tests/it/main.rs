//! The SQLite store under crashes, power cuts, concurrent processes, bad files and odd clocks. The
//! tests kill processes and simulate power cuts, on Linux only.
#![cfg(all(target_os = "linux", target_pointer_width = "64"))]
#![allow(clippy::unwrap_used, clippy::panic, reason = "a test reports by panicking")]
#![allow(clippy::print_stdout, reason = "prints random values, for when the test fails")]

mod backups;
mod child_process;
mod clocks;
mod crashes;
mod fences;
mod files;
mod power_cuts;
mod processes;
mod replaced_files;
