//! A server process that cannot outlive the test process.
//!
//! A destructor does not run when a test process is killed, aborts or is left with a static. So
//! every server is the child of a small `sh` that reads a pipe whose other end only the test
//! process holds: when that end closes, for whatever reason, the shell ends the server. Folders
//! are removed in the same way.

use std::fs;
use std::hash::{BuildHasher as _, RandomState};
use std::io::{BufRead as _, BufReader};
use std::net::TcpListener;
use std::os::unix::fs::chown;
use std::os::unix::process::CommandExt as _;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, ExitStatus, Stdio};
use std::thread;
use std::time::Duration;

use rustix::process::{Pid, Signal, geteuid, kill_process};

/// How long a server may take to start or to end, on a machine with much else to do.
const SERVER_TIMEOUT: Duration = Duration::from_secs(60);

/// Starts the server, says its process id, waits for it, and ends it when the pipe closes: first
/// by the signal that lets it tidy up, also if it is paused, then by force.
const SUPERVISE: &str = r#"
log=$1 signal=$2; shift 2
exec 3<&0 </dev/null
"$@" >>"$log" 2>&1 3<&- & server=$!
echo $server
{
    read -r _ <&3
    kill -s "$signal" $server
    kill -s CONT $server
    n=0
    while [ $n -lt 100 ] && kill -0 $server; do sleep 0.1; n=$((n + 1)); done
    kill -s KILL $server
} >/dev/null 2>&1 & reader=$!
exec 2>/dev/null
wait $server; status=$?
kill $reader
exit $status
"#;

/// Removes a folder when the pipe closes. A server that is being ended may still write there.
const REMOVE: &str = r#"
read -r _
n=0
while [ $n -lt 100 ] && ! rm -rf "$1" 2>/dev/null; do sleep 0.1; n=$((n + 1)); done
"#;

/// The user that servers run as when the tests run as root, which PostgreSQL refuses to serve.
#[derive(Debug, Clone, Copy)]
pub(super) struct User {
    ids: Option<(u32, u32)>,
}

impl User {
    /// The user `postgres` for root, and otherwise the user who runs the tests.
    pub(super) fn of_servers() -> Self {
        if !geteuid().is_root() {
            return Self { ids: None };
        }
        let users = fs::read_to_string("/etc/passwd").expect("a list of users");
        let fields = users.lines().map(|line| line.split(':').collect::<Vec<_>>());
        let ids = fields
            .filter(|fields| fields.first() == Some(&"postgres"))
            .find_map(|fields| Some((fields.get(2)?.parse().ok()?, fields.get(3)?.parse().ok()?)));
        assert!(ids.is_some(), "no user postgres to run servers as; {}", missing("postgresql-15"));
        Self { ids }
    }

    /// A command that this user runs in `folder`, with nothing of the environment but a path.
    pub(super) fn command(self, program: impl AsRef<Path>, folder: &Path) -> Command {
        let mut command = Command::new(program.as_ref());
        command.env_clear().env("PATH", "/usr/bin:/bin").env("LC_ALL", "C.UTF-8");
        command.current_dir(folder).stdin(Stdio::null());
        if let Some((user, group)) = self.ids {
            command.uid(user).gid(group);
        }
        command
    }
}

/// What to do about a program that is not there.
pub(super) fn missing(package: &str) -> String {
    format!("install it: apt-get install {package} (`cargo xtask test` does so as root)")
}

/// A temporary folder that goes when the test process does.
#[derive(Debug)]
pub(super) struct Folder {
    path: PathBuf,
    remover: Child,
}

impl Folder {
    pub(super) fn new(name: &str, user: User) -> Self {
        let folder = tempfile::Builder::new().prefix(&format!("semel-{name}-")).tempdir();
        let path = folder.expect("a temporary folder").keep();
        if let Some((user, group)) = user.ids {
            chown(&path, Some(user), Some(group)).expect("the folder given to its user");
        }
        let mut remover = user.command("sh", Path::new("/"));
        remover.args(["-c", REMOVE, "remove"]).arg(&path).process_group(0);
        let remover = remover.stdin(Stdio::piped()).spawn().expect("a shell");
        Self { path, remover }
    }

    pub(super) fn path(&self) -> &Path {
        &self.path
    }

    /// What the server in it has written.
    pub(super) fn log(&self) -> String {
        fs::read_to_string(self.path.join("log")).unwrap_or_default()
    }
}

impl Drop for Folder {
    fn drop(&mut self) {
        drop(self.remover.stdin.take());
        drop(self.remover.wait());
    }
}

/// A server that runs.
#[derive(Debug)]
pub(super) struct ServerProcess {
    pid: Pid,
    shell: Child,
}

