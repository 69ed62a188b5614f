//! The HTTP layer: what it costs over bare axum, which gets the very same requests.

pub(crate) mod serve;
mod server;

use std::time::Duration;

use anyhow::Context as _;

use crate::{
    http::load::{HttpLoad, HttpMeasurement, KeyPattern, Length, drive, each},
    layer::server::{AppServer, Guard},
    machine,
    measure::{ratios, turns},
    report::{Report, Target},
    settings::{Settings, progress, progress_end},
    sqlite::files,
};

const FAMILY: &str = "layer";
const MEMORY: &str = "layer.memory";
const SQLITE: &str = "layer.sqlite";
const REPLAY: &str = "layer.replay";

/// What is measured, and for which part of the benchmark.
#[derive(Clone, Copy, Debug)]
struct LayerCase {
    part: &'static str,
    name: &'static str,
    guard: Guard,
    keys: KeyPattern,
    /// What it may cost over bare axum.
    cost: Option<Target>,
    /// What its rate has to be beside that of bare axum.
    rate: Option<Target>,
}

/// What the others are held against.
const BARE: LayerCase = LayerCase {
    part: FAMILY,
    name: "bare axum",
    guard: Guard::Nothing,
    keys: KeyPattern::New,
    cost: None,
    rate: None,
};

const GUARDED: [LayerCase; 4] = [
    LayerCase {
        part: MEMORY,
        name: "memory store",
        guard: Guard::Memory,
        keys: KeyPattern::New,
        cost: Some(Target::AtMost(12.0)),
        rate: None,
    },
    LayerCase {
        part: SQLITE,
        name: "SQLite",
        guard: Guard::Sqlite,
        keys: KeyPattern::New,
        cost: None,
        rate: Some(Target::AtLeast(0.3)),
    },
    LayerCase {
        part: REPLAY,
        name: "all repeats",
        guard: Guard::Memory,
        keys: KeyPattern::Repeated(10),
        cost: None,
        rate: Some(Target::AtLeast(0.75)),
    },
    LayerCase {
        part: REPLAY,
        name: "nine in ten repeats",
        guard: Guard::Memory,
        keys: KeyPattern::Repeated(9),
        cost: None,
        rate: None,
    },
];

pub(crate) fn run(settings: &Settings, report: &mut Report) -> anyhow::Result<()> {
    let wanted = |subject: &LayerCase| settings.wants(subject.part);
    let guarded = GUARDED.into_iter().filter(wanted).collect::<Vec<_>>();
    let (_, length) = settings.cell();
    let judged = compare(settings, &guarded, 64, settings.rounds(), length)?;
    let Some((_, bare)) = judged.first() else {
        return Ok(());
    };
    // The rest is for information, and repeats have nothing to add to it.
    let unique = |subject: &LayerCase| subject.keys == KeyPattern::New;
    let unique = guarded.iter().copied().filter(unique).collect::<Vec<_>>();
    let many = compare(settings, &unique, 256, 3, length / 2)?;
    let one = compare(settings, &unique, 1, 3, length / 4)?;
    progress_end();
    let load = each(bare, |cell| cell.load_micros);
    report.line(FAMILY, "c=64: the load itself, CPU per request", "µs", &load);
    let foreign = judged.iter().flat_map(|(_, cells)| each(cells, |cell| cell.foreign_cores));
    let what = format!("c=64: busy with other programs, of {} cores", machine::cores());
    report.line(FAMILY, what, "cores", &foreign.collect::<Vec<_>>());
    for part in [FAMILY, MEMORY, SQLITE, REPLAY] {
        let of_part = |seen: &&(LayerCase, Vec<HttpMeasurement>)| seen.0.part == part;
        judged.iter().filter(of_part).for_each(|seen| add(report, 64, seen, bare));
        many.iter().filter(of_part).for_each(|seen| add(report, 256, seen, &many[0].1));
        for (LayerCase { name, .. }, cells) in one.iter().filter(of_part) {
            let p50 = each(cells, |cell| cell.p50_millis * 1e3);
            report.line(part, format!("c=1: {name}, p50"), "µs", &p50);
        }
    }
    report.note(
        "Requests are POSTs of 200 bytes of JSON with a key of 36 characters over kept \
         connections, answers 201 with 300 bytes; bare axum and the guarded servers get the same. \
         CPU is the user and system time of the server's process, which runs tokio on two threads; \
         the load is one thread beside it. Each server is new in each round. Repeats are of 1000 \
         keys that were answered before, and the cache answers them. The lighter the load, the \
         lower the ratios, since bare axum gains most: a heavier one flatters every layer.",
    );
    Ok(())
}

/// Measures bare axum and those given, in turn, each time with a new server.
fn compare(
    settings: &Settings,
    guarded: &[LayerCase],
    connections: usize,
    rounds: usize,
    length: Duration,
) -> anyhow::Result<Vec<(LayerCase, Vec<HttpMeasurement>)>> {
    if guarded.is_empty() {
        return Ok(Vec::new());
    }
    let subjects = [&[BARE], guarded].concat();
    let mut seen: Vec<_> = subjects.into_iter().map(|one| (one, Vec::new())).collect();
    for round in 0..rounds {
        progress(&format!("{FAMILY}: c={connections}, round {} of {rounds}", round + 1));
        for at in turns(round, seen.len()) {
            let (subject, cells) = &mut seen[at];
            let (warm_up, _) = settings.cell();
            let folder = files::scratch_folder(settings)?;
            let server = AppServer::start(subject.guard, folder.path())?;
            let length = Length::Time(length);
            let load = HttpLoad { connections, keys: subject.keys, warm_up, length };
            cells.push(drive(&server.site, load).with_context(|| subject.name)?);
        }
    }
    Ok(seen)
}

fn add(
    report: &mut Report,
    connections: usize,
    seen: &(LayerCase, Vec<HttpMeasurement>),
    bare: &[HttpMeasurement],
) {
    let (subject, cells) = seen;
    let LayerCase { part, name, .. } = *subject;
    let what = |text: &str| format!("c={connections}: {name}{text}");
    let [per_second, bare_per_second] = [cells, bare].map(|of| each(of, |cell| cell.per_second));
    let [micros, bare_micros] = [cells, bare].map(|of| each(of, |cell| cell.server_micros));
    report.line(part, what(""), "req/s", &per_second);
    report.line(part, what(", p99"), "ms", &each(cells, |cell| cell.p99_millis));
    report.line(part, what(", CPU per request"), "µs", &micros);
    if part == FAMILY {
        return;
    }
    let pairs = micros.iter().zip(&bare_micros);
    let cost = pairs.map(|(guarded, bare)| guarded - bare).collect::<Vec<_>>();
    let rate = ratios(&per_second, &bare_per_second);
    let judged = |target: Option<Target>| target.filter(|_| connections == 64);
    let figures = [
        (", CPU over bare axum", "µs", cost, judged(subject.cost)),
        (" / bare axum", "x", rate, judged(subject.rate)),
    ];
    for (text, unit, rounds, target) in figures {
        report.add(part, what(text), unit, &rounds, target);
    }
    if part == MEMORY {
        let growth = each(cells, |cell| cell.growth_bytes);
        report.line(part, what(", memory kept per request"), "bytes", &growth);
    }
}
