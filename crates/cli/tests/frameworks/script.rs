//! One script of misbehaviours, and every client: each logical call is executed once.

use std::{collections::BTreeMap, time::Duration};

use bytes::Bytes;
use semel_client::RetryClient;
use serde_json::{Value, json};

use crate::{
    gateway::Gateway,
    misbehaving_proxy::{MisbehavingProxy, Misbehaviour},
    scripted_api::ScriptedApi,
    semel_clients,
};

const BODY: &str = r#"{"amount":1000}"#;
const RETRY_AFTER: &str = "Retry-After: 1\r\n";
const FINAL: &str = "x-should-retry: false\r\n";
const RUNNING: &str = "x-should-retry: true\r\nretry-after-ms: 300\r\n";

/// What is done to the requests for a path, and what must come of it.
struct Scenario {
    path: &'static str,
    steps: &'static [Misbehaviour],
    status: u16,
    requests: usize,
    runs: usize,
}

const fn repeated(path: &'static str, steps: &'static [Misbehaviour]) -> Scenario {
    Scenario { path, steps, status: 200, requests: steps.len() + 1, runs: 1 }
}

const fn refused(path: &'static str, steps: &'static [Misbehaviour], status: u16) -> Scenario {
    Scenario { path, steps, status, requests: 1, runs: 0 }
}

const SCENARIOS: [Scenario; 15] = {
    use Misbehaviour::{Answer, Drip, DropAnswer, HalfAnswer, Reset, Stall};
    [
        repeated("dropped-answer", &[DropAnswer]),
        repeated("reset", &[Reset]),
        repeated("half-answer", &[HalfAnswer]),
        repeated("slow-body", &[Stall]),
        repeated("dripping-body", &[Drip]),
        repeated("503", &[Answer(503, "")]),
        repeated("503-retry-after", &[Answer(503, RETRY_AFTER)]),
        repeated("500-then-200", &[Answer(500, "")]),
        repeated("409-in-progress", &[Answer(409, RUNNING), Answer(409, RUNNING)]),
        repeated("423-reconciling", &[Answer(423, RUNNING)]),
        repeated("everything", &[Reset, DropAnswer, Answer(503, ""), HalfAnswer]),
        refused("409-conflict", &[Answer(409, "")], 409),
        refused("422", &[Answer(422, FINAL)], 422),
        refused("423", &[Answer(423, FINAL)], 423),
        Scenario {
            path: "gives-up",
            steps: &[Answer(503, ""); 9],
            status: 503,
            requests: 5,
            runs: 0,
        },
    ]
};

/// The final status and body of each call, by path.
type Outcomes = BTreeMap<String, (u64, String)>;

/// Makes the calls of the script and checks what came of them at the client, on the way and at the
/// service.
fn play(make_calls: impl FnOnce(&Value) -> Option<Outcomes>) {
    let api = ScriptedApi::start();
    let gateway = Gateway::in_front_of(api.address);
    let scripts = SCENARIOS.iter().map(|scenario| (scenario.path, scenario.steps));
    let proxy = MisbehavingProxy::start(gateway.address(), scripts);
    let call = |scenario: &Scenario| {
        let timeout = if scenario.path.ends_with("-body") { 2 } else { 20 };
        json!({ "path": scenario.path, "timeout": timeout, "body": BODY })
    };
    let calls: Vec<Value> = SCENARIOS.iter().map(call).collect();
    let url = format!("http://{}", proxy.address);
    let Some(outcomes) = make_calls(&json!({ "url": url, "calls": calls })) else { return };
    assert_eq!(outcomes.len(), SCENARIOS.len());
    for scenario in &SCENARIOS {
        let path = scenario.path;
        let (status, body) = &outcomes[path];
        assert_eq!(*status, u64::from(scenario.status), "{path}: {body}");
        let arrivals = proxy.arrivals(path);
        assert_eq!(arrivals.len(), scenario.requests, "{path}");
        let key = &arrivals[0].key;
        assert_eq!(key.len(), 36, "{path}: {key}");
        assert!(arrivals.iter().all(|it| it.key == *key && it.body == BODY.as_bytes()), "{path}");
        assert_eq!(api.runs(key), scenario.runs, "{path}");
        assert_eq!(body.contains(&format!("made for {key}")), scenario.runs == 1, "{path}");
        // What is left until the deadline is passed on, and shrinks.
        let timeouts: Vec<u64> = arrivals.iter().map(|it| it.timeout_ms.unwrap()).collect();
        assert!(timeouts[0] <= 60_000 && timeouts.is_sorted_by(|a, b| a > b), "{timeouts:?}");
    }
    let [first, second] = &proxy.arrivals("503-retry-after")[..] else { panic!("two requests") };
    assert!(second.at - first.at >= Duration::from_secs(1));
}

fn outcomes(lines: Vec<Value>) -> Outcomes {
    let outcome = |line: Value| {
        let text = |name: &str| line[name].as_str().unwrap().to_owned();
        (text("path"), (line["status"].as_u64().unwrap(), text("body")))
    };
    lines.into_iter().map(outcome).collect()
}

fn in_python(calls: &Value, is_async: bool) -> Option<Outcomes> {
    let mut python = semel_clients::python()?;
    python.arg(format!("{}/clients/semel_client.py", crate::HERE));
    let mut calls = calls.clone();
    calls["async"] = is_async.into();
    Some(outcomes(semel_clients::lines(&mut python, &calls)))
}

#[test]
fn the_python_client_survives_the_script_of_misbehaviours() {
    play(|calls| in_python(calls, false));
}

#[test]
fn the_async_python_client_survives_the_script_of_misbehaviours() {
    play(|calls| in_python(calls, true));
}

#[test]
fn the_typescript_client_survives_the_script_of_misbehaviours() {
    play(|calls| {
        let mut node = semel_clients::node("semel_client.mjs")?;
        Some(outcomes(semel_clients::lines(&mut node, calls)))
    });
}

#[test]
fn the_rust_client_survives_the_script_of_misbehaviours() {
    play(|calls| {
        let runtime = tokio::runtime::Runtime::new().unwrap();
        Some(runtime.block_on(in_rust(calls)))
    });
}

async fn in_rust(calls: &Value) -> Outcomes {
    let mut outcomes = Outcomes::new();
    for call in calls["calls"].as_array().unwrap() {
        let timeout = Duration::from_secs(call["timeout"].as_u64().unwrap());
        let client = RetryClient::new().unwrap().attempt_timeout(timeout);
        let path = call["path"].as_str().unwrap();
        let request = http::Request::post(format!("{}/{path}", calls["url"].as_str().unwrap()))
            .header("content-type", "application/json")
            .body(Bytes::from_static(BODY.as_bytes()))
            .unwrap();
        let answer = client.send(request).await.unwrap();
        let body = String::from_utf8(answer.body().to_vec()).unwrap();
        outcomes.insert(path.to_owned(), (answer.status().as_u16().into(), body));
    }
    outcomes
}
