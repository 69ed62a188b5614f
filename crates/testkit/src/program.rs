//! A program under test: a process of its own, its log collected, killed when it is dropped.

use std::io::{BufRead as _, BufReader, Read};
use std::net::SocketAddr;
use std::process::{Child, Command, ExitStatus, Output, Stdio};
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::thread;
use std::time::Duration;

use rustix::process::{Pid, Signal, kill_process};

/// How long a program may take to start, to log a line or to end, on a busy machine.
const PROGRAM_TIMEOUT: Duration = Duration::from_secs(60);

/// The output and the errors of a program.
const STREAMS: usize = 2;

/// How often the exit of a program is looked for.
const EXIT_POLL_INTERVAL: Duration = Duration::from_millis(5);

/// A running program. Its log is printed if the test fails.
#[derive(Debug)]
pub struct Program {
    child: Mutex<Child>,
    log: Arc<ProgramLog>,
}

#[derive(Debug, Default)]
struct ProgramLog {
    state: Mutex<LogState>,
    changed: Condvar,
}

#[derive(Debug, Default)]
struct LogState {
    lines: Vec<String>,
    /// Streams of the program that have ended.
    ended: usize,
}

impl Program {
    /// Starts a program without input. Both its output and its errors are its log.
    ///
    /// # Panics
    ///
    /// If the program cannot be started.
    #[must_use]
    pub fn start(command: &mut Command) -> Self {
        command.stdin(Stdio::null()).stdout(Stdio::piped()).stderr(Stdio::piped());
        let mut child = command.spawn().unwrap_or_else(|error| panic!("{command:?}: {error}"));
        let log = Arc::<ProgramLog>::default();
        log.collect(child.stdout.take().expect("a pipe"));
        log.collect(child.stderr.take().expect("a pipe"));
        Self { child: Mutex::new(child), log }
    }

    /// The number of the process.
    #[must_use]
    pub fn id(&self) -> u32 {
        self.child().id()
    }

    fn child(&self) -> MutexGuard<'_, Child> {
        self.child.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// The log so far, as lines.
    #[must_use]
    pub fn log_lines(&self) -> Vec<String> {
        self.log.state().lines.clone()
    }

    /// The log so far, as text.
    #[must_use]
    pub fn log(&self) -> String {
        self.log_lines().iter().flat_map(|line| [line, "\n"]).collect()
    }

    /// The address in the first line of the log with this text before a URL, such as `listening
    /// on`.
    #[must_use]
    pub fn logged_address(&self, text: &str) -> Option<SocketAddr> {
        self.log.state().lines.iter().find_map(|line| address_after(text, line))
    }

    /// Waits for a line with this text before a URL, and returns the address in the URL.
    ///
    /// # Panics
    ///
    /// If the program ends or takes too long.
    #[track_caller]
    #[must_use]
    pub fn wait_for_address(&self, text: &str) -> SocketAddr {
        self.wait_for(text, |log| log.iter().find_map(|line| address_after(text, line)))
    }

    /// Waits for a line that contains this text.
    ///
    /// # Panics
    ///
    /// If the program ends or takes too long.
    #[track_caller]
    pub fn wait_for_log(&self, text: &str) {
        self.wait_for(text, |log| log.iter().any(|line| line.contains(text)).then_some(()));
    }

    /// Waits until something is found in the lines of the log.
    ///
    /// # Panics
    ///
    /// If the program ends or takes too long.
    #[track_caller]
    pub fn wait_for<T>(&self, what: &str, find: impl Fn(&[String]) -> Option<T>) -> T {
        let mut found = None;
        let waits = |state: &mut LogState| {
            found = find(&state.lines);
            found.is_none() && state.ended < STREAMS
        };
        let state = self.log.state();
        let waited = self.log.changed.wait_timeout_while(state, PROGRAM_TIMEOUT, waits);
        let (state, timeout) = waited.unwrap_or_else(PoisonError::into_inner);
        found.unwrap_or_else(|| {
            let why = if timeout.timed_out() { "it takes too long" } else { "it ended" };
            panic!("{why} without {what:?} in its log: {:#?}", state.lines)
        })
    }

    /// Sends a signal by its name, such as `TERM`.
    ///
    /// # Panics
    ///
    /// If the program has ended, or the name is unknown.
    pub fn signal(&self, name: &str) {
        let signal = match name {
            "CONT" => Signal::CONT,
            "HUP" => Signal::HUP,
            "INT" => Signal::INT,
            "STOP" => Signal::STOP,
            "TERM" => Signal::TERM,
            _ => panic!("no signal {name}"),
        };
        let mut child = self.child();
        // Until its exit status is read, its number is not another's.
        assert_eq!(child.try_wait().expect("a state"), None, "it has ended");
        let number = i32::try_from(child.id()).ok().and_then(Pid::from_raw);
        kill_process(number.expect("a process id"), signal).expect("a signal sent");
    }

    /// Kills the program, as a power cut would, and waits until it is gone.
    ///
    /// # Panics
    ///
    /// If the process cannot be killed.
    pub fn kill(&self) {
        let mut child = self.child();
        child.kill().expect("a process");
        child.wait().expect("an exit status");
    }

