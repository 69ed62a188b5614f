//! A client that takes all there is of something keeps no other out: places for bodies that are
//! still arriving, connections, tunnels.

use std::{
    net::SocketAddr,
    sync::{
        Arc,
        atomic::{AtomicUsize, Ordering},
    },
    time::Duration,
};

use bytes::Bytes;
use data_encoding::HEXLOWER;
use hmac::{Hmac, KeyInit as _, Mac as _};
use http::{Request, Version};
use sha2::Sha256;
use tokio::{
    io::{AsyncReadExt as _, AsyncWriteExt as _},
    net::{TcpListener, TcpSocket, TcpStream},
    task::JoinSet,
    time::{Instant, interval, sleep, timeout},
};

use crate::{
    common::{Gateway, Setup, TEST_TIMEOUT, Upstream},
    operators::{metrics, reaches},
};

/// How often the innocent client asks, and how often in all.
const ASKS_EVERY: Duration = Duration::from_millis(40);
const ASKS: usize = 40;

/// The median of an innocent client's answers, and the longest. `cargo xtask bench attacks`
/// measures whether the 99th percentile is below 100 ms; here the machine may be busy with other
/// tests. The median is less than the second for which a closing connection is awaited, so that a
/// client which always waits for that is noticed.
const MEDIAN_MAX: Duration = Duration::from_millis(900);
const ANSWER_MAX: Duration = Duration::from_secs(20);

/// Between the head and the body of an innocent request, which is what makes it wait for a place.
const BETWEEN_PACKETS: Duration = Duration::from_millis(4);

/// How long an attacker waits before it takes again what it lost.
const AGAIN_AFTER: Duration = Duration::from_millis(100);

const SECRET: &str = "a secret of the sender";

/// The attacker's address is the first; the innocent client has either.
const ATTACKER: &str = "127.0.0.1:0";
const INNOCENT: [&str; 2] = ["127.0.0.2:0", ATTACKER];

async fn connect(from: &str, to: SocketAddr) -> TcpStream {
    let socket = TcpSocket::new_v4().unwrap();
    socket.bind(from.parse().unwrap()).unwrap();
    let stream = timeout(TEST_TIMEOUT, socket.connect(to)).await.unwrap().unwrap();
    stream.set_nodelay(true).unwrap();
    stream
}

/// What a head carries to identify its caller, by the configuration under test.
#[derive(Clone, Copy, Debug)]
enum Kind {
    Anonymous,
    /// A caller of its own for each request.
    Token,
    /// A signature of the right form; an innocent client's is right.
    Signed,
}

impl Kind {
    fn setup(self, upstream: &Upstream) -> Setup {
        let setup = Setup::new(&upstream.url()).tables(
            "[limits]\nin_flight = 60\nper_caller = 30\nconnections = 300\nbody_timeout = \"60s\"\n\
             body_start_timeout = \"60s\"",
        );
        match self {
            Self::Anonymous => setup.defaults("caller = [\"anonymous\"]"),
            Self::Token => setup.defaults("caller = [\"authorization\"]"),
            Self::Signed => setup.environment("HOOK_SECRET", SECRET).tables(
                "[[route]]\nmatch = \"POST /hook\"\nscope = \"hook\"\n\
                 signature = { scheme = \"github\", secret_env = \"HOOK_SECRET\" }",
            ),
        }
    }

