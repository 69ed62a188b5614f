//! `semel list`. Lists records.

use std::process::ExitCode;

use anyhow::anyhow;
use semel::core::{Key, StateName, store::PAGE_MAX};
use serde_json::json;

use super::{
    command_error::{self, CommandError},
    lookup::{self, FilterArgs},
    output::{self, ProgressLine, Style},
    table::{self, Widths},
    target::TargetArgs,
};
use semel_admin::{filter::RecordFilter, requests};

/// How many records are listed on a terminal by default, and how many are examined to find them.
const LIMIT: usize = 50;
const EXAMINED_MAX: u64 = 100_000;

/// Arguments of `semel list`.
#[derive(Debug, clap::Args)]
pub(super) struct Args {
    #[command(flatten)]
    place: TargetArgs,
    /// Only records with this key
    #[arg(long, value_parser = lookup::key)]
    key: Option<Key>,
    /// Only records in this state: `in_flight`, completed, released or held
    #[arg(long, value_parser = state)]
    state: Option<StateName>,
    #[command(flatten)]
    matching: FilterArgs,
    /// Only records in flight whose lease has expired
    #[arg(long)]
    lapsed: bool,
    /// Maximum number of records to list; 0 lists all. Default: 50, or all with --json
    #[arg(long)]
    limit: Option<usize>,
    /// Continue an earlier listing; takes the value that it printed
    #[arg(long, value_name = "CURSOR")]
    after: Option<String>,
}

fn state(word: &str) -> Result<StateName, String> {
    requests::state(word).map_err(|error| error.to_string())
}

pub(super) fn run(args: Args) -> anyhow::Result<ExitCode> {
    command_error::run(args.place.json, list(args))
}

async fn list(args: Args) -> Result<ExitCode, CommandError> {
    let Args { place, key, state, matching, lapsed, limit, mut after } = args;
    let filter = RecordFilter { key, state, lapsed, ..matching.filter() };
    let filter = filter.validate().map_err(|wrong| anyhow!(wrong))?;
    let (target, output) = (place.open().await?, place.output());
    let mut left = match limit {
        Some(0) => usize::MAX,
        Some(limit) => limit,
        // A program cannot see the hint about more records.
        None if output.json => usize::MAX,
        None => LIMIT,
    };
    let is_bounded = !output.json && left < usize::MAX;
    let (mut widths, mut examined) = (None, 0_u64);
    let mut progress = ProgressLine::new();
    while left > 0 {
        let limit = u32::try_from(left).unwrap_or(PAGE_MAX).min(PAGE_MAX);
        let page = target.list(&filter, after.as_deref(), limit).await?;
        left = left.saturating_sub(page.records.len());
        examined = examined.saturating_add(page.examined);
        progress.clear();
        for line in &page.records {
            if output.json {
                output.json(line)?;
                continue;
            }
            let widths = match widths {
                Some(widths) => widths,
                None => {
                    let first = Widths::of(&page.records, output);
                    output.line(&first.head(output))?;
                    *widths.insert(first)
                }
            };
            output.line(&widths.line(line, output))?;
        }
        progress.show(&format!("examined {} records", table::number(examined)));
        after = page.next;
        if after.is_none() || (is_bounded && examined >= EXAMINED_MAX) {
            break;
        }
    }
    drop(progress);
    match after {
        Some(next) if output.json => {
            output::note(&json!({ "next": next, "examined": examined }).to_string());
        }
        None if output.json => {}
        next => {
            if let Some(last) = last_line(widths.is_some(), examined, next.as_deref()) {
                output.line(&output.paint(Style::Faint, &last))?;
            }
        }
    }
    Ok(ExitCode::SUCCESS)
}

/// The line below the table.
fn last_line(found: bool, examined: u64, next: Option<&str>) -> Option<String> {
    let looked = table::number(examined);
    let more = |next| format!("continue with --after {next}, or list all with --limit 0");
    match (found, next) {
        (true, None) => None,
        (false, None) => Some("no record matches".to_owned()),
        (true, Some(next)) => {
            Some(format!("examined {looked} records, there may be more: {}", more(next)))
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
        assert_eq!(last_line(false, 0, None).unwrap(), "no record matches");
        assert_eq!(
            last_line(true, 5000, Some("17")).unwrap(),
            "examined 5,000 records, there may be more: continue with --after 17, or list all with \
             --limit 0"
        );
        let none = last_line(false, 100_000, Some("17")).unwrap();
        assert!(none.starts_with("none among the first 100,000 records: "), "{none}");
    }
}
