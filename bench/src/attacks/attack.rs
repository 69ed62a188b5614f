//! The attacks. Each takes as much as it can of one thing, from one address, and takes again what
//! it lost.

use std::{
    future::pending,
    io::Write as _,
    net::{Ipv4Addr, SocketAddr},
    sync::atomic::{AtomicUsize, Ordering},
    time::Duration,
};

use axum::http::{Method, Request};
use bytes::Bytes;
use flate2::{Compression, write::GzEncoder};
use h2::client::SendRequest;
use tokio::{
    io::{AsyncReadExt as _, AsyncWriteExt as _},
    net::{TcpSocket, TcpStream},
    task::JoinSet,
    time::sleep,
};

/// How long an attacker waits before it takes again what it lost.
const AGAIN_AFTER: Duration = Duration::from_millis(50);

/// Bodies that stall, and compressed ones, are a little shorter than a guarded body may be.
const LARGE_BYTES: usize = (1 << 20) - 1;

/// A new key for every request.
static KEYS: AtomicUsize = AtomicUsize::new(0);

/// One way to take more than one's share.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub(super) enum Attack {
    None,
    StreamsWithoutBodies,
    SocketsWithoutBodies,
    IdleConnections,
    StalledUnguardedBodies,
    StalledLargeBodies,
    UntakenAnswers,
    UntakenReplays,
    UntakenUnguardedAnswers,
    CompressedBodies,
    GzipMembers,
    NewCallers,
    Waiters,
    RapidResets,
    PathsWithManyReadings,
}

impl Attack {
    pub(super) const ALL: [Self; 15] = [
        Self::None,
        Self::StreamsWithoutBodies,
        Self::SocketsWithoutBodies,
        Self::IdleConnections,
        Self::StalledUnguardedBodies,
        Self::StalledLargeBodies,
        Self::UntakenAnswers,
        Self::UntakenReplays,
        Self::UntakenUnguardedAnswers,
        Self::CompressedBodies,
        Self::GzipMembers,
        Self::NewCallers,
        Self::Waiters,
        Self::RapidResets,
        Self::PathsWithManyReadings,
    ];

    pub(super) const fn name(self) -> &'static str {
        match self {
            Self::None => "none",
            Self::StreamsWithoutBodies => "HTTP/2 streams without bodies",
            Self::SocketsWithoutBodies => "HTTP/1.1 heads without bodies",
            Self::IdleConnections => "idle connections",
            Self::StalledUnguardedBodies => "stalled unguarded bodies",
            Self::StalledLargeBodies => "stalled large bodies",
            Self::UntakenAnswers => "first answers not taken",
            Self::UntakenReplays => "replays not taken",
            Self::UntakenUnguardedAnswers => "unguarded answers not taken",
            Self::CompressedBodies => "compressed bodies",
            Self::GzipMembers => "gzip of empty members",
            Self::NewCallers => "a new caller and key each time",
            Self::Waiters => "waiters for one key",
            Self::RapidResets => "rapid resets",
            Self::PathsWithManyReadings => "paths with many readings",
        }
    }

    /// Attacks until it is dropped.
    pub(super) async fn run(self, to: SocketAddr) {
        let mut all = JoinSet::new();
        let mut spawn = |count: usize, one: fn(SocketAddr, usize) -> BoxedAttack| {
            (0..count).for_each(|number| drop(all.spawn(one(to, number))));
        };
        match self {
            Self::None => {}
            Self::StreamsWithoutBodies => spawn(3, |to, _| Box::pin(streams(to, HEADS))),
            Self::SocketsWithoutBodies => spawn(150, |to, number| Box::pin(heads(to, number))),
            Self::IdleConnections => spawn(400, |to, number| Box::pin(idle(to, number))),
            Self::StalledUnguardedBodies => spawn(300, |to, _| Box::pin(stalled(to))),
            Self::StalledLargeBodies => spawn(6, |to, _| Box::pin(streams(to, STALLED))),
            Self::UntakenAnswers => spawn(2, |to, _| Box::pin(streams(to, ANSWERS))),
            Self::UntakenReplays => spawn(4, |to, _| Box::pin(streams(to, REPLAYS))),
            Self::UntakenUnguardedAnswers => spawn(2, |to, _| Box::pin(streams(to, UNGUARDED))),
            Self::CompressedBodies => spawn(16, |to, _| Box::pin(repeated(to, compressed()))),
            Self::GzipMembers => spawn(8, |to, _| Box::pin(repeated(to, empty_members()))),
            Self::NewCallers => spawn(8, |to, _| Box::pin(repeated(to, Vec::new()))),
            Self::Waiters => spawn(250, |to, _| Box::pin(waiter(to))),
            Self::RapidResets => spawn(4, |to, _| Box::pin(resets(to))),
            Self::PathsWithManyReadings => spawn(8, |to, _| Box::pin(many_readings(to))),
        }
        while all.join_next().await.is_some() {}
        pending().await
    }
}

