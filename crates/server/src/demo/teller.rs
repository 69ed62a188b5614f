//! How the story is told: line by line, in colours and with pauses where a person looks on.

use std::{
    fmt::Display,
    io::{self, Write},
    time::Duration,
};

use tokio::time::sleep;

use super::{act::Paid, client::Heard};

/// How it is told.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Manner {
    /// Whether there are colours.
    pub(crate) coloured: bool,
    /// Whether there are pauses to read in.
    pub(crate) paced: bool,
}

/// Tells the story to whoever reads there.
pub(crate) struct Teller<'a> {
    out: &'a mut dyn Write,
    manner: Manner,
}

/// A colour, as terminals take it.
#[derive(Clone, Copy, Debug)]
pub(super) enum Ink {
    Bold,
    Dim,
    Red,
    Green,
}

impl<'a> Teller<'a> {
    pub(crate) fn new(out: &'a mut dyn Write, manner: Manner) -> Self {
        Self { out, manner }
    }

    /// One line. It is seen at once.
    pub(crate) fn line(&mut self, text: impl Display) -> io::Result<()> {
        writeln!(self.out, "{text}")?;
        self.out.flush()
    }

    /// The title of an act.
    pub(super) fn title(&mut self, text: &str) -> io::Result<()> {
        let title = self.ink(Ink::Bold, text);
        self.line(format_args!("\n{title}"))
    }

    /// What stands above the rows.
    pub(super) fn head(&mut self) -> io::Result<()> {
        let head = columns("", "price", "the client hears", "the ledger says");
        let head = self.ink(Ink::Dim, &head);
        self.line(head)
    }

    /// What an order came to.
    pub(super) fn row(&mut self, paid: &Paid) -> io::Result<()> {
        let ledger = match &paid.charges[..] {
            [] => self.ink(Ink::Red, "nothing"),
            [one] => self.ink(Ink::Green, &one.amount.to_string()),
            [one, two] => self.ink(Ink::Red, &format!("{} + {}  TWICE", one.amount, two.amount)),
            [one, rest @ ..] => {
                self.ink(Ink::Red, &format!("{} + …  {} TIMES", one.amount, rest.len() + 1))
            }
        };
        let price = paid.order.price.to_string();
        self.line(columns(paid.order.customer, &price, &heard(&paid.tries), &ledger))
    }

    /// Time to read, where a person does.
    pub(super) async fn pause(&self, length: Duration) {
        if self.manner.paced {
            sleep(length).await;
        }
    }

    pub(super) fn ink(&self, ink: Ink, text: &str) -> String {
        let code = match ink {
            Ink::Bold => 1,
            Ink::Dim => 2,
            Ink::Red => 31,
            Ink::Green => 32,
        };
        if self.manner.coloured { format!("\x1b[{code}m{text}\x1b[0m") } else { text.to_owned() }
    }
}

/// What a client heard, at first and in the end. What lies between does not matter, and on a busy
/// machine there may be too much of it for a line.
pub(super) fn heard(tries: &[Heard]) -> String {
    match tries {
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
        let tries = vec![Heard::TimedOut, Heard::TimedOut, Heard::Nothing];
        let mut out = Vec::new();
        let mut teller = Teller::new(&mut out, Manner { coloured, paced: false });
        teller.row(&Paid { order, tries, charges }).unwrap();
        String::from_utf8(out).unwrap()
    }

    #[test]
    fn a_row_says_what_the_client_heard_and_what_was_charged() {
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
