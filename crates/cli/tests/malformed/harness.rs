//! The program under test, the upstream behind it and the client in front of it.

use std::{
    io::{Read as _, Write as _},
    net::{Shutdown, SocketAddr, TcpListener, TcpStream},
    sync::{
        Arc, Mutex,
        atomic::{AtomicUsize, Ordering},
    },
    thread,
    time::Duration,
};

use semel::core::Problem;

use crate::common::{Gateway, Setup, TestResponse};

/// After this long without a byte something hangs.
const TEST_TIMEOUT: Duration = Duration::from_secs(30);

/// How long a head may take to come.
pub(crate) const HEADER_TIMEOUT: Duration = Duration::from_secs(4);

/// A request that is wrong, and what it should get.
#[derive(Debug)]
pub(crate) struct Case {
    pub(crate) bytes: Vec<u8>,
    answer: Expected,
    /// Whether nothing more is sent after it.
    ends: bool,
}

#[derive(Clone, Copy, Debug)]
enum Expected {
    Status(u16),
    Problem(Problem),
}

impl Case {
    pub(crate) fn status(status: u16, bytes: impl Into<Vec<u8>>) -> Self {
        Self { bytes: bytes.into(), answer: Expected::Status(status), ends: false }
    }

    pub(crate) fn problem(problem: Problem, bytes: impl Into<Vec<u8>>) -> Self {
        Self { bytes: bytes.into(), answer: Expected::Problem(problem), ends: false }
    }

    /// The client sends no more after this.
    pub(crate) fn then_nothing(mut self) -> Self {
        self.ends = true;
        self
    }
}

/// Bytes as an assertion shows them.
pub(crate) fn shown(bytes: &[u8]) -> String {
    let start = bytes.get(..400).unwrap_or(bytes);
    format!("{} ({} bytes)", start.escape_ascii(), bytes.len())
}

/// A gateway in front of an upstream.
#[derive(Debug)]
pub(crate) struct Harness {
    upstream: ByteCountingUpstream,
    gateway: WatchedGateway,
}

/// The gateway itself. It must not end before it is stopped, nor panic.
#[derive(Debug)]
pub(crate) struct WatchedGateway {
    gateway: Gateway,
    pub(crate) address: SocketAddr,
}

impl WatchedGateway {
    /// Starts it in front of an upstream, with more lines for its configuration's `[limits]`.
    pub(crate) fn start(upstream: SocketAddr, limits: &str) -> Self {
        let gateway = Setup::configured(&configuration(upstream, limits)).start_blocking();
        Self { address: gateway.address(), gateway }
    }

    /// How many descriptors it has open.
    pub(crate) fn descriptors(&self) -> usize {
        std::fs::read_dir(format!("/proc/{}/fd", self.gateway.process())).unwrap().count()
    }

    /// Sends these bytes, reads what comes until it is silent for so long, then says that nothing
    /// more is sent, and reads until the connection ends. That it is said late matters: a client
    /// that says it at once is taken for one that is gone.
    pub(crate) fn converse(&self, bytes: &[u8], silence: Duration) {
        let mut stream = self.connect();
        // The rest of what was refused need not be taken.
        let _ = stream.write_all(bytes);
        stream.set_read_timeout(Some(silence)).unwrap();
        let mut buffer = [0; 4096];
        while let Ok(1..) = stream.read(&mut buffer) {}
        stream.set_read_timeout(Some(TEST_TIMEOUT)).unwrap();
        let _ = stream.shutdown(Shutdown::Write);
        let mut received = Vec::new();
        while more(&mut stream, &mut received).is_some() {
            received.clear();
        }
    }

    pub(crate) fn connect(&self) -> TcpStream {
        let stream = TcpStream::connect(self.address).unwrap();
        stream.set_read_timeout(Some(TEST_TIMEOUT)).unwrap();
        stream.set_write_timeout(Some(TEST_TIMEOUT)).unwrap();
        stream
    }
}

impl Harness {
    pub(crate) fn start() -> Self {
        let upstream = ByteCountingUpstream::start();
        let gateway = WatchedGateway::start(upstream.address, "");
        Self { upstream, gateway }
    }

