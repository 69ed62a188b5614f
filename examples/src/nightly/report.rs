//! What the job has to say when it is done.

use std::fmt;

use super::{Bill, Invoice};

/// What became of everyone.
#[derive(Debug)]
pub struct Report {
    /// One line for each bill.
    pub lines: Vec<Line>,
}

/// What became of one bill.
#[derive(Debug)]
pub struct Line {
    /// The bill.
    pub bill: Bill,
    /// What became of it.
    pub fate: Fate,
}

/// What can become of a bill.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Fate {
    /// The customer was charged by this run.
    Billed(Invoice),
    /// The customer was charged by an earlier run.
    BilledBefore(Invoice),
    /// The bank declined, finally.
    Declined(String),
    /// Nothing happened; start the job again.
    Later(String),
    /// The customer was billed for this month before, with another amount.
    Changed,
    /// Whether the customer was charged, or charged once, is unknown.
    Unknown(String),
}

impl Report {
    /// The bills that a person must look at.
    pub fn for_a_person(&self) -> impl Iterator<Item = &Line> {
        self.lines.iter().filter(|line| matches!(line.fate, Fate::Unknown(_) | Fate::Changed))
    }

    /// Whether everyone is charged or declined, so that no other run is needed.
    #[must_use]
    pub fn is_settled(&self) -> bool {
        self.lines.iter().all(|line| {
            matches!(line.fate, Fate::Billed(_) | Fate::BilledBefore(_) | Fate::Declined(_))
        })
    }
}

impl fmt::Display for Fate {
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
    /// A table, and below it what is left for a person.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let amount = |bill: &Bill| format!("{}.{:02}", bill.cents / 100, bill.cents % 100);
        let rows: Vec<[String; 4]> = [["customer", "month", "amount", "outcome"].map(String::from)]
            .into_iter()
            .chain(self.lines.iter().map(|Line { bill, fate }| {
                [bill.customer.clone(), bill.month.clone(), amount(bill), fate.to_string()]
            }))
            .collect();
        let width = |cell: fn(&[String; 4]) -> &String| {
            rows.iter().map(|row| cell(row).chars().count()).max().unwrap_or_default()
        };
        let (first, second, third) =
            (width(|row| &row[0]), width(|row| &row[1]), width(|row| &row[2]));
        for [customer, month, amount, fate] in &rows {
            writeln!(f, "{customer:<first$}  {month:<second$}  {amount:>third$}  {fate}")?;
        }
        for (index, Line { bill, fate }) in self.for_a_person().enumerate() {
            if index == 0 {
                writeln!(f, "\nA person must look at these before the job is started again:")?;
            }
            writeln!(f, "- {} for {}: {fate}", bill.customer, bill.month)?;
        }
        Ok(())
    }
}
