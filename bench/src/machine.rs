//! What the figures were measured on, and when.

use std::{
    fs,
    time::{Duration, SystemTime},
};

use anyhow::Context as _;

/// One line about the machine, its load included: it says how far to trust the figures.
pub(crate) fn describe() -> String {
    let field = |file: &str, name: &str| {
        let text = fs::read_to_string(file).unwrap_or_default();
        let line = text.lines().find(|line| line.starts_with(name)).unwrap_or_default();
        line.split_once(':').map_or("?", |(_, value)| value).trim().to_owned()
    };
    let cores = cores();
    let kernel = fs::read_to_string("/proc/sys/kernel/osrelease").unwrap_or_default();
    format!(
        "{}, {cores} cores, {} of memory, Linux {}, load {}",
        field("/proc/cpuinfo", "model name"),
        field("/proc/meminfo", "MemTotal"),
        kernel.trim(),
        load(),
    )
}

pub(crate) fn cores() -> usize {
    std::thread::available_parallelism().map_or(1, usize::from)
}

/// How many threads have wanted a core in the last minute.
pub(crate) fn load() -> String {
    let text = fs::read_to_string("/proc/loadavg").unwrap_or_default();
    text.split(' ').next().unwrap_or_default().to_owned()
}

/// Kilobytes of memory that a process occupies.
pub(crate) fn resident_kilobytes(process: u32) -> anyhow::Result<f64> {
    status_kilobytes(process, "VmRSS:")
}

/// The most kilobytes of memory that a process has occupied.
pub(crate) fn peak_kilobytes(process: u32) -> anyhow::Result<f64> {
    status_kilobytes(process, "VmHWM:")
}

fn status_kilobytes(process: u32, name: &str) -> anyhow::Result<f64> {
    let status = fs::read_to_string(format!("/proc/{process}/status"))?;
    let line = status.lines().find_map(|line| line.strip_prefix(name));
    let number = line.and_then(|line| line.trim().split(' ').next()).unwrap_or_default();
    Ok(number.parse()?)
}

/// Microseconds of processor time that a process has used so far, for itself and in the system.
pub(crate) fn process_micros(process: u32) -> anyhow::Result<f64> {
    let stat = fs::read_to_string(format!("/proc/{process}/stat"))?;
    // The name in brackets may contain anything; after it comes the third field.
    let (_, fields) = stat.rsplit_once(')').context("the system shows a process otherwise")?;
    let mut fields = fields.split_ascii_whitespace().skip(11);
    let mut ticks = || anyhow::Ok(fields.next().context("no processor time")?.parse::<f64>()?);
    let (user, system) = (ticks()?, ticks()?);
    Ok(micros(user + system))
}

/// Microseconds of processor time that everything on the machine has used so far, other machines on
/// the same processors included.
pub(crate) fn busy_micros() -> anyhow::Result<f64> {
    let stat = fs::read_to_string("/proc/stat")?;
    let all = stat.lines().next().and_then(|line| line.strip_prefix("cpu "));
    let all = all.context("the system shows its processors otherwise")?;
    let mut ticks = 0.0;
    for (at, field) in all.split_ascii_whitespace().take(8).enumerate() {
        // The fourth and the fifth count the time in which nothing was done.
        if !matches!(at, 3 | 4) {
            ticks += field.parse::<f64>()?;
        }
    }
    Ok(micros(ticks))
}

/// The system counts processor time in ticks.
fn micros(ticks: f64) -> f64 {
    let per_second = u32::try_from(rustix::param::clock_ticks_per_second()).unwrap_or(100);
    ticks * 1e6 / f64::from(per_second)
}

/// Microseconds of processor time that the threads of this name have used so far. Other programs on
/// the machine disturb this figure far less than any other.
pub(crate) fn thread_micros(name: &str) -> f64 {
    // The system keeps 15 bytes of a name.
    let name = name.get(..15).unwrap_or(name);
    let of_name = |thread: (String, f64)| (thread.0 == name).then_some(thread.1);
    threads(std::process::id()).filter_map(of_name).sum()
}

/// Microseconds of processor time that the threads of this process have used so far, those aside
/// that have ended.
pub(crate) fn own_micros() -> f64 {
    threads(std::process::id()).map(|(_, micros)| micros).sum()
}

/// The threads of a process: their names, and microseconds of processor time used so far.
pub(crate) fn threads(process: u32) -> impl Iterator<Item = (String, f64)> {
    let threads = fs::read_dir(format!("/proc/{process}/task")).into_iter().flatten().flatten();
    threads.filter_map(|thread| {
        let name = fs::read_to_string(thread.path().join("comm")).ok()?;
        let spent = fs::read_to_string(thread.path().join("schedstat")).ok()?;
        let nanos = spent.split(' ').next()?.parse::<f64>().ok()?;
        Some((name.trim_end().to_owned(), nanos / 1e3))
    })
}

/// The processes that a process has started and that still run.
pub(crate) fn children(process: u32) -> anyhow::Result<Vec<u32>> {
    let children = fs::read_to_string(format!("/proc/{process}/task/{process}/children"))?;
    Ok(children.split_ascii_whitespace().map(str::parse).collect::<Result<_, _>>()?)
}

/// Microseconds of processor time that this process and all that descend from it have used so far,
/// those aside that have ended.
pub(crate) fn family_micros() -> anyhow::Result<f64> {
    let mut parents = Vec::new();
    for entry in fs::read_dir("/proc")?.flatten() {
        let Some(process) = entry.file_name().to_str().and_then(|name| name.parse::<u32>().ok())
        else {
            continue;
        };
        // A process that has ended is skipped.
        let stat = fs::read_to_string(entry.path().join("stat")).unwrap_or_default();
        let parent =
            stat.rsplit_once(')').and_then(|(_, rest)| rest.split(' ').nth(2)?.parse().ok());
        parents.extend(parent.map(|parent: u32| (process, parent)));
    }
    let mut family = vec![std::process::id()];
    let mut at = 0;
    while let Some(&elder) = family.get(at) {
        let children = parents.iter().filter(|(_, parent)| *parent == elder);
        family.extend(children.map(|(child, _)| *child));
        at += 1;
    }
    Ok(family.into_iter().flat_map(threads).map(|(_, micros)| micros).sum())
}

/// The date in UTC, as `2026-11-15`.
pub(crate) fn today() -> String {
    date(SystemTime::UNIX_EPOCH.elapsed().unwrap_or_default())
}

fn date(since_1970: Duration) -> String {
    let mut days = since_1970.as_secs() / 86_400;
    let leap = |year: u64| {
        year.is_multiple_of(4) && (!year.is_multiple_of(100) || year.is_multiple_of(400))
    };
    let mut year = 1970;
    while days >= 365 + u64::from(leap(year)) {
        days -= 365 + u64::from(leap(year));
        year += 1;
    }
    let february = 28 + u64::from(leap(year));
    let mut month = 1;
    for length in [31, february, 31, 30, 31, 30, 31, 31, 30, 31, 30] {
        if days < length {
            break;
        }
        days -= length;
        month += 1;
    }
    format!("{year}-{month:02}-{:02}", days + 1)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn dates_are_those_of_the_calendar() {
        let of = |seconds| date(Duration::from_secs(seconds));
        assert_eq!(of(0), "1970-01-01");
        assert_eq!(of(951_782_400), "2000-02-29");
        assert_eq!(of(1_798_761_599), "2026-12-31");
        assert_eq!(of(1_798_761_600), "2027-01-01");
    }
}
