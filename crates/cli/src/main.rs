//! The program `semel`.
//!
//! Exit codes: 0 success, 1 failure, 2 usage error, 3 no such record, 4 the record changed or its
//! state does not allow this, 5 the doctor recommends changes, 64 the configuration is
//! invalid, 130 interrupted.

use std::process::ExitCode;

use clap::Parser as _;
use semel_cli::cli::Cli;

#[global_allocator]
static ALLOCATOR: mimalloc::MiMalloc = mimalloc::MiMalloc;

fn main() -> ExitCode {
    Cli::parse().run()
}
