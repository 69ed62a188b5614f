//! The report of a run of the job.

use std::fmt;

use super::{Bill, Invoice};

/// The outcomes of all bills.
#[derive(Debug)]
pub struct Report {
    /// One line for each bill.
    pub lines: Vec<Line>,
}

/// The outcome of one bill.
#[derive(Debug)]
pub struct Line {
    /// The bill.
    pub bill: Bill,
    /// Its outcome.
    pub outcome: BillOutcome,
}

/// The outcome of a bill.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum BillOutcome {
    /// The customer was charged by this run.
    Billed(Invoice),
    /// The customer was charged by an earlier run.
    BilledBefore(Invoice),
    /// The bank declined the charge; the decision is final.
    Declined(String),
    /// Nothing happened; start the job again.
    Later(String),
    /// The customer was billed for this month before, with another amount.
    Changed,
    /// Whether the customer was charged, or charged once, is unknown.
    Unknown(String),
}

impl Report {
    /// The bills that an operator must check.
    pub fn unresolved(&self) -> impl Iterator<Item = &Line> {
        self.lines
            .iter()
            .filter(|line| matches!(line.outcome, BillOutcome::Unknown(_) | BillOutcome::Changed))
    }

    /// Whether every customer is charged or declined, so that no further run is needed.
    #[must_use]
    pub fn is_settled(&self) -> bool {
        self.lines.iter().all(|line| {
            matches!(
                line.outcome,
                BillOutcome::Billed(_) | BillOutcome::BilledBefore(_) | BillOutcome::Declined(_)
            )
        })
    }
}

impl fmt::Display for BillOutcome {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Billed(invoice) => write!(f, "billed, invoice {}", invoice.number),
            Self::BilledBefore(invoice) => write!(f, "billed before, invoice {}", invoice.number),
            Self::Declined(why) => write!(f, "declined: {why}"),
            Self::Later(why) => write!(f, "not yet: {why}"),
            Self::Changed => f.write_str("billed before with another amount"),
            Self::Unknown(why) => write!(f, "UNKNOWN: {why}"),
        }
    }
}

impl fmt::Display for Report {
    /// Prints a table, and below it the bills that an operator must check.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let amount = |bill: &Bill| format!("{}.{:02}", bill.cents / 100, bill.cents % 100);
        let rows: Vec<[String; 4]> = [["customer", "month", "amount", "outcome"].map(String::from)]
            .into_iter()
            .chain(self.lines.iter().map(|Line { bill, outcome }| {
                [bill.customer.clone(), bill.month.clone(), amount(bill), outcome.to_string()]
            }))
            .collect();
        let width = |cell: fn(&[String; 4]) -> &String| {
            rows.iter().map(|row| cell(row).chars().count()).max().unwrap_or_default()
        };
        let (first, second, third) =
            (width(|row| &row[0]), width(|row| &row[1]), width(|row| &row[2]));
        for [customer, month, amount, outcome] in &rows {
            writeln!(f, "{customer:<first$}  {month:<second$}  {amount:>third$}  {outcome}")?;
        }
        for (index, Line { bill, outcome }) in self.unresolved().enumerate() {
            if index == 0 {
                writeln!(f, "\nCheck these bills before the next run:")?;
            }
            writeln!(f, "- {} for {}: {outcome}", bill.customer, bill.month)?;
        }
        Ok(())
    }
}
