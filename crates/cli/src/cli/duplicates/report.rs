//! Prints the duplicates as a table or as JSON.

use std::{collections::BTreeMap, time::Duration};

use serde::Serialize;
use serde_json::{Value, json};

use super::{
    BAD_ROWS_SHOWN_MAX,
    columns::Columns,
    detect::{DetectionResult, DuplicateGroup, SumsByCurrency},
    time,
};
use crate::cli::output::{Output, Style, note};
use semel_telemetry::{escape, format_duration};

/// The cells of a group.
type GroupCells = [String; 7];

const COLUMN_TITLES: [&str; 6] =
    ["WHEN", "CUSTOMER", "PRODUCT", "AMOUNT", "ORDERS", "SECONDS BETWEEN"];

/// Titles of the last column, with and without ids.
const IDS_TITLE: &str = "ORDER IDS";
const LINES_TITLE: &str = "LINES";

/// How many orders of a group are named to people.
const NAMED_MAX: usize = 5;

/// How many gaps of a group are shown to people.
const GAPS_SHOWN: usize = 4;

/// How much of a name is shown to people.
const NAME_CHARS_MAX: usize = 40;

/// The report of one file.
#[derive(Debug)]
pub(super) struct DuplicateReport {
    within: Duration,
    has_currency: bool,
    has_ids: bool,
    /// Number of unreadable rows, and the first of them.
    pub(super) bad: u64,
    bad_rows: Vec<BadRow>,
    /// The most decimals that amounts are written with, by currency.
    decimals: BTreeMap<Box<str>, u8>,
    pub(super) verdict: DetectionResult,
}

#[derive(Debug, Serialize)]
struct BadRow {
    line: u64,
    why: String,
}

impl DuplicateReport {
    pub(super) fn new(within: Duration, columns: &Columns) -> Self {
        Self {
            within,
            has_currency: columns.currency.is_some(),
            has_ids: columns.order.is_some(),
            bad: 0,
            bad_rows: Vec::new(),
            decimals: BTreeMap::new(),
            verdict: DetectionResult::default(),
        }
    }

    pub(super) fn decimals(&mut self, currency: &str, decimals: u8) {
        match self.decimals.get_mut(currency) {
            Some(most) => *most = decimals.max(*most),
            None => _ = self.decimals.insert(currency.into(), decimals),
        }
    }

    pub(super) fn bad_row(&mut self, line: u64, why: String) {
        self.bad = self.bad.saturating_add(1);
        if self.bad_rows.len() < BAD_ROWS_SHOWN_MAX {
            self.bad_rows.push(BadRow { line, why });
        }
    }

    /// The error of the first unreadable row.
    pub(super) fn first_bad(&self) -> String {
        let first = self.bad_rows.first();
        first.map_or_else(String::new, |row| format!("Line {}: {}", row.line, row.why))
    }

    pub(super) fn show(&self, output: Output, limit: usize) -> anyhow::Result<()> {
        if output.json {
            return output.json(&self.to_json(limit));
        }
        for row in &self.bad_rows {
            note(&format!("line {}: {}", row.line, row.why));
        }
        let unnamed = self.bad.saturating_sub(u64::try_from(self.bad_rows.len()).unwrap_or(0));
        if unnamed > 0 {
            note(&format!("and {unnamed} more rows that could not be read"));
        }
        let shown: Vec<GroupCells> =
            self.verdict.groups.iter().take(limit).map(|group| self.cells(group)).collect();
        if !shown.is_empty() {
            for (number, line) in self.aligned(&shown).iter().enumerate() {
                let tone = if number == 0 { Style::Faint } else { Style::Plain };
                output.line(&output.paint(tone, line))?;
            }
            if shown.len() < self.verdict.groups.len() {
                let left = self.verdict.groups.len() - shown.len();
                let more = format!("and {left} more: --limit 0 shows all");
                output.line(&output.paint(Style::Faint, &more))?;
            }
            output.line("")?;
        }
        self.totals(output)
    }