type BoxedAttack = std::pin::Pin<Box<dyn Future<Output = ()> + Send>>;

fn new_key() -> String {
    format!("attack-{}", KEYS.fetch_add(1, Ordering::Relaxed))
}

async fn connect(to: SocketAddr) -> TcpStream {
    loop {
        let connected = async {
            let socket = TcpSocket::new_v4()?;
            socket.bind((Ipv4Addr::LOCALHOST, 0).into())?;
            let stream = socket.connect(to).await?;
            stream.set_nodelay(true)?;
            std::io::Result::Ok(stream)
        };
        match connected.await {
            Ok(stream) => return stream,
            Err(_) => sleep(AGAIN_AFTER).await,
        }
    }
}

/// What the streams of an attack ask for.
#[derive(Clone, Copy, Debug)]
struct Streams {
    count: usize,
    /// Of which answers nothing is taken.
    window: u32,
    method: AttackMethod,
    path: &'static str,
    /// Bytes of the body that are sent, and that are announced.
    body: (usize, usize),
    keys: Keys,
}

#[derive(Clone, Copy, Debug)]
enum AttackMethod {
    Get,
    Post,
}

#[derive(Clone, Copy, Debug)]
enum Keys {
    None,
    New,
    /// One of a hundred.
    Known,
}

const HEADS: Streams = Streams {
    count: 100,
    window: 65_535,
    method: AttackMethod::Post,
    path: "/charges",
    body: (0, 100),
    keys: Keys::New,
};
const STALLED: Streams = Streams { count: 10, body: (LARGE_BYTES / 2, LARGE_BYTES), ..HEADS };
const ANSWERS: Streams = Streams { count: 200, window: 0, path: "/large", body: (0, 0), ..HEADS };
const REPLAYS: Streams = Streams { count: 100, keys: Keys::Known, ..ANSWERS };
const UNGUARDED: Streams = Streams { method: AttackMethod::Get, keys: Keys::None, ..ANSWERS };

/// Streams of an HTTP/2 connection, each taken again when it has ended.
async fn streams(to: SocketAddr, what: Streams) {
    loop {
        let mut builder = h2::client::Builder::new();
        builder.initial_window_size(what.window).initial_max_send_streams(what.count);
        if let Ok((client, connection)) = builder.handshake::<_, Bytes>(connect(to).await).await {
            let mut all = JoinSet::new();
            for number in 0..what.count {
                all.spawn(one_stream(client.clone(), what, number));
            }
            let _ = connection.await;
        }
        sleep(AGAIN_AFTER).await;
    }
}

async fn one_stream(client: SendRequest<Bytes>, what: Streams, number: usize) {
    loop {
        let method = match what.method {
            AttackMethod::Get => Method::GET,
            AttackMethod::Post => Method::POST,
        };
        let uri = format!("http://shop.example{}", what.path);
        let mut request = Request::builder().method(method).uri(uri);
        request = match what.keys {
            Keys::None => request,
            Keys::New => request.header("idempotency-key", new_key()),
            Keys::Known => request.header("idempotency-key", format!("known-{number}")),
        };
        let (sent, announced) = what.body;
        if announced > 0 {
            request = request.header("content-length", announced);
        }
        let Ok(request) = request.body(()) else { return };
        let Ok(mut client) = client.clone().ready().await else { return };
        let Ok((answer, mut body)) = client.send_request(request, announced == 0) else { return };
        if sent > 0 {
            let _ = body.send_data(vec![b'x'; sent].into(), false);
        }
        if let Ok(answer) = answer.await {
            let mut body = answer.into_body();
            // What is not released gives no new window.
            while let Some(Ok(_)) = body.data().await {}
        }
        sleep(AGAIN_AFTER).await;
    }
}

