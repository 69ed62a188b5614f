//! Requests over kept connections, from one thread.
//!
//! The load shares the machine with the server, so it has to be as light as the lightest: one
//! request is one write and one read, and one wait serves all connections that are ready. Each
//! connection sends its next request when it has the answer to the last one.

use std::{
    collections::BTreeMap,
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
    http::exchange::{self, Answer, Request},
    machine,
    measure::{Latencies, as_f64},
    random::{KeyText, Random},
};

/// How many keys are repeated.
const SEEDS: u64 = 1000;

/// A server without an event for this long is stuck.
const EVENT_TIMEOUT: Timespec = Timespec { tv_sec: 10, tv_nsec: 0 };

/// Longer than any answer.
const ANSWER_BYTES_MAX: usize = 4096;

/// A server as the load sees it.
#[derive(Clone, Debug)]
pub(crate) struct Site {
    pub(crate) port: u16,
    /// The processes that it consists of.
    pub(crate) processes: Vec<u32>,
    /// The processes that it passes requests on to.
    pub(crate) behind: Vec<u32>,
}

/// Which keys requests have.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub(crate) enum KeyPattern {
    /// None at all.
    Without,
    /// A new one each.
    New,
    /// So many of ten requests repeat one of a thousand that were answered before.
    Repeated(u64),
}

/// How hard a server is driven.
#[derive(Clone, Copy, Debug)]
pub(crate) struct HttpLoad {
    pub(crate) connections: usize,
    pub(crate) keys: KeyPattern,
    pub(crate) warm_up: Duration,
    pub(crate) length: Length,
}

/// When enough was asked.
#[derive(Clone, Copy, Debug)]
pub(crate) enum Length {
    Time(Duration),
    Requests(usize),
}

/// What one measurement gave.
#[derive(Clone, Debug, Default)]
pub(crate) struct HttpMeasurement {
    pub(crate) per_second: f64,
    pub(crate) p50_millis: f64,
    pub(crate) p99_millis: f64,
    /// Processor time of the server per request.
    pub(crate) server_micros: f64,
    /// The same by the names of its threads.
    pub(crate) thread_micros: BTreeMap<String, f64>,
    /// Processor time per request of what the server passes requests on to.
    pub(crate) behind_micros: f64,
    /// Processor time of the load per request.
    pub(crate) load_micros: f64,
    /// How many of the machine's cores the load kept busy.
    pub(crate) load_cores: f64,
    /// How many of the machine's cores were busy with other programs.
    pub(crate) foreign_cores: f64,
    /// How much memory the server occupied at the end.
    pub(crate) resident_bytes: f64,
    /// How much that grew per request.
    pub(crate) growth_bytes: f64,
}

/// One figure of each cell.
pub(crate) fn each(
    cells: &[HttpMeasurement],
    figure: impl Fn(&HttpMeasurement) -> f64,
) -> Vec<f64> {
    cells.iter().map(figure).collect()
}

/// Keeps a server busy and measures it. An answer that is not as it should be is an error.
pub(crate) fn drive(site: &Site, load: HttpLoad) -> anyhow::Result<HttpMeasurement> {
    drive_with(site, load, &[])
}

/// The same with credentials: each request has one of these values of `Authorization`.
pub(crate) fn drive_with(
    site: &Site,
    load: HttpLoad,
    credentials: &[String],
) -> anyhow::Result<HttpMeasurement> {
    let mut driver = Driver::connect(site.port, load, credentials)?;
    driver.begin()?;
    driver.run(Length::Time(load.warm_up))?;
    driver.latencies = Latencies::default();
    let before = Reading::take(site)?;
    driver.run(load.length)?;
    let after = Reading::take(site)?;
    driver.check()?;
    Ok(after.since(&before, &mut driver.latencies))
}

/// What is counted at the beginning and at the end.
struct Reading {
    at: Instant,
    server_micros: f64,
    thread_micros: BTreeMap<String, f64>,
    behind_micros: f64,
    load_micros: f64,
    busy_micros: f64,
    resident_bytes: f64,
}

impl Reading {
    fn take(site: &Site) -> anyhow::Result<Self> {
        let all = |processes: &[u32], read: fn(u32) -> anyhow::Result<f64>| {
            processes.iter().map(|process| read(*process)).sum::<anyhow::Result<f64>>()
        };
        let mut thread_micros = BTreeMap::new();
        for process in &site.processes {
            for (name, micros) in machine::threads(*process) {
                *thread_micros.entry(name).or_default() += micros;
            }
        }
        let load = Duration::try_from(clock_gettime(ClockId::ThreadCPUTime))?;
        Ok(Self {
            at: Instant::now(),
            server_micros: all(&site.processes, machine::process_micros)?,
            thread_micros,
            behind_micros: all(&site.behind, machine::process_micros)?,
            load_micros: load.as_secs_f64() * 1e6,
            busy_micros: machine::busy_micros()?,
            resident_bytes: all(&site.processes, machine::resident_kilobytes)? * 1024.0,
        })
    }

