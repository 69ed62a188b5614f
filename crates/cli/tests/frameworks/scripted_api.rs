//! An API whose behaviour the idempotency key chooses by its first word.

use std::{
    collections::{BTreeMap, BTreeSet},
    io::{self, BufReader, Write as _},
    net::{SocketAddr, TcpListener, TcpStream},
    sync::{Arc, Condvar, Mutex},
    thread,
    time::Duration,
};

use crate::http::Message;

/// Whatever a test waits for here happens sooner.
const WAIT_MAX: Duration = Duration::from_secs(60);

#[derive(Debug, Default)]
struct State {
    runs: BTreeMap<String, usize>,
    /// The prefixes of keys that are answered by now.
    opened: BTreeSet<&'static str>,
}

#[derive(Debug, Default)]
struct Shared {
    state: Mutex<State>,
    changed: Condvar,
}

/// A running API. `cut-…` closes the connection instead of an answer; `slow-…`, `busy-…` and
/// `late-…` are answered once they are opened, and all others at once.
#[derive(Debug)]
pub(crate) struct ScriptedApi {
    pub(crate) address: SocketAddr,
    shared: Arc<Shared>,
}

impl ScriptedApi {
    pub(crate) fn start() -> Self {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let address = listener.local_addr().unwrap();
        let shared = Arc::new(Shared::default());
        let accepting = Arc::clone(&shared);
        thread::spawn(move || {
            for client in listener.incoming() {
                let shared = Arc::clone(&accepting);
                // What the gateway does with its connection is the gateway's business.
                thread::spawn(move || serve(client?, &shared));
            }
        });
        Self { address, shared }
    }

    /// How often a key was executed.
    pub(crate) fn runs(&self, key: &str) -> usize {
        self.shared.state.lock().unwrap().runs.get(key).copied().unwrap_or_default()
    }

    /// How many executions there were.
    pub(crate) fn runs_in_all(&self) -> usize {
        self.shared.state.lock().unwrap().runs.values().sum()
    }

    /// Answers the keys with this prefix, now and from now on.
    pub(crate) fn open(&self, prefix: &'static str) {
        self.shared.state.lock().unwrap().opened.insert(prefix);
        self.shared.changed.notify_all();
    }

    /// Waits until a key was executed once.
    pub(crate) fn wait_for(&self, key: &str) {
        self.shared.wait_while(|state| !state.runs.contains_key(key));
    }
}

impl Shared {
    fn wait_while(&self, condition: impl Fn(&State) -> bool) {
        let state = self.state.lock().unwrap();
        let (state, waited) =
            self.changed.wait_timeout_while(state, WAIT_MAX, |state| condition(state)).unwrap();
        assert!(!waited.timed_out(), "it never happened: {state:?}");
    }

    fn run(&self, key: &str) {
        *self.state.lock().unwrap().runs.entry(key.to_owned()).or_default() += 1;
        self.changed.notify_all();
        let gated = ["slow-", "busy-", "late-"].into_iter().find(|it| key.starts_with(it));
        if let Some(prefix) = gated {
            self.wait_while(|state| !state.opened.contains(prefix));
        }
    }
}

fn serve(client: TcpStream, shared: &Shared) -> io::Result<()> {
    client.set_nodelay(true)?;
    let mut client = BufReader::new(client);
    while let Some(request) = Message::read(&mut client)? {
        let key = request.header("idempotency-key").unwrap_or_default().trim_matches('"');
        shared.run(key);
        if key.starts_with("cut-") {
            return Ok(());
        }
        let note = "x".repeat(100);
        let body = format!(r#"{{"id": "made for {key}", "object": "order", "note": "{note}"}}"#);
        let length = body.len();
        let head = format!(
            "HTTP/1.1 200 OK\r\nContent-Type: application/json\r\nContent-Length: {length}\r\n\r\n"
        );
        client.get_mut().write_all((head + &body).as_bytes())?;
    }
    Ok(())
}
