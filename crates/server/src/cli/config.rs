//! `semel config`. Check, print or explain a configuration.

use std::{
    io::{self, Write as _},
    path::{Path, PathBuf},
    process::ExitCode,
};

use crate::config::{Config, Overrides, default_toml, schema_json};

/// The exit code for a bad configuration (`EX_USAGE`).
pub(super) const BAD_CONFIGURATION: u8 = 64;

/// What can be typed after `semel config`.
#[derive(Debug, clap::Args)]
pub(super) struct Args {
    #[command(subcommand)]
    command: Command,
}

#[derive(Debug, clap::Subcommand)]
enum Command {
    /// Say what a configuration guards, or everything that is wrong with it
    Check(Source),
    /// Print the complete configuration that is in force, every default filled in
    Print(Source),
    /// Print a commented file of every setting with its default
    Default,
    /// Print the JSON Schema of a configuration, for editors
    Schema,
}

/// Where a configuration comes from.
#[derive(Debug, clap::Args)]
struct Source {
    /// The file
    file: Option<PathBuf>,
    #[command(flatten)]
    typed: Overrides,
}

pub(super) fn run(args: Args) -> anyhow::Result<ExitCode> {
    let text = match args.command {
        Command::Check(source) => match load(source.file.as_deref(), &source.typed) {
            Ok(config) => {
                let notes = config.notes().into_iter().map(|note| format!("note: {note}"));
                let lines = config.guarded_lines().into_iter().chain(config.effect_lines());
                lines.chain(notes).map(|line| line + "\n").collect()
            }
            Err(code) => return Ok(code),
        },
        Command::Print(source) => match load(source.file.as_deref(), &source.typed) {
            Ok(config) => config.to_toml(),
            Err(code) => return Ok(code),
        },
        Command::Default => default_toml(),
        Command::Schema => schema_json(),
    };
    io::stdout().write_all(text.as_bytes())?;
    Ok(ExitCode::SUCCESS)
}

/// The configuration; or, when it is bad, the exit code after saying why.
pub(super) fn load(file: Option<&Path>, typed: &Overrides) -> Result<Config, ExitCode> {
    Config::load(file, typed, &env).map_err(|error| {
        // Where nobody listens the exit code says it.
        let _ = writeln!(io::stderr(), "{error}");
        ExitCode::from(BAD_CONFIGURATION)
    })
}

/// What an environment variable holds.
#[expect(clippy::disallowed_methods, reason = "the edge where a configuration is read, once")]
pub(super) fn env(name: &str) -> Option<String> {
    std::env::var(name).ok()
}
