//! The gateway: `semel serve` beside nginx as a plain proxy, which gets the very same requests.

mod against;
mod dashboards;
pub(crate) mod drive;
pub(crate) mod instructions;
mod jwt;
mod nginx;
mod semel;
pub(crate) mod upstream;

pub(crate) use semel::start_service_api;

use std::{collections::BTreeSet, process::Command, time::Duration};

use anyhow::Context as _;

use crate::{
    gateway::upstream::Upstream,
    http::load::{HttpLoad, HttpMeasurement, KeyPattern, Length, drive, each},
    machine,
    measure::{median, ratios, turns},
    report::{Report, Target},
    settings::{Settings, progress, progress_end},
    sqlite::files,
};

const FAMILY: &str = "gateway";
const PASS: &str = "gateway.pass";
const UNIQUE: &str = "gateway.unique";
const REPLAY: &str = "gateway.replay";
const SLOW: &str = "gateway.slow";
const MEMORY: &str = "gateway.memory";
const JWT: &str = "gateway.jwt";
const DASHBOARDS: &str = "gateway.dashboards";

/// Many short ones: what else a machine does falls on all subjects alike.
const ROUNDS: usize = 9;

/// What the slow upstream takes.
const SLOWNESS: Duration = Duration::from_millis(20);

/// What stands between the load and the upstream.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
enum Proxy {
    Nginx,
    Semel,
}

/// What is measured, and for which part of the benchmark.
#[derive(Clone, Copy, Debug)]
struct ProxyCase {
    part: &'static str,
    name: &'static str,
    proxy: Proxy,
    keys: KeyPattern,
}

impl ProxyCase {
    const fn semel(part: &'static str, name: &'static str, keys: KeyPattern) -> Self {
        Self { part, name, proxy: Proxy::Semel, keys }
    }
}

/// What the others are held against.
const NGINX: ProxyCase =
    ProxyCase { part: FAMILY, name: "nginx", proxy: Proxy::Nginx, keys: KeyPattern::New };

const AT_ONCE: [ProxyCase; 3] = [
    ProxyCase::semel(PASS, "no key", KeyPattern::Without),
    ProxyCase::semel(UNIQUE, "unique keys", KeyPattern::New),
    ProxyCase::semel(REPLAY, "nine in ten repeats", KeyPattern::Repeated(9)),
];

/// How a comparison is made.
#[derive(Clone, Copy, Debug)]
struct Conditions {
    connections: usize,
    /// What the upstream takes.
    delay: Duration,
}

/// A subject and what was seen of it, round by round.
type ProxyMeasurements = (ProxyCase, Vec<HttpMeasurement>);

pub(crate) fn run(settings: &Settings, report: &mut Report) -> anyhow::Result<()> {
    if settings.wants(JWT) && settings.against.is_none() {
        jwt::run(settings, report)?;
    }
    if settings.wants(DASHBOARDS) && settings.against.is_none() {
        dashboards::run(settings, report)?;
    }
    if ![PASS, UNIQUE, REPLAY, SLOW, MEMORY].iter().any(|part| settings.wants(part)) {
        return Ok(());
    }
    if let Some(former) = &settings.against {
        return against::run(settings, former, report);
    }
    let wanted = |subject: &ProxyCase| settings.wants(subject.part);
    let at_once = AT_ONCE.into_iter().filter(wanted).collect::<Vec<_>>();
    let unique = at_once.iter().copied().filter(|subject| subject.part == UNIQUE);
    let unique = unique.collect::<Vec<_>>();
    let slow = [ProxyCase::semel(SLOW, "unique keys", KeyPattern::New)];
    let slow = slow.into_iter().filter(wanted).collect::<Vec<_>>();
    let usual = Conditions { connections: 64, delay: Duration::ZERO };
    let usual = (usual, compare(settings, usual, &at_once)?);
    let many = Conditions { connections: 256, delay: Duration::ZERO };
    let many = (many, compare(settings, many, &unique)?);
    let late = Conditions { connections: 64, delay: SLOWNESS };
    let late = (late, compare(settings, late, &slow)?);
    progress_end();
    add_load(report, &usual.1);
    let all = [usual, many, late];
    for part in [FAMILY, PASS, UNIQUE, REPLAY, SLOW] {
        for (conditions, seen) in &all {
            add(report, part, *conditions, seen);
        }
    }
    if settings.wants(MEMORY) {
        memory(settings, report)?;
    }
    report.note(format!(
        "Requests are POSTs of 200 bytes of JSON over kept connections, answers 201 with 300 \
         bytes. nginx {} is a plain proxy with two workers and kept connections to the \
         upstream; Semel is `semel serve --log-level warn` with SQLite and otherwise its \
         defaults, every record on the disk before its answer goes out. Neither writes a line of \
         log for a request. Both are new in each round, and so are the store and the upstream, an \
         ordinary server on axum with two threads. CPU is the user and system time of the proxy's \
         processes. The load, the proxy and the upstream share the machine's cores: the lighter \
         the load and the upstream, the more nginx gains and the lower the ratios.",
        nginx::version()?,
    ));
    Ok(())
}

