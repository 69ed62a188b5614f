//! `semel migrate`. Makes a store, brings an older one up to date, and makes one fit for use that
//! was restored from a backup.

use std::process::ExitCode;

use anyhow::{Context as _, anyhow, bail};
use semel_postgres::Migrated;
use semel_sqlite::SqliteStore;
use serde::Serialize;
use serde_json::json;

use super::{
    desk::{self, Operator},
    failure::{self, Failure},
    screen::Screen,
};
use crate::{
    config::{self, StoreUrl},
    ops::audit::{Act, Audit, Audited},
    store::{self, Traces},
};

/// What can be typed after `semel migrate`.
#[derive(Debug, clap::Args)]
pub(super) struct Args {
    /// The store: sqlite:PATH, `postgres://USER@HOST/DATABASE`, or env:NAME for the variable that
    /// holds its URL
    #[arg(long, value_name = "URL")]
    store: String,
    /// Create an empty store although something speaks of an earlier one: every key that has run
    /// runs again
    #[arg(long)]
    new_store: bool,
    /// Make a store that was restored from a backup fit for use: raise its fences and its epoch
    #[arg(long, conflicts_with = "new_store")]
    after_restore: bool,
    /// Why, for the audit log
    #[arg(long, value_name = "TEXT", default_value = "asked for")]
    why: String,
    #[command(flatten)]
    operator: Operator,
    /// Print the SQL instead, for whoever runs it by other means; nothing is connected to
    #[arg(long, conflicts_with_all = ["new_store", "after_restore"])]
    print: bool,
    /// Print JSON
    #[arg(long, conflicts_with = "print")]
    json: bool,
}

pub(super) fn run(args: Args) -> anyhow::Result<ExitCode> {
    failure::run(args.json, migrate(args))
}

async fn migrate(args: Args) -> Result<ExitCode, Failure> {
    let url = config::store_url(&args.store, &super::config::env);
    let url = url.map_err(|wrong| anyhow!("--store: {wrong}"))?;
    let screen = Screen::new(args.json);
    if url == StoreUrl::Memory {
        return Err(anyhow!("a store in memory lives and dies with its server").into());
    }
    if args.new_store {
        let made = audited(&args, &url, "new-store", new_store(&url)).await?;
        print(
            screen,
            &made,
            &format!("done: a new store is made; store_id = \"{}\"", made.store_id),
        )?;
    } else if args.after_restore {
        let restored = audited(&args, &url, "after-restore", after_restore(&url)).await?;
        print(screen, &restored, &restored.to_string())?;
    } else {
        bring_up(&args, &url, screen).await?;
    }
    Ok(ExitCode::SUCCESS)
}

/// Does something with a line in the audit log before it and one after it.
async fn audited<T: Audited>(
    args: &Args,
    url: &StoreUrl,
    act: &'static str,
    doing: impl Future<Output = anyhow::Result<T>>,
) -> anyhow::Result<T> {
    let who = desk::user(&args.operator.clone().name());
    let (to, why) = (Some(url.to_string()), args.why.clone());
    let act = Act { who, act, record: None, to, answer: None, why };
    let audit = Audit::at(config::audit_beside(url));
    audit.around(act, doing).await?
}

fn print(screen: Screen, view: &impl Serialize, words: &str) -> anyhow::Result<()> {
    if screen.json { screen.json(view) } else { screen.line(words) }
}

/// Makes the tables in PostgreSQL, unless something speaks of an earlier store, or brings them up
/// to date.
async fn bring_up(args: &Args, url: &StoreUrl, screen: Screen) -> anyhow::Result<()> {
    let StoreUrl::Postgres(server) = url else {
        bail!(
            "a SQLite store is brought up to date when it is opened; `migrate` is for \
             --new-store and --after-restore there"
        );
    };
    let options = store::postgres(server)?;
    if args.print {
        return screen.line(options.migrations().trim_end());
    }
    let present = options.presence().await.context("the store cannot be looked for")?;
    if present.store.is_none() {
        let traces = Traces::of_database(&present.others, None);
        if !traces.is_empty() {
            return Err(traces.refusal(url));
        }
    }
    let Migrated { from, to } = options.migrate().await.context("the store cannot be migrated")?;
    let words = match (from, to) {
        (0, to) => format!("done: the store is made, version {to}"),
        (from, to) if from >= to => format!("nothing to do: the store has version {from}"),
        (from, to) => format!("done: version {from} is now version {to}"),
    };
    print(screen, &json!({ "from": from, "to": to }), &words)
}

