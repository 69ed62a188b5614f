//! `semel migrate`. Creates a store, migrates an older one, and prepares a restored one for use.

use std::process::ExitCode;

use anyhow::{Context as _, anyhow, bail};
use semel::transactional::sql::postgres as sql;
use semel_outbox as outbox;
use semel_postgres::MigrationReport;
use semel_sqlite::SqliteStore;
use serde::Serialize;
use serde_json::json;

use super::{
    command_error::{self, CommandError},
    output::Output,
    target::{self, Operator},
};
use crate::store::{self, Traces};
use semel_admin::audit::{AuditLog, AuditResult, OperatorAction};
use semel_config::StoreUrl;

/// Arguments of `semel migrate`.
#[derive(Debug, clap::Args)]
pub(super) struct Args {
    /// The store: sqlite:PATH, `postgres://USER@HOST/DATABASE`, or env:NAME for the variable that
    /// holds its URL
    #[arg(long, value_name = "URL")]
    store: String,
    /// Create an empty store although there are traces of an earlier one: every key that has run
    /// runs again
    #[arg(long)]
    new_store: bool,
    /// Prepare a store that was restored from a backup: raise its fences and its epoch
    #[arg(long, conflicts_with = "new_store")]
    after_restore: bool,
    /// Install the table and the functions with which programs in any language record operations
    /// in their own transactions, instead of a store
    #[arg(long, conflicts_with_all = ["new_store", "after_restore"])]
    transactional: bool,
    /// Install the tables of an outbox, and on PostgreSQL the function `semel_send`, instead of a
    /// store
    #[arg(long, conflicts_with_all = ["new_store", "after_restore", "transactional"])]
    outbox: bool,
    /// Reason for the audit log
    #[arg(long, value_name = "TEXT", default_value = "requested by the operator")]
    why: String,
    #[command(flatten)]
    operator: Operator,
    /// Print the SQL instead, to run it by other means; makes no connection
    #[arg(long, conflicts_with_all = ["new_store", "after_restore"])]
    print: bool,
    /// Print JSON
    #[arg(long, conflicts_with = "print")]
    json: bool,
}

pub(super) fn run(args: Args) -> anyhow::Result<ExitCode> {
    command_error::run(args.json, migrate(args))
}

async fn migrate(args: Args) -> Result<ExitCode, CommandError> {
    let url = semel_config::store_url(&args.store, &super::config::env);
    let url = url.map_err(|wrong| anyhow!("--store: {wrong}"))?;
    let output = Output::new(args.json);
    if url == StoreUrl::Memory {
        return Err(anyhow!("a store in memory exists only inside its server").into());
    }
    if args.new_store {
        let made = audited(&args, &url, "new-store", new_store(&url)).await?;
        print(
            output,
            &made,
            &format!("done: a new store is made; store_id = \"{}\"", made.store_id),
        )?;
    } else if args.after_restore {
        let restored = audited(&args, &url, "after-restore", after_restore(&url)).await?;
        print(output, &restored, &restored.to_string())?;
    } else if args.transactional {
        migrate_transactional(&args, &url, output).await?;
    } else if args.outbox {
        migrate_outbox(&args, &url, output).await?;
    } else {
        migrate_store(&args, &url, output).await?;
    }
    Ok(ExitCode::SUCCESS)
}

/// Runs an action with a line in the audit log before it and one after it.
async fn audited<T: AuditResult>(
    args: &Args,
    url: &StoreUrl,
    act: &'static str,
    doing: impl Future<Output = anyhow::Result<T>>,
) -> anyhow::Result<T> {
    let who = target::user(&args.operator.clone().name());
    let (to, why) = (Some(url.to_string()), args.why.clone());
    let act = OperatorAction { who, act, record: None, to, answer: None, why };
    let audit = AuditLog::at(semel_config::default_audit_path(url));
    audit.run_logged(act, doing).await?
}

fn print(output: Output, view: &impl Serialize, words: &str) -> anyhow::Result<()> {
    if output.json { output.json(view) } else { output.line(words) }
}

/// Makes the tables in PostgreSQL, unless there are traces of an earlier store, or brings them up
/// to date.
async fn migrate_store(args: &Args, url: &StoreUrl, output: Output) -> anyhow::Result<()> {
    let StoreUrl::Postgres(server) = url else {
        bail!(
            "a SQLite store is migrated when it is opened; use `migrate` only with --new-store \
             or --after-restore"
        );
    };
    let options = store::postgres(server)?;
    if args.print {
        return output.line(options.migrations().trim_end());
    }
    let present = options.find_stores().await.context("cannot check for an existing store")?;
    if present.store.is_none() {
        let traces = Traces::of_database(&present.others, None);
        if !traces.is_empty() {
            return Err(traces.refusal(url));
        }
    }
    let MigrationReport { from, to } =
        options.migrate().await.context("the store cannot be migrated")?;
    let words = match (from, to) {
        (0, to) => format!("done: the store is made, version {to}"),
        (from, to) if from >= to => format!("nothing to do: the store has version {from}"),
        (from, to) => format!("done: version {from} is now version {to}"),
    };
    print(output, &json!({ "from": from, "to": to }), &words)
}

