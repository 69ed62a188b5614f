//! What is refused, what is left alone, and that hyper agrees about where requests end.

use std::{
    convert::Infallible,
    sync::{Mutex, PoisonError},
};

use bytes::Bytes;
use http::{Request, Response};
use http_body_util::{BodyExt as _, Empty};
use hyper::{body::Incoming, server::conn::http1, service::service_fn};
use hyper_util::rt::TokioIo;
use proptest::prelude::*;
use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};

use super::*;

/// Requests that a client may send one after the other, each with the body that hyper reads.
const GOOD: &[(&str, &str)] = &[
    ("GET / HTTP/1.1\r\nHost: a\r\n\r\n", ""),
    ("\r\n\nPOST /p HTTP/1.1\r\nHost: a\r\nContent-Length: 5\r\n\r\nhello", "hello"),
    ("POST / HTTP/1.1\nhost: a\ncontent-length:3\t \n\na\r\n", "a\r\n"),
    ("POST / HTTP/1.1\r\nContent-Length: 0\r\nContent-Length: 0\r\n\r\n", ""),
    ("PUT / HTTP/1.1\r\nContent-Length: 004\r\nContent-Length: 4\r\n\r\n\r\n\r\n", "\r\n\r\n"),
    (
        "POST / HTTP/1.1\r\nTransfer-Encoding: chunked\r\n\r\n\
         5\r\nhello\r\nA \t;x=\"y\"\r\n0123456789\r\n0\r\n\r\n",
        "hello0123456789",
    ),
    ("POST / HTTP/1.1\r\ntransfer-encoding:\t CHUNKED \r\n\r\n00;a\r\n\r\n", ""),
    (
        "POST / HTTP/1.1\r\nTransfer-Encoding: chunked\r\n\r\n\
         19\r\nPOST / HTTP/1.1\r\nContent-\r\n0\r\nContent-Length: 9\r\n\
         Transfer-Encoding: chunked\r\n\r\n",
        "POST / HTTP/1.1\r\nContent-",
    ),
    // A bare LF in a trailer is no line's end to hyper: what looks like a request is a trailer.
    (
        "POST / HTTP/1.1\r\nTransfer-Encoding: chunked\r\n\r\n0\r\na: b\n\r\nPOST / HTTP/1.1\r\n\
         Content-Length: 999\r\n\r\n",
        "",
    ),
    (
        "POST / HTTP/1.1\r\nContent-Length: 71\r\n\r\nPOST / HTTP/1.1\r\nContent-Length: 5\r\n\
         Transfer-Encoding: chunked\r\n\r\n0\r\n\r\n",
        "POST / HTTP/1.1\r\nContent-Length: 5\r\nTransfer-Encoding: chunked\r\n\r\n0\r\n\r\n",
    ),
    (
        "POST / HTTP/1.1\r\nX: Content-Length: 5\r\nContent-Lengths: 7\r\nTransfer: x\r\nT: u\r\n\
         Content-Type: transfer-encoding\r\nTransfer-Encoding: chunked\r\n\r\n0\r\n\r\n",
        "",
    ),
    ("PRIVATE / HTTP/1.1\r\nContent-Length: 1\r\n\r\n!", "!"),
];

/// Heads that hyper forgives and a proxy must not.
const BAD: &[&str] = &[
    "POST / HTTP/1.1\r\nContent-Length: 5\r\nTransfer-Encoding: chunked\r\n\r\n",
    "POST / HTTP/1.1\r\nTransfer-Encoding: chunked\r\nContent-Length: 5\r\n\r\n",
    "POST / HTTP/1.1\r\nTransfer-Encoding: chunked\r\nContent-Length: x\r\n\r\n",
    "POST / HTTP/1.1\ncontent-length:0\nX: y\ntransfer-encoding:chunked\n\n",
    "POST / HTTP/1.1\r\nTransfer-Encoding: chunked\r\nTransfer-Encoding: chunked\r\n\r\n",
    "POST / HTTP/1.1\r\nTransfer-Encoding: identity\r\nTransfer-Encoding: chunked\r\n\r\n",
    "POST / HTTP/1.1\r\nTransfer-Encoding: gzip, chunked\r\n\r\n",
    "POST / HTTP/1.1\r\nTransfer-Encoding: chunked, chunked\r\n\r\n",
    "POST / HTTP/1.1\r\nTransfer-Encoding: ,chunked\r\n\r\n",
];

