//! How many instructions the gateway executes for a request, counted by Valgrind's callgrind.
//!
//! A count does not depend on how busy the machine is, so it shows a change that a timed round
//! hides. Each figure is the difference between a short and a long load, so that start-up, the
//! first requests and shutdown do not count. The kernel's instructions are not counted, and
//! Valgrind offers no SHA instructions, so hashing counts more than it costs.

use std::{
    fs,
    path::Path,
    process::{Command, Stdio},
    time::Duration,
};

use anyhow::{Context as _, ensure};

use super::{semel, upstream::Upstream};
use crate::{
    http::load::{HttpLoad, KeyPattern, Length, drive},
    measure::as_f64,
    report::{Report, Target},
    settings::{Settings, progress, progress_end},
    sqlite::files,
};

const PARTS: [(&str, &str, KeyPattern); 3] = [
    ("instructions.pass", "no key", KeyPattern::Without),
    ("instructions.claim", "unique keys", KeyPattern::New),
    ("instructions.replay", "repeats", KeyPattern::Repeated(10)),
];

/// Few, because Valgrind runs one thread at a time; enough for the store to make batches.
const CONNECTIONS: usize = 16;

/// How much of a former count is within the noise of batches.
const RATIO_MAX: f64 = 1.03;

/// Counts for the program and, where one is given, for a former build of it.
pub(crate) fn run(settings: &Settings, report: &mut Report) -> anyhow::Result<()> {
    let wanted = PARTS.iter().filter(|(part, ..)| settings.wants(part)).collect::<Vec<_>>();
    if wanted.is_empty() {
        return Ok(());
    }
    if !is_installed() {
        report.note("Instructions were not counted: valgrind is not installed.");
        return Ok(());
    }
    for (part, name, keys) in wanted {
        let count = |program| {
            progress(&format!("{part}: {}", program_name(program)));
            per_request(settings, program, *keys).with_context(|| program_name(program))
        };
        let current = count(&settings.program)?;
        let former = settings.against.as_deref().map(count).transpose()?;
        progress_end();
        if let Some(former) = former {
            report.line(part, format!("{name}, former"), "instructions/req", &[former]);
        }
        report.line(part, (*name).to_owned(), "instructions/req", &[current]);
        if let Some(former) = former {
            let ratio = [current / former];
            let what = format!("{name}, current / former");
            report.judge(part, what, "x", &ratio, Target::AtMost(RATIO_MAX));
        }
    }
    let against = settings.against.as_deref();
    let former = against.map(|former| format!(" The former build is {}.", program_name(former)));
    report.note(format!(
        "Instructions in user space, counted by callgrind over {CONNECTIONS} connections: the \
         difference between two loads, divided by the difference of their requests. Valgrind \
         offers no SHA instructions, so hashing counts more than it costs.{}",
        former.unwrap_or_default()
    ));
    Ok(())
}

fn program_name(program: &Path) -> String {
    program.file_name().unwrap_or_default().display().to_string()
}

fn is_installed() -> bool {
    let mut valgrind = Command::new("valgrind");
    valgrind.arg("--version").stdout(Stdio::null()).stderr(Stdio::null());
    valgrind.status().is_ok_and(|status| status.success())
}

fn per_request(settings: &Settings, program: &Path, keys: KeyPattern) -> anyhow::Result<f64> {
    let (few, many) = settings.or_quick((1000, 3000), (100, 300));
    let before = total(settings, program, keys, few)?;
    let after = total(settings, program, keys, many)?;
    Ok((after - before) / as_f64(many - few))
}

/// Instructions of one run from start to exit, with so many requests.
fn total(
    settings: &Settings,
    program: &Path,
    keys: KeyPattern,
    requests: usize,
) -> anyhow::Result<f64> {
    let folder = files::scratch_folder(settings)?;
    let counts = folder.path().join("callgrind.out");
    let mut valgrind = Command::new("valgrind");
    valgrind.args(["--quiet", "--tool=callgrind"]);
    valgrind.arg(format!("--callgrind-out-file={}", counts.display())).arg(program);
    let upstream = Upstream::start(Duration::ZERO)?;
    let (semel, site) = semel::start(valgrind, &upstream, folder.path())?;
    let length = Length::Requests(requests);
    drive(&site, HttpLoad { connections: CONNECTIONS, keys, warm_up: Duration::ZERO, length })?;
    ensure!(semel.stop()?.success(), "the gateway failed");
    let counts = fs::read_to_string(&counts).context("reading the counts")?;
    instructions(&counts)
}

/// The sum that callgrind writes at the end of its file.
fn instructions(counts: &str) -> anyhow::Result<f64> {
    let sum = counts.lines().rev().find_map(|line| line.strip_prefix("totals: "));
    Ok(sum.context("callgrind wrote no sum")?.trim().parse()?)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_sum_is_read_from_the_end_of_the_file() {
        let sum = instructions("events: Ir\nfn=(1) main\n1 20\n\ntotals: 4711\n").unwrap();
        assert!((sum - 4711.0).abs() < 1e-9);
        assert!(instructions("events: Ir\n").is_err());
    }
}
