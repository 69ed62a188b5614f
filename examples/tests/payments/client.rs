//! A client that retries for as long as it takes.

use std::{net::SocketAddr, time::Duration};

use tokio::{
    io::{AsyncReadExt as _, AsyncWriteExt as _},
    net::TcpStream,
    time::timeout,
};

/// How long one answer is waited for.
const RESPONSE_TIMEOUT: Duration = Duration::from_secs(5);

/// An answer as it came.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Answer {
    pub(crate) status: u16,
    pub(crate) replayed: bool,
    pub(crate) body: String,
}

/// Sends a payment once; `None` if there is no whole answer.
pub(crate) async fn pay(to: SocketAddr, key: &str, cents: i64) -> Option<Answer> {
    timeout(RESPONSE_TIMEOUT, exchange(to, key, cents)).await.ok().flatten()
}

async fn exchange(to: SocketAddr, key: &str, cents: i64) -> Option<Answer> {
    let body = format!(r#"{{"cents":{cents}}}"#);
    let request = format!(
        "POST /payments HTTP/1.1\r\nhost: shop\r\nx-merchant-id: ada\r\nidempotency-key: {key}\r\n\
         content-type: application/json\r\ncontent-length: {}\r\nconnection: close\r\n\r\n{body}",
        body.len()
    );
    let mut stream = TcpStream::connect(to).await.ok()?;
    stream.write_all(request.as_bytes()).await.ok()?;
    let mut text = String::new();
    stream.read_to_string(&mut text).await.ok()?;
    let (head, body) = text.split_once("\r\n\r\n")?;
    let length = head.lines().find_map(|line| line.strip_prefix("content-length: "))?;
    // A process that is killed may have sent half of it.
    if length.parse() != Ok(body.len()) {
        return None;
    }
    Some(Answer {
        status: head.split(' ').nth(1)?.parse().ok()?,
        replayed: head.contains("idempotent-replayed: true"),
        body: body.to_owned(),
    })
}
