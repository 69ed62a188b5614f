//! PostgreSQL: an instance, its databases and schemas, and how it can come to harm.

use std::fs;
use std::path::PathBuf;
use std::process::Command;
use std::sync::atomic::{AtomicU32, Ordering};

use rustix::process::Signal;

use super::process::{Folder, ServerProcess, User, eventually, missing, on_free_port};

/// Where Debian puts the programs of the version that the tests are written for.
const PROGRAMS: &str = "/usr/lib/postgresql/15/bin";

/// What every instance is started with. Others can be given to [`Postgres::start`].
const SETTINGS: [(&str, &str); 5] = [
    ("listen_addresses", "127.0.0.1"),
    ("unix_socket_directories", ""),
    ("max_connections", "400"),
    ("shared_buffers", "64MB"),
    ("log_line_prefix", "%m [%p] "),
];

/// One instance of PostgreSQL 15. Every user of this machine may log in, as any role, without a
/// password.
#[derive(Debug)]
pub struct Postgres {
    process: ServerProcess,
    port: u16,
    settings: Vec<(String, String)>,
    made: AtomicU32,
    folder: Folder,
}

impl Postgres {
    /// Makes and starts an instance with these settings on top of its own.
    ///
    /// # Panics
    ///
    /// If PostgreSQL is not installed or does not start: the message has its log.
    #[must_use]
    pub fn start(settings: &[(&str, &str)]) -> Self {
        let user = User::of_servers();
        let folder = Folder::new("postgres", user);
        let mut initdb = user.command(program("initdb"), folder.path());
        // Text is sorted as people sort it, not as bytes: who relies on the latter must say so.
        initdb.args(["--pgdata=data", "--username=postgres", "--auth=trust", "--no-sync"]);
        initdb.args(["--encoding=UTF8", "--locale-provider=icu", "--icu-locale=en-US"]);
        run(&mut initdb);
        Self::serve(folder, settings)
    }

    fn serve(folder: Folder, settings: &[(&str, &str)]) -> Self {
        let settings = SETTINGS.iter().chain(settings);
        let settings: Vec<_> =
            settings.map(|(name, value)| ((*name).to_owned(), (*value).to_owned())).collect();
        let (process, port) = on_free_port(&folder, |folder, port| launch(folder, port, &settings));
        Self { process, port, settings, made: AtomicU32::new(0), folder }
    }

    /// The address of a database, for the superuser.
    #[must_use]
    pub fn url(&self, database: &str) -> String {
        self.url_as("postgres", database)
    }

    /// The address of a database, for a role.
    #[must_use]
    pub fn url_as(&self, role: &str, database: &str) -> String {
        format!("postgres://{role}@127.0.0.1:{}/{database}", self.port)
    }

    /// The port on 127.0.0.1.
    #[must_use]
    pub fn port(&self) -> u16 {
        self.port
    }

    /// Makes an empty database and says its name.
    #[must_use]
    pub fn fresh_database(&self) -> String {
        let name = self.fresh_name("database");
        self.sql("postgres", &format!("CREATE DATABASE {name}"));
        name
    }

    /// Makes an empty schema in the database `postgres` and says its address, for the superuser.
    #[must_use]
    pub fn fresh_schema_url(&self) -> String {
        let name = self.fresh_name("schema");
        self.sql("postgres", &format!("CREATE SCHEMA {name}"));
        format!("{}?schema={name}", self.url("postgres"))
    }

    fn fresh_name(&self, kind: &str) -> String {
        format!("{kind}_{}", self.made.fetch_add(1, Ordering::Relaxed))
    }

    /// Runs SQL as the superuser and gives what it prints: a line for each row, columns with `|`
    /// between them.
    ///
    /// # Panics
    ///
    /// If the server does not do it.
    pub fn sql(&self, database: &str, sql: &str) -> String {
        self.try_sql(database, sql).unwrap_or_else(|error| panic!("{sql}: {error}"))
    }

    fn try_sql(&self, database: &str, sql: &str) -> Result<String, String> {
        let mut psql = User::of_servers().command(program("psql"), self.folder.path());
        psql.args(["--no-psqlrc", "--quiet", "--no-align", "--tuples-only"]);
        psql.args(["--set=ON_ERROR_STOP=1", "--command", sql, &self.url(database)]);
        let output = psql.output().expect("psql runs");
        if !output.status.success() {
            return Err(String::from_utf8_lossy(&output.stderr).into_owned());
        }
        Ok(String::from_utf8_lossy(&output.stdout).trim().to_owned())
    }

    /// What the server has written to its log.
    #[must_use]
    pub fn log(&self) -> String {
        self.folder.log()
    }

    /// Shuts the instance down in good order: sessions are ended, everything is written.
    pub fn stop(&mut self) {
        self.process.signal(Signal::INT);
        self.process.join();
    }

