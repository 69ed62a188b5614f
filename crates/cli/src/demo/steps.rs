//! `semel demo steps`. A checkout of four steps is killed in the middle and finishes; another is
//! refused at its third step and undone.
//!
//! The processes are real and end by SIGKILL. The services that they call are tables in a file,
//! which count what was done and know the keys that they were called with.

use std::{
    io::{BufRead as _, BufReader, Write as _},
    path::{Path, PathBuf},
    process::{Child, Command, Stdio},
    time::Duration,
};

use anyhow::{Context as _, ensure};
use rusqlite::Connection;
use semel_steps::{
    Operation, OperationOutcome, Operations, SqliteOperations, StepContext, StepError,
};
use serde::{Deserialize, Serialize};

use super::{Narrator, narrator::TextColor};

/// How long a process may be silent before another takes its operations over: short, so that the
/// demo is.
const LEASE: Duration = Duration::from_secs(1);

/// The arguments of a process of the demo.
#[derive(Clone, Debug, clap::Args)]
pub(crate) struct WorkerArgs {
    /// The folder of the demo
    #[arg(long, hide = true, value_name = "FOLDER")]
    worker: Option<PathBuf>,
    /// The order to check out
    #[arg(long, hide = true, default_value = "order-1", requires = "worker")]
    order: String,
    /// The third step is refused
    #[arg(long, hide = true, requires = "worker")]
    refused: bool,
    /// The third step never returns
    #[arg(long, hide = true, requires = "worker")]
    hangs: bool,
}

#[derive(Clone, Debug, Serialize, Deserialize)]
struct CheckoutOrder {
    cents: u64,
    is_refused: bool,
}

/// The services, each of which takes keys.
#[derive(Clone, Debug)]
struct DemoServices {
    path: PathBuf,
    hangs: bool,
}

impl DemoServices {
    /// Does this once for a key, and prints it.
    fn call(&self, step: &StepContext, what: &str) -> Result<String, StepError> {
        let services = Connection::open(&self.path)?;
        services.busy_timeout(Duration::from_secs(5))?;
        let sql = "INSERT INTO done (key, what) VALUES (?1, ?2) ON CONFLICT (key) DO NOTHING";
        let done = services.execute(sql, (step.key(), what))?;
        print_progress(&format!("{what}{}", if done == 0 { " (known already)" } else { "" }))?;
        Ok(what.to_owned())
    }
}

/// Prints a line for the demo.
fn print_progress(line: &str) -> std::io::Result<()> {
    let mut out = std::io::stdout().lock();
    writeln!(out, "{line}")?;
    out.flush()
}

async fn check_out(
    op: Operation<SqliteOperations>,
    order: CheckoutOrder,
    services: DemoServices,
) -> Result<String, StepError> {
    let [charging, refunding, packing, unpacking, shipping, mailing] =
        std::array::from_fn(|_| services.clone());
    op.step("charge", |step| async move { charging.call(&step, "charge the card") })
        .undo(|undo, _| async move { refunding.call(&undo, "give the money back").map(drop) })
        .await?;
    op.step("pack", |step| async move { packing.call(&step, "pack the parcel") })
        .undo(|undo, _| async move { unpacking.call(&undo, "put everything back").map(drop) })
        .await?;
    op.step("ship", |step| async move {
        if shipping.hangs {
            print_progress("ship the parcel …")?;
            std::future::pending::<()>().await;
        }
        if order.is_refused {
            print_progress("ship the parcel: no courier goes there")?;
            return Err(StepError::refused("no courier goes there"));
        }
        shipping.call(&step, "ship the parcel")
    })
    .await?;
    op.step("mail", |step| async move { mailing.call(&step, "send the invoice") }).await
}

impl WorkerArgs {
    /// Whether this is a process of the demo, and not the demo.
    pub(crate) const fn is_worker(&self) -> bool {
        self.worker.is_some()
    }
}

