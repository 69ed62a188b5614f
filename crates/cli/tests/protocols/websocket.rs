//! WebSocket: after the handshake the bytes of both sides pass, until one of them ends it.

use std::{
    io::{Read, Write},
    net::{SocketAddr, TcpListener, TcpStream},
    sync::{
        Arc,
        atomic::{AtomicUsize, Ordering},
        mpsc,
    },
    thread,
    time::Duration,
};

use rustls_pki_types::ServerName;
use tokio_rustls::rustls::{ClientConnection, StreamOwned};
use tokio_tungstenite::tungstenite::{
    self, Error, HandshakeError, Message, WebSocket, client,
    client::ClientRequestBuilder,
    handshake::server::{Request, Response},
    protocol::{CloseFrame, frame::coding::CloseCode},
};

use crate::{
    TEST_TIMEOUT,
    authority::Authority,
    common::{Gateway, Setup},
};

/// What the server saw at the end of a conversation.
type Ended = Result<Option<CloseFrame>, Error>;

/// A server that sends back what it gets, and closes on the message `close`.
struct Echo {
    address: SocketAddr,
    handshakes: Arc<AtomicUsize>,
    ended: mpsc::Receiver<Ended>,
}

fn patient(stream: &TcpStream) {
    stream.set_nodelay(true).unwrap();
    stream.set_read_timeout(Some(TEST_TIMEOUT)).unwrap();
    stream.set_write_timeout(Some(TEST_TIMEOUT)).unwrap();
}

impl Echo {
    fn start() -> Self {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let address = listener.local_addr().unwrap();
        let handshakes = Arc::<AtomicUsize>::default();
        let (sender, ended) = mpsc::channel();
        let count = Arc::clone(&handshakes);
        thread::spawn(move || {
            for stream in listener.incoming().map_while(Result::ok) {
                let (sender, count) = (sender.clone(), Arc::clone(&count));
                thread::spawn(move || {
                    patient(&stream);
                    let Ok(mut socket) = tungstenite::accept_hdr(stream, greet) else { return };
                    count.fetch_add(1, Ordering::SeqCst);
                    let _ = sender.send(converse(&mut socket));
                });
            }
        });
        Self { address, handshakes, ended }
    }

    fn ended(&self) -> Ended {
        self.ended.recv_timeout(TEST_TIMEOUT).unwrap()
    }
}

#[expect(clippy::result_large_err, clippy::unnecessary_wraps, reason = "its type is given")]
fn greet(
    request: &Request,
    mut response: Response,
) -> Result<Response, http::Response<Option<String>>> {
    if let Some(wanted) = request.headers().get("sec-websocket-protocol") {
        response.headers_mut().insert("sec-websocket-protocol", wanted.clone());
    }
    Ok(response)
}

fn converse(socket: &mut WebSocket<TcpStream>) -> Ended {
    loop {
        match socket.read() {
            Ok(Message::Close(frame)) => {
                // Reads on until the close handshake is through.
                while socket.read().is_ok() {}
                return Ok(frame);
            }
            Ok(Message::Text(text)) if text.as_str() == "close" => {
                let reason = CloseFrame { code: CloseCode::Away, reason: "enough".into() };
                socket.close(Some(reason))?;
            }
            Ok(message) if message.is_text() || message.is_binary() => socket.send(message)?,
            Ok(_) => {}
            Err(error) => return Err(error),
        }
    }
}

fn connect(gateway: &Gateway) -> TcpStream {
    let stream = TcpStream::connect(gateway.address()).unwrap();
    patient(&stream);
    stream
}

fn request() -> ClientRequestBuilder {
    ClientRequestBuilder::new("ws://shop.example/chat".parse().unwrap()).with_sub_protocol("chat")
}

fn open<S: Read + Write>(stream: S) -> WebSocket<S> {
    let (socket, response) = client(request(), stream).unwrap();
    assert_eq!(response.headers()["sec-websocket-protocol"], "chat");
    socket
}

