//! Just enough HTTP/1.1 to carry messages over a bad wire and to ask over a good one.

use std::{
    io::{self, BufRead, BufReader, Read as _, Write as _},
    net::{SocketAddr, TcpStream},
    time::Duration,
};

use crate::common::TestResponse;

/// Longer than anything here takes; a test that hangs shows no reason.
const SILENCE_MAX: Duration = Duration::from_secs(60);

/// A request or an answer, as it was on the wire.
#[derive(Clone, Debug)]
pub(crate) struct Message {
    head: String,
    pub(crate) body: Vec<u8>,
}

impl Message {
    /// The next message, or `None` if the other side has closed instead.
    pub(crate) fn read(from: &mut impl BufRead) -> io::Result<Option<Self>> {
        let mut head = String::new();
        while !head.ends_with("\r\n\r\n") {
            if from.read_line(&mut head)? == 0 {
                return if head.is_empty() { Ok(None) } else { Err(broken("in its head")) };
            }
        }
        let mut message = Self { head, body: Vec::new() };
        let length = message.header("content-length").map_or(Ok(0), str::parse);
        let length = length.map_err(|_| broken("in its length"))?;
        if message.header("transfer-encoding").is_some() {
            return Err(broken("by a transfer coding, which no message here has"));
        }
        message.body.resize(length, 0);
        from.read_exact(&mut message.body)?;
        Ok(Some(message))
    }

    /// A header's value, by its name in lower case.
    pub(crate) fn header(&self, name: &str) -> Option<&str> {
        let fields = self.head.lines().skip(1).filter_map(|line| line.split_once(':'));
        let mut named = fields.filter(|(field, _)| field.eq_ignore_ascii_case(name));
        named.next().map(|(_, value)| value.trim())
    }

    /// The path of a request.
    pub(crate) fn path(&self) -> &str {
        self.head.split(' ').nth(1).unwrap()
    }

    pub(crate) fn status(&self) -> u16 {
        self.head.split(' ').nth(1).unwrap().parse().unwrap()
    }

    pub(crate) fn bytes(&self) -> Vec<u8> {
        [self.head.as_bytes(), &self.body].concat()
    }
}

fn broken(how: &str) -> io::Error {
    io::Error::new(io::ErrorKind::InvalidData, format!("a message that is broken {how}"))
}

/// One connection, kept open.
#[derive(Debug)]
pub(crate) struct Connection {
    stream: BufReader<TcpStream>,
}

impl Connection {
    pub(crate) fn open(to: SocketAddr) -> Self {
        let stream = TcpStream::connect(to).unwrap();
        stream.set_nodelay(true).unwrap();
        stream.set_read_timeout(Some(SILENCE_MAX)).unwrap();
        Self { stream: BufReader::new(stream) }
    }

    pub(crate) fn send(&mut self, request: &[u8]) -> io::Result<()> {
        self.stream.get_mut().write_all(request)
    }

    /// The next response, as it was on the wire.
    pub(crate) fn message(&mut self) -> io::Result<Message> {
        Message::read(&mut self.stream)?.ok_or_else(|| io::ErrorKind::UnexpectedEof.into())
    }

    pub(crate) fn answer(&mut self) -> io::Result<TestResponse> {
        Ok(TestResponse::parse(&self.message()?.bytes()).expect("a whole response"))
    }

    pub(crate) fn get(&mut self, path: &str) -> io::Result<TestResponse> {
        self.send(format!("GET {path} HTTP/1.1\r\nHost: 127.0.0.1\r\n\r\n").as_bytes())?;
        self.answer()
    }

    /// Charges a customer under a key that is the customer's name.
    pub(crate) fn charge(&mut self, customer: &str, amount: usize) -> io::Result<TestResponse> {
        let body = format!(r#"{{"customer": "{customer}", "amount": {amount}}}"#);
        let head = format!(
            "POST /charges HTTP/1.1\r\nHost: 127.0.0.1\r\nContent-Type: application/json\r\n\
             Idempotency-Key: {customer}\r\nContent-Length: {}\r\n\r\n",
            body.len()
        );
        self.send((head + &body).as_bytes())?;
        self.answer()
    }

    /// A `POST` without a body, under this key.
    pub(crate) fn post(&mut self, path: &str, key: &str) -> io::Result<TestResponse> {
        let head = format!(
            "POST {path} HTTP/1.1\r\nHost: 127.0.0.1\r\nIdempotency-Key: {key}\r\n\
             Content-Length: 0\r\n\r\n"
        );
        self.send(head.as_bytes())?;
        self.answer()
    }
}

/// Sends a request that asks for the connection to be closed, and reads all that comes. A server
/// that does not like it may reset the connection.
pub(crate) fn exchange(to: SocketAddr, request: &[u8]) -> String {
    let mut stream = TcpStream::connect(to).unwrap();
    stream.set_read_timeout(Some(SILENCE_MAX)).unwrap();
    let mut answer = Vec::new();
    let _ = stream.write_all(request).and_then(|()| stream.read_to_end(&mut answer));
    String::from_utf8_lossy(&answer).into_owned()
}
