//! Attacks by HTTP/1.1.

use std::{io::ErrorKind, net::SocketAddr, time::Duration};

use tokio::{
    io::{AsyncReadExt as _, AsyncWriteExt as _},
    net::TcpStream,
    time::{interval, sleep},
};

use super::{AGAIN_AFTER, LARGE_BYTES, connect, connect_with, new_key};
use crate::attacks::event;

/// How often a byte of a dripping body comes.
const DRIP_EVERY: Duration = Duration::from_millis(200);

/// The receive buffer of a client that does not read.
const UNREAD_BUFFER: u32 = 4096;

/// Sends something and keeps the connection for as long as it lasts.
async fn hold(to: SocketAddr, bytes: &[u8]) {
    let mut stream = connect(to).await;
    let _ = stream.write_all(bytes).await;
    let mut buffer = [0; 4096];
    while let Ok(1..) = stream.read(&mut buffer).await {}
    sleep(AGAIN_AFTER).await;
}

/// Whether an answer came; what it says does not matter, and it is short.
async fn answered(stream: &mut TcpStream) -> bool {
    let mut buffer = vec![0; 16 * 1024];
    matches!(stream.read(&mut buffer).await, Ok(1..))
}

/// A head with a body of which at most a byte comes.
pub(super) async fn heads(to: SocketAddr, number: usize) {
    loop {
        let head = format!(
            "POST /charges HTTP/1.1\r\nhost: shop.example\r\nidempotency-key: {}\r\n\
             content-length: 100\r\n\r\n{}",
            new_key(),
            if number.is_multiple_of(2) { "{" } else { "" },
        );
        hold(to, head.as_bytes()).await;
    }
}

/// Connections that do nothing, in four ways.
pub(super) async fn idle(to: SocketAddr, number: usize) {
    loop {
        let beginning: &[u8] = match number % 4 {
            0 => b"",
            1 => b"GET / HTTP/1.1\r\nhost: shop.example\r\n",
            2 => b"GET / HTTP/1.1\r\nhost: shop.example\r\n\r\n",
            _ => b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n\0\0\0\x04\0\0\0\0\0",
        };
        hold(to, beginning).await;
    }
}

/// A `WebSocket` on which nothing is sent.
pub(super) async fn tunnel(to: SocketAddr) {
    loop {
        let upgrade = "GET /socket HTTP/1.1\r\nhost: shop.example\r\nconnection: upgrade\r\n\
                       upgrade: websocket\r\nsec-websocket-version: 13\r\n\
                       sec-websocket-key: dGhlIHNhbXBsZSBub25jZQ==\r\n\r\n";
        hold(to, upgrade.as_bytes()).await;
    }
}

/// Unguarded bodies that are passed on, and stall.
pub(super) async fn stalled(to: SocketAddr) {
    loop {
        let head = "POST /free HTTP/1.1\r\nhost: shop.example\r\ncontent-length: 100000\r\n\r\n";
        hold(to, head.as_bytes()).await;
    }
}

/// Bodies of which a byte comes now and then. Every other one is guarded.
pub(super) async fn drips(to: SocketAddr, number: usize) {
    loop {
        let (path, key) = if number.is_multiple_of(2) {
            ("/charges", format!("idempotency-key: {}\r\n", new_key()))
        } else {
            ("/free", String::new())
        };
        let mut stream = connect(to).await;
        let head = format!(
            "POST {path} HTTP/1.1\r\nhost: shop.example\r\n{key}content-length: 100000\r\n\r\n"
        );
        let _ = stream.write_all(head.as_bytes()).await;
        let (mut reading, mut writing) = stream.split();
        let mut every = interval(DRIP_EVERY);
        let drip = async {
            while writing.write_all(b"x").await.is_ok() {
                every.tick().await;
            }
        };
        let mut byte = [0];
        tokio::select! {
            _ = reading.read(&mut byte) => {}
            () = drip => {}
        }
        sleep(AGAIN_AFTER).await;
    }
}

