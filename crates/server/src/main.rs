//! The program `semel`: what was typed, one match, an exit code.
//!
//! Exit codes: 0 all well, 1 it failed, 2 the words make no command, 3 there is no such record,
//! 4 the record is not what was seen, 5 the doctor has found something to change, 64 a bad
//! configuration, 130 interrupted.

use std::process::ExitCode;

use clap::Parser as _;
use semel_server::cli::Cli;

#[global_allocator]
static ALLOCATOR: mimalloc::MiMalloc = mimalloc::MiMalloc;

fn main() -> ExitCode {
    Cli::parse().run()
}
