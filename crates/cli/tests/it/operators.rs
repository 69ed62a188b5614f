//! What operators see: health, metrics, logs.

use std::{collections::BTreeMap, time::Duration};

use serde_json::{Value, json};
use tokio::{
    io::{AsyncReadExt as _, AsyncWriteExt as _},
    net::TcpStream,
    time::{Instant, sleep},
};

use crate::common::{
    Gate, Gateway, ORDER, Reply, Setup, TEST_TIMEOUT, Upstream, charge, get, local, send,
    wait_until,
};

/// The metrics, by name and labels as they are written.
pub(crate) async fn metrics(gateway: &Gateway) -> BTreeMap<String, f64> {
    let answer = send(gateway.api(), local("/metrics")).await;
    assert_eq!(answer.status.as_u16(), 200);
    let lines = answer.text().lines().filter(|line| !line.starts_with('#'));
    let line = |line: &str| {
        let (name, value) = line.rsplit_once(' ').unwrap();
        (name.to_owned(), value.parse().unwrap())
    };
    lines.map(line).collect()
}

/// Waits until a metric has a value.
pub(crate) async fn reaches(gateway: &Gateway, name: &str, value: u32) {
    let end = Instant::now() + TEST_TIMEOUT;
    loop {
        let metrics = metrics(gateway).await;
        if metrics.get(name) == Some(&value.into()) {
            return;
        }
        assert!(Instant::now() < end, "{name} never became {value}: {metrics:#?}");
        sleep(Duration::from_millis(10)).await;
    }
}

#[tokio::test]
async fn health_is_of_the_process_and_readiness_of_the_store() {
    let upstream = Upstream::plain().await;
    let gateway = Gateway::in_front_of(&upstream.url()).await;
    for (path, text) in [("/healthz", "ok\n"), ("/readyz", "ready\n")] {
        let answer = send(gateway.api(), local(path)).await;
        assert_eq!((answer.status.as_u16(), answer.text()), (200, text));
    }
    // The gateway's own address has none of it.
    gateway.send(get("/healthz")).await;
    assert_eq!(upstream.request_count(), 1);
    gateway.assert_clean_shutdown().await;
}

/// Two that run, a replay, a joiner, a request that is released, one that is held and met again,
/// one that never gets out, some that are refused, some that pass.
async fn story(upstream: &Upstream, gateway: &Gateway, gate: &Gate) {
    let first = gateway.send(charge("one", ORDER)).await;
    gateway.send(charge("one", ORDER)).await.assert_replay_of(&first);
    gateway.send(charge("one", "{}")).await.assert_problem(422, "key-reused");
    let slow = tokio::spawn(send(gateway.address(), charge("slow", ORDER)));
    wait_until(|| upstream.requests_with_key("slow").len() == 1).await;
    let joiner = tokio::spawn(send(gateway.address(), charge("slow", ORDER)));
    reaches(gateway, "semel_waiting", 1).await;
    assert_eq!(metrics(gateway).await["semel_in_flight"], 1.0);
    gate.open();
    assert_eq!(slow.await.unwrap().body, joiner.await.unwrap().body);
    assert_eq!(gateway.send(charge("later", ORDER)).await.status.as_u16(), 429);
    gateway.send(charge("broken", ORDER)).await.assert_problem(504, "upstream-timeout");
    gateway.send(charge("broken", ORDER)).await.assert_problem(423, "outcome-unknown");
    gateway.send(charge("a b", ORDER)).await.assert_problem(400, "key-malformed");
    let mut nowhere = charge("nowhere", ORDER);
    *nowhere.uri_mut() = "/nowhere".parse().unwrap();
    gateway.send(nowhere).await.assert_problem(502, "upstream-unreachable");
    for _ in 0..3 {
        gateway.send(get("/charges")).await;
    }
    let mut keyless = charge("none", ORDER);
    keyless.headers_mut().remove("idempotency-key");
    gateway.send(keyless).await;
}

async fn stage() -> (Upstream, Setup, Gate) {
    let gate = Gate::new();
    let upstream = Upstream::start({
        let gate = gate.clone();
        move |request| match request.key() {
            "slow" => Reply::created(request).blocked_on(&gate),
            "later" => Reply::new(429, ""),
            "broken" => Reply::closed(),
            _ => Reply::created(request),
        }
    })
    .await;
    let nowhere = Upstream::plain().await.stop().await;
    let setup = Setup::new(&upstream.url()).tables(format!(
        "[[route]]\nmatch = \"POST /charges\"\nscope = \"charges\"\n\
         [[route]]\nmatch = \"POST /nowhere\"\nscope = \"nowhere\"\nupstream = \"http://{nowhere}\""
    ));
    (upstream, setup, gate)
}

