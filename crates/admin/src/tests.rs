//! The listener over a real socket.

use std::{
    net::SocketAddr,
    sync::atomic::{AtomicU32, Ordering},
    time::Duration,
};

use bytes::Bytes;
use http_body_util::Full;
use hyper_util::rt::TokioIo;
use semel::{
    MemoryStore, Semel,
    core::{
        About, Claim, Claimant, Claimed, Fence, Fingerprint, Finish, Grant, NodeName, OwnerToken,
        Reason, RecordId, Snapshot, StateView, Store, StoredResponse,
    },
};
use semel_config::{BearerToken, Config, Overrides, TokenSource, TrustedHeader};
use semel_telemetry::{EngineObserver, log_throttle::LogThrottle, metrics::Metrics};
use semel_testkit::{
    flaky_store::{FlakyStore, StoreCall, StoreCondition},
    http::TestResponse,
};
use serde_json::{Value, json};
use tempfile::TempDir;
use tokio::{
    io::{AsyncReadExt as _, AsyncWriteExt as _},
    net::{TcpListener, TcpStream},
    sync::{oneshot, watch},
};

use self::harness::{TestApi, secret_in};
use super::*;
use crate::audit::AuditLog;

const TOKEN: &str = "an-operators-token";
const OWNER: OwnerToken = OwnerToken::from_bytes([1; 16]);

/// The paths of actions.
const ACTS: [&str; 5] =
    ["/v1/resolve", "/v1/resolve-many", "/v1/delete", "/v1/sweep", "/v1/reload"];

fn id(key: &str) -> RecordId {
    requests::record_id("payments", "shop-7", key).unwrap()
}

fn target(key: &str, fence: u64) -> Value {
    json!({
        "scope": "payments", "caller": "shop-7", "key": key, "state": "held", "fence": fence,
        "why": "the bank says so", "who": "zoe",
    })
}

/// Waits for something that comes soon.
async fn until(condition: impl Fn() -> bool) {
    let soon = async {
        while !condition() {
            tokio::time::sleep(Duration::from_millis(5)).await;
        }
    };
    tokio::time::timeout(Duration::from_secs(60), soon).await.unwrap();
}

fn with(mut request: Value, more: Value) -> Value {
    let (Value::Object(fields), Value::Object(more)) = (&mut request, more) else { panic!() };
    fields.extend(more);
    request
}

#[tokio::test]
async fn a_draining_server_is_healthy_but_not_ready() {
    let api = TestApi::new(None).await;
    for (path, body) in [("/healthz", "ok\n"), ("/readyz", "ready\n")] {
        let answer = api.get(path).await;
        assert_eq!((answer.status.as_u16(), answer.text()), (200, body));
    }
    api.draining.send_replace(true);
    assert_eq!(api.get("/healthz").await.status, 200);
    api.get("/readyz").await.assert_api_problem(503, "draining");
}

#[tokio::test]
async fn idle_clients_cannot_block_new_connections() {
    let api = TestApi::new(None).await;
    let mut rude = Vec::new();
    for _ in 0..listen::CONNECTIONS_MAX {
        let (reader, mut writer) = TcpStream::connect(api.address).await.unwrap().into_split();
        // More answers than all buffers hold, and the client reads none.
        let requests = "GET /metrics HTTP/1.1\r\nhost: localhost\r\n\r\n".repeat(3000);
        let writing = tokio::spawn(async move { writer.write_all(requests.as_bytes()).await });
        rude.push((reader, writing));
    }
    let asked = tokio::time::timeout(Duration::from_secs(60), api.get("/healthz"));
    assert_eq!(asked.await.unwrap().status, 200);
}

