//! The program `semel`: what was typed, one match, an exit code.
//!
//! Exit codes: 0 all well, 1 it failed, 2 the words make no command, 64 a bad configuration.
#![allow(clippy::print_stderr, reason = "a program talks to a person")]

use std::process::ExitCode;

use clap::Parser as _;
use semel_server::cli::Cli;

#[global_allocator]
static ALLOCATOR: mimalloc::MiMalloc = mimalloc::MiMalloc;

fn main() -> ExitCode {
    Cli::parse().run().unwrap_or_else(|error| {
        eprintln!("error: {error:#}");
        ExitCode::FAILURE
    })
}
