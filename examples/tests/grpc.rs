//! A transfer moves money once per key, over real connections.
#![allow(clippy::unwrap_used, clippy::panic, reason = "a test reports by panicking")]

mod support;

use std::{
    net::SocketAddr,
    process::Command,
    sync::{
        Arc,
        atomic::{AtomicU32, Ordering},
    },
    time::Duration,
};

use http::{HeaderMap, Uri};
use http_body_util::BodyExt as _;
use prost::Message as _;
use rusqlite::Connection;
use semel::core::{Caller, Key, RecordId, Scope};
use semel_examples::grpc::{
    Account, AccountsError, BalancesClient, Bank, Receipt, Transfer, Transfers, TransfersClient,
    TransfersServer,
};
use semel_tower::Secret;
use support::Service;
use tempfile::TempDir;
use tokio::{
    net::TcpListener,
    sync::oneshot,
    task::{JoinHandle, JoinSet},
    time::sleep,
};
use tonic::{
    Code, Request, Response, Status, async_trait,
    body::Body,
    transport::{Channel, Endpoint, Server, server::TcpIncoming},
};
use tower_service::Service as _;

const SECRET: &str = "9f86d081884c7d659a2feaa0c55ad015";

/// A bank that serves in this process, where Ada has 1000 cents and Grace has none.
struct Stage {
    folder: TempDir,
    bank: Bank,
    channel: Channel,
    stop: oneshot::Sender<()>,
    serving: JoinHandle<anyhow::Result<usize>>,
}

impl Stage {
    async fn new() -> Self {
        let folder = TempDir::new().unwrap();
        let bank = Bank::open(folder.path()).unwrap();
        bank.accounts().deposit("ada", 1000).await.unwrap();
        bank.accounts().deposit("grace", 0).await.unwrap();
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let channel = connect(listener.local_addr().unwrap()).await;
        let (stop, stopped) = oneshot::channel();
        let serving = tokio::spawn({
            let bank = bank.clone();
            async move {
                let secret = Secret::new(SECRET)?;
                let stop = async {
                    let _ = stopped.await;
                };
                bank.serve(listener, &secret, stop).await
            }
        });
        Self { folder, bank, channel, stop, serving }
    }

    async fn transfer(&self, key: &str, cents: u32) -> Result<Response<Receipt>, Status> {
        TransfersClient::new(self.channel.clone()).transfer(request(key, "ada", cents)).await
    }

    /// The same, as it is on the wire.
    async fn raw(&self, key: &str, cents: u32) -> Raw {
        raw(self.channel.clone(), key, &order("ada", cents)).await
    }

    async fn balance(&self, name: &str) -> i64 {
        self.bank.accounts().balance(name).await.unwrap()
    }
}

async fn connect(to: SocketAddr) -> Channel {
    Endpoint::from_shared(format!("http://{to}")).unwrap().connect().await.unwrap()
}

fn order(from: &str, cents: u32) -> Transfer {
    Transfer { from: from.to_owned(), to: "grace".to_owned(), cents }
}

fn request(key: &str, from: &str, cents: u32) -> Request<Transfer> {
    let mut request = Request::new(order(from, cents));
    request.metadata_mut().insert("authorization", "Bearer sk_ada".parse().unwrap());
    request.metadata_mut().insert("idempotency-key", key.parse().unwrap());
    request
}

fn problem(status: &Status) -> &str {
    status.metadata().get("idempotency-problem").unwrap().to_str().unwrap()
}

fn is_replayed(answer: &Response<Receipt>) -> bool {
    answer.metadata().get("idempotent-replayed").is_some_and(|value| value == "true")
}

/// An answer as it came, less what belongs to one moment.
#[derive(Clone, Debug, PartialEq)]
struct Raw {
    replayed: bool,
    headers: HeaderMap,
    data: Vec<u8>,
    trailers: Option<HeaderMap>,
}

impl Raw {
    /// The answer that a repeat must get.
    fn again(&self) -> Self {
        assert!(!self.replayed, "{self:?}");
        Self { replayed: true, ..self.clone() }
    }
}

