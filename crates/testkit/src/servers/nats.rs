//! NATS with JetStream: an instance, and how it can come to harm.

use std::{net::TcpStream, path::Path};

use super::process::{Folder, ServerProcess, User, missing, on_free_port};

const PROGRAM: &str = "/usr/sbin/nats-server";

/// One instance of NATS that keeps its streams on disk.
#[derive(Debug)]
pub struct Nats {
    process: ServerProcess,
    port: u16,
    folder: Folder,
}

impl Nats {
    /// Starts an instance.
    ///
    /// # Panics
    ///
    /// If NATS is not installed or does not start: the message has its log.
    #[must_use]
    pub fn start() -> Self {
        assert!(Path::new(PROGRAM).exists(), "there is no {PROGRAM}; {}", missing("nats-server"));
        let folder = Folder::new("nats", User::of_servers());
        let (process, port) = on_free_port(&folder, launch);
        Self { process, port, folder }
    }

    /// The address of the instance.
    #[must_use]
    pub fn url(&self) -> String {
        format!("nats://127.0.0.1:{}", self.port)
    }

    /// Kills the instance. What was acknowledged is in its files.
    pub fn kill(&mut self) {
        self.process.kill();
    }

    /// Starts an instance that was killed, on the same port.
    ///
    /// # Panics
    ///
    /// If it does not start.
    pub fn start_again(&mut self) {
        assert!(self.process.ended().is_some(), "the server runs already");
        self.process = launch(&self.folder, self.port)
            .unwrap_or_else(|| panic!("NATS does not start again:\n{}", self.folder.log()));
    }
}

fn launch(folder: &Folder, port: u16) -> Option<ServerProcess> {
    let port_text = port.to_string();
    let args =
        ["--addr", "127.0.0.1", "--port", &port_text, "--jetstream", "--store_dir", "streams"];
    ServerProcess::start(
        User::of_servers(),
        folder,
        "KILL",
        Path::new(PROGRAM),
        &args.map(str::to_owned),
    )
    .once(|| TcpStream::connect(("127.0.0.1", port)).is_ok())
}
