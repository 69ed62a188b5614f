//! `semel backup`. Copies a store while servers use it.

use std::{path::PathBuf, process::ExitCode};

use anyhow::{Context as _, anyhow};
use semel_postgres::Backup;
use serde::Serialize;

use super::{
    command_error::{self, CommandError},
    output::{Output, ProgressLine},
    target::DEFAULT_STORE,
};
use crate::store;
use semel_config::StoreUrl;

/// Arguments of `semel backup`.
#[derive(Debug, clap::Args)]
pub(super) struct Args {
    /// The file to write; it must not exist
    file: PathBuf,
    /// The store: sqlite:PATH, `postgres://USER@HOST/DATABASE`, or env:NAME for the variable that
    /// holds its URL
    #[arg(long, value_name = "URL", default_value = DEFAULT_STORE)]
    store: String,
    /// Print JSON
    #[arg(long)]
    json: bool,
}

/// A backup, as it is printed.
#[derive(Debug, Serialize)]
struct BackupView {
    file: PathBuf,
    bytes: u64,
    #[serde(skip_serializing_if = "Option::is_none")]
    store_id: Option<String>,
}

pub(super) fn run(args: Args) -> anyhow::Result<ExitCode> {
    command_error::run(args.json, backup(args))
}

async fn backup(args: Args) -> Result<ExitCode, CommandError> {
    let output = Output::new(args.json);
    let url = semel_config::store_url(&args.store, &super::config::env);
    let url = url.map_err(|wrong| anyhow!("--store: {wrong}"))?;
    let file = args.file;
    let (bytes, store_id) = match &url {
        StoreUrl::Sqlite(path) => of_file(path.clone(), file.clone()).await?,
        StoreUrl::Postgres(server) => {
            let options = store::postgres(server)?;
            let done = semel_postgres::backup(&options, &file).await;
            written(done.context("the store cannot be backed up")?)?;
            (std::fs::metadata(&file).map_or(0, |about| about.len()), None)
        }
        StoreUrl::Memory => return Err(anyhow!("a store in memory has no backup").into()),
    };
    if output.json {
        output.json(&BackupView { file, bytes, store_id })?;
    } else {
        output.line(&format!("done: {}, {bytes} bytes", file.display()))?;
        if let StoreUrl::Sqlite(path) = &url
            && let secret = store::secret_beside(path)
            && secret.exists()
        {
            output.line(&format!(
                "keep {} with it: with another secret, no caller is recognised",
                secret.display()
            ))?;
        }
        output.line(
            "after a restore, before anything else: semel migrate --after-restore --store URL",
        )?;
    }
    Ok(ExitCode::SUCCESS)
}

async fn of_file(path: PathBuf, file: PathBuf) -> anyhow::Result<(u64, Option<String>)> {
    let copying = move || {
        let mut shown = ProgressLine::new();
        semel_sqlite::backup(&path, &file, |at| {
            shown.show(&format!("{} of {} MiB", at.bytes_done >> 20, at.bytes_total >> 20));
        })
    };
    let made = tokio::task::spawn_blocking(copying).await?;
    let made = made.context("the store cannot be backed up")?;
    Ok((made.bytes, Some(store::public_id(made.id))))
}

/// Checks the result of `pg_dump`.
fn written(done: Backup) -> anyhow::Result<()> {
    match done {
        Backup::Written => Ok(()),
        Backup::NotInstalled(command) => {
            Err(anyhow!("pg_dump is not installed here; on a machine that has it: {command}"))
        }
        Backup::Failed(said) => Err(anyhow!("pg_dump failed: {said}")),
        _ => Err(anyhow!("pg_dump ended with an unknown result")),
    }
}
