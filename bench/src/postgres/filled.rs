//! Units per second in a table of ten million records, beside an empty one.

use std::sync::Arc;

use crate::{
    load::{StoreLoad, Subject, drive},
    measure::{ratios, turns},
    postgres::server::{Age, PostgresServer},
    report::{Report, Target},
    settings::{Settings, progress, progress_end},
};

const PART: &str = "postgres.filled";

pub(crate) async fn run(settings: &Settings, report: &mut Report) -> anyhow::Result<()> {
    let server = PostgresServer::start();
    let count = settings.or_quick(10_000_000, 50_000);
    let empty: Arc<dyn Subject> = Arc::new(server.store("empty").await?);
    let filled: Arc<dyn Subject> = Arc::new(server.store("filled").await?);
    server.fill("filled", count, Age::Fresh);
    let subjects = [empty, filled];
    let (warm_up, length) = settings.cell();
    let load = StoreLoad { concurrency: 64, warm_up, length };
    let mut seen = [const { Vec::new() }; 2];
    let rounds = settings.rounds();
    for round in 0..rounds {
        progress(&format!("{PART}: round {} of {rounds}", round + 1));
        for at in turns(round, subjects.len()) {
            seen[at].push(drive(&subjects[at], load).await?.units_per_second);
        }
    }
    progress_end();
    let [empty, filled] = &seen;
    report.line(PART, "c=64: empty at first", "units/s", empty);
    report.line(PART, format!("c=64: {count} records at first"), "units/s", filled);
    let what = format!("c=64: {count} records / empty");
    report.judge(PART, what, "x", &ratios(filled, empty), Target::AtLeast(0.8));
    server.sizes("filled")?.report(report, PART);
    Ok(())
}
