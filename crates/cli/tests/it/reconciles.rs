//! Held records whose upstream is asked what became of them.

use std::{
    collections::BTreeMap,
    net::SocketAddr,
    sync::{Arc, Mutex},
    time::Duration,
};

use semel::core::StateName;
use serde_json::{Value, json};
use tokio::{
    task::JoinSet,
    time::{Instant, sleep},
};

use crate::{
    common::{
        Client, ClientRequest, Gateway, ReceivedRequest, Reply, Setup, TEST_TIMEOUT, TestResponse,
        Upstream, charge, semel_command,
    },
    operators::reaches,
};

/// The charges of a service, in the order in which they were made.
#[derive(Clone, Default)]
struct Ledger(Arc<Mutex<Vec<Charge>>>);

#[derive(Clone, Debug)]
struct Charge {
    order: String,
    merchant: String,
    amount: Value,
}

impl Ledger {
    fn charge(&self, request: &ReceivedRequest) -> Value {
        let body: Value = serde_json::from_slice(&request.body).unwrap();
        let mut charges = self.0.lock().unwrap();
        let order = body["order"].as_str().unwrap().to_owned();
        let merchant = request.header("x-merchant").unwrap_or_default().to_owned();
        charges.push(Charge { order, merchant, amount: body["amount"].clone() });
        shown(charges.len(), charges.last().unwrap())
    }

    fn count(&self, order: &str) -> usize {
        self.0.lock().unwrap().iter().filter(|charge| charge.order == order).count()
    }

    /// `GET /charges?order=…`.
    fn list(&self, request: &ReceivedRequest) -> Reply {
        let order = request.path.split_once("order=").unwrap().1;
        let charges = self.0.lock().unwrap();
        let found = charges.iter().enumerate().filter(|(_, charge)| charge.order == order);
        let found: Vec<Value> = found.map(|(index, charge)| shown(index + 1, charge)).collect();
        Reply::new(200, json!({ "data": found }).to_string())
            .header("content-type", "application/json")
    }
}

fn shown(number: usize, charge: &Charge) -> Value {
    let Charge { order, merchant, amount } = charge;
    json!({ "id": format!("ch_{number}"), "order": order, "merchant": merchant, "amount": amount })
}

/// A service with this ledger. `act` handles a charge.
async fn service(
    ledger: &Ledger,
    act: impl Fn(&Ledger, &ReceivedRequest) -> Reply + Send + Sync + 'static,
) -> Upstream {
    service_at("127.0.0.1:0".parse().unwrap(), ledger, act).await
}

async fn service_at(
    address: SocketAddr,
    ledger: &Ledger,
    act: impl Fn(&Ledger, &ReceivedRequest) -> Reply + Send + Sync + 'static,
) -> Upstream {
    let ledger = ledger.clone();
    Upstream::at(address, move |request| match request.method.as_str() {
        "GET" => ledger.list(request),
        _ => act(&ledger, request),
    })
    .await
}

const CAPTURE: &str = "capture = { order = \"/order\", amount = \"/amount\" }";

/// What is read, besides when and what absence means.
const READ: &str = "get = \"/charges?order={order}\", completed = { present = \"/data/0\" }, \
                    absent = { or_missing = \"/data/0\" }, answer = \"/data/0\", \
                    answer_status = 201, match = { \"/data/0/amount\" = \"{amount}\" }";

fn setup(upstream: &Upstream, more: &str) -> Setup {
    let reconcile = format!("reconcile = {{ {READ}, every = \"200ms\", {more} }}");
    Setup::new(&upstream.url()).defaults(CAPTURE).defaults(reconcile)
}

