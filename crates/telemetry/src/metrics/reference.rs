//! Writes `docs/reference/metrics.md` from a scrape in which every metric stands.

use std::{collections::BTreeSet, env, fmt::Write as _, fs, path::Path};

use semel::MemoryStore;

use super::*;

/// Labels whose values are names of the user, versions or numbers.
const OPEN_LABELS: [&str; 4] = ["scope", "source", "version", "le"];

/// All quotas; a store that does not know its size has fewer.
const QUOTAS: [&str; 6] =
    ["records", "store_bytes", "disk_bytes", "caller_records", "caller_bytes", "caller_held"];

const RULES: &str = include_str!("../../../../contrib/prometheus/semel.rules.yml");

/// A family of metrics.
#[derive(Debug, Default)]
struct MetricFamily<'a> {
    name: &'a str,
    kind: &'a str,
    help: &'a str,
    labels: Vec<(&'a str, BTreeSet<&'a str>)>,
}

async fn full_scrape() -> String {
    let metrics = Metrics::new([Scope::new("payments").unwrap()]);
    metrics.set_memory(MemoryBudget::new(1 << 20));
    metrics.set_certificate_not_after(1);
    metrics.set_key_sets(vec![
        Jwks::from_json(
            r#"{"keys":[{"kty":"OKP","crv":"Ed25519",
        "x":"11qYAYKxCrfVS_7TyWQHOg7hcvPapiMlrwIaaPcHURo"}]}"#,
        )
        .unwrap(),
    ]);
    metrics.set_dropped_log_lines(crate::log::empty_log().dropped_lines());
    let scope = Scope::new("payments").unwrap();
    let observer = crate::EngineObserver::new(Arc::clone(&metrics));
    let semel = Semel::builder(MemoryStore::new()).observer(observer).build();
    semel.report(&scope, EventKind::Observed(ObservedOutcome::Run));
    metrics.reconcile(&scope, ReconcileEvent::Found);
    metrics.encode(&semel, Exposition::Prometheus)
}

fn families(text: &str) -> Vec<MetricFamily<'_>> {
    let mut families: Vec<MetricFamily<'_>> = Vec::new();
    for line in text.lines() {
        if let Some(line) = line.strip_prefix("# HELP ") {
            let (name, help) = line.split_once(' ').unwrap();
            let help = help.trim_end_matches('.');
            families.push(MetricFamily { name, help, ..MetricFamily::default() });
        } else if let Some(line) = line.strip_prefix("# TYPE ") {
            families.last_mut().unwrap().kind = line.split_once(' ').unwrap().1;
        } else if let Some((_, rest)) = line.split_once('{') {
            let family = families.last_mut().unwrap();
            for label in rest.split_once('}').unwrap().0.split("\",") {
                let (name, value) = label.split_once("=\"").unwrap();
                let value = value.trim_end_matches('"');
                match family.labels.iter_mut().find(|(known, _)| *known == name) {
                    Some((_, values)) => drop(values.insert(value)),
                    None => family.labels.push((name, BTreeSet::from([value]))),
                }
            }
        }
    }
    families
}

fn page(text: &str) -> String {
    let mut page = "# Metrics\n\n\
        `GET /metrics` on the API listener has them in the text format of Prometheus,\n\
        and as OpenMetrics where `Accept` names it. Every series exists from the start, so that\n\
        its first increase is seen.\n\
        `scope` has at most 1,000 values; further scopes are `_rest`, requests\n\
        without a guard `_unguarded`. No label has a value that a client sends.\n\n\
        `contrib/grafana/semel.json` is a dashboard of these metrics, and the\n\
        [alerts](#alerts) are in `contrib/prometheus/semel.rules.yml`.\n\n\
        | metric | type | labels | meaning |\n|---|---|---|---|\n"
        .to_owned();
    let families = families(text);
    for MetricFamily { name, kind, help, labels } in &families {
        let labels: Vec<String> = labels
            .iter()
            .filter(|(label, _)| *label != "le")
            .map(|(label, _)| format!("`{label}`"))
            .collect();
        let _ = writeln!(page, "| `{name}` | {kind} | {} | {help} |", labels.join(", "));
    }
    page.push_str("\n## Values of labels\n\n| metric | label | values |\n|---|---|---|\n");
    for MetricFamily { name, labels, .. } in &families {
        for (label, values) in labels.iter().filter(|(label, _)| !OPEN_LABELS.contains(label)) {
            let quotas = BTreeSet::from(QUOTAS);
            let values = if *label == "quota" { &quotas } else { values };
            let values: Vec<String> = values.iter().map(|value| format!("`{value}`")).collect();
            let values = values.join(", ").replace("``", "empty");
            let _ = writeln!(page, "| `{name}` | `{label}` | {values} |");
        }
    }
    page.push_str("\n## Alerts\n\n| alert | severity | after | expression |\n|---|---|---|---|\n");
    for alert in RULES.split("- alert: ").skip(1) {
        let name = alert.lines().next().unwrap();
        let value = |field: &str| {
            let line = alert.lines().find_map(|line| line.trim().strip_prefix(field));
            line.map(str::trim).unwrap_or_default()
        };
        let expression = match value("expr:") {
            ">-" => {
                let lines = alert.lines().skip_while(|line| !line.contains("expr:")).skip(1);
                let lines = lines.take_while(|line| line.starts_with("          "));
                lines.map(str::trim).collect::<Vec<_>>().join(" ")
            }
            line => line.to_owned(),
        };
        let expression = expression.replace('|', "\\|");
        let (severity, after) = (value("severity:"), value("for:"));
        let after = if after.is_empty() { "at once" } else { after };
        let _ = writeln!(page, "| `{name}` | {severity} | {after} | `{expression}` |");
    }
    page
}

#[tokio::test]
async fn the_committed_reference_of_the_metrics_is_up_to_date() {
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../docs/reference/metrics.md");
    let page = page(&full_scrape().await);
    if env::var_os("SEMEL_BLESS").is_some() {
        fs::write(&path, &page).unwrap();
    }
    let committed = fs::read_to_string(&path).unwrap_or_default();
    let command = "SEMEL_BLESS=1 cargo test -p semel-telemetry reference";
    assert!(committed == page, "docs/reference/metrics.md is stale; run: {command}");
}

#[tokio::test]
async fn every_series_of_the_alerts_and_of_the_dashboard_exists() {
    let text = full_scrape().await;
    let dashboard = include_str!("../../../../contrib/grafana/semel.json");
    let is_word = |c: char| c.is_ascii_alphanumeric() || c == '_';
    let expressions = [RULES, dashboard].into_iter().flat_map(str::lines);
    let named: BTreeSet<&str> = expressions
        .filter(|line| ["expr", "query", "semel_upstream"].iter().any(|it| line.contains(it)))
        .flat_map(|line| line.split(|c| !is_word(c)))
        .filter(|word| word.starts_with("semel_") || word.starts_with("process_"))
        .collect();
    assert!(named.len() >= 20, "{named:?}");
    let families = families(&text);
    for name in named {
        let family = name.trim_end_matches("_bucket");
        let is_known = families.iter().any(|known| known.name == family);
        assert!(is_known, "{name} is not in\n{text}");
    }
    for outcome in ["too-many-records", "store-full"] {
        assert!(RULES.contains(outcome), "{outcome}");
        let series = format!("semel_requests_total{{scope=\"payments\",outcome=\"{outcome}\"}} 0");
        assert!(text.contains(&series), "{series}");
    }
}
