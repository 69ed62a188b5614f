//! On a real server, whose upstream takes requests and loses the answers.

use std::{
    fs,
    io::{Read as _, Write as _},
    net::{SocketAddr, TcpListener, TcpStream},
    sync::{
        Arc,
        atomic::{AtomicU32, Ordering},
    },
    thread,
};

use crate::{
    common::{Gateway, Setup, TEST_TIMEOUT, TestResponse},
    harness::{CommandOutput, Harness, wait_until},
};

pub(crate) const TOKEN: &str = "an-operators-token";
const CREDENTIAL: &str = "sk_live_8472";

/// `semel serve` in the folder of a harness.
pub(crate) struct Server {
    gateway: Gateway,
    /// The URL of its API.
    pub(crate) api: String,
    runs: Arc<AtomicU32>,
}

impl Server {
    pub(crate) fn start(harness: &Harness, routes: &str) -> Self {
        let runs = Arc::new(AtomicU32::new(0));
        let upstream = upstream(&runs);
        let first = harness.records.line();
        let configuration = format!(
            r#"
            {first}
            [gateway]
            upstream = "http://{upstream}"
            threads = 1
            [api]
            operator_token_env = "OPERATOR"
            {routes}"#
        );
        // A store that is there already has a secret.
        let secret = harness.folder.path().join("semel.db.secret");
        fs::write(secret, "0123456789abcdef0123456789abcdef").unwrap();
        let gateway = Setup::configured(&configuration)
            .in_folder(&harness.folder)
            .argument("--log=json")
            .arguments(harness.records.arguments())
            .environment("OPERATOR", TOKEN)
            .environment("USER", "zoe")
            .start_blocking();
        let api = format!("http://{}", gateway.api());
        Self { gateway, api, runs }
    }

    fn charge(&self, key: &str) -> TestResponse {
        let body = r#"{"amount":1}"#;
        let request = format!(
            "POST /charges?card=4242 HTTP/1.1\r\nHost: shop\r\nConnection: close\r\n\
             Authorization: Bearer {CREDENTIAL}\r\nContent-Type: application/json\r\n\
             Idempotency-Key: {key}\r\nContent-Length: {}\r\n\r\n{body}",
            body.len()
        );
        exchange(self.gateway.address(), &request)
    }

    pub(crate) fn get(&self, path: &str) -> TestResponse {
        let request =
            format!("GET {path} HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n\r\n");
        exchange(self.gateway.api(), &request)
    }

    /// Runs an operator's command on the server, with this token.
    fn operate(&self, harness: &Harness, words: &[&str], token: Option<&str>) -> CommandOutput {
        let mut command = harness.semel();
        command.args(words).args(["--server", &self.api]);
        if let Some(token) = token {
            command.env("SEMEL_OPERATOR_TOKEN", token);
        }
        CommandOutput::of(&mut command)
    }
}

pub(crate) fn route(scope: &str, path: &str) -> String {
    format!("[[route]]\nmatch = \"POST {path}\"\nscope = \"{scope}\"\n")
}

fn exchange(to: SocketAddr, request: &str) -> TestResponse {
    let mut stream = TcpStream::connect(to).unwrap();
    stream.set_read_timeout(Some(TEST_TIMEOUT)).unwrap();
    stream.write_all(request.as_bytes()).unwrap();
    let mut answer = Vec::new();
    stream.read_to_end(&mut answer).unwrap();
    TestResponse::parse(&answer).expect("a whole response")
}

/// A server that reads each request, counts it and hangs up.
fn upstream(runs: &Arc<AtomicU32>) -> String {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let address = listener.local_addr().unwrap().to_string();
    let runs = Arc::clone(runs);
    thread::spawn(move || {
        while let Ok((mut stream, _)) = listener.accept() {
            let mut request = [0; 4096];
            if stream.read(&mut request).is_ok_and(|read| read > 0) {
                runs.fetch_add(1, Ordering::SeqCst);
            }
        }
    });
    address
}

