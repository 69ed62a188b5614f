//! A client that only sends the same key again.

use std::{
    io::{Error, ErrorKind},
    net::SocketAddr,
    time::Duration,
};

use tokio::{
    io::{AsyncReadExt as _, AsyncWriteExt as _},
    net::TcpStream,
    time::timeout,
};

/// A complete answer.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Answer {
    pub(crate) status: u16,
    pub(crate) replayed: bool,
    pub(crate) body: String,
}

/// How a client interprets an answer.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Heard {
    /// It happened: this is the answer.
    Done(String),
    /// The outcome is unknown.
    Unknown,
    /// Nothing final: try again.
    Again,
}

/// Sends one request on a connection of its own and reads the whole answer.
pub(crate) async fn send(to: SocketAddr, key: &str, millis: u64) -> std::io::Result<Answer> {
    let whole = async {
        let mut stream = TcpStream::connect(to).await?;
        let body = millis.to_string();
        let request = format!(
            "POST /charges HTTP/1.1\r\nhost: localhost\r\nconnection: close\r\n\
             content-type: text/plain\r\nidempotency-key: {key}\r\n\
             content-length: {}\r\n\r\n{body}",
            body.len(),
        );
        stream.write_all(request.as_bytes()).await?;
        let mut bytes = Vec::new();
        stream.read_to_end(&mut bytes).await?;
        read(&bytes).ok_or_else(|| Error::from(ErrorKind::UnexpectedEof))
    };
    timeout(Duration::from_secs(20), whole).await?
}

/// `None` if the answer is truncated.
fn read(bytes: &[u8]) -> Option<Answer> {
    let text = std::str::from_utf8(bytes).ok()?;
    let (head, body) = text.split_once("\r\n\r\n")?;
    let mut lines = head.split("\r\n");
    let status = lines.next()?.split(' ').nth(1)?.parse().ok()?;
    let (mut length, mut replayed) = (None, false);
    for line in lines {
        let (name, value) = line.split_once(": ")?;
        match name {
            "content-length" => length = value.parse().ok(),
            "idempotent-replayed" => replayed = value == "true",
            _ => {}
        }
    }
    (length == Some(body.len())).then(|| Answer { status, replayed, body: body.to_owned() })
}

/// How a client that may retry interprets an answer.
pub(crate) fn hear(answer: &std::io::Result<Answer>) -> Heard {
    let Ok(answer) = answer else { return Heard::Again };
    match answer.status {
        201 => Heard::Done(answer.body.clone()),
        423 => Heard::Unknown,
        409 | 503 | 504 => Heard::Again,
        status => panic!("{status}: {}", answer.body),
    }
}
