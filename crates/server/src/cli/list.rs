//! `semel list`. Lists records.

use std::{process::ExitCode, time::Duration};

use semel::core::{Key, Scope, StateName, store::PAGE_MAX};

use super::{
    desk::{Place, Wanted},
    failure::{self, Failure},
    find,
    screen::Tone,
    table::Widths,
};
use crate::{api::form, config};

/// How many are listed for a person who does not say.
const LIMIT: usize = 50;

/// What can be typed after `semel list`.
#[derive(Debug, clap::Args)]
pub(super) struct Args {
    #[command(flatten)]
    place: Place,
    /// Only records in this state: `in_flight`, completed, released or held
    #[arg(long, value_parser = state)]
    state: Option<StateName>,
    /// Only records of this scope
    #[arg(long, value_parser = find::scope)]
    scope: Option<Scope>,
    /// Only records with this key
    #[arg(long, value_parser = find::key)]
    key: Option<Key>,
    /// Only records claimed at least this long ago, such as 10m or 2h
    #[arg(long, value_name = "AGE", value_parser = config::duration)]
    older_than: Option<Duration>,
    /// How many to list; 0 lists all. By default 50, and with --json all
    #[arg(long)]
    limit: Option<usize>,
}

fn state(word: &str) -> Result<StateName, String> {
    form::state(word).map_err(|error| error.to_string())
}

pub(super) fn run(args: Args) -> anyhow::Result<ExitCode> {
    failure::run(args.place.json, list(args))
}

async fn list(args: Args) -> Result<ExitCode, Failure> {
    let (desk, screen) = (args.place.open().await?, args.place.screen());
    let mut left = match args.limit {
        Some(0) => usize::MAX,
        Some(limit) => limit,
        // A program cannot see that there is more.
        None if screen.json => usize::MAX,
        None => LIMIT,
    };
    let page_size = u32::try_from(left).unwrap_or(PAGE_MAX).min(PAGE_MAX);
    // With a key, few of those that are looked at are listed.
    let limit = if args.key.is_some() { PAGE_MAX } else { page_size };
    let (state, scope, key, age_min) = (args.state, args.scope, args.key, args.older_than);
    let wanted = Wanted { state, scope, key, age_min, limit };
    let (mut after, mut widths, mut more) = (None, None, false);
    loop {
        let mut page = desk.list(&wanted, after.as_deref()).await?;
        more = more || page.records.len() > left;
        page.records.truncate(left);
        left = left.saturating_sub(page.records.len());
        if screen.json {
            for line in &page.records {
                screen.json(line)?;
            }
        } else if !page.records.is_empty() {
            if widths.is_none() {
                let first = Widths::of(&page.records);
                screen.line(&first.head(screen))?;
                widths = Some(first);
            }
            for line in &page.records {
                screen.line(&widths.map_or_else(String::new, |w| w.line(line, screen)))?;
            }
        }
        match page.next {
            Some(next) if left > 0 => after = Some(next),
            next => {
                more = more || next.is_some();
                break;
            }
        }
    }
    if !screen.json {
        let last = match (widths, more) {
            (None, _) => "no such records",
            (Some(_), true) => "there may be more: --limit 0 lists all",
            (Some(_), false) => return Ok(ExitCode::SUCCESS),
        };
        screen.line(&screen.tint(Tone::Faint, last))?;
    }
    Ok(ExitCode::SUCCESS)
}
