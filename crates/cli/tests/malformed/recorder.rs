//! An upstream with a strict HTTP/1.1 parser. It answers every complete request and records
//! malformed input.

use std::{
    io::{Read as _, Write as _},
    net::{SocketAddr, TcpListener, TcpStream},
    sync::{
        Arc, Mutex,
        atomic::{AtomicUsize, Ordering},
    },
    thread,
};

use crate::harness::shown;

/// The upstream.
#[derive(Debug)]
pub(crate) struct Recorder {
    pub(crate) address: SocketAddr,
    state: Arc<RecorderState>,
}

#[derive(Debug, Default)]
struct RecorderState {
    requests: AtomicUsize,
    malformed: Mutex<Vec<String>>,
}

impl Recorder {
    pub(crate) fn start() -> Self {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let address = listener.local_addr().unwrap();
        let state = Arc::<RecorderState>::default();
        let recorder = Self { address, state: Arc::clone(&state) };
        thread::spawn(move || {
            for stream in listener.incoming().map_while(Result::ok) {
                let state = Arc::clone(&state);
                thread::spawn(move || serve(stream, &state));
            }
        });
        recorder
    }

    /// Number of complete requests.
    pub(crate) fn requests(&self) -> usize {
        self.state.requests.load(Ordering::SeqCst)
    }

    /// The malformed input, each with the error.
    pub(crate) fn malformed(&self) -> Vec<String> {
        self.state.malformed.lock().unwrap().clone()
    }
}

fn serve(mut stream: TcpStream, state: &RecorderState) {
    let (mut buffer, mut received) = ([0; 16 << 10], Vec::new());
    while let Ok(count @ 1..) = stream.read(&mut buffer) {
        received.extend_from_slice(&buffer[..count]);
        loop {
            match parse_request(&received) {
                Ok(None) => break,
                Ok(Some(length)) => {
                    received.drain(..length);
                    state.requests.fetch_add(1, Ordering::SeqCst);
                    let ok = b"HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\nok";
                    if stream.write_all(ok).is_err() {
                        return;
                    }
                }
                Err(error) => {
                    let input = format!("{error}: {}", shown(&received));
                    state.malformed.lock().unwrap().push(input);
                    return;
                }
            }
        }
    }
}

/// The length of the first request in the input; `None` if it is incomplete.
fn parse_request(bytes: &[u8]) -> Result<Option<usize>, &'static str> {
    let Some(end) = bytes.windows(4).position(|four| four == b"\r\n\r\n") else { return Ok(None) };
    // Field values may contain bytes above ASCII.
    let head: String = bytes[..end].iter().copied().map(char::from).collect();
    let (line, fields) = head.split_once("\r\n").ok_or("the head has no field")?;
    request_line(line)?;
    let (mut length, mut is_chunked, mut hosts) = (None, false, 0);
    for field in fields.split("\r\n") {
        let (name, value) = field_line(field)?;
        match &*name.to_ascii_lowercase() {
            "host" => hosts += 1,
            "content-length" if length.is_some() => return Err("two Content-Length fields"),
            "content-length" if value.bytes().all(|byte| byte.is_ascii_digit()) => {
                length = Some(value.parse::<usize>().map_err(|_| "Content-Length is too large")?);
            }
            "content-length" => return Err("Content-Length is not a number"),
            "transfer-encoding" if value != "chunked" || is_chunked => {
                return Err("unsupported Transfer-Encoding");
            }
            "transfer-encoding" => is_chunked = true,
            _ => {}
        }
    }
    let body = end + 4;
    match (hosts, length, is_chunked) {
        (1, Some(_), true) => Err("both Content-Length and Transfer-Encoding"),
        (1, length, false) => {
            let end = body + length.unwrap_or(0);
            Ok((bytes.len() >= end).then_some(end))
        }
        (1, None, true) => Ok(chunked_length(&bytes[body..])?.map(|length| body + length)),
        _ => Err("not exactly one Host field"),
    }
}

