//! `Idempotency-Expires`: how long the record of an answer is kept.

use std::time::Duration;

use http::StatusCode;
use jiff::Timestamp;
use semel::core::{Dialect, Policy};

use crate::harness::{Harness, ORDER, TestResponse, charge, send};

const RETENTION: Duration = Duration::from_secs(3600);

const NAME: &str = "idempotency-expires";

fn harness() -> Harness {
    Harness::new().policy(Policy { retention: RETENTION, ..Policy::default() })
}

fn seconds_since_1970() -> u64 {
    Timestamp::now().as_second().try_into().unwrap()
}

/// The date is rounded down, and retention counts from the claim.
#[track_caller]
fn assert_expires(answer: &TestResponse, claimed: [u64; 2]) {
    let [from, to] = claimed.map(|seconds| seconds + RETENTION.as_secs());
    let expires = answer.expires().unwrap_or_else(|| panic!("no date: {answer:?}"));
    // The clocks of the process and of the machine are read one after the other.
    assert!((from - 1..=to).contains(&expires), "{expires} is not in {from}..={to}");
}

#[tokio::test]
async fn a_recorded_answer_and_its_replays_say_when_the_record_expires() {
    for dialect in [Dialect::IETF, Dialect::STRIPE] {
        let harness = harness();
        let layer = || harness.layer().dialect(dialect.clone());
        let answer = |run: u32| async move { (StatusCode::CREATED, run.to_string()) };
        let app = harness.app_with(layer(), answer);
        let before = seconds_since_1970();
        let first = send(&app, charge("k", ORDER)).await;
        let claimed = [before, seconds_since_1970()];
        assert_expires(&first, claimed);
        tokio::time::sleep(Duration::from_millis(1100)).await;
        let elsewhere = harness.second_process().app_with(layer(), answer);
        for app in [&app, &elsewhere] {
            let replay = send(app, charge("k", ORDER)).await;
            replay.assert_replay_of(&first);
            assert_expires(&replay, claimed);
        }
        assert_eq!(harness.runs(), 1);
    }
}

#[tokio::test]
async fn the_record_of_an_answer_that_is_not_retained_expires_too() {
    let harness = harness();
    let app = harness.app(|_| async { (StatusCode::CREATED, "x".repeat(2 << 20)) });
    let before = seconds_since_1970();
    let first = send(&app, charge("k", ORDER)).await;
    assert_eq!(first.body.len(), 2 << 20);
    assert_eq!(first.header(NAME), None, "its head was sent before the record was completed");
    let claimed = [before, seconds_since_1970()];
    let repeat = send(&app, charge("k", ORDER)).await;
    repeat.assert_problem(410, "response-not-retained");
    assert_expires(&repeat, claimed);
}

#[tokio::test]
async fn an_answer_that_is_not_recorded_has_no_date() {
    for status in [307, 429, 500] {
        let harness = harness();
        let app = harness.app(move |_| async move { StatusCode::from_u16(status).unwrap() });
        let answer = send(&app, charge("k", ORDER)).await;
        assert_eq!((answer.status.as_u16(), answer.header(NAME)), (status, None));
    }
    let harness = harness();
    let app = harness.app(|_| async { "1" });
    send(&app, charge("k", ORDER)).await;
    let reused = send(&app, charge("k", "{}")).await;
    reused.assert_problem(422, "key-reused");
    assert_eq!(reused.header(NAME), None, "it says nothing about the record of another request");
}

/// A service that speaks to a Semel of its own may copy the header.
#[tokio::test]
async fn the_date_of_a_service_is_neither_passed_on_nor_recorded() {
    for (status, expires) in [(StatusCode::CREATED, true), (StatusCode::TOO_MANY_REQUESTS, false)] {
        let harness = harness();
        let app = harness.app(move |_| async move { (status, [(NAME, "@1")]) });
        for _ in 0..2 {
            let answer = send(&app, charge("k", ORDER)).await;
            assert_eq!(answer.status, status);
            assert_eq!(answer.headers.get_all(NAME).iter().count(), usize::from(expires));
            assert_ne!(answer.expires(), Some(1));
        }
    }
}
