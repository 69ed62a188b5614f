//! Senders that take their time. The connection ends by the configured timeouts, and of a guarded
//! request that did not come as a whole nothing is passed on.

use std::{
    io::Write as _,
    thread,
    time::{Duration, Instant},
};

use semel::core::Problem;

use crate::{
    common::TestResponse,
    harness::{HEADER_TIMEOUT, Harness, charge, read_response},
};

/// Generous: it tells an end from a hang.
const END: Duration = Duration::from_secs(25);

#[expect(clippy::disallowed_methods, reason = "a test measures how long a connection lasts")]
fn now() -> Instant {
    Instant::now()
}

/// Sends a byte now and then until the connection ends, and says what was answered.
fn drip(harness: &Harness, bytes: &[u8]) -> Option<TestResponse> {
    let mut stream = harness.connect();
    let begun = now();
    let mut reading = stream.try_clone().unwrap();
    let reader = thread::spawn(move || read_response(&mut reading));
    for byte in bytes.iter().cycle() {
        if reader.is_finished() || stream.write_all(&[*byte]).is_err() {
            break;
        }
        assert!(begun.elapsed() < END, "the connection does not end");
        thread::sleep(Duration::from_millis(50));
    }
    reader.join().unwrap()
}

#[test]
fn a_head_that_drips_is_cut_off_by_the_header_timeout() {
    let harness = Harness::start();
    for head in ["POST /charges HTTP/1.1\r\nX: ", "PRI * HTTP/2.0\r\n\r\nSM\r\n\r"] {
        // Nothing in it ever ends a head, or begins HTTP/2.
        let before = harness.passed();
        let answer = drip(&harness, head.as_bytes());
        assert!(answer.is_none_or(|answer| answer.status.is_client_error()), "{head:?}");
        assert_eq!(harness.passed(), before);
        harness.serves(head);
    }
}

#[test]
fn a_head_has_its_whole_time_however_long_its_connection_was_idle() {
    let harness = Harness::start();
    let mut stream = harness.connect();
    let request = "GET /good HTTP/1.1\r\nHost: a\r\n\r\n";
    let (first, second) = request.split_at(20);
    thread::sleep(HEADER_TIMEOUT * 3 / 4);
    stream.write_all(first.as_bytes()).unwrap();
    thread::sleep(HEADER_TIMEOUT / 2);
    stream.write_all(second.as_bytes()).unwrap();
    assert_eq!(read_response(&mut stream).expect("an answer").status, 200);
}

#[test]
fn a_silent_connection_is_closed_after_the_header_timeout() {
    let harness = Harness::start();
    let mut stream = harness.connect();
    let begun = now();
    assert!(read_response(&mut stream).is_none_or(|answer| answer.status == 408));
    assert!(begun.elapsed() < END && begun.elapsed() > HEADER_TIMEOUT / 2);
    harness.serves("silence");
}

#[test]
fn a_guarded_body_that_stalls_is_refused_and_passes_nothing() {
    let harness = Harness::start();
    let request = charge("stalls", r#"{"amount":1}"#);
    for missing in [1, 5, 12] {
        let before = harness.passed();
        let mut stream = harness.connect();
        stream.write_all(&request[..request.len() - missing]).unwrap();
        let answer = read_response(&mut stream).expect("an answer");
        assert_eq!(answer.status, Problem::BodyMalformed.status(), "{}", answer.text());
        assert!(answer.text().contains(Problem::BodyMalformed.slug()), "{}", answer.text());
        assert_eq!(harness.passed(), before);
        harness.serves("a body that stalls");
    }
}

#[test]
fn a_guarded_body_that_drips_is_refused_and_passes_nothing() {
    let harness = Harness::start();
    let request = charge("drips", &" ".repeat(100));
    let head = request.len() - 100;
    let before = harness.passed();
    let mut stream = harness.connect();
    stream.write_all(&request[..head]).unwrap();
    let mut reading = stream.try_clone().unwrap();
    let reader = thread::spawn(move || read_response(&mut reading));
    for byte in &request[head..request.len() - 1] {
        if reader.is_finished() || stream.write_all(&[*byte]).is_err() {
            break;
        }
        thread::sleep(Duration::from_millis(50));
    }
    let answer = reader.join().unwrap().expect("an answer");
    assert_eq!(answer.status, Problem::BodyMalformed.status(), "{}", answer.text());
    assert_eq!(harness.passed(), before);
    harness.serves("a body that drips");
}