    fn totals(&self, output: Output) -> anyhow::Result<()> {
        let DetectionResult { orders, groups, surplus_orders, gaps, .. } = &self.verdict;
        let within = format_duration(self.within);
        let mut lines = vec![("orders read", orders.to_string())];
        if self.bad > 0 {
            lines.push(("rows not read", self.bad.to_string()));
        }
        lines.push(("groups of equal orders", format!("{} within {within}", groups.len())));
        let share = self.share();
        lines.push(("surplus orders", format!("{surplus_orders}, {share} % of all")));
        let sums =
            [("surplus amount", &self.verdict.surplus), ("surplus refunds", &self.verdict.refunds)];
        for (name, sums) in sums.into_iter().filter(|(_, sums)| !sums.is_empty()) {
            let amounts = self.sums(sums).map(|(currency, sum)| named(&sum, currency));
            lines.push((name, amounts.collect::<Vec<_>>().join(", ")));
        }
        lines.push(("under 2 s apart", format!("{}: double clicks", gaps.clicks)));
        lines.push(("2 to 30 s apart", format!("{}: clients that try again", gaps.retries)));
        lines.push(("further apart", format!("{}: people, or jobs", gaps.longer)));
        if groups.is_empty() {
            lines.truncate(if self.bad > 0 { 3 } else { 2 });
        }
        let width = lines.iter().map(|(name, _)| name.len()).max().unwrap_or_default();
        for (name, value) in lines {
            let name = output.paint(Style::Faint, &format!("{name:width$}"));
            output.line(&format!("{name}  {value}"))?;
        }
        if groups.is_empty() {
            return Ok(());
        }
        let words = "These are likely duplicates, not certain ones: two equal orders can be \
                     meant.\nLook at a few before you count on the sum.";
        output.line(&format!("\n{words}"))
    }

    /// Surplus orders in a hundred orders, to three decimals.
    fn share(&self) -> String {
        let DetectionResult { orders, surplus_orders, .. } = &self.verdict;
        let thousandths = u128::from(*surplus_orders) * 100_000 / u128::from(*orders).max(1);
        format!("{}.{:03}", thousandths / 1000, thousandths % 1000)
    }