/// Requests for large answers on sockets that are never read. Every other one is guarded.
pub(super) async fn unread(to: SocketAddr, number: usize) {
    loop {
        let stream = connect_with(to, |it| it.set_recv_buffer_size(UNREAD_BUFFER)).await;
        // It ends when the gateway has closed it, which only writing can show.
        loop {
            let request = if number.is_multiple_of(2) {
                format!(
                    "POST /large HTTP/1.1\r\nhost: shop.example\r\nidempotency-key: {}\r\n\
                     content-length: 0\r\n\r\n",
                    new_key(),
                )
            } else {
                "GET /large HTTP/1.1\r\nhost: shop.example\r\n\r\n".to_owned()
            };
            match stream.try_write(request.as_bytes()) {
                Ok(_) => {}
                Err(error) if error.kind() == ErrorKind::WouldBlock => {}
                Err(_) => break,
            }
            sleep(AGAIN_AFTER).await;
        }
    }
}

/// Requests one after the other, each from a caller of its own. An empty body is a small order.
pub(super) async fn repeated(to: SocketAddr, gzip: Vec<u8>) {
    let coding = if gzip.is_empty() { "" } else { "content-encoding: gzip\r\n" };
    let body = if gzip.is_empty() { b"{\"amount\":1}".to_vec() } else { gzip };
    in_turn(to, || {
        let (key, length) = (new_key(), body.len());
        let head = format!(
            "POST /charges HTTP/1.1\r\nhost: shop.example\r\nidempotency-key: {key}\r\n\
             x-merchant-id: {key}\r\ncontent-type: application/json\r\n{coding}\
             content-length: {length}\r\n\r\n",
        );
        [head.as_bytes(), &body].concat()
    })
    .await;
}

/// Large events whose signatures have the right form and are wrong.
pub(super) async fn forged(to: SocketAddr) {
    let body = vec![b' '; LARGE_BYTES];
    let signature = event::forged_signature(&body);
    in_turn(to, || {
        let head = format!(
            "POST {} HTTP/1.1\r\nhost: shop.example\r\ncontent-type: application/json\r\n\
             {}: {}\r\n{}: {signature}\r\ncontent-length: {LARGE_BYTES}\r\n\r\n",
            event::PATH,
            event::ID,
            new_key(),
            event::SIGNATURE,
        );
        [head.as_bytes(), &body].concat()
    })
    .await;
}

/// New keys for operations whose outcomes are unknown: of anonymous requests, of one caller, and
/// of callers that are new each time.
pub(super) async fn held(to: SocketAddr, number: usize) {
    in_turn(to, || {
        let key = new_key();
        let caller = match number % 3 {
            0 => String::new(),
            1 => "x-merchant-id: attacker\r\n".to_owned(),
            _ => format!("x-merchant-id: {key}\r\n"),
        };
        format!(
            "POST /broken HTTP/1.1\r\nhost: shop.example\r\nidempotency-key: {key}\r\n{caller}\
             content-length: 0\r\n\r\n",
        )
        .into_bytes()
    })
    .await;
}

/// Requests one after the other, on a new connection when one has ended.
async fn in_turn(to: SocketAddr, request: impl Fn() -> Vec<u8>) {
    loop {
        let mut stream = connect(to).await;
        while stream.write_all(&request()).await.is_ok() && answered(&mut stream).await {}
    }
}

/// A request with the same key as all others, for a slow service.
pub(super) async fn waiter(to: SocketAddr) {
    loop {
        let mut stream = connect(to).await;
        let body = "{\"amount\":1}";
        let head = format!(
            "POST /slow HTTP/1.1\r\nhost: shop.example\r\nidempotency-key: one\r\n\
             x-merchant-id: attacker\r\ncontent-length: {}\r\n\r\n{body}",
            body.len(),
        );
        while stream.write_all(head.as_bytes()).await.is_ok() && answered(&mut stream).await {
            sleep(AGAIN_AFTER).await;
        }
    }
}

/// Paths of 30,000 dots and encoded slashes.
pub(super) async fn many_readings(to: SocketAddr) {
    let path = "/%2e%2e;x/a.b".repeat(2000);
    in_turn(to, || format!("GET {path} HTTP/1.1\r\nhost: shop.example\r\n\r\n").into_bytes()).await;
}
