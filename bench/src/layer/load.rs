//! Requests over kept connections, from one thread.
//!
//! The load shares the machine with the server, so it has to be as light as the lightest: one
//! request is one write and one read, and one wait serves all connections that are ready. Each
//! connection sends its next request when it has the answer to the last one.

use std::{
    io::{Read as _, Write as _},
    net::{Ipv4Addr, TcpStream},
    time::{Duration, Instant},
};

use anyhow::{Context as _, bail, ensure};
use rustix::{
    buffer::spare_capacity,
    event::{Timespec, epoll},
    fd::OwnedFd,
    time::{ClockId, clock_gettime},
};

use crate::{
    layer::{
        exchange::{self, Answer, Request},
        server::Server,
    },
    machine,
    measure::{Latencies, as_f64},
    random::{KeyText, Random},
};

/// How many keys are repeated.
const SEEDS: u64 = 1000;

/// A server that says nothing for so long is stuck.
const PATIENCE: Timespec = Timespec { tv_sec: 10, tv_nsec: 0 };

/// Longer than any answer.
const ANSWER_BYTES_MAX: usize = 4096;

/// How hard a server is driven, and for how long.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Load {
    pub(crate) connections: usize,
    /// How many of ten requests repeat one of a thousand that were answered before.
    pub(crate) repeats_in_ten: u64,
    pub(crate) warm_up: Duration,
    pub(crate) length: Duration,
}

/// What one measurement gave.
#[derive(Debug, Default)]
pub(crate) struct Cell {
    pub(crate) per_second: f64,
    /// Processor time of the server per request.
    pub(crate) server_micros: f64,
    /// Processor time of the load per request.
    pub(crate) load_micros: f64,
    /// How much the server's memory grew per request.
    pub(crate) growth_bytes: f64,
    /// How many of the machine's cores were busy with other programs.
    pub(crate) foreign_cores: f64,
    pub(crate) latencies: Latencies,
}

/// Keeps a server busy and measures it. An answer that is not as it should be is an error.
pub(crate) fn drive(server: &Server, load: Load) -> anyhow::Result<Cell> {
    let mut driver = Driver::connect(server.port, load)?;
    driver.begin()?;
    driver.run(load.warm_up)?;
    driver.latencies = Latencies::default();
    let before = Reading::take(server)?;
    driver.run(load.length)?;
    let after = Reading::take(server)?;
    driver.check()?;
    let count = as_f64(driver.latencies.len());
    let seconds = (after.at - before.at).as_secs_f64();
    let server = after.server_micros - before.server_micros;
    let load = after.load_micros - before.load_micros;
    let foreign = after.busy_micros - before.busy_micros - server - load;
    Ok(Cell {
        per_second: count / seconds,
        server_micros: server / count,
        load_micros: load / count,
        growth_bytes: (after.resident_kilobytes - before.resident_kilobytes) * 1024.0 / count,
        foreign_cores: foreign.max(0.0) / 1e6 / seconds,
        latencies: driver.latencies,
    })
}

/// What is counted at the beginning and at the end.
struct Reading {
    at: Instant,
    server_micros: f64,
    load_micros: f64,
    busy_micros: f64,
    resident_kilobytes: f64,
}

impl Reading {
    fn take(server: &Server) -> anyhow::Result<Self> {
        let load = Duration::try_from(clock_gettime(ClockId::ThreadCPUTime))?;
        Ok(Self {
            at: Instant::now(),
            server_micros: server.spent_micros()?,
            load_micros: load.as_secs_f64() * 1e6,
            busy_micros: machine::busy_micros()?,
            resident_kilobytes: server.resident_kilobytes()?,
        })
    }
}

/// All connections and what is asked on them.
struct Driver {
    connections: Vec<Connection>,
    /// Which of them have something to be read.
    ready: OwnedFd,
    request: Request,
    random: Random,
    /// The keys that are repeated.
    seeds: Vec<KeyText>,
    repeats_in_ten: u64,
    latencies: Latencies,
    wrong: usize,
    first_wrong: Option<String>,
}

impl Driver {
    fn connect(port: u16, load: Load) -> anyhow::Result<Self> {
        let ready = epoll::create(epoll::CreateFlags::CLOEXEC)?;
        let mut connections = Vec::with_capacity(load.connections);
        for at in 0..load.connections {
            let connection = Connection::open(port)?;
            let data = epoll::EventData::new_u64(u64::try_from(at)?);
            epoll::add(&ready, &connection.stream, data, epoll::EventFlags::IN)?;
            connections.push(connection);
        }
        let mut random = Random::new();
        let seeds = if load.repeats_in_ten > 0 { SEEDS } else { 0 };
        Ok(Self {
            connections,
            ready,
            request: Request::new(),
            seeds: (0..seeds).map(|_| random.key()).collect(),
            random,
            repeats_in_ten: load.repeats_in_ten,
            latencies: Latencies::default(),
            wrong: 0,
            first_wrong: None,
        })
    }

    /// Asks with each of the keys that will be repeated, one after the other; then for the first
    /// time on each connection.
    fn begin(&mut self) -> anyhow::Result<()> {
        for at in 0..self.seeds.len() {
            self.connections[0].ask(self.request.with_key(&self.seeds[at]), false)?;
            while !self.hear(0)? {}
        }
        (0..self.connections.len()).try_for_each(|at| self.ask(at))
    }

