//! What open dashboards cost: the guarded throughput with ten of them, beside none.

use std::{
    io::{Read as _, Write as _},
    net::TcpStream,
    process::Command,
    sync::{
        Arc,
        atomic::{AtomicUsize, Ordering},
    },
    thread,
    time::Duration,
};

use anyhow::{Context as _, ensure};

use super::{DASHBOARDS, semel, upstream::Upstream};
use crate::{
    http::load::{HttpLoad, HttpMeasurement, KeyPattern, Length, drive, each},
    measure::{ratios, turns},
    report::{Report, Target},
    settings::{Settings, progress, progress_end},
    sqlite::files,
};

const ROUNDS: usize = 9;
const CONNECTIONS: usize = 64;

/// How many dashboards are open.
const OPEN: [usize; 2] = [0, 10];

/// Measures both in turn, each with a new store and a new upstream in every round.
pub(crate) fn run(settings: &Settings, report: &mut Report) -> anyhow::Result<()> {
    let mut seen: [Vec<HttpMeasurement>; 2] = Default::default();
    for round in 0..ROUNDS {
        for at in turns(round, OPEN.len()) {
            progress(&format!("{DASHBOARDS}: {} open, round {} of {ROUNDS}", OPEN[at], round + 1));
            seen[at].push(measure(settings, OPEN[at])?);
        }
    }
    progress_end();
    let rates = |cells: &[HttpMeasurement]| each(cells, |cell| cell.per_second);
    let cpu = |cells: &[HttpMeasurement]| each(cells, |cell| cell.server_micros);
    for (open, cells) in OPEN.iter().zip(&seen) {
        report.line(DASHBOARDS, format!("{open} dashboards"), "req/s", &rates(cells));
        report.line(DASHBOARDS, format!("{open} dashboards, CPU per request"), "µs", &cpu(cells));
    }
    let [none, open] = &seen;
    let ratio = ratios(&rates(open), &rates(none));
    report.judge(DASHBOARDS, "ten dashboards / none", "x", &ratio, Target::AtLeast(0.9));
    report.note(format!(
        "{DASHBOARDS}: unique keys over {CONNECTIONS} connections, in {ROUNDS} interleaved rounds. \
         A dashboard is a connection that reads the live numbers, which change every second; what \
         a browser does with them is not part of it."
    ));
    Ok(())
}

fn measure(settings: &Settings, open: usize) -> anyhow::Result<HttpMeasurement> {
    let folder = files::scratch_folder(settings)?;
    let upstream = Upstream::start(Duration::ZERO)?;
    let (_semel, site, api) =
        semel::start_with_api(Command::new(&settings.program), &upstream, folder.path())?;
    let events = Arc::<AtomicUsize>::default();
    let streams: Vec<TcpStream> =
        (0..open).map(|_| follow(api, &events)).collect::<anyhow::Result<_>>()?;
    let (warm_up, length) = settings.cell();
    let (warm_up, length) = (warm_up * 2, Length::Time(length));
    let load = HttpLoad { connections: CONNECTIONS, keys: KeyPattern::New, warm_up, length };
    let measured = drive(&site, load)?;
    // Each has its first event at once, and more while requests are counted.
    let received = events.load(Ordering::Relaxed);
    ensure!(open == 0 || received > open, "the dashboards got {received} events");
    drop(streams);
    Ok(measured)
}

/// Reads the live numbers until the server closes.
fn follow(api: u16, events: &Arc<AtomicUsize>) -> anyhow::Result<TcpStream> {
    let stream = TcpStream::connect(("127.0.0.1", api)).context("connecting to the API")?;
    let (mut reading, events) = (stream.try_clone()?, Arc::clone(events));
    (&stream).write_all(b"GET /events HTTP/1.1\r\nHost: localhost\r\n\r\n")?;
    thread::spawn(move || {
        let mut bytes = vec![0; 64 << 10];
        while let Ok(read @ 1..) = reading.read(&mut bytes) {
            let text = String::from_utf8_lossy(bytes.get(..read).unwrap_or_default()).into_owned();
            events.fetch_add(text.matches("event: now").count(), Ordering::Relaxed);
        }
    });
    Ok(stream)
}
