//! `semel demo`. The double-charge story.

use std::{
    env,
    io::{self, IsTerminal as _},
    pin::pin,
    process::ExitCode,
};

use tokio::{
    runtime, select,
    signal::unix::{SignalKind, signal},
};

use crate::demo::{self, Manner, Teller};

/// What can be typed after `semel demo`.
#[derive(Debug, clap::Args)]
pub(super) struct Args {
    /// Leave nothing running; exit with 0 only if the story held
    #[arg(long)]
    once: bool,
    /// Where the gateway of the story listens on 127.0.0.1; 0 takes a free port
    #[arg(long, value_name = "PORT", default_value_t = 0)]
    port: u16,
}

pub(super) fn run(args: Args) -> anyhow::Result<ExitCode> {
    let runtime = runtime::Builder::new_current_thread().enable_all().build()?;
    runtime.block_on(show(args))
}

async fn show(args: Args) -> anyhow::Result<ExitCode> {
    let mut stop = pin!(asked_to_stop()?);
    let mut out = io::stdout();
    let manner = manner(args.once, out.is_terminal());
    let mut teller = Teller::new(&mut out, manner);
    let told = select! {
        told = demo::tell(&mut teller, args.port) => told?,
        // What a shell says of a command that Ctrl-C ended: it must not pass for a story that held.
        () = &mut stop => return Ok(ExitCode::from(130)),
    };
    if !told.flaws.is_empty() {
        anyhow::bail!("the story did not hold: {}", told.flaws.join("; "));
    }
    if args.once {
        teller.line("\nThe story held.")?;
    } else {
        told.signpost(&mut teller)?;
        stop.await;
    }
    told.close().await?;
    Ok(ExitCode::SUCCESS)
}

/// Ends with Ctrl-C, or with the SIGTERM of whatever started the program.
fn asked_to_stop() -> io::Result<impl Future<Output = ()>> {
    let mut interrupt = signal(SignalKind::interrupt())?;
    let mut terminate = signal(SignalKind::terminate())?;
    Ok(async move {
        select! {
            _ = interrupt.recv() => {}
            _ = terminate.recv() => {}
        }
    })
}

/// Colours and pauses are for a person who looks on.
fn manner(once: bool, terminal: bool) -> Manner {
    let set = |name| env::var_os(name).is_some_and(|value| !value.is_empty());
    Manner { coloured: terminal && !set("NO_COLOR"), paced: terminal && !once }
}