/// Measures nginx and those given, in turn.
fn compare(
    settings: &Settings,
    conditions: Conditions,
    subjects: &[ProxyCase],
) -> anyhow::Result<Vec<ProxyMeasurements>> {
    if subjects.is_empty() {
        return Ok(Vec::new());
    }
    let subjects = [&[NGINX], subjects].concat();
    let mut seen: Vec<ProxyMeasurements> =
        subjects.into_iter().map(|one| (one, Vec::new())).collect();
    let (warm_up, length) = settings.cell();
    let Conditions { connections, delay } = conditions;
    for round in 0..ROUNDS {
        for at in turns(round, seen.len()) {
            let (subject, cells) = &mut seen[at];
            let ProxyCase { name, keys, .. } = *subject;
            let what = format!("{}{name}", prefix(conditions));
            progress(&format!("{FAMILY}: {what}, round {} of {ROUNDS}", round + 1));
            // The warm-up has to see the store's first checkpoint; a round sees several.
            let (warm_up, length) = (warm_up * 2, Length::Time(length));
            let load = HttpLoad { connections, keys, warm_up, length };
            cells.push(measure(settings, subject.proxy, delay, load).with_context(|| name)?);
        }
    }
    Ok(seen)
}

/// Measures one proxy, new and with a new upstream.
fn measure(
    settings: &Settings,
    proxy: Proxy,
    delay: Duration,
    load: HttpLoad,
) -> anyhow::Result<HttpMeasurement> {
    let folder = files::scratch_folder(settings)?;
    let upstream = Upstream::start(delay)?;
    let (_proxy, site) = match proxy {
        Proxy::Nginx => nginx::start(&upstream, folder.path())?,
        Proxy::Semel => semel::start(Command::new(&settings.program), &upstream, folder.path())?,
    };
    drive(&site, load)
}

/// Requests with unique keys per second, with this many connections: each claims, executes and
/// completes in SQLite.
pub(crate) fn guarded_rate(settings: &Settings, connections: usize) -> anyhow::Result<f64> {
    let (warm_up, length) = settings.cell();
    let (warm_up, length) = (warm_up * 2, Length::Time(length));
    let load = HttpLoad { connections, keys: KeyPattern::New, warm_up, length };
    Ok(measure(settings, Proxy::Semel, Duration::ZERO, load)?.per_second)
}

/// How much of the machine the load took, and how much others did: it says how far to trust the
/// ratios.
fn add_load(report: &mut Report, seen: &[ProxyMeasurements]) {
    let Some((_, nginx)) = seen.first() else {
        return;
    };
    let line = |report: &mut Report, what: &str, unit, rounds: &[f64]| {
        report.line(FAMILY, format!("c=64: {what}"), unit, rounds);
    };
    line(report, "the load, CPU per request", "µs", &each(nginx, |cell| cell.load_micros));
    line(report, "the load, busy", "cores", &each(nginx, |cell| cell.load_cores));
    line(report, "the upstream, CPU per request", "µs", &each(nginx, |cell| cell.behind_micros));
    let foreign = seen.iter().flat_map(|(_, cells)| each(cells, |cell| cell.foreign_cores));
    let what = format!("busy with other programs, of {} cores", machine::cores());
    line(report, &what, "cores", &foreign.collect::<Vec<_>>());
}