    /// Kills the server and every process of it at once, as a power cut would.
    pub fn kill(&mut self) {
        self.process.kill();
        // A power cut would also have cleared the small piece of shared memory by which the server
        // knows that it runs only once. Its number is in this file.
        let file = fs::read_to_string(self.folder.path().join("data/postmaster.pid"));
        let line = file.as_deref().ok().and_then(|text| text.lines().nth(6));
        if let Some(id) = line.and_then(|line| line.split_whitespace().last()) {
            let mut ipcrm = User::of_servers().command("ipcrm", self.folder.path());
            drop(ipcrm.args(["--shmem-id", id]).output());
        }
    }

    /// Starts an instance that was stopped or killed, on the same port.
    ///
    /// # Panics
    ///
    /// If it does not start.
    pub fn start_again(&mut self) {
        assert!(self.process.ended().is_some(), "the server runs already");
        self.process = launch(&self.folder, self.port, &self.settings)
            .unwrap_or_else(|| panic!("PostgreSQL does not start again:\n{}", self.log()));
    }

    /// Makes a standby that streams from this instance. From here on this one answers no commit
    /// before the standby has it on disk.
    ///
    /// # Panics
    ///
    /// If the standby cannot be made.
    #[must_use]
    pub fn standby(&self) -> Self {
        self.standby_through(self.port)
    }

    /// The same, where the standby reaches this instance by another port, such as that of a wire
    /// that can be cut.
    ///
    /// # Panics
    ///
    /// If the standby cannot be made.
    #[must_use]
    pub fn standby_through(&self, port: u16) -> Self {
        let standby = self.copy_through(port);
        // Only now, so that the standby has not inherited it.
        self.sql("postgres", "ALTER SYSTEM SET synchronous_standby_names = '*'");
        self.sql("postgres", "SELECT pg_reload_conf()");
        self.wait_for("SELECT 1 FROM pg_stat_replication WHERE sync_state = 'sync'");
        standby
    }

    /// Makes a standby that streams from this instance and that no commit waits for.
    ///
    /// # Panics
    ///
    /// If the standby cannot be made.
    #[must_use]
    pub fn asynchronous_standby(&self) -> Self {
        self.asynchronous_standby_through(self.port)
    }

    /// The same, where the standby reaches this instance by another port, such as that of a wire
    /// that can be cut.
    ///
    /// # Panics
    ///
    /// If the standby cannot be made.
    #[must_use]
    pub fn asynchronous_standby_through(&self, port: u16) -> Self {
        self.copy_through(port)
    }

    fn copy_through(&self, port: u16) -> Self {
        let user = User::of_servers();
        let folder = Folder::new("standby", user);
        let mut backup = user.command(program("pg_basebackup"), folder.path());
        backup.args(["--pgdata=data", "--write-recovery-conf", "--no-sync", "--checkpoint=fast"]);
        backup.args(["--dbname", &format!("postgres://postgres@127.0.0.1:{port}")]);
        run(&mut backup);
        let settings = self.settings.iter().skip(SETTINGS.len());
        let settings: Vec<_> = settings.map(|(name, value)| (&**name, &**value)).collect();
        let standby = Self::serve(folder, &settings);
        self.wait_for("SELECT 1 FROM pg_stat_replication WHERE state = 'streaming'");
        standby
    }

    /// Makes a standby the primary, and waits until it is.
    pub fn promote(&self) {
        self.sql("postgres", "SELECT pg_promote()");
        self.wait_for("SELECT 1 WHERE NOT pg_is_in_recovery()");
    }

    /// How many records of this key are in the database `postgres`.
    #[must_use]
    pub fn records(&self, key: &str) -> String {
        self.sql("postgres", &format!("SELECT count(*) FROM semel_records WHERE key = '{key}'"))
    }

    /// Waits until a query has a row.
    ///
    /// # Panics
    ///
    /// If that does not come to pass, or the server does not answer.
    pub fn wait_for(&self, query: &str) {
        eventually(query, || (!self.sql("postgres", query).is_empty()).then_some(()));
    }
}

/// Starts the server and waits until it takes connections.
fn launch(folder: &Folder, port: u16, settings: &[(String, String)]) -> Option<ServerProcess> {
    let user = User::of_servers();
    let mut args = vec!["-D".to_owned(), "data".to_owned(), "-p".to_owned(), port.to_string()];
    for (name, value) in settings {
        args.extend(["-c".to_owned(), format!("{name}={value}")]);
    }
    let mut ready = user.command(program("pg_isready"), folder.path());
    ready.args(["--quiet", "--host=127.0.0.1", &format!("--port={port}")]);
    // SIGQUIT is "immediate": no checkpoint, but shared memory is given back to the system.
    ServerProcess::start(user, folder, "QUIT", &program("postgres"), &args)
        .once(|| ready.status().is_ok_and(|status| status.success()))
}

/// A program of PostgreSQL.
fn program(name: &str) -> PathBuf {
    let path = PathBuf::from(PROGRAMS).join(name);
    assert!(path.exists(), "there is no {}; {}", path.display(), missing("postgresql-15"));
    path
}

/// Runs a program that has to succeed.
fn run(command: &mut Command) {
    let output = command.output().expect("a program of PostgreSQL runs");
    assert!(output.status.success(), "{command:?}: {}", String::from_utf8_lossy(&output.stderr));
}
