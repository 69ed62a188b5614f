//! The command line of `semel`. Each command has its own file.

mod backup;
mod caller;
mod client;
mod command_error;
mod config;
mod delete;
mod demo;
mod doctor;
mod duplicates;
mod inspect;
mod key;
mod list;
mod lookup;
mod migrate;
mod outbox;
mod output;
mod reload;
mod resolve;
mod resolve_many;
mod serve;
mod sweep;
mod table;
mod target;

use std::process::ExitCode;

use clap::{Parser, Subcommand};

/// Exit codes, for the help.
const EXIT_CODES: &str = "\
Exit codes:
    0  success
    1  failure
    2  usage error
    3  no such record
    4  the record changed, or its state does not allow this
    5  the doctor recommends changes, or likely duplicates were found
   64  the configuration is invalid
  130  interrupted";

/// Makes every retry harmless: each idempotency key runs once, every retry gets the first answer.
#[derive(Debug, Parser)]
#[command(name = "semel", version, propagate_version = true, max_term_width = 100)]
#[command(after_help = EXIT_CODES)]
pub struct Cli {
    #[command(subcommand)]
    command: Command,
    /// When to write in colours
    #[arg(long, value_enum, global = true, value_name = "WHEN", default_value_t)]
    color: output::ColorMode,
}

#[derive(Debug, Subcommand)]
enum Command {
    /// Stand in front of an HTTP API and make its retries harmless
    Serve(serve::Args),
    /// Show a double charge on this machine: first without Semel, then with it
    #[command(after_help = EXIT_CODES)]
    Demo(demo::Args),
    /// Check or print a configuration
    Config(config::Args),
    /// Apply a changed configuration to a running server
    Reload(reload::Args),
    /// Show everything about a key
    #[command(after_help = EXIT_CODES)]
    Inspect(inspect::Args),
    /// Print an idempotency key: random, ordered by time, or derived from existing ids
    Key(key::Args),
    /// List records by key, state, scope, caller, reason and time
    #[command(after_help = EXIT_CODES)]
    List(list::Args),
    /// Print the stored name of a caller, for `semel list --caller`
    Caller(caller::Args),
    /// Resolve a held key, or many: record an answer, or that the operation did not happen
    Resolve(resolve::Args),
    /// Delete a record, so that any request may run under its key
    #[command(after_help = EXIT_CODES)]
    Delete(delete::Args),
    /// Delete records past their retention
    Sweep(sweep::Args),
    /// Deliver the messages of an outbox, and look after those that fail
    #[command(subcommand, after_help = EXIT_CODES)]
    Outbox(outbox::OutboxCommand),
    /// Find likely duplicates in a CSV of past orders
    #[command(after_help = EXIT_CODES)]
    Duplicates(duplicates::Args),
    /// Copy a store to a new file while servers use it
    Backup(backup::Args),
    /// Create a store, migrate an older one, or prepare a restored one for use
    Migrate(migrate::Args),
    /// Check a store and a cache, and recommend changes
    #[command(after_help = EXIT_CODES)]
    Doctor(doctor::Args),
}

impl Cli {
    /// Runs the command. An error is the last line that is printed.
    #[must_use]
    pub fn run(self) -> ExitCode {
        self.color.set();
        let done = match self.command {
            Command::Serve(args) => serve::run(args),
            Command::Demo(args) => demo::run(args),
            Command::Config(args) => config::run(args),
            Command::Reload(args) => reload::run(args),
            Command::Inspect(args) => inspect::run(args),
            Command::Key(args) => key::run(&args),
            Command::List(args) => list::run(args),
            Command::Caller(args) => caller::run(&args),
            Command::Resolve(args) => resolve::run(args),
            Command::Delete(args) => delete::run(args),
            Command::Sweep(args) => sweep::run(args),
            Command::Outbox(action) => outbox::run(action),
            Command::Duplicates(args) => duplicates::run(&args),
            Command::Backup(args) => backup::run(args),
            Command::Migrate(args) => migrate::run(args),
            Command::Doctor(args) => doctor::run(args),
        };
        done.unwrap_or_else(|error| {
            output::print_error(&format!("{error:#}"));
            ExitCode::FAILURE
        })
    }
}

#[cfg(test)]
mod tests {
    use clap::CommandFactory as _;

    use super::*;

    #[test]
    fn the_command_line_is_consistent() {
        Cli::command().debug_assert();
    }
}