#[tokio::test(start_paused = true)]
async fn a_call_outlives_the_age_of_its_connection() {
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let address = listener.local_addr().unwrap();
    let client = TcpStream::connect(address).await.unwrap();
    let (stream, peer) = listener.accept().await.unwrap();
    // As long as a claim that waits.
    let slow = || async { tokio::time::sleep(Duration::from_secs(80)).await };
    let router = Router::new().route("/v1/claims", get(slow));
    let access_check = access::AccessCheck::new(address, false);
    let state = listen::ConnectionState { router, access_check, peer, is_busy: Arc::default() };
    let (_end, ended) = watch::channel(());
    tokio::spawn(listen::serve_connection(stream.into_std().unwrap(), state, ended));
    let (mut sender, connection) =
        hyper::client::conn::http1::handshake(TokioIo::new(client)).await.unwrap();
    tokio::spawn(connection);
    // The last one begins before the connection is 600 s old, and ends after that.
    for call in 1..=8 {
        let request = http::Request::get("/v1/claims").header("host", "localhost");
        sender.ready().await.unwrap();
        let answer = sender.send_request(request.body(Full::<Bytes>::default()).unwrap()).await;
        assert_eq!(answer.unwrap().status(), 200, "call {call}");
    }
    sender.ready().await.unwrap_err();
}

#[tokio::test]
async fn requests_with_a_wrong_token_are_counted() {
    let api = TestApi::new(Some(TOKEN)).await;
    api.held("k").await;
    let record = "/v1/record?scope=payments&caller=shop-7&key=k";
    let requests = [
        http::Request::post("/v1/resolve").header("host", "localhost"),
        http::Request::post("/v1/sweep")
            .header("host", "localhost")
            .header("authorization", "Bearer another-token-here"),
        http::Request::get(record)
            .header("host", "localhost")
            .header("authorization", "Bearer another-token-here"),
    ];
    for request in requests {
        api.ask(request.body(Full::default()).unwrap()).await;
    }
    // These asked for nothing that is not theirs.
    api.get(record).await;
    api.get_as_operator(record).await;
    let metrics = api.get("/metrics").await;
    let text = metrics.text();
    assert!(text.contains("\nsemel_api_auth_failures_total 3\n"), "{text}");
}

#[tokio::test]
async fn a_foreign_host_is_not_served_by_this_machine() {
    let api = TestApi::new(None).await;
    for path in ["/v1/records", "/metrics"] {
        let request = http::Request::get(path).header("host", "evil.example:8081");
        let answer = api.ask(request.body(Full::default()).unwrap()).await;
        answer.assert_api_problem(421, "host-not-local");
    }
}

#[tokio::test]
async fn without_a_token_other_machines_see_no_records() {
    for (token, status) in [(None, 403), (Some(TOKEN), 200)] {
        let listener = TcpListener::bind("0.0.0.0:0").await.unwrap();
        let api = TestApi::at(listener, MemoryStore::new(), token);
        api.held("k").await;
        assert_eq!(api.get("/v1/records").await.status, status);
        assert_eq!(api.get("/v1/record?scope=payments&caller=shop-7&key=k").await.status, status);
        assert_eq!(api.get("/healthz").await.status, 200);
        assert_eq!(api.get("/metrics").await.status, 200);
    }
}

#[tokio::test]
async fn without_its_store_a_server_is_alive_but_not_ready() {
    let store = FlakyStore::new(MemoryStore::new());
    let api = TestApi::on(store.clone(), None).await;
    for weather in [StoreCondition::Unavailable, StoreCondition::Hanging] {
        store.set_all(weather);
        assert_eq!(api.get("/healthz").await.status, 200);
        api.get("/readyz").await.assert_api_problem(503, "store-unavailable");
    }
    store.set_all(StoreCondition::Unavailable);
    api.get("/v1/records").await.assert_api_problem(503, "store-unavailable");
    store.set_all(StoreCondition::Available);
    assert_eq!(api.get("/readyz").await.status, 200);
}

#[tokio::test]
async fn an_action_continues_when_its_client_disconnects() {
    let store = FlakyStore::new(MemoryStore::new());
    let api = TestApi::on(store.clone(), Some(TOKEN)).await;
    let fence = api.held("k").await.get();
    store.set(StoreCall::Other, StoreCondition::Hanging);
    let request = with(target("k", fence), json!({ "to": "released" })).to_string();
    let mut stream = TcpStream::connect(api.address).await.unwrap();
    let head = format!(
        "POST /v1/resolve HTTP/1.1\r\nhost: 127.0.0.1\r\nauthorization: Bearer {TOKEN}\r\n\
         content-type: application/json\r\ncontent-length: {}\r\n\r\n",
        request.len()
    );
    let begun = store.count(StoreCall::Other);
    stream.write_all((head + &request).as_bytes()).await.unwrap();
    until(|| api.audit().contains("intended") && store.count(StoreCall::Other) > begun).await;
    drop(stream);
    // Real time must pass: the server has read the end of the connection, and shows it nowhere.
    tokio::time::sleep(Duration::from_millis(50)).await;
    store.set_all(StoreCondition::Available);
    until(|| api.audit().contains("applied")).await;
    assert!(matches!(api.seen("k").await.unwrap().state, StateView::Released { .. }));
}