/// A head of HTTP/1.1 with a body of which at most a byte comes.
async fn heads(to: SocketAddr, number: usize) {
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
async fn idle(to: SocketAddr, number: usize) {
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

/// Unguarded bodies that are passed on, and stall.
async fn stalled(to: SocketAddr) {
    loop {
        let head = "POST /free HTTP/1.1\r\nhost: shop.example\r\ncontent-length: 100000\r\n\r\n";
        hold(to, head.as_bytes()).await;
    }
}

/// Sends something and keeps the connection for as long as it lasts.
async fn hold(to: SocketAddr, bytes: &[u8]) {
    let mut stream = connect(to).await;
    let _ = stream.write_all(bytes).await;
    let mut buffer = [0; 4096];
    while let Ok(1..) = stream.read(&mut buffer).await {}
    sleep(AGAIN_AFTER).await;
}

/// Requests one after the other, each from a caller of its own. An empty body is a small order.
async fn repeated(to: SocketAddr, gzip: Vec<u8>) {
    let coding = if gzip.is_empty() { "" } else { "content-encoding: gzip\r\n" };
    let body = if gzip.is_empty() { b"{\"amount\":1}".to_vec() } else { gzip };
    loop {
        let mut stream = connect(to).await;
        loop {
            let (key, length) = (new_key(), body.len());
            let head = format!(
                "POST /charges HTTP/1.1\r\nhost: shop.example\r\nidempotency-key: {key}\r\n\
                 x-merchant-id: {key}\r\ncontent-type: application/json\r\n{coding}\
                 content-length: {length}\r\n\r\n",
            );
            let sent = [head.as_bytes(), &body].concat();
            if stream.write_all(&sent).await.is_err() || !answered(&mut stream).await {
                break;
            }
        }
    }
}

/// Whether an answer came; what it says does not matter, and it is short.
async fn answered(stream: &mut TcpStream) -> bool {
    let mut buffer = vec![0; 16 * 1024];
    matches!(stream.read(&mut buffer).await, Ok(1..))
}

/// JSON that is compressed as far as honest JSON can be.
fn compressed() -> Vec<u8> {
    let item = r#"{"sku":"A-1","quantity":1,"price":"12.99","currency":"eur"},"#;
    let items = item.repeat((LARGE_BYTES - 100) / item.len());
    let json = format!("{{\"items\":[{}]}}", items.trim_end_matches(','));
    // Stronger compression would be refused for its ratio.
    let mut encoder = GzEncoder::new(Vec::new(), Compression::new(0));
    let mut halves = GzEncoder::new(Vec::new(), Compression::fast());
    let (stored, packed) = json.as_bytes().split_at(json.len() / 64);
    let done = encoder.write_all(stored).and_then(|()| halves.write_all(packed));
    match (done, encoder.finish(), halves.finish()) {
        (Ok(()), Ok(first), Ok(second)) => [first, second].concat(),
        _ => Vec::new(),
    }
}

fn empty_members() -> Vec<u8> {
    let member = GzEncoder::new(Vec::new(), Compression::fast()).finish().unwrap_or_default();
    member.repeat(LARGE_BYTES / member.len().max(1))
}

/// A request with the same key as all others, for a slow service.
async fn waiter(to: SocketAddr) {
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

/// Streams that are reset as soon as they are sent.
async fn resets(to: SocketAddr) {
    loop {
        let Ok((client, connection)) = h2::client::handshake(connect(to).await).await else {
            continue;
        };
        let connection = tokio::spawn(connection);
        while let Ok(mut client) = client.clone().ready().await {
            let request = Request::post("http://shop.example/charges");
            let Ok(request) = request.header("idempotency-key", new_key()).body(()) else { break };
            let Ok((_, mut body)) = client.send_request(request, false) else { break };
            body.send_data(Bytes::new(), false).unwrap_or_default();
            body.send_reset(h2::Reason::CANCEL);
            tokio::task::yield_now().await;
        }
        connection.abort();
        sleep(AGAIN_AFTER).await;
    }
}

/// Paths of 30,000 dots and encoded slashes.
async fn many_readings(to: SocketAddr) {
    let path = "/%2e%2e;x/a.b".repeat(2000);
    loop {
        let mut stream = connect(to).await;
        let head = format!("GET {path} HTTP/1.1\r\nhost: shop.example\r\n\r\n");
        while stream.write_all(head.as_bytes()).await.is_ok() && answered(&mut stream).await {}
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn compressed_bodies_are_within_the_limits_of_an_honest_one() {
        let body = compressed();
        assert!(body.len() > LARGE_BYTES / 100 && body.len() < LARGE_BYTES / 10, "{}", body.len());
        assert!(empty_members().len() > LARGE_BYTES / 2);
    }
}