    pub(crate) fn connect(&self) -> TcpStream {
        self.gateway.connect()
    }

    /// How many bytes have come to the upstream.
    pub(crate) fn passed(&self) -> usize {
        self.upstream.bytes.load(Ordering::SeqCst)
    }

    /// Sends a request and reads its answer, if there is one before the connection ends.
    fn ask(&self, bytes: &[u8], ends: bool) -> Option<TestResponse> {
        let mut stream = self.connect();
        // Who is refused early need not be let finish.
        let _ = stream.write_all(bytes);
        if ends {
            let _ = stream.shutdown(Shutdown::Write);
        }
        read_response(&mut stream)
    }

    /// The request gets the answer that it should, the upstream gets nothing, and the next client
    /// is served.
    pub(crate) fn refuses(&self, case: &Case) {
        let before = self.passed();
        self.answers(case);
        let shown = shown(&case.bytes);
        assert_eq!(self.passed(), before, "it reached the upstream: {shown}");
        self.serves(&shown);
    }

    /// The request gets the answer that it should.
    pub(crate) fn answers(&self, case: &Case) {
        let shown = shown(&case.bytes);
        let Some(answer) = self.ask(&case.bytes, case.ends) else {
            panic!("closed without an answer: {shown}");
        };
        match case.answer {
            Expected::Status(status) => assert_eq!(answer.status, status, "{shown}"),
            Expected::Problem(problem) => {
                assert_eq!(answer.status, problem.status(), "{shown}: {}", answer.text());
                let kind = answer.header("content-type");
                assert_eq!(kind, Some("application/problem+json"), "{shown}");
                let kind = format!("\"type\":\"urn:semel:problem:{}\"", problem.slug());
                assert!(answer.text().contains(&kind), "{shown}: {}", answer.text());
            }
        }
    }

    /// A good request passes.
    pub(crate) fn serves(&self, after: &str) {
        self.serves_with("", after);
    }

    /// A good request with these header lines passes, without anything that it should not say.
    pub(crate) fn serves_with(&self, lines: &str, after: &str) {
        let request = format!("GET /good HTTP/1.1\r\nHost: a\r\n{lines}\r\n");
        let answer = self.ask(request.as_bytes(), false);
        let answer = answer.unwrap_or_else(|| panic!("no request is served after {after}"));
        assert_eq!((answer.status.as_u16(), answer.text()), (200, "ok"), "after {after}");
        assert_eq!(self.upstream.strange(), Vec::<String>::new(), "after {after}");
    }