impl ServerProcess {
    /// Starts `program`, which must stay in the foreground. `ending` is the name of the signal that
    /// ends it quickly and without leaving anything behind.
    pub(super) fn start(
        user: User,
        folder: &Folder,
        ending: &str,
        program: &Path,
        args: &[String],
    ) -> Self {
        let mut shell = user.command("sh", folder.path());
        shell.args(["-c", SUPERVISE, "supervise", "log", ending]).arg(program).args(args);
        // A group of its own: an interrupt from the keyboard is not for the shell, which would die
        // of it and leave the server behind.
        shell.process_group(0).stdin(Stdio::piped()).stdout(Stdio::piped());
        let mut shell = shell.spawn().expect("a shell");
        let mut line = String::new();
        let stdout = shell.stdout.take().expect("a pipe from the shell");
        BufReader::new(stdout).read_line(&mut line).expect("the shell says whom it has started");
        let pid = line.trim().parse().ok().and_then(Pid::from_raw);
        Self { pid: pid.expect("a process id"), shell }
    }

    /// Waits until the server is ready. `None` if it ended instead: its log says why.
    pub(super) fn once(mut self, mut is_ready: impl FnMut() -> bool) -> Option<Self> {
        let started = eventually("a server starts", || match self.ended() {
            Some(_) => Some(false),
            None => is_ready().then_some(true),
        });
        started.then_some(self)
    }

    /// Sends a signal to the server, if it is still there.
    pub(super) fn signal(&mut self, signal: Signal) {
        // The shell ends with its child, so while it runs the number is not another's.
        if self.ended().is_none() {
            let _ = kill_process(self.pid, signal);
        }
    }

    /// How the server ended, if it did.
    pub(super) fn ended(&mut self) -> Option<ExitStatus> {
        self.shell.try_wait().expect("the shell's state")
    }

    /// Waits until a server that was signalled has ended.
    pub(super) fn join(&mut self) {
        eventually("the server ends", || self.ended());
    }

    /// Stops the server and all its children in the middle of whatever they do.
    pub(super) fn pause(&mut self) {
        // It first, so that it starts no more of them while they are counted.
        self.signal(Signal::STOP);
        self.signal_children(Signal::STOP);
    }

    /// Lets a paused server go on.
    pub(super) fn resume(&mut self) {
        self.signal_children(Signal::CONT);
        self.signal(Signal::CONT);
    }

    /// Kills the server and all its children at one instant, as a power cut would.
    pub(super) fn kill(&mut self) {
        self.pause();
        self.signal_children(Signal::KILL);
        self.signal(Signal::KILL);
        self.join();
    }

    fn signal_children(&self, signal: Signal) {
        for child in children(self.pid) {
            let _ = kill_process(child, signal);
        }
    }
}

impl Drop for ServerProcess {
    fn drop(&mut self) {
        drop(self.shell.stdin.take());
        drop(self.shell.wait());
    }
}

/// The processes whose parent is `parent`.
fn children(parent: Pid) -> Vec<Pid> {
    let entries = fs::read_dir("/proc").expect("the list of processes").flatten();
    let numbers = entries.filter_map(|entry| entry.file_name().to_str()?.parse::<i32>().ok());
    let is_child = |number: &i32| {
        let stat = fs::read_to_string(format!("/proc/{number}/stat")).unwrap_or_default();
        // The name in parentheses may contain anything; the parent is the second word after it.
        let rest = stat.rsplit_once(')').map_or("", |(_, rest)| rest);
        rest.split_whitespace().nth(1) == Some(&parent.as_raw_nonzero().to_string())
    };
    numbers.filter(is_child).filter_map(Pid::from_raw).collect()
}

/// Starts a server on a free port. Another process may take the port between looking for it
/// and using it, so there is another try.
pub(super) fn on_free_port(
    folder: &Folder,
    launch: impl Fn(&Folder, u16) -> Option<ServerProcess>,
) -> (ServerProcess, u16) {
    let mut tries = (0..5).map(|_| free_port());
    let started = tries.find_map(|port| launch(folder, port).map(|process| (process, port)));
    started.unwrap_or_else(|| panic!("the server does not start:\n{}", folder.log()))
}

/// A port without a listener.
///
/// It is below the ports that the system gives to outgoing connections: a client that tries again
/// and again to reach a dead server on one of those can end up connected to itself.
fn free_port() -> u16 {
    let random = (0..1000).map(|n| RandomState::new().hash_one(n) % 12_000);
    let mut ports = random.filter_map(|n| u16::try_from(20_000 + n).ok());
    ports.find(|port| TcpListener::bind(("127.0.0.1", *port)).is_ok()).expect("a free port")
}

/// Asks until there is an answer.
pub(super) fn eventually<T>(what: &str, mut ask: impl FnMut() -> Option<T>) -> T {
    const PAUSE: Duration = Duration::from_millis(10);
    let mut left = SERVER_TIMEOUT;
    loop {
        if let Some(answer) = ask() {
            return answer;
        }
        left = left.checked_sub(PAUSE).unwrap_or_else(|| panic!("waited too long: {what}"));
        thread::sleep(PAUSE);
    }
}