fn exchange<S: Read + Write>(socket: &mut WebSocket<S>, message: &Message) {
    socket.send(message.clone()).unwrap();
    assert!(socket.read().unwrap() == *message, "the echo is another");
}

fn closed<S: Read + Write>(socket: &mut WebSocket<S>) {
    assert!(matches!(socket.read(), Err(Error::ConnectionClosed)));
}

#[test]
fn a_client_talks_and_closes() {
    let echo = Echo::start();
    let gateway = Setup::at(echo.address).start_blocking();
    let mut socket = open(connect(&gateway));
    exchange(&mut socket, &Message::text("hello"));
    exchange(&mut socket, &Message::binary(vec![0, 13, 10, 13, 10, 255]));
    socket.send(Message::Ping("p".into())).unwrap();
    assert_eq!(socket.read().unwrap(), Message::Pong("p".into()));
    let bye = CloseFrame { code: CloseCode::Normal, reason: "bye".into() };
    socket.close(Some(bye.clone())).unwrap();
    assert_eq!(socket.read().unwrap(), Message::Close(Some(bye.clone())));
    closed(&mut socket);
    assert_eq!(echo.ended().unwrap(), Some(bye));
    assert_eq!(echo.handshakes.load(Ordering::SeqCst), 1);
}

#[test]
fn a_server_closes() {
    let echo = Echo::start();
    let gateway = Setup::at(echo.address).start_blocking();
    let mut socket = open(connect(&gateway));
    socket.send(Message::text("close")).unwrap();
    let enough = CloseFrame { code: CloseCode::Away, reason: "enough".into() };
    assert_eq!(socket.read().unwrap(), Message::Close(Some(enough)));
    closed(&mut socket);
    assert!(echo.ended().is_ok());
}

#[test]
fn large_messages_pass_in_both_directions() {
    let echo = Echo::start();
    let gateway = Setup::at(echo.address).start_blocking();
    let mut socket = open(connect(&gateway));
    for length in [125, 126, 65_535, 65_536, 4 << 20] {
        let bytes: Vec<u8> = (0..length).map(|index: u32| index.to_le_bytes()[1]).collect();
        exchange(&mut socket, &Message::binary(bytes));
    }
    socket.close(None).unwrap();
    assert!(echo.ended().is_ok());
}

#[test]
fn a_connection_that_is_cut_is_cut_on_the_other_side_too() {
    let echo = Echo::start();
    let gateway = Setup::at(echo.address).start_blocking();
    let mut socket = open(connect(&gateway));
    exchange(&mut socket, &Message::text("hello"));
    drop(socket);
    assert!(echo.ended().is_err());
}

#[test]
fn a_conversation_may_be_silent_for_longer_than_any_timeout() {
    let echo = Echo::start();
    let url = format!("http://{}", echo.address);
    let gateway = Setup::upstream(format_args!(
        "{{ url = \"{url}\", timeout = \"2s\", pool_idle = \"100ms\" }}"
    ))
    .tables("[limits]\nheader_timeout = \"2s\"\nbody_timeout = \"2s\"")
    .start_blocking();
    let mut socket = open(connect(&gateway));
    exchange(&mut socket, &Message::text("hello"));
    thread::sleep(Duration::from_secs(3));
    exchange(&mut socket, &Message::text("still there"));
}

#[test]
fn a_websocket_works_over_tls() {
    let echo = Echo::start();
    let authority = Authority::new();
    let setup =
        Setup::at(echo.address).gateway("tls = { certificate = \"cert.pem\", key = \"key.pem\" }");
    authority.certify("localhost").install(setup.folder());
    let gateway = setup.start_blocking();
    let name = ServerName::try_from("localhost").unwrap();
    let tls = ClientConnection::new(authority.client(&["http/1.1"]), name).unwrap();
    let mut socket = open(StreamOwned::new(tls, connect(&gateway)));
    exchange(&mut socket, &Message::text("hello"));
    exchange(&mut socket, &Message::binary(vec![7; 1 << 20]));
    socket.close(None).unwrap();
    assert_eq!(socket.read().unwrap(), Message::Close(None));
    assert_eq!(echo.ended().unwrap(), None);
}

