//! What is counted, from a real engine to the text that is scraped.

use semel::{
    BeginRequest, ExecutionOutput, MemoryStore, Observer,
    core::{
        Caller, ExecutionResult, Fingerprint, Key, Policy, Reason, RecordId, StoredResponse,
        Verdict,
    },
};

use super::*;

/// Counts into metrics, and nothing else.
#[derive(Debug)]
struct CountingObserver(Arc<Metrics>);

impl Observer for CountingObserver {
    fn on_event(&self, event: &Event<'_>) {
        self.0.record_event(event);
    }
}

fn scope(name: &str) -> Scope {
    Scope::new(name).unwrap()
}

fn engine(metrics: &Arc<Metrics>) -> Semel {
    Semel::builder(MemoryStore::new()).observer(CountingObserver(Arc::clone(metrics))).build()
}

async fn run(semel: &Semel, name: &str, meaning: u8, ended: ExecutionResult) {
    let id = RecordId::new(scope(name), Caller::anonymous(), Key::new("k").unwrap());
    let fingerprint = Fingerprint::from_bytes(&[meaning; 33]).unwrap();
    let operation = BeginRequest::new(id, fingerprint, Arc::new(Policy::default()));
    semel.begin(operation, move |_| async { ExecutionOutput::from(ended) }).await;
}

fn completed() -> ExecutionResult {
    let answer = semel::core::Answer::response(&StoredResponse::default());
    let reason = Reason::Answered(200);
    ExecutionResult::Answered { verdict: Verdict::Completed, answer, reason }
}

/// The lines of a scrape that begin with this.
fn lines(text: &str, start: &str) -> Vec<String> {
    text.lines().filter(|line| line.starts_with(start)).map(str::to_owned).collect()
}

#[track_caller]
fn has(text: &str, line: &str) {
    assert!(text.lines().any(|found| found == line), "{line} is not in\n{text}");
}

