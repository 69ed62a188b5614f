//! Redis fails again and again, and only the database's load shows it.

use std::{
    collections::BTreeMap,
    io::{Read as _, Write as _},
    net::TcpStream,
    sync::Arc,
    time::Duration,
};

use semel_testkit::{
    seed,
    servers::{self, Redis},
    torture,
};

use crate::{
    common::{Gateway, ORDER, Reply, Upstream, charge},
    harm::harm,
    harness,
    load::{Known, Load},
};

#[tokio::test(flavor = "multi_thread")]
async fn torture_of_redis_runs_nothing_twice_and_changes_no_answer() {
    let time = Duration::from_secs(if torture() { 300 } else { 10 });
    let seed = seed();
    eprintln!("to repeat it: SEMEL_SEED={seed}");
    let postgres = servers::postgres();
    let database = postgres.url(&postgres.fresh_database());
    let mut redis = Redis::start();
    let upstream =
        Upstream::start(|request| Reply::created(request).after(Duration::from_millis(5))).await;
    let setup = harness::on(&upstream).argument("--cache").argument(&redis.url());
    let gateways = harness::start(&setup, &vec![database.clone(); 3]).await;
    let store = semel_postgres::PostgresStore::connect(&database).await.unwrap();
    let load = Load::start(&gateways, Arc::new(store)).await;
    load.goes_on(100).await;
    assert!(hits(&redis) > 0, "Redis answers nothing");

    let harming = tokio::task::spawn_blocking(move || {
        let harmed = harm(&mut redis, seed, time);
        (redis, harmed)
    });
    let (mut redis, harmed) = harming.await.unwrap();
    assert!(harmed > 5, "Redis was hardly harmed: {harmed}");
    load.goes_on(100).await;

    redis.kill();
    load.goes_on(100).await;
    redis.start_again();
    load.goes_on(100).await;
    let known = load.end().await;
    holds(&known, &upstream, &gateways).await;
    eprintln!("{} keys, {} runs, {harmed} times harmed", known.len(), upstream.request_count());
    harness::stop(gateways).await;
}

/// Every key ran as often as it had to, and every gateway still gives its answer.
async fn holds(known: &[Known], upstream: &Upstream, gateways: &[Gateway]) {
    let mut runs: BTreeMap<String, usize> = BTreeMap::new();
    for request in upstream.requests() {
        *runs.entry(request.key().to_owned()).or_default() += 1;
    }
    for Known { key, runs: expected, .. } in known {
        assert_eq!(runs.get(key), Some(expected), "how often {key} ran");
    }
    for gateway in gateways {
        for Known { key, answer, .. } in known {
            gateway.send(charge(key, ORDER)).await.assert_replay_of(answer);
        }
    }
}

/// How many keys Redis was asked for that it had.
fn hits(redis: &Redis) -> u64 {
    let mut wire = TcpStream::connect(("127.0.0.1", redis.port())).unwrap();
    wire.write_all(b"INFO stats\r\nQUIT\r\n").unwrap();
    let mut output = String::new();
    wire.read_to_string(&mut output).unwrap();
    let line = output.lines().find_map(|line| line.strip_prefix("keyspace_hits:")).unwrap();
    line.trim().parse().unwrap()
}