async fn raw(mut channel: Channel, key: &str, order: &Transfer) -> Raw {
    let message = order.encode_to_vec();
    let mut framed = vec![0];
    framed.extend(u32::try_from(message.len()).unwrap().to_be_bytes());
    framed.extend(message);
    let request = http::Request::post(Uri::from_static("http://bank/bank.Transfers/Transfer"))
        .header("content-type", "application/grpc")
        .header("te", "trailers")
        .header("authorization", "Bearer sk_ada")
        .header("idempotency-key", key)
        .body(Body::new(http_body_util::Full::from(framed)))
        .unwrap();
    std::future::poll_fn(|context| channel.poll_ready(context)).await.unwrap();
    let (mut parts, body) = channel.call(request).await.unwrap().into_parts();
    let body = body.collect().await.unwrap();
    // Computed for each answer.
    for name in ["date", "idempotency-expires"] {
        parts.headers.remove(name);
    }
    let replayed = parts.headers.remove("idempotent-replayed").is_some();
    let trailers = body.trailers().cloned();
    Raw { replayed, headers: parts.headers, data: body.to_bytes().to_vec(), trailers }
}

#[tokio::test]
async fn a_repeat_gets_the_first_answer_and_its_trailers() {
    let stage = Stage::new().await;
    let first = stage.raw("k", 100).await;
    assert_eq!(first.headers["content-type"], "application/grpc");
    assert_eq!(first.trailers.as_ref().unwrap()["grpc-status"], "0");
    let receipt = Receipt::decode(&first.data[5..]).unwrap();
    assert_eq!(receipt, Receipt { number: 1, left_cents: 900 });
    assert_eq!(stage.raw("k", 100).await, first.again());

    // And so does a client that does not look at bytes.
    let again = stage.transfer("k", 100).await.unwrap();
    assert!(is_replayed(&again));
    assert_eq!(again.into_inner(), receipt);
    assert_eq!((stage.balance("ada").await, stage.balance("grace").await), (900, 100));
}

#[tokio::test]
async fn twenty_at_once_move_money_once() {
    let stage = Stage::new().await;
    let mut clients = JoinSet::new();
    for _ in 0..20 {
        let mut client = TransfersClient::new(stage.channel.clone());
        clients.spawn(async move { client.transfer(request("k", "ada", 100)).await });
    }
    for answer in clients.join_all().await {
        assert_eq!(answer.unwrap().into_inner(), Receipt { number: 1, left_cents: 900 });
    }
    assert_eq!((stage.balance("ada").await, stage.balance("grace").await), (900, 100));
}

#[tokio::test]
async fn a_key_is_for_one_transfer_of_one_caller() {
    let stage = Stage::new().await;
    stage.transfer("k", 100).await.unwrap();
    let status = stage.transfer("k", 200).await.unwrap_err();
    assert_eq!((status.code(), problem(&status)), (Code::FailedPrecondition, "key-reused"));
    assert_eq!(stage.balance("ada").await, 900);

    let mut other = request("k", "ada", 200);
    other.metadata_mut().insert("authorization", "Bearer sk_bob".parse().unwrap());
    let receipt = TransfersClient::new(stage.channel.clone()).transfer(other).await.unwrap();
    assert_eq!(receipt.into_inner(), Receipt { number: 2, left_cents: 700 });
}

#[tokio::test]
async fn a_call_without_a_key_or_a_name_is_refused() {
    let stage = Stage::new().await;
    let mut client = TransfersClient::new(stage.channel.clone());
    for (absent, code, slug) in [
        ("idempotency-key", Code::InvalidArgument, "key-missing"),
        ("authorization", Code::PermissionDenied, "caller-unidentified"),
    ] {
        let mut request = request("k", "ada", 100);
        request.metadata_mut().remove(absent);
        let status = client.transfer(request).await.unwrap_err();
        assert_eq!((status.code(), problem(&status)), (code, slug));
        assert!(!status.message().is_empty());
    }
    assert_eq!(stage.balance("ada").await, 1000);

    // What is not guarded needs neither.
    let account = Account { name: "ada".to_owned() };
    let balance = BalancesClient::new(stage.channel.clone()).get(account).await.unwrap();
    assert_eq!(balance.into_inner().cents, 1000);
}

