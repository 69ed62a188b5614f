//! `once` and claims against the real program, from Python, TypeScript and Rust.

use std::{process::Command, time::Duration};

use semel::core::OnUnknown;
use semel_client::{ClaimGuard, ClaimRequest, ClaimedKey, ServiceClient, ServiceError};
use semel_testkit::wire::Proxy;

use crate::{
    semel_clients::{CLIENTS, python, succeeds, typescript},
    service::{Service, TOKEN},
};

#[test]
fn the_python_package_runs_operations_once() {
    let Some(mut python) = python() else { return };
    let service = Service::start();
    python.current_dir(format!("{CLIENTS}/python")).args(["-m", "unittest", "tests.test_service"]);
    python.env("SEMEL_TEST_API", service.url()).env("SEMEL_TEST_TOKEN", TOKEN);
    succeeds(&mut python);
}

#[test]
fn the_typescript_package_runs_operations_once() {
    let Some(compiled) = typescript() else { return };
    let service = Service::start();
    let mut node = Command::new("node");
    node.env("SEMEL_TEST_API", service.url()).env("SEMEL_TEST_TOKEN", TOKEN);
    succeeds(node.arg("--test").arg(compiled.join("test/service.test.js")));
}

async fn granted(client: &ServiceClient, request: &ClaimRequest) -> Box<ClaimGuard> {
    match client.claim(request).await.unwrap() {
        ClaimedKey::Execute(guard) => guard,
        ClaimedKey::Replay(result) => panic!("replayed: {result:?}"),
    }
}

fn slug(result: Result<impl Sized, ServiceError>) -> String {
    let error = result.map(drop).unwrap_err();
    let ServiceError::Problem(problem) = error else { panic!("{error}") };
    problem.slug
}

fn request(key: &str) -> ClaimRequest {
    ClaimRequest::new("tests", key)
}

#[tokio::test]
async fn a_guard_completes_releases_and_holds() {
    let service = Service::start();
    let client = ServiceClient::new(&service.url(), Some(TOKEN)).unwrap();
    let amount = serde_json::json!({ "amount": 100 });
    let first = granted(&client, &request("a").payload(&amount).unwrap()).await;
    first.release(true).await.unwrap();
    let second = granted(&client, &request("a").payload(&amount).unwrap()).await;
    assert_eq!(second.attempt(), 2);
    // No number passes through a double.
    let receipt = serde_json::value::RawValue::from_string("9007199254740993.10".to_owned());
    second.complete(&receipt.unwrap()).await.unwrap();
    let replay = client.claim(&request("a").payload(&amount).unwrap()).await.unwrap();
    let ClaimedKey::Replay(Some(result)) = replay else { panic!("{replay:?}") };
    assert_eq!(result.body.unwrap().get(), "9007199254740993.10");
    let other = request("a").payload(&serde_json::json!({ "amount": 900 })).unwrap();
    assert_eq!(slug(client.claim(&other).await), "key-reused");
    granted(&client, &request("b")).await.hold("the bank did not answer").await.unwrap();
    assert_eq!(slug(client.claim(&request("b")).await), "outcome-unknown");
    let rerun = request("c").on_unknown(OnUnknown::Rerun);
    let without_json = std::collections::BTreeMap::from([((1, 2), 3)]);
    granted(&client, &rerun).await.complete(&without_json).await.unwrap_err();
    assert_eq!(slug(client.claim(&rerun).await), "outcome-unknown");
}

#[tokio::test]
async fn a_guard_renews_its_lease_and_a_dropped_one_does_not() {
    let service = Service::start();
    let client = ServiceClient::new(&service.url(), Some(TOKEN)).unwrap();
    let short = |key: &str| request(key).lease(Duration::from_secs(2)).on_unknown(OnUnknown::Rerun);
    let guard = granted(&client, &short("a")).await;
    let waiting = short("a").wait(Duration::from_secs(5));
    // Two leases pass, and the claim is still there.
    let rival = tokio::time::timeout(Duration::from_secs(5), client.claim(&waiting)).await;
    assert!(rival.is_err() || slug(rival.unwrap()) == "in-progress");
    guard.check().unwrap();
    let fence = guard.fence();
    drop(guard);
    let next = granted(&client, &short("a").wait(Duration::from_secs(10))).await;
    assert!(next.fence() > fence);
    next.complete(&"done").await.unwrap();
}

#[tokio::test]
async fn a_claim_whose_future_is_dropped_is_released() {
    let service = Service::start();
    let proxy = Proxy::start(service.port());
    let url = format!("http://127.0.0.1:{}", proxy.port());
    let client = ServiceClient::new(&url, Some(TOKEN)).unwrap();
    // It is granted after one delay, and the reply comes after two.
    let delay = Duration::from_secs(1);
    proxy.delay(delay);
    let claimed = request("a");
    let gone = tokio::time::timeout(delay * 3 / 2, client.claim(&claimed)).await;
    assert!(gone.is_err(), "{gone:?}");
    // Without the release it is in progress for a lease of 30 s, and held after that.
    let direct = ServiceClient::new(&service.url(), Some(TOKEN)).unwrap();
    let next = granted(&direct, &request("a").wait(Duration::from_secs(10))).await;
    assert_eq!(next.attempt(), 1);
}

#[tokio::test]
async fn a_guard_says_that_it_is_lost_when_it_cannot_renew() {
    let service = Service::start();
    let client = ServiceClient::new(&service.url(), Some(TOKEN)).unwrap();
    let guard = granted(&client, &request("a").lease(Duration::from_secs(2))).await;
    drop(service);
    tokio::time::timeout(Duration::from_secs(20), guard.lost()).await.unwrap();
    guard.check().unwrap_err();
}