    /// Sums as they are shown, by currency.
    fn sums<'a>(&'a self, sums: &'a SumsByCurrency) -> impl Iterator<Item = (&'a str, String)> {
        sums.iter().map(|(name, sum)| (&**name, sum.show(self.decimals_of(name))))
    }

    fn sums_json(&self, sums: &SumsByCurrency) -> Vec<Value> {
        self.sums(sums)
            .map(|(currency, amount)| self.with_currency(json!({ "amount": amount }), currency))
            .collect()
    }

    fn decimals_of(&self, currency: &str) -> u8 {
        self.decimals.get(currency).copied().unwrap_or_default()
    }

    fn cells(&self, group: &DuplicateGroup) -> GroupCells {
        let mut gaps: Vec<String> = group.gaps().take(GAPS_SHOWN).map(seconds).collect();
        if group.orders.len() > GAPS_SHOWN + 1 {
            gaps.push("…".to_owned());
        }
        let first = group.orders.iter().take(NAMED_MAX);
        let mut names: Vec<String> = if self.has_ids {
            first.map(|order| short(&order.id)).collect()
        } else {
            first.map(|order| order.line.to_string()).collect()
        };
        if group.orders.len() > NAMED_MAX {
            names.push("…".to_owned());
        }
        let amount = group.amount.show(self.decimals_of(&group.currency));
        [
            group.orders.first().map_or_else(String::new, |order| time::show(order.at)),
            short(&group.customer),
            short(&group.product),
            named(&amount, &group.currency),
            group.orders.len().to_string(),
            gaps.join(", "),
            names.join(", "),
        ]
    }

    fn to_json(&self, limit: usize) -> Value {
        let groups: Vec<Value> =
            self.verdict.groups.iter().take(limit).map(|group| self.group_json(group)).collect();
        let DetectionResult { orders, surplus_orders, gaps, .. } = &self.verdict;
        json!({
            "orders": orders,
            "bad_rows": self.bad,
            "first_bad_rows": self.bad_rows,
            "within_seconds": self.within.as_secs_f64(),
            "groups_total": self.verdict.groups.len(),
            "surplus_orders": surplus_orders,
            "surplus_percent": self.share(),
            "surplus_amounts": self.sums_json(&self.verdict.surplus),
            "surplus_refunds": self.sums_json(&self.verdict.refunds),
            "gaps": {
                "under_2_seconds": gaps.clicks,
                "under_30_seconds": gaps.retries,
                "longer": gaps.longer,
            },
            "groups": groups,
        })
    }

    fn group_json(&self, group: &DuplicateGroup) -> Value {
        let gaps: Vec<f64> = group
            .gaps()
            .map(|gap| Duration::from_micros(gap.unsigned_abs()).as_secs_f64())
            .collect();
        let lines: Vec<u64> = group.orders.iter().map(|order| order.line).collect();
        let mut value = json!({
            "when": group.orders.first().map(|order| time::show(order.at)),
            "customer": &*group.customer,
            "product": &*group.product,
            "amount": group.amount.show(self.decimals_of(&group.currency)),
            "orders": group.orders.len(),
            "seconds_between": gaps,
            "lines": lines,
        });
        if let (true, Value::Object(members)) = (self.has_ids, &mut value) {
            let ids: Vec<&str> = group.orders.iter().map(|order| &*order.id).collect();
            members.insert("order_ids".to_owned(), ids.into());
        }
        self.with_currency(value, &group.currency)
    }

    fn aligned(&self, rows: &[GroupCells]) -> Vec<String> {
        let last = if self.has_ids { IDS_TITLE } else { LINES_TITLE };
        let [when, customer, product, amount, orders, gaps] = COLUMN_TITLES;
        let head = [when, customer, product, amount, orders, gaps, last].map(str::to_owned);
        let all = || std::iter::once(&head).chain(rows);
        let mut widths = [0; 7];
        for row in all() {
            for (width, cell) in widths.iter_mut().zip(row) {
                *width = cell.chars().count().max(*width);
            }
        }
        let line = |row: &GroupCells| {
            let cells = row.iter().zip(widths).enumerate().map(|(column, (cell, width))| {
                // Numbers stand to the right.
                if matches!(column, 3 | 4) {
                    format!("{cell:>width$}")
                } else {
                    format!("{cell:width$}")
                }
            });
            cells.collect::<Vec<_>>().join("  ").trim_end().to_owned()
        };
        all().map(line).collect()
    }

    fn with_currency(&self, mut value: Value, currency: &str) -> Value {
        if let (true, Value::Object(members)) = (self.has_currency, &mut value) {
            members.insert("currency".to_owned(), currency.into());
        }
        value
    }
}

/// An amount with its currency, if it has one.
fn named(amount: &str, currency: &str) -> String {
    if currency.is_empty() { amount.to_owned() } else { format!("{amount} {}", short(currency)) }
}

/// A name that others wrote, on one line and not too long.
fn short(name: &str) -> String {
    let name = escape::line(name);
    if name.chars().count() <= NAME_CHARS_MAX {
        return name;
    }
    name.chars().take(NAME_CHARS_MAX - 1).chain(['…']).collect()
}

/// Seconds, with milliseconds if they are not zero.
fn seconds(microseconds: i64) -> String {
    let millis = microseconds / 1000;
    match millis % 1000 {
        0 => (millis / 1000).to_string(),
        rest => format!("{}.{rest:03}", millis / 1000).trim_end_matches('0').to_owned(),
    }
}
