//! `semel outbox`. Delivers the messages of an outbox, and shows and resolves those that fail.

mod act;
mod list;
mod relay;

use std::{path::Path, process::ExitCode, time::Duration};

use anyhow::{Context as _, anyhow, bail};
use deadpool_postgres::{Object, Pool};
use rusqlite::{Connection, OpenFlags};
use semel_config::StoreUrl;

use super::output::Output;
use crate::store;

/// How long a command waits for another process that writes to the file.
const BUSY_TIMEOUT: Duration = Duration::from_secs(5);

/// What to do with an outbox.
#[derive(Debug, clap::Subcommand)]
pub(super) enum OutboxCommand {
    /// Deliver messages until SIGTERM; any number of relays share the work
    Relay(relay::Args),
    /// Show the backlog, and the messages whose delivery fails
    List(list::Args),
    /// Try parked messages again, with all their attempts
    Retry(act::Args),
    /// Delete messages whose delivery fails; the later ones of their keys follow
    Drop(act::Args),
}

pub(super) fn run(action: OutboxCommand) -> anyhow::Result<ExitCode> {
    match action {
        OutboxCommand::Relay(args) => relay::run(args),
        OutboxCommand::List(args) => list::run(args),
        OutboxCommand::Retry(args) => act::run(args, act::Act::Retry),
        OutboxCommand::Drop(args) => act::run(args, act::Act::Drop),
    }
}

/// The database of an outbox.
#[derive(Clone, Debug, clap::Args)]
struct DatabaseArgs {
    /// The database: `postgres://USER@HOST/DATABASE`, sqlite:PATH, or env:NAME for the variable
    /// that holds its URL
    #[arg(long, value_name = "URL")]
    database: String,
    /// Print JSON
    #[arg(long)]
    json: bool,
}

/// An open database of an outbox.
enum OutboxDatabase {
    Postgres(Pool),
    Sqlite(Connection),
}

impl DatabaseArgs {
    fn url(&self) -> anyhow::Result<StoreUrl> {
        let url = semel_config::store_url(&self.database, &super::config::env);
        let url = url.map_err(|wrong| anyhow!("--database: {wrong}"))?;
        if url == StoreUrl::Memory {
            bail!("--database: an outbox in memory would lose its messages");
        }
        Ok(url)
    }

    fn output(&self) -> Output {
        Output::new(self.json)
    }

    fn open(&self) -> anyhow::Result<OutboxDatabase> {
        match self.url()? {
            StoreUrl::Postgres(server) => {
                Ok(OutboxDatabase::Postgres(store::postgres(&server)?.pool(2)?))
            }
            StoreUrl::Sqlite(path) => Ok(OutboxDatabase::Sqlite(existing(&path)?)),
            StoreUrl::Memory => bail!("an outbox in memory would lose its messages"),
        }
    }
}

/// Opens a file, and never creates it.
fn existing(path: &Path) -> anyhow::Result<Connection> {
    let open = || -> rusqlite::Result<Connection> {
        let connection = Connection::open_with_flags(path, OpenFlags::SQLITE_OPEN_READ_WRITE)?;
        connection.busy_timeout(BUSY_TIMEOUT)?;
        Ok(connection)
    };
    open().with_context(|| format!("{} cannot be opened", path.display()))
}

async fn client(pool: &Pool) -> anyhow::Result<Object> {
    pool.get().await.context("the database cannot be reached")
}
