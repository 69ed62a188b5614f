//! The program that is examined, as a process of its own.

use std::{
    fmt::Display,
    fs,
    io::{BufRead as _, BufReader},
    net::SocketAddr,
    path::Path,
    process::{Child, Command, Stdio},
    sync::{Arc, Mutex, mpsc},
    thread,
};

use tempfile::TempDir;

use crate::TEST_TIMEOUT;

/// A running `semel serve`; killed when it is dropped.
pub(crate) struct Gateway {
    pub(crate) address: SocketAddr,
    child: Child,
    log: Arc<Mutex<String>>,
    folder: TempDir,
}

/// A configuration, in pieces of TOML. What is not said is as in a fresh installation, on a store
/// in memory, and callers need no credential.
pub(crate) struct Setup {
    store: &'static str,
    gateway: String,
    defaults: String,
    rest: String,
    folder: TempDir,
}

impl Setup {
    /// In front of an upstream in the clear.
    pub(crate) fn at(upstream: SocketAddr) -> Self {
        Self::upstream(format_args!("\"http://{upstream}\""))
    }

    /// In front of an upstream that speaks HTTP/2 without TLS.
    pub(crate) fn at_http2(upstream: SocketAddr) -> Self {
        Self::upstream(format_args!("{{ url = \"http://{upstream}\", protocol = \"http2\" }}"))
    }

    /// In front of the upstream that this value describes.
    pub(crate) fn upstream(upstream: impl Display) -> Self {
        Self {
            store: "memory:",
            gateway: format!("listen = \"127.0.0.1:0\"\nupstream = {upstream}\n"),
            defaults: "caller = [\"authorization\", \"anonymous\"]\n".to_owned(),
            rest: String::new(),
            folder: TempDir::new().unwrap(),
        }
    }

    /// On a store in a file.
    pub(crate) fn on_disk(mut self) -> Self {
        self.store = "sqlite:semel.db";
        self
    }

    /// A line of `[gateway]`.
    pub(crate) fn gateway(mut self, line: impl Display) -> Self {
        self.gateway += &format!("{line}\n");
        self
    }

    /// A line of `[defaults]`.
    pub(crate) fn defaults(mut self, line: impl Display) -> Self {
        self.defaults += &format!("{line}\n");
        self
    }

    /// More tables.
    pub(crate) fn more(mut self, tables: impl Display) -> Self {
        self.rest += &format!("{tables}\n");
        self
    }

    /// Where files for the gateway can be put; gone when it ends.
    pub(crate) fn folder(&self) -> &Path {
        self.folder.path()
    }

    pub(crate) fn start(self) -> Gateway {
        let Self { store, gateway, defaults, rest, folder } = self;
        let path = folder.path().join("semel.toml");
        let text = format!(
            "store = \"{store}\"\n[gateway]\n{gateway}[api]\nlisten = \"off\"\n[defaults]\n\
             {defaults}{rest}"
        );
        fs::write(&path, text).unwrap();
        let mut child = Command::new(env!("CARGO_BIN_EXE_semel"))
            .args(["serve", "--config"])
            .arg(&path)
            .current_dir(folder.path())
            .stdin(Stdio::null())
            .stdout(Stdio::null())
            .stderr(Stdio::piped())
            .spawn()
            .unwrap();
        let log = Arc::<Mutex<String>>::default();
        let (sender, receiver) = mpsc::channel();
        let lines = BufReader::new(child.stderr.take().unwrap()).lines();
        thread::spawn({
            let log = Arc::clone(&log);
            move || {
                for line in lines.map_while(Result::ok) {
                    let _ = listening(&line).is_some_and(|address| sender.send(address).is_ok());
                    *log.lock().unwrap() += &(line + "\n");
                }
            }
        });
        let Ok(address) = receiver.recv_timeout(TEST_TIMEOUT) else {
            let _ = child.kill();
            panic!("the gateway does not start: {}", log.lock().unwrap());
        };
        Gateway { address, child, log, folder }
    }
}

/// The address in the line that says where it listens.
fn listening(line: &str) -> Option<SocketAddr> {
    let (_, rest) = line.split_once("listening on http")?;
    let (_, address) = rest.split_once("://")?;
    address.split_whitespace().next()?.parse().ok()
}

impl Gateway {
    /// In front of an upstream in the clear, with the defaults.
    pub(crate) fn at(upstream: SocketAddr) -> Self {
        Setup::at(upstream).start()
    }

    /// Where its store is, if it is on disk.
    pub(crate) fn folder(&self) -> &Path {
        self.folder.path()
    }

    /// What it has said so far.
    pub(crate) fn log(&self) -> String {
        self.log.lock().unwrap().clone()
    }

    /// The most memory that it has had, in KiB.
    pub(crate) fn memory_peak_kib(&self) -> u64 {
        let status = fs::read_to_string(format!("/proc/{}/status", self.child.id())).unwrap();
        let line = status.lines().find_map(|line| line.strip_prefix("VmHWM:")).unwrap();
        line.trim().trim_end_matches("kB").trim().parse().unwrap()
    }
}

impl Drop for Gateway {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
        if thread::panicking() {
            // The test runner shows it with the failure.
            #[expect(clippy::print_stderr, reason = "the gateway's side of a failure")]
            {
                eprintln!("{}", self.log());
            }
        }
    }
}