fn is_token(text: &str) -> bool {
    let good = |byte: u8| byte.is_ascii_alphanumeric() || b"!#$%&'*+-.^_`|~".contains(&byte);
    !text.is_empty() && text.bytes().all(good)
}

fn request_line(line: &str) -> Result<(), &'static str> {
    let words: Vec<&str> = line.split(' ').collect();
    let [method, target, "HTTP/1.1"] = words[..] else { return Err("malformed request line") };
    let is_path = target.starts_with('/') || (target == "*" && method == "OPTIONS");
    let is_visible = target.bytes().all(|byte| byte.is_ascii_graphic());
    (is_token(method) && is_path && is_visible).then_some(()).ok_or("invalid method or target")
}

fn field_line(line: &str) -> Result<(&str, &str), &'static str> {
    let (name, value) = line.split_once(':').ok_or("field without a colon")?;
    let value = value.trim_matches([' ', '\t']);
    let is_good = |c: char| c == '\t' || !c.is_ascii_control();
    (is_token(name) && value.chars().all(is_good)).then_some((name, value)).ok_or("invalid field")
}

/// The length of a chunked body; `None` if it is incomplete.
fn chunked_length(bytes: &[u8]) -> Result<Option<usize>, &'static str> {
    let mut at = 0;
    loop {
        let Some(line) = line(&bytes[at..]) else { return Ok(None) };
        let digits = str::from_utf8(line).ok().filter(|line| !line.starts_with('+'));
        let size = digits.and_then(|line| usize::from_str_radix(line, 16).ok());
        let size = size.ok_or("invalid chunk size")?;
        at += line.len() + 2;
        if size == 0 {
            break;
        }
        let Some(chunk) = bytes.get(at..at + size + 2) else { return Ok(None) };
        if !chunk.ends_with(b"\r\n") {
            return Err("chunk without a final CRLF");
        }
        at += size + 2;
    }
    loop {
        let Some(line) = line(&bytes[at..]) else { return Ok(None) };
        at += line.len() + 2;
        if line.is_empty() {
            return Ok(Some(at));
        }
        field_line(&line.iter().copied().map(char::from).collect::<String>())?;
    }
}

/// The first line of the input.
fn line(bytes: &[u8]) -> Option<&[u8]> {
    bytes.windows(2).position(|two| two == b"\r\n").map(|end| &bytes[..end])
}

#[test]
fn the_recorder_refuses_malformed_requests() {
    let whole = "POST /a HTTP/1.1\r\nHost: a\r\nContent-Length: 2\r\n\r\n{}";
    assert_eq!(parse_request(whole.as_bytes()), Ok(Some(whole.len())));
    assert_eq!(parse_request(&whole.as_bytes()[..whole.len() - 1]), Ok(None));
    let chunked = "POST /a HTTP/1.1\r\nHost: a\r\nTransfer-Encoding: chunked\r\n\r\n";
    let body = format!("{chunked}2\r\n{{}}\r\n0\r\nX: y\r\n\r\n");
    assert_eq!(parse_request(body.as_bytes()), Ok(Some(body.len())));
    for bad in [
        "GET /a HTTP/1.1\r\nX: y\r\n\r\n",
        "GET /a HTTP/1.1\nHost: a\r\n\r\n",
        "GET /a b HTTP/1.1\r\nHost: a\r\n\r\n",
        "GET /a HTTP/1.1\r\nHost: a\nX: y\r\n\r\n",
        "GET /a HTTP/1.1\r\nHost: a\r\nX : y\r\n\r\n",
        "GET /a HTTP/1.1\r\nHost: a\r\n X: y\r\n\r\n",
        "GET /a HTTP/1.1\r\nHost: a\r\nContent-Length: +1\r\n\r\n",
        "GET /a HTTP/1.1\r\nHost: a\r\nContent-Length: 1\r\nTransfer-Encoding: chunked\r\n\r\n",
        &format!("{chunked}2;x\r\n{{}}\r\n0\r\n\r\n"),
        &format!("{chunked}2\r\n{{}}}}\r\n0\r\n\r\n"),
    ] {
        assert!(parse_request(bad.as_bytes()).is_err(), "{bad}");
    }
}
