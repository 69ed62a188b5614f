//! A program that runs beside the test and says on standard error where it can be reached.

use std::{
    env,
    io::{self, Write as _},
    net::{SocketAddr, TcpStream},
    path::PathBuf,
    process::Command,
    thread,
    time::Duration,
};

use semel_testkit::program::Program;

/// How often a program is tried that does not log when it has started, and how many times.
const START_INTERVAL: Duration = Duration::from_millis(20);
const START_LOOKS_MAX: usize = 3000;

/// A running program that serves at an address.
#[derive(Debug)]
pub(crate) struct Process {
    _program: Program,
    pub(crate) address: SocketAddr,
}

impl Process {
    /// Starts it and waits until it logs `on http://ADDRESS`.
    pub(crate) fn start(command: &mut Command) -> Self {
        let program = Program::start(command);
        let address = program.wait_for_address("on http");
        Self { _program: program, address }
    }

    /// Starts one that does not log where it listens, and waits until it does.
    pub(crate) fn start_at(command: &mut Command, address: SocketAddr) -> Self {
        let program = Program::start(command);
        for _ in 0..START_LOOKS_MAX {
            if TcpStream::connect(address).is_ok() {
                return Self { _program: program, address };
            }
            assert!(program.exit_status().is_none(), "{command:?} ended");
            thread::sleep(START_INTERVAL);
        }
        panic!("{command:?} does not start, it takes too long");
    }
}

/// What `cargo xtask test` has prepared, or a line on standard error that says what is left out.
pub(crate) fn prepared(variable: &str) -> Option<PathBuf> {
    let place = env::var_os(variable).map(PathBuf::from);
    if place.is_none() {
        let test = thread::current().name().unwrap_or_default().to_owned();
        let line = format!(
            "SKIPPED {test}: {variable} is not set; `cargo xtask test` prepares what it needs\n"
        );
        // Not by a macro, whose words would be kept from the reader of a test that passes; in one
        // piece, because other tests write too.
        let _ = io::stderr().write_all(line.as_bytes());
    }
    place
}
