//! A gateway whose database becomes unavailable and available again.

use std::time::Duration;

use semel_testkit::{servers::Postgres, wire::Proxy};
use tokio::time::Instant;

use crate::common::{Gateway, ORDER, Records, Setup, TestResponse, Upstream, charge, local, send};

/// Default timeout of a claim.
const STORE_TIMEOUT: Duration = Duration::from_secs(2);

/// What the first keyed request of an outage takes at most, unless the machine is busy: so it holds
/// for one of several outages, and not for each.
const FIRST_REFUSAL: Duration = STORE_TIMEOUT.saturating_add(Duration::from_secs(1));

/// How many outages there are at most.
const OUTAGES: usize = 4;

/// What is answered at once takes less than this, unless the machine is busy: so it holds for one
/// of several answers, and not for each.
const AT_ONCE: Duration = Duration::from_millis(800);

/// How often the key that is known is sent.
const REPLAYS: u32 = 5;

/// A 503 for a key that is new, and how long it took.
async fn refused(gateway: &Gateway, key: &str) -> Duration {
    let begun = Instant::now();
    gateway.send(charge(key, ORDER)).await.assert_problem(503, "store-unavailable");
    begun.elapsed()
}

/// Asserts that `known` is replayed without the database and that nothing else runs, between
/// `set_away(true)` and `set_away(false)`.
async fn fails_fast_and_replays(
    gateway: &Gateway,
    upstream: &Upstream,
    known: &TestResponse,
    mut set_away: impl FnMut(bool),
) {
    set_away(true);
    let mut firsts = vec![refused(gateway, "first-0").await];
    let mut all = Vec::new();
    for number in 0..20 {
        all.push(refused(gateway, &number.to_string()).await);
    }
    all.sort();
    assert!(all[all.len() / 2] < AT_ONCE, "{all:?}");
    let mut all = Vec::new();
    for _ in 0..REPLAYS {
        let begun = Instant::now();
        gateway.send(charge("known", ORDER)).await.assert_replay_of(known);
        all.push(begun.elapsed());
    }
    assert!(all.iter().any(|took| *took < AT_ONCE), "{all:?}");
    let metrics = send(gateway.api(), local("/metrics")).await;
    let counted = r#"semel_requests_total{scope="default",outcome="replayed-store-away"}"#;
    let counted = format!("{counted} {REPLAYS}");
    assert!(metrics.text().lines().any(|line| line == counted), "{}", metrics.text());
    assert_eq!(upstream.request_count(), 1, "nothing ran meanwhile");

    set_away(false);
    runs_again(gateway, "first-0").await;
    while firsts.iter().all(|took| *took >= FIRST_REFUSAL) {
        assert!(firsts.len() < OUTAGES, "the first refusal of each outage took {firsts:?}");
        let key = format!("first-{}", firsts.len());
        set_away(true);
        firsts.push(refused(gateway, &key).await);
        set_away(false);
        runs_again(gateway, &key).await;
    }
    for key in ["first-0", "known"] {
        assert_eq!(upstream.requests_with_key(key).len(), 1, "{key}");
    }
}

/// Sends the key until it runs.
async fn runs_again(gateway: &Gateway, key: &str) {
    let end = Instant::now() + Duration::from_secs(60);
    while gateway.send(charge(key, ORDER)).await.status.as_u16() != 201 {
        assert!(Instant::now() < end, "nothing runs though the database is back");
        tokio::time::sleep(Duration::from_millis(100)).await;
    }
}

#[tokio::test]
async fn a_stopped_database_gives_an_error_at_once_and_known_answers_are_replayed() {
    let mut server = Postgres::start(&[]);
    let upstream = Upstream::plain().await;
    let gateway = Setup::on_store(Records::Postgres(server.fresh_schema_url()), &upstream.url());
    let gateway = gateway.start().await;
    let known = gateway.send(charge("known", ORDER)).await;
    let set_away = |away: bool| if away { server.stop() } else { server.start_again() };
    fails_fast_and_replays(&gateway, &upstream, &known, set_away).await;
    gateway.assert_clean_shutdown().await;
}

#[tokio::test]
async fn an_unresponsive_database_gives_an_error_at_once_and_known_answers_are_replayed() {
    let server = Postgres::start(&[]);
    let wire = Proxy::start(server.port());
    let schema = server.fresh_schema_url();
    let url = schema.replace(&format!(":{}/", server.port()), &format!(":{}/", wire.port()));
    let upstream = Upstream::plain().await;
    let gateway = Setup::on_store(Records::Postgres(url), &upstream.url()).start().await;
    let known = gateway.send(charge("known", ORDER)).await;
    fails_fast_and_replays(&gateway, &upstream, &known, |away| wire.silence(away)).await;
    gateway.assert_clean_shutdown().await;
}
