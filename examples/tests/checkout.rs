//! A checkout charges once per key, over real connections.
#![allow(clippy::unwrap_used, clippy::panic, reason = "a test reports by panicking")]

mod support;

use std::{fs, net::SocketAddr, path::Path, process::Command, time::Duration};

use rusqlite::Connection;
use semel::core::{Caller, Key, RecordId, Resolution, Resolved, Scope, StateName};
use semel_examples::checkout::{Merchants, Shop};
use semel_testkit::http::TestResponse;
use support::Service;
use tempfile::TempDir;
use tokio::{
    io::{AsyncReadExt as _, AsyncWriteExt as _},
    net::{TcpListener, TcpStream},
    sync::oneshot,
    task::{JoinHandle, JoinSet},
    time::{sleep, timeout},
};

/// A shop that serves in this process.
struct Stage {
    folder: TempDir,
    shop: Shop,
    address: SocketAddr,
    stop: oneshot::Sender<()>,
    serving: JoinHandle<anyhow::Result<usize>>,
}

impl Stage {
    async fn new(takes: Duration) -> Self {
        let folder = TempDir::new().unwrap();
        let merchants = Merchants::new([("sk_ada", "ada"), ("sk_grace", "grace")]);
        let shop = Shop::open(folder.path(), merchants, takes).unwrap();
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let address = listener.local_addr().unwrap();
        let (stop, stopped) = oneshot::channel();
        let serving = tokio::spawn(shop.clone().serve(listener, async {
            let _ = stopped.await;
        }));
        Self { folder, shop, address, stop, serving }
    }

    async fn check_out(&self, key: &str, cents: u32, card: &str) -> TestResponse {
        send(self.address, &ada(key, cents, card)).await
    }

    fn charges(&self) -> usize {
        statement(self.folder.path()).len()
    }
}

/// Everything that was charged.
fn statement(folder: &Path) -> Vec<String> {
    let text = fs::read_to_string(folder.join("statement.txt")).unwrap_or_default();
    text.lines().map(str::to_owned).collect()
}

async fn until(condition: impl Fn() -> bool) {
    let wait = async {
        while !condition() {
            sleep(Duration::from_millis(2)).await;
        }
    };
    timeout(Duration::from_secs(20), wait).await.unwrap();
}

/// A checkout by Ada.
fn ada(key: &str, cents: u32, card: &str) -> String {
    request(&["authorization: Bearer sk_ada", &format!("idempotency-key: {key}")], cents, card)
}