    /// How the program ended, if it did.
    ///
    /// # Panics
    ///
    /// If the state of the process cannot be read.
    #[must_use]
    pub fn exit_status(&self) -> Option<ExitStatus> {
        self.child().try_wait().expect("a state")
    }

    /// Waits until the program has ended.
    ///
    /// # Panics
    ///
    /// If it takes too long.
    #[must_use]
    pub fn wait_for_exit(&self) -> ExitStatus {
        let mut left = PROGRAM_TIMEOUT;
        loop {
            if let Some(status) = self.exit_status() {
                return status;
            }
            let rest = left.checked_sub(EXIT_POLL_INTERVAL);
            left = rest.unwrap_or_else(|| panic!("it does not end: {:#?}", self.log_lines()));
            thread::sleep(EXIT_POLL_INTERVAL);
        }
    }
}

impl Drop for Program {
    fn drop(&mut self) {
        let child = self.child.get_mut().unwrap_or_else(PoisonError::into_inner);
        let number = child.id();
        let _ = child.kill();
        let _ = child.wait();
        if thread::panicking() {
            // The test runner shows it with the failure.
            #[expect(clippy::print_stderr, reason = "the program's side of a failure")]
            {
                eprintln!("--- log of process {number}:\n{}---", self.log());
            }
        }
    }
}

impl ProgramLog {
    fn state(&self) -> MutexGuard<'_, LogState> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Appends the lines of a stream until it ends.
    fn collect(self: &Arc<Self>, stream: impl Read + Send + 'static) {
        let log = Arc::clone(self);
        thread::spawn(move || {
            let mut lines = BufReader::new(stream);
            let mut line = Vec::new();
            while lines.read_until(b'\n', &mut line).is_ok_and(|read| read > 0) {
                let text = String::from_utf8_lossy(&line);
                log.change(|state| state.lines.push(text.trim_end().to_owned()));
                line.clear();
            }
            log.change(|state| state.ended += 1);
        });
    }

    fn change(&self, change: impl FnOnce(&mut LogState)) {
        change(&mut self.state());
        self.changed.notify_all();
    }
}

/// The address of the URL that comes after this text in a line.
fn address_after(text: &str, line: &str) -> Option<SocketAddr> {
    let (_, rest) = line.split_once(text)?;
    let (_, rest) = rest.split_once("://")?;
    rest.split([' ', '/', ',', '"']).next()?.parse().ok()
}

/// What a command returned.
#[derive(Debug)]
pub struct CommandOutput {
    /// The exit code.
    pub code: i32,
    /// What it printed on its standard output.
    pub stdout: String,
    /// What it printed on its standard error.
    pub stderr: String,
}

impl From<Output> for CommandOutput {
    fn from(output: Output) -> Self {
        let text = |bytes| String::from_utf8(bytes).expect("text");
        let code = output.status.code().expect("an exit code");
        Self { code, stdout: text(output.stdout), stderr: text(output.stderr) }
    }
}

impl CommandOutput {
    /// Runs a command to its end.
    ///
    /// # Panics
    ///
    /// If the command does not start, is killed, or prints something that is not text.
    #[must_use]
    pub fn of(command: &mut Command) -> Self {
        command.output().unwrap_or_else(|error| panic!("{command:?}: {error}")).into()
    }

    /// Asserts the exit code.
    ///
    /// # Panics
    ///
    /// If it is another.
    #[track_caller]
    pub fn assert_exit(&self, code: i32) -> &Self {
        assert_eq!(self.code, code, "{self:?}");
        self
    }

    /// The lines of the standard output, each a JSON document.
    ///
    /// # Panics
    ///
    /// If one of them is not.
    #[must_use]
    pub fn json(&self) -> Vec<serde_json::Value> {
        self.stdout.lines().map(|line| serde_json::from_str(line).expect("JSON")).collect()
    }
}

#[cfg(test)]
mod tests {
    use std::path::Path;

    use super::*;

    fn shell(script: &str) -> Program {
        Program::start(Command::new("sh").args(["-c", script]))
    }

    #[test]
    fn a_program_is_reached_by_its_logged_address_and_is_gone_when_dropped() {
        let program = shell("echo api on http://127.0.0.1:9/, ok >&2; exec sleep 60");
        assert_eq!(program.wait_for_address("api on"), "127.0.0.1:9".parse().unwrap());
        let process = format!("/proc/{}", program.id());
        assert!(Path::new(&process).exists());
        drop(program);
        assert!(!Path::new(&process).exists());
    }

    #[test]
    fn a_signalled_program_ends_with_its_own_exit_code() {
        let program = shell("trap 'exit 7' TERM; echo ready; while :; do sleep 0.01; done");
        program.wait_for_log("ready");
        program.signal("TERM");
        assert_eq!(program.wait_for_exit().code(), Some(7));
    }

    #[test]
    #[should_panic(expected = "it ended without \"ready\" in its log")]
    fn a_program_that_ends_is_not_waited_for() {
        shell("echo no").wait_for_log("ready");
    }
}
