//! Starts a built example as a process.

use std::{
    io::{BufRead as _, BufReader},
    net::SocketAddr,
    process::{Child, Command, Stdio},
};

/// A service in a process of its own, killed when it is dropped.
#[derive(Debug)]
pub(crate) struct Service {
    child: Child,
    pub(crate) address: SocketAddr,
}

impl Service {
    /// Starts the service and waits until it prints its address.
    pub(crate) fn start(command: &mut Command) -> Self {
        let mut child = command.stdout(Stdio::piped()).spawn().unwrap();
        let mut line = String::new();
        BufReader::new(child.stdout.as_mut().unwrap()).read_line(&mut line).unwrap();
        let address = line.trim().strip_prefix("serving http://").unwrap().parse().unwrap();
        Self { child, address }
    }

    /// Sends SIGTERM.
    pub(crate) fn terminate(&self) {
        let process = self.child.id().to_string();
        assert!(Command::new("kill").args(["-s", "TERM", &process]).status().unwrap().success());
    }

    /// Waits for its exit; returns whether it was successful.
    pub(crate) fn wait_for_success(mut self) -> bool {
        self.child.wait().unwrap().success()
    }
}

impl Drop for Service {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}
