//! HTTP/2 that is wrong: frames, field blocks, and requests that HTTP/2 does not allow.

use std::{io::Write as _, net::TcpStream, thread, time::Duration};

use crate::{
    frames::{
        ACK, CONTINUATION, DATA, END_HEADERS, END_STREAM, Frame, GOAWAY, HEADERS, PADDED, PING,
        PREFACE, PRIORITY, PUSH_PROMISE, RST_STREAM, SETTINGS, WINDOW_UPDATE, fields, frame,
    },
    harness::{Harness, more, shown},
};

/// Bytes after the preface and the first settings.
#[derive(Debug)]
pub(crate) struct Case {
    pub(crate) bytes: Vec<u8>,
}

impl Harness {
    /// The stream or the connection ends, or is answered with 4xx; the upstream gets nothing; the
    /// next client is served.
    pub(crate) fn ends(&self, case: &Case) {
        let before = self.passed();
        let shown = shown(&case.bytes);
        let mut stream = self.connect();
        let settings = frame(SETTINGS, 0, 0, &[]);
        let _ = stream.write_all(&[PREFACE, &settings, &case.bytes].concat());
        let status = outcome(&mut stream, &shown);
        assert!(status.is_none_or(|status| (400..500).contains(&status)), "{status:?}: {shown}");
        assert_eq!(self.passed(), before, "it reached the upstream: {shown}");
        self.serves(&shown);
    }
}

/// The status of the first answer; `None` if the stream or the connection ends without one.
fn outcome(stream: &mut TcpStream, shown: &str) -> Option<u16> {
    let mut bytes = Vec::new();
    loop {
        let Some(frame) = Frame::take(&mut bytes) else {
            more(stream, &mut bytes)?;
            continue;
        };
        match (frame.kind, &*frame.payload) {
            (HEADERS, _) => return Some(frame.status().unwrap_or_default()),
            (RST_STREAM, code) | (GOAWAY, [_, _, _, _, code @ ..]) => {
                // To end in peace would be no answer.
                assert!(!code.starts_with(&[0; 4]), "{shown}");
                return None;
            }
            _ => {}
        }
    }
}

#[test]
fn a_body_whose_stream_is_reset_is_never_taken_for_whole() {
    let harness = Harness::start();
    let before = harness.passed();
    // No error, internal error, cancelled.
    for code in [0, 2, 8] {
        let mut stream = harness.connect();
        let settings = frame(SETTINGS, 0, 0, &[]);
        let cut = [frame(DATA, 0, 1, b"hi"), frame(RST_STREAM, 0, 1, &[0, 0, 0, code])].concat();
        let ping = frame(PING, 0, 0, &[7; 8]);
        stream.write_all(&[PREFACE, &settings, &open(), &cut, &ping].concat()).unwrap();
        let mut bytes = Vec::new();
        loop {
            match Frame::take(&mut bytes) {
                Some(frame) if frame.kind == PING && frame.payload == [7; 8] => break,
                Some(_) => {}
                None => more(&mut stream, &mut bytes).expect("the connection goes on"),
            }
        }
        // Long enough for a request that was taken for whole to be passed on.
        thread::sleep(Duration::from_millis(300));
        assert_eq!(harness.passed(), before, "it was passed on: reset with {code}");
    }
    harness.serves_a_charge();
}

const METHOD: (&str, &str) = (":method", "POST");
const SCHEME: (&str, &str) = (":scheme", "http");
const PATH: (&str, &str) = (":path", "/passing");
const AUTHORITY: (&str, &str) = (":authority", "a");

/// The four fields of a request, and more.
fn with(more: &[(&'static str, &'static str)]) -> Vec<(&'static str, &'static str)> {
    [&[METHOD, SCHEME, PATH, AUTHORITY], more].concat()
}

