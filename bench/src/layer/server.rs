//! A server as the load sees it: a child process with a port.

use std::{path::Path, process::Command};

use crate::http::{load::Site, program::Program};

/// What a server has in front of its handler.
#[derive(Clone, Copy, Debug)]
pub(crate) enum Guard {
    Nothing,
    Memory,
    Sqlite,
}

/// A server that runs as long as this value lives.
#[derive(Debug)]
pub(crate) struct AppServer {
    pub(crate) site: Site,
    _program: Program,
}

impl AppServer {
    /// Starts a server, with a new file in `folder` if it needs one.
    pub(crate) fn start(guard: Guard, folder: &Path) -> anyhow::Result<Self> {
        let mut command = Command::new(std::env::current_exe()?);
        command.arg("--serve");
        match guard {
            Guard::Nothing => command.arg("plain"),
            Guard::Memory => command.arg("memory"),
            Guard::Sqlite => command.arg("sqlite").arg(folder.join("semel.db")),
        };
        let (program, port) = Program::serve(&mut command)?;
        let site = Site { port, processes: vec![program.id()], behind: Vec::new() };
        Ok(Self { site, _program: program })
    }
}