#[tokio::test]
async fn metrics_are_in_the_format_that_is_accepted() {
    let api = TestApi::new(None).await;
    let answer = api.get("/metrics").await;
    assert_eq!(answer.status, 200);
    assert_eq!(answer.header("content-type"), Some("text/plain; version=0.0.4; charset=utf-8"));
    let text = answer.text();
    assert!(text.contains("\n# TYPE semel_lapsed_total counter\n"), "{text}");
    assert!(text.contains("\nsemel_in_flight 0\n") && !text.contains("# EOF"), "{text}");
    let accept = "application/openmetrics-text;version=1.0.0,*/*;q=0.1";
    let request = http::Request::get("/metrics").header("host", "localhost");
    let request = request.header("accept", accept).body(Full::default()).unwrap();
    let answer = api.ask(request).await;
    let kind = answer.header("content-type").unwrap();
    assert!(kind.starts_with("application/openmetrics-text; version=1.0.0"), "{kind}");
    let text = answer.text();
    assert!(text.contains("\n# TYPE semel_lapsed counter\n"), "{text}");
    assert!(text.contains("\nsemel_in_flight 0\n") && text.ends_with("# EOF\n"), "{text}");
}

#[tokio::test]
async fn unknown_paths_get_a_problem_document() {
    let api = TestApi::new(Some(TOKEN)).await;
    api.get("/nothing").await.assert_api_problem(404, "not-found");
    api.get("/v1/resolve").await.assert_api_problem(405, "method-not-allowed");
    api.post("/v1/records", json!({})).await.assert_api_problem(405, "method-not-allowed");
    for query in [
        "?state=gone",
        "?limit=x",
        "?nothing=1",
        "?since=5",
        "?until=yesterday",
        "?since=1h&until=2h",
        "?scope=A",
        "?key=",
        "?caller=%0A",
        "?reason=",
        "?lapsed=perhaps",
    ] {
        api.get(&format!("/v1/records{query}")).await.assert_api_problem(400, "request-malformed");
    }
    for query in ["", "?scope=s&key=k", "?scope=s&caller=%0A&key=k"] {
        api.get(&format!("/v1/record{query}")).await.assert_api_problem(400, "request-malformed");
    }
    let absent = api.get("/v1/record?scope=s&caller=&key=k").await;
    absent.assert_api_problem(404, "record-not-found");
}

#[tokio::test]
async fn records_are_listed_page_by_page() {
    let api = TestApi::new(None).await;
    for key in ["a", "b", "c"] {
        api.held(key).await;
    }
    let (mut keys, mut after) = (Vec::new(), String::new());
    loop {
        let page = api.get(&format!("/v1/records?limit=2&state=held{after}")).await.json();
        keys.extend(page["records"].as_array().unwrap().iter().map(|line| line["key"].clone()));
        let Some(next) = page["next"].as_str() else { break };
        after = format!("&after={next}");
    }
    keys.sort_by_key(ToString::to_string);
    assert_eq!(keys, ["a", "b", "c"]);
    let page = api.get("/v1/records?key=b&until=0s&scope=payments").await.json();
    assert_eq!(page["records"].as_array().unwrap().len(), 1);
}

#[tokio::test]
async fn a_recorded_answer_is_shown_to_operators_only() {
    for (token, path) in [(Some(TOKEN), "with"), (None, "without")] {
        let api = TestApi::new(token).await;
        let fence = api.held("k").await;
        let response = StoredResponse { status: 201, body: "secret".into(), ..Default::default() };
        let answer = semel::core::Answer::response(&response);
        api.complete("k", fence, answer).await;
        let query = "/v1/record?scope=payments&caller=shop-7&key=k";
        let answer = api.get(query).await;
        assert!(!String::from_utf8_lossy(&answer.body).contains("secret"), "{path} a token");
        assert_eq!(answer.json()["answer"]["status"], 201);
        assert!(answer.json()["answer"]["withheld"].is_string());
        let answer = api.get_as_operator(query).await.json();
        let shown = if token.is_some() { json!("secret") } else { Value::Null };
        assert_eq!(answer["answer"]["body"], shown, "{path} a token");
    }
}

