//! Concurrent requests with one key through three gateways.

use std::time::Duration;

use semel_testkit::servers;
use tokio::{
    task::JoinSet,
    time::{Instant, sleep},
};

use crate::{
    common::{Gate, Gateway, ORDER, Reply, TestResponse, Upstream, charge, send, wait_until},
    harness,
};

const ROUNDS: usize = 10;

#[tokio::test]
async fn fifty_at_once_over_three_gateways_run_once_and_get_equal_answers() {
    let postgres = servers::postgres();
    let database = postgres.fresh_database();
    let (median, gateways) = fifty_at_once(&postgres.url(&database)).await;
    eprintln!(
        "median delay of waiters on other gateways after the first answer: {median:?} (NOTIFY)"
    );
    // What is aimed at is 50 ms, and a busy machine may be slower. A gateway that
    // listens in vain asks once a second, which makes the median half a second.
    assert!(median < Duration::from_millis(400), "{median:?}");
    let listening = format!(
        "SELECT count(*) FROM pg_stat_activity \
         WHERE datname = '{database}' AND query LIKE 'LISTEN %'"
    );
    assert_eq!(postgres.sql("postgres", &listening), "3", "each gateway listens");
    harness::stop(gateways).await;
}

/// Sends fifty requests with one key, in several rounds. Returns the gateways, and the median delay
/// between the first answer and the answer of a client that waited on another gateway.
pub(crate) async fn fifty_at_once(url: &str) -> (Duration, Vec<Gateway>) {
    let gate = Gate::new();
    let behind = gate.clone();
    let upstream =
        Upstream::start(move |request| Reply::created(request).blocked_on(&behind)).await;
    let setup = harness::on(&upstream).defaults("wait = \"50s\"");
    let gateways = harness::start(&setup, &[url.to_owned(), url.to_owned(), url.to_owned()]).await;
    let mut delays = Vec::new();
    for round in 1..=ROUNDS {
        let key = format!("round-{round}");
        let mut requests = JoinSet::new();
        for number in 0..50 {
            let (gateway, request) = (number % gateways.len(), charge(&key, ORDER));
            let answer = send(gateways[gateway].address(), request);
            requests.spawn(async move { (gateway, answer.await, Instant::now()) });
        }
        wait_until(|| upstream.request_count() == round).await;
        // The other requests begin to wait, and pollers reach their longest interval.
        sleep(Duration::from_millis(700)).await;
        gate.open_for_one();
        delays.extend(delays_of_waiters(&requests.join_all().await, &key, round));
    }
    assert_eq!(upstream.request_count(), ROUNDS);
    delays.sort();
    (delays[delays.len() / 2], gateways)
}

/// Asserts that all answers are equal. Returns the delays on the gateways that did not run it.
fn delays_of_waiters(
    answers: &[(usize, TestResponse, Instant)],
    key: &str,
    charge: usize,
) -> Vec<Duration> {
    let body = format!("{{\"key\": \"{key}\", \"charge\": {charge}}}\n");
    let location = format!("/charges/{charge}");
    for (_, answer, _) in answers {
        assert_eq!((answer.status.as_u16(), answer.text()), (201, &*body));
        assert_eq!(answer.header("location"), Some(&*location));
    }
    assert_eq!(answers.len(), 50);
    // The answers of clients that joined the execution are not replays.
    let (owner, ..) = answers.iter().find(|(_, answer, _)| !answer.is_replayed()).unwrap();
    let first = answers.iter().map(|(.., at)| *at).min().unwrap();
    let others = answers.iter().filter(|(gateway, ..)| gateway != owner);
    others.map(|(.., at)| at.duration_since(first)).collect()
}