    /// A guarded request is run once and then replayed.
    pub(crate) fn serves_a_charge(&self) {
        let request = charge("good", r#"{"amount":1}"#);
        for replayed in [None, Some("true")] {
            let answer = self.ask(&request, false).expect("an answer");
            assert_eq!((answer.status.as_u16(), answer.text()), (200, "ok"));
            assert_eq!(answer.header("idempotent-replayed"), replayed);
        }
        assert_eq!(self.upstream.charges.load(Ordering::SeqCst), 1);
    }
}

impl Drop for WatchedGateway {
    fn drop(&mut self) {
        if thread::panicking() {
            return;
        }
        let log = self.gateway.log();
        assert_eq!(self.gateway.exit_status(), None, "the gateway ended by itself: {log}");
        assert!(!log.contains("panicked"), "{log}");
    }
}

fn configuration(upstream: SocketAddr, limits: &str) -> String {
    format!(
        r#"
        store = "memory:"

        [gateway]
        upstream = "http://{upstream}"

        [limits]
        header_bytes = "16KiB"
        headers = 50
        header_timeout = "{header}s"
        body_timeout = "2s"
        {limits}

        [[route]]
        match = "POST /charges"
        scope = "charges"
        key = {{ header = "Idempotency-Key", required = true }}
        caller = ["authorization"]
        request_max = "64KiB"

        [[route]]
        match = "POST /optional"
        scope = "optional"
        key = {{ header = "Idempotency-Key" }}
        caller = ["anonymous"]

        [[route]]
        match = "POST /hooks"
        scope = "hooks"
        key = {{ json = "/id", required = true }}
        caller = ["anonymous"]
        "#,
        header = HEADER_TIMEOUT.as_secs(),
    )
}

/// A guarded request with this key and this JSON body.
pub(crate) fn charge(key: &str, body: &str) -> Vec<u8> {
    let length = body.len();
    format!(
        "POST /charges HTTP/1.1\r\nHost: a\r\nAuthorization: Bearer opaque\r\n\
         Idempotency-Key: {key}\r\nContent-Type: application/json\r\nContent-Length: {length}\r\n\
         \r\n{body}"
    )
    .into_bytes()
}

/// Reads one response; `None` if the connection ends before its end.
pub(crate) fn read_response(stream: &mut TcpStream) -> Option<TestResponse> {
    let mut bytes = Vec::new();
    loop {
        if let Some(response) = TestResponse::parse(&bytes) {
            return Some(response);
        }
        more(stream, &mut bytes)?;
    }
}

/// Reads more bytes; `None` at the end of the connection.
pub(crate) fn more(stream: &mut TcpStream, bytes: &mut Vec<u8>) -> Option<()> {
    let mut buffer = [0; 4096];
    match stream.read(&mut buffer) {
        Ok(0) => None,
        Ok(count) => {
            bytes.extend(buffer.get(..count).unwrap_or_default());
            Some(())
        }
        Err(error) if error.kind() == std::io::ErrorKind::WouldBlock => {
            panic!("nothing came within {TEST_TIMEOUT:?}, after {}", shown(bytes))
        }
        // A connection that is closed with something unread is reset.
        Err(_) => None,
    }
}

/// A server that counts every byte that reaches it, and answers what it should get.
#[derive(Debug)]
struct ByteCountingUpstream {
    address: SocketAddr,
    bytes: Arc<AtomicUsize>,
    charges: Arc<AtomicUsize>,
    /// The request lines that it should not get.
    strange: Arc<Mutex<Vec<String>>>,
}

impl ByteCountingUpstream {
    fn start() -> Self {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let address = listener.local_addr().unwrap();
        let (bytes, charges, strange) = <(Arc<AtomicUsize>, Arc<AtomicUsize>, Arc<_>)>::default();
        let upstream = Self { address, bytes, charges, strange };
        let seen = Arc::new((
            Arc::clone(&upstream.bytes),
            Arc::clone(&upstream.charges),
            Arc::clone(&upstream.strange),
        ));
        thread::spawn(move || {
            for stream in listener.incoming().map_while(Result::ok) {
                let seen = Arc::clone(&seen);
                thread::spawn(move || serve(stream, &seen.0, &seen.1, &seen.2));
            }
        });
        upstream
    }

    fn strange(&self) -> Vec<String> {
        self.strange.lock().unwrap().clone()
    }
}

fn serve(
    mut stream: TcpStream,
    bytes: &AtomicUsize,
    charges: &AtomicUsize,
    strange: &Mutex<Vec<String>>,
) {
    let mut buffer = [0; 4096];
    let mut received = Vec::new();
    while let Ok(count @ 1..) = stream.read(&mut buffer) {
        bytes.fetch_add(count, Ordering::SeqCst);
        received.extend(buffer.get(..count).unwrap_or_default());
        let text = String::from_utf8_lossy(&received);
        // The one body that should come ends like this.
        let Some((line, rest)) = text.split_once("\r\n") else { continue };
        if text.contains("h2c") {
            strange.lock().unwrap().push(text.clone().into_owned());
        }
        match line {
            "GET /good HTTP/1.1" if rest.ends_with("\r\n\r\n") => {}
            "POST /charges HTTP/1.1" if rest.ends_with("\r\n\r\n{\"amount\":1}") => {
                charges.fetch_add(1, Ordering::SeqCst);
            }
            "GET /good HTTP/1.1" | "POST /charges HTTP/1.1" => continue,
            // A body that is passed on as it comes, and never comes to its end.
            "PUT /streamed HTTP/1.1" if !rest.ends_with("\r\n0\r\n\r\n") => continue,
            _ => strange.lock().unwrap().push(line.to_owned()),
        }
        received.clear();
        let _ = stream.write_all(b"HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\nok");
    }
}