/// Requests that are not allowed, although their frames are.
fn requests() -> Vec<Vec<(&'static str, &'static str)>> {
    vec![
        vec![],
        vec![SCHEME, PATH, AUTHORITY],
        vec![METHOD, PATH, AUTHORITY],
        vec![METHOD, SCHEME, AUTHORITY],
        vec![METHOD, METHOD, SCHEME, PATH, AUTHORITY],
        vec![METHOD, SCHEME, PATH, PATH, AUTHORITY],
        vec![METHOD, SCHEME, PATH, AUTHORITY, AUTHORITY],
        vec![METHOD, SCHEME, ("x", "y"), PATH, AUTHORITY],
        vec![METHOD, SCHEME, (":path", ""), AUTHORITY],
        vec![METHOD, SCHEME, (":path", "charges"), AUTHORITY],
        vec![METHOD, SCHEME, (":path", "*"), AUTHORITY],
        vec![METHOD, SCHEME, (":path", "http://a/passing"), AUTHORITY],
        vec![METHOD, SCHEME, (":path", "/a b"), AUTHORITY],
        vec![METHOD, SCHEME, (":path", "/a\u{7f}"), AUTHORITY],
        vec![METHOD, SCHEME, (":path", "/caf\u{e9}"), AUTHORITY],
        vec![METHOD, SCHEME, (":path", "/a?caf\u{e9}"), AUTHORITY],
        vec![METHOD, SCHEME, (":path", "/a\r\nx: y"), AUTHORITY],
        vec![METHOD, SCHEME, PATH, (":authority", "a b")],
        vec![METHOD, SCHEME, PATH, (":authority", "user:password@a")],
        vec![METHOD, SCHEME, PATH],
        vec![METHOD, (":scheme", ""), PATH, AUTHORITY],
        vec![(":method", ""), SCHEME, PATH, AUTHORITY],
        vec![(":method", "PO ST"), SCHEME, PATH, AUTHORITY],
        vec![(":method", "POST / HTTP/1.1\r\nx:"), SCHEME, PATH, AUTHORITY],
        vec![(":method", "TRACE"), SCHEME, PATH, AUTHORITY],
        vec![(":method", "CONNECT"), AUTHORITY],
        vec![(":method", "CONNECT"), SCHEME, PATH, AUTHORITY],
        vec![(":method", "CONNECT"), (":protocol", "websocket"), SCHEME, PATH, AUTHORITY],
        with(&[(":status", "200")]),
        with(&[(":unknown", "x")]),
        with(&[("", "x")]),
        with(&[("X-Upper", "x")]),
        with(&[("x y", "z")]),
        with(&[("x:", "y")]),
        with(&[("x\r\ny", "z")]),
        with(&[("x", "y\r\nz: w")]),
        with(&[("x", "y\nz")]),
        with(&[("x", "\0")]),
        with(&[("connection", "close")]),
        with(&[("connection", "x"), ("x", "y")]),
        with(&[("keep-alive", "timeout=5")]),
        with(&[("proxy-connection", "close")]),
        with(&[("transfer-encoding", "chunked")]),
        with(&[("upgrade", "websocket")]),
        with(&[("te", "gzip")]),
        with(&[("content-length", "5")]),
        with(&[("content-length", "five")]),
        with(&[("content-length", "-1")]),
        with(&[("content-length", "0"), ("content-length", "5")]),
        with(&[("host", "a"), ("host", "b")]),
    ]
}

/// A request in one frame, on stream 1.
fn request(list: &[(&str, &str)]) -> Vec<u8> {
    frame(HEADERS, END_STREAM | END_HEADERS, 1, &fields(list))
}

/// The head of a request whose body is to come.
fn open() -> Vec<u8> {
    frame(HEADERS, END_HEADERS, 1, &fields(&charge()))
}

/// A guarded request: nothing of it is passed on before it is whole.
fn charge() -> Vec<(&'static str, &'static str)> {
    let path = (":path", "/charges");
    let (caller, key) = (("authorization", "Bearer opaque"), ("idempotency-key", "http2"));
    vec![METHOD, SCHEME, path, AUTHORITY, caller, key]
}

