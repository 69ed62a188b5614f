//! The API behind the proxies, as light as can be, so that what is measured is the proxy.
//!
//! It is one thread that reads a request and writes the answer, at once or after a delay. What a
//! proxy sends has to be what the load sent: to anything else the answer is 400, which the load
//! takes for an error.

use std::{
    collections::{HashMap, VecDeque},
    io::{self, Read as _, Write as _},
    net::{Ipv4Addr, TcpListener, TcpStream},
    process::Command,
    thread,
    time::{Duration, Instant},
};

use anyhow::Context as _;
use rustix::{
    buffer::spare_capacity,
    event::epoll::{self, EventData, EventFlags},
    fd::{AsFd, OwnedFd},
    time::{
        Itimerspec, TimerfdClockId, TimerfdFlags, TimerfdTimerFlags, Timespec, timerfd_create,
        timerfd_settime,
    },
};

use crate::http::{
    exchange::{self, ANSWER, LOCATION},
    program::Program,
};

/// All connections come at once; one that does not fit in here would wait for a second.
const BACKLOG: i32 = 1024;

/// Longer than any request, whatever a proxy adds to it.
const REQUEST_BYTES_MAX: usize = 4096;

const LISTENER: u64 = 0;
const TIMER: u64 = 1;

/// An upstream in a process of its own that runs as long as this value lives.
#[derive(Debug)]
pub(crate) struct Upstream {
    program: Program,
    pub(crate) port: u16,
}

impl Upstream {
    pub(crate) fn start(delay: Duration) -> anyhow::Result<Self> {
        let mut command = Command::new(std::env::current_exe()?);
        let delay = delay.as_millis().to_string();
        let (program, port) = Program::serve(command.arg("--serve-upstream").arg(delay))?;
        Ok(Self { program, port })
    }

    pub(crate) fn process(&self) -> u32 {
        self.program.id()
    }
}

/// Prints the port that it is bound to and serves until its standard input ends: with whoever
/// started it.
pub(crate) fn run(words: &[&str]) -> anyhow::Result<()> {
    let millis = words.first().map_or(Ok(0), |word| word.parse());
    let delay = Duration::from_millis(millis.context("the delay is in milliseconds")?);
    let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, 0))?;
    rustix::net::listen(&listener, BACKLOG)?;
    println!("{}", listener.local_addr()?.port());
    io::stdout().flush()?;
    let mut server = Server::new(listener, delay)?;
    thread::Builder::new().name("upstream".to_owned()).spawn(move || {
        if let Err(error) = server.serve() {
            eprintln!("error: the upstream stopped: {error:#}");
        }
    })?;
    io::copy(&mut io::stdin().lock(), &mut io::sink())?;
    Ok(())
}

struct Server {
    listener: TcpListener,
    delay: Duration,
    /// Which of all these have something to be read.
    ready: OwnedFd,
    timer: OwnedFd,
    connections: HashMap<u64, Connection>,
    /// Connections by the order in which they came. A number is never given twice.
    last: u64,
    /// Who is answered when.
    due: VecDeque<(Instant, u64)>,
    answer: Vec<u8>,
}

struct Connection {
    stream: TcpStream,
    buffer: [u8; REQUEST_BYTES_MAX],
    /// How much of the request has come.
    come: usize,
}

impl Server {
    fn new(listener: TcpListener, delay: Duration) -> anyhow::Result<Self> {
        let ready = epoll::create(epoll::CreateFlags::CLOEXEC)?;
        let timer = timerfd_create(TimerfdClockId::Monotonic, TimerfdFlags::CLOEXEC)?;
        watch(&ready, &listener, LISTENER)?;
        watch(&ready, &timer, TIMER)?;
        let answer = format!(
            "HTTP/1.1 201 Created\r\ndate: Mon, 16 Nov 2026 12:00:00 GMT\r\n\
             content-type: application/json\r\nlocation: {LOCATION}\r\n\
             content-length: {}\r\n\r\n{ANSWER}",
            ANSWER.len(),
        );
        Ok(Self {
            listener,
            delay,
            ready,
            timer,
            connections: HashMap::new(),
            last: TIMER,
            due: VecDeque::new(),
            answer: answer.into_bytes(),
        })
    }

    fn serve(&mut self) -> anyhow::Result<()> {
        let mut events = Vec::with_capacity(256);
        loop {
            epoll::wait(&self.ready, spare_capacity(&mut events), None)?;
            for event in events.drain(..) {
                match event.data.u64() {
                    LISTENER => self.accept()?,
                    TIMER => self.answer_due()?,
                    connection => self.hear(connection)?,
                }
            }
        }
    }

