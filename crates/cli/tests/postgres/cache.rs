//! `semel serve --cache`.

use semel_testkit::servers::Redis;

use crate::common::{ORDER, Records, Setup, Upstream, charge, fresh_postgres, wait_until};

#[tokio::test]
async fn gateways_with_a_cache_replay_each_others_answers_with_and_without_redis() {
    let upstream = Upstream::plain().await;
    let mut redis = Redis::start();
    let records = Records::Postgres(fresh_postgres());
    let setup =
        Setup::on_store(records, &upstream.url()).argument("--cache").argument(&redis.url());
    let (one, other) = (setup.start().await, setup.start().await);
    let first = one.send(charge("k", ORDER)).await;
    for _ in 0..3 {
        other.send(charge("k", ORDER)).await.assert_replay_of(&first);
        one.send(charge("k", ORDER)).await.assert_replay_of(&first);
    }
    redis.kill();
    let second = one.send(charge("l", ORDER)).await;
    other.send(charge("l", ORDER)).await.assert_replay_of(&second);
    // One that is started now finds none, and does without.
    let late = setup.start().await;
    late.send(charge("k", ORDER)).await.assert_replay_of(&first);
    wait_until(|| late.log_lines().iter().any(|line| line.contains("the cache is out of use")))
        .await;
    assert_eq!(upstream.request_count(), 2);
    for gateway in [one, other, late] {
        gateway.assert_clean_shutdown().await;
    }
}