/// Installs what programs in other languages need for records in their own transactions.
async fn migrate_transactional(args: &Args, url: &StoreUrl, output: Output) -> anyhow::Result<()> {
    let StoreUrl::Postgres(server) = url else {
        bail!("the functions for other languages exist on PostgreSQL only");
    };
    let options = store::postgres(server)?;
    let lock = format!("SELECT pg_advisory_xact_lock({});", sql::CREATE_TABLE_LOCK);
    let script = [&lock, sql::TABLE, sql::FUNCTIONS].join("\n");
    if args.print {
        return output.line(options.in_schema(&script).trim_end());
    }
    options.run_in_schema(&script).await.context("the functions cannot be installed")?;
    let schema = options.schema();
    let words = format!("done: semel_begin and semel_record are in the schema `{schema}`");
    print(output, &json!({ "schema": schema }), &words)
}

/// Installs the tables of an outbox.
async fn migrate_outbox(args: &Args, url: &StoreUrl, output: Output) -> anyhow::Result<()> {
    const FAILED: &str = "the outbox cannot be installed";
    match url {
        StoreUrl::Postgres(server) => {
            let options = store::postgres(server)?;
            let lock = format!("SELECT pg_advisory_xact_lock({});", sql::CREATE_TABLE_LOCK);
            let script = [&lock, outbox::postgres::SCHEMA].join("\n");
            if args.print {
                return output.line(options.in_schema(&script).trim_end());
            }
            options.run_in_schema(&script).await.context(FAILED)?;
            let schema = options.schema();
            let words = format!("done: the outbox and semel_send are in the schema `{schema}`");
            print(output, &json!({ "schema": schema }), &words)
        }
        StoreUrl::Sqlite(_) if args.print => output.line(outbox::sqlite::SCHEMA.trim_end()),
        StoreUrl::Sqlite(path) => {
            store::need_folder(path)?;
            outbox::sqlite::SqliteOutbox::open(path).context(FAILED)?;
            let words = format!("done: the outbox is in {}", path.display());
            print(output, &json!({ "path": path.display().to_string() }), &words)
        }
        StoreUrl::Memory => bail!("an outbox in memory would lose its messages"),
    }
}

/// A store that was made.
#[derive(Debug, Serialize)]
struct CreatedStore {
    store_id: String,
}

impl AuditResult for CreatedStore {
    fn result(&self) -> String {
        format!("made the store {}", self.store_id)
    }
}

/// Makes a store where there is none.
async fn new_store(url: &StoreUrl) -> anyhow::Result<CreatedStore> {
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
            let present = options.find_stores().await.context("the store cannot be read")?;
            present.store.context("the store that was made is not there")?.id
        }
        StoreUrl::Memory => bail!("a store in memory is new at each start"),
    };
    Ok(CreatedStore { store_id: store::public_id(id) })
}

/// What was done to a restored store.
#[derive(Debug, Serialize)]
struct RestoredStore {
    store_id: String,
    fence_before: u64,
    fence_after: u64,
    epoch_before: u64,
    epoch_after: u64,
    in_flight: u64,
}

impl AuditResult for RestoredStore {
    fn result(&self) -> String {
        format!("raised fences from {} to {}", self.fence_before, self.fence_after)
    }
}

impl std::fmt::Display for RestoredStore {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let Self { store_id, fence_before, fence_after, epoch_before, epoch_after, in_flight } =
            self;
        writeln!(f, "done: the restored store may be used; store_id = \"{store_id}\"")?;
        writeln!(
            f,
            "fences: above {fence_after} from now on; the backup's last was {fence_before}"
        )?;
        writeln!(f, "epoch: {epoch_after}, was {epoch_before}: caches drop their entries")?;
        write!(f, "in flight when the backup was taken: {in_flight}")?;
        if *in_flight > 0 {
            write!(f, "; their outcome is unknown, and under `hold` they will be held")?;
        }
        Ok(())
    }
}

/// Raises the fences and the epoch of a restored store.
async fn after_restore(url: &StoreUrl) -> anyhow::Result<RestoredStore> {
    const FAILED: &str = "the restored store cannot be prepared for use";
    match url {
        StoreUrl::Sqlite(path) => {
            let restored = semel_sqlite::Options::new().after_restore(path).context(FAILED)?;
            Ok(RestoredStore {
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
            let present = options.find_stores().await.context(FAILED)?;
            let id = present.store.context("the store is not there")?.id;
            Ok(RestoredStore {
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
