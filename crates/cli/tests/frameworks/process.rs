//! A program that runs beside the test and says on standard error where it can be reached.

use std::{
    env,
    io::{self, BufRead as _, BufReader, Write as _},
    net::{SocketAddr, TcpStream},
    path::PathBuf,
    process::{Child, Command, Stdio},
    sync::{
        Arc, Mutex,
        mpsc::{self, RecvTimeoutError},
    },
    thread,
    time::Duration,
};

const START_MAX: Duration = Duration::from_secs(60);

/// The same time, for a program that does not say when it has started.
const START_INTERVAL: Duration = Duration::from_millis(20);
const START_LOOKS_MAX: usize = 3000;

/// A running program, killed when it is dropped. What it said is shown if the test fails.
#[derive(Debug)]
pub(crate) struct Process {
    child: Child,
    log: Arc<Mutex<Vec<String>>>,
    pub(crate) address: SocketAddr,
}

impl Process {
    /// Starts it and waits until it says `on http://ADDRESS`.
    pub(crate) fn start(command: &mut Command) -> Self {
        let mut child = command.stdout(Stdio::null()).stderr(Stdio::piped()).spawn().unwrap();
        let lines = BufReader::new(child.stderr.take().unwrap()).lines();
        let log = Arc::new(Mutex::new(Vec::new()));
        let (address_tx, address_rx) = mpsc::channel();
        let hears = Arc::clone(&log);
        thread::spawn(move || {
            for line in lines.map_while(Result::ok) {
                let _ = address_in(&line).map(|address| address_tx.send(address));
                hears.lock().unwrap().push(line);
            }
        });
        match address_rx.recv_timeout(START_MAX) {
            Ok(address) => Self { child, log, address },
            Err(why) => {
                let _ = child.kill();
                let ended = why == RecvTimeoutError::Disconnected;
                let why = if ended { "it ended" } else { "it takes too long" };
                panic!("{command:?} does not start, {why}: {:#?}", log.lock().unwrap());
            }
        }
    }
}

impl Process {
    /// Starts one that does not say where it listens, and waits until it does.
    pub(crate) fn start_at(command: &mut Command, address: SocketAddr) -> Self {
        let mut child = command.stdout(Stdio::null()).spawn().unwrap();
        for _ in 0..START_LOOKS_MAX {
            if TcpStream::connect(address).is_ok() {
                return Self { child, log: Arc::default(), address };
            }
            assert!(child.try_wait().unwrap().is_none(), "{command:?} ended");
            thread::sleep(START_INTERVAL);
        }
        let _ = child.kill();
        panic!("{command:?} does not start, it takes too long");
    }
}

impl Drop for Process {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
        if thread::panicking() {
            let output = self.log.lock().unwrap().join("\n");
            let _ = writeln!(io::stderr(), "--- {} output:\n{output}\n---", self.address);
        }
    }
}

fn address_in(line: &str) -> Option<SocketAddr> {
    let (_, rest) = line.split_once("on http://")?;
    rest.split_whitespace().next()?.parse().ok()
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
