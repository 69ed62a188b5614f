//! Starts a built example as a process.

use std::{net::SocketAddr, process::Command};

use semel_testkit::program::Program;

/// A service in a process of its own, killed when it is dropped.
#[derive(Debug)]
pub(crate) struct Service {
    program: Program,
    pub(crate) address: SocketAddr,
}

impl Service {
    /// Starts the service and waits until it prints its address.
    pub(crate) fn start(command: &mut Command) -> Self {
        let program = Program::start(command);
        let address = program.wait_for_address("serving http");
        Self { program, address }
    }

    /// Sends SIGTERM.
    pub(crate) fn terminate(&self) {
        self.program.signal("TERM");
    }

    /// Waits for its exit; returns whether it was successful.
    pub(crate) fn wait_for_success(self) -> bool {
        self.program.wait_for_exit().success()
    }
}