/// Heads that are left to hyper.
const REFUSED_BY_HYPER: &[&str] = &[
    "POST / HTTP/1.1\r\nContent-Length: 5\r\nContent-Length: 6\r\n\r\n",
    "POST / HTTP/1.1\r\nContent-Length: 5, 5\r\n\r\n",
    "POST / HTTP/1.1\r\nContent-Length: +5\r\n\r\n",
    "POST / HTTP/1.1\r\nContent-Length: 5 5\r\n\r\n",
    "POST / HTTP/1.1\r\nContent-Length:\r\n\r\n",
    "POST / HTTP/1.1\r\nContent-Length : 5\r\n\r\n",
    "POST / HTTP/1.1\r\nTransfer-Encoding : chunked\r\n\r\n",
    "POST / HTTP/1.1\r\nTransfer-Encoding: chun ked\r\n\r\n",
    "POST / HTTP/1.1\r\nTransfer-Encoding:\r\n chunked\r\n\r\n",
    "POST / HTTP/1.1\r\nTransfer-Encoding:\r\n\r\n",
    "POST / HTTP/1.1\r\nX: y\r\n\tz\r\n\r\n",
    "POST / HTTP/1.1\r\nX: y\rz\r\n\r\n",
    "POST / HTTP/1.1\r\nX: y\0z\r\n\r\n",
    "POST / HTTP/1.1\r\n X: y\r\n\r\n",
    "POST / HTTP/1.1\r\n: y\r\n\r\n",
    "POST / HTTP/1.1\r\nX\r\n\r\n",
    "POST / HTTP/1.0\r\nTransfer-Encoding: chunked\r\n\r\n",
];

fn framing() -> Framing {
    Framing::new(Arc::default())
}

/// The bytes as they are after inspection in these pieces.
fn inspected<'a>(pieces: impl IntoIterator<Item = &'a [u8]>) -> Vec<u8> {
    let mut framing = framing();
    let mut out = Vec::new();
    for piece in pieces {
        let mut piece = piece.to_vec();
        framing.inspect(&mut piece);
        out.extend(piece);
    }
    out
}

/// The one place where the two differ; `None` if they are equal.
fn spoiled(before: &[u8], after: &[u8]) -> Option<usize> {
    let mut places = (0..before.len()).filter(|at| before[*at] != after[*at]);
    let place = places.next();
    assert_eq!(places.next(), None, "more than one byte was changed");
    if let Some(at) = place {
        assert!(after[at] == 0 && !matches!(before[at], b'\r' | b'\n'), "changed byte {at}");
    }
    place
}

/// The bodies of the requests that hyper's server takes from these bytes, and what it answers.
async fn served(bytes: &[u8]) -> (Vec<Bytes>, String) {
    let (mut client, server) = tokio::io::duplex(1 << 20);
    client.write_all(bytes).await.unwrap();
    client.shutdown().await.unwrap();
    let bodies = Mutex::new(Vec::new());
    let service = service_fn(|request: Request<Incoming>| async {
        if let Ok(body) = request.into_body().collect().await {
            bodies.lock().unwrap_or_else(PoisonError::into_inner).push(body.to_bytes());
        }
        Ok::<_, Infallible>(Response::new(Empty::<Bytes>::new()))
    });
    let mut builder = http1::Builder::new();
    let connection = builder.half_close(true).serve_connection(TokioIo::new(server), service);
    // A request that is refused ends the connection with an error, after its answer.
    let _ = connection.await;
    let mut answers = String::new();
    client.read_to_string(&mut answers).await.unwrap();
    (bodies.into_inner().unwrap(), answers)
}

