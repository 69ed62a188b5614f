//! A real Prometheus scrapes gateways, and each alert of `contrib/prometheus` fires on its staged
//! incident.

use std::{
    collections::BTreeSet,
    fmt::Write as _,
    fs,
    io::Write as _,
    net::SocketAddr,
    process::{Command, Output, Stdio},
    time::{Duration, SystemTime},
};

use rcgen::{CertificateParams, KeyPair};
use serde_json::{Value, json};
use tempfile::TempDir;
use tokio::time::{Instant, sleep};

use crate::common::{
    Gateway, ORDER, Program, Reply, Setup, TEST_TIMEOUT, Upstream, charge, local, on_sqlite, send,
};

/// Debian has both in the package `prometheus`.
const PROMETHEUS: &str = "/usr/bin/prometheus";
const PROMTOOL: &str = "/usr/bin/promtool";

/// Interval between two looks at the alerts.
const POLL_INTERVAL: Duration = Duration::from_millis(300);

const RULES: &str = include_str!("../../../../contrib/prometheus/semel.rules.yml");
const RULE_TESTS: &str = include_str!("../../../../contrib/prometheus/semel.rules.test.yml");

/// A Prometheus with the alerts of `contrib`.
struct Prometheus {
    program: Program,
    folder: TempDir,
}

impl Prometheus {
    /// Starts one that scrapes these addresses, each by its name, with these rules.
    fn start(targets: &[(&str, SocketAddr)], rules: &str) -> Self {
        let folder = TempDir::new().unwrap();
        let file = |name: &str, text: &str| {
            let path = folder.path().join(name);
            fs::write(&path, text).unwrap();
            path.display().to_string()
        };
        let rules = file("semel.rules.yml", rules);
        file("targets.json", &targets_file(targets));
        let config = format!(
            "global: {{scrape_interval: 500ms, evaluation_interval: 500ms}}\n\
             rule_files: ['{rules}']\n\
             scrape_configs:\n\
             - job_name: semel\n\
             \x20 file_sd_configs: [{{files: ['{}/targets.json'], refresh_interval: 1s}}]\n",
            folder.path().display()
        );
        let mut command = Command::new(PROMETHEUS);
        command
            .arg(format!("--config.file={}", file("prometheus.yml", &config)))
            .arg(format!("--storage.tsdb.path={}/data", folder.path().display()))
            .arg("--web.listen-address=127.0.0.1:0");
        Self { program: Program::start(&mut command), folder }
    }

    /// Moves a target, whose series stay the same ones.
    fn set_targets(&self, targets: &[(&str, SocketAddr)]) {
        let path = self.folder.path().join("targets.json");
        let next = path.with_extension("next");
        fs::write(&next, targets_file(targets)).unwrap();
        fs::rename(next, path).unwrap();
    }

    async fn get(&self, path: &str) -> Value {
        let text = "msg=\"Listening on\" address=";
        self.program.wait_for_log(text);
        let lines = self.program.log_lines();
        let address = lines.iter().find_map(|line| line.split_once(text)).unwrap().1;
        let answer = send(address.trim().parse().unwrap(), local(path)).await;
        serde_json::from_str(answer.text()).unwrap()
    }

    /// The alerts that fire, each with its scope or instance. The disk of this machine may really
    /// be nearly full, which no test stages.
    async fn firing(&self) -> BTreeSet<(String, String)> {
        let answer = self.get("/api/v1/alerts").await;
        let alerts = answer["data"]["alerts"].as_array().unwrap().clone();
        let firing = alerts
            .into_iter()
            .filter(|alert| alert["state"] == "firing" && alert["labels"]["quota"] != "disk_bytes");
        let text = |value: &Value| value.as_str().unwrap_or_default().to_owned();
        let named = firing.map(|alert| {
            let labels = &alert["labels"];
            let about = [&labels["scope"], &labels["instance"]];
            let about = about.into_iter().find(|label| label.is_string()).map(text);
            (text(&labels["alertname"]), about.unwrap_or_default())
        });
        named.collect()
    }
}

