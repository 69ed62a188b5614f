//! A proxy that misbehaves by a script: one for each path, one step for each request.

use std::{
    collections::BTreeMap,
    io::{self, BufReader, Write as _},
    net::{SocketAddr, TcpListener, TcpStream},
    sync::{Arc, Mutex, MutexGuard, mpsc},
    thread,
    time::{Duration, Instant},
};

use socket2::SockRef;

use crate::http::{Connection, Message};

/// Longer than any timeout of a client here.
const STALL: Duration = Duration::from_secs(60);

/// Shorter than any timeout of a client here.
const DRIP_PAUSE: Duration = Duration::from_millis(500);

/// What happens to one request. After the last step of its script everything passes.
#[derive(Clone, Copy, Debug)]
pub(crate) enum Misbehaviour {
    /// The connection is reset, and the server never sees the request.
    Reset,
    /// The server answers, and none of it arrives.
    DropAnswer,
    /// The server answers, and half of the body arrives before the connection closes.
    HalfAnswer,
    /// The server answers, and the connection stays open after half of the body.
    Stall,
    /// The server answers, and its body arrives a byte at a time.
    Drip,
    /// The server never sees the request, and this status with these headers comes instead.
    Answer(u16, &'static str),
    /// The test is notified, and the request never arrives.
    NotifyBefore,
    /// The server answers, the test is notified, and none of it arrives.
    NotifyAfter,
}

/// A request that arrived here.
#[derive(Clone, Debug)]
pub(crate) struct Arrival {
    pub(crate) key: String,
    pub(crate) body: Vec<u8>,
    pub(crate) at: Instant,
    pub(crate) timeout_ms: Option<u64>,
}

#[derive(Debug)]
struct Shared {
    server: SocketAddr,
    scripts: BTreeMap<&'static str, &'static [Misbehaviour]>,
    arrivals: Mutex<BTreeMap<String, Vec<Arrival>>>,
    notify: mpsc::Sender<()>,
}

/// A running proxy.
#[derive(Debug)]
pub(crate) struct MisbehavingProxy {
    pub(crate) address: SocketAddr,
    /// What the steps that notify send.
    pub(crate) notified: mpsc::Receiver<()>,
    shared: Arc<Shared>,
}

impl MisbehavingProxy {
    /// In front of a server, with a script for each path without its slash.
    pub(crate) fn start(
        server: SocketAddr,
        scripts: impl IntoIterator<Item = (&'static str, &'static [Misbehaviour])>,
    ) -> Self {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let address = listener.local_addr().unwrap();
        let (notify, notified) = mpsc::channel();
        let scripts = scripts.into_iter().collect();
        let shared = Arc::new(Shared { server, scripts, arrivals: Mutex::default(), notify });
        let accepting = Arc::clone(&shared);
        thread::spawn(move || {
            for client in listener.incoming() {
                let shared = Arc::clone(&accepting);
                // A connection that ends with an error ends alone.
                thread::spawn(move || shared.carry(client?));
            }
        });
        Self { address, notified, shared }
    }

    /// The requests for a path, in order.
    pub(crate) fn arrivals(&self, path: &str) -> Vec<Arrival> {
        self.shared.arrivals().get(path).cloned().unwrap_or_default()
    }
}

impl Shared {
    fn arrivals(&self) -> MutexGuard<'_, BTreeMap<String, Vec<Arrival>>> {
        self.arrivals.lock().unwrap()
    }

    fn carry(&self, client: TcpStream) -> io::Result<()> {
        client.set_nodelay(true)?;
        let mut client = BufReader::new(client);
        while let Some(request) = Message::read(&mut client)? {
            let Some(step) = self.next_step(&request) else {
                let answer = self.ask(&request)?;
                client.get_mut().write_all(&answer.bytes())?;
                continue;
            };
            if !self.misbehave(step, &request, client.get_mut())? {
                return Ok(());
            }
        }
        Ok(())
    }

    /// Remembers the request.
    #[expect(clippy::disallowed_methods, reason = "the gap between two requests is checked")]
    fn next_step(&self, request: &Message) -> Option<Misbehaviour> {
        let path = request.path().trim_start_matches('/').to_owned();
        let arrival = Arrival {
            key: request.header("idempotency-key").unwrap_or_default().to_owned(),
            body: request.body.clone(),
            at: Instant::now(),
            timeout_ms: request.header("x-request-timeout-ms").and_then(|it| it.parse().ok()),
        };
        let mut arrivals = self.arrivals();
        let script = self.scripts.get(&*path).copied().unwrap_or_default();
        let earlier = arrivals.entry(path).or_default();
        earlier.push(arrival);
        script.get(earlier.len() - 1).copied()
    }

    /// Each request on a connection of its own, which the server may close.
    fn ask(&self, request: &Message) -> io::Result<Message> {
        let mut server = Connection::open(self.server);
        server.send(&request.bytes())?;
        server.message()
    }

    /// Whether the connection goes on.
    fn misbehave(
        &self,
        step: Misbehaviour,
        request: &Message,
        client: &mut TcpStream,
    ) -> io::Result<bool> {
        match step {
            Misbehaviour::Reset => {
                SockRef::from(&*client).set_linger(Some(Duration::ZERO))?;
                Ok(false)
            }
            Misbehaviour::DropAnswer => self.ask(request).map(|_| false),
            Misbehaviour::HalfAnswer | Misbehaviour::Stall => {
                let answer = self.ask(request)?;
                let bytes = answer.bytes();
                client.write_all(&bytes[..bytes.len() - answer.body.len() / 2])?;
                if matches!(step, Misbehaviour::Stall) {
                    thread::sleep(STALL);
                }
                Ok(false)
            }
            Misbehaviour::Drip => {
                let answer = self.ask(request)?;
                let bytes = answer.bytes();
                let (head, body) = bytes.split_at(bytes.len() - answer.body.len());
                client.write_all(head)?;
                for byte in body {
                    client.write_all(std::slice::from_ref(byte))?;
                    thread::sleep(DRIP_PAUSE);
                }
                Ok(false)
            }
            Misbehaviour::Answer(status, headers) => {
                let answer =
                    format!("HTTP/1.1 {status} Scripted\r\n{headers}Content-Length: 2\r\n\r\n{{}}");
                client.write_all(answer.as_bytes()).map(|()| true)
            }
            Misbehaviour::NotifyBefore | Misbehaviour::NotifyAfter => {
                if matches!(step, Misbehaviour::NotifyAfter) {
                    self.ask(request)?;
                }
                self.notify.send(()).unwrap();
                // The client is killed meanwhile.
                thread::sleep(STALL);
                Ok(false)
            }
        }
    }
}
