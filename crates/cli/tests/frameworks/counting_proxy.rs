//! A proxy that counts how often each request is sent, and how it is answered.

use std::{
    io::{self, BufReader, Write as _},
    net::{SocketAddr, TcpListener, TcpStream},
    sync::{Arc, Condvar, Mutex},
    thread,
    time::Duration,
};

use crate::http::{Connection, Message};

/// Whatever a test waits for here happens sooner.
const WAIT_MAX: Duration = Duration::from_secs(60);

/// A request that was answered.
#[derive(Clone, Debug)]
struct Exchange {
    /// The idempotency key; empty where there was none.
    key: String,
    status: u16,
}

#[derive(Debug, Default)]
struct Log {
    exchanges: Mutex<Vec<Exchange>>,
    added: Condvar,
}

/// A running proxy.
#[derive(Debug)]
pub(crate) struct CountingProxy {
    pub(crate) address: SocketAddr,
    log: Arc<Log>,
}

impl CountingProxy {
    pub(crate) fn to(server: SocketAddr) -> Self {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let address = listener.local_addr().unwrap();
        let log = Arc::new(Log::default());
        let shared = Arc::clone(&log);
        thread::spawn(move || {
            for client in listener.incoming() {
                let log = Arc::clone(&shared);
                // A client that goes away ends only its own connection.
                thread::spawn(move || carry(client?, server, &log));
            }
        });
        Self { address, log }
    }

    /// The statuses that the requests with this key were answered with, in order.
    pub(crate) fn statuses(&self, key: &str) -> Vec<u16> {
        let exchanges = self.log.exchanges.lock().unwrap();
        exchanges.iter().filter(|it| it.key == key).map(|it| it.status).collect()
    }

    /// Waits until a key with this prefix was answered so often with this status.
    pub(crate) fn wait_for(&self, prefix: &str, status: u16, times: usize) {
        let reached = |exchanges: &Vec<Exchange>| {
            let is_it = |it: &&Exchange| it.key.starts_with(prefix) && it.status == status;
            let same =
                |key: &str| exchanges.iter().filter(is_it).filter(|other| other.key == key).count();
            exchanges.iter().filter(is_it).any(|it| same(&it.key) >= times)
        };
        let exchanges = self.log.exchanges.lock().unwrap();
        let waiting = |exchanges: &mut Vec<Exchange>| !reached(exchanges);
        let (exchanges, waited) =
            self.log.added.wait_timeout_while(exchanges, WAIT_MAX, waiting).unwrap();
        assert!(!waited.timed_out(), "no {prefix} has {times} times {status}: {exchanges:?}");
    }
}

/// Carries the requests of one connection, each on a connection of its own to the server, which may
/// close it.
fn carry(client: TcpStream, server: SocketAddr, log: &Log) -> io::Result<()> {
    client.set_nodelay(true)?;
    let mut client = BufReader::new(client);
    while let Some(request) = Message::read(&mut client)? {
        let mut server = Connection::open(server);
        server.send(&request.bytes())?;
        let answer = server.answer()?;
        let key = request.header("idempotency-key").unwrap_or_default().to_owned();
        log.exchanges.lock().unwrap().push(Exchange { key, status: answer.status() });
        log.added.notify_all();
        client.get_mut().write_all(&answer.bytes())?;
    }
    Ok(())
}
