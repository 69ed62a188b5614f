//! Three gateways and one key.

use std::time::Duration;

use semel_testkit::servers;
use tokio::{
    task::JoinSet,
    time::{Instant, sleep},
};

use crate::{
    common::{Answer, Gate, Gateway, ORDER, Reply, Upstream, charge, send, wait_until},
    harness,
};

const ROUNDS: usize = 10;

#[tokio::test]
async fn fifty_at_once_over_three_gateways_run_once_and_get_equal_answers() {
    let postgres = servers::postgres();
    let database = postgres.fresh_database();
    let (median, gateways) = fifty_at_once(&postgres.url(&database)).await;
    eprintln!(
        "notified by the database, others had their answer {median:?} after the first (median)"
    );
    // What is aimed at is 50 ms, and a busy machine may be slower.
    assert!(median < Duration::from_millis(250), "{median:?}");
    let listening = format!(
        "SELECT count(*) FROM pg_stat_activity \
         WHERE datname = '{database}' AND query LIKE 'LISTEN %'"
    );
    assert_eq!(postgres.sql("postgres", &listening), "3", "each gateway listens");
    harness::stop(gateways).await;
}

/// Sends fifty requests with one key, several times over. Gives how long after the first answer
/// a client that waited on another gateway had its answer, at the median, and the gateways.
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
            let (place, request) = (number % gateways.len(), charge(&key, ORDER));
            let answer = send(gateways[place].address(), request);
            requests.spawn(async move { (place, answer.await, Instant::now()) });
        }
        wait_until(|| upstream.request_count() == round).await;
        // Time for the others to begin to wait, and for those who look less and less often to slow
        // down.
        sleep(Duration::from_millis(700)).await;
        gate.open_for_one();
        delays.extend(waited(&requests.join_all().await, &key, round));
    }
    assert_eq!(upstream.request_count(), ROUNDS);
    delays.sort();
    (delays[delays.len() / 2], gateways)
}

/// Looks that all answers are the same, and how long the others waited on.
fn waited(answers: &[(usize, Answer, Instant)], key: &str, charge: usize) -> Vec<Duration> {
    let body = format!("{{\"key\": \"{key}\", \"charge\": {charge}}}\n");
    let place = format!("/charges/{charge}");
    for (_, answer, _) in answers {
        assert_eq!((answer.status.as_u16(), answer.text()), (201, &*body));
        assert_eq!(answer.header("location"), Some(&*place));
    }
    assert_eq!(answers.len(), 50);
    // A client that joined the execution has an answer that is no replay.
    let (owner, ..) = answers.iter().find(|(_, answer, _)| !answer.is_replayed()).unwrap();
    let first = answers.iter().map(|(.., at)| *at).min().unwrap();
    let others = answers.iter().filter(|(place, ..)| place != owner);
    others.map(|(.., at)| at.duration_since(first)).collect()
}
