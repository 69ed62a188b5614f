//! Conversations of HTTP/1.1 and HTTP/2 with random mistakes in them: no panic, no hang, nothing
//! malformed at a strict upstream, no descriptor left.

use std::{
    sync::atomic::{AtomicU64, Ordering},
    thread,
    time::Duration,
};

use crate::{
    frames::{
        CONTINUATION, DATA, END_HEADERS, END_STREAM, GOAWAY, HEADERS, PING, PREFACE, PRIORITY,
        RST_STREAM, SETTINGS, WINDOW_UPDATE, fields, frame,
    },
    harness::{WatchedGateway, charge},
    recorder::Recorder,
};

/// How many conversations the test run has, and how many the long edition.
const COUNT: u64 = 20_000;
const COUNT_TORTURE: u64 = 1_000_000;

/// Of so many conversations one is HTTP/2.
const HTTP2_EVERY: u64 = 4;

const CLIENTS: usize = 6;

/// How long nothing may come before a client ends a conversation.
const SILENCE: Duration = Duration::from_millis(10);

const LAST: &[u8] = b"GET /good HTTP/1.1\r\nHost: a\r\nConnection: close\r\n\r\n";

/// How long the gateway may take to close unused connections.
const IDLE_TIMEOUT: Duration = Duration::from_secs(60);

/// `SplitMix64`: small, and the same everywhere.
struct Random(u64);

impl Random {
    fn next(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut z = self.0;
        z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        z ^ (z >> 31)
    }

    /// A number below `end`, which is above 0.
    fn below(&mut self, end: usize) -> usize {
        usize::try_from(self.next() % u64::try_from(end).unwrap()).unwrap()
    }

    fn byte(&mut self) -> u8 {
        self.next().to_le_bytes()[0]
    }

    fn pick<'a, T>(&mut self, list: &'a [T]) -> &'a T {
        &list[self.below(list.len())]
    }
}