/// Adds what was seen for one part. The part of the family has nginx.
fn add(
    report: &mut Report,
    part: &'static str,
    conditions: Conditions,
    seen: &[ProxyMeasurements],
) {
    let Some((_, nginx)) = seen.first() else {
        return;
    };
    for (subject, cells) in seen.iter().filter(|(subject, _)| subject.part == part) {
        let what = |text: &str| format!("{}{}{text}", prefix(conditions), subject.name);
        let is_judged = part == UNIQUE && conditions.connections == 64;
        report.line(part, what(""), "req/s", &each(cells, |cell| cell.per_second));
        report.line(part, what(", p50"), "ms", &each(cells, |cell| cell.p50_millis));
        report.line(part, what(", p99"), "ms", &each(cells, |cell| cell.p99_millis));
        if is_judged {
            let tail = each(cells, |cell| cell.p99_millis / cell.p50_millis);
            report.judge(part, what(", p99 / p50"), "x", &tail, Target::AtMost(10.0));
        }
        let cpu = each(cells, |cell| cell.server_micros);
        let target = is_judged.then_some(Target::Below(50.0));
        report.add(part, what(", CPU per request"), "µs", &cpu, target);
        if subject.proxy == Proxy::Semel {
            add_threads(report, part, &what(", CPU per request"), cells);
            compare_with(report, conditions, *subject, cells, nginx);
        }
    }
}

/// The processor time again, by the names of threads, where one counts.
fn add_threads(report: &mut Report, part: &'static str, what: &str, cells: &[HttpMeasurement]) {
    let names = cells.iter().flat_map(|cell| cell.thread_micros.keys());
    for name in names.map(|name| kind(name)).collect::<BTreeSet<_>>() {
        let rounds = each(cells, |cell| {
            let of_kind = cell.thread_micros.iter().filter(|(thread, _)| kind(thread) == name);
            of_kind.map(|(_, micros)| micros).sum()
        });
        if median(&rounds) >= 0.1 {
            report.line(part, format!("{what}: {name}"), "µs", &rounds);
        }
    }
}

/// The name that a thread shares with its siblings.
fn kind(name: &str) -> &str {
    name.trim_end_matches(|end: char| end.is_ascii_digit() || end == '-')
}

/// Holds what was seen against nginx in the same round.
fn compare_with(
    report: &mut Report,
    conditions: Conditions,
    subject: ProxyCase,
    cells: &[HttpMeasurement],
    nginx: &[HttpMeasurement],
) {
    let ProxyCase { part, name, .. } = subject;
    let what = |text: &str| format!("{}{name}{text}", prefix(conditions));
    let [rates, nginx_rates] = [cells, nginx].map(|of| each(of, |cell| cell.per_second));
    let target = match (part, conditions.connections) {
        (PASS, _) => Some(0.9),
        (UNIQUE, 64) => Some(0.42),
        (UNIQUE, _) => Some(0.48),
        (REPLAY, _) => Some(1.1),
        _ => None,
    };
    let target = target.map(Target::AtLeast);
    report.add(part, what(" / nginx"), "x", &ratios(&rates, &nginx_rates), target);
    if part == SLOW {
        let [p50, nginx_p50] = [cells, nginx].map(|of| each(of, |cell| cell.p50_millis));
        let pairs = p50.iter().zip(&nginx_p50);
        let over = pairs.map(|(semel, nginx)| semel - nginx).collect::<Vec<_>>();
        report.judge(part, what(", p50 over nginx"), "ms", &over, Target::AtMost(0.8));
    }
}

fn prefix(conditions: Conditions) -> String {
    let Conditions { connections, delay } = conditions;
    match delay.as_millis() {
        0 => format!("c={connections}: "),
        millis => format!("c={connections}, {millis} ms: "),
    }
}

/// How much memory the gateway occupies after very many keys.
fn memory(settings: &Settings, report: &mut Report) -> anyhow::Result<()> {
    let count = settings.or_quick(1_000_000, 50_000);
    progress(&format!("{MEMORY}: {count} keys"));
    let (warm_up, length) = (Duration::ZERO, Length::Requests(count));
    let load = HttpLoad { connections: 256, keys: KeyPattern::New, warm_up, length };
    let cell = measure(settings, Proxy::Semel, Duration::ZERO, load)?;
    progress_end();
    let mebibytes = cell.resident_bytes / f64::from(1 << 20);
    let what = format!("after {count} keys");
    report.judge(MEMORY, what, "MiB", &[mebibytes], Target::Below(150.0));
    report.line(MEMORY, "c=256: meanwhile", "req/s", &[cell.per_second]);
    Ok(())
}
