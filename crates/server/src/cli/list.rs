//! `semel list`. Lists records.

use std::process::ExitCode;

use anyhow::anyhow;
use semel::core::{Key, StateName, store::PAGE_MAX};
use serde_json::json;

use super::{
    desk::Place,
    failure::{self, Failure},
    find::{self, Matching},
    screen::{self, Progress, Tone},
    table::{self, Widths},
};
use crate::api::{filter::RecordFilter, form};

/// How many records are listed on a terminal by default, and how many are examined to find them.
const LIMIT: usize = 50;
const EXAMINED_MAX: u64 = 100_000;

/// What can be typed after `semel list`.
#[derive(Debug, clap::Args)]
pub(super) struct Args {
    #[command(flatten)]
    place: Place,
    /// Only records with this key
    #[arg(long, value_parser = find::key)]
    key: Option<Key>,
    /// Only records in this state: `in_flight`, completed, released or held
    #[arg(long, value_parser = state)]
    state: Option<StateName>,
    #[command(flatten)]
    matching: Matching,
    /// Only records in flight whose lease has expired
    #[arg(long)]
    lapsed: bool,
    /// How many to list; 0 lists all. By default 50, and with --json all
    #[arg(long)]
    limit: Option<usize>,
    /// Continue an earlier listing; takes the value that it printed
    #[arg(long, value_name = "CURSOR")]
    after: Option<String>,
}

fn state(word: &str) -> Result<StateName, String> {
    form::state(word).map_err(|error| error.to_string())
}

pub(super) fn run(args: Args) -> anyhow::Result<ExitCode> {
    failure::run(args.place.json, list(args))
}

async fn list(args: Args) -> Result<ExitCode, Failure> {
    let Args { place, key, state, matching, lapsed, limit, mut after } = args;
    let filter = RecordFilter { key, state, lapsed, ..matching.filter() };
    let filter = filter.checked().map_err(|wrong| anyhow!(wrong))?;
    let (desk, screen) = (place.open().await?, place.screen());
    let mut left = match limit {
        Some(0) => usize::MAX,
        Some(limit) => limit,
        // A program does not read that there is more.
        None if screen.json => usize::MAX,
        None => LIMIT,
    };
    let is_bounded = !screen.json && left < usize::MAX;
    let (mut widths, mut examined) = (None, 0_u64);
    let mut progress = Progress::new();
    while left > 0 {
        let limit = u32::try_from(left).unwrap_or(PAGE_MAX).min(PAGE_MAX);
        let page = desk.list(&filter, after.as_deref(), limit).await?;
        left = left.saturating_sub(page.records.len());
        examined = examined.saturating_add(page.examined);
        progress.clear();
        for line in &page.records {
            if screen.json {
                screen.json(line)?;
                continue;
            }
            let widths = match widths {
                Some(widths) => widths,
                None => {
                    let first = Widths::of(&page.records, screen);
                    screen.line(&first.head(screen))?;
                    *widths.insert(first)
                }
            };
            screen.line(&widths.line(line, screen))?;
        }
        progress.say(&format!("looked at {} records", table::number(examined)));
        after = page.next;
        if after.is_none() || (is_bounded && examined >= EXAMINED_MAX) {
            break;
        }
    }
    drop(progress);
    match after {
        Some(next) if screen.json => {
            screen::note(&json!({ "next": next, "examined": examined }).to_string());
        }
        None if screen.json => {}
        next => {
            if let Some(last) = last_line(widths.is_some(), examined, next.as_deref()) {
                screen.line(&screen.tint(Tone::Faint, &last))?;
            }
        }
    }
    Ok(ExitCode::SUCCESS)
}

/// The line below the table.
fn last_line(found: bool, examined: u64, next: Option<&str>) -> Option<String> {
    let looked = table::number(examined);
    let more = |next| format!("go on with --after {next}, or list all with --limit 0");
    match (found, next) {
        (true, None) => None,
        (false, None) => Some("no such records".to_owned()),
        (true, Some(next)) => {
            Some(format!("looked at {looked} records, there may be more: {}", more(next)))
        }
        (false, Some(next)) => {
            Some(format!("none among the first {looked} records: {}", more(next)))
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_listing_that_ends_early_says_where_to_go_on() {
        assert_eq!(last_line(true, 3, None), None);
        assert_eq!(last_line(false, 0, None).unwrap(), "no such records");
        assert_eq!(
            last_line(true, 5000, Some("17")).unwrap(),
            "looked at 5,000 records, there may be more: go on with --after 17, or list all with \
             --limit 0"
        );
        let none = last_line(false, 100_000, Some("17")).unwrap();
        assert!(none.starts_with("none among the first 100,000 records: "), "{none}");
    }
}