fn pipelined() -> String {
    GOOD.iter().map(|(request, _)| *request).collect()
}

#[test]
fn requests_with_one_end_are_never_changed_however_they_are_cut() {
    let all = pipelined();
    let bytes = all.as_bytes();
    assert_eq!(inspected(bytes.chunks(1)), bytes);
    for cut in 0..=bytes.len() {
        let (first, second) = bytes.split_at(cut);
        assert_eq!(inspected([first, second]), bytes, "cut at {cut}");
    }
    for size in 2..64 {
        assert_eq!(inspected(bytes.chunks(size)), bytes, "pieces of {size}");
    }
}

#[test]
fn requests_with_two_ends_are_spoiled_before_their_head_ends_however_they_are_cut() {
    let pipelined = pipelined();
    let cases = BAD.iter().flat_map(|bad| [("", bad), (&pipelined, bad)]);
    for (before, bad) in cases {
        let all = format!("{before}{bad}5\r\nhello\r\n0\r\n\r\n{}", GOOD[0].0);
        let bytes = all.as_bytes();
        let head = before.len()..before.len() + bad.len();
        let one_by_one = spoiled(bytes, &inspected(bytes.chunks(1)));
        assert!(one_by_one.is_some_and(|at| head.contains(&at)), "{bad:?}: {one_by_one:?}");
        for cut in head {
            let (first, second) = bytes.split_at(cut);
            assert_eq!(spoiled(bytes, &inspected([first, second])), one_by_one, "cut at {cut}");
        }
    }
}

#[tokio::test]
async fn hyper_sees_the_same_requests() {
    let (bodies, answers) = served(pipelined().as_bytes()).await;
    let expected: Vec<&str> = GOOD.iter().map(|(_, body)| *body).collect();
    assert_eq!(bodies, expected, "{answers}");
}

#[tokio::test]
async fn hyper_answers_400_to_a_spoiled_request_and_takes_nothing_after_it() {
    for bad in BAD {
        let all = format!("{}{bad}0\r\n\r\n{}", pipelined(), GOOD[0].0);
        let (bodies, answers) = served(&inspected([all.as_bytes()])).await;
        assert_eq!(bodies.len(), GOOD.len(), "{bad:?}");
        let statuses: Vec<_> = answers.lines().filter(|line| line.starts_with("HTTP/")).collect();
        assert_eq!(statuses.len(), GOOD.len() + 1, "{bad:?}: {answers}");
        assert_eq!(statuses.last(), Some(&"HTTP/1.1 400 Bad Request"), "{bad:?}");
    }
}

#[tokio::test]
async fn hyper_forgives_what_is_spoiled_here_and_refuses_what_is_not() {
    for bad in BAD {
        let (bodies, answers) = served(format!("{bad}0\r\n\r\n").as_bytes()).await;
        assert_eq!(bodies.len(), 1, "no longer needed: {bad:?}: {answers}");
    }
    for bad in REFUSED_BY_HYPER {
        let (bodies, answers) = served(format!("{bad}0\r\n\r\n").as_bytes()).await;
        assert_eq!(bodies.len(), 0, "{bad:?}");
        assert!(answers.starts_with("HTTP/1.1 400 "), "{bad:?}: {answers}");
    }
}

#[test]
fn http2_is_left_alone() {
    let all = format!("PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n{}", BAD[0]);
    for cut in 0..all.len() {
        let (first, second) = all.as_bytes().split_at(cut);
        assert_eq!(inspected([first, second]), all.as_bytes(), "cut at {cut}");
    }
}

#[test]
fn what_begins_like_http2_is_watched_all_the_same() {
    for method in ["P", "PR", "PRI", "PRINT"] {
        let all = BAD[0].replace("POST /", &format!("{method} *"));
        assert!(spoiled(all.as_bytes(), &inspected([all.as_bytes()])).is_some(), "{method}");
    }
}