/// Conversations that are right.
fn good() -> Vec<Vec<u8>> {
    let get = "GET /good?a=b HTTP/1.1\r\nHost: a\r\nAccept: */*\r\n\r\n";
    let texts = [
        get.to_owned(),
        get.repeat(3),
        "GET /old HTTP/1.0\r\nConnection: keep-alive\r\n\r\n".to_owned(),
        "HEAD /good HTTP/1.1\r\nHost: a:80\r\nCookie: a=b\r\n\r\n".to_owned(),
        "OPTIONS * HTTP/1.1\r\nHost: a\r\n\r\n".to_owned(),
        "PUT http://a/good HTTP/1.1\r\nHost: a\r\nContent-Length: 5\r\n\r\nhello".to_owned(),
        "POST /x HTTP/1.1\r\nHost: a\r\nTransfer-Encoding: chunked\r\nTrailer: X\r\n\r\n\
         5;e=v\r\nhello\r\n3\r\nabc\r\n0\r\nX: y\r\n\r\n"
            .to_owned()
            + get,
        "POST /optional HTTP/1.1\r\nHost: a\r\nIdempotency-Key: \"k\"\r\nExpect: 100-continue\r\n\
         Transfer-Encoding: chunked\r\n\r\n2\r\n{}\r\n0\r\n\r\n"
            .to_owned(),
        "GET /chat HTTP/1.1\r\nHost: a\r\nConnection: Upgrade\r\nUpgrade: websocket\r\n\
         Sec-WebSocket-Version: 13\r\nSec-WebSocket-Key: dGhlIHNhbXBsZSBub25jZQ==\r\n\r\nmore"
            .to_owned(),
        "DELETE /x HTTP/1.1\r\nHost: a\r\nConnection: close, X-Hop\r\nX-Hop: 1\r\n\r\n".to_owned(),
        "POST /hooks HTTP/1.1\r\nHost: a\r\nContent-Type: application/json\r\n\
         Content-Length: 12\r\n\r\n{\"id\":\"evt\"}"
            .to_owned(),
    ];
    let mut all: Vec<Vec<u8>> = texts.into_iter().map(String::into_bytes).collect();
    all.push([charge("a", r#"{"amount":1}"#), charge("a", r#"{"amount":1}"#)].concat());
    all
}

/// Frames of a conversation that is right, after the preface.
fn good_frames() -> Vec<Vec<u8>> {
    const HEAD: [(&str, &str); 3] = [(":scheme", "http"), (":authority", "a"), (":path", "/x")];
    let head = |method, more: &[(&'static str, &'static str)]| {
        fields(&[&[(":method", method)], &HEAD[..], more].concat())
    };
    let key = [("idempotency-key", "k"), ("authorization", "Bearer opaque")];
    let get = head("GET", &[("x-a", "b"), ("cookie", "a=b"), ("cookie", "c=d")]);
    let (first, second) = get.split_at(get.len() / 2);
    vec![
        frame(SETTINGS, 0, 0, &[0, 4, 0, 1, 0, 0]),
        frame(WINDOW_UPDATE, 0, 0, &[0, 1, 0, 0]),
        frame(HEADERS, END_STREAM, 1, first),
        frame(CONTINUATION, END_HEADERS, 1, second),
        frame(HEADERS, END_HEADERS, 3, &head("POST", &[("content-length", "5")])),
        frame(DATA, 0, 3, b"he"),
        frame(PRIORITY, 0, 5, &[0, 0, 0, 3, 7]),
        frame(DATA, END_STREAM, 3, b"llo"),
        frame(HEADERS, END_HEADERS, 5, &head("POST", &key)),
        frame(DATA, 0, 5, b"{}"),
        frame(HEADERS, END_HEADERS | END_STREAM, 5, &fields(&[("x-trailer", "y")])),
        frame(HEADERS, END_HEADERS, 7, &head("PUT", &[])),
        frame(RST_STREAM, 0, 7, &[0, 0, 0, 8]),
        frame(PING, 0, 0, &[7; 8]),
        frame(GOAWAY, 0, 0, &[0; 8]),
    ]
}

/// What breaks parsers: ends of lines, framing, numbers.
const PIECES: &[&[u8]] = &[
    b"\r\n",
    b"\n",
    b"\r",
    b"\0",
    b" ",
    b"\t",
    b":",
    b";",
    b",",
    b"\r\n\r\n",
    b"\r\n ",
    b"\r\nTransfer-Encoding: chunked\r\n",
    b"\r\nTransfer-Encoding: xchunked\r\n",
    b"\r\nContent-Length: 5\r\n",
    b"\r\nContent-Length: +5\r\n",
    b"\r\nContent-Length: 0\r\n",
    b"\r\nHost: b\r\n",
    b"\r\nConnection: close\r\n",
    b"\r\nIdempotency-Fence: 1\r\n",
    b"0\r\n\r\n",
    b"ffffffffffffffff\r\n",
    b"GET /good HTTP/1.1\r\nHost: a\r\n\r\n",
    b"HTTP/1.1 200 OK\r\n\r\n",
    b"\xff",
    b"%0d%0a",
    b"/../",
];

fn mutate(bytes: &mut Vec<u8>, random: &mut Random) {
    for _ in 0..=random.below(4) {
        if bytes.is_empty() {
            return;
        }
        let at = random.below(bytes.len());
        let end = (at + 1 + random.below(16)).min(bytes.len());
        match random.below(8) {
            0 => bytes[at] ^= 1 << random.below(8),
            1 => bytes[at] = random.byte(),
            2 => {
                bytes.drain(at..end);
            }
            3 => {
                let again = bytes[at..end].to_vec();
                bytes.splice(at..at, again);
            }
            4 => bytes.truncate(at),
            // Many mistakes begin at the end of a line.
            5 => {
                let ends: Vec<usize> = (0..bytes.len()).filter(|at| bytes[*at] == b'\r').collect();
                let at = if ends.is_empty() { at } else { *random.pick(&ends) };
                bytes.splice(at..at, random.pick(PIECES).iter().copied());
            }
            _ => {
                bytes.splice(at..at, random.pick(PIECES).iter().copied());
            }
        }
    }
}

/// A conversation of HTTP/1.1 with mistakes.
fn http1(random: &mut Random, good: &[Vec<u8>]) -> Vec<u8> {
    let mut bytes = random.pick(good).clone();
    if random.below(4) == 0 {
        bytes.extend(random.pick(good));
    }
    mutate(&mut bytes, random);
    // Unless a mistake swallows it, the connection ends with this.
    bytes.extend_from_slice(LAST);
    bytes
}

/// A conversation of HTTP/2 with mistakes, in its frames or in their bytes.
fn http2(random: &mut Random, good: &[Vec<u8>]) -> Vec<u8> {
    let mut frames = good.to_vec();
    for _ in 0..=random.below(3) {
        let at = random.below(frames.len());
        // An earlier mistake may have cut its head.
        let is_whole = frames[at].len() >= 9;
        match random.below(6) {
            0 => {
                frames.remove(at);
            }
            1 => frames.insert(at, random.pick(good).clone()),
            2 => frames.swap(at, 0),
            3 if is_whole => {
                let place = [3, 4, 8][random.below(3)];
                frames[at][place] = random.byte() & 15;
            }
            5 if is_whole => {
                // Only what a frame says, so that its length is right.
                let mut payload = frames[at].split_off(9);
                mutate(&mut payload, random);
                let [kind, flags] = [frames[at][3], frames[at][4]];
                let stream = u32::from(frames[at][8]);
                frames[at] = frame(kind, flags, stream, &payload);
            }
            _ => mutate(&mut frames[at], random),
        }
        if frames.is_empty() {
            break;
        }
    }
    [PREFACE, &frame(SETTINGS, 0, 0, &[]), &frames.concat()].concat()
}

/// Waits until the program has no more descriptors than it had.
fn until_closed(gateway: &WatchedGateway, before: usize) {
    let mut waited = Duration::ZERO;
    while gateway.descriptors() > before {
        assert!(waited < IDLE_TIMEOUT, "{} descriptors, {before} before", gateway.descriptors());
        thread::sleep(Duration::from_millis(100));
        waited += Duration::from_millis(100);
    }
}

#[test]
fn a_torture_of_mutated_conversations_leaves_nothing_behind() {
    let seed = semel_testkit::seed();
    let count = if semel_testkit::torture() { COUNT_TORTURE } else { COUNT };
    println!("SEMEL_SEED={seed}, {count} conversations");
    let recorder = Recorder::start();
    let gateway = WatchedGateway::start(recorder.address, "");
    // Some descriptors are opened by the first request; one of them is its upstream's connection.
    gateway.converse(LAST, IDLE_TIMEOUT);
    let before = gateway.descriptors();
    let (good, frames, next) = (good(), good_frames(), AtomicU64::new(0));
    thread::scope(|scope| {
        for _ in 0..CLIENTS {
            scope.spawn(|| {
                loop {
                    let number = next.fetch_add(1, Ordering::Relaxed);
                    if number >= count {
                        return;
                    }
                    // Each can be repeated alone, whatever the others do.
                    let mut random = Random(seed.wrapping_add(number.wrapping_mul(0x1_0000_01b3)));
                    let bytes = match number % HTTP2_EVERY {
                        0 => http2(&mut random, &frames),
                        _ => http1(&mut random, &good),
                    };
                    gateway.converse(&bytes, SILENCE);
                    let malformed = recorder.malformed();
                    assert!(malformed.is_empty(), "SEMEL_SEED={seed}: {malformed:?}");
                }
            });
        }
    });
    let passed = recorder.requests();
    println!("{passed} requests reached the upstream");
    // Otherwise the mistakes would hide one another.
    assert!(passed > usize::try_from(count / 20).unwrap(), "only {passed}");
    gateway.converse(LAST, IDLE_TIMEOUT);
    assert_eq!(recorder.requests(), passed + 1, "a good request is not served");
    until_closed(&gateway, before);
    assert_eq!(recorder.malformed(), Vec::<String>::new(), "SEMEL_SEED={seed}");
}