/// A store that was made.
#[derive(Debug, Serialize)]
struct Made {
    store_id: String,
}

impl Audited for Made {
    fn result(&self) -> String {
        format!("made the store {}", self.store_id)
    }
}

/// Makes a store where there is none.
async fn new_store(url: &StoreUrl) -> anyhow::Result<Made> {
    let there = || anyhow!("there is a store at {url} already: move it away first");
    let id = match url {
        StoreUrl::Sqlite(path) => {
            store::need_folder(path)?;
            let store = SqliteStore::open(path).context("the store cannot be made")?;
            if !store.info().is_new {
                return Err(there());
            }
            store::forget_secret_check(path)?;
            store.info().id
        }
        StoreUrl::Postgres(server) => {
            let options = store::postgres(server)?;
            let migrated = options.migrate().await.context("the store cannot be made")?;
            if migrated.from > 0 {
                return Err(there());
            }
            let present = options.presence().await.context("the store cannot be read")?;
            present.store.context("the store that was made is not there")?.id
        }
        StoreUrl::Memory => bail!("a store in memory is a new one at each start"),
    };
    Ok(Made { store_id: store::public_id(id) })
}

/// What was done to a restored store.
#[derive(Debug, Serialize)]
struct Restored {
    store_id: String,
    fence_before: u64,
    fence_after: u64,
    epoch_before: u64,
    epoch_after: u64,
    in_flight: u64,
}

impl Audited for Restored {
    fn result(&self) -> String {
        format!("raised fences from {} to {}", self.fence_before, self.fence_after)
    }
}

impl std::fmt::Display for Restored {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let Self { store_id, fence_before, fence_after, epoch_before, epoch_after, in_flight } =
            self;
        writeln!(f, "done: the restored store may be used; store_id = \"{store_id}\"")?;
        writeln!(
            f,
            "fences: above {fence_after} from now on; the backup's last was {fence_before}"
        )?;
        writeln!(f, "epoch: {epoch_after}, was {epoch_before}: no cache believes what it knew")?;
        write!(f, "in flight when the backup was taken: {in_flight}")?;
        if *in_flight > 0 {
            write!(f, "; nobody knows what became of them, and under `hold` they will be held")?;
        }
        Ok(())
    }
}

/// Raises what must not fall.
async fn after_restore(url: &StoreUrl) -> anyhow::Result<Restored> {
    const FAILED: &str = "the restored store cannot be made fit for use";
    match url {
        StoreUrl::Sqlite(path) => {
            let restored = semel_sqlite::Options::new().after_restore(path).context(FAILED)?;
            Ok(Restored {
                store_id: store::public_id(restored.id),
                fence_before: restored.last_fence.map_or(0, |fence| fence.get()),
                fence_after: restored.fence_floor.get(),
                epoch_before: restored.epoch_before.0,
                epoch_after: restored.epoch.0,
                in_flight: restored.in_flight,
            })
        }
        StoreUrl::Postgres(server) => {
            let options = store::postgres(server)?;
            let restored = semel_postgres::after_restore(&options).await.context(FAILED)?;
            let present = options.presence().await.context(FAILED)?;
            let id = present.store.context("the store is not there")?.id;
            Ok(Restored {
                store_id: store::public_id(id),
                fence_before: restored.fence_before,
                fence_after: restored.fence_after,
                epoch_before: restored.epoch_before,
                epoch_after: restored.epoch_after,
                in_flight: restored.in_flight,
            })
        }
        StoreUrl::Memory => bail!("a store in memory has no backup"),
    }
}
