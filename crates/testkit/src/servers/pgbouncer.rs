//! `PgBouncer` in transaction mode, in front of a PostgreSQL.

use std::fmt::Write as _;
use std::fs;
use std::net::TcpStream;
use std::path::Path;

use super::Postgres;
use super::process::{Folder, ServerProcess, User, missing, on_free_port};

const PROGRAM: &str = "/usr/sbin/pgbouncer";

/// A pooler that assigns a session to each transaction. Roles and databases are those of the
/// PostgreSQL behind it.
#[derive(Debug)]
pub struct PgBouncer {
    process: ServerProcess,
    port: u16,
    folder: Folder,
}

impl PgBouncer {
    /// Starts a pooler with Debian's settings: among others it refuses the startup parameter
    /// `options`.
    ///
    /// # Panics
    ///
    /// If it is not installed or does not start: the message has its log.
    #[must_use]
    pub fn start(postgres: &Postgres) -> Self {
        Self::start_with(postgres, &[])
    }

    /// Starts a pooler with these lines in its section `[pgbouncer]`.
    ///
    /// # Panics
    ///
    /// If it is not installed or does not start: the message has its log.
    #[must_use]
    pub fn start_with(postgres: &Postgres, settings: &[(&str, &str)]) -> Self {
        Self::start_through(postgres.port(), settings)
    }

    /// The same, where the pooler reaches PostgreSQL by this port, such as that of a wire that can
    /// be led elsewhere.
    ///
    /// # Panics
    ///
    /// If it is not installed or does not start: the message has its log.
    #[must_use]
    pub fn start_through(server_port: u16, settings: &[(&str, &str)]) -> Self {
        assert!(Path::new(PROGRAM).exists(), "there is no {PROGRAM}; {}", missing("pgbouncer"));
        let folder = Folder::new("pgbouncer", User::of_servers());
        fs::write(folder.path().join("users"), "\"postgres\" \"\"\n").expect("a list of users");
        let (process, port) = on_free_port(&folder, |folder, port| {
            let text = configuration(server_port, port, settings);
            fs::write(folder.path().join("ini"), text).expect("a configuration");
            launch(folder, port)
        });
        Self { process, port, folder }
    }

    /// The address of a database through the pooler, for the superuser.
    #[must_use]
    pub fn url(&self, database: &str) -> String {
        format!("postgres://postgres@127.0.0.1:{}/{database}", self.port)
    }

    /// The port on 127.0.0.1.
    #[must_use]
    pub fn port(&self) -> u16 {
        self.port
    }

    /// Kills the pooler, and with it every connection through it.
    pub fn kill(&mut self) {
        self.process.kill();
    }

    /// Starts a pooler that was killed, on the same port.
    ///
    /// # Panics
    ///
    /// If it does not start.
    pub fn start_again(&mut self) {
        self.process = launch(&self.folder, self.port)
            .unwrap_or_else(|| panic!("PgBouncer does not start:\n{}", self.folder.log()));
    }
}

/// A small pool, so that sessions do change hands.
fn configuration(server_port: u16, port: u16, settings: &[(&str, &str)]) -> String {
    let mut text = format!(
        "[databases]\n\
         * = host=127.0.0.1 port={server_port}\n\
         [pgbouncer]\n\
         listen_addr = 127.0.0.1\n\
         listen_port = {port}\n\
         unix_socket_dir =\n\
         auth_type = trust\n\
         auth_user = postgres\n\
         auth_file = users\n\
         pool_mode = transaction\n\
         default_pool_size = 8\n\
         max_client_conn = 1000\n",
    );
    for (name, value) in settings {
        let _ = writeln!(text, "{name} = {value}");
    }
    text
}

/// Starts the pooler and waits until it takes connections.
fn launch(folder: &Folder, port: u16) -> Option<ServerProcess> {
    let args = ["ini".to_owned()];
    ServerProcess::start(User::of_servers(), folder, "KILL", Path::new(PROGRAM), &args)
        .once(|| TcpStream::connect(("127.0.0.1", port)).is_ok())
}
