//! Amounts as exact decimals: a float would make up or lose a cent.

use std::fmt::Write as _;

/// Digits after the point.
const DECIMALS: u8 = 12;

/// Digits before it. With both, a sum of ten to the eighth amounts fits.
const INTEGER_DIGITS_MAX: usize = 18;

/// An amount, in units of 10⁻¹².
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord)]
pub(super) struct Amount(i128);

/// What stands before decimals; the other one groups thousands.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Decimal {
    Point,
    Comma,
}

impl Decimal {
    pub(super) fn parse(text: &str) -> Result<Self, String> {
        match text {
            "." => Ok(Self::Point),
            "," => Ok(Self::Comma),
            _ => Err("this must be . or ,".to_owned()),
        }
    }

    /// What it seems to be in these digits: whichever comes last, unless it is there twice.
    fn of(digits: &str) -> Result<Self, &'static str> {
        let Some(last) = digits.rfind(['.', ',']) else { return Ok(Self::Point) };
        let (whole, rest) = digits.split_at(last);
        let (it, other) = if rest.starts_with('.') {
            (Self::Point, Self::Comma)
        } else {
            (Self::Comma, Self::Point)
        };
        if whole.contains(it.character()) {
            return Ok(other);
        }
        // No thousands begin with a zero: 0.125 is what it seems.
        let begins = (1..=3).contains(&whole.len()) && !whole.starts_with('0');
        if begins && all_digits(whole) && rest.get(1..).is_some_and(is_thousand) {
            return Err("could be thousands or decimals: say --decimal . or --decimal ,");
        }
        Ok(it)
    }

    const fn character(self) -> char {
        match self {
            Self::Point => '.',
            Self::Comma => ',',
        }
    }

    const fn group(self) -> char {
        match self {
            Self::Point => ',',
            Self::Comma => '.',
        }
    }
}

impl Amount {
    /// Reads an amount, and with how many decimals it is written: `49.90`, `-3`, `1,234.50`,
    /// `1.234,50`, `12,5`. One that could be two amounts (`1,234`, `1.234`) is refused, unless it
    /// is known what stands before decimals.
    pub(super) fn read(text: &str, decimal: Option<Decimal>) -> Result<(Self, u8), String> {
        let wrong = |why: &str| format!("the amount `{text}` {why}");
        let plain = text.trim();
        let (negative, digits) = match plain.strip_prefix('-') {
            Some(rest) => (true, rest),
            None => (false, plain.strip_prefix('+').unwrap_or(plain)),
        };
        let (whole, decimals) = split(digits, decimal).map_err(wrong)?;
        let whole: String = whole.chars().filter(char::is_ascii_digit).collect();
        if whole.len() > INTEGER_DIGITS_MAX || decimals.len() > usize::from(DECIMALS) {
            return Err(wrong("has too many digits"));
        }
        let number = format!("{whole}{decimals:0<width$}", width = usize::from(DECIMALS));
        let units: i128 = number.parse().map_err(|_| wrong("is not a number"))?;
        let written = u8::try_from(decimals.len()).unwrap_or(DECIMALS);
        Ok((Self(if negative { -units } else { units }), written))
    }

    pub(super) const fn is_negative(self) -> bool {
        self.0 < 0
    }

    pub(super) const fn abs(self) -> Self {
        Self(self.0.saturating_abs())
    }

    pub(super) const fn times(self, count: i128) -> Self {
        Self(self.0.saturating_mul(count))
    }

    pub(super) const fn plus(self, other: Self) -> Self {
        Self(self.0.saturating_add(other.0))
    }

    /// What makes it different from any other amount.
    pub(super) const fn to_bytes(self) -> [u8; 16] {
        self.0.to_be_bytes()
    }

    /// With at least so many decimals, and all that count.
    pub(super) fn show(self, decimals: u8) -> String {
        let digits = format!("{:0>1$}", self.0.unsigned_abs(), usize::from(DECIMALS) + 1);
        let (whole, fraction) = digits.split_at(digits.len() - usize::from(DECIMALS));
        let counts = fraction.trim_end_matches('0').len().max(usize::from(decimals));
        let mut out = String::new();
        if self.is_negative() {
            out.push('-');
        }
        out.push_str(whole);
        if let Some(fraction) = fraction.get(..counts).filter(|fraction| !fraction.is_empty()) {
            // Writing to a String cannot fail.
            let _ = write!(out, ".{fraction}");
        }
        out
    }
}

