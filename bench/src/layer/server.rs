//! A server as the load sees it: a child process with a port.

use std::{
    io::{BufRead as _, BufReader},
    path::Path,
    process::{Child, Command, Stdio},
};

use anyhow::Context as _;

use crate::machine;

/// What a server has in front of its handler.
#[derive(Clone, Copy, Debug)]
pub(crate) enum Guard {
    Nothing,
    Memory,
    Sqlite,
}

/// A server that runs as long as this value lives.
#[derive(Debug)]
pub(crate) struct Server {
    child: Child,
    pub(crate) port: u16,
}

impl Server {
    /// Starts a server, with a new file in `folder` if it needs one.
    pub(crate) fn start(guard: Guard, folder: &Path) -> anyhow::Result<Self> {
        let mut command = Command::new(std::env::current_exe()?);
        command.arg("--serve");
        match guard {
            Guard::Nothing => command.arg("plain"),
            Guard::Memory => command.arg("memory"),
            Guard::Sqlite => command.arg("sqlite").arg(folder.join("semel.db")),
        };
        let child = command.stdin(Stdio::piped()).stdout(Stdio::piped()).spawn()?;
        let mut server = Self { child, port: 0 };
        let output = server.child.stdout.take().context("a server has no output")?;
        let mut line = String::new();
        BufReader::new(output).read_line(&mut line)?;
        server.port = line.trim().parse().context("a server did not start")?;
        Ok(server)
    }

    /// Microseconds of processor time that it has used so far.
    pub(crate) fn spent_micros(&self) -> anyhow::Result<f64> {
        machine::process_micros(self.child.id())
    }

    /// Kilobytes of memory that it occupies.
    pub(crate) fn resident_kilobytes(&self) -> anyhow::Result<f64> {
        machine::resident_kilobytes(self.child.id())
    }
}

impl Drop for Server {
    fn drop(&mut self) {
        // It is its own child and has nothing to finish; if it is gone already, all is well.
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}
