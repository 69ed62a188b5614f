//! The HTTP layer: what it costs over bare axum, which gets the very same requests.

mod exchange;
mod load;
pub(crate) mod serve;
mod server;

use std::time::Duration;

use anyhow::Context as _;

use crate::{
    layer::{
        load::{Cell, Load, drive},
        server::{Guard, Server},
    },
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
struct Subject {
    part: &'static str,
    name: &'static str,
    guard: Guard,
    repeats_in_ten: u64,
    /// What it may cost over bare axum.
    cost: Option<Target>,
    /// What its rate has to be beside that of bare axum.
    rate: Option<Target>,
}

/// What the others are held against.
const BARE: Subject = Subject {
    part: FAMILY,
    name: "bare axum",
    guard: Guard::Nothing,
    repeats_in_ten: 0,
    cost: None,
    rate: None,
};

const GUARDED: [Subject; 4] = [
    Subject {
        part: MEMORY,
        name: "memory store",
        guard: Guard::Memory,
        repeats_in_ten: 0,
        cost: Some(Target::AtMost(12.0)),
        rate: None,
    },
    Subject {
        part: SQLITE,
        name: "SQLite",
        guard: Guard::Sqlite,
        repeats_in_ten: 0,
        cost: None,
        rate: Some(Target::AtLeast(0.3)),
    },
    Subject {
        part: REPLAY,
        name: "all repeats",
        guard: Guard::Memory,
        repeats_in_ten: 10,
        cost: None,
        rate: Some(Target::AtLeast(0.75)),
    },
    Subject {
        part: REPLAY,
        name: "nine in ten repeats",
        guard: Guard::Memory,
        repeats_in_ten: 9,
        cost: None,
        rate: None,
    },
];

/// What was seen of a subject, round by round.
#[derive(Debug, Default)]
struct Seen {
    per_second: Vec<f64>,
    server_micros: Vec<f64>,
    load_micros: Vec<f64>,
    growth_bytes: Vec<f64>,
    foreign_cores: Vec<f64>,
    p50_micros: Vec<f64>,
    p99_millis: Vec<f64>,
}

impl Seen {
    fn push(&mut self, mut cell: Cell) {
        self.per_second.push(cell.per_second);
        self.server_micros.push(cell.server_micros);
        self.load_micros.push(cell.load_micros);
        self.growth_bytes.push(cell.growth_bytes);
        self.foreign_cores.push(cell.foreign_cores);
        self.p50_micros.push(cell.latencies.within(0.5) * 1e3);
        self.p99_millis.push(cell.latencies.within(0.99));
    }
}

pub(crate) fn run(settings: &Settings, report: &mut Report) -> anyhow::Result<()> {
    let wanted = |subject: &Subject| settings.wants(subject.part);
    let guarded = GUARDED.into_iter().filter(wanted).collect::<Vec<_>>();
    let (_, length) = settings.cell();
    let judged = compare(settings, &guarded, 64, settings.rounds(), length)?;
    let Some((_, bare)) = judged.first() else {
        return Ok(());
    };
    // The rest is for information, and repeats have nothing to add to it.
    let unique = |subject: &Subject| subject.repeats_in_ten == 0;
    let unique = guarded.iter().copied().filter(unique).collect::<Vec<_>>();
    let many = compare(settings, &unique, 256, 3, length / 2)?;
    let one = compare(settings, &unique, 1, 3, length / 4)?;
    progress_end();
    report.line(FAMILY, "c=64: the load itself, CPU per request", "µs", &bare.load_micros);
    let foreign = judged.iter().flat_map(|(_, seen)| &seen.foreign_cores).copied();
    let what = format!("c=64: busy with other programs, of {} cores", machine::cores());
    report.line(FAMILY, what, "cores", &foreign.collect::<Vec<_>>());
    for part in [FAMILY, MEMORY, SQLITE, REPLAY] {
        let of_part = |seen: &&(Subject, Seen)| seen.0.part == part;
        judged.iter().filter(of_part).for_each(|seen| add(report, 64, seen, bare));
        many.iter().filter(of_part).for_each(|seen| add(report, 256, seen, &many[0].1));
        for (Subject { name, .. }, seen) in one.iter().filter(of_part) {
            report.line(part, format!("c=1: {name}, p50"), "µs", &seen.p50_micros);
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
    guarded: &[Subject],
    connections: usize,
    rounds: usize,
    length: Duration,
) -> anyhow::Result<Vec<(Subject, Seen)>> {
    if guarded.is_empty() {
        return Ok(Vec::new());
    }
    let subjects = [&[BARE], guarded].concat();
    let mut seen: Vec<_> = subjects.into_iter().map(|one| (one, Seen::default())).collect();
    for round in 0..rounds {
        progress(&format!("{FAMILY}: c={connections}, round {} of {rounds}", round + 1));
        for at in turns(round, seen.len()) {
            let (subject, seen) = &mut seen[at];
            let (warm_up, _) = settings.cell();
            let repeats_in_ten = subject.repeats_in_ten;
            let folder = files::scratch(settings)?;
            let server = Server::start(subject.guard, folder.path())?;
            let load = Load { connections, repeats_in_ten, warm_up, length };
            seen.push(drive(&server, load).with_context(|| subject.name)?);
        }
    }
    Ok(seen)
}

fn add(report: &mut Report, connections: usize, seen: &(Subject, Seen), bare: &Seen) {
    let (subject, seen) = seen;
    let Subject { part, name, .. } = *subject;
    let what = |text: &str| format!("c={connections}: {name}{text}");
    report.line(part, what(""), "req/s", &seen.per_second);
    report.line(part, what(", p99"), "ms", &seen.p99_millis);
    report.line(part, what(", CPU per request"), "µs", &seen.server_micros);
    if part == FAMILY {
        return;
    }
    let pairs = seen.server_micros.iter().zip(&bare.server_micros);
    let cost = pairs.map(|(guarded, bare)| guarded - bare).collect::<Vec<_>>();
    let rate = ratios(&seen.per_second, &bare.per_second);
    let judged = |target: Option<Target>| target.filter(|_| connections == 64);
    let figures = [
        (", CPU over bare axum", "µs", cost, judged(subject.cost)),
        (" / bare axum", "x", rate, judged(subject.rate)),
    ];
    for (text, unit, rounds, target) in figures {
        match target {
            Some(target) => report.judge(part, what(text), unit, &rounds, target),
            None => report.line(part, what(text), unit, &rounds),
        }
    }
    if part == MEMORY {
        report.line(part, what(", memory kept per request"), "bytes", &seen.growth_bytes);
    }
}
