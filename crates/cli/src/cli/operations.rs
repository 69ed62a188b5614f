//! `semel operations`. Shows operations of several steps, and resumes, undoes or parks them.

mod act;
mod list;

use std::process::ExitCode;

use anyhow::{Context as _, anyhow, bail};
use rusqlite::{Connection, OpenFlags};
use semel::core::{Fenced, StoreError};
use semel_config::StoreUrl;
use semel_steps::{
    OperationStore as _, PgOperations, SqliteOperations,
    store::{OperationFilter, OperationRow, OperatorStep, OwnedOperation, StepRow},
};

use super::output::Output;
use crate::store;

/// What to do with operations.
#[derive(Debug, clap::Subcommand)]
pub(super) enum OperationsCommand {
    /// List operations, the latest first, or show one with its steps
    List(list::Args),
    /// Continue a parked operation in its direction
    Resume(act::ResumeArgs),
    /// Undo an operation that is parked or running
    Undo(act::ResumeArgs),
    /// Stop a running operation until it is resumed or undone
    Park(act::ParkArgs),
}

pub(super) fn run(action: OperationsCommand) -> anyhow::Result<ExitCode> {
    match action {
        OperationsCommand::List(args) => list::run(args),
        OperationsCommand::Resume(args) => act::resume(args, OperatorStep::Resume),
        OperationsCommand::Undo(args) => act::resume(args, OperatorStep::Undo),
        OperationsCommand::Park(args) => act::park(args),
    }
}

/// The database of operations.
#[derive(Clone, Debug, clap::Args)]
struct OperationsArgs {
    /// The database: `postgres://USER@HOST/DATABASE`, sqlite:PATH, or env:NAME for the variable
    /// that holds its URL
    #[arg(long, value_name = "URL")]
    database: String,
    /// Print JSON
    #[arg(long)]
    json: bool,
}

/// An open database of operations.
enum OperationsDatabase {
    Postgres(PgOperations),
    Sqlite(SqliteOperations),
}

/// Calls a method of either store.
macro_rules! on_store {
    ($database:expr, $store:ident => $call:expr) => {
        match $database {
            OperationsDatabase::Postgres($store) => $call.await,
            OperationsDatabase::Sqlite($store) => $call.await,
        }
    };
}

impl OperationsDatabase {
    async fn list(&self, filter: &OperationFilter) -> Result<Vec<OperationRow>, StoreError> {
        on_store!(self, store => store.list(filter))
    }

    async fn read(&self, id: i64) -> Result<Option<OperationRow>, StoreError> {
        on_store!(self, store => store.read(id))
    }

    async fn steps(&self, id: i64) -> Result<Vec<StepRow>, StoreError> {
        on_store!(self, store => store.steps(id))
    }

    async fn operate(
        &self,
        seen: OwnedOperation,
        act: &OperatorStep,
    ) -> Result<Fenced, StoreError> {
        on_store!(self, store => store.operate(seen, act))
    }
}

impl OperationsArgs {
    fn url(&self) -> anyhow::Result<StoreUrl> {
        let url = semel_config::store_url(&self.database, &super::config::env);
        url.map_err(|wrong| anyhow!("--database: {wrong}"))
    }

    fn output(&self) -> Output {
        Output::new(self.json)
    }

    fn open(&self) -> anyhow::Result<OperationsDatabase> {
        match self.url()? {
            StoreUrl::Postgres(server) => {
                let pool = store::postgres(&server)?.pool(2)?;
                Ok(OperationsDatabase::Postgres(PgOperations::new(pool)))
            }
            StoreUrl::Sqlite(path) => {
                let open = || {
                    let flags = OpenFlags::SQLITE_OPEN_READ_WRITE;
                    SqliteOperations::on(Connection::open_with_flags(&path, flags)?)
                };
                let opened = open().with_context(|| format!("{} cannot be opened", path.display()));
                Ok(OperationsDatabase::Sqlite(opened?))
            }
            StoreUrl::Memory => bail!("--database: operations are kept in a database"),
        }
    }
}