/// A server that answers every request with these bytes and tells what it heard.
fn answering(answer: &'static str) -> (SocketAddr, mpsc::Receiver<String>) {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let address = listener.local_addr().unwrap();
    let (sender, heard) = mpsc::channel();
    thread::spawn(move || {
        for mut stream in listener.incoming().map_while(Result::ok) {
            patient(&stream);
            let mut head = Vec::new();
            let mut byte = [0];
            while !head.ends_with(b"\r\n\r\n") && stream.read_exact(&mut byte).is_ok() {
                head.extend(byte);
            }
            let _ = sender.send(String::from_utf8(head).unwrap().to_lowercase());
            let _ = stream.write_all(answer.as_bytes());
        }
    });
    (address, heard)
}

#[test]
fn an_upgrade_that_the_upstream_refuses_is_an_answer_like_any_other() {
    let (address, heard) =
        answering("HTTP/1.1 403 Forbidden\r\nContent-Length: 2\r\nX-Why: age\r\n\r\nno");
    let gateway = Setup::at(address).start_blocking();
    let Err(HandshakeError::Failure(Error::Http(response))) = client(request(), connect(&gateway))
    else {
        panic!("this is no WebSocket");
    };
    assert_eq!(
        (response.status().as_u16(), &response.headers()["x-why"]),
        (403, &"age".parse().unwrap())
    );
    let head = heard.recv_timeout(TEST_TIMEOUT).unwrap();
    assert!(head.contains("\r\nupgrade: websocket\r\n"), "{head}");
    assert!(head.contains("\r\nconnection: upgrade\r\n"), "{head}");
}

/// Every field of the opening handshake of RFC 6455, section 1.3.
const HANDSHAKE: &str = "GET /chat HTTP/1.1\r\nHost: shop.example\r\nConnection: Upgrade\r\n\
                         Upgrade: websocket\r\nSec-WebSocket-Version: 13\r\n";
const KEY: &str = "Sec-WebSocket-Key: dGhlIHNhbXBsZSBub25jZQ==\r\n";

/// The status line that a handshake with these lines gets from an upstream that answers so.
fn status(lines: &str, answer: &'static str) -> (String, String) {
    let (address, heard) = answering(answer);
    let gateway = Setup::at(address).start_blocking();
    let mut stream = connect(&gateway);
    stream.write_all(format!("{HANDSHAKE}{lines}\r\n").as_bytes()).unwrap();
    let mut status = [0; 12];
    stream.read_exact(&mut status).unwrap();
    (String::from_utf8_lossy(&status).into_owned(), heard.recv_timeout(TEST_TIMEOUT).unwrap())
}

#[test]
fn an_upgrade_counts_only_with_the_proof_that_the_upstream_speaks_websocket() {
    const RIGHT: &str = "HTTP/1.1 101 Switching Protocols\r\nConnection: upgrade\r\n\
                         Upgrade: websocket\r\n\
                         Sec-WebSocket-Accept: s3pPLMBiTxaQ9kYGzzhZRbK+xOo=\r\n\r\n";
    assert_eq!(status(KEY, RIGHT).0, "HTTP/1.1 101");
    for wrong in [
        "HTTP/1.1 101 Switching Protocols\r\nConnection: upgrade\r\nUpgrade: websocket\r\n\r\n",
        "HTTP/1.1 101 Switching Protocols\r\nConnection: upgrade\r\nUpgrade: websocket\r\n\
         Sec-WebSocket-Accept: S3pPLMBiTxaQ9kYGzzhZRbK+xOo=\r\n\r\n",
        "HTTP/1.1 101 Switching Protocols\r\nConnection: upgrade\r\nUpgrade: websocket\r\n\
         Sec-WebSocket-Accept: s3pPLMBiTxaQ9kYGzzhZRbK+xOo=\r\n\
         Sec-WebSocket-Accept: s3pPLMBiTxaQ9kYGzzhZRbK+xOo=\r\n\r\n",
        "HTTP/1.1 101 Switching Protocols\r\nConnection: upgrade\r\nUpgrade: h2c\r\n\
         Sec-WebSocket-Accept: s3pPLMBiTxaQ9kYGzzhZRbK+xOo=\r\n\r\n",
    ] {
        assert_eq!(status(KEY, wrong).0, "HTTP/1.1 504", "{wrong}");
    }
}