#[tokio::test]
async fn metrics_count_exactly_what_happened() {
    let (upstream, setup, gate) = stage().await;
    let gateway = setup.start().await;
    story(&upstream, &gateway, &gate).await;
    reaches(&gateway, "semel_connections", 0).await;
    let metrics = metrics(&gateway).await;
    let expected = [
        (r#"semel_requests_total{scope="charges",outcome="executed"}"#, 3.0),
        (r#"semel_requests_total{scope="charges",outcome="joined"}"#, 1.0),
        (r#"semel_requests_total{scope="charges",outcome="replayed"}"#, 1.0),
        (r#"semel_requests_total{scope="charges",outcome="key-reused"}"#, 1.0),
        (r#"semel_requests_total{scope="charges",outcome="key-malformed"}"#, 1.0),
        (r#"semel_requests_total{scope="charges",outcome="upstream-timeout"}"#, 1.0),
        (r#"semel_requests_total{scope="charges",outcome="outcome-unknown"}"#, 1.0),
        (r#"semel_requests_total{scope="nowhere",outcome="upstream-unreachable"}"#, 1.0),
        (r#"semel_records_total{scope="charges",event="claimed"}"#, 4.0),
        (r#"semel_records_total{scope="charges",event="completed"}"#, 2.0),
        (r#"semel_records_total{scope="charges",event="released"}"#, 1.0),
        (r#"semel_records_total{scope="charges",event="held"}"#, 1.0),
        (r#"semel_records_total{scope="charges",event="lost"}"#, 0.0),
        (r#"semel_records_total{scope="nowhere",event="claimed"}"#, 1.0),
        (r#"semel_records_total{scope="nowhere",event="released"}"#, 1.0),
        (r#"semel_upstream_total{scope="charges",outcome="answered"}"#, 4.0),
        (r#"semel_upstream_total{scope="charges",outcome="broken"}"#, 1.0),
        (r#"semel_upstream_total{scope="nowhere",outcome="unreachable"}"#, 1.0),
        (r#"semel_upstream_seconds_count{scope="charges"}"#, 5.0),
        (r#"semel_wait_seconds_count{scope="charges"}"#, 1.0),
        (r#"semel_requests_total{scope="charges",outcome="keyless"}"#, 1.0),
        (r#"semel_upstream_total{scope="_unguarded",outcome="answered"}"#, 3.0),
        (r#"semel_unguarded_total{reason="unmatched"}"#, 3.0),
        (r#"semel_unguarded_total{reason="unmatched-keyed"}"#, 0.0),
        ("semel_in_flight", 0.0),
        ("semel_waiting", 0.0),
        ("semel_lapsed_total", 0.0),
    ];
    for (name, value) in expected {
        assert_eq!(metrics.get(name), Some(&value), "{name}: {metrics:#?}");
    }
    assert!(metrics[r#"semel_store_seconds_count{operation="claim"}"#] >= 5.0);
    assert!(metrics[r#"semel_store_seconds_count{operation="record"}"#] >= 4.0);
    gateway.assert_clean_shutdown().await;
}

#[tokio::test]
async fn a_request_that_could_be_read_in_two_ways_is_counted() {
    let upstream = Upstream::plain().await;
    let gateway = Gateway::in_front_of(&upstream.url()).await;
    let mut stream = TcpStream::connect(gateway.address()).await.unwrap();
    let head = "POST /charges HTTP/1.1\r\nhost: shop\r\ncontent-length: 5\r\n\
                transfer-encoding: chunked\r\n\r\n0\r\n\r\n";
    stream.write_all(head.as_bytes()).await.unwrap();
    let mut answer = String::new();
    stream.read_to_string(&mut answer).await.unwrap();
    assert!(answer.starts_with("HTTP/1.1 400 "), "{answer}");
    reaches(&gateway, "semel_malformed_total", 1).await;
    assert_eq!(upstream.request_count(), 0);
    gateway.assert_clean_shutdown().await;
}

#[tokio::test]
async fn a_request_without_a_usable_route_is_counted_and_logged() {
    let upstream = Upstream::plain().await;
    let setup = Setup::new(&upstream.url()).gateway("unmatched = \"refuse\"").tables(
        "[[route]]\nmatch = \"POST /charges\"\nscope = \"charges\"\nkey = { required = true }",
    );
    let gateway = setup.start().await;
    for (path, status) in [("/Charges", 400), ("/other", 404)] {
        let mut request = charge("k", ORDER);
        *request.uri_mut() = path.parse().unwrap();
        assert_eq!(gateway.send(request).await.status.as_u16(), status, "{path}");
    }
    reaches(&gateway, "semel_malformed_total", 1).await;
    reaches(&gateway, "semel_unmatched_refused_total", 1).await;
    gateway.wait_for_log("path=/Charges").await;
    let log = gateway.log_lines();
    let is_named = |line: &String| line.contains("/Charges") && line.contains("required key");
    assert!(log.iter().any(is_named), "{log:#?}");
    assert_eq!(upstream.request_count(), 0);
    gateway.assert_clean_shutdown().await;
}

#[tokio::test]
async fn an_unguarded_request_that_fails_is_named_now_and_then() {
    let nowhere = Upstream::plain().await.stop().await;
    let setup = Setup::new(&format!("http://{nowhere}")).gateway("threads = 1");
    let gateway = setup.start().await;
    for _ in 0..5 {
        gateway.send(get("/reports?token=qu3ry")).await.assert_problem(502, "upstream-unreachable");
    }
    gateway.wait_for_log("path=/reports").await;
    let log = gateway.log_lines().into_iter().filter(|line| line.contains("not guarded failed"));
    let log: Vec<String> = log.collect();
    assert!((1..5).contains(&log.len()), "{log:?}");
    assert!(log[0].contains("method=GET") && !log[0].contains("qu3ry"), "{log:?}");
    gateway.assert_clean_shutdown().await;
}

#[tokio::test]
async fn a_log_line_tells_what_became_of_a_request_and_no_secret() {
    let (upstream, setup, gate) = stage().await;
    let gateway = setup.argument("--log=json").start().await;
    let mut request = charge("secret", r#"{"card":"4242424242424242"}"#);
    let headers = request.headers_mut();
    headers.insert("authorization", "Bearer sk_live_42".parse().unwrap());
    headers.insert("cookie", "sid=c00kie".parse().unwrap());
    headers.insert("x-request-id", "req-17".parse().unwrap());
    let trace = "0af7651916cd43dd8448eb211c80319c";
    headers.insert("traceparent", format!("00-{trace}-b7ad6b7169203331-01").parse().unwrap());
    *request.uri_mut() = "/charges?token=qu3ry".parse().unwrap();
    gateway.send(request).await;
    story(&upstream, &gateway, &gate).await;
    let lines = || {
        let json = |line: &String| serde_json::from_str::<Value>(line).ok();
        let lines: Vec<Value> = gateway.log_lines().iter().filter_map(json).collect();
        lines.into_iter().filter(|line| line["message"] == "request").collect::<Vec<_>>()
    };
    wait_until(|| lines().len() >= 11).await;
    let of = |key: &str| -> Vec<Value> {
        lines().into_iter().filter(|line| line["key"] == key).collect()
    };
    for line in lines() {
        assert!(line["took_ms"].as_f64().is_some_and(|took| took >= 0.0), "{line}");
        assert!(line["outcome"].is_string() && line["status"].is_u64(), "{line}");
        assert!(line["path"].as_str().is_some_and(|path| !path.contains('?')), "{line}");
    }
    let outcomes = |key: &str| -> Vec<String> {
        of(key).iter().map(|line| line["outcome"].as_str().unwrap().to_owned()).collect()
    };
    assert_eq!(outcomes("one"), ["executed", "replayed", "key-reused"]);
    assert_eq!(outcomes("later"), ["executed"]);
    assert_eq!(outcomes("broken"), ["upstream-timeout", "outcome-unknown"]);
    assert_eq!(outcomes("nowhere"), ["upstream-unreachable"]);
    assert_eq!(outcomes("a b"), ["key-malformed"]);
    let ran = &of("one")[0];
    assert_eq!(
        (&ran["scope"], &ran["status"], &ran["attempt"]),
        (&json!("charges"), &json!(201), &json!(1))
    );
    assert_eq!(ran["fence"], upstream.requests_with_key("one")[0].fence());
    assert_eq!(ran["caller"], "anonymous");
    let origin = &of("secret")[0];
    assert_ne!(origin["caller"], "anonymous");
    assert_eq!(
        (&origin["client"], &origin["request_id"], &origin["trace_id"]),
        (&json!("127.0.0.1"), &json!("req-17"), &json!(trace))
    );
    for line in gateway.log_lines() {
        assert!(serde_json::from_str::<Value>(&line).is_ok_and(|line| line.is_object()), "{line}");
    }
    let log = gateway.log_lines().join("\n");
    for secret in ["sk_live_42", "c00kie", "qu3ry", "4242424242424242", "amount"] {
        assert!(!log.contains(secret), "{secret}: {log}");
    }
    gateway.assert_clean_shutdown().await;
}