    /// Asks again wherever an answer has come, for a while.
    fn run(&mut self, length: Duration) -> anyhow::Result<()> {
        let end = Instant::now() + length;
        let mut events = Vec::with_capacity(self.connections.len());
        while Instant::now() < end {
            epoll::wait(&self.ready, spare_capacity(&mut events), Some(&PATIENCE))?;
            ensure!(!events.is_empty(), "the server does not answer");
            for event in events.drain(..) {
                let at = usize::try_from(event.data.u64())?;
                if self.hear(at)? {
                    self.ask(at)?;
                }
            }
        }
        Ok(())
    }

    fn ask(&mut self, at: usize) -> anyhow::Result<()> {
        let repeats = self.random.number() % 10 < self.repeats_in_ten;
        let key = if repeats {
            self.seeds[usize::try_from(self.random.number() % SEEDS)?]
        } else {
            self.random.key()
        };
        self.connections[at].ask(self.request.with_key(&key), repeats)
    }

    /// Reads what has come and says whether it makes an answer whole.
    fn hear(&mut self, at: usize) -> anyhow::Result<bool> {
        let Some(heard) = self.connections[at].hear()? else {
            return Ok(false);
        };
        self.latencies.push(heard.took);
        if let Some(text) = heard.wrong {
            self.first_wrong.get_or_insert(text);
            self.wrong += 1;
        }
        Ok(true)
    }

    fn check(&self) -> anyhow::Result<()> {
        match &self.first_wrong {
            None => Ok(()),
            Some(text) => bail!("{} answers were wrong, the first of them:\n{text}", self.wrong),
        }
    }
}

/// What came of a request.
struct Heard {
    took: Duration,
    /// The text of an answer that is not the one that was due.
    wrong: Option<String>,
}

/// One kept connection with at most one request under way. It blocks, but is only read from when
/// there is something.
struct Connection {
    stream: TcpStream,
    buffer: [u8; ANSWER_BYTES_MAX],
    /// How much of the answer has come.
    come: usize,
    asked: Instant,
    /// Whether the request under way is a repeat.
    repeats: bool,
}

impl Connection {
    fn open(port: u16) -> anyhow::Result<Self> {
        let stream = TcpStream::connect((Ipv4Addr::LOCALHOST, port))?;
        stream.set_nodelay(true)?;
        let buffer = [0; ANSWER_BYTES_MAX];
        Ok(Self { stream, buffer, come: 0, asked: Instant::now(), repeats: false })
    }

    fn ask(&mut self, request: &[u8], repeats: bool) -> anyhow::Result<()> {
        self.repeats = repeats;
        self.asked = Instant::now();
        self.stream.write_all(request).context("the server takes no more requests")
    }

    /// Reads what has come and judges the answer once it is whole.
    fn hear(&mut self) -> anyhow::Result<Option<Heard>> {
        let read = self.stream.read(&mut self.buffer[self.come..])?;
        ensure!(read > 0, "the server closed a connection, or its answer is too long");
        self.come += read;
        let text = &self.buffer[..self.come];
        let Some((answer, length)) = exchange::read(text)? else {
            return Ok(None);
        };
        ensure!(length == self.come, "the server said more than was asked");
        self.come = 0;
        let right = answer == Answer::Good { replayed: self.repeats };
        let wrong = (!right).then(|| String::from_utf8_lossy(text).into_owned());
        Ok(Some(Heard { took: self.asked.elapsed(), wrong }))
    }
}

#[cfg(test)]
mod tests {
    use std::{net::TcpListener, thread};

    use super::*;
    use crate::layer::exchange::{ANSWER, LOCATION};

    /// Drives a server that says the same whatever it is asked.
    fn drive_one_that_says(answer: &str, repeats_in_ten: u64) -> anyhow::Result<usize> {
        let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, 0))?;
        let port = listener.local_addr()?.port();
        let answer = answer.to_owned();
        let server = thread::spawn(move || {
            let (mut stream, _) = listener.accept().unwrap();
            stream.set_nodelay(true).unwrap();
            let mut request = [0; 4096];
            while stream.read(&mut request).is_ok_and(|read| read > 0) {
                // In two pieces, as a network may deliver it.
                let (first, second) = answer.split_at(answer.len() / 2);
                let _ = stream.write_all(first.as_bytes());
                let _ = stream.write_all(second.as_bytes());
            }
        });
        let length = Duration::from_millis(20);
        let load = Load { connections: 1, repeats_in_ten, warm_up: length, length };
        let mut driver = Driver::connect(port, load)?;
        driver.begin()?;
        driver.run(length)?;
        let checked = driver.check().map(|()| driver.latencies.len());
        drop(driver);
        server.join().unwrap();
        checked
    }

    fn answer(header: &str) -> String {
        let head = "HTTP/1.1 201 Created\r\ncontent-length: 300\r\n";
        format!("{head}location: {LOCATION}\r\n{header}\r\n{ANSWER}")
    }

    #[test]
    fn right_answers_are_counted() {
        assert!(drive_one_that_says(&answer(""), 0).unwrap() > 0);
    }

    #[test]
    fn a_replay_that_is_not_due_or_not_marked_is_an_error() {
        let error = drive_one_that_says(&answer("idempotent-replayed: true\r\n"), 0).unwrap_err();
        assert!(error.to_string().contains("idempotent-replayed"), "{error}");
        let error = drive_one_that_says(&answer(""), 10).unwrap_err();
        assert!(error.to_string().contains("answers were wrong"), "{error}");
    }

    #[test]
    fn another_body_is_an_error() {
        let other = answer("").replace("12990", "12991");
        assert!(drive_one_that_says(&other, 0).is_err());
    }
}
