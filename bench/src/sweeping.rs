//! How long claims take while expired records are swept: for any store that has plenty of them.
//!
//! Windows with and without a sweep alternate.

use std::{
    sync::{
        Arc,
        atomic::{AtomicBool, AtomicU64, Ordering},
    },
    time::{Duration, Instant},
};

use semel_core::Store;

use crate::{
    load::{StoreLoad, Subject, drive},
    measure::{Latencies, as_f64, ratios},
    report::{Report, Target},
    settings::{Settings, progress, progress_end},
};

/// The pace of a sweep.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Pace {
    /// How many records a batch takes.
    pub(crate) batch: u32,
    /// How long it rests after a batch of this duration.
    pub(crate) rest: fn(Duration) -> Duration,
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

/// Sweeps the records of `store`, of which `expired` may go, and adds what claims took.
pub(crate) async fn measure<S: Store>(
    settings: &Settings,
    report: &mut Report,
    part: &'static str,
    (store, expired): (&Arc<S>, usize),
    pace: Pace,
    target: Target,
) -> anyhow::Result<()> {
    let subject: Arc<dyn Subject> = store.clone();
    let (mut quiet, mut busy) = (Windows::default(), Windows::default());
    let (mut swept, mut sweeping) = (0, Duration::ZERO);
    let (warm_up, length) = settings.cell();
    let load = StoreLoad { concurrency: 64, warm_up, length: length * 2 };
    let rounds = if settings.full { usize::MAX } else { settings.rounds() };
    for round in 1..=rounds {
        progress(&format!("{part}: round {round}, {swept} of {expired} swept"));
        let cell = drive(&subject, load).await?;
        quiet.add(cell.units_per_second, cell.claims);

        let sweep = Sweep::begin(store.clone(), pace);
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
        report.line(part, format!("c=64: {name} a sweep"), "units/s", &windows.units);
        report.line(part, format!("c=64: claim p50 {name}"), "ms", &windows.p50);
        report.line(part, format!("c=64: claim p99 {name}"), "ms", &windows.p99);
        report.line(part, format!("c=64: longest claim {name}"), "ms", &windows.longest);
    }
    let p99 = ratios(&busy.p99, &quiet.p99);
    report.judge(part, "c=64: claim p99 with / without", "x", &p99, target);
    let swept = as_f64(usize::try_from(swept)?);
    report.line(part, "swept while measured", "records", &[swept]);
    report.line(part, "sweeping", "records/s", &[swept / sweeping.as_secs_f64()]);
    Ok(())
}

/// A sweep in the background.
struct Sweep {
    stop: Arc<AtomicBool>,
    swept: Arc<AtomicU64>,
    task: tokio::task::JoinHandle<anyhow::Result<bool>>,
}

impl Sweep {
    fn begin(store: Arc<dyn Store>, pace: Pace) -> Self {
        let (stop, swept) = (Arc::new(AtomicBool::new(false)), Arc::new(AtomicU64::new(0)));
        let (stopped, count) = (Arc::clone(&stop), Arc::clone(&swept));
        let task = tokio::spawn(async move {
            while !stopped.load(Ordering::Relaxed) {
                let begun = Instant::now();
                let batch = store.sweep(pace.batch).await?;
                count.fetch_add(batch.done.into(), Ordering::Relaxed);
                if !batch.more {
                    return Ok(false);
                }
                tokio::time::sleep((pace.rest)(begun.elapsed())).await;
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
