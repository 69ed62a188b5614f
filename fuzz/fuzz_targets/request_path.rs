//! What a client sends, after a byte that says in how small pieces it comes, on the whole way
//! through the gateway to an upstream. Nothing panics or goes on for ever; the upstream gets no
//! request whose end is not certain, and no POST without its key.
#![no_main]

use std::convert::Infallible;
use std::sync::{Arc, Mutex};
use std::time::Duration;

use http_body_util::{BodyExt, Full};
use hyper::body::{Bytes, Incoming};
use hyper::header::{CONTENT_LENGTH, HOST, TRANSFER_ENCODING};
use hyper::server::conn::http1;
use hyper::service::service_fn;
use hyper::{HeaderMap, Method, Request, Response};
use hyper_util::rt::TokioIo;
use libfuzzer_sys::fuzz_target;
use semel_core::key::Key;
use semel_gateway::fuzzing::FuzzGateway;
use tokio::io::{AsyncReadExt, AsyncWriteExt, DuplexStream, duplex};
use tokio::net::TcpListener;
use tokio::runtime::{Builder, Runtime};
use tokio::time::timeout;

const HTTP2: &[u8] = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n";

/// Longer than every timeout of the gateway. Time passes only while everybody waits.
const SILENCE: Duration = Duration::from_secs(600);
const FOR_EVER: Duration = Duration::from_secs(24 * 3600);

thread_local! {
    static RIG: Rig = Rig::new();
}

fuzz_target!(|data: &[u8]| {
    if let Some((cut, bytes)) = data.split_first() {
        RIG.with(|rig| rig.run(bytes, usize::from(*cut)));
    }
});

struct Rig {
    runtime: Runtime,
    gateway: FuzzGateway,
    seen: Arc<Mutex<Vec<(Method, HeaderMap)>>>,
}

impl Rig {
    fn new() -> Self {
        let runtime =
            Builder::new_current_thread().enable_all().start_paused(true).build().unwrap();
        let seen = Arc::default();
        let gateway = runtime.block_on(async {
            let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
            let address = listener.local_addr().unwrap();
            tokio::spawn(upstream(listener, Arc::clone(&seen)));
            FuzzGateway::new(address).unwrap()
        });
        Self { runtime, gateway, seen }
    }

    fn run(&self, bytes: &[u8], cut: usize) {
        let http2 = bytes.starts_with(HTTP2);
        let (client, server) = duplex(1 << 16);
        let served = self.runtime.block_on(async {
            let serve = timeout(FOR_EVER, self.gateway.serve(server, http2));
            tokio::join!(serve, send(client, bytes, cut)).0
        });
        served.expect("it goes on for ever").expect("an operation goes on for ever");
        let seen = std::mem::take(&mut *self.seen.lock().unwrap());
        if !http2 {
            assert!(seen.len() <= certain(bytes), "a request without a certain end: {seen:?}");
        }
        for (method, headers) in seen {
            assert_eq!(headers.get_all(HOST).iter().count(), 1, "{headers:?}");
            let both =
                headers.contains_key(CONTENT_LENGTH) && headers.contains_key(TRANSFER_ENCODING);
            assert!(!both, "{headers:?}");
            let lines = headers.get_all("idempotency-key").iter().map(|line| line.as_bytes());
            let key = Key::from_header(lines);
            let fenced = headers.contains_key("idempotency-fence");
            assert_eq!(fenced, method == Method::POST, "{headers:?}");
            assert!(!fenced || matches!(key, Ok(Some(_))), "{headers:?}");
        }
    }
}

/// Sends the bytes in pieces, and reads what comes back until nothing does.
async fn send(mut client: DuplexStream, bytes: &[u8], cut: usize) {
    for piece in bytes.chunks(if cut == 0 { bytes.len().max(1) } else { cut }) {
        if !matches!(timeout(SILENCE, client.write_all(piece)).await, Ok(Ok(()))) {
            return;
        }
        tokio::task::yield_now().await;
    }
    let mut buffer = [0; 4096];
    while let Ok(Ok(1..)) = timeout(SILENCE, client.read(&mut buffer)).await {}
}

/// Answers everything, and remembers it.
async fn upstream(listener: TcpListener, seen: Arc<Mutex<Vec<(Method, HeaderMap)>>>) {
    while let Ok((stream, _)) = listener.accept().await {
        let seen = Arc::clone(&seen);
        let service = service_fn(move |request: Request<Incoming>| {
            let seen = Arc::clone(&seen);
            async move {
                let (parts, body) = request.into_parts();
                seen.lock().unwrap().push((parts.method, parts.headers));
                let _ = body.collect().await;
                Ok::<_, Infallible>(Response::new(Full::new(Bytes::from_static(b"ok"))))
            }
        });
        tokio::spawn(http1::Builder::new().serve_connection(TokioIo::new(stream), service));
    }
}

/// How many requests come before the first whose end is not certain.
fn certain(mut bytes: &[u8]) -> usize {
    for count in 0.. {
        let mut headers = [httparse::EMPTY_HEADER; 128];
        let mut request = httparse::Request::new(&mut headers);
        let Ok(httparse::Status::Complete(end)) = request.parse(bytes) else { return count };
        let values = |name: &str| -> Vec<&[u8]> {
            let named =
                request.headers.iter().filter(|field| field.name.eq_ignore_ascii_case(name));
            named.map(|field| field.value).collect()
        };
        let rest = &bytes[end..];
        let rest = match (&*values("content-length"), &*values("transfer-encoding")) {
            ([], []) => Some(rest),
            ([length, ..], []) => {
                let length = str::from_utf8(length).ok().and_then(|length| length.parse().ok());
                length.and_then(|length: usize| rest.get(length..))
            }
            ([], [coding]) if coding.eq_ignore_ascii_case(b"chunked") => after_chunks(rest),
            _ => return count,
        };
        let Some(rest) = rest else { return count + 1 };
        bytes = rest;
    }
    0
}

fn after_chunks(mut bytes: &[u8]) -> Option<&[u8]> {
    loop {
        let line = bytes.iter().position(|byte| *byte == b'\n')?;
        let digits = bytes.iter().take_while(|byte| byte.is_ascii_hexdigit()).count();
        let size = usize::from_str_radix(str::from_utf8(&bytes[..digits]).ok()?, 16).ok()?;
        bytes = &bytes[line + 1..];
        if size == 0 {
            break;
        }
        bytes = bytes.get(size.checked_add(2)?..)?;
    }
    loop {
        let cr = bytes.iter().position(|byte| *byte == b'\r')?;
        bytes = bytes.get(cr + 2..)?;
        if cr == 0 {
            return Some(bytes);
        }
    }
}
