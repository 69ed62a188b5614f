//! Units per second, beside a plain table with one transaction each and beside a bare log.

use std::sync::Arc;

use semel_sqlite::SqliteStore;

use crate::{
    baseline::{BareLog, OneByOne},
    load::{StoreLoad, Subject, drive},
    machine,
    measure::{as_f64, ratios, turns},
    report::{Report, Target},
    settings::{Settings, progress, progress_end},
    sqlite::files,
};

const PART: &str = "sqlite.throughput";

/// The concurrency that has targets, then those for information.
const CONCURRENCIES: [usize; 4] = [64, 1, 16, 256];

const NAMES: [&str; 3] = ["Semel", "one transaction each", "bare log"];

/// The threads that write, in the same order.
const THREADS: [&str; 3] = ["semel-sqlite-write", "one-by-one", "bare-log"];

/// What was seen of each subject, round by round.
#[derive(Debug, Default)]
struct SqliteSamples {
    units: Vec<f64>,
    p99: Vec<f64>,
    micros: Vec<f64>,
}

pub(crate) async fn run(settings: &Settings, report: &mut Report) -> anyhow::Result<()> {
    let folder = files::scratch_folder(settings)?;
    let file = |name: &str| folder.path().join(name);
    let subjects: [Arc<dyn Subject>; 3] = [
        Arc::new(SqliteStore::open(file("semel.db"))?),
        Arc::new(OneByOne::open(&file("each.db"))?),
        Arc::new(BareLog::open(&file("log"))?),
    ];
    let (warm_up, length) = settings.cell();
    for concurrency in CONCURRENCIES {
        let judged = concurrency == 64;
        let rounds = if judged { settings.rounds() } else { 3 };
        let length = if judged { length } else { length / 2 };
        let load = StoreLoad { concurrency, warm_up, length };
        let mut seen = [(); 3].map(|()| SqliteSamples::default());
        for round in 0..rounds {
            progress(&format!("{PART}: c={concurrency}, round {} of {rounds}", round + 1));
            for at in turns(round, subjects.len()) {
                let spent = machine::thread_micros(THREADS[at]);
                let mut cell = drive(&subjects[at], load).await?;
                let spent = machine::thread_micros(THREADS[at]) - spent;
                seen[at].units.push(cell.units_per_second);
                seen[at].p99.push(cell.claims.within(0.99));
                seen[at].micros.push(spent / as_f64(cell.units_in_all));
            }
        }
        progress_end();
        add(report, concurrency, &seen);
    }
    report.note(
        "A unit is a durable claim and a durable completion with a body of 500 random bytes. The \
         plain table and the bare log have one writer thread each; the log batches as Semel does, \
         extends its file, and writes the bytes of the columns only.",
    );
    Ok(())
}

fn add(report: &mut Report, concurrency: usize, seen: &[SqliteSamples; 3]) {
    let [semel, each, log] = seen;
    let what = |text: &str| format!("c={concurrency}: {text}");
    for (name, seen) in NAMES.iter().zip(seen) {
        report.line(PART, what(name), "units/s", &seen.units);
    }
    for (name, seen) in NAMES.iter().zip(seen) {
        report.line(PART, what(&format!("claim p99, {name}")), "ms", &seen.p99);
    }
    for (name, seen) in NAMES.iter().zip(seen) {
        report.line(PART, what(&format!("writer per unit, {name}")), "µs", &seen.micros);
    }
    let over_each = ratios(&semel.units, &each.units);
    let over_log = ratios(&semel.units, &log.units);
    let (each, log) = (what("Semel / one transaction each"), what("Semel / bare log"));
    if concurrency == 64 {
        report.judge(PART, each, "x", &over_each, Target::AtLeast(12.0));
        report.judge(PART, log, "x", &over_log, Target::AtLeast(0.8));
    } else {
        report.line(PART, each, "x", &over_each);
        report.line(PART, log, "x", &over_log);
    }
}
