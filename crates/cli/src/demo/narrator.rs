//! Prints the demo line by line, on a terminal with colours and pauses.

use std::{
    fmt::Display,
    io::{self, Write},
    time::Duration,
};

use anstyle::{AnsiColor, Style};
use tokio::time::sleep;

use super::{act::Paid, client::AttemptResult};

/// How the demo is printed.
#[derive(Clone, Copy, Debug)]
pub(crate) struct NarratorStyle {
    /// Whether there are colours.
    pub(crate) coloured: bool,
    /// Whether there are pauses to read in.
    pub(crate) paced: bool,
}

/// Prints the demo.
pub(crate) struct Narrator<'a> {
    out: &'a mut dyn Write,
    style: NarratorStyle,
}

/// A colour, as terminals take it.
#[derive(Clone, Copy, Debug)]
pub(super) enum TextColor {
    Bold,
    Dim,
    Red,
    Green,
}

impl<'a> Narrator<'a> {
    pub(crate) fn new(out: &'a mut dyn Write, style: NarratorStyle) -> Self {
        Self { out, style }
    }

    /// One line. It is seen at once.
    pub(crate) fn line(&mut self, text: impl Display) -> io::Result<()> {
        writeln!(self.out, "{text}")?;
        self.out.flush()
    }

    /// The title of an act.
    pub(super) fn title(&mut self, text: &str) -> io::Result<()> {
        let title = self.paint(TextColor::Bold, text);
        self.line(format_args!("\n{title}"))
    }

    /// The column titles.
    pub(super) fn head(&mut self) -> io::Result<()> {
        let head = columns("", "price", "client result", "ledger");
        let head = self.paint(TextColor::Dim, &head);
        self.line(head)
    }

    /// What an order came to.
    pub(super) fn row(&mut self, paid: &Paid) -> io::Result<()> {
        let ledger = match &paid.charges[..] {
            [] => self.paint(TextColor::Red, "nothing"),
            [one] => self.paint(TextColor::Green, &one.amount.to_string()),
            [one, two] => {
                self.paint(TextColor::Red, &format!("{} + {}  TWICE", one.amount, two.amount))
            }
            [one, rest @ ..] => {
                self.paint(TextColor::Red, &format!("{} + …  {} TIMES", one.amount, rest.len() + 1))
            }
        };
        let price = paid.order.price.to_string();
        self.line(columns(paid.order.customer, &price, &heard(&paid.attempts), &ledger))
    }

    /// A pause on a terminal.
    pub(super) async fn pause(&self, length: Duration) {
        if self.style.paced {
            sleep(length).await;
        }
    }

    pub(super) fn paint(&self, paint: TextColor, text: &str) -> String {
        let style = match paint {
            _ if !self.style.coloured => return text.to_owned(),
            TextColor::Bold => Style::new().bold(),
            TextColor::Dim => Style::new().dimmed(),
            TextColor::Red => AnsiColor::Red.on_default(),
            TextColor::Green => AnsiColor::Green.on_default(),
        };
        format!("{style}{text}{style:#}")
    }
}

/// The first and the last result of a client. Those between do not matter, and on a busy machine
/// there may be too many for a line.
pub(super) fn heard(attempts: &[AttemptResult]) -> String {
    match attempts {
        [] => String::new(),
        [only] => only.to_string(),
        [first, last] => format!("{first} → {last}"),
        [first, .., last] => format!("{first} → … → {last}"),
    }
}

fn columns(customer: &str, price: &str, heard: &str, ledger: &str) -> String {
    format!("  {customer:<4} {price:>6}   {heard:<28} {ledger}")
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::demo::{cards::Charge, orders::ORDERS};

    fn row(times: usize, coloured: bool) -> String {
        let order = &ORDERS[1];
        let (id, customer) = ("ch_1".to_owned(), order.customer.to_owned());
        let charge = Charge { id, customer, amount: order.price };
        let charges = vec![charge; times];
        let attempts =
            vec![AttemptResult::TimedOut, AttemptResult::TimedOut, AttemptResult::Nothing];
        let mut out = Vec::new();
        let mut narrator = Narrator::new(&mut out, NarratorStyle { coloured, paced: false });
        narrator.row(&Paid { order, attempts, charges }).unwrap();
        String::from_utf8(out).unwrap()
    }

    #[test]
    fn a_row_shows_the_client_result_and_the_charges() {
        let start = "  ben  $24.50   timed out → … → no answer    ";
        assert_eq!(row(0, false), format!("{start}nothing\n"));
        assert_eq!(row(1, false), format!("{start}$24.50\n"));
        assert_eq!(row(2, false), format!("{start}$24.50 + $24.50  TWICE\n"));
        assert_eq!(row(3, false), format!("{start}$24.50 + …  3 TIMES\n"));
    }

    #[test]
    fn a_double_charge_is_red_and_a_single_one_green() {
        assert!(row(2, true).ends_with("\x1b[31m$24.50 + $24.50  TWICE\x1b[0m\n"));
        assert!(row(1, true).ends_with("\x1b[32m$24.50\x1b[0m\n"));
    }
}
