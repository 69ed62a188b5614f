//! A client that only sends the same key again.

use std::{
    io::{Error, ErrorKind},
    net::SocketAddr,
    time::Duration,
};

use semel_testkit::http::TestResponse;
use tokio::{
    io::{AsyncReadExt as _, AsyncWriteExt as _},
    net::TcpStream,
    time::timeout,
};

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
pub(crate) async fn send(to: SocketAddr, key: &str, millis: u64) -> std::io::Result<TestResponse> {
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
        TestResponse::parse(&bytes).ok_or_else(|| Error::from(ErrorKind::UnexpectedEof))
    };
    timeout(Duration::from_secs(20), whole).await?
}

/// How a client that may retry interprets an answer.
pub(crate) fn hear(answer: &std::io::Result<TestResponse>) -> Heard {
    let Ok(answer) = answer else { return Heard::Again };
    match answer.status.as_u16() {
        201 => Heard::Done(answer.text().to_owned()),
        423 => Heard::Unknown,
        409 | 503 | 504 => Heard::Again,
        status => panic!("{status}: {}", answer.text()),
    }
}