/// Runs as a process of the demo.
pub(crate) async fn run_worker(args: &WorkerArgs) -> anyhow::Result<()> {
    let WorkerArgs { worker, order, refused, hangs } = args;
    let folder = worker.as_ref().context("a process of the demo has a folder")?;
    let services = DemoServices { path: folder.join("services.db"), hangs: *hangs };
    let store = SqliteOperations::open(folder.join("shop.db"))?;
    let operations = Operations::new(store).lease(LEASE).wait(Duration::from_secs(30));
    let checkout = operations
        .operation("checkout", 1, move |op, order| check_out(op, order, services.clone()));
    let input = CheckoutOrder { cents: 4900, is_refused: *refused };
    match checkout.run(order, &input).await? {
        OperationOutcome::Done(_) => print_progress("= done")?,
        OperationOutcome::Undone(refusal) => print_progress(&format!("= undone, {refusal}"))?,
        OperationOutcome::Parked(why) => print_progress(&format!("= parked, {why}"))?,
        OperationOutcome::Running | OperationOutcome::KeyReused => print_progress("= not ended")?,
    }
    Ok(())
}

/// Starts a process of the demo.
fn start(folder: &Path, order: &str, flags: &[&str]) -> anyhow::Result<Child> {
    Command::new(std::env::current_exe()?)
        .args(["demo", "steps", "--order", order, "--worker"])
        .arg(folder)
        .args(flags)
        .stdout(Stdio::piped())
        .spawn()
        .context("a process of the demo does not start")
}

/// Shows what a process does, until its end or until it says this; then it is killed.
fn follow(
    narrator: &mut Narrator<'_>,
    name: &str,
    mut child: Child,
    kill_at: Option<&str>,
) -> anyhow::Result<Vec<String>> {
    let mut lines = Vec::new();
    let out = child.stdout.take().context("the process has no output")?;
    for line in BufReader::new(out).lines() {
        let line = line?;
        narrator.line(format_args!("  {name}  {line}"))?;
        if kill_at.is_some_and(|kill_at| line.starts_with(kill_at)) {
            child.kill()?;
            let killed = narrator.paint(TextColor::Red, "killed");
            narrator.line(format_args!("  {name}  {killed}"))?;
        }
        lines.push(line);
    }
    child.wait()?;
    Ok(lines)
}

/// Runs the demo. An error says what went wrong.
pub(crate) fn run_steps_demo(narrator: &mut Narrator<'_>) -> anyhow::Result<()> {
    let folder = tempfile::tempdir()?;
    let folder = folder.path();
    let services = Connection::open(folder.join("services.db"))?;
    services.execute_batch("CREATE TABLE done (key TEXT PRIMARY KEY, what TEXT NOT NULL)")?;
    narrator.line("A checkout has four steps: charge, pack, ship, mail. Each is a row in the")?;
    narrator.line("shop's own database, and each call carries a key of its own.")?;

    narrator.title("1. A process is killed while it ships")?;
    let first = start(folder, "order-17", &["--hangs"])?;
    follow(narrator, "first ", first, Some("ship the parcel …"))?;
    let second = start(folder, "order-17", &[])?;
    let ended = follow(narrator, "second", second, None)?;
    narrator
        .line("  The second process took the order over when the lease had ended. It did not")?;
    narrator.line("  charge and pack again: these steps are recorded.")?;
    ensure!(
        ended == ["ship the parcel", "send the invoice", "= done"],
        "the demo failed: {ended:?}"
    );

    narrator.title("2. No courier goes to the next customer")?;
    let third = start(folder, "order-18", &["--refused"])?;
    let undone = follow(narrator, "third ", third, None)?;
    let order = [
        "charge the card",
        "pack the parcel",
        "ship the parcel: no courier goes there",
        "put everything back",
        "give the money back",
        "= undone, refused: \"no courier goes there\"",
    ];
    ensure!(undone == order, "the demo failed: {undone:?}");

    narrator.title("What the services have done, in both orders")?;
    let mut counts =
        services.prepare("SELECT what, count(*) FROM done GROUP BY what ORDER BY min(rowid)")?;
    let counts = counts.query_map([], |row| Ok((row.get(0)?, row.get(1)?)))?;
    for count in counts {
        let (what, times): (String, i64) = count?;
        narrator.line(format_args!("  {times} × {what}"))?;
    }
    Ok(())
}
