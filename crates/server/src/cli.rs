//! What can be typed after `semel`. Each command has a file of its own.

mod client;
mod config;
mod demo;
mod desk;
mod failure;
mod find;
mod forget;
mod inspect;
mod list;
mod reload;
mod resolve;
mod screen;
mod serve;
mod sweep;
mod table;

use std::process::ExitCode;

use clap::{Parser, Subcommand};

/// Makes every retry harmless: each idempotency key runs once, every repeat gets the first answer.
#[derive(Debug, Parser)]
#[command(name = "semel", version, propagate_version = true, max_term_width = 100)]
pub struct Cli {
    #[command(subcommand)]
    command: Command,
}

#[derive(Debug, Subcommand)]
enum Command {
    /// Stand in front of an HTTP API and make its retries harmless
    Serve(serve::Args),
    /// Tell the double-charge story on this machine: first without Semel, then through it
    Demo(demo::Args),
    /// Check, print or explain a configuration
    Config(config::Args),
    /// Apply a changed configuration to a running server
    Reload(reload::Args),
    /// Show everything about a key
    Inspect(inspect::Args),
    /// List records by state, scope and age
    List(list::Args),
    /// Say what became of a held key: record an answer, or free it for another try
    Resolve(resolve::Args),
    /// Forget a record, so that its key may run again
    Forget(forget::Args),
    /// Delete what retention has passed
    Sweep(sweep::Args),
}

impl Cli {
    /// Does what was asked.
    ///
    /// # Errors
    ///
    /// What went wrong, for the last line that is printed.
    pub fn run(self) -> anyhow::Result<ExitCode> {
        match self.command {
            Command::Serve(args) => serve::run(args),
            Command::Demo(args) => demo::run(args),
            Command::Config(args) => config::run(args),
            Command::Reload(args) => reload::run(args),
            Command::Inspect(args) => inspect::run(args),
            Command::List(args) => list::run(args),
            Command::Resolve(args) => resolve::run(args),
            Command::Forget(args) => forget::run(args),
            Command::Sweep(args) => sweep::run(args),
        }
    }
}

#[cfg(test)]
mod tests {
    use clap::CommandFactory as _;

    use super::*;

    #[test]
    fn the_words_make_sense() {
        Cli::command().debug_assert();
    }
}