    const fn path(self) -> &'static str {
        match self {
            Self::Anonymous | Self::Token => "/charges",
            Self::Signed => "/hook",
        }
    }

    fn headers(self, number: usize, body: &str, forged: bool) -> Vec<(&'static str, String)> {
        match self {
            Self::Anonymous => vec![("idempotency-key", format!("key-{forged}-{number}"))],
            Self::Token => vec![
                ("idempotency-key", format!("key-{forged}-{number}")),
                ("authorization", format!("Bearer token-{forged}-{number}")),
            ],
            Self::Signed => {
                let secret = if forged { "another secret altogether" } else { SECRET };
                let mac = Hmac::<Sha256>::new_from_slice(secret.as_bytes()).unwrap();
                let mac = mac.chain_update(body).finalize().into_bytes();
                vec![
                    ("x-github-delivery", format!("delivery-{forged}-{number}")),
                    ("x-hub-signature-256", format!("sha256={}", HEXLOWER.encode(&mac))),
                ]
            }
        }
    }

    /// A head of HTTP/1.1 that announces a body of 20 bytes.
    fn head(self, number: usize, body: &str, forged: bool) -> String {
        let lines = self.headers(number, body, forged).into_iter();
        let lines: String = lines.map(|(name, value)| format!("{name}: {value}\r\n")).collect();
        format!(
            "POST {} HTTP/1.1\r\nhost: shop.example\r\ncontent-type: application/json\r\n{lines}\
             content-length: {}\r\n\r\n",
            self.path(),
            body.len(),
        )
    }
}

const BODY: &str = r#"{"amount":100,"n":1}"#;

/// Heads on streams of HTTP/2 connections, whose bodies never come. What is taken away is taken
/// again.
fn flood_streams(attack: &mut JoinSet<()>, to: SocketAddr, kind: Kind, connections: usize) {
    let number = Arc::new(AtomicUsize::new(0));
    for _ in 0..connections {
        let number = Arc::clone(&number);
        attack.spawn(async move {
            let (client, connection) =
                h2::client::handshake(connect(ATTACKER, to).await).await.unwrap();
            let mut streams = JoinSet::new();
            streams.spawn(async { drop(connection.await) });
            for _ in 0..100 {
                let (client, number) = (client.clone(), Arc::clone(&number));
                streams.spawn(flood_stream(client, number, kind));
            }
            while streams.join_next().await.is_some() {}
        });
    }
}

async fn flood_stream(
    client: h2::client::SendRequest<Bytes>,
    number: Arc<AtomicUsize>,
    kind: Kind,
) {
    loop {
        let number = number.fetch_add(1, Ordering::Relaxed);
        let mut request = Request::post(format!("http://shop.example{}", kind.path()))
            .version(Version::HTTP_2)
            .header("content-type", "application/json");
        for (name, value) in kind.headers(number, BODY, true) {
            request = request.header(name, value);
        }
        let Ok(mut client) = client.clone().ready().await else { return };
        let Ok((response, _body)) = client.send_request(request.body(()).unwrap(), false) else {
            return;
        };
        let _ = response.await;
        sleep(AGAIN_AFTER).await;
    }
}

/// The same on sockets of HTTP/1.1, of which every other has sent a byte of its body.
fn flood_sockets(attack: &mut JoinSet<()>, to: SocketAddr, kind: Kind, sockets: usize) {
    for number in 0..sockets {
        attack.spawn(async move {
            loop {
                let mut stream = connect(ATTACKER, to).await;
                let head = kind.head(number, BODY, true);
                let _ = stream.write_all(head.as_bytes()).await;
                if number % 2 == 0 {
                    // It does not help to have sent a little.
                    let _ = stream.write_all(b"{").await;
                }
                let _ = stream.read_to_end(&mut Vec::new()).await;
                sleep(AGAIN_AFTER).await;
            }
        });
    }
}

/// A client that asks every 40 ms, in two packets, on one connection or on one for each request.
/// Gives up on no refusal.
async fn innocent(from: &'static str, to: SocketAddr, kind: Kind, reconnects: bool) {
    let mut stream = connect(from, to).await;
    let mut took = Vec::new();
    let mut every = interval(ASKS_EVERY);
    for number in 0..ASKS {
        every.tick().await;
        let begun = Instant::now();
        if reconnects {
            stream = connect(from, to).await;
        }
        let head = kind.head(number, BODY, false);
        stream.write_all(head.as_bytes()).await.unwrap();
        sleep(BETWEEN_PACKETS).await;
        stream.write_all(BODY.as_bytes()).await.unwrap();
        let status = timeout(TEST_TIMEOUT, read_status(&mut stream)).await;
        assert_eq!(status, Ok(201), "request {number} from {from}, after {:?}", begun.elapsed());
        took.push(begun.elapsed());
    }
    took.sort_unstable();
    let (median, longest) = (took[took.len() / 2], took[took.len() - 1]);
    eprintln!("{kind:?} from {from}: median {median:?}, longest {longest:?}");
    assert!(median < MEDIAN_MAX && longest < ANSWER_MAX, "{took:?}");
}