fn targets_file(targets: &[(&str, SocketAddr)]) -> String {
    let target = |(name, address): &(&str, SocketAddr)| {
        let labels = json!({ "instance": name });
        json!({ "targets": [address], "labels": labels })
    };
    serde_json::to_string(&targets.iter().map(target).collect::<Vec<_>>()).unwrap()
}

fn promtool(args: &[&str], input: &[u8]) -> Output {
    let mut command = Command::new(PROMTOOL);
    command.args(args).stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(Stdio::piped());
    let mut child = command.spawn().unwrap();
    child.stdin.take().unwrap().write_all(input).unwrap();
    child.wait_with_output().unwrap()
}

#[track_caller]
fn assert_clean(output: &Output) {
    let text = |bytes: &[u8]| String::from_utf8_lossy(bytes).into_owned();
    let shown = text(&output.stdout) + &text(&output.stderr);
    assert!(output.status.success() && output.stderr.is_empty(), "{shown}");
}

#[tokio::test]
async fn promtool_finds_nothing_in_the_metrics_and_the_rules() {
    let upstream = Upstream::plain().await;
    let gateway = Gateway::in_front_of(&upstream.url()).await;
    gateway.send(charge("k", ORDER)).await;
    let scrape = send(gateway.api(), local("/metrics")).await;
    assert_clean(&promtool(&["check", "metrics"], &scrape.body));
    let folder = TempDir::new().unwrap();
    let rules = folder.path().join("semel.rules.yml");
    fs::write(&rules, RULES).unwrap();
    let tests = folder.path().join("semel.rules.test.yml");
    fs::write(&tests, RULE_TESTS).unwrap();
    assert_clean(&promtool(&["check", "rules", rules.to_str().unwrap()], b""));
    let output = promtool(&["test", "rules", tests.to_str().unwrap()], b"");
    assert!(output.status.success(), "{output:?}");
    gateway.assert_clean_shutdown().await;
}

/// The rules with short times.
fn hurried_rules() -> String {
    let mut rules = String::new();
    for line in RULES.lines() {
        let indent = line.len() - line.trim_start().len();
        if line.trim_start().starts_with("for: ") {
            let _ = writeln!(rules, "{:indent$}for: 1s", "");
        } else {
            let _ = writeln!(rules, "{}", line.replace("> 3600", "> 1"));
        }
    }
    rules
}

/// A gateway with one route of this scope.
fn guarding(upstream: &Upstream, scope: &str) -> Setup {
    let route = format!("[[route]]\nmatch = \"POST /charges\"\nscope = \"{scope}\"");
    Setup::new(&upstream.url()).tables(route)
}

/// A gateway with a certificate that expires in ten days.
async fn with_old_certificate(upstream: &Upstream, folder: &TempDir) -> Gateway {
    let key = KeyPair::generate().unwrap();
    let mut params = CertificateParams::new(vec!["localhost".to_owned()]).unwrap();
    let now = SystemTime::from(jiff::Timestamp::now());
    params.not_after = (now + Duration::from_secs(10 * 86_400)).into();
    let certificate = params.self_signed(&key).unwrap();
    let (cert, private) = (folder.path().join("cert.pem"), folder.path().join("key.pem"));
    fs::write(&cert, certificate.pem()).unwrap();
    fs::write(&private, key.serialize_pem()).unwrap();
    let tls = format!("tls = {{ certificate = {cert:?}, key = {private:?} }}");
    Setup::new(&upstream.url()).gateway(tls).start().await
}

/// A gateway with more keys than its quota allows and a configuration that cannot be reloaded.
async fn in_trouble(upstream: &Upstream) -> Gateway {
    let setup = Setup::new(&upstream.url()).tables("[limits]\nrecords = 5");
    let gateway = setup.start().await;
    for number in 0..8 {
        gateway.send(charge(&format!("k-{number}"), ORDER)).await;
    }
    let file = gateway.setup.file();
    let text = fs::read_to_string(&file).unwrap();
    fs::write(&file, format!("{text}\nretenion = 5\n")).unwrap();
    gateway.signal("HUP");
    gateway.wait_for_log("reload failed").await;
    gateway
}

