//! Units per second and their latency, beside the usual pattern well written.

use std::sync::Arc;

use crate::{
    load::{StoreLoad, Subject, drive},
    machine,
    measure::{as_f64, ratios, turns},
    postgres::{server::PostgresServer, usual::Usual},
    report::{Report, Target},
    settings::{Settings, progress, progress_end},
};

/// How many units are under way, and what the rate has to be beside that of the usual pattern.
const CELLS: [(&str, usize, Option<Target>); 4] = [
    ("postgres.alone", 1, None),
    ("postgres.throughput", 16, None),
    ("postgres.throughput", 64, Some(Target::AtLeast(2.5))),
    ("postgres.throughput", 256, Some(Target::AtLeast(3.5))),
];

/// The limit for a single operation relative to the usual pattern, without concurrency.
const ALONE: Target = Target::AtMost(1.1);

/// How many times as many rounds there are, each a quarter as long.
const TURNS: usize = 5;

const NAMES: [&str; 2] = ["Semel", "usual pattern"];

/// What was seen of each subject, round by round.
#[derive(Debug, Default)]
struct PostgresSamples {
    units: Vec<f64>,
    claim: Vec<f64>,
    claim_p99: Vec<f64>,
    complete: Vec<f64>,
    micros: Vec<f64>,
    /// The part of it that is not the server's.
    own: Vec<f64>,
}

pub(crate) async fn run(settings: &Settings, report: &mut Report) -> anyhow::Result<()> {
    let cells = CELLS.iter().filter(|(part, ..)| settings.wants(part)).collect::<Vec<_>>();
    if cells.is_empty() {
        return Ok(());
    }
    let server = PostgresServer::start();
    let subjects: [Arc<dyn Subject>; 2] =
        [Arc::new(server.store("semel").await?), Arc::new(Usual::connect(&server.url()).await?)];
    for &(part, concurrency, target) in cells {
        let (mut rounds, (mut warm_up, mut length)) = (settings.rounds(), settings.cell());
        if concurrency == 1 {
            // A difference of a few microseconds shows only if both sides are measured close
            // together.
            (rounds, warm_up, length) = (rounds * TURNS, warm_up / 4, length / 4);
        }
        let load = StoreLoad { concurrency, warm_up, length };
        let mut seen = [(); 2].map(|()| PostgresSamples::default());
        for round in 0..rounds {
            progress(&format!("{part}: c={concurrency}, round {} of {rounds}", round + 1));
            for at in turns(round, subjects.len()) {
                let (spent, own) = (machine::family_micros()?, machine::own_micros());
                let mut cell = drive(&subjects[at], load).await?;
                let spent = machine::family_micros()? - spent;
                let own = machine::own_micros() - own;
                let seen = &mut seen[at];
                seen.units.push(cell.units_per_second);
                seen.claim.push(cell.claims.within(0.5) * 1e3);
                seen.claim_p99.push(cell.claims.within(0.99));
                seen.complete.push(cell.completions.within(0.5) * 1e3);
                seen.micros.push(spent / as_f64(cell.units_in_all));
                seen.own.push(own / as_f64(cell.units_in_all));
            }
        }
        progress_end();
        add(report, part, concurrency, target, &seen);
    }
    report.note(format!(
        "A unit is a durable claim and a durable completion with a body of 500 random bytes. The \
         usual pattern: `INSERT … ON CONFLICT DO NOTHING`, then `UPDATE`, each its own transaction \
         and one round trip, prepared, on a pool of 16 connections, on a table with the same \
         columns and an index on the expiry. CPU is that of this program, load included, and of \
         all processes of the server. {}",
        server.describe(),
    ));
    Ok(())
}

fn add(
    report: &mut Report,
    part: &'static str,
    concurrency: usize,
    target: Option<Target>,
    seen: &[PostgresSamples; 2],
) {
    let [semel, usual] = seen;
    let what = |text: &str| format!("c={concurrency}: {text}");
    for (name, seen) in NAMES.iter().zip(seen) {
        report.line(part, what(name), "units/s", &seen.units);
        report.line(part, what(&format!("{name}, claim p50")), "µs", &seen.claim);
        report.line(part, what(&format!("{name}, claim p99")), "ms", &seen.claim_p99);
        report.line(part, what(&format!("{name}, complete p50")), "µs", &seen.complete);
        report.line(part, what(&format!("{name}, CPU per unit")), "µs", &seen.micros);
        let own = format!("{name}, CPU per unit without the server");
        report.line(part, what(&own), "µs", &seen.own);
    }
    let rate = ratios(&semel.units, &usual.units);
    report.add(part, what("Semel / usual pattern"), "x", &rate, target);
    if concurrency == 1 {
        let claim = ratios(&semel.claim, &usual.claim);
        let complete = ratios(&semel.complete, &usual.complete);
        report.judge(part, what("claim p50, Semel / usual pattern"), "x", &claim, ALONE);
        report.judge(part, what("complete p50, Semel / usual pattern"), "x", &complete, ALONE);
    }
}
