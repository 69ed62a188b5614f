//! The program under test as a command.

use std::process::Command;

/// `semel`, without arguments.
pub(crate) fn semel_command() -> Command {
    Command::new(env!("CARGO_BIN_EXE_semel"))
}
