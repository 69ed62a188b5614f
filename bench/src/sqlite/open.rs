//! How long it takes to open a file of a million records that is in the system's cache.

use std::time::Instant;

use semel_sqlite::SqliteStore;

use crate::{
    report::{Report, Target},
    settings::{Settings, progress, progress_end},
    sqlite::files,
};

const PART: &str = "sqlite.open";

pub(crate) async fn run(settings: &Settings, report: &mut Report) -> anyhow::Result<()> {
    let count = files::small_record_count(settings);
    let path = files::filled_file(settings, count).await?;
    // The first opening brings the file into the cache.
    drop(SqliteStore::open(&path)?);
    let mut took = Vec::new();
    for round in 1..=5 {
        progress(&format!("{PART}: round {round} of 5"));
        let begin = Instant::now();
        let store = SqliteStore::open(&path)?;
        took.push(begin.elapsed().as_secs_f64());
        drop(store);
    }
    progress_end();
    report.judge(PART, format!("open {count} records"), "s", &took, Target::Below(2.0));
    Ok(())
}
