//! On a real server, whose upstream takes requests and loses the answers.

use std::{
    fs,
    io::{BufRead as _, BufReader, Read as _, Write as _},
    net::{TcpListener, TcpStream},
    process::{Child, Stdio},
    sync::{
        Arc, Mutex,
        atomic::{AtomicU32, Ordering},
    },
    thread,
    time::Duration,
};

use crate::harness::{CommandOutput, Harness, command_output, wait_until};

pub(crate) const TOKEN: &str = "an-operators-token";
const CREDENTIAL: &str = "sk_live_8472";

/// `semel serve` in the folder of a harness.
pub(crate) struct Server {
    child: Child,
    gateway: String,
    pub(crate) api: String,
    log: Arc<Mutex<String>>,
    runs: Arc<AtomicU32>,
}

impl Server {
    pub(crate) fn start(harness: &Harness, routes: &str) -> Self {
        let runs = Arc::new(AtomicU32::new(0));
        let upstream = upstream(&runs);
        let first = harness.records.line();
        let head = format!(
            r#"
            {first}
            [gateway]
            listen = "127.0.0.1:0"
            upstream = "http://{upstream}"
            threads = 1
            [api]
            listen = "127.0.0.1:0"
            operator_token_env = "OPERATOR"
            "#
        );
        configure(harness, &head, routes);
        // A store that is there already has a secret.
        let secret = harness.folder.path().join("semel.db.secret");
        fs::write(secret, "0123456789abcdef0123456789abcdef").unwrap();
        let mut child = harness
            .command(env!("CARGO_BIN_EXE_semel"))
            .args(["serve", "--config", "semel.toml", "--log", "json"])
            .args(harness.records.arguments())
            .env("OPERATOR", TOKEN)
            .env("SEMEL_SECRET", "a secret that all share")
            .stderr(Stdio::piped())
            .spawn()
            .unwrap();
        let mut lines = BufReader::new(child.stderr.take().unwrap());
        let mut address = |start: &str| loop {
            let mut line = String::new();
            assert_ne!(lines.read_line(&mut line).unwrap(), 0, "it ended before it listened");
            if let Some(rest) = line.strip_prefix(start) {
                break rest.split_whitespace().next().unwrap().to_owned();
            }
        };
        let gateway = address("listening on http://");
        let api = address("api on ");
        let log = Arc::new(Mutex::new(String::new()));
        let theirs = Arc::clone(&log);
        thread::spawn(move || {
            let mut line = String::new();
            while lines.read_line(&mut line).is_ok_and(|read| read > 0) {
                theirs.lock().unwrap().push_str(&std::mem::take(&mut line));
            }
        });
        Self { child, gateway, api, log, runs }
    }

    /// Sends a charge and returns the head and the body of its answer.
    fn charge(&self, key: &str) -> String {
        let body = r#"{"amount":1}"#;
        let request = format!(
            "POST /charges?card=4242 HTTP/1.1\r\nHost: shop\r\nConnection: close\r\n\
             Authorization: Bearer {CREDENTIAL}\r\nContent-Type: application/json\r\n\
             Idempotency-Key: {key}\r\nContent-Length: {}\r\n\r\n{body}",
            body.len()
        );
        exchange(&self.gateway, &request)
    }

    pub(crate) fn get(&self, path: &str) -> String {
        let host = self.api.strip_prefix("http://").unwrap();
        let request =
            format!("GET {path} HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n\r\n");
        exchange(host, &request)
    }

    /// Runs an operator's command on the server, with this token.
    fn operate(&self, harness: &Harness, words: &[&str], token: Option<&str>) -> CommandOutput {
        let mut command = harness.command(env!("CARGO_BIN_EXE_semel"));
        command.args(words).args(["--server", &self.api]);
        if let Some(token) = token {
            command.env("SEMEL_OPERATOR_TOKEN", token);
        }
        command_output(command.output().unwrap())
    }
}

impl Drop for Server {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

fn configure(harness: &Harness, head: &str, routes: &str) {
    fs::write(harness.folder.path().join("semel.toml"), format!("{head}\n{routes}")).unwrap();
}

pub(crate) fn route(scope: &str, path: &str) -> String {
    format!("[[route]]\nmatch = \"POST {path}\"\nscope = \"{scope}\"\n")
}

fn exchange(host: &str, request: &str) -> String {
    let mut stream = TcpStream::connect(host).unwrap();
    stream.set_read_timeout(Some(Duration::from_secs(60))).unwrap();
    stream.write_all(request.as_bytes()).unwrap();
    let mut answer = String::new();
    stream.read_to_string(&mut answer).unwrap();
    answer
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
    let first = server.charge("k-1");
    assert!(first.starts_with("HTTP/1.1 504 ") && first.contains("upstream-timeout"), "{first}");
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
        let log = server.log.lock().unwrap();
        log.contains("token is missing or wrong") && log.contains("/v1/resolve")
    });
    assert!(server.charge("k-1").contains("outcome-unknown"), "nothing was changed");
    server.operate(&harness, &words, Some(TOKEN)).assert_exit(0);
    wait_until("the answer is replayed", || {
        let answer = server.charge("k-1");
        answer.starts_with("HTTP/1.1 201 ") && answer.ends_with("\r\n\r\npaid by hand")
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
    assert!(server.get("/healthz").ends_with("\r\n\r\nok\n"));
    assert!(server.get("/readyz").starts_with("HTTP/1.1 200 "));
    let log = || server.log.lock().unwrap().clone();
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