    fn since(&self, before: &Self, latencies: &mut Latencies) -> HttpMeasurement {
        let count = as_f64(latencies.len());
        let seconds = (self.at - before.at).as_secs_f64();
        let server = self.server_micros - before.server_micros;
        let behind = self.behind_micros - before.behind_micros;
        let load = self.load_micros - before.load_micros;
        let foreign = self.busy_micros - before.busy_micros - server - behind - load;
        let thread = |(name, micros): (&String, &f64)| {
            let spent = micros - before.thread_micros.get(name).unwrap_or(&0.0);
            (name.clone(), spent / count)
        };
        HttpMeasurement {
            per_second: count / seconds,
            p50_millis: latencies.within(0.5),
            p99_millis: latencies.within(0.99),
            server_micros: server / count,
            thread_micros: self.thread_micros.iter().map(thread).collect(),
            behind_micros: behind / count,
            load_micros: load / count,
            load_cores: load / 1e6 / seconds,
            foreign_cores: foreign.max(0.0) / 1e6 / seconds,
            resident_bytes: self.resident_bytes,
            growth_bytes: (self.resident_bytes - before.resident_bytes) / count,
        }
    }
}

/// All connections and what is asked on them.
struct Driver {
    connections: Vec<Connection>,
    /// Which of them have something to be read.
    ready: OwnedFd,
    /// One for each credential, or one without any.
    requests: Vec<Request>,
    random: Random,
    /// The keys that are repeated.
    seeds: Vec<KeyText>,
    /// How many of ten requests have one of them.
    repeats_in_ten: u64,
    latencies: Latencies,
    wrong: usize,
    first_wrong: Option<String>,
}

impl Driver {
    fn connect(port: u16, load: HttpLoad, credentials: &[String]) -> anyhow::Result<Self> {
        let ready = epoll::create(epoll::CreateFlags::CLOEXEC)?;
        let mut connections = Vec::with_capacity(load.connections);
        for at in 0..load.connections {
            let connection = Connection::open(port)?;
            let data = epoll::EventData::new_u64(u64::try_from(at)?);
            epoll::add(&ready, &connection.stream, data, epoll::EventFlags::IN)?;
            connections.push(connection);
        }
        let (request, seeds, repeats_in_ten) = match load.keys {
            KeyPattern::Without => (Request::without_key(), 0, 0),
            KeyPattern::New => (Request::keyed(), 0, 0),
            KeyPattern::Repeated(in_ten) => (Request::keyed(), SEEDS, in_ten),
        };
        let with = |value: &String| Request::keyed_with(&format!("authorization: {value}\r\n"));
        let mut requests: Vec<Request> = credentials.iter().map(with).collect();
        if requests.is_empty() {
            requests.push(request);
        }
        let mut random = Random::new();
        Ok(Self {
            connections,
            ready,
            requests,
            seeds: (0..seeds).map(|_| random.key()).collect(),
            random,
            repeats_in_ten,
            latencies: Latencies::default(),
            wrong: 0,
            first_wrong: None,
        })
    }

    /// Asks with each of the keys that will be repeated, one after the other; then for the first
    /// time on each connection.
    fn begin(&mut self) -> anyhow::Result<()> {
        for at in 0..self.seeds.len() {
            self.connections[0].ask(self.requests[0].with_key(&self.seeds[at]), false)?;
            while !self.hear(0)? {}
        }
        (0..self.connections.len()).try_for_each(|at| self.ask(at))
    }

    /// Asks again wherever an answer has come, until it is enough.
    fn run(&mut self, length: Length) -> anyhow::Result<()> {
        let begin = Instant::now();
        let mut events = Vec::with_capacity(self.connections.len());
        while match length {
            Length::Time(time) => begin.elapsed() < time,
            Length::Requests(count) => self.latencies.len() < count,
        } {
            epoll::wait(&self.ready, spare_capacity(&mut events), Some(&EVENT_TIMEOUT))?;
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
        let request = match self.requests.len() {
            1 => 0,
            count => usize::try_from(self.random.number())? % count,
        };
        self.connections[at].ask(self.requests[request].with_key(&key), repeats)
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
    use crate::http::exchange::{ANSWER, LOCATION};

    /// Drives a server that says the same whatever it is asked.
    fn drive_one_that_says(answer: &str, keys: KeyPattern) -> anyhow::Result<usize> {
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
        let warm_up = Duration::from_millis(20);
        let length = Length::Time(warm_up);
        let load = HttpLoad { connections: 1, keys, warm_up, length };
        let mut driver = Driver::connect(port, load, &[])?;
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
        assert!(drive_one_that_says(&answer(""), KeyPattern::New).unwrap() > 0);
    }

    #[test]
    fn a_replay_that_is_not_due_or_not_marked_is_an_error() {
        let error = drive_one_that_says(&answer("idempotent-replayed: true\r\n"), KeyPattern::New)
            .unwrap_err();
        assert!(error.to_string().contains("idempotent-replayed"), "{error}");
        let error = drive_one_that_says(&answer(""), KeyPattern::Repeated(10)).unwrap_err();
        assert!(error.to_string().contains("answers were wrong"), "{error}");
    }

    #[test]
    fn another_body_is_an_error() {
        let other = answer("").replace("12990", "12991");
        assert!(drive_one_that_says(&other, KeyPattern::Without).is_err());
    }
}