    fn accept(&mut self) -> anyhow::Result<()> {
        let (stream, _) = self.listener.accept()?;
        stream.set_nodelay(true)?;
        self.last += 1;
        watch(&self.ready, &stream, self.last)?;
        let connection = Connection { stream, buffer: [0; REQUEST_BYTES_MAX], come: 0 };
        self.connections.insert(self.last, connection);
        Ok(())
    }

    /// Reads what has come and answers, or says when to, once it makes a request whole.
    fn hear(&mut self, number: u64) -> anyhow::Result<()> {
        let Some(connection) = self.connections.get_mut(&number) else {
            return Ok(());
        };
        let Connection { stream, buffer, come } = connection;
        match stream.read(&mut buffer[*come..]) {
            Ok(read) if read > 0 => *come += read,
            // The proxy has closed the connection, or its request is too long.
            Ok(_) | Err(_) => {
                self.connections.remove(&number);
                return Ok(());
            }
        }
        match exchange::received(&buffer[..*come]) {
            Ok(false) => Ok(()),
            Ok(true) if self.delay.is_zero() => {
                self.answer(number);
                Ok(())
            }
            Ok(true) => {
                self.due.push_back((Instant::now() + self.delay, number));
                if self.due.len() == 1 { self.arm() } else { Ok(()) }
            }
            Err(text) => {
                let length = text.len();
                let refusal = format!(
                    "HTTP/1.1 400 Bad Request\r\nconnection: close\r\n\
                     content-length: {length}\r\n\r\n{text}"
                );
                let _ = stream.write_all(refusal.as_bytes());
                self.connections.remove(&number);
                Ok(())
            }
        }
    }

    fn answer(&mut self, number: u64) {
        let Some(connection) = self.connections.get_mut(&number) else {
            return;
        };
        connection.come = 0;
        if connection.stream.write_all(&self.answer).is_err() {
            self.connections.remove(&number);
        }
    }

    fn answer_due(&mut self) -> anyhow::Result<()> {
        while let Some((_, number)) = self.due.pop_front_if(|(due, _)| *due <= Instant::now()) {
            self.answer(number);
        }
        self.arm()
    }

    /// Has the timer go off when the next answer is due; if there is none, never. Waiting with a
    /// time limit would round it up to a millisecond, which is more than is measured.
    fn arm(&self) -> anyhow::Result<()> {
        let next = self.due.front();
        let nanos = next.map_or(0, |(due, _)| {
            let left = due.saturating_duration_since(Instant::now());
            // Zero would be never.
            left.as_nanos().max(1)
        });
        let time = Itimerspec {
            it_interval: Timespec { tv_sec: 0, tv_nsec: 0 },
            it_value: Duration::from_nanos(u64::try_from(nanos)?).try_into()?,
        };
        timerfd_settime(&self.timer, TimerfdTimerFlags::empty(), &time)?;
        Ok(())
    }
}

fn watch(ready: &OwnedFd, what: impl AsFd, number: u64) -> anyhow::Result<()> {
    Ok(epoll::add(ready, what, EventData::new_u64(number), EventFlags::IN)?)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::http::exchange::{Answer, Request};

    /// What an upstream answers, and after how long.
    fn ask(delay: Duration, request: &[u8]) -> (Vec<u8>, Duration) {
        let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).unwrap();
        let mut stream = TcpStream::connect(listener.local_addr().unwrap()).unwrap();
        let mut server = Server::new(listener, delay).unwrap();
        // It ends with the program that tests it.
        thread::spawn(move || server.serve());
        stream.set_read_timeout(Some(Duration::from_secs(30))).unwrap();
        let asked = Instant::now();
        let (head, body) = request.split_at(request.len() - 7);
        stream.write_all(head).unwrap();
        stream.write_all(body).unwrap();
        let mut answer = vec![0; 4096];
        let length = stream.read(&mut answer).unwrap();
        answer.truncate(length);
        (answer, asked.elapsed())
    }

    #[test]
    fn it_answers_at_once_or_after_its_delay() {
        for delay in [Duration::ZERO, Duration::from_millis(30)] {
            let (answer, took) = ask(delay, Request::keyed().with_key(&[b'a'; 36]));
            let whole = Some((Answer::Good { replayed: false }, answer.len()));
            assert_eq!(exchange::read(&answer).unwrap(), whole);
            assert!(took >= delay, "{took:?}");
        }
    }

    #[test]
    fn it_refuses_what_the_load_did_not_send() {
        let request = Request::without_key().with_key(&[b'a'; 36]).to_vec();
        let other = String::from_utf8(request).unwrap().replace("12990", "12991");
        let (answer, _) = ask(Duration::ZERO, other.as_bytes());
        assert!(answer.starts_with(b"HTTP/1.1 400 "));
    }
}
