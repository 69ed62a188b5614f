//! How long claims take while expired records of two retentions are swept.
//!
//! The clock of the store is put so far ahead that every record of the filled file has expired. The
//! sweep is paced as a caller of the store would pace it.

use std::{sync::Arc, time::Duration};

use semel_sqlite::{BootClock, Options, SystemClock};

use crate::{
    load::RETENTION_MAX,
    report::{Report, Target},
    settings::Settings,
    sqlite::files,
    sweeping::{self, Pace},
};

const PART: &str = "sqlite.sweep";

const PACE: Pace = Pace { batch: 200, rest: |_| Duration::from_millis(20) };

/// The machine's clock, put ahead by more than the longest retention.
#[derive(Debug)]
struct Ahead;

impl BootClock for Ahead {
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

pub(crate) async fn run(settings: &Settings, report: &mut Report) -> anyhow::Result<()> {
    let folder = files::scratch_folder(settings)?;
    let path = folder.path().join("sweep.db");
    let expired = files::small_record_count(settings);
    files::copy(&files::filled_file(settings, expired).await?, &path)?;
    let store = Arc::new(Options::new().clock(Arc::new(Ahead)).open(&path)?);
    let target = Target::AtMost(3.0);
    sweeping::measure(settings, report, PART, (&store, expired), PACE, target).await
}