#[tokio::test]
async fn a_final_refusal_is_replayed() {
    let stage = Stage::new().await;
    let first = stage.raw("k", 2000).await;
    assert_eq!(first.headers["grpc-status"], "9");
    assert_eq!(first.headers["grpc-message"], "the%20account%20ada%20has%20only%201000%20cents");
    // Though it would succeed by now.
    stage.bank.accounts().deposit("ada", 2000).await.unwrap();
    assert_eq!(stage.raw("k", 2000).await, first.again());
    let status = stage.transfer("k", 2000).await.unwrap_err();
    assert_eq!(status.code(), Code::FailedPrecondition);
    assert_eq!(status.message(), "the account ada has only 1000 cents");
    assert_eq!(stage.balance("ada").await, 3000);

    let mut client = TransfersClient::new(stage.channel.clone());
    for _ in 0..2 {
        let status = client.transfer(request("k2", "eve", 1)).await.unwrap_err();
        assert_eq!(status.code(), Code::NotFound);
    }
}

#[tokio::test]
async fn a_transfer_that_found_the_bank_busy_runs_again() {
    let stage = Stage::new().await;
    let clerk = Connection::open(stage.folder.path().join("bank.db")).unwrap();
    clerk.execute_batch("BEGIN IMMEDIATE").unwrap();
    let status = stage.transfer("k", 100).await.unwrap_err();
    assert_eq!(status.code(), Code::Unavailable, "{status:?}");
    clerk.execute_batch("ROLLBACK").unwrap();

    let second = stage.transfer("k", 100).await.unwrap();
    assert!(!is_replayed(&second));
    assert!(is_replayed(&stage.transfer("k", 100).await.unwrap()));
    assert_eq!(stage.balance("ada").await, 900);
}

#[tokio::test]
async fn an_unknown_outcome_runs_again_because_the_accounts_know_the_key() {
    let stage = Stage::new().await;
    let clerk = Connection::open(stage.folder.path().join("bank.db")).unwrap();
    clerk.execute_batch("ALTER TABLE transfers RENAME TO mislaid").unwrap();
    let status = stage.transfer("k", 100).await.unwrap_err();
    assert_eq!(status.code(), Code::Unknown, "{status:?}");
    clerk.execute_batch("ALTER TABLE mislaid RENAME TO transfers").unwrap();
    let receipt = stage.transfer("k", 100).await.unwrap();
    assert!(!is_replayed(&receipt));

    // A second run of one operation, as after a crash between the transfer and its record.
    let (caller, key) = (Caller::new("ada").unwrap(), Key::new("k").unwrap());
    let id = RecordId::new(Scope::new("transfers").unwrap(), caller, key);
    let accounts = stage.bank.accounts();
    let first = accounts.transfer(&id, order("ada", 100)).await.unwrap();
    assert_eq!(accounts.transfer(&id, order("ada", 100)).await.unwrap(), first);
    assert_eq!(first, Receipt { number: 2, left_cents: 800 });
    assert_eq!(stage.balance("ada").await, 800);

    // Another order under the same key, after the layer has forgotten the first.
    let other = accounts.transfer(&id, order("ada", 200)).await.unwrap_err();
    assert!(matches!(other, AccountsError::KeyReused), "{other}");
    assert_eq!(Status::from(other).code(), Code::FailedPrecondition);
    assert_eq!(stage.balance("ada").await, 800);
}

#[tokio::test]
async fn a_transfer_goes_on_when_the_deadline_of_its_client_has_passed() {
    let stage = Stage::new().await;
    let clerk = Connection::open(stage.folder.path().join("bank.db")).unwrap();
    clerk.execute_batch("BEGIN IMMEDIATE").unwrap();
    let mut hurried = request("k", "ada", 100);
    hurried.set_timeout(Duration::from_millis(200));
    let mut client = TransfersClient::new(stage.channel.clone());
    let status = client.transfer(hurried).await.unwrap_err();
    assert!(matches!(status.code(), Code::DeadlineExceeded | Code::Cancelled), "{status:?}");
    clerk.execute_batch("ROLLBACK").unwrap();

    // Joined or replayed, as it comes: it ran once.
    let receipt = stage.transfer("k", 100).await.unwrap().into_inner();
    assert_eq!(receipt, Receipt { number: 1, left_cents: 900 });
    assert_eq!(stage.balance("ada").await, 900);
}

