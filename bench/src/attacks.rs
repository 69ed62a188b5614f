//! Attacks on the gateway, each beside an innocent client that asks every 40 ms from another
//! address: how long the client waits, how often it is refused, and how much memory the gateway
//! takes.
//!
//! The limits of the gateway are low, so that each attack reaches them from one machine. Each
//! attack has a gateway of its own, whose peak of memory is its own too. [`memory`] measures what
//! connections take where their limits are the default ones.

mod attack;
mod event;
mod innocent;
mod memory;
mod server;

use std::{path::Path, thread, time::Duration};

use crate::{
    machine,
    report::{Report, Target},
    settings::{Settings, progress, progress_end},
    sqlite::files,
};

use self::{
    attack::Attack,
    innocent::Asked,
    server::{AttackedUpstream, Gateway, GatewayLimits},
};

const PART: &str = "attacks.innocent";

/// `limits.memory` of the gateway, in MiB.
const MEMORY_MIB: u32 = 64;

/// How much the gateway may take beside it, in MiB.
const REST_MIB: u32 = 200;

/// The longest 99th percentile of the innocent client, in milliseconds.
const P99_MAX_MS: f64 = 100.0;

/// How long an attack goes on before the innocent client begins.
const LEAD: Duration = Duration::from_millis(500);

pub(crate) fn run(settings: &Settings, report: &mut Report) -> anyhow::Result<()> {
    if !settings.wants(PART) && !settings.wants(memory::PART) {
        return Ok(());
    }
    let upstream = AttackedUpstream::start()?;
    if settings.wants(PART) {
        each(settings, report, &upstream)?;
    }
    if settings.wants(memory::PART) {
        memory::run(settings, report, &upstream)?;
    }
    progress_end();
    report.note(format!("attacks: load {} at the end", machine::load()));
    Ok(())
}

/// The innocent client beside each attack.
fn each(
    settings: &Settings,
    report: &mut Report,
    upstream: &AttackedUpstream,
) -> anyhow::Result<()> {
    let asks = settings.or_quick(250, 50);
    let mut table = vec![[
        "attack".to_owned(),
        "p50 ms".to_owned(),
        "p99 ms".to_owned(),
        "refusals".to_owned(),
        "peak MiB".to_owned(),
    ]];
    for attack in Attack::ALL {
        progress(&format!("attacks: {}", attack.name()));
        let folder = files::scratch_folder(settings)?;
        let (asked, peak_mib) = beside(attack, &settings.program, upstream, folder.path(), asks)?;
        let name = attack.name();
        let line = |what: &str| format!("{name}: {what}");
        report.line(PART, line("p50"), "ms", &[asked.p50_ms]);
        report.judge(PART, line("p99"), "ms", &[asked.p99_ms], Target::Below(P99_MAX_MS));
        report.judge(PART, line("refusals"), "", &[asked.refusals], Target::AtMost(0.0));
        let memory_max = Target::AtMost(f64::from(MEMORY_MIB + REST_MIB));
        report.judge(PART, line("peak memory"), "MiB", &[peak_mib], memory_max);
        table.push([
            name.to_owned(),
            format!("{:.1}", asked.p50_ms),
            format!("{:.1}", asked.p99_ms),
            format!("{:.0} of {}", asked.refusals, asked.total),
            format!("{peak_mib:.0}"),
        ]);
    }
    report.note(text_of(&table));
    Ok(())
}

/// Runs the innocent client while an attack goes on.
fn beside(
    attack: Attack,
    program: &Path,
    upstream: &AttackedUpstream,
    folder: &Path,
    asks: usize,
) -> anyhow::Result<(Asked, f64)> {
    let gateway = Gateway::start(program, upstream.port, folder, GatewayLimits::Low)?;
    let attackers = tokio::runtime::Builder::new_multi_thread()
        .worker_threads(2)
        .thread_name("attacker")
        .enable_all()
        .build()?;
    attackers.spawn(attack.run(gateway.address));
    thread::sleep(LEAD);
    let asked = innocent::ask(gateway.address, asks);
    let peak = machine::peak_kilobytes(gateway.process())? / 1024.0;
    attackers.shutdown_background();
    Ok((asked?, peak))
}

/// The rows of a table, in columns.
fn text_of<const COLUMNS: usize>(rows: &[[String; COLUMNS]]) -> String {
    let width = |column: usize| rows.iter().map(|row| row[column].len()).max().unwrap_or(0);
    let lines = rows.iter().map(|row| {
        let cells = row.iter().enumerate().map(|(column, cell)| {
            let width = width(column);
            if column == 0 { format!("{cell:width$}") } else { format!("  {cell:>width$}") }
        });
        cells.collect::<String>()
    });
    lines.collect::<Vec<_>>().join("\n")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_table_has_its_columns_below_each_other() {
        let row = |name: &str, value: &str| [name, value, value, value, value].map(str::to_owned);
        let text = text_of(&[row("attack", "x"), row("a", "100")]);
        assert_eq!(text, "attack    x    x    x    x\na       100  100  100  100");
    }
}
