//! The load alone, for a server that already runs: to profile or to try it.

use std::time::Duration;

use anyhow::{Context as _, bail};

use crate::http::load::{HttpLoad, KeyPattern, Length, Site, drive};

/// Drives the server on a port of this machine and prints what was seen.
pub(crate) fn run(words: &[&str]) -> anyhow::Result<()> {
    let [port, rest @ ..] = words else {
        bail!("--drive wants a port");
    };
    let (mut connections, mut seconds, mut keys) = (64, 5, KeyPattern::New);
    let mut words = rest.iter();
    while let Some(word) = words.next() {
        let mut number =
            || anyhow::Ok(words.next().context("a number is missing")?.parse::<u32>()?);
        match *word {
            "--connections" => connections = usize::try_from(number()?)?,
            "--seconds" => seconds = number()?,
            "pass" => keys = KeyPattern::Without,
            "unique" => keys = KeyPattern::New,
            "replay" => keys = KeyPattern::Repeated(9),
            other => bail!("not an option of --drive: {other}"),
        }
    }
    let port = port.parse().context("reading the port")?;
    let site = Site { port, processes: Vec::new(), behind: Vec::new() };
    let warm_up = Duration::from_secs(1);
    let length = Length::Time(Duration::from_secs(seconds.into()));
    let cell = drive(&site, HttpLoad { connections, keys, warm_up, length })?;
    println!(
        "{:.0} req/s, p50 {:.2} ms, p99 {:.2} ms, CPU of the load {:.1} µs per request",
        cell.per_second, cell.p50_millis, cell.p99_millis, cell.load_micros,
    );
    Ok(())
}