#[tokio::test]
async fn every_request_counts_once_under_its_scope_and_outcome() {
    let metrics = Metrics::new([scope("payments"), scope("signup"), scope("payments")]);
    let semel = engine(&metrics);
    run(&semel, "payments", 1, completed()).await;
    run(&semel, "payments", 1, completed()).await;
    run(&semel, "payments", 2, completed()).await;
    run(&semel, "signup", 1, ExecutionResult::Broken(Reason::ConnectionLost(0))).await;
    run(&semel, "signup", 1, completed()).await;
    run(&semel, "elsewhere", 1, ExecutionResult::NeverReached).await;
    let text = metrics.encode(&semel, Exposition::OpenMetrics);
    let counted: Vec<String> =
        lines(&text, "semel_requests_total").into_iter().filter(|l| !l.ends_with(" 0")).collect();
    let expected = [
        (r#"scope="payments",outcome="executed""#, 1),
        (r#"scope="payments",outcome="replayed""#, 1),
        (r#"scope="payments",outcome="key-reused""#, 1),
        (r#"scope="signup",outcome="outcome-unknown""#, 1),
        (r#"scope="signup",outcome="upstream-timeout""#, 1),
        (r#"scope="_rest",outcome="upstream-unreachable""#, 1),
    ];
    let expected =
        expected.map(|(labels, count)| format!("semel_requests_total{{{labels}}} {count}"));
    assert_eq!(counted, expected);
    has(&text, r#"semel_records_total{scope="payments",event="claimed"} 1"#);
    has(&text, r#"semel_records_total{scope="payments",event="completed"} 1"#);
    has(&text, r#"semel_records_total{scope="signup",event="held"} 1"#);
    has(&text, r#"semel_records_total{scope="_rest",event="released"} 1"#);
    // Not for the replay, which comes from the cache.
    has(&text, r#"semel_store_seconds_count{operation="claim"} 4"#);
    has(&text, r#"semel_store_seconds_count{operation="record"} 3"#);
    has(&text, "semel_in_flight 0");
}

#[tokio::test]
async fn observed_outcomes_are_counted_for_observed_scopes() {
    let metrics = Metrics::new([scope("payments"), scope("signup")]);
    let semel = engine(&metrics);
    let observe = async |meaning: u8| {
        let id = RecordId::new(scope("payments"), Caller::anonymous(), Key::new("k").unwrap());
        let fingerprint = Fingerprint::from_bytes(&[meaning; 33]).unwrap();
        let operation = BeginRequest::new(id, fingerprint, Arc::new(Policy::default()));
        semel.observe(operation, async { completed() }).await;
    };
    for meaning in [1, 1, 1, 2] {
        observe(meaning).await;
    }
    semel.report(&scope("payments"), EventKind::Observed(ObservedOutcome::Keyless));
    for _ in 0..3 {
        semel.report(&scope("payments"), EventKind::Observed(ObservedOutcome::Pass));
    }
    let text = metrics.encode(&semel, Exposition::OpenMetrics);
    let counted: Vec<String> =
        lines(&text, "semel_observed_total").into_iter().filter(|l| !l.ends_with(" 0")).collect();
    let expected = [
        (r#"would="run",problem="""#, 1),
        (r#"would="replay",problem="""#, 2),
        (r#"would="pass",problem="key-missing""#, 1),
        (r#"would="pass",problem="store-unavailable""#, 3),
        (r#"would="refuse",problem="key-reused""#, 1),
    ];
    let expected = expected.map(|(labels, count)| {
        format!(r#"semel_observed_total{{scope="payments",{labels}}} {count}"#)
    });
    assert_eq!(counted, expected);
    assert!(!text.contains(r#"semel_observed_total{scope="signup""#), "nothing is observed there");
    let requests = lines(&text, "semel_requests_total");
    assert!(requests.iter().all(|line| line.ends_with(" 0")), "nothing was answered by it");
}

#[tokio::test]
async fn no_series_is_written_twice() {
    let metrics = Metrics::new([scope("other"), scope("a")]);
    metrics.add_scopes([scope("a"), scope("b")]);
    let text = metrics.encode(&engine(&metrics), Exposition::OpenMetrics);
    let mut series: Vec<&str> = text
        .lines()
        .filter(|line| !line.starts_with('#'))
        .map(|line| line.rsplit_once(' ').unwrap().0)
        .collect();
    let all = series.len();
    series.sort_unstable();
    series.dedup();
    assert_eq!(series.len(), all);
    assert_eq!(lines(&text, "semel_upstream_seconds_count").len(), 5);
    let slugs = Problem::ALL.iter().map(|problem| problem.slug());
    for slug in slugs.chain(ANSWERS) {
        has(&text, &format!(r#"semel_requests_total{{scope="b",outcome="{slug}"}} 0"#));
    }
    assert!(text.ends_with("# EOF\n"));
}

#[tokio::test]
async fn the_gateway_counts_too() {
    let metrics = Metrics::new([scope("a")]);
    let took = Duration::from_millis(30);
    metrics.upstream(Some(&scope("a")), UpstreamOutcome::Answered, took);
    metrics.upstream(Some(&scope("a")), UpstreamOutcome::Broken, took);
    metrics.upstream(None, UpstreamOutcome::Timeout, took);
    metrics.connection_opened();
    metrics.connection_opened();
    metrics.connection_closed();
    metrics.unguarded(UnguardedReason::UnmatchedKeyed);
    let text = metrics.encode(&engine(&metrics), Exposition::OpenMetrics);
    has(&text, r#"semel_upstream_total{scope="a",outcome="answered"} 1"#);
    has(&text, r#"semel_upstream_total{scope="a",outcome="broken"} 1"#);
    has(&text, r#"semel_upstream_total{scope="_unguarded",outcome="timeout"} 1"#);
    has(&text, r#"semel_upstream_seconds_count{scope="a"} 2"#);
    has(&text, r#"semel_upstream_seconds_sum{scope="a"} 0.06"#);
    has(&text, r#"semel_upstream_seconds_bucket{le="0.025",scope="a"} 0"#);
    has(&text, r#"semel_upstream_seconds_bucket{le="0.05",scope="a"} 2"#);
    has(&text, r#"semel_upstream_seconds_bucket{le="+Inf",scope="a"} 2"#);
    has(&text, "semel_connections 1");
    has(&text, r#"semel_unguarded_total{reason="unmatched-keyed"} 1"#);
    has(&text, r#"semel_unguarded_total{reason="unmatched"} 0"#);
    has(&text, &format!(r#"semel_build_info{{version="{}"}} 1"#, env!("CARGO_PKG_VERSION")));
}

#[test]
fn scopes_that_are_added_keep_what_was_counted() {
    let metrics = Metrics::new([scope("b")]);
    metrics.upstream(Some(&scope("b")), UpstreamOutcome::Answered, Duration::ZERO);
    metrics.upstream(Some(&scope("a")), UpstreamOutcome::Answered, Duration::ZERO);
    metrics.add_scopes([scope("a"), scope("c")]);
    metrics.upstream(Some(&scope("a")), UpstreamOutcome::Answered, Duration::ZERO);
    let text = metrics.encode(&engine(&metrics), Exposition::OpenMetrics);
    for name in ["a", "b", "_rest"] {
        has(&text, &format!(r#"semel_upstream_total{{scope="{name}",outcome="answered"}} 1"#));
    }
}

#[test]
fn the_number_of_scopes_is_limited() {
    let names = (0..SCOPES_MAX + 10).map(|number| scope(&format!("s{number}")));
    let metrics = Metrics::new(names);
    assert_eq!(metrics.scopes.load().len(), SCOPES_MAX);
}

#[test]
fn held_records_are_counted_by_scope_and_reason() {
    let metrics = Metrics::new([scope("payments"), scope("signup")]);
    let text = metrics.encode(&engine(&metrics), Exposition::OpenMetrics);
    has(&text, r#"semel_held{scope="payments",reason="answered"} 0"#);
    has(&text, "semel_held_incomplete 0");
    let age = Duration::from_secs;
    let held = [
        ("payments", "answered", age(70)),
        ("payments", "answered", age(600)),
        ("payments", "none", age(1)),
        ("signup", "lease-expired", age(2)),
        ("gone-1", "text", age(3)),
        ("gone-2", "text", age(4)),
    ];
    metrics.held(held.into_iter(), false);
    let text = metrics.encode(&engine(&metrics), Exposition::OpenMetrics);
    let counted: Vec<String> =
        lines(&text, "semel_held{").into_iter().filter(|l| !l.ends_with(" 0")).collect();
    let expected = [
        (r#"scope="payments",reason="answered""#, 2),
        (r#"scope="payments",reason="none""#, 1),
        (r#"scope="signup",reason="lease-expired""#, 1),
        (r#"scope="_rest",reason="text""#, 2),
    ];
    let expected = expected.map(|(labels, count)| format!("semel_held{{{labels}}} {count}"));
    assert_eq!(counted, expected);
    has(&text, "semel_held_incomplete 1");
    let oldest = lines(&text, r#"semel_held_oldest_seconds{scope="payments",reason="answered"}"#);
    let oldest: f64 = oldest[0].rsplit_once(' ').unwrap().1.parse().unwrap();
    assert!((600.0..660.0).contains(&oldest), "{oldest}");
    has(&text, r#"semel_held_oldest_seconds{scope="signup",reason="none"} 0.0"#);
    metrics.held([("payments", "none", age(1))].into_iter(), true);
    let text = metrics.encode(&engine(&metrics), Exposition::OpenMetrics);
    has(&text, r#"semel_held{scope="payments",reason="answered"} 0"#);
    has(&text, "semel_held_incomplete 0");
}

#[test]
fn the_age_of_the_store_is_counted_from_its_creation() {
    let metrics = Metrics::new([]);
    let day = Duration::from_secs(86_400);
    metrics.set_store_created(SystemTime::from(Timestamp::now()) - day);
    let text = metrics.encode(&engine(&metrics), Exposition::OpenMetrics);
    let [line] = &lines(&text, "semel_store_age_seconds ")[..] else { panic!("{text}") };
    let age: u64 = line.split(' ').next_back().unwrap().parse().unwrap();
    assert!((day.as_secs()..day.as_secs() + 600).contains(&age), "{age}");
}

#[tokio::test]
async fn each_quota_shows_what_is_used_and_its_limit() {
    let metrics = Metrics::new([]);
    let limits = semel::Quotas { records: 7, held_per_caller: 3, ..Default::default() };
    let semel = Semel::builder(MemoryStore::new()).quotas(limits).build();
    run(&semel, "s", 1, completed()).await;
    let caller = Caller::new("shop-7").unwrap();
    // Anonymous requests share no caller, so none of them counts.
    let scope = Scope::new("s").unwrap();
    let held = [caller.clone(), caller, Caller::anonymous()];
    semel.set_held(held.map(|caller| (scope.clone(), caller)));
    let shown = async {
        loop {
            let text = metrics.encode(&semel, Exposition::OpenMetrics);
            if text.contains(r#"semel_quota_used{quota="caller_held"} 2"#) {
                break text;
            }
            tokio::time::sleep(Duration::from_millis(20)).await;
        }
    };
    let text = tokio::time::timeout(Duration::from_secs(30), shown).await.unwrap();
    has(&text, r#"semel_quota_limit{quota="records"} 7"#);
    has(&text, r#"semel_quota_limit{quota="caller_held"} 3"#);
    has(&text, r#"semel_quota_used{quota="records"} 1"#);
    assert!(!text.contains("store_bytes") && !text.contains("disk_bytes"), "unknown: {text}");
}
