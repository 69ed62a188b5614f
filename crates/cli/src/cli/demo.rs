//! `semel demo`. A double charge, without and with Semel; a checkout that is killed in the middle.

use std::{
    io::{self, IsTerminal as _},
    pin::pin,
    process::ExitCode,
};

use tokio::{
    runtime, select,
    signal::unix::{SignalKind, signal},
};

use super::output::is_stdout_coloured;
use crate::demo::{self, Narrator, NarratorStyle};

/// Arguments of `semel demo`.
#[derive(Debug, clap::Args)]
pub(super) struct Args {
    /// Another demo than that of the double charge
    #[arg(value_enum, value_name = "DEMO")]
    subject: Option<DemoSubject>,
    #[command(flatten)]
    worker: demo::steps::WorkerArgs,
    /// Leave nothing running; exit with 0 only if the demo succeeded
    #[arg(long)]
    once: bool,
    /// Port of the demo gateway on 127.0.0.1; 0 takes a free port
    #[arg(long, value_name = "PORT", default_value_t = 0)]
    port: u16,
}

/// What is shown.
#[derive(Clone, Copy, Debug, PartialEq, Eq, clap::ValueEnum)]
enum DemoSubject {
    /// A checkout of four steps is killed in the middle and finishes; another is undone
    Steps,
}

pub(super) fn run(args: Args) -> anyhow::Result<ExitCode> {
    let runtime = runtime::Builder::new_current_thread().enable_all().build()?;
    match args.subject {
        Some(DemoSubject::Steps) if args.worker.is_worker() => {
            runtime.block_on(demo::steps::run_worker(&args.worker))?;
            Ok(ExitCode::SUCCESS)
        }
        Some(DemoSubject::Steps) => {
            let mut out = io::stdout();
            let style = NarratorStyle { coloured: is_stdout_coloured(), paced: false };
            demo::steps::run_steps_demo(&mut Narrator::new(&mut out, style))?;
            Ok(ExitCode::SUCCESS)
        }
        None => runtime.block_on(show(args)),
    }
}

async fn show(args: Args) -> anyhow::Result<ExitCode> {
    let mut stop = pin!(stop_signal()?);
    let mut out = io::stdout();
    // Colours and pauses are for a terminal only.
    let paced = out.is_terminal() && !args.once;
    let style = NarratorStyle { coloured: is_stdout_coloured(), paced };
    let mut narrator = Narrator::new(&mut out, style);
    let run = select! {
        run = demo::run_demo(&mut narrator, args.port) => run?,
        // The exit code of a command ended by Ctrl-C: it must not look like success.
        () = &mut stop => return Ok(ExitCode::from(130)),
    };
    if !run.flaws.is_empty() {
        anyhow::bail!("the demo failed: {}", run.flaws.join("; "));
    }
    if args.once {
        narrator.line("\nThe demo succeeded.")?;
    } else {
        run.print_next_steps(&mut narrator)?;
        stop.await;
    }
    run.close().await?;
    Ok(ExitCode::SUCCESS)
}

/// Resolves on SIGINT or SIGTERM.
fn stop_signal() -> io::Result<impl Future<Output = ()>> {
    let mut interrupt = signal(SignalKind::interrupt())?;
    let mut terminate = signal(SignalKind::terminate())?;
    Ok(async move {
        select! {
            _ = interrupt.recv() => {}
            _ = terminate.recv() => {}
        }
    })
}
