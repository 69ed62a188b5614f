//! `semel config`. Checks or prints a configuration; prints the defaults and the JSON Schema.

use std::{
    io::{self, Write as _},
    path::{Path, PathBuf},
    process::ExitCode,
};

use semel_config::{Config, Overrides, default_toml, schema_json};

/// The exit code for a bad configuration (`EX_USAGE`).
pub(super) const EXIT_BAD_CONFIG: u8 = 64;

/// Arguments of `semel config`.
#[derive(Debug, clap::Args)]
pub(super) struct Args {
    #[command(subcommand)]
    command: ConfigCommand,
}

#[derive(Debug, clap::Subcommand)]
enum ConfigCommand {
    /// Show what a configuration guards, or all of its errors
    Check(ConfigSource),
    /// Print the effective configuration, with all defaults
    Print(ConfigSource),
    /// Print a commented file of every setting with its default
    Default,
    /// Print the JSON Schema of a configuration, for editors
    Schema,
}

/// Where a configuration comes from.
#[derive(Debug, clap::Args)]
struct ConfigSource {
    /// Configuration file
    file: Option<PathBuf>,
    #[command(flatten)]
    overrides: Overrides,
}

pub(super) fn run(args: Args) -> anyhow::Result<ExitCode> {
    let text = match args.command {
        ConfigCommand::Check(source) => match load(source.file.as_deref(), &source.overrides) {
            Ok(config) => {
                let notes = config.notes().into_iter().map(|note| format!("note: {note}"));
                let lines = config.guarded_lines().into_iter().chain(config.effect_lines());
                lines.chain(notes).map(|line| line + "\n").collect()
            }
            Err(code) => return Ok(code),
        },
        ConfigCommand::Print(source) => match load(source.file.as_deref(), &source.overrides) {
            Ok(config) => config.to_toml(),
            Err(code) => return Ok(code),
        },
        ConfigCommand::Default => default_toml(),
        ConfigCommand::Schema => schema_json(),
    };
    io::stdout().write_all(text.as_bytes())?;
    Ok(ExitCode::SUCCESS)
}

/// The configuration; or, if it is invalid, the exit code after printing the errors.
pub(super) fn load(file: Option<&Path>, overrides: &Overrides) -> Result<Config, ExitCode> {
    Config::load(file, overrides, &env).map_err(|error| {
        // If stderr is closed, the exit code remains.
        let _ = writeln!(io::stderr(), "{error}");
        ExitCode::from(EXIT_BAD_CONFIG)
    })
}

/// The value of an environment variable.
#[expect(
    clippy::disallowed_methods,
    reason = "the only place where the program reads environment variables"
)]
pub(super) fn env(name: &str) -> Option<String> {
    std::env::var(name).ok()
}