fn order(key: &str) -> ClientRequest {
    charge(key, &format!(r#"{{"order":"o-{key}","amount":49.90}}"#))
}

async fn becomes(gateway: &Gateway, key: &str, state: StateName) {
    let end = Instant::now() + TEST_TIMEOUT;
    loop {
        let now = gateway.state(key).await;
        if now == Some(state) {
            return;
        }
        assert!(Instant::now() < end, "{key} is {now:?}: {:#?}", gateway.log_lines());
        sleep(Duration::from_millis(10)).await;
    }
}

/// Waits until the reads of a record have ended in this note.
async fn noted(gateway: &Gateway, key: &str, text: &str) {
    let end = Instant::now() + TEST_TIMEOUT;
    loop {
        let shown = inspect(gateway, key);
        if shown.contains(text) {
            return;
        }
        assert!(Instant::now() < end, "no {text:?} in {shown}");
        sleep(Duration::from_millis(50)).await;
    }
}

fn inspect(gateway: &Gateway, key: &str) -> String {
    let server = format!("http://{}", gateway.api());
    let output = semel_command().args(["inspect", key, "--server", &server]).output().unwrap();
    String::from_utf8_lossy(&output.stdout).into_owned()
}

fn posts(upstream: &Upstream, key: &str) -> usize {
    let runs = upstream.requests_with_key(key);
    runs.iter().filter(|request| request.method == "POST").count()
}

#[tokio::test]
async fn an_operation_that_is_found_is_recorded_and_replayed() {
    let ledger = Ledger::default();
    let upstream = service(&ledger, |ledger, request| {
        ledger.charge(request);
        match request.key() {
            "dies" => Reply::closed(),
            _ => Reply::new(500, "the answer was lost"),
        }
    })
    .await;
    let gateway = setup(&upstream, "give_up = \"1h\"").start().await;
    for (key, status) in [("fails", 500), ("dies", 504)] {
        let first = gateway.send(order(key)).await;
        assert_eq!(first.status.as_u16(), status);
        becomes(&gateway, key, StateName::Completed).await;
        for _ in 0..2 {
            let again = gateway.send(order(key)).await;
            assert_eq!(again.status.as_u16(), 201, "{again:?}");
            assert_eq!(again.json()["order"], format!("o-{key}"));
            assert_eq!(again.header("content-type"), Some("application/json"));
            assert_eq!(again.header("idempotency-reconciled"), Some("true"));
            assert!(again.is_replayed());
        }
        assert_eq!((posts(&upstream, key), ledger.count(&format!("o-{key}"))), (1, 1));
    }
    let event = |event| format!("semel_reconcile_total{{scope=\"default\",event=\"{event}\"}}");
    reaches(&gateway, &event("found"), 2).await;
    reaches(&gateway, &event("completed"), 2).await;
    // Beside the file of SQLite, or in the folder of the program.
    let names = ["semel.db.audit.jsonl", "semel.audit.jsonl"];
    let read = |name| std::fs::read_to_string(gateway.setup.folder().join(name)).ok();
    let audit = names.into_iter().find_map(read).unwrap();
    let lines: Vec<Value> = audit.lines().map(|it| serde_json::from_str(it).unwrap()).collect();
    let of = |result: &str| lines.iter().filter(|it| it["result"] == result).count();
    assert_eq!((of("intended"), of("applied")), (2, 2), "{audit}");
    assert!(lines[0]["why"].as_str().unwrap().starts_with("found at "), "{audit}");
    assert_eq!(lines[0]["answer"]["status"], 201);
    gateway.assert_clean_shutdown().await;
}

#[tokio::test]
async fn absence_alone_releases_nothing_and_ends_with_advice_not_to_retry() {
    let ledger = Ledger::default();
    let upstream = service(&ledger, |_, _| Reply::new(500, "rolled back")).await;
    let gateway = setup(&upstream, "give_up = \"2s\"").start().await;
    assert_eq!(gateway.send(order("k")).await.status.as_u16(), 500);
    noted(&gateway, "k", "absent at ").await;
    let held = gateway.send(order("k")).await;
    held.assert_problem(423, "outcome-unknown");
    assert_eq!(held.header("x-should-retry"), Some("true"));
    assert_eq!(held.header("retry-after"), Some("1"));
    let within: u64 = held.header("retry-after-ms").unwrap().parse().unwrap();
    assert!((100..=220).contains(&within), "{within}");
    noted(&gateway, "k", "given up; an operator decides: absent at ").await;
    let held = gateway.send(order("k")).await;
    held.assert_problem(423, "outcome-unknown");
    assert_eq!(held.header("x-should-retry"), Some("false"));
    let reads = upstream.request_count();
    // Only time can show that nothing more is read.
    sleep(Duration::from_millis(600)).await;
    assert_eq!(upstream.request_count(), reads);
    assert_eq!(gateway.state("k").await, Some(StateName::Held));
    assert_eq!(posts(&upstream, "k"), 1);
    gateway.assert_clean_shutdown().await;
}

/// A service that charges after this time, whether or not a client waits.
async fn late_service(ledger: &Ledger, late: Duration) -> Upstream {
    service(ledger, move |ledger, request| {
        if request.attempt() > 1 {
            let charge = ledger.charge(request);
            return Reply::new(201, charge.to_string());
        }
        let (ledger, request) = (ledger.clone(), request.clone());
        tokio::spawn(async move {
            sleep(late).await;
            ledger.charge(&request);
        });
        Reply::silent()
    })
    .await
}

#[tokio::test]
async fn an_operation_that_settles_within_the_declared_time_runs_once() {
    let ledger = Ledger::default();
    let upstream = late_service(&ledger, Duration::from_millis(1500)).await;
    let setup =
        setup(&upstream, "settles_within = \"4s\"").defaults("upstream_timeout = \"300ms\"");
    let gateway = setup.start().await;
    let first = gateway.send(order("k")).await;
    first.assert_problem(504, "upstream-timeout");
    assert_eq!(first.header("x-should-retry"), Some("true"));
    becomes(&gateway, "k", StateName::Completed).await;
    assert_eq!(gateway.send(order("k")).await.json()["id"], "ch_1");
    assert_eq!((posts(&upstream, "k"), ledger.count("o-k")), (1, 1));
    gateway.assert_clean_shutdown().await;
}

/// What `settles_within` declares is not checked, and cannot be: the damage of a wrong one.
#[tokio::test]
async fn a_declared_time_that_is_too_short_runs_an_operation_twice() {
    let ledger = Ledger::default();
    let upstream = late_service(&ledger, Duration::from_secs(3)).await;
    let setup =
        setup(&upstream, "settles_within = \"300ms\"").defaults("upstream_timeout = \"300ms\"");
    let gateway = setup.start().await;
    gateway.send(order("k")).await.assert_problem(504, "upstream-timeout");
    becomes(&gateway, "k", StateName::Released).await;
    assert_eq!(gateway.send(order("k")).await.status.as_u16(), 201);
    let end = Instant::now() + TEST_TIMEOUT;
    while ledger.count("o-k") < 2 {
        assert!(Instant::now() < end, "the first attempt never took effect");
        sleep(Duration::from_millis(10)).await;
    }
    gateway.assert_clean_shutdown().await;
}

#[tokio::test]
async fn two_operations_are_left_to_an_operator() {
    let ledger = Ledger::default();
    let upstream = service(&ledger, |ledger, request| {
        ledger.charge(request);
        ledger.charge(request);
        Reply::new(500, "lost")
    })
    .await;
    let gateway = setup(&upstream, "settles_within = \"300ms\"").start().await;
    gateway.send(order("k")).await;
    noted(&gateway, "k", "two found; an operator decides").await;
    let held = gateway.send(order("k")).await;
    held.assert_problem(423, "outcome-unknown");
    assert_eq!(held.header("x-should-retry"), Some("false"));
    reaches(&gateway, "semel_reconcile_total{scope=\"default\",event=\"stopped-at-two\"}", 1).await;
    gateway.assert_clean_shutdown().await;
}

#[tokio::test]
async fn the_operation_of_another_caller_is_not_taken() {
    let ledger = Ledger::default();
    let upstream = service(&ledger, |ledger, request| match request.key() {
        "theirs" => Reply::new(201, ledger.charge(request).to_string()),
        _ => Reply::new(500, "refused"),
    })
    .await;
    let read = READ.replace("match = {", "match = { \"/data/0/merchant\" = \"{caller}\",");
    let setup = Setup::new(&upstream.url())
        .defaults("caller = [{ header = \"X-Merchant\" }]")
        .defaults(CAPTURE)
        .defaults(format!("reconcile = {{ {read}, every = \"200ms\" }}"));
    let gateway = setup.start().await;
    let of = |merchant: &str, key: &str| {
        let mut request = charge(key, r#"{"order":"o-7","amount":49.90}"#);
        request.headers_mut().insert("x-merchant", merchant.parse().unwrap());
        request
    };
    assert_eq!(gateway.send(of("theirs", "theirs")).await.status.as_u16(), 201);
    // The same order and amount, of another merchant.
    assert_eq!(gateway.send(of("ours", "ours")).await.status.as_u16(), 500);
    noted(&gateway, "ours", "another operation found (/data/0/merchant differs)").await;
    assert_eq!(gateway.state("ours").await, Some(StateName::Held));
    gateway.assert_clean_shutdown().await;
}

/// A service that refuses every attempt with a lower fence than one that it has seen.
async fn fencing_service(ledger: &Ledger, late: Duration) -> Upstream {
    let (ledger, fences) = (ledger.clone(), Arc::<Mutex<BTreeMap<String, u64>>>::default());
    let raise = move |request: &ReceivedRequest| {
        let mut fences = fences.lock().unwrap();
        let known = fences.entry(request.key().to_owned()).or_default();
        let is_current = request.fence() >= *known;
        *known = (*known).max(request.fence());
        is_current
    };
    Upstream::start(move |request| {
        if request.method == "GET" {
            raise(request);
            return ledger.list(request);
        }
        if request.attempt() > 1 {
            assert!(raise(request), "a new attempt has a higher fence than the read");
            return Reply::new(201, ledger.charge(request).to_string());
        }
        let (ledger, raise, request) = (ledger.clone(), raise.clone(), request.clone());
        tokio::spawn(async move {
            sleep(late).await;
            if raise(&request) {
                ledger.charge(&request);
            }
        });
        Reply::silent()
    })
    .await
}

#[tokio::test]
async fn a_fenced_read_keeps_a_late_attempt_from_taking_effect() {
    let ledger = Ledger::default();
    let late = Duration::from_secs(3);
    let upstream = fencing_service(&ledger, late).await;
    let setup = setup(&upstream, "fenced = true").defaults("upstream_timeout = \"300ms\"");
    let gateway = setup.start().await;
    let begun = Instant::now();
    gateway.send(order("k")).await.assert_problem(504, "upstream-timeout");
    becomes(&gateway, "k", StateName::Released).await;
    assert!(begun.elapsed() < late, "it was released before the late attempt");
    assert_eq!(gateway.send(order("k")).await.status.as_u16(), 201);
    // Only time can show that the first attempt has no effect.
    tokio::time::sleep_until(begun + late + Duration::from_millis(500)).await;
    assert_eq!((posts(&upstream, "k"), ledger.count("o-k")), (2, 1));
    gateway.assert_clean_shutdown().await;
}

/// What a service does with the first attempt of a charge. Later ones are charged.
fn unreliable(ledger: &Ledger, request: &ReceivedRequest) -> Reply {
    let number: u64 = request.key().rsplit('-').next().unwrap().parse().unwrap();
    let charged = |ledger: &Ledger| Reply::new(201, ledger.charge(request).to_string());
    if request.attempt() > 1 {
        return charged(ledger);
    }
    match number % 6 {
        0 => charged(ledger),
        1 => {
            ledger.charge(request);
            Reply::new(500, "the answer was lost")
        }
        2 => Reply::new(500, "rolled back"),
        3 => {
            ledger.charge(request);
            Reply::closed()
        }
        4 => {
            let (ledger, request) = (ledger.clone(), request.clone());
            tokio::spawn(async move {
                sleep(Duration::from_millis(number * 37 % 1500)).await;
                ledger.charge(&request);
            });
            Reply::silent()
        }
        _ => Reply::reset(),
    }
}

/// Sends an order until it has its answer, to whichever gateway runs.
async fn order_until_answered(address: Arc<Mutex<SocketAddr>>, key: String) -> TestResponse {
    let end = Instant::now() + TEST_TIMEOUT * 4;
    loop {
        let at = *address.lock().unwrap();
        if let Ok(mut client) = Client::try_connect(at).await
            && let Ok(answer) = client.try_send(order(&key)).await
            && answer.status.as_u16() == 201
        {
            return answer;
        }
        assert!(Instant::now() < end, "{key} never got its answer");
        sleep(Duration::from_millis(100)).await;
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn torture_every_order_is_charged_once_through_kills_of_gateway_and_service() {
    let (orders, kills) = if semel_testkit::torture() { (1200, 40) } else { (48, 3) };
    let ledger = Ledger::default();
    let mut upstream = service(&ledger, unreliable).await;
    let setup = setup(&upstream, "settles_within = \"3s\"")
        .on_disk()
        .defaults("upstream_timeout = \"500ms\"\nlease = \"1s\"\nwait = \"0s\"");
    let mut gateway = setup.start().await;
    let address = Arc::new(Mutex::new(gateway.address()));
    let mut clients = JoinSet::new();
    for number in 0..orders {
        let (address, key) = (Arc::clone(&address), format!("k-{number}"));
        clients.spawn(async move {
            sleep(Duration::from_millis(number * 31 % 3000)).await;
            (key.clone(), order_until_answered(address, key).await)
        });
    }
    for _ in 0..kills {
        sleep(Duration::from_millis(1200)).await;
        gateway.kill();
        gateway = setup.start().await;
        *address.lock().unwrap() = gateway.address();
        sleep(Duration::from_millis(400)).await;
        let at = upstream.stop().await;
        upstream = service_at(at, &ledger, unreliable).await;
    }
    while let Some(answered) = clients.join_next().await {
        let (key, answer) = answered.unwrap();
        assert_eq!(answer.json()["order"], format!("o-{key}"));
        assert_eq!(ledger.count(&format!("o-{key}")), 1, "{key} was not charged once");
    }
    for record in gateway.records().await {
        let expected = match record.id.scope.as_str() {
            "default" => StateName::Completed,
            _ => continue,
        };
        assert_eq!(record.state, expected, "{record:?}");
    }
    gateway.assert_clean_shutdown().await;
}

#[tokio::test]
async fn a_reload_changes_what_is_read() {
    let ledger = Ledger::default();
    let upstream = service(&ledger, |_, _| Reply::new(500, "rolled back")).await;
    let base = setup(&upstream, "give_up = \"1h\"");
    let gateway = base.start().await;
    gateway.send(order("k")).await;
    noted(&gateway, "k", "absent at ").await;
    let changed = base.text().replace("give_up = \"1h\"", "settles_within = \"300ms\"");
    std::fs::write(base.file(), changed).unwrap();
    crate::reloads::reload(&gateway).await;
    becomes(&gateway, "k", StateName::Released).await;
    gateway.assert_clean_shutdown().await;
}
