//! A client that retries for as long as it takes.

use std::{net::SocketAddr, time::Duration};

use semel_testkit::http::TestResponse;
use tokio::{
    io::{AsyncReadExt as _, AsyncWriteExt as _},
    net::TcpStream,
    time::timeout,
};

/// How long one answer is waited for.
const RESPONSE_TIMEOUT: Duration = Duration::from_secs(5);

/// Sends a payment once; `None` if there is no whole answer.
pub(crate) async fn pay(to: SocketAddr, key: &str, cents: i64) -> Option<TestResponse> {
    timeout(RESPONSE_TIMEOUT, exchange(to, key, cents)).await.ok().flatten()
}

async fn exchange(to: SocketAddr, key: &str, cents: i64) -> Option<TestResponse> {
    let body = format!(r#"{{"cents":{cents}}}"#);
    let request = format!(
        "POST /payments HTTP/1.1\r\nhost: shop\r\nx-merchant-id: ada\r\nidempotency-key: {key}\r\n\
         content-type: application/json\r\ncontent-length: {}\r\nconnection: close\r\n\r\n{body}",
        body.len()
    );
    let mut stream = TcpStream::connect(to).await.ok()?;
    stream.write_all(request.as_bytes()).await.ok()?;
    let mut bytes = Vec::new();
    stream.read_to_end(&mut bytes).await.ok()?;
    // A process that is killed may have sent half of it.
    TestResponse::parse(&bytes)
}
