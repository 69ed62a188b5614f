//! `semel duplicates`. Looks for likely duplicates in a CSV of orders from before Semel.
//!
//! | file | what lives there |
//! |---|---|
//! | `detect` | which orders are likely duplicates: no I/O, time is a number |
//! | `amount`, `time` | amounts as exact decimals; times in the spellings that exports have |
//! | `columns` | which column is which |
//! | `report` | the findings, for people and for programs |

mod amount;
mod columns;
mod detect;
mod report;
mod time;

use std::{
    fs::File,
    io::{self, BufReader, Read},
    path::{Path, PathBuf},
    process::ExitCode,
    time::Duration,
};

use anyhow::{Context as _, anyhow};
use csv::{ByteRecord, ReaderBuilder};

use self::{
    amount::{Amount, Decimal},
    columns::{ColumnArgs, Columns},
    detect::{DuplicateDetector, OrderRow},
    report::DuplicateReport,
};
use super::{
    command_error::{self, CommandError, EXIT_FINDINGS},
    csv_input::{self, Separator},
    output::{Output, ProgressLine},
};

/// How many groups are shown to a person who does not say.
const GROUPS_SHOWN_DEFAULT: usize = 20;

/// How many of the rows that cannot be read are named.
const BAD_ROWS_SHOWN_MAX: usize = 5;

/// How many rows are read between two words on the progress.
const PROGRESS_EVERY_ROWS: u64 = 1 << 16;

/// Arguments of `semel duplicates`.
#[derive(Debug, clap::Args)]
pub(super) struct Args {
    /// A CSV of orders with a line of column names, or - for standard input
    #[arg(value_name = "FILE.csv")]
    file: PathBuf,
    #[command(flatten)]
    names: ColumnArgs,
    /// Column separator: a character, or comma, semicolon or tab. Default: the most frequent one in
    /// the first line
    #[arg(long, value_name = "CHARACTER", value_parser = Separator::parse)]
    separator: Option<Separator>,
    /// Decimal separator of amounts, . or , for a file with ambiguous amounts such as 1.234.
    /// Default: detected for each amount; a row with an ambiguous amount is not read
    #[arg(long, value_name = "CHARACTER", value_parser = Decimal::parse)]
    decimal: Option<Decimal>,
    /// Maximum time between an order and a likely duplicate, such as 30s or 10m
    #[arg(long, value_name = "TIME", default_value = "10m", value_parser = semel_config::duration)]
    within: Duration,
    /// Maximum number of groups to show; 0 shows all. Default: 20, or all with --json. Totals
    /// always include all groups
    #[arg(long)]
    limit: Option<usize>,
    /// Print JSON
    #[arg(long)]
    json: bool,
}

pub(super) fn run(args: &Args) -> anyhow::Result<ExitCode> {
    command_error::run(args.json, async { duplicates(args) })
}

fn duplicates(args: &Args) -> Result<ExitCode, CommandError> {
    let (input, name) = open(&args.file)?;
    let findings = read(input, args).with_context(|| name.clone())?;
    if findings.verdict.orders == 0 && findings.bad > 0 {
        let words = format!("{name}: no row could be read. {}", findings.first_bad());
        return Err(anyhow!(words).into());
    }
    let limit = match args.limit {
        Some(0) => usize::MAX,
        Some(limit) => limit,
        // A program cannot see that there is more.
        None if args.json => usize::MAX,
        None => GROUPS_SHOWN_DEFAULT,
    };
    findings.show(Output::new(args.json), limit)?;
    let is_clean = findings.verdict.groups.is_empty();
    Ok(if is_clean { ExitCode::SUCCESS } else { ExitCode::from(EXIT_FINDINGS) })
}

fn open(file: &Path) -> anyhow::Result<(Box<dyn Read>, String)> {
    if file == Path::new("-") {
        return Ok((Box::new(io::stdin().lock()), "standard input".to_owned()));
    }
    let name = file.display().to_string();
    let opened = File::open(file).with_context(|| name.clone())?;
    Ok((Box::new(opened), name))
}

/// Reads all rows, keeping of each only what the detector needs.
fn read(input: impl Read, args: &Args) -> anyhow::Result<DuplicateReport> {
    let (head, separator) = csv_input::head(BufReader::with_capacity(1 << 16, input))?;
    let separator = args.separator.unwrap_or(separator);
    let mut reader = ReaderBuilder::new()
        .delimiter(separator.0)
        .flexible(true)
        .buffer_capacity(1 << 16)
        .from_reader(head);
    let columns = Columns::find(reader.byte_headers()?, &args.names)?;
    let mut findings = DuplicateReport::new(args.within, &columns);
    let mut detector = DuplicateDetector::new(args.within);
    let (mut record, mut rows, mut progress) = (ByteRecord::new(), 0_u64, ProgressLine::new());
    while reader.read_byte_record(&mut record)? {
        match order(&record, &columns, args.decimal) {
            Ok((order, decimals)) => {
                findings.decimals(order.currency, decimals);
                detector.add(&order);
            }
            Err(why) => {
                findings.bad_row(line_of(&record), why);
            }
        }
        rows = rows.saturating_add(1);
        if rows.is_multiple_of(PROGRESS_EVERY_ROWS) {
            progress.show(&format!("{rows} rows"));
        }
    }
    drop(progress);
    findings.verdict = detector.finish();
    Ok(findings)
}

fn line_of(record: &ByteRecord) -> u64 {
    record.position().map_or(0, csv::Position::line)
}

/// The order in a row and with how many decimals its amount is written, or what is wrong with it.
fn order<'r>(
    record: &'r ByteRecord,
    columns: &Columns,
    decimal: Option<Decimal>,
) -> Result<(OrderRow<'r>, u8), String> {
    let field = |name: &str, place: usize| {
        let field = record.get(place).ok_or_else(|| {
            format!("it has {} columns, and the {name} would be column {}", record.len(), place + 1)
        })?;
        let text = str::from_utf8(field).map_err(|_| format!("the {name} is not UTF-8"))?.trim();
        if text.is_empty() { Err(format!("the {name} is empty")) } else { Ok(text) }
    };
    let at = time::read(field("time", columns.time)?)?;
    let (amount, decimals) = Amount::read(field("amount", columns.amount)?, decimal)?;
    let customer = field("customer", columns.customer)?;
    let product = field("product", columns.product)?;
    let currency = match columns.currency {
        Some(place) => field("currency", place)?,
        None => "",
    };
    let line = line_of(record);
    // An empty id does no harm: the line is known.
    let id = columns.order.and_then(|place| str::from_utf8(record.get(place)?).ok());
    let id = id.unwrap_or_default().trim();
    Ok((OrderRow { customer, product, currency, amount, at, line, id }, decimals))
}

#[cfg(test)]
mod tests;