#[test]
fn a_handshake_without_one_key_is_a_request_like_any_other() {
    for lines in ["", &format!("{KEY}{KEY}")] {
        let (status, head) = status(lines, "HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\nok");
        assert_eq!(status, "HTTP/1.1 200");
        assert!(!head.contains("\r\nupgrade:"), "{head}");
    }
}

#[test]
fn a_guarded_request_upgrades_to_nothing() {
    let (address, heard) = answering("HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\nok");
    let gateway = Setup::at(address).start_blocking();
    let mut stream = connect(&gateway);
    stream
        .write_all(
            b"POST /charges HTTP/1.1\r\nHost: shop.example\r\nIdempotency-Key: k\r\n\
              Connection: upgrade, http2-settings\r\nUpgrade: h2c\r\nHTTP2-Settings: AAMAAABk\r\n\
              Content-Length: 0\r\n\r\n",
        )
        .unwrap();
    let mut answer = [0; 12];
    stream.read_exact(&mut answer).unwrap();
    assert_eq!(&answer, b"HTTP/1.1 200");
    let head = heard.recv_timeout(TEST_TIMEOUT).unwrap();
    for name in ["upgrade", "connection", "http2-settings"] {
        assert!(!head.contains(&format!("\r\n{name}:")), "{head}");
    }
}

#[test]
fn an_upgrade_to_http_itself_is_not_passed_on() {
    // What came after it would be requests that no route has seen.
    for protocol in ["h2c", "websocket, H2C", "HTTP/2.0", "TLS/1.2, http/1.1"] {
        let (address, heard) = answering("HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\nok");
        let gateway = Setup::at(address).start_blocking();
        let mut stream = connect(&gateway);
        let request = format!(
            "GET / HTTP/1.1\r\nHost: shop.example\r\nConnection: Upgrade, HTTP2-Settings\r\n\
             Upgrade: {protocol}\r\nHTTP2-Settings: AAMAAABk\r\n\r\n"
        );
        stream.write_all(request.as_bytes()).unwrap();
        let mut answer = [0; 12];
        stream.read_exact(&mut answer).unwrap();
        assert_eq!(&answer, b"HTTP/1.1 200");
        let head = heard.recv_timeout(TEST_TIMEOUT).unwrap();
        for name in ["upgrade", "connection", "http2-settings"] {
            assert!(!head.contains(&format!("\r\n{name}:")), "{protocol}: {head}");
        }
    }
}

#[test]
fn an_unsolicited_upgrade_is_not_passed_on() {
    let (address, _heard) =
        answering("HTTP/1.1 101 Switching Protocols\r\nConnection: upgrade\r\nUpgrade: x\r\n\r\n");
    let gateway = Setup::at(address).start_blocking();
    for head in ["GET / HTTP/1.1\r\n", "POST / HTTP/1.1\r\nIdempotency-Key: k\r\n"] {
        let mut stream = connect(&gateway);
        let rest = "Host: shop.example\r\nContent-Length: 0\r\n\r\n";
        stream.write_all(format!("{head}{rest}").as_bytes()).unwrap();
        let mut answer = [0; 12];
        stream.read_exact(&mut answer).unwrap();
        let answer = String::from_utf8_lossy(&answer);
        assert!(answer.starts_with("HTTP/1.1 5"), "{answer}");
    }
}
