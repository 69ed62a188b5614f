//! `semel doctor`. Looks at a store and a cache, and says what to change.

mod cache;
mod file;

use std::{process::ExitCode, time::SystemTime};

use anyhow::{Context as _, anyhow, bail};
use jiff::Timestamp;
use semel::core::StoreId;
use semel_postgres::doctor::{Finding, Level};
use serde::Serialize;

use super::{
    desk::DEFAULT_STORE,
    failure::{self, Failure},
    screen::{Screen, Tone},
};
use crate::{
    config::{self, StoreUrl},
    ops::escape,
    store,
};

/// The exit code when something is to be changed.
const ILL: u8 = 5;

/// What can be typed after `semel doctor`.
#[derive(Debug, clap::Args)]
pub(super) struct Args {
    /// The store: sqlite:PATH, `postgres://USER@HOST/DATABASE`, or env:NAME for the variable that
    /// holds its URL
    #[arg(long, value_name = "URL", default_value = DEFAULT_STORE)]
    store: String,
    /// The cache in front of it: `redis://HOST`, `rediss://HOST` or env:NAME
    #[arg(long, value_name = "URL")]
    cache: Option<String>,
    /// Print JSON, a line for each thing that was looked at
    #[arg(long)]
    json: bool,
}

/// One thing that was looked at, as it is printed.
#[derive(Debug, PartialEq, Eq, Serialize)]
struct View {
    about: &'static str,
    level: &'static str,
    found: String,
    #[serde(skip_serializing_if = "Vec::is_empty")]
    change: Vec<String>,
}

pub(super) fn run(args: Args) -> anyhow::Result<ExitCode> {
    failure::run(args.json, doctor(args))
}

async fn doctor(args: Args) -> Result<ExitCode, Failure> {
    let (env, screen) = (&super::config::env, Screen::new(args.json));
    let store = config::store_url(&args.store, env);
    let store = store.map_err(|wrong| anyhow!("--store: {wrong}"))?;
    let cache = args.cache.map(|cache| config::cache_url(&cache, env)).transpose();
    let cache = cache.map_err(|wrong| anyhow!("--cache: {wrong}"))?;
    let mut views = of_store(&store).await?;
    if let Some(cache) = &cache {
        views.extend(cache::look(cache).await);
    }
    for view in &views {
        if screen.json {
            screen.json(view)?;
        } else {
            lines(view, screen).iter().try_for_each(|line| screen.line(line))?;
        }
    }
    let well = views.iter().all(|view| view.level == word(Level::Fine));
    Ok(if well { ExitCode::SUCCESS } else { ExitCode::from(ILL) })
}

async fn of_store(url: &StoreUrl) -> anyhow::Result<Vec<View>> {
    match url {
        StoreUrl::Postgres(server) => {
            let options = store::postgres(server)?;
            let report = options.doctor().await;
            let findings = report.context("the store cannot be looked at")?.findings;
            let mut views: Vec<View> = findings.into_iter().map(View::of).collect();
            // What keeps it from being read was found by the doctor.
            if let Ok(Some(present)) = options.presence().await.map(|present| present.store) {
                views.push(identity(present.id, present.created_at));
            }
            Ok(views)
        }
        StoreUrl::Sqlite(path) => file::look(path),
        StoreUrl::Memory => bail!("a store in memory lives and dies with its server"),
    }
}

/// Which store it is and how old, with the line that keeps every other one out.
fn identity(id: StoreId, created_at: SystemTime) -> View {
    let id = store::public_id(id);
    let created = Timestamp::try_from(created_at).map_or_else(
        |_| "at a time that cannot be read".to_owned(),
        |at| format!("at {}", at.strftime("%Y-%m-%dT%H:%M:%SZ")),
    );
    View::fine("store_id", format!("store_id = \"{id}\" refuses every other; created {created}"))
}

/// What was found, as people read it.
fn lines(view: &View, screen: Screen) -> Vec<String> {
    let tone = match view.level {
        "error" => Tone::Bad,
        "warning" => Tone::Busy,
        _ => Tone::Good,
    };
    let level = screen.tint(tone, &format!("{:7}", view.level));
    let first = format!("{level}  {:11}  {}", view.about, escape::line(&view.found));
    let change = view.change.iter().map(|command| format!("{:22}{}", "", escape::line(command)));
    std::iter::once(first).chain(change).collect()
}

const fn word(level: Level) -> &'static str {
    match level {
        Level::Fine => "fine",
        Level::Warning => "warning",
        Level::Error => "error",
    }
}

impl View {
    fn of(finding: Finding) -> Self {
        let Finding { about, level, found, change } = finding;
        Self { about, level: word(level), found, change }
    }

    fn fine(about: &'static str, found: impl Into<String>) -> Self {
        let (level, found) = (word(Level::Fine), found.into());
        Self { about, level, found, change: Vec::new() }
    }

    fn error(about: &'static str, found: impl Into<String>, change: &[&str]) -> Self {
        Self { level: word(Level::Error), ..Self::warning(about, found, change) }
    }

    fn warning(about: &'static str, found: impl Into<String>, change: &[&str]) -> Self {
        let (level, change) = (word(Level::Warning), change.iter().map(|&c| c.to_owned()));
        Self { about, level, found: found.into(), change: change.collect() }
    }
}
