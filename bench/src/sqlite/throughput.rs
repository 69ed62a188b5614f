//! Units per second, beside a plain table with one transaction each and beside a bare log.

use std::sync::Arc;

use semel_sqlite::SqliteStore;

use crate::{
    baseline::{BareLog, OneByOne},
    load::{Load, Subject, drive},
    measure::{ratios, turns},
    report::{Report, Target},
    settings::{Settings, progress, progress_end},
    sqlite::files,
};

const PART: &str = "sqlite.throughput";

/// The concurrency that has targets, then those for information.
const CONCURRENCIES: [usize; 4] = [64, 1, 16, 256];

const NAMES: [&str; 3] = ["Semel", "one transaction each", "bare log"];

pub(crate) async fn run(settings: &Settings, report: &mut Report) -> anyhow::Result<()> {
    let folder = files::scratch(settings)?;
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
        let load = Load { concurrency, warm_up, length };
        let mut seen = [const { Vec::new() }; 3];
        let mut p99 = [const { Vec::new() }; 3];
        for round in 0..rounds {
            progress(&format!("{PART}: c={concurrency}, round {} of {rounds}", round + 1));
            for at in turns(round, subjects.len()) {
                let mut cell = drive(&subjects[at], load).await?;
                seen[at].push(cell.units_per_second);
                p99[at].push(cell.claims.within(0.99));
            }
        }
        progress_end();
        add(report, concurrency, &seen, &p99);
    }
    report.note(
        "A unit is a durable claim and a durable completion with a body of 500 random bytes. The \
         plain table and the bare log have one writer thread each; the log batches as Semel does, \
         extends its file, and writes the bytes of the columns only.",
    );
    Ok(())
}

fn add(report: &mut Report, concurrency: usize, seen: &[Vec<f64>; 3], p99: &[Vec<f64>; 3]) {
    let [semel, each, log] = seen;
    for (name, values) in NAMES.iter().zip(seen) {
        report.line(PART, format!("c={concurrency}: {name}"), "units/s", values);
    }
    for (name, values) in NAMES.iter().zip(p99) {
        report.line(PART, format!("c={concurrency}: claim p99, {name}"), "ms", values);
    }
    let (over_each, over_log) = (ratios(semel, each), ratios(semel, log));
    let each = format!("c={concurrency}: Semel / one transaction each");
    let log = format!("c={concurrency}: Semel / bare log");
    if concurrency == 64 {
        report.judge(PART, each, "x", &over_each, Target::AtLeast(12.0));
        report.judge(PART, log, "x", &over_log, Target::AtLeast(0.8));
    } else {
        report.line(PART, each, "x", &over_each);
        report.line(PART, log, "x", &over_log);
    }
}