#[tokio::test]
async fn actions_need_the_operator_token() {
    let api = TestApi::new(Some(TOKEN)).await;
    let fence = api.held("k").await;
    let body = with(target("k", fence.get()), json!({ "to": "released" })).to_string();
    let wrong = [None, Some("Bearer x"), Some(TOKEN), Some("Basic an operator's token"), Some("")];
    for path in ACTS {
        for authorization in wrong {
            let mut request = http::Request::post(path)
                .header("host", "localhost")
                .header("content-type", "application/json");
            if let Some(authorization) = authorization {
                request = request.header("authorization", authorization);
            }
            let answer = api.ask(request.body(body.clone().into()).unwrap()).await;
            answer.assert_api_problem(401, "operator-token-missing");
        }
    }
    let read_only = TestApi::new(None).await;
    for path in ACTS {
        read_only.post(path, json!({})).await.assert_api_problem(403, "read-only");
    }
    assert_eq!(api.seen("k").await.unwrap().state, StateView::Held);
    assert_eq!(api.reloads.load(Ordering::SeqCst) + read_only.reloads.load(Ordering::SeqCst), 0);
    assert_eq!(api.audit() + &read_only.audit(), "");
}

#[tokio::test]
async fn an_action_must_be_complete_and_have_a_reason() {
    let api = TestApi::new(Some(TOKEN)).await;
    let fence = api.held("k").await.get();
    let held = || target("k", fence);
    for (request, why) in [
        (json!({}), "nothing"),
        (held(), "no outcome"),
        (with(held(), json!({ "to": "gone" })), "no such outcome"),
        (with(held(), json!({ "to": "completed" })), "no answer"),
        (with(held(), json!({ "to": "released", "answer": { "status": 200 } })), "an answer"),
        (with(held(), json!({ "to": "completed", "answer": { "status": 100 } })), "status"),
        (with(held(), json!({ "to": "released", "why": " " })), "no reason"),
        (with(held(), json!({ "to": "released", "fence": 0 })), "no fence"),
        (with(held(), json!({ "to": "released", "scope": "A" })), "no scope"),
    ] {
        let answer = api.post("/v1/resolve", request).await;
        assert_eq!(answer.status, 400, "{why}");
        answer.assert_api_problem(400, "request-malformed");
    }
    let request = http::Request::post("/v1/sweep")
        .header("host", "localhost")
        .header("content-type", "text/plain");
    let request = request.header("authorization", format!("Bearer {TOKEN}"));
    let answer = api.ask(request.body("{}".into()).unwrap()).await;
    answer.assert_api_problem(415, "media-type-unsupported");
    let large = json!({ "why": "x".repeat(ACTION_BODY_BYTES_MAX) });
    api.post("/v1/sweep", large).await.assert_api_problem(413, "body-too-large");
    assert_eq!(api.seen("k").await.unwrap().state, StateView::Held);
    assert_eq!(api.audit(), "");
}

#[tokio::test]
async fn unknown_fields_are_refused() {
    let api = TestApi::new(Some(TOKEN)).await;
    let request = with(target("k", api.held("k").await.get()), json!({ "to": "released" }));
    let request = with(request, json!({ "dry_run": true }));
    api.post("/v1/resolve", request).await.assert_api_problem(400, "request-malformed");
    let request = with(target("k", 1), json!({ "dry_run": true }));
    api.post("/v1/delete", request).await.assert_api_problem(400, "request-malformed");
    assert_eq!(api.seen("k").await.unwrap().state, StateView::Held);
}

