//! Units per second in files of one and five million records, beside an empty one.

use std::sync::Arc;

use semel_sqlite::SqliteStore;

use crate::{
    load::{StoreLoad, Subject, drive},
    measure::{ratios, turns},
    report::{Report, Target},
    settings::{Settings, progress, progress_end},
    sqlite::files,
};

const PART: &str = "sqlite.filled";

pub(crate) async fn run(settings: &Settings, report: &mut Report) -> anyhow::Result<()> {
    let folder = files::scratch_folder(settings)?;
    let counts = [0, files::small_record_count(settings), files::large_record_count(settings)];
    let mut stores: Vec<Arc<dyn Subject>> = Vec::new();
    for count in counts {
        let path = folder.path().join(format!("{count}.db"));
        if count > 0 {
            files::copy(&files::filled_file(settings, count).await?, &path)?;
        }
        stores.push(Arc::new(SqliteStore::open(&path)?));
    }
    let (warm_up, length) = settings.cell();
    let load = StoreLoad { concurrency: 64, warm_up, length };
    let mut seen = [const { Vec::new() }; 3];
    let rounds = settings.rounds();
    for round in 0..rounds {
        progress(&format!("{PART}: round {} of {rounds}", round + 1));
        for at in turns(round, stores.len()) {
            seen[at].push(drive(&stores[at], load).await?.units_per_second);
        }
    }
    progress_end();
    let [empty, small, large] = &seen;
    for (count, values) in counts.iter().zip(&seen) {
        report.line(PART, format!("c=64: {count} records at first"), "units/s", values);
    }
    for (count, values) in [(counts[1], small), (counts[2], large)] {
        let what = format!("c=64: {count} records / empty");
        report.judge(PART, what, "x", &ratios(values, empty), Target::AtLeast(0.85));
    }
    Ok(())
}