#[tokio::test]
async fn a_stop_waits_for_a_transfer_whose_client_has_gone() {
    let stage = Stage::new().await;
    let clerk = Connection::open(stage.folder.path().join("bank.db")).unwrap();
    clerk.execute_batch("BEGIN IMMEDIATE").unwrap();
    let mut client = TransfersClient::new(stage.channel);
    let gone = tokio::spawn(async move { client.transfer(request("k", "ada", 100)).await });
    while stage.bank.semel().in_flight() == 0 {
        sleep(Duration::from_millis(2)).await;
    }
    gone.abort();
    stage.stop.send(()).unwrap();
    // Real time must pass: a shutdown that does not wait has ended by then.
    sleep(Duration::from_millis(200)).await;
    assert!(!stage.serving.is_finished(), "a transfer still runs");
    clerk.execute_batch("ROLLBACK").unwrap();
    assert_eq!(stage.serving.await.unwrap().unwrap(), 0);
    assert_eq!(stage.bank.accounts().balance("ada").await.unwrap(), 900);
}

/// Counts its runs. (The accounts would hide a second one: they know the key themselves.)
struct Counted {
    bank: Bank,
    runs: Arc<AtomicU32>,
}

#[async_trait]
impl Transfers for Counted {
    async fn transfer(&self, request: Request<Transfer>) -> Result<Response<Receipt>, Status> {
        self.runs.fetch_add(1, Ordering::SeqCst);
        sleep(Duration::from_millis(100)).await;
        self.bank.transfer(request).await
    }
}

#[tokio::test]
async fn a_layer_around_a_whole_server_runs_each_call_once_too() {
    let stage = Stage::new().await;
    let layer = stage.bank.idempotency(&Secret::new(SECRET).unwrap()).unwrap();
    let runs = Arc::new(AtomicU32::new(0));
    let counted = Counted { bank: stage.bank.clone(), runs: Arc::clone(&runs) };
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let channel = connect(listener.local_addr().unwrap()).await;
    tokio::spawn(
        Server::builder()
            .layer(layer)
            .add_service(TransfersServer::new(counted))
            .serve_with_incoming(TcpIncoming::from(listener)),
    );
    for (runs_then, key, cents) in [(1, "k1", 100), (2, "k2", 5000)] {
        let mut clients = JoinSet::new();
        for _ in 0..20 {
            let channel = channel.clone();
            clients.spawn(async move { raw(channel, key, &order("ada", cents)).await });
        }
        let answers = clients.join_all().await;
        let first = Raw { replayed: false, ..answers[0].clone() };
        for answer in &answers {
            assert_eq!(Raw { replayed: false, ..answer.clone() }, first);
        }
        assert_eq!(raw(channel.clone(), key, &order("ada", cents)).await, first.again());
        assert_eq!(runs.load(Ordering::SeqCst), runs_then);
    }
    assert_eq!(stage.balance("ada").await, 900);
}

/// The program itself, both sides of it.
#[test]
fn the_program_moves_money_once_and_remembers_it() {
    let folder = TempDir::new().unwrap();
    let program = || Command::new(env!("CARGO_BIN_EXE_grpc"));
    let mut serve = program();
    serve.arg("serve").arg(folder.path()).arg("127.0.0.1:0").env("BANK_SECRET", SECRET);
    let ask = |service: &Service, words: &[&str]| {
        let url = format!("http://{}", service.address);
        let output = program().arg(words[0]).arg(url).args(&words[1..]).output().unwrap();
        let printed = if output.status.success() { output.stdout } else { output.stderr };
        // An error may be followed by a backtrace.
        String::from_utf8(printed).unwrap().lines().next().unwrap().to_owned()
    };

    let service = Service::start(&mut serve);
    let transfer = ["transfer", "k1", "ada", "grace", "100"];
    assert_eq!(ask(&service, &transfer), "transfer 1, 9900 cents left");
    assert_eq!(ask(&service, &transfer), "transfer 1, 9900 cents left (replayed)");
    let more = ["transfer", "k1", "ada", "grace", "200"];
    assert_eq!(ask(&service, &more), "Error: FailedPrecondition, key-reused");
    let much = ["transfer", "k2", "ada", "grace", "1000000"];
    let poor = "Error: FailedPrecondition: the account ada has only 9900 cents";
    assert_eq!(ask(&service, &much), poor);
    service.terminate();
    assert!(service.wait_for_success());

    let service = Service::start(&mut serve);
    assert_eq!(ask(&service, &transfer), "transfer 1, 9900 cents left (replayed)");
    assert_eq!(ask(&service, &much), poor);
    assert_eq!(ask(&service, &["balance", "grace"]), "10100 cents");
}