#[tokio::test]
async fn a_held_record_is_resolved_once() {
    let api = TestApi::new(Some(TOKEN)).await;
    let fence = api.held("k").await.get();
    let answer = json!({
        "status": 201, "headers": [["Content-Type", "text/plain"]], "body_base64": "/2J5dGVz",
    });
    let request = with(target("k", fence), json!({ "to": "completed", "answer": answer }));
    let done = api.post("/v1/resolve", request.clone()).await;
    assert_eq!((done.status.as_u16(), done.json()), (200, json!({ "result": "applied" })));
    let StateView::Completed { answer, .. } = api.seen("k").await.unwrap().state else {
        panic!("it is not completed");
    };
    let semel::core::Content::Response(response) = answer.read().unwrap() else { panic!() };
    assert_eq!((response.status, &*response.body), (201, &b"\xFFbytes"[..]));
    api.post("/v1/resolve", request).await.assert_api_problem(409, "record-stale");
    let absent = with(target("absent", 1), json!({ "to": "released" }));
    api.post("/v1/resolve", absent).await.assert_api_problem(404, "record-not-found");

    let audit = api.audit();
    let lines: Vec<Value> = audit.lines().map(|line| serde_json::from_str(line).unwrap()).collect();
    let results: Vec<&str> = lines.iter().map(|line| line["result"].as_str().unwrap()).collect();
    assert_eq!(results[..3], ["intended", "applied", "intended"]);
    assert!(results[3].starts_with("failed: stale"), "{results:?}");
    assert_eq!(lines[0]["who"], "zoe (by operator token, from 127.0.0.1)");
}

#[tokio::test]
async fn a_completed_record_can_be_deleted_as_it_was_seen() {
    let api = TestApi::new(Some(TOKEN)).await;
    let fence = api.held("k").await;
    let seen_as_held = target("k", fence.get());
    api.complete("k", fence, semel::core::Answer::failed()).await;
    api.post("/v1/delete", seen_as_held.clone()).await.assert_api_problem(409, "record-stale");
    assert!(api.seen("k").await.is_some(), "the late answer is newer than what was seen");
    let request = with(seen_as_held, json!({ "state": "completed" }));
    assert_eq!(api.post("/v1/delete", request).await.status, 200);
    assert_eq!(api.seen("k").await, None);
}

#[tokio::test]
async fn an_act_that_cannot_be_written_down_is_refused() {
    let api = TestApi::new(Some(TOKEN)).await;
    std::fs::create_dir(api.folder.path().join("audit.jsonl")).unwrap();
    let fence = api.held("k").await.get();
    let request = with(target("k", fence), json!({ "to": "released" }));
    api.post("/v1/resolve", request).await.assert_api_problem(503, "audit-unavailable");
    api.post("/v1/reload", json!({})).await.assert_api_problem(503, "audit-unavailable");
    assert_eq!(api.seen("k").await.unwrap().state, StateView::Held);
    assert_eq!(api.reloads.load(Ordering::SeqCst), 0);
}

#[tokio::test]
async fn a_reload_says_what_changed_or_what_is_wrong() {
    let api = TestApi::new(Some(TOKEN)).await;
    let answer = api.post("/v1/reload", json!({})).await.json();
    assert_eq!(answer, json!({ "result": "applied", "detail": "2 routes" }));
    let answer = api.post("/v1/reload", json!({})).await;
    answer.assert_api_problem(422, "configuration-refused");
    assert_eq!(answer.json()["detail"], "semel.toml:3:1: no");
    let swept = api.post("/v1/sweep", json!({ "why": "now" })).await.json();
    assert_eq!(swept, json!({ "deleted": 0, "more": false }));
}

#[tokio::test]
async fn the_listener_shuts_down_although_clients_stay_connected() {
    let mut api = TestApi::new(None).await;
    let mut idle = TcpStream::connect(api.address).await.unwrap();
    idle.write_all(b"GET /healthz HTTP/1.1\r\nhost: [::1]\r\n\r\n").await.unwrap();
    let mut first = [0; 12];
    idle.read_exact(&mut first).await.unwrap();
    assert_eq!(&first, b"HTTP/1.1 200");
    api.stop.take();
    api.serving.await.unwrap();
    let mut rest = Vec::new();
    idle.read_to_end(&mut rest).await.unwrap();
    assert!(TcpStream::connect(api.address).await.is_err());
}

mod dashboard;
mod harness;
mod records;
mod roles;
mod service;