/// Frames that are wrong before there is a request.
fn frames() -> Vec<Vec<u8>> {
    let block = fields(&charge());
    let whole = END_STREAM | END_HEADERS;
    vec![
        frame(HEADERS, whole, 0, &block),
        frame(HEADERS, whole, 2, &block),
        frame(HEADERS, whole | PADDED, 1, &[&[255], &*block].concat()),
        frame(HEADERS, whole | PADDED, 1, &[]),
        frame(DATA, END_STREAM, 0, b"hi"),
        frame(DATA, END_STREAM, 1, b"hi"),
        frame(CONTINUATION, END_HEADERS, 1, &block),
        [frame(HEADERS, 0, 1, &block), frame(DATA, END_STREAM, 1, b"hi")].concat(),
        [frame(HEADERS, 0, 1, &block), frame(PING, 0, 0, &[0; 8])].concat(),
        [frame(HEADERS, 0, 1, &block), frame(CONTINUATION, END_HEADERS, 3, &block)].concat(),
        frame(SETTINGS, 0, 1, &[]),
        frame(SETTINGS, 0, 0, &[0; 5]),
        frame(SETTINGS, ACK, 0, &[0; 6]),
        frame(SETTINGS, 0, 0, &[0, 2, 0, 0, 0, 2]),
        frame(SETTINGS, 0, 0, &[0, 4, 0x80, 0, 0, 0]),
        frame(SETTINGS, 0, 0, &[0, 5, 0, 0, 0, 1]),
        frame(PING, 0, 0, &[0; 7]),
        frame(PING, 0, 1, &[0; 8]),
        frame(WINDOW_UPDATE, 0, 0, &[0; 4]),
        frame(WINDOW_UPDATE, 0, 0, &[0x7f, 0xff, 0xff, 0xff]),
        frame(WINDOW_UPDATE, 0, 0, &[0; 3]),
        frame(WINDOW_UPDATE, 0, 1, &[0, 0, 0, 1]),
        frame(RST_STREAM, 0, 0, &[0; 4]),
        frame(RST_STREAM, 0, 1, &[0; 4]),
        frame(RST_STREAM, 0, 1, &[0; 3]),
        frame(PRIORITY, 0, 0, &[0; 5]),
        frame(PRIORITY, 0, 1, &[0; 4]),
        frame(PUSH_PROMISE, END_HEADERS, 1, &[&[0, 0, 0, 2], &*block].concat()),
        frame(GOAWAY, 0, 1, &[0; 8]),
        frame(GOAWAY, 0, 0, &[0; 7]),
        frame(DATA, 0, 1, &vec![0; 16_385]),
        vec![0xff, 0xff, 0xff, 0, 0, 0, 0, 0, 1],
    ]
}

/// Field blocks that cannot be read.
const BLOCKS: &[&[u8]] = &[
    b"\x80",
    b"\xff\xff\xff\xff\xff\xff\xff\xff\xff\xff",
    b"\xfe",
    b"\x00",
    b"\x00\x05ab",
    b"\x00\x01a\x05b",
    b"\x00\x81\x00\x01b",
    b"\x00\x01a\x84\xff\xff\xff\xff",
    b"\x3f\xff\xff\xff\xff\x7f",
];

pub(crate) fn cases() -> Vec<Case> {
    let mut all: Vec<Vec<u8>> = requests().iter().map(|list| request(list)).collect();
    all.extend(frames());
    all.extend(BLOCKS.iter().map(|block| frame(HEADERS, END_STREAM | END_HEADERS, 1, block)));
    let long = "y".repeat(20 << 10);
    let large = fields(&[&*charge(), &[("x", &*long)]].concat());
    let (first, second) = large.split_at(16 << 10);
    let parts = [frame(HEADERS, END_STREAM, 1, first), frame(CONTINUATION, END_HEADERS, 1, second)];
    all.push(parts.concat());
    // More of a body than was announced, and less.
    let announced = fields(&[&*charge(), &[("content-length", "3")]].concat());
    let announced = frame(HEADERS, END_HEADERS, 1, &announced);
    all.push([&*announced, &frame(DATA, END_STREAM, 1, b"more")].concat());
    all.push([&*announced, &frame(DATA, END_STREAM, 1, b"hi")].concat());
    // The same without a key, where the head alone would be passed on at once.
    let empty = frame(HEADERS, END_HEADERS, 1, &fields(&with(&[("content-length", "0")])));
    let data = frame(DATA, END_STREAM, 1, b"more");
    all.push([&*empty, &data].concat());
    all.push([&*empty, &frame(DATA, 0, 1, b""), &data].concat());
    // In the middle of a body.
    let padded = frame(DATA, END_STREAM | PADDED, 1, &[9, 0]);
    let open_trailer = frame(HEADERS, END_HEADERS, 1, &fields(&[("x", "y")]));
    let reused = frame(HEADERS, END_STREAM | END_HEADERS, 1, b"\x80");
    let ended = frame(RST_STREAM, 0, 3, &[0; 4]);
    let window = frame(WINDOW_UPDATE, 0, 1, &[0; 4]);
    for wrong in [padded, open_trailer, reused, ended, window] {
        all.push([open(), wrong].concat());
    }
    all.into_iter().map(|bytes| Case { bytes }).collect()
}
