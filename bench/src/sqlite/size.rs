//! Bytes of file and of memory per record.

use std::{
    path::{Path, PathBuf},
    process::Command,
};

use anyhow::{Context as _, ensure};
use semel_sqlite::SqliteStore;

use crate::{
    machine,
    measure::as_f64,
    report::{Report, Target},
    settings::{Settings, progress, progress_end},
    sqlite::files,
};

const PART: &str = "sqlite.size";

/// SQLite's own cache, which is bounded and no part of a record.
const CACHE_KILOBYTES: f64 = 65_536.0;

pub(crate) async fn run(settings: &Settings, report: &mut Report) -> anyhow::Result<()> {
    let (small, large) = (files::small_record_count(settings), files::large_record_count(settings));
    let small_path = files::filled_file(settings, small).await?;
    let large_path = files::filled_file(settings, large).await?;
    let bytes = file_bytes(&small_path)? / count_records(&small_path)?;
    report.judge(PART, "file per record", "bytes", &[bytes], Target::Below(750.0));

    let folder = files::scratch_folder(settings)?;
    let empty_path = folder.path().join("empty.db");
    let rounds = settings.or_quick(3, 1);
    let (mut slope, mut absolute) = (Vec::new(), Vec::new());
    for round in 0..rounds {
        progress(&format!("{PART}: memory, round {} of {rounds}", round + 1));
        let [empty, few, many] =
            [&empty_path, &small_path, &large_path].map(|path| resident_after_opening(path));
        let (empty, few, many) = (empty?, few?, many?);
        slope.push((many - few) * 1024.0 / as_f64(large - small));
        let cache = if settings.quick { 0.0 } else { CACHE_KILOBYTES };
        absolute.push((few - empty - cache) * 1024.0 / as_f64(small));
    }
    progress_end();
    report.judge(PART, "memory per record", "bytes", &slope, Target::Below(40.0));
    report.line(PART, format!("memory per record, {small} records"), "bytes", &absolute);
    report.note(format!(
        "Memory is what a new process occupies once it has opened a file. Its growth from {small} \
         to {large} records leaves out what does not grow, SQLite's bounded cache above all, which \
         is full in both; the second figure takes off the 64 MiB of that cache and what an empty \
         file needs."
    ));
    Ok(())
}

/// The file and its log.
fn file_bytes(path: &Path) -> anyhow::Result<f64> {
    let mut log = path.as_os_str().to_owned();
    log.push("-wal");
    let log = PathBuf::from(log).metadata().map_or(0, |log| log.len());
    Ok(as_f64(usize::try_from(path.metadata()?.len() + log)?))
}

fn count_records(path: &Path) -> anyhow::Result<f64> {
    let count = files::query_number(path, "SELECT count(*) FROM claims")?;
    Ok(as_f64(usize::try_from(count)?))
}

/// Opens a file in a separate process and returns the kilobytes of its memory.
fn resident_after_opening(path: &Path) -> anyhow::Result<f64> {
    let program = std::env::current_exe()?;
    let ran = Command::new(program).arg("--resident").arg(path).output()?;
    ensure!(ran.status.success(), "{}", String::from_utf8_lossy(&ran.stderr));
    let kilobytes = String::from_utf8(ran.stdout)?;
    kilobytes.trim().parse().context("reading what the other process said")
}

/// The main function of that process.
pub(crate) fn report_resident(path: &str) -> anyhow::Result<()> {
    let store = SqliteStore::open(path)?;
    println!("{}", machine::resident_kilobytes(std::process::id())?);
    drop(store);
    Ok(())
}