/// Reads one answer with a Content-Length; 0 if the connection ended.
pub(crate) async fn read_status(stream: &mut TcpStream) -> u16 {
    let mut bytes = Vec::new();
    loop {
        if let Some(end) = bytes.windows(4).position(|window| window == b"\r\n\r\n") {
            let head = String::from_utf8(bytes[..end].to_vec()).unwrap().to_ascii_lowercase();
            let length = head.lines().find_map(|line| line.strip_prefix("content-length: "));
            let length: usize = length.map_or(0, |length| length.parse().unwrap());
            if bytes.len() >= end + 4 + length {
                return head[9..12].parse().unwrap();
            }
        }
        let mut buffer = [0; 4096];
        match stream.read(&mut buffer).await {
            Ok(0) | Err(_) => return 0,
            Ok(count) => bytes.extend_from_slice(&buffer[..count]),
        }
    }
}

/// Runs an innocent client from another address and from the attacker's, while an attack goes on.
async fn innocents(gateway: &Gateway, kind: Kind, reconnects: bool) {
    for from in INNOCENT {
        // Keys of the second are those of the first: recorded answers need places too.
        innocent(from, gateway.address(), kind, reconnects).await;
    }
}

async fn reaches_at_least(gateway: &Gateway, name: &str, value: f64) {
    let end = Instant::now() + TEST_TIMEOUT;
    while metrics(gateway).await.get(name).copied().unwrap_or(0.0) < value {
        assert!(Instant::now() < end, "{name} never reached {value}");
        sleep(Duration::from_millis(5)).await;
    }
}