#[test]
fn nothing_is_watched_after_an_upgrade() {
    let off = Arc::new(AtomicBool::new(false));
    let mut framing = Framing::new(Arc::clone(&off));
    framing.inspect(&mut GOOD[0].0.to_owned().into_bytes());
    off.store(true, Ordering::Relaxed);
    let mut bytes = BAD[0].as_bytes().to_vec();
    framing.inspect(&mut bytes);
    assert_eq!(bytes, BAD[0].as_bytes());
}

fn good_head() -> impl Strategy<Value = String> {
    let field = "[A-Za-z-]{1,20}".prop_filter("says nothing about framing", |name| {
        !["content-length", "transfer-encoding"].contains(&name.to_ascii_lowercase().as_str())
    });
    let field = (field, "[ -~\t]{0,30}").prop_map(|(name, value)| format!("{name}: {value}\r\n"));
    ("[A-Z]{1,8} /[a-z]{0,9}", proptest::collection::vec(field, 0..6))
        .prop_map(|(line, fields)| format!("{line} HTTP/1.1\r\n{}", fields.concat()))
}

fn good_request() -> impl Strategy<Value = Vec<u8>> {
    let body = proptest::collection::vec(any::<u8>(), 0..200);
    let sized = (good_head(), body.clone()).prop_map(|(head, body)| {
        let head = format!("{head}Content-Length: {}\r\n\r\n", body.len());
        [head.as_bytes(), &body].concat()
    });
    let chunked =
        (good_head(), proptest::collection::vec(body, 0..4)).prop_map(|(head, chunks)| {
            let mut bytes = format!("{head}Transfer-Encoding: chunked\r\n\r\n").into_bytes();
            for chunk in chunks.iter().filter(|chunk| !chunk.is_empty()) {
                bytes.extend(format!("{:x};e=v\r\n", chunk.len()).bytes());
                bytes.extend(chunk);
                bytes.extend(b"\r\n");
            }
            bytes.extend(b"0\r\nContent-Length: 3\r\n\r\n");
            bytes
        });
    prop_oneof![good_head().prop_map(|head| format!("{head}\r\n").into_bytes()), sized, chunked]
}

fn good_stream() -> impl Strategy<Value = Vec<u8>> {
    proptest::collection::vec(good_request(), 0..5).prop_map(|requests| requests.concat())
}

/// Cuts at places that are given as hundredths of what is left.
fn cut<'a>(mut bytes: &'a [u8], places: &[usize]) -> Vec<&'a [u8]> {
    let mut pieces = Vec::new();
    for place in places {
        let (piece, rest) = bytes.split_at(bytes.len() * place / 100);
        pieces.push(piece);
        bytes = rest;
    }
    pieces.push(bytes);
    pieces
}

proptest! {
    #[test]
    fn a_good_stream_is_never_changed(
        stream in good_stream(),
        places in proptest::collection::vec(0..=100_usize, 0..8),
    ) {
        prop_assert_eq!(inspected(cut(&stream, &places)), stream);
    }

    #[test]
    fn both_lengths_are_always_spoiled_within_their_head(
        before in good_stream(),
        head in good_head(),
        between in good_head(),
        length_first: bool,
        places in proptest::collection::vec(0..=100_usize, 0..8),
    ) {
        let between = between.split_once("\r\n").map_or("", |(_, fields)| fields);
        let (first, second) = ("Content-Length: 3\r\n", "Transfer-Encoding: chunked\r\n");
        let (first, second) = if length_first { (first, second) } else { (second, first) };
        let bad = format!("{head}{first}{between}{second}\r\n");
        let all = [&before, bad.as_bytes(), b"0\r\n\r\n"].concat();
        let after = inspected(cut(&all, &places));
        let at = spoiled(&all, &after);
        let head = before.len()..before.len() + bad.len();
        prop_assert!(at.is_some_and(|at| head.contains(&at)), "{:?}", at);
    }
}
