//! `semel migrate`. Makes a PostgreSQL store, or brings an older one up to date.

use std::process::ExitCode;

use anyhow::{Context as _, anyhow};
use semel_postgres::Migrated;
use serde_json::json;

use super::{
    failure::{self, Failure},
    screen::Screen,
};
use crate::{
    config::{self, StoreUrl},
    store,
};

/// What can be typed after `semel migrate`.
#[derive(Debug, clap::Args)]
pub(super) struct Args {
    /// The store: `postgres://USER@HOST/DATABASE`, or env:NAME for the variable that holds its URL
    #[arg(long, value_name = "URL")]
    store: String,
    /// Print the SQL instead, for whoever runs it by other means; nothing is connected to
    #[arg(long)]
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
    let options = match url.map_err(|wrong| anyhow!("--store: {wrong}"))? {
        StoreUrl::Postgres(server) => store::postgres(&server)?,
        StoreUrl::Sqlite(_) | StoreUrl::Memory => {
            return Err(anyhow!("only a PostgreSQL store is migrated by hand").into());
        }
    };
    let screen = Screen::new(args.json);
    if args.print {
        screen.line(options.migrations().trim_end())?;
        return Ok(ExitCode::SUCCESS);
    }
    let Migrated { from, to } = options.migrate().await.context("the store cannot be migrated")?;
    if args.json {
        screen.json(&json!({ "from": from, "to": to }))?;
        return Ok(ExitCode::SUCCESS);
    }
    screen.line(&match (from, to) {
        (0, to) => format!("done: the store is made, version {to}"),
        (from, to) if from >= to => format!("nothing to do: the store has version {from}"),
        (from, to) => format!("done: version {from} is now version {to}"),
    })?;
    Ok(ExitCode::SUCCESS)
}
