//! `semel doctor`. Checks a store and a cache, and recommends changes.

mod cache;
mod file;

use std::{process::ExitCode, time::SystemTime};

use anyhow::{Context as _, anyhow, bail};
use jiff::Timestamp;
use semel::core::StoreId;
use semel_postgres::doctor::{Finding, FindingLevel};
use serde::Serialize;

use super::{
    command_error::{self, CommandError, EXIT_FINDINGS},
    output::{Output, Style},
    target::DEFAULT_STORE,
};
use crate::store;
use semel_config::StoreUrl;
use semel_telemetry::escape;

/// Arguments of `semel doctor`.
#[derive(Debug, clap::Args)]
pub(super) struct Args {
    /// The store: sqlite:PATH, `postgres://USER@HOST/DATABASE`, or env:NAME for the variable that
    /// holds its URL
    #[arg(long, value_name = "URL", default_value = DEFAULT_STORE)]
    store: String,
    /// The cache in front of it: `redis://HOST`, `rediss://HOST` or env:NAME
    #[arg(long, value_name = "URL")]
    cache: Option<String>,
    /// Print JSON, one line per check
    #[arg(long)]
    json: bool,
}

/// The result of one check, as it is printed.
#[derive(Debug, PartialEq, Eq, Serialize)]
struct FindingView {
    about: &'static str,
    level: &'static str,
    found: String,
    #[serde(skip_serializing_if = "Vec::is_empty")]
    change: Vec<String>,
}

pub(super) fn run(args: Args) -> anyhow::Result<ExitCode> {
    command_error::run(args.json, doctor(args))
}

async fn doctor(args: Args) -> Result<ExitCode, CommandError> {
    let (env, output) = (&super::config::env, Output::new(args.json));
    let store = semel_config::store_url(&args.store, env);
    let store = store.map_err(|wrong| anyhow!("--store: {wrong}"))?;
    let cache = args.cache.map(|cache| semel_config::cache_url(&cache, env)).transpose();
    let cache = cache.map_err(|wrong| anyhow!("--cache: {wrong}"))?;
    let mut views = of_store(&store).await?;
    if let Some(cache) = &cache {
        views.extend(cache::check(cache).await);
    }
    for view in &views {
        if output.json {
            output.json(view)?;
        } else {
            lines(view, output).iter().try_for_each(|line| output.line(line))?;
        }
    }
    let well = views.iter().all(|view| view.level == word(FindingLevel::Fine));
    Ok(if well { ExitCode::SUCCESS } else { ExitCode::from(EXIT_FINDINGS) })
}

async fn of_store(url: &StoreUrl) -> anyhow::Result<Vec<FindingView>> {
    match url {
        StoreUrl::Postgres(server) => {
            let options = store::postgres(server)?;
            let report = options.doctor().await;
            let findings = report.context("the store cannot be checked")?.findings;
            let mut views: Vec<FindingView> = findings.into_iter().map(FindingView::of).collect();
            // What keeps it from being read was found by the doctor.
            if let Ok(Some(present)) = options.find_stores().await.map(|present| present.store) {
                views.push(identity(present.id, present.created_at));
            }
            Ok(views)
        }
        StoreUrl::Sqlite(path) => file::check(path),
        StoreUrl::Memory => bail!("a store in memory exists only inside its server"),
    }
}

/// The id and age of the store, with the setting that refuses every other store.
fn identity(id: StoreId, created_at: SystemTime) -> FindingView {
    let id = store::public_id(id);
    let created = Timestamp::try_from(created_at).map_or_else(
        |_| "at a time that cannot be read".to_owned(),
        |at| format!("at {}", at.strftime("%Y-%m-%dT%H:%M:%SZ")),
    );
    FindingView::fine(
        "store_id",
        format!("store_id = \"{id}\" refuses every other; created {created}"),
    )
}

/// What was found, as people read it.
fn lines(view: &FindingView, output: Output) -> Vec<String> {
    let tone = match view.level {
        "error" => Style::Bad,
        "warning" => Style::Busy,
        _ => Style::Good,
    };
    let level = output.paint(tone, &format!("{:7}", view.level));
    let first = format!("{level}  {:11}  {}", view.about, escape::line(&view.found));
    let change = view.change.iter().map(|command| format!("{:22}{}", "", escape::line(command)));
    std::iter::once(first).chain(change).collect()
}

const fn word(level: FindingLevel) -> &'static str {
    match level {
        FindingLevel::Fine => "fine",
        FindingLevel::Warning => "warning",
        FindingLevel::Error => "error",
    }
}

impl FindingView {
    fn of(finding: Finding) -> Self {
        let Finding { about, level, found, change } = finding;
        Self { about, level: word(level), found, change }
    }

    fn fine(about: &'static str, found: impl Into<String>) -> Self {
        let (level, found) = (word(FindingLevel::Fine), found.into());
        Self { about, level, found, change: Vec::new() }
    }

    fn error(about: &'static str, found: impl Into<String>, change: &[&str]) -> Self {
        Self { level: word(FindingLevel::Error), ..Self::warning(about, found, change) }
    }

    fn warning(about: &'static str, found: impl Into<String>, change: &[&str]) -> Self {
        let (level, change) = (word(FindingLevel::Warning), change.iter().map(|&c| c.to_owned()));
        Self { about, level, found: found.into(), change: change.collect() }
    }
}
