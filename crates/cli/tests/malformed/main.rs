//! Requests that are wrong, sent as bytes over real sockets to the real program.
//!
//! Each gets a clear answer or, where it cannot be answered, the end of its connection; none hangs,
//! none reaches the upstream, which counts every byte that comes; and the next request is
//! served.

#![allow(
    clippy::unwrap_used,
    clippy::expect_used,
    clippy::panic,
    clippy::print_stdout,
    reason = "a test reports by panicking, and prints its seed"
)]

#[path = "../common/mod.rs"]
mod common;

mod bodies;
mod chunks;
mod frames;
mod framing;
mod harness;
mod headers;
mod http2;
mod keys;
mod lines;
mod mutations;
mod recorder;
mod slow;
mod vectors;

use std::{io::Write as _, thread, time::Duration};

use harness::{Case, Harness, read_response};

/// How many malformed requests are promised to be tried.
const PROMISED: usize = 200;

fn refuses(cases: &[Case]) {
    let harness = Harness::start();
    for case in cases {
        harness.refuses(case);
    }
    harness.serves_a_charge();
}

#[test]
fn a_request_whose_end_is_not_certain_is_refused() {
    refuses(&framing::cases());
}

#[test]
fn a_chunked_body_that_is_broken_is_refused() {
    refuses(&chunks::cases());
}

#[test]
fn a_body_that_breaks_off_while_it_is_passed_on_is_its_senders_fault() {
    let harness = Harness::start();
    for case in chunks::streamed() {
        harness.answers(&case);
    }
    // The upstream has not taken any of them for whole.
    harness.serves("bodies that break off");
}

#[test]
fn an_invalid_request_line_is_refused() {
    refuses(&lines::cases());
}

#[test]
fn invalid_header_lines_are_refused() {
    refuses(&headers::cases());
}

#[test]
fn a_key_or_a_caller_that_cannot_be_read_is_refused() {
    refuses(&keys::cases());
}

#[test]
fn a_body_that_is_not_what_it_says_is_refused() {
    refuses(&bodies::cases());
}

#[test]
fn a_client_refused_while_it_still_sends_can_read_why() {
    let harness = Harness::start();
    let much = "x".repeat(3 << 20);
    let malformed = format!("POST /charges HTTP/1.1\r\nHost: a\r\nContent-Length: x\r\n\r\n{much}");
    let large = harness::charge("much", &much);
    for (status, request) in [(400, malformed.into_bytes()), (413, large)] {
        let mut stream = harness.connect();
        for piece in request.chunks(1 << 20) {
            stream.write_all(piece).expect("the connection stays open");
            // By now it was refused.
            thread::sleep(Duration::from_millis(50));
        }
        let answer = read_response(&mut stream).expect("an answer");
        assert_eq!(answer.status, status);
        assert_eq!(answer.header("content-type"), Some("application/problem+json"));
        assert_eq!(answer.header("connection"), Some("close"));
    }
    harness.serves("those who were refused");
}

#[test]
fn frames_that_break_the_rules_of_http2_end_their_stream_or_connection() {
    let harness = Harness::start();
    for case in http2::cases() {
        harness.ends(&case);
    }
    harness.serves_a_charge();
}

#[test]
fn an_upgrade_to_http2_past_the_routes_is_not_passed_on() {
    let harness = Harness::start();
    for protocols in ["h2c", "websocket, H2C"] {
        let lines = format!(
            "Connection: Upgrade, HTTP2-Settings\r\nUpgrade: {protocols}\r\n\
             HTTP2-Settings: AAMAAABkAAQAAP__\r\n"
        );
        harness.serves_with(&lines, protocols);
    }
}

#[test]
fn the_malformed_requests_are_as_many_as_promised_and_distinct() {
    let lists = [
        framing::cases(),
        chunks::cases(),
        lines::cases(),
        headers::cases(),
        keys::cases(),
        bodies::cases(),
    ];
    let mut all: Vec<Vec<u8>> = lists.into_iter().flatten().map(|case| case.bytes).collect();
    all.extend(http2::cases().into_iter().map(|case| case.bytes));
    let count = all.len();
    assert!(count >= PROMISED, "{count}");
    all.sort_unstable();
    all.dedup();
    assert_eq!(all.len(), count, "some are the same");
}