/// A gateway for each incident, and one without any.
struct Incidents {
    upstream: Upstream,
    _broken: Upstream,
    healthy: Gateway,
    old: Gateway,
    trouble: Gateway,
    failing: Gateway,
    storeless: Gateway,
    moved: Gateway,
    /// Where no server listens.
    nowhere: SocketAddr,
}

impl Incidents {
    async fn stage(folder: &TempDir) -> Self {
        let upstream = Upstream::plain().await;
        let broken = Upstream::start(|_| Reply::closed()).await;
        Self {
            healthy: guarding(&upstream, "healthy").start().await,
            old: with_old_certificate(&upstream, folder).await,
            trouble: in_trouble(&upstream).await,
            failing: guarding(&broken, "failing").start().await,
            storeless: guarding(&upstream, "storeless").start().await,
            moved: guarding(&upstream, "moved").start().await,
            nowhere: Upstream::plain().await.stop().await,
            upstream,
            _broken: broken,
        }
    }

    fn targets(&self) -> [(&'static str, SocketAddr); 7] {
        [
            ("healthy", self.healthy.api()),
            ("old", self.old.api()),
            ("trouble", self.trouble.api()),
            ("failing", self.failing.api()),
            ("storeless", self.storeless.api()),
            ("moved", self.moved.api()),
            ("down", self.nowhere),
        ]
    }

    /// Sends a request to each: a repeat to the healthy one, new keys to the others.
    async fn send(&self, number: usize) {
        self.healthy.send(charge("k", ORDER)).await;
        for gateway in [&self.trouble, &self.failing, &self.storeless] {
            gateway.send(charge(&format!("next-{number}"), ORDER)).await;
        }
    }

    /// Replaces a gateway by one with another store, which is younger by some seconds.
    async fn replace_store(&mut self) {
        self.moved = guarding(&self.upstream, "moved").start().await;
    }
}

#[tokio::test]
async fn each_alert_fires_on_its_incident_and_none_without_one() {
    if !on_sqlite() {
        return;
    }
    let folder = TempDir::new().unwrap();
    let mut incidents = Incidents::stage(&folder).await;
    let prometheus = Prometheus::start(&incidents.targets(), &hurried_rules());
    let block = incidents.storeless.setup.block_writes().await;
    let names = RULES.lines().filter_map(|line| line.trim_start().strip_prefix("- alert: "));
    let mut missing: BTreeSet<&str> = names.collect();
    let (mut fired, mut is_replaced) = (BTreeSet::new(), false);
    let end = Instant::now() + TEST_TIMEOUT;
    for number in 0.. {
        incidents.send(number).await;
        fired.extend(prometheus.firing().await);
        missing.retain(|alert| !fired.iter().any(|(name, _)| name == alert));
        if missing.is_empty() {
            break;
        }
        if !is_replaced && !missing.contains("SemelDown") {
            incidents.replace_store().await;
            prometheus.set_targets(&incidents.targets());
            is_replaced = true;
        }
        assert!(Instant::now() < end, "{missing:?} did not fire, but {fired:?}");
        sleep(POLL_INTERVAL).await;
    }
    let expected = [
        ("SemelDown", "down"),
        ("SemelCertificateExpires", "old"),
        ("SemelReloadFailed", "trouble"),
        ("SemelQuotaNearlyUsed", "trouble"),
        ("SemelStoreErrors", "storeless"),
        ("SemelStoreReplaced", "moved"),
        ("SemelUpstreamFailing", "failing"),
        ("SemelRecordsHeld", "failing"),
        ("SemelHeldTooLong", "failing"),
    ];
    for (name, about) in expected {
        assert!(fired.contains(&(name.to_owned(), about.to_owned())), "{name}: {fired:?}");
    }
    assert!(fired.iter().all(|(_, about)| about != "healthy"), "{fired:?}");
    let health = prometheus.get("/api/v1/query?query=up").await;
    let series = health["data"]["result"].as_array().unwrap();
    let up = series.iter().filter(|series| series["value"][1] == "1").count();
    assert_eq!((series.len(), up), (7, 6), "every gateway is scraped");
    drop(block);
    incidents.healthy.assert_clean_shutdown().await;
}
