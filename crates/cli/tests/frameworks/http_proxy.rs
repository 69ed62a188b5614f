//! A proxy that counts how often each request is sent and how it is answered. It can lose the first
//! answer to every key, in several ways in turn.

use std::{
    collections::BTreeMap,
    io::{self, BufReader, Write as _},
    net::{SocketAddr, TcpListener, TcpStream},
    sync::{Arc, Condvar, Mutex, MutexGuard},
    thread,
    time::Duration,
};

use crate::http::{Connection, Message};

/// Whatever a test waits for here happens sooner.
const WAIT_MAX: Duration = Duration::from_secs(60);

/// How to lose an answer.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Way {
    Whole,
    Half,
    BeforeAnyAnswer,
}

/// How an answer was lost.
#[derive(Debug)]
pub(crate) enum Loss {
    /// It was given, and none of it arrived.
    Whole(Message),
    /// It was given, and half of it arrived.
    Half(Message),
    /// The connection broke as soon as the request was through.
    BeforeAnyAnswer,
}

impl Loss {
    /// What was answered, where that is known.
    pub(crate) fn answer(&self) -> Option<&Message> {
        match self {
            Self::Whole(answer) | Self::Half(answer) => Some(answer),
            Self::BeforeAnyAnswer => None,
        }
    }
}

/// A request that was answered.
#[derive(Clone, Debug)]
struct Exchange {
    /// The idempotency key; empty where there was none.
    key: String,
    status: u16,
}

#[derive(Debug, Default)]
struct Log {
    exchanges: Vec<Exchange>,
    /// By key, from when its first request is seen.
    losses: BTreeMap<String, Option<Loss>>,
}

#[derive(Debug)]
struct Shared {
    server: SocketAddr,
    /// The ways in which the first answer to every key is lost, in turn.
    loses_first: &'static [Way],
    log: Mutex<Log>,
    added: Condvar,
}

/// A running proxy.
#[derive(Debug)]
pub(crate) struct HttpProxy {
    pub(crate) address: SocketAddr,
    shared: Arc<Shared>,
}

impl HttpProxy {
    /// A proxy that passes everything on.
    pub(crate) fn to(server: SocketAddr) -> Self {
        Self::start(server, &[])
    }

    /// A proxy that loses the first answer to every key.
    pub(crate) fn losing_first_answers_of(server: SocketAddr) -> Self {
        Self::start(server, &[Way::Whole, Way::Half, Way::BeforeAnyAnswer])
    }

    /// A proxy that loses the first answer to every key, and all of it.
    pub(crate) fn losing_whole_first_answers_of(server: SocketAddr) -> Self {
        Self::start(server, &[Way::Whole, Way::BeforeAnyAnswer])
    }

    fn start(server: SocketAddr, loses_first: &'static [Way]) -> Self {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let address = listener.local_addr().unwrap();
        let (log, added) = Default::default();
        let shared = Arc::new(Shared { server, loses_first, log, added });
        let accepting = Arc::clone(&shared);
        thread::spawn(move || {
            for client in listener.incoming() {
                let shared = Arc::clone(&accepting);
                // A connection that ends with an error ends alone.
                thread::spawn(move || shared.carry(client?));
            }
        });
        Self { address, shared }
    }

    /// The statuses that the requests with this key were answered with, in order.
    pub(crate) fn statuses(&self, key: &str) -> Vec<u16> {
        let log = self.shared.log();
        log.exchanges.iter().filter(|it| it.key == key).map(|it| it.status).collect()
    }

    /// Waits until a key with this prefix was answered so often with this status.
    pub(crate) fn wait_for(&self, prefix: &str, status: u16, times: usize) {
        let reached = |log: &Log| {
            let is_it = |it: &&Exchange| it.key.starts_with(prefix) && it.status == status;
            let found = || log.exchanges.iter().filter(is_it);
            found().any(|it| found().filter(|other| other.key == it.key).count() >= times)
        };
        let waiting = |log: &mut Log| !reached(log);
        let waited = self.shared.added.wait_timeout_while(self.shared.log(), WAIT_MAX, waiting);
        let (log, timeout) = waited.unwrap();
        assert!(!timeout.timed_out(), "no {prefix} has {times} times {status}: {log:?}");
    }

    /// What was lost, by key.
    pub(crate) fn losses(&self) -> BTreeMap<String, Loss> {
        let losses = std::mem::take(&mut self.shared.log().losses);
        losses.into_iter().map(|(key, loss)| (key, loss.unwrap())).collect()
    }
}

impl Shared {
    fn log(&self) -> MutexGuard<'_, Log> {
        self.log.lock().unwrap()
    }

    /// Carries the requests of one connection, each on a connection of its own to the server, which
    /// may close it. Ends when an answer is lost or the client has enough.
    fn carry(&self, client: TcpStream) -> io::Result<()> {
        client.set_nodelay(true)?;
        let mut client = BufReader::new(client);
        while let Some(request) = Message::read(&mut client)? {
            let key = request.header("idempotency-key").unwrap_or_default().to_owned();
            let mut server = Connection::open(self.server);
            server.send(&request.bytes())?;
            if let Some(way) = self.first_of(&key) {
                let loss = lose(way, &mut server, client.get_mut())?;
                self.log().losses.insert(key, Some(loss));
                return Ok(());
            }
            let answer = server.message()?;
            self.log().exchanges.push(Exchange { key, status: answer.status() });
            self.added.notify_all();
            client.get_mut().write_all(&answer.bytes())?;
        }
        Ok(())
    }

    /// How the answer to a key is to be lost, because the key is new.
    fn first_of(&self, key: &str) -> Option<Way> {
        let losses = &mut self.log().losses;
        if losses.contains_key(key) {
            return None;
        }
        let way = *self.loses_first.iter().cycle().nth(losses.len())?;
        losses.insert(key.to_owned(), None);
        Some(way)
    }
}

/// Loses an answer.
fn lose(way: Way, server: &mut Connection, client: &mut TcpStream) -> io::Result<Loss> {
    if way == Way::BeforeAnyAnswer {
        return Ok(Loss::BeforeAnyAnswer);
    }
    let answer = server.message()?;
    if way == Way::Whole {
        return Ok(Loss::Whole(answer));
    }
    let bytes = answer.bytes();
    client.write_all(&bytes[..bytes.len() - answer.body.len() / 2])?;
    Ok(Loss::Half(answer))
}
