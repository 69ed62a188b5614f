//! The project's own commands: `cargo xtask test` and its siblings.
//!
//! One match over the words typed. A command is a file; what it starts goes through `run`, so that
//! every step is announced, timed and, when it fails, named together with the line that repeats it.
//!
//! Exit codes: 0 all well, 1 a step failed or something is missing, 2 usage error.
#![allow(clippy::print_stdout, clippy::print_stderr, reason = "a command talks to a person")]

mod bench;
mod debian;
mod dist;
mod frameworks;
mod fuzz;
mod package;
mod run;
mod supply;
mod test;
mod tidy;
mod torture;

use std::path::{Path, PathBuf};
use std::process::ExitCode;

const USAGE: &str = "\
usage: cargo xtask COMMAND

  test [NAME…]                    format, tidy, lints, tests, documentation; NAME filters the tests
  test quick                      the part of it that takes less than five minutes
  tidy [--list]                   the rules of the tree, or their names
  files                           the list of source files in docs/files.md, written again
  bench [NAME…]                   the benchmarks, optimised
  torture                         the long editions of the tests named torture, optimised; dist;
                                  cargo deny
  dist                            the program as it is released, and its packages, in
                                  target/dist/packages
  sbom                            its bill of materials (CycloneDX), in target/semel.cdx.json
  fuzz [TARGET] [--seconds N]     every fuzz target or one, N seconds each (60)
  help                            this text

Exit codes: 0 all well, 1 a step failed or something is missing, 2 usage error.";

fn main() -> ExitCode {
    let words: Vec<String> = std::env::args().skip(1).collect();
    let words: Vec<&str> = words.iter().map(String::as_str).collect();
    match dispatch(&root(), &words) {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) if error.is::<Usage>() => {
            eprintln!("{error}\n\n{USAGE}");
            ExitCode::from(2)
        }
        Err(error) => {
            eprintln!("{} {error:#}", run::bad("error:"));
            ExitCode::FAILURE
        }
    }
}

fn dispatch(root: &Path, words: &[&str]) -> anyhow::Result<()> {
    match words {
        ["help" | "--help" | "-h"] | ["test" | "tidy" | "torture" | "fuzz", "--help" | "-h"] => {
            println!("{USAGE}");
            Ok(())
        }
        ["test", names @ ..] => test::run(root, names),
        ["tidy"] => tidy::run(root).and_then(|()| supply::check_licences(root)),
        ["tidy", "--list"] => {
            tidy::list();
            Ok(())
        }
        ["files"] => tidy::file_list::write(root),
        ["bench", names @ ..] => bench::run(root, names),
        ["torture"] => torture::run(root),
        ["dist"] => dist::run(root),
        ["sbom"] => supply::sbom(root),
        ["fuzz", rest @ ..] => fuzz::run(root, &fuzz::parse(rest)?),
        [] => Err(Usage("no command given".to_owned()).into()),
        [..] => Err(Usage(format!("not a command: {}", words.join(" "))).into()),
    }
}

/// A usage error: exit code 2, with the usage text.
#[derive(Debug)]
struct Usage(String);

impl std::fmt::Display for Usage {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(&self.0)
    }
}

impl std::error::Error for Usage {}

/// The root of the repository: the folder above this crate.
///
/// Cargo says where the crate is when it runs it. The place where it was compiled is only the
/// fallback, because a target folder may outlive a checkout.
fn root() -> PathBuf {
    let here = std::env::var_os("CARGO_MANIFEST_DIR")
        .map_or_else(|| PathBuf::from(env!("CARGO_MANIFEST_DIR")), PathBuf::from);
    here.parent().map_or_else(|| PathBuf::from("."), Path::to_path_buf)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn is_usage(words: &[&str]) -> bool {
        dispatch(Path::new("nowhere"), words).is_err_and(|error| error.is::<Usage>())
    }

    #[test]
    fn words_that_make_no_command_are_a_usage_error() {
        assert!(is_usage(&[]));
        assert!(is_usage(&["tests"]));
        assert!(is_usage(&["tidy", "twice"]));
        assert!(is_usage(&["torture", "NAME"]));
        assert!(is_usage(&["test", "--nocapture"]));
        assert!(is_usage(&["fuzz", "--seconds"]));
    }

    #[test]
    fn help_is_not_an_error() {
        assert!(dispatch(Path::new("nowhere"), &["help"]).is_ok());
        assert!(dispatch(Path::new("nowhere"), &["fuzz", "--help"]).is_ok());
    }
}
