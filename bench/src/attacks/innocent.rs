//! The innocent client.

use std::{
    net::{Ipv4Addr, SocketAddr},
    time::{Duration, Instant},
};

use anyhow::Context as _;
use tokio::{
    io::{AsyncReadExt as _, AsyncWriteExt as _},
    net::{TcpSocket, TcpStream},
    time::{interval, sleep, timeout},
};

use crate::attacks::event;

/// Another address than the attackers'.
const ADDRESS: Ipv4Addr = Ipv4Addr::new(127, 0, 0, 2);

/// How often it asks.
const INTERVAL: Duration = Duration::from_millis(40);

/// Between the head and the body of a request: the gateway must wait for a body.
const BETWEEN_PACKETS: Duration = Duration::from_millis(4);

/// A request that takes longer counts as refused.
const ANSWER_TIMEOUT: Duration = Duration::from_secs(10);

/// One request in so many is sent on a new connection. Each of the three kinds of requests is.
const RECONNECTS_EVERY: usize = 4;

const BODY: &str = r#"{"amount":100,"currency":"eur"}"#;

/// What the client has seen.
#[derive(Clone, Copy, Debug)]
pub(super) struct Asked {
    pub(super) p50_ms: f64,
    pub(super) p99_ms: f64,
    pub(super) refusals: f64,
    pub(super) total: usize,
}

/// Asks so often: with a key, without one, and with an event that is signed. It has a thread of its
/// own, so that the rest of this program does not delay it.
pub(super) fn ask(gateway: SocketAddr, asks: usize) -> anyhow::Result<Asked> {
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build()?;
    runtime.block_on(async {
        let (mut took, mut refused) = (Vec::with_capacity(asks), 0_u32);
        let mut stream = None;
        let mut every = interval(INTERVAL);
        for number in 0..asks {
            every.tick().await;
            if number % RECONNECTS_EVERY == 0 {
                stream = None;
            }
            let begun = Instant::now();
            let answered = timeout(ANSWER_TIMEOUT, exchange(&mut stream, gateway, number)).await;
            took.push(begun.elapsed().as_secs_f64() * 1000.0);
            if !matches!(answered, Ok(Ok(201))) {
                refused += 1;
                stream = None;
                eprintln!("request {number}: {answered:?}");
            }
        }
        took.sort_by(f64::total_cmp);
        let at = |percent: usize| took.get(took.len() * percent / 100).copied().unwrap_or(f64::NAN);
        let refusals = f64::from(refused);
        Ok(Asked { p50_ms: at(50), p99_ms: at(99), refusals, total: asks })
    })
}

/// One request; its status.
async fn exchange(
    stream: &mut Option<TcpStream>,
    gateway: SocketAddr,
    number: usize,
) -> anyhow::Result<u16> {
    if stream.is_none() {
        let socket = TcpSocket::new_v4()?;
        socket.bind((ADDRESS, 0).into())?;
        let connected = socket.connect(gateway).await?;
        connected.set_nodelay(true)?;
        *stream = Some(connected);
    }
    let stream = stream.as_mut().context("connected")?;
    let (path, lines) = match number % 3 {
        0 => (
            "/charges",
            format!("idempotency-key: innocent-{number}\r\nx-merchant-id: innocent\r\n"),
        ),
        1 => ("/charges", String::new()),
        _ => {
            let signature = event::signature(BODY.as_bytes());
            let (id, name) = (event::ID, event::SIGNATURE);
            (event::PATH, format!("{id}: innocent-{number}\r\n{name}: {signature}\r\n"))
        }
    };
    let head = format!(
        "POST {path} HTTP/1.1\r\nhost: shop.example\r\ncontent-type: application/json\r\n{lines}\
         content-length: {}\r\n\r\n",
        BODY.len(),
    );
    stream.write_all(head.as_bytes()).await?;
    sleep(BETWEEN_PACKETS).await;
    stream.write_all(BODY.as_bytes()).await?;
    status(stream).await
}

/// Reads one answer with a `Content-Length`.
async fn status(stream: &mut TcpStream) -> anyhow::Result<u16> {
    let mut bytes = Vec::new();
    loop {
        if let Some(end) = bytes.windows(4).position(|part| part == b"\r\n\r\n") {
            let head = str::from_utf8(&bytes[..end])?.to_ascii_lowercase();
            let length = head.lines().find_map(|line| line.strip_prefix("content-length: "));
            let length: usize = length.context("an answer does not say how long it is")?.parse()?;
            if bytes.len() >= end + 4 + length {
                return Ok(head.get(9..12).context("no status")?.parse()?);
            }
        }
        let mut buffer = [0; 4096];
        let count = stream.read(&mut buffer).await?;
        anyhow::ensure!(count > 0, "the connection ended");
        bytes.extend_from_slice(&buffer[..count]);
    }
}