async fn bodies_that_never_come(kind: Kind, by_streams: bool) {
    let upstream = Upstream::plain().await;
    let gateway = kind.setup(&upstream).start().await;
    let mut attack = JoinSet::new();
    if by_streams {
        flood_streams(&mut attack, gateway.address(), kind, 3);
    } else {
        flood_sockets(&mut attack, gateway.address(), kind, 150);
    }
    reaches_at_least(&gateway, "semel_arriving", 60.0).await;
    innocents(&gateway, kind, false).await;
    let counted = metrics(&gateway).await;
    assert!(counted["semel_arriving"] >= 50.0, "the attack has ended before its end: {counted:?}");
    assert!(counted[r#"semel_evicted_total{reason="body"}"#] > 0.0, "{counted:?}");
    assert_eq!(upstream.request_count(), ASKS, "each key runs once, and none of the attacker's");
    drop(attack);
    reaches(&gateway, "semel_arriving", 0).await;
}

#[tokio::test]
async fn streams_without_their_bodies_keep_no_anonymous_request_out() {
    bodies_that_never_come(Kind::Anonymous, true).await;
}

#[tokio::test]
async fn streams_with_a_token_each_and_no_body_keep_no_request_out() {
    bodies_that_never_come(Kind::Token, true).await;
}

#[tokio::test]
async fn forged_events_without_their_bodies_keep_no_genuine_event_out() {
    bodies_that_never_come(Kind::Signed, true).await;
}

#[tokio::test]
async fn sockets_without_their_bodies_keep_no_request_out() {
    bodies_that_never_come(Kind::Anonymous, false).await;
}

#[tokio::test]
async fn idle_connections_keep_no_client_out() {
    let upstream = Upstream::plain().await;
    let setup = Setup::new(&upstream.url()).defaults("caller = [\"anonymous\"]");
    let gateway = setup.tables("[limits]\nconnections = 40").start().await;
    let to = gateway.address();
    let mut attack = JoinSet::new();
    for number in 0..100_usize {
        attack.spawn(async move {
            loop {
                let mut stream = connect(ATTACKER, to).await;
                let beginning: &[u8] = match number % 4 {
                    // Never a byte.
                    0 => b"",
                    // Part of a head.
                    1 => b"GET / HTTP/1.1\r\nhost: a\r\n",
                    // A request, and then nothing.
                    2 => b"GET / HTTP/1.1\r\nhost: a\r\n\r\n",
                    // HTTP/2 without a stream.
                    _ => b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n\0\0\0\x04\0\0\0\0\0",
                };
                let _ = stream.write_all(beginning).await;
                let _ = stream.read_to_end(&mut Vec::new()).await;
                sleep(AGAIN_AFTER).await;
            }
        });
    }
    reaches(&gateway, "semel_connections", 40).await;
    innocents(&gateway, Kind::Anonymous, true).await;
    let counted = metrics(&gateway).await;
    assert!(counted[r#"semel_evicted_total{reason="connection"}"#] > 0.0, "{counted:?}");
    drop(attack);
    reaches(&gateway, "semel_connections", 0).await;
}

#[tokio::test]
async fn requests_that_stall_keep_no_other_address_out() {
    let upstream = Upstream::plain().await;
    let setup = Setup::new(&upstream.url()).defaults("caller = [\"anonymous\"]");
    let limits = "[limits]\nconnections = 40\nbody_timeout = \"60s\"";
    let gateway = setup.tables(limits).start().await;
    let mut stalled = Vec::new();
    for _ in 0..40 {
        let mut stream = connect(ATTACKER, gateway.address()).await;
        let head = "POST /free HTTP/1.1\r\nhost: shop.example\r\ncontent-length: 100000\r\n\r\n";
        stream.write_all(head.as_bytes()).await.unwrap();
        stalled.push(stream);
    }
    reaches_at_least(&gateway, r#"semel_evicted_total{reason="share"}"#, 5.0).await;
    innocent(INNOCENT[0], gateway.address(), Kind::Anonymous, true).await;
    // The attacker's own address is refused at once, and does not wait.
    let mut stream = connect(ATTACKER, gateway.address()).await;
    let head = Kind::Anonymous.head(ASKS, BODY, false);
    stream.write_all((head + BODY).as_bytes()).await.unwrap();
    assert_eq!(timeout(TEST_TIMEOUT, read_status(&mut stream)).await, Ok(503));
    drop((stalled, stream));
    reaches(&gateway, "semel_connections", 0).await;
}

#[tokio::test]
async fn streams_that_do_not_end_as_announced_keep_no_client_out() {
    let upstream = Upstream::plain().await;
    let setup = Setup::new(&upstream.url()).defaults("caller = [\"anonymous\"]");
    let limits = "[limits]\nconnections = 40\nbody_timeout = \"60s\"";
    let gateway = setup.tables(limits).start().await;
    let (to, mut attack) = (gateway.address(), JoinSet::new());
    for _ in 0..60 {
        attack.spawn(async move {
            loop {
                let stream = connect(ATTACKER, to).await;
                if let Ok((client, connection)) = h2::client::handshake(stream).await {
                    let mut streams = JoinSet::new();
                    streams.spawn(async { drop(connection.await) });
                    let request = Request::post("http://shop.example/free");
                    let request = request.header("content-length", 0).body(()).unwrap();
                    if let Ok(mut client) = client.ready().await
                        && let Ok((response, _body)) = client.send_request(request, false)
                    {
                        let _ = response.await;
                    }
                }
                sleep(AGAIN_AFTER).await;
            }
        });
    }
    reaches(&gateway, "semel_connections", 40).await;
    innocents(&gateway, Kind::Anonymous, true).await;
    assert_eq!(upstream.request_count(), ASKS, "none of the attacker's has run");
}

/// An upstream that takes every WebSocket and is silent, beside one that answers.
async fn silent_upstream(upstream: &Upstream) -> SocketAddr {
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let address = listener.local_addr().unwrap();
    let behind: SocketAddr = upstream.url().strip_prefix("http://").unwrap().parse().unwrap();
    tokio::spawn(async move {
        loop {
            let (mut stream, _) = listener.accept().await.unwrap();
            tokio::spawn(async move {
                let mut bytes = [0; 4096];
                let count = stream.read(&mut bytes).await.unwrap_or(0);
                if bytes[..count].starts_with(b"GET /socket ") {
                    let accepted = b"HTTP/1.1 101 Switching Protocols\r\nconnection: upgrade\r\n\
                                     upgrade: websocket\r\n\
                                     sec-websocket-accept: s3pPLMBiTxaQ9kYGzzhZRbK+xOo=\r\n\r\n";
                    let _ = stream.write_all(accepted).await;
                    let _ = stream.read_to_end(&mut Vec::new()).await;
                } else {
                    let mut other = TcpStream::connect(behind).await.unwrap();
                    let _ = other.write_all(&bytes[..count]).await;
                    let _ = tokio::io::copy_bidirectional(&mut stream, &mut other).await;
                }
            });
        }
    });
    address
}

const UPGRADE: &[u8] = b"GET /socket HTTP/1.1\r\nhost: shop.example\r\nconnection: upgrade\r\n\
                         upgrade: websocket\r\nsec-websocket-version: 13\r\n\
                         sec-websocket-key: dGhlIHNhbXBsZSBub25jZQ==\r\n\r\n";

async fn tunnel(from: &str, to: SocketAddr) -> TcpStream {
    let mut stream = connect(from, to).await;
    stream.write_all(UPGRADE).await.unwrap();
    let mut answer = [0; 12];
    stream.read_exact(&mut answer).await.unwrap();
    assert_eq!(&answer, b"HTTP/1.1 101");
    stream
}

#[tokio::test]
async fn silent_tunnels_keep_no_client_out() {
    let upstream = Upstream::plain().await;
    let front = silent_upstream(&upstream).await;
    let setup = Setup::new(&format!("http://{front}")).defaults("caller = [\"anonymous\"]");
    let gateway = setup.tables("[limits]\nconnections = 40").start().await;
    let (to, mut attack) = (gateway.address(), JoinSet::new());
    for _ in 0..60 {
        attack.spawn(async move {
            loop {
                let mut stream = connect(ATTACKER, to).await;
                let _ = stream.write_all(UPGRADE).await;
                let _ = stream.read_to_end(&mut Vec::new()).await;
                // So soon again that no tunnel is old.
                sleep(AGAIN_AFTER / 10).await;
            }
        });
    }
    reaches_at_least(&gateway, "semel_tunnels", 30.0).await;
    for reconnects in [false, true] {
        innocent(INNOCENT[0], to, Kind::Anonymous, reconnects).await;
    }
    let counted = metrics(&gateway).await;
    assert!(counted[r#"semel_evicted_total{reason="tunnel"}"#] > 0.0, "{counted:?}");
    drop(attack);
    reaches(&gateway, "semel_tunnels", 0).await;
}

#[tokio::test]
async fn a_tunnel_without_a_byte_ends_after_its_timeout_and_another_goes_on() {
    let upstream = Upstream::plain().await;
    let front = silent_upstream(&upstream).await;
    let setup = Setup::new(&format!("http://{front}"));
    let gateway = setup.tables("[limits]\ntunnel_timeout = \"3s\"").start().await;
    let mut silent = tunnel(ATTACKER, gateway.address()).await;
    let mut busy = tunnel(ATTACKER, gateway.address()).await;
    let (begun, mut every) = (Instant::now(), interval(Duration::from_millis(50)));
    let ended = tokio::spawn(async move {
        let _ = timeout(TEST_TIMEOUT, silent.read_to_end(&mut Vec::new())).await.expect("it ends");
        begun.elapsed()
    });
    while !ended.is_finished() || begun.elapsed() < Duration::from_secs(5) {
        every.tick().await;
        busy.write_all(b"x").await.unwrap();
    }
    assert!(ended.await.unwrap() >= Duration::from_millis(2900));
    reaches(&gateway, "semel_tunnels", 1).await;
    let counted = metrics(&gateway).await;
    assert_eq!(counted[r#"semel_evicted_total{reason="tunnel-timeout"}"#], 1.0);
}

#[tokio::test]
async fn a_guarded_body_that_does_not_begin_ends_before_one_that_is_slow() {
    let upstream = Upstream::plain().await;
    let setup = Setup::new(&upstream.url()).defaults("caller = [\"anonymous\"]");
    let limits = "[limits]\nbody_start_timeout = \"2s\"\nbody_timeout = \"60s\"";
    let gateway = setup.tables(limits).start().await;
    let mut slow = connect(ATTACKER, gateway.address()).await;
    slow.write_all(Kind::Anonymous.head(1, BODY, false).as_bytes()).await.unwrap();
    slow.write_all(&BODY.as_bytes()[..1]).await.unwrap();
    let mut silent = connect(ATTACKER, gateway.address()).await;
    silent.write_all(Kind::Anonymous.head(2, BODY, true).as_bytes()).await.unwrap();
    let begun = Instant::now();
    assert_eq!(timeout(TEST_TIMEOUT, read_status(&mut silent)).await, Ok(400));
    assert!(begun.elapsed() < Duration::from_secs(50), "{:?}", begun.elapsed());
    slow.write_all(&BODY.as_bytes()[1..]).await.unwrap();
    assert_eq!(timeout(TEST_TIMEOUT, read_status(&mut slow)).await, Ok(201));
    assert_eq!(upstream.request_count(), 1);
    let counted = metrics(&gateway).await;
    assert_eq!(counted[r#"semel_evicted_total{reason="body-start"}"#], 1.0);
}

/// Sends a byte now and then of a body that no route guards, and says when that ended.
async fn drips(gateway: &Gateway, by_http2: bool) -> Duration {
    let begun = Instant::now();
    let mut every = interval(Duration::from_millis(300));
    if by_http2 {
        let stream = connect(ATTACKER, gateway.address()).await;
        let (client, connection) = h2::client::handshake(stream).await.unwrap();
        tokio::spawn(connection);
        let request = Request::post("http://shop.example/free").body(()).unwrap();
        let mut client = client.ready().await.unwrap();
        let (response, mut body) = client.send_request(request, false).unwrap();
        let answered = tokio::spawn(response);
        while !answered.is_finished() && begun.elapsed() < TEST_TIMEOUT {
            every.tick().await;
            let _ = body.send_data(Bytes::from_static(b"x"), false);
        }
        return begun.elapsed();
    }
    let mut stream = connect(ATTACKER, gateway.address()).await;
    let head = "POST /free HTTP/1.1\r\nhost: shop.example\r\ncontent-length: 100000\r\n\r\n";
    stream.write_all(head.as_bytes()).await.unwrap();
    let mut byte = [0];
    loop {
        tokio::select! {
            _ = stream.read(&mut byte) => return begun.elapsed(),
            _ = every.tick() => {}
        }
        let _ = stream.write_all(b"x").await;
        assert!(begun.elapsed() < TEST_TIMEOUT, "it goes on for ever");
    }
}

#[tokio::test]
async fn an_unguarded_body_that_comes_too_slowly_ends() {
    let upstream = Upstream::plain().await;
    let setup = Setup::new(&upstream.url());
    let gateway = setup
        .tables("[limits]\nbody_timeout = \"4s\"\nbody_rate = \"500B\"")
        .tables("[[route]]\nmatch = \"/free\"\nguard = false")
        .start()
        .await;
    for by_http2 in [false, true] {
        let took = drips(&gateway, by_http2).await;
        assert!(took >= Duration::from_millis(3900), "{took:?}");
        assert!(took < Duration::from_secs(50), "HTTP/2: {by_http2}, {took:?}");
    }
    let counted = metrics(&gateway).await;
    assert_eq!(counted[r#"semel_evicted_total{reason="body-rate"}"#], 2.0);
}
