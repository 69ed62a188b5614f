//! Redis: an instance, and how it can come to harm.

use std::fmt::Write as _;
use std::fs;
use std::io::{BufRead as _, BufReader, Write as _};
use std::net::TcpStream;
use std::path::Path;

use super::process::{Folder, ServerProcess, User, missing, on_free_port};

const PROGRAM: &str = "/usr/bin/redis-server";

/// One instance of Redis that keeps nothing on disk but what [`Redis::snapshot`] asks for.
#[derive(Debug)]
pub struct Redis {
    process: ServerProcess,
    port: u16,
    folder: Folder,
}

/// Everything that an instance held at some moment.
#[derive(Debug, Clone)]
pub struct RedisSnapshot(Vec<u8>);

impl Redis {
    /// Starts an instance.
    ///
    /// # Panics
    ///
    /// If Redis is not installed or does not start: the message has its log.
    #[must_use]
    pub fn start() -> Self {
        Self::start_with(&[])
    }

    /// Starts an instance with these lines in its configuration, such as
    /// `("user", "semel on >secret ~* +@all")`.
    ///
    /// # Panics
    ///
    /// If Redis is not installed or does not start: the message has its log.
    #[must_use]
    pub fn start_with(settings: &[(&str, &str)]) -> Self {
        assert!(Path::new(PROGRAM).exists(), "there is no {PROGRAM}; {}", missing("redis-server"));
        let folder = Folder::new("redis", User::of_servers());
        let (process, port) = on_free_port(&folder, |folder, port| {
            let mut text = format!("bind 127.0.0.1\nport {port}\nsave \"\"\ndbfilename dump\n");
            for (name, value) in settings {
                let _ = writeln!(text, "{name} {value}");
            }
            fs::write(folder.path().join("conf"), text).expect("a configuration");
            launch(folder, port)
        });
        Self { process, port, folder }
    }

    /// The address of the instance.
    #[must_use]
    pub fn url(&self) -> String {
        format!("redis://127.0.0.1:{}/", self.port)
    }

    /// The port on 127.0.0.1.
    #[must_use]
    pub fn port(&self) -> u16 {
        self.port
    }

    /// Kills the instance. Everything that it held is gone.
    pub fn kill(&mut self) {
        self.process.kill();
    }

    /// Starts an instance that was killed, on the same port and empty.
    ///
    /// # Panics
    ///
    /// If it does not start.
    pub fn start_again(&mut self) {
        let _ = fs::remove_file(self.folder.path().join("dump"));
        self.launch();
    }

    fn launch(&mut self) {
        assert!(self.process.ended().is_some(), "the server runs already");
        self.process = launch(&self.folder, self.port)
            .unwrap_or_else(|| panic!("Redis does not start:\n{}", self.folder.log()));
    }

    /// Stops it in the middle of whatever it does. Connections stay, and nothing is answered.
    pub fn pause(&mut self) {
        self.process.pause();
    }

    /// Lets it go on.
    pub fn resume(&mut self) {
        self.process.resume();
    }

    /// Forgets everything.
    pub fn flush(&self) {
        self.command("FLUSHALL SYNC");
    }

    /// What it holds now.
    ///
    /// # Panics
    ///
    /// If it does not answer.
    #[must_use]
    pub fn snapshot(&self) -> RedisSnapshot {
        self.command("SAVE");
        RedisSnapshot(fs::read(self.folder.path().join("dump")).expect("a snapshot"))
    }

    /// Makes it hold what it held when the snapshot was taken. It is killed for that.
    ///
    /// # Panics
    ///
    /// If it does not start again.
    pub fn restore(&mut self, snapshot: &RedisSnapshot) {
        self.kill();
        fs::write(self.folder.path().join("dump"), &snapshot.0).expect("the snapshot put back");
        self.launch();
    }

    /// Says a command and gives the first line of the answer, without the sign before it.
    ///
    /// # Panics
    ///
    /// If it is refused or not answered.
    pub fn command(&self, words: &str) -> String {
        ask(self.port, words).unwrap_or_else(|error| panic!("{words}: {error}"))
    }
}

/// Starts the server and waits until it answers: while it loads a snapshot it says an error.
fn launch(folder: &Folder, port: u16) -> Option<ServerProcess> {
    let args = ["conf".to_owned()];
    ServerProcess::start(User::of_servers(), folder, "KILL", Path::new(PROGRAM), &args)
        .once(|| ask(port, "PING").is_ok_and(|said| said == "PONG"))
}

/// One command on a connection of its own, in the form that people type.
fn ask(port: u16, words: &str) -> Result<String, String> {
    let said = || {
        let mut stream = TcpStream::connect(("127.0.0.1", port))?;
        stream.write_all(format!("{words}\r\n").as_bytes())?;
        let mut line = String::new();
        BufReader::new(stream).read_line(&mut line)?;
        std::io::Result::Ok(line)
    };
    let line = said().map_err(|error| error.to_string())?;
    match line.trim_end().split_at_checked(1) {
        Some(("-", _)) | None => Err(line),
        Some((_, rest)) => Ok(rest.to_owned()),
    }
}