#[test]
fn a_lost_answer_is_held_found_resolved_and_replayed() {
    let harness = Harness::new();
    let server = Server::start(&harness, &route("payments", "/charges"));
    let audit = harness.folder.path().join(harness.audit_name());
    assert!(audit.exists(), "it is the server's own");
    server.charge("k-1").assert_problem(504, "upstream-timeout");
    let held = server.operate(&harness, &["list", "--state", "held", "--json"], None);
    assert_eq!(held.assert_exit(0).json().len(), 1);
    assert_eq!(held.json()[0]["key"], "k-1");
    assert_eq!(held.json()[0]["about"], "POST shop/charges");
    assert_eq!(held.json()[0]["reason"], "connection lost after 0 bytes");
    assert!(held.json()[0]["node"].as_str().is_some_and(|node| !node.is_empty()), "{held:?}");
    let shown = server.operate(&harness, &["inspect", "k-1"], None);
    assert!(
        shown.assert_exit(0).stdout.contains(&format!("semel resolve --server {}", server.api))
    );

    let words = ["resolve", "k-1", "--completed", "--status", "201", "--body", "paid by hand"];
    let words = [&words[..], &["--why", "bank statement", "--yes"]].concat();
    let refused = server.operate(&harness, &words, None);
    assert!(
        refused.assert_exit(1).stderr.contains("SEMEL_OPERATOR_TOKEN is not set"),
        "{refused:?}"
    );
    let refused = server.operate(&harness, &words, Some("another-token-here"));
    assert!(refused.assert_exit(1).stderr.contains("is not the server's"), "{refused:?}");
    wait_until("the refusal is in the log", || {
        let log = server.gateway.log();
        log.contains("token missing, unknown or of an insufficient role")
            && log.contains("/v1/resolve")
    });
    // Nothing was changed.
    server.charge("k-1").assert_problem(423, "outcome-unknown");
    server.operate(&harness, &words, Some(TOKEN)).assert_exit(0);
    wait_until("the answer is replayed", || {
        let answer = server.charge("k-1");
        answer.status == 201 && answer.text() == "paid by hand"
    });
    assert_eq!(server.runs.load(Ordering::SeqCst), 1);

    let shown = server.operate(&harness, &["inspect", "k-1", "--json"], None).assert_exit(0).json();
    assert_eq!(shown[0]["answer"]["body"], serde_json::Value::Null);
    let shown =
        server.operate(&harness, &["inspect", "k-1", "--json"], Some(TOKEN)).assert_exit(0).json();
    assert_eq!(shown[0]["answer"]["body"], "paid by hand");
    let audit = harness.audit();
    assert_eq!((&audit[0]["result"], &audit[1]["result"]), (&"intended".into(), &"applied".into()));
    assert_eq!(audit[1]["who"], "zoe (by operator token, from 127.0.0.1)");
    let delete = ["delete", "k-1", "--why", "a test", "--yes"];
    server.operate(&harness, &delete, Some(TOKEN)).assert_exit(0);
    server.operate(&harness, &["inspect", "k-1"], None).assert_exit(3);
    let swept = server.operate(&harness, &["sweep", "--yes"], Some(TOKEN));
    assert_eq!(swept.assert_exit(0).stdout, "done: 0 deleted\n");
}

#[test]
fn the_log_and_the_metrics_tell_of_a_request_but_not_its_secrets() {
    let harness = Harness::new();
    let server = Server::start(&harness, &route("payments", "/charges"));
    server.charge("k-1");
    server.charge("k-1");
    let metrics = server.get("/metrics");
    let metrics = metrics.text();
    for line in [
        r#"semel_requests_total{scope="payments",outcome="upstream-timeout"} 1"#,
        r#"semel_requests_total{scope="payments",outcome="outcome-unknown"} 1"#,
        r#"semel_requests_total{scope="payments",outcome="executed"} 0"#,
        r#"semel_records_total{scope="payments",event="held"} 1"#,
        r#"semel_upstream_total{scope="payments",outcome="broken"} 1"#,
        r#"semel_store_seconds_count{operation="claim"} 2"#,
        "semel_in_flight 0",
    ] {
        assert!(metrics.lines().any(|found| found == line), "{line} is not in\n{metrics}");
    }
    assert!(server.get("/healthz").text() == "ok\n");
    assert!(server.get("/readyz").status == 200);
    let log = || server.gateway.log();
    wait_until("both requests are logged", || log().matches("semel::request").count() == 2);
    let lines: Vec<serde_json::Value> =
        log().lines().filter_map(|line| serde_json::from_str(line).ok()).collect();
    let line = lines.iter().find(|line| line["target"] == "semel::request").unwrap();
    assert_eq!((&line["level"], &line["outcome"]), (&"warn".into(), &"upstream-timeout".into()));
    assert_eq!((&line["key"], &line["path"]), (&"k-1".into(), &"/charges".into()));
    assert_eq!(line["status"], 504);
    assert!(line["fence"].as_u64().is_some_and(|fence| fence > 1_000_000_000_000_000), "{line}");
    assert!(log().contains("held until an operator resolves it"), "{}", log());
    for secret in [CREDENTIAL, "4242", "amount", TOKEN] {
        assert!(!log().contains(secret), "{secret} is in the log:\n{}", log());
    }
}

#[test]
fn a_changed_configuration_is_applied_and_a_bad_one_is_not() {
    let harness = Harness::new();
    let server = Server::start(&harness, &route("payments", "/other"));
    let path = harness.folder.path().join("semel.toml");
    let text = fs::read_to_string(&path).unwrap();
    server.charge("k-1");
    assert!(
        server
            .operate(&harness, &["list"], None)
            .assert_exit(0)
            .stdout
            .contains("no record matches")
    );
    fs::write(&path, format!("{text}\n{}", route("signup", "/charges"))).unwrap();
    server.operate(&harness, &["reload"], None).assert_exit(1);
    server.operate(&harness, &["reload"], Some(TOKEN)).assert_exit(0);
    server.charge("k-2");
    fs::write(&path, format!("{text}\nretenion = 5\n")).unwrap();
    let refused = server.operate(&harness, &["reload"], Some(TOKEN));
    assert!(refused.assert_exit(1).stderr.contains("retenion"), "{refused:?}");
    assert_eq!(
        refused.stderr.to_lowercase().matches("previous configuration").count(),
        1,
        "{refused:?}"
    );
    server.charge("k-3");
    let listed = server.operate(&harness, &["list", "--scope", "signup", "--json"], None);
    assert_eq!(listed.assert_exit(0).json().len(), 2, "the previous configuration stays in use");
    let results: Vec<String> =
        harness.audit().iter().map(|line| line["result"].as_str().unwrap().to_owned()).collect();
    assert_eq!(results[..3], ["intended", "applied", "intended"]);
    assert!(results[3].starts_with("failed: "), "{results:?}");
}
