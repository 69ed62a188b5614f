//! The gateway beside an earlier build of itself: what a change costs.

use std::{path::Path, process::Command};

use anyhow::Context as _;

use super::{AT_ONCE, ProxyCase, semel, upstream::Upstream};
use crate::{
    http::load::{HttpLoad, HttpMeasurement, Length, drive, each},
    measure::{ratios, turns},
    report::{Report, Target},
    settings::{Settings, progress, progress_end},
    sqlite::files,
};

const ROUNDS: usize = 10;
const CONNECTIONS: usize = 64;

/// Measures both programs in turn, each with a new store and a new upstream in every round.
pub(crate) fn run(settings: &Settings, former: &Path, report: &mut Report) -> anyhow::Result<()> {
    let wanted = AT_ONCE.into_iter().filter(|subject| settings.wants(subject.part));
    for subject in wanted {
        let programs = [former, &settings.program];
        let mut seen: [Vec<HttpMeasurement>; 2] = Default::default();
        for round in 0..ROUNDS {
            for at in turns(round, programs.len()) {
                let ProxyCase { name, .. } = subject;
                progress(&format!("{name}: round {} of {ROUNDS}", round + 1));
                let cell = measure(settings, programs[at], subject);
                seen[at].push(cell.with_context(|| programs[at].display().to_string())?);
            }
        }
        progress_end();
        add(report, subject, &seen);
    }
    report.note(format!(
        "Two builds of `semel serve`, interleaved over {ROUNDS} rounds at {CONNECTIONS} \
         connections. The former one is {}.",
        former.file_name().unwrap_or_default().display()
    ));
    Ok(())
}

fn measure(
    settings: &Settings,
    program: &Path,
    subject: ProxyCase,
) -> anyhow::Result<HttpMeasurement> {
    let folder = files::scratch_folder(settings)?;
    let upstream = Upstream::start(std::time::Duration::ZERO)?;
    let (_semel, site) = semel::start(Command::new(program), &upstream, folder.path())?;
    let (warm_up, length) = settings.cell();
    let (warm_up, length) = (warm_up * 2, Length::Time(length));
    drive(&site, HttpLoad { connections: CONNECTIONS, keys: subject.keys, warm_up, length })
}

fn add(report: &mut Report, subject: ProxyCase, [former, current]: &[Vec<HttpMeasurement>; 2]) {
    let ProxyCase { part, name, .. } = subject;
    let rates = |cells: &[HttpMeasurement]| each(cells, |cell| cell.per_second);
    let cpu = |cells: &[HttpMeasurement]| each(cells, |cell| cell.server_micros);
    report.line(part, format!("{name}, former"), "req/s", &rates(former));
    report.line(part, format!("{name}, current"), "req/s", &rates(current));
    let ratio = ratios(&rates(current), &rates(former));
    report.judge(part, format!("{name}, current / former"), "x", &ratio, Target::AtLeast(0.9));
    let ratio = ratios(&cpu(current), &cpu(former));
    report.line(part, format!("{name}, CPU, current / former"), "x", &ratio);
}