fn request(headers: &[&str], cents: u32, card: &str) -> String {
    let body = format!(r#"{{"item":"tea","cents":{cents},"card":"{card}"}}"#);
    format!(
        "POST /checkouts HTTP/1.1\r\nhost: localhost\r\nconnection: close\r\n{}\r\n\
         content-type: application/json\r\ncontent-length: {}\r\n\r\n{body}",
        headers.join("\r\n"),
        body.len(),
    )
}

async fn send(to: SocketAddr, request: &str) -> TestResponse {
    let mut stream = TcpStream::connect(to).await.unwrap();
    stream.write_all(request.as_bytes()).await.unwrap();
    let mut answer = Vec::new();
    stream.read_to_end(&mut answer).await.unwrap();
    TestResponse::parse(&answer).unwrap()
}

#[tokio::test]
async fn a_repeat_gets_the_first_answer_byte_for_byte() {
    let stage = Stage::new(Duration::ZERO).await;
    let first = stage.check_out("k", 4900, "tok_visa").await;
    assert_eq!(first.status, 201);
    assert_eq!(first.text(), r#"{"order":1,"cents":4900,"charge":"ch_1"}"#);
    stage.check_out("k", 4900, "tok_visa").await.assert_replay_of(&first);
    assert_eq!(statement(stage.folder.path()), ["ch_1 order-1 4900"]);
}

#[tokio::test]
async fn twenty_at_once_charge_once() {
    let stage = Stage::new(Duration::from_millis(200)).await;
    let mut clients = JoinSet::new();
    for _ in 0..20 {
        let address = stage.address;
        clients.spawn(async move { send(address, &ada("k", 4900, "tok_visa")).await });
    }
    for answer in clients.join_all().await {
        assert_eq!(answer.status, 201, "{answer:?}");
        assert_eq!(answer.text(), r#"{"order":1,"cents":4900,"charge":"ch_1"}"#);
    }
    assert_eq!(stage.charges(), 1);
}

#[tokio::test]
async fn a_key_is_for_one_checkout_of_one_merchant() {
    let stage = Stage::new(Duration::ZERO).await;
    stage.check_out("k", 4900, "tok_visa").await;
    stage.check_out("k", 5900, "tok_visa").await.assert_problem(422, "key-reused");
    assert_eq!(stage.charges(), 1);

    let grace = request(&["authorization: Bearer sk_grace", "idempotency-key: k"], 7, "tok_visa");
    let answer = send(stage.address, &grace).await;
    assert_eq!(answer.text(), r#"{"order":2,"cents":7,"charge":"ch_2"}"#);
}

#[tokio::test]
async fn a_checkout_without_a_key_or_a_token_is_refused() {
    let stage = Stage::new(Duration::ZERO).await;
    let keyless = request(&["authorization: Bearer sk_ada"], 7, "tok_visa");
    send(stage.address, &keyless).await.assert_problem(400, "key-missing");
    for credential in
        ["x-nothing: 1", "authorization: Bearer sk_eve", "authorization: Basic sk_ada"]
    {
        let request = request(&[credential, "idempotency-key: k"], 7, "tok_visa");
        let answer = send(stage.address, &request).await;
        assert_eq!(answer.status, 401);
        assert_eq!(answer.header("www-authenticate"), Some("Bearer"), "{answer:?}");
    }
    // Nothing of this was recorded under the key.
    assert_eq!(stage.check_out("k", 7, "tok_visa").await.status, 201);
    assert_eq!(stage.charges(), 1);
}

#[tokio::test]
async fn a_declined_card_stays_declined() {
    let stage = Stage::new(Duration::ZERO).await;
    let first = stage.check_out("k", 4900, "tok_declined").await;
    assert_eq!(first.status, 402);
    let detail = "the card was declined: insufficient funds";
    assert_eq!(first.text(), format!(r#"{{"error":"card-declined","detail":"{detail}"}}"#));
    stage.check_out("k", 4900, "tok_declined").await.assert_replay_of(&first);
    assert_eq!(stage.charges(), 0);
}

#[tokio::test]
async fn an_unreachable_provider_is_tried_again() {
    let stage = Stage::new(Duration::ZERO).await;
    let first = stage.check_out("k", 4900, "tok_far").await;
    assert_eq!(first.status, 502);
    let leaked = first.header("idempotency-outcome");
    assert_eq!(leaked, None, "what is meant for the layer does not go out: {first:?}");
    let second = stage.check_out("k", 4900, "tok_far").await;
    assert_eq!((second.status.as_u16(), second.is_replayed()), (201, false));
    stage.check_out("k", 4900, "tok_far").await.assert_replay_of(&second);
    assert_eq!(stage.charges(), 1);
}

/// Keeps other connections from writing to the shop's database until it is dropped.
fn lock_orders(folder: &Path) -> Connection {
    let connection = Connection::open(folder.join("shop.db")).unwrap();
    connection.execute_batch("BEGIN IMMEDIATE").unwrap();
    connection
}

#[tokio::test]
async fn a_shop_that_cannot_open_an_order_asks_for_a_retry() {
    let stage = Stage::new(Duration::ZERO).await;
    let lock = lock_orders(stage.folder.path());
    let first = stage.check_out("k", 4900, "tok_visa").await;
    assert_eq!((first.status.as_u16(), stage.charges()), (503, 0), "{first:?}");
    drop(lock);
    let second = stage.check_out("k", 4900, "tok_visa").await;
    assert_eq!((second.status.as_u16(), second.is_replayed()), (201, false), "{second:?}");
    assert_eq!(stage.charges(), 1);
}

#[tokio::test]
async fn a_charge_whose_order_is_not_written_is_held() {
    let stage = Stage::new(Duration::from_secs(2)).await;
    let address = stage.address;
    let client = tokio::spawn(async move { send(address, &ada("k", 4900, "tok_visa")).await });
    until(|| stage.charges() == 1).await;
    let lock = lock_orders(stage.folder.path());
    assert_eq!(client.await.unwrap().status, 500);
    drop(lock);
    let second = stage.check_out("k", 4900, "tok_visa").await;
    assert!(second.text().contains("urn:semel:problem:outcome-unknown"), "{second:?}");
    assert_eq!(stage.charges(), 1);
}

#[tokio::test]
async fn an_unknown_outcome_is_held_and_a_later_attempt_looks_before_it_charges() {
    let stage = Stage::new(Duration::ZERO).await;
    assert_eq!(stage.check_out("k", 4900, "tok_silent").await.status, 504);
    for _ in 0..2 {
        stage.check_out("k", 4900, "tok_silent").await.assert_problem(423, "outcome-unknown");
    }
    assert_eq!(stage.charges(), 1);

    // An operator who did not look at the statement says that it did not happen.
    let store = stage.shop.semel().store();
    let caller = Caller::new("fn:ada").unwrap();
    let id = RecordId::new(Scope::new("checkouts").unwrap(), caller, Key::new("k").unwrap());
    let seen = store.get(&id).await.unwrap().unwrap();
    let resolved = store.resolve(&id, seen.fence, &Resolution::Released).await.unwrap();
    assert_eq!(resolved, Resolved::Applied);
    let answer = stage.check_out("k", 4900, "tok_silent").await;
    assert_eq!(answer.text(), r#"{"order":1,"cents":4900,"charge":"ch_1"}"#);
    assert_eq!(stage.charges(), 1);
}

#[tokio::test]
async fn another_order_is_refused_also_when_its_key_is_not_remembered_any_more() {
    let stage = Stage::new(Duration::ZERO).await;
    let first = stage.check_out("k", 4900, "tok_visa").await;
    let forget = async || {
        let store = stage.shop.semel().store();
        let caller = Caller::new("fn:ada").unwrap();
        let id = RecordId::new(Scope::new("checkouts").unwrap(), caller, Key::new("k").unwrap());
        let seen = store.get(&id).await.unwrap().unwrap();
        let forget = Resolution::Deleted(StateName::Completed);
        let forgotten = store.resolve(&id, seen.fence, &forget).await.unwrap();
        assert_eq!(forgotten, Resolved::Applied);
        // What the engine knows by heart it forgets within a second.
        sleep(Duration::from_millis(1100)).await;
    };
    forget().await;
    let other = stage.check_out("k", 5900, "tok_visa").await;
    assert_eq!(other.status, 422);
    // The document is the shop's own, not a problem of the layer.
    assert_eq!(other.json()["error"], "key-reused");
    forget().await;
    assert_eq!(stage.check_out("k", 4900, "tok_visa").await.body, first.body);
    assert_eq!(stage.charges(), 1);
}

#[tokio::test]
async fn a_body_that_is_no_checkout_charges_nothing() {
    let stage = Stage::new(Duration::ZERO).await;
    let headers = ["authorization: Bearer sk_ada", "idempotency-key: k"];
    let broken = request(&headers, 7, "\"");
    send(stage.address, &broken).await.assert_problem(400, "body-malformed");
    let other = request(&headers, 7, "tok_visa").replace("cents", "pence");
    let first = send(stage.address, &other).await;
    assert_eq!(first.status, 422);
    send(stage.address, &other).await.assert_replay_of(&first);
    assert_eq!(stage.charges(), 0);
}

#[tokio::test]
async fn a_shutdown_waits_for_a_checkout_whose_client_has_disconnected() {
    let stage = Stage::new(Duration::from_millis(600)).await;
    let mut client = TcpStream::connect(stage.address).await.unwrap();
    client.write_all(ada("k", 4900, "tok_visa").as_bytes()).await.unwrap();
    until(|| stage.charges() == 1).await;
    drop(client);
    stage.stop.send(()).unwrap();
    assert_eq!(stage.serving.await.unwrap().unwrap(), 0);
    assert_eq!(stage.shop.semel().in_flight(), 0);

    let merchants = Merchants::new([("sk_ada", "ada")]);
    let shop = Shop::open(stage.folder.path(), merchants, Duration::ZERO).unwrap();
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let address = listener.local_addr().unwrap();
    tokio::spawn(shop.serve(listener, std::future::pending()));
    let answer = send(address, &ada("k", 4900, "tok_visa")).await;
    assert_eq!((answer.status.as_u16(), answer.is_replayed()), (201, true), "{answer:?}");
    assert_eq!(statement(stage.folder.path()).len(), 1);
}

/// The program itself: asked to stop with two checkouts under way, one of whose clients is gone.
#[tokio::test]
async fn the_program_finishes_running_checkouts_and_replays_them_after_a_restart() {
    let folder = TempDir::new().unwrap();
    let mut command = Command::new(env!("CARGO_BIN_EXE_checkout"));
    command.arg(folder.path()).arg("127.0.0.1:0");

    let service = Service::start(&mut command);
    let mut gone = TcpStream::connect(service.address).await.unwrap();
    gone.write_all(ada("k1", 100, "tok_visa").as_bytes()).await.unwrap();
    until(|| statement(folder.path()).len() == 1).await;
    drop(gone);
    let address = service.address;
    let waits = tokio::spawn(async move { send(address, &ada("k2", 200, "tok_visa")).await });
    until(|| statement(folder.path()).len() == 2).await;
    service.terminate();
    let first = waits.await.unwrap();
    assert_eq!(first.status, 201);
    assert!(service.wait_for_success());

    let service = Service::start(&mut command);
    let gone = send(service.address, &ada("k1", 100, "tok_visa")).await;
    assert_eq!((gone.status.as_u16(), gone.is_replayed()), (201, true), "{gone:?}");
    send(service.address, &ada("k2", 200, "tok_visa")).await.assert_replay_of(&first);
    assert_eq!(statement(folder.path()).len(), 2);
}
