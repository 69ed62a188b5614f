//! How long claims take while expired records of two retentions are swept.
//!
//! The clock of the store is put so far ahead that every record of the filled file has expired. Windows
//! with and without a sweep alternate; the sweep is paced as a caller of the store would pace it.

use std::{
    sync::{
        Arc,
        atomic::{AtomicBool, AtomicU64, Ordering},
    },
    time::{Duration, Instant},
};

use semel_core::Store as _;
use semel_sqlite::{Clock, Options, SqliteStore, SystemClock};

use crate::{
    load::{Load, RETENTION_MAX, Subject, drive},
    measure::{Latencies, as_f64, ratios},
    report::{Report, Target},
    settings::{Settings, progress, progress_end},
    sqlite::files,
};

const PART: &str = "sqlite.sweep";

/// How many records one batch of the sweep takes, and how long it rests after each.
const BATCH: u32 = 200;
const REST: Duration = Duration::from_millis(20);

/// The machine's clock, put ahead by more than the longest retention.
#[derive(Debug)]
struct Ahead;

impl Clock for Ahead {
    fn boot_id(&self) -> String {
        "a boot of the future".to_owned()
    }

    fn since_boot(&self) -> Duration {
        SystemClock.since_boot()
    }

    fn wall(&self) -> Duration {
        SystemClock.wall() + RETENTION_MAX * 400
    }
}

/// The percentiles of claims, window by window, in milliseconds.
#[derive(Debug, Default)]
struct Windows {
    units: Vec<f64>,
    p50: Vec<f64>,
    p99: Vec<f64>,
    longest: Vec<f64>,
}

impl Windows {
    fn add(&mut self, units: f64, mut claims: Latencies) {
        self.units.push(units);
        self.p50.push(claims.within(0.5));
        self.p99.push(claims.within(0.99));
        self.longest.push(claims.within(1.0));
    }
}

pub(crate) async fn run(settings: &Settings, report: &mut Report) -> anyhow::Result<()> {
    let folder = files::scratch(settings)?;
    let path = folder.path().join("sweep.db");
    let expired = files::small(settings);
    files::copy(&files::kept(settings, expired).await?, &path)?;
    let store = Arc::new(Options::new().clock(Arc::new(Ahead)).open(&path)?);
    let subject: Arc<dyn Subject> = store.clone();
    let (mut quiet, mut busy) = (Windows::default(), Windows::default());
    let (mut swept, mut sweeping) = (0, Duration::ZERO);
    let (warm_up, length) = settings.cell();
    let load = Load { concurrency: 64, warm_up, length: length * 2 };
    let rounds = if settings.full { usize::MAX } else { settings.rounds() };
    for round in 1..=rounds {
        progress(&format!("{PART}: round {round}, {swept} of {expired} swept"));
        let cell = drive(&subject, load).await?;
        quiet.add(cell.units_per_second, cell.claims);

        let sweep = Sweep::begin(Arc::clone(&store));
        let begin = Instant::now();
        let cell = drive(&subject, load).await?;
        let (done, more) = sweep.end().await?;
        sweeping += begin.elapsed();
        swept += done;
        if !more {
            break;
        }
        busy.add(cell.units_per_second, cell.claims);
    }
    progress_end();
    for (name, windows) in [("without", &quiet), ("with", &busy)] {
        report.line(PART, format!("c=64: {name} a sweep"), "units/s", &windows.units);
        report.line(PART, format!("c=64: claim p50 {name}"), "ms", &windows.p50);
        report.line(PART, format!("c=64: claim p99 {name}"), "ms", &windows.p99);
        report.line(PART, format!("c=64: longest claim {name}"), "ms", &windows.longest);
    }
    let p99 = ratios(&busy.p99, &quiet.p99);
    report.judge(PART, "c=64: claim p99 with / without", "x", &p99, Target::AtMost(3.0));
    let swept = as_f64(usize::try_from(swept)?);
    report.line(PART, "swept while measured", "records", &[swept]);
    report.line(PART, "sweeping", "records/s", &[swept / sweeping.as_secs_f64()]);
    Ok(())
}

/// A sweep in the background.
struct Sweep {
    stop: Arc<AtomicBool>,
    swept: Arc<AtomicU64>,
    task: tokio::task::JoinHandle<anyhow::Result<bool>>,
}

impl Sweep {
    fn begin(store: Arc<SqliteStore>) -> Self {
        let (stop, swept) = (Arc::new(AtomicBool::new(false)), Arc::new(AtomicU64::new(0)));
        let (stopped, count) = (Arc::clone(&stop), Arc::clone(&swept));
        let task = tokio::spawn(async move {
            while !stopped.load(Ordering::Relaxed) {
                let batch = store.sweep(BATCH).await?;
                count.fetch_add(batch.done.into(), Ordering::Relaxed);
                if !batch.more {
                    return Ok(false);
                }
                tokio::time::sleep(REST).await;
            }
            Ok(true)
        });
        Self { stop, swept, task }
    }

    /// How many records it deleted, and whether there are more.
    async fn end(self) -> anyhow::Result<(u64, bool)> {
        self.stop.store(true, Ordering::Relaxed);
        let more = self.task.await??;
        Ok((self.swept.load(Ordering::Relaxed), more))
    }
}
