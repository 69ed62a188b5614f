//! Connections to Redis: TLS, users with few rights, and runtimes that end.

use std::{fs, net::TcpListener, os::unix::fs::PermissionsExt as _, sync::Arc};

use semel::{MemoryStore, core::Store as _};
use semel_redis::{Options, RedisCache};
use semel_testkit::servers::Redis;
use tempfile::TempDir;

use crate::harness::{TestFleet, assert_replays, claim, granted, until};

/// A Redis that speaks TLS, its port, and the folder with its certificate.
fn redis_with_tls() -> (Redis, u16, TempDir) {
    let folder = tempfile::tempdir().unwrap();
    fs::set_permissions(folder.path(), fs::Permissions::from_mode(0o755)).unwrap();
    let made = rcgen::generate_simple_self_signed(["localhost".to_owned()]).unwrap();
    let (certificate, key) = (folder.path().join("cert.pem"), folder.path().join("key.pem"));
    fs::write(&certificate, made.cert.pem()).unwrap();
    fs::write(&key, made.signing_key.serialize_pem()).unwrap();
    let port = TcpListener::bind("127.0.0.1:0").unwrap().local_addr().unwrap().port();
    let redis = Redis::start_with(&[
        ("tls-port", &port.to_string()),
        ("tls-cert-file", certificate.to_str().unwrap()),
        ("tls-key-file", key.to_str().unwrap()),
        ("tls-auth-clients", "no"),
    ]);
    (redis, port, folder)
}

#[tokio::test]
async fn a_certificate_is_checked_against_the_configured_authority() {
    let (redis, port, folder) = redis_with_tls();
    let authority = folder.path().join("cert.pem");
    let url = format!("rediss://localhost:{port}?sslrootcert={}", authority.display());
    let fleet = TestFleet::with(redis, 2, &Options::parse(&url).unwrap()).await;
    fleet.run(0, "k", "paid").await;
    assert_replays(&fleet.until_hit(1, "k").await, "paid");
}

#[tokio::test]
async fn a_certificate_of_an_unknown_authority_is_refused() {
    let (redis, port, _folder) = redis_with_tls();
    let fleet = TestFleet::on(redis, 1).await;
    let options = Options::parse(&format!("rediss://localhost:{port}")).unwrap();
    let front = RedisCache::connect(Arc::new(fleet.behind.clone()), options).await.unwrap();
    for number in 0..20 {
        granted(front.claim(&claim(&format!("k-{number}"))).await.unwrap());
        tokio::time::sleep(std::time::Duration::from_millis(10)).await;
    }
    assert!(!front.counts().connected);
}

#[tokio::test]
async fn the_documented_user_rights_are_sufficient() {
    let rights = "semel on >secret +mget +set +del +publish +subscribe +ping ~pay:* &pay:*";
    let redis = Redis::start_with(&[("user", rights)]);
    let url = redis.url().replace("redis://", "redis://semel:secret@") + "?prefix=pay";
    let fleet = TestFleet::with(redis, 2, &Options::parse(&url).unwrap()).await;
    let claim = claim("k");
    let fence = granted(fleet.fronts[0].claim(&claim).await.unwrap()).fence;
    assert!(fleet.fronts[1].watch(&claim.id).await.unwrap().is_some());
    fleet.complete(0, &claim, fence, "paid").await;
    assert_replays(&fleet.until_hit(1, "k").await, "paid");
    assert!(fleet.names().await.iter().all(|name| name.starts_with("pay:")));
}

#[test]
fn a_front_outlives_the_runtime_it_was_made_on() {
    let runtime = || tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
    let first = runtime();
    let fleet = first.block_on(TestFleet::new(2));
    first.block_on(fleet.run(0, "k", "paid"));
    drop(first);
    runtime().block_on(async {
        assert_replays(&fleet.until_hit(1, "k").await, "paid");
    });
}

#[tokio::test]
async fn a_front_that_is_dropped_leaves_its_store_and_its_connection() {
    let redis = Redis::start();
    let store = Arc::new(MemoryStore::new());
    let options = Options::parse(&redis.url()).unwrap();
    let front = RedisCache::connect(Arc::clone(&store) as Arc<dyn semel::core::Store>, options)
        .await
        .unwrap();
    until("it is connected", async || front.counts().connected).await;
    drop(front);
    until("the store is let go", async || Arc::strong_count(&store) == 1).await;
}