/// The digits before and after the point; before it, what groups thousands is still there.
fn split(digits: &str, decimal: Option<Decimal>) -> Result<(&str, &str), &'static str> {
    let decimal = decimal.map_or_else(|| Decimal::of(digits), Ok)?;
    let (whole, decimals) = digits.split_once(decimal.character()).unwrap_or((digits, ""));
    let sound = match whole.split_once(decimal.group()) {
        Some((first, groups)) => {
            (1..=3).contains(&first.len())
                && all_digits(first)
                && groups.split(decimal.group()).all(is_thousand)
        }
        None => all_digits(whole) && !(whole.is_empty() && decimals.is_empty()),
    };
    let not_a_number = "is not a number such as 49.90";
    if sound && all_digits(decimals) { Ok((whole, decimals)) } else { Err(not_a_number) }
}

fn is_thousand(group: &str) -> bool {
    group.len() == 3 && all_digits(group)
}

fn all_digits(text: &str) -> bool {
    text.bytes().all(|byte| byte.is_ascii_digit())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn shown(text: &str) -> String {
        let (amount, decimals) = Amount::read(text, None).unwrap();
        amount.show(decimals)
    }

    #[test]
    fn an_amount_is_shown_as_it_was_written_and_compared_by_its_value() {
        for (text, expected) in [
            ("49.90", "49.90"),
            ("-3", "-3"),
            ("+0.5", "0.5"),
            (".5", "0.5"),
            ("0", "0"),
            ("1,234.50", "1234.50"),
            ("1.234,50", "1234.50"),
            ("1.234.567", "1234567"),
            ("1,234,567", "1234567"),
            ("12,5", "12.5"),
            ("1234,500", "1234.500"),
            ("1234.500", "1234.500"),
            ("0.125", "0.125"),
            ("-0,125", "-0.125"),
            (".125", "0.125"),
            ("0.000000000001", "0.000000000001"),
            ("999999999999999999.99", "999999999999999999.99"),
        ] {
            assert_eq!(shown(text), expected, "{text}");
        }
        let value = |text: &str| Amount::read(text, None).unwrap().0;
        assert_eq!(value("10"), value("10.00"));
        assert_ne!(value("9007199254740993"), value("9007199254740992"), "no floats");
    }

    #[test]
    fn invalid_and_ambiguous_amounts_are_refused() {
        for (text, why) in [
            ("1,234", "could be thousands or decimals: say --decimal . or --decimal ,"),
            ("1.234", "could be thousands or decimals: say --decimal . or --decimal ,"),
            ("-123.456", "could be thousands or decimals"),
            ("1,234.567.890", "is not a number"),
            ("1,2.345", "is not a number"),
            ("a.234", "is not a number"),
            ("", "is not a number"),
            (".", "is not a number"),
            ("1e3", "is not a number"),
            ("12,34,567.00", "is not a number"),
            ("1.23.456", "is not a number"),
            ("EUR 5", "is not a number"),
            ("--5", "is not a number"),
            ("٣", "is not a number"),
            ("1000000000000000000", "too many digits"),
            ("0.0000000000001", "too many digits"),
        ] {
            let error = Amount::read(text, None).unwrap_err();
            assert!(error.contains(why), "{text}: {error}");
        }
    }

    #[test]
    fn an_explicit_decimal_character_resolves_ambiguity() {
        let read = |text: &str, decimal: &str| {
            let decimal = Decimal::parse(decimal).unwrap();
            Amount::read(text, Some(decimal)).map(|(amount, decimals)| amount.show(decimals))
        };
        for (text, point, comma) in [
            ("1.234", Some("1.234"), Some("1234")),
            ("1,234", Some("1234"), Some("1.234")),
            ("1,234.50", Some("1234.50"), None),
            ("1.234,50", None, Some("1234.50")),
            ("12,5", None, Some("12.5")),
            ("1.234.567", None, Some("1234567")),
            ("1234", Some("1234"), Some("1234")),
        ] {
            assert_eq!(read(text, ".").ok().as_deref(), point, "{text}");
            assert_eq!(read(text, ",").ok().as_deref(), comma, "{text}");
        }
        for bad in ["", ";", "..", "point"] {
            assert!(Decimal::parse(bad).is_err(), "{bad}");
        }
    }

    #[test]
    fn sums_are_exact() {
        let (cents, _) = Amount::read("0.10", None).unwrap();
        assert_eq!(cents.times(3).show(2), "0.30");
        let sum = (0..1000).fold(Amount::default(), |sum, _| sum.plus(cents));
        assert_eq!(sum.show(0), "100");
        assert_eq!(Amount::read("-1.25", None).unwrap().0.times(2).show(2), "-2.50");
    }
}
