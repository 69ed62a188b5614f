//! Which column is which, and what stands between columns.

use std::io::{self, BufRead, Chain, Cursor};

use anyhow::bail;
use csv::ByteRecord;

use semel_telemetry::escape;

/// How long the line of column names may be.
const HEAD_BYTES_MAX: usize = 64 << 10;

/// The names of columns that were typed.
#[derive(Clone, Debug, Default, clap::Args)]
pub(super) struct ColumnArgs {
    /// The column that says who ordered. By default found by its name, as the others
    #[arg(long, value_name = "COLUMN")]
    pub(super) customer: Option<String>,
    /// The column that says what was ordered
    #[arg(long, value_name = "COLUMN")]
    pub(super) product: Option<String>,
    /// The column that says for how much
    #[arg(long, value_name = "COLUMN")]
    pub(super) amount: Option<String>,
    /// The column that says when
    #[arg(long, value_name = "COLUMN")]
    pub(super) time: Option<String>,
    /// The column that says in which currency, if there is one
    #[arg(long, value_name = "COLUMN")]
    pub(super) currency: Option<String>,
    /// The column that names the order, if there is one. Without it the lines of orders are shown
    #[arg(long, value_name = "COLUMN")]
    pub(super) order: Option<String>,
}

/// Where each is in a row.
#[derive(Debug, PartialEq, Eq)]
pub(super) struct Columns {
    pub(super) customer: usize,
    pub(super) product: usize,
    pub(super) amount: usize,
    pub(super) time: usize,
    pub(super) currency: Option<usize>,
    pub(super) order: Option<usize>,
}

/// The usual names, the likelier first.
const CUSTOMER: &[&str] = &[
    "customer_id",
    "customer",
    "user_id",
    "user",
    "client_id",
    "client",
    "account_id",
    "account",
    "buyer_id",
    "buyer",
    "customer_email",
    "email",
];
const PRODUCT: &[&str] = &[
    "product_id",
    "product",
    "sku",
    "product_sku",
    "item_id",
    "item",
    "variant_id",
    "lineitem_sku",
    "lineitem_name",
    "product_name",
];
const AMOUNT: &[&str] = &[
    "amount",
    "total",
    "total_amount",
    "amount_total",
    "order_total",
    "grand_total",
    "total_price",
    "price",
    "sum",
];
const TIME: &[&str] = &[
    "created_at",
    "time",
    "timestamp",
    "created",
    "created_utc",
    "created_date_utc",
    "ordered_at",
    "placed_at",
    "order_time",
    "order_date",
    "paid_at",
    "datetime",
    "date",
];
const CURRENCY: &[&str] = &["currency", "currency_code"];
const ORDER: &[&str] =
    &["order_id", "order", "order_no", "order_number", "payment_id", "charge_id", "id"];

impl Columns {
    pub(super) fn find(head: &ByteRecord, given: &ColumnArgs) -> anyhow::Result<Self> {
        let names: Vec<String> =
            head.iter().map(|name| String::from_utf8_lossy(name).trim().to_owned()).collect();
        let find = |flag: &str, given: &Option<String>, usual: &[&str]| match given {
            Some(given) => typed_column(&names, flag, given).map(Some),
            None => Ok(usual_column(&names, usual)),
        };
        let mut missing = Vec::new();
        let mut must = |flag: &'static str, given: &Option<String>, usual: &[&str]| {
            let place = find(flag, given, usual)?;
            if place.is_none() {
                missing.push(flag);
            }
            anyhow::Ok(place.unwrap_or_default())
        };
        let columns = Self {
            customer: must("customer", &given.customer, CUSTOMER)?,
            product: must("product", &given.product, PRODUCT)?,
            amount: must("amount", &given.amount, AMOUNT)?,
            time: must("time", &given.time, TIME)?,
            currency: find("currency", &given.currency, CURRENCY)?,
            order: find("order", &given.order, ORDER)?,
        };
        if missing.is_empty() {
            return Ok(columns);
        }
        let flags: Vec<_> = missing.iter().map(|flag| format!("--{flag} COLUMN")).collect();
        bail!(
            "which column has the {}? The columns are {}. Select one with {}",
            missing.join(", and which the "),
            listed(&names),
            flags.join(" "),
        )
    }
}

fn typed_column(names: &[String], flag: &str, given: &str) -> anyhow::Result<usize> {
    let exact = names.iter().position(|name| name == given);
    let place = exact.or_else(|| names.iter().position(|name| plain(name) == plain(given)));
    let Some(place) = place else {
        bail!("--{flag}: there is no column `{given}`, but {}", listed(names))
    };
    Ok(place)
}

fn usual_column(names: &[String], usual: &[&str]) -> Option<usize> {
    usual.iter().find_map(|usual| names.iter().position(|name| plain(name) == *usual))
}

/// A name as the usual ones are written: `Created at` is `created_at`.
fn plain(name: &str) -> String {
    let words = name.split(|c: char| !c.is_alphanumeric()).filter(|word| !word.is_empty());
    words.collect::<Vec<_>>().join("_").to_lowercase()
}

fn listed(names: &[String]) -> String {
    let names: Vec<String> =
        names.iter().take(50).map(|name| format!("`{}`", escape::line(name))).collect();
    names.join(", ")
}

/// What stands between columns.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Separator(pub(super) u8);

impl Separator {
    pub(super) fn parse(text: &str) -> Result<Self, String> {
        match (text, text.as_bytes()) {
            ("comma", _) => Ok(Self(b',')),
            ("semicolon", _) => Ok(Self(b';')),
            ("tab" | "\\t", _) => Ok(Self(b'\t')),
            (_, [one]) if !one.is_ascii_alphanumeric() && *one != b'"' => Ok(Self(*one)),
            _ => Err("this must be one character, or comma, semicolon or tab".to_owned()),
        }
    }

    /// The most frequent delimiter in the header line, outside quotes.
    fn of(line: &[u8]) -> Self {
        let mut counts = [(b',', 0_usize), (b';', 0), (b'\t', 0), (b'|', 0)];
        let mut quoted = false;
        for byte in line {
            quoted ^= *byte == b'"';
            for (separator, count) in &mut counts {
                *count += usize::from(!quoted && separator == byte);
            }
        }
        // Of equals the last counts, so the likeliest comes last.
        let most = counts.iter().rev().max_by_key(|(_, count)| *count);
        Self(most.map_or(b',', |(separator, _)| *separator))
    }
}

/// An input whose first line was looked at.
pub(super) type PeekedInput<R> = Chain<Cursor<Vec<u8>>, R>;

/// The whole input again, without a byte order mark, and what probably stands between its columns.
pub(super) fn head<R: BufRead>(mut input: R) -> anyhow::Result<(PeekedInput<R>, Separator)> {
    let mut line = Vec::new();
    let limit = u64::try_from(HEAD_BYTES_MAX).unwrap_or(u64::MAX);
    io::Read::take(&mut input, limit).read_until(b'\n', &mut line)?;
    if line.starts_with(&[0xFF, 0xFE]) || line.starts_with(&[0xFE, 0xFF]) {
        bail!("this is UTF-16; save it as UTF-8");
    }
    if line.len() == HEAD_BYTES_MAX {
        bail!("the first line is longer than {HEAD_BYTES_MAX} bytes; it must name the columns");
    }
    if line.starts_with(&[0xEF, 0xBB, 0xBF]) {
        line.drain(..3);
    }
    if line.trim_ascii().is_empty() {
        bail!("the first line is empty; it must name the columns");
    }
    let separator = Separator::of(&line);
    Ok((io::Read::chain(Cursor::new(line), input), separator))
}

#[cfg(test)]
mod tests {
    use std::io::Read as _;

    use super::*;

    fn find(head: &[&str], given: &ColumnArgs) -> Result<Columns, String> {
        Columns::find(&ByteRecord::from(head), given).map_err(|error| error.to_string())
    }

    #[test]
    fn usual_names_are_found_however_they_are_spelled() {
        let columns = find(
            &["id", "Created at", "TOTAL", "Currency", "sku", "e-mail", "email"],
            &ColumnArgs::default(),
        );
        let expected = Columns {
            customer: 6,
            product: 4,
            amount: 2,
            time: 1,
            currency: Some(3),
            order: Some(0),
        };
        assert_eq!(columns, Ok(expected));
        let columns =
            find(&["email", "customer-id", "product", "amount", "time"], &ColumnArgs::default());
        assert_eq!(columns.unwrap().customer, 1, "the likelier counts");
        let of_stripe =
            ["id", "Created date (UTC)", "Amount", "Currency", "Customer ID", "product"];
        let columns = find(&of_stripe, &ColumnArgs::default()).unwrap();
        assert_eq!((columns.time, columns.customer, columns.order), (1, 4, Some(0)));
    }

    #[test]
    fn a_column_that_is_not_found_is_asked_for_with_those_that_are_there() {
        let error = find(&["who", "sku", "total", "date"], &ColumnArgs::default()).unwrap_err();
        assert!(
            error.contains("which column has the customer? The columns are `who`, `sku`"),
            "{error}"
        );
        assert!(error.ends_with("Select one with --customer COLUMN"), "{error}");
        let error = find(&["who", "article", "total"], &ColumnArgs::default()).unwrap_err();
        let all = "which column has the customer, and which the product, and which the time? The";
        assert!(error.starts_with(all), "{error}");
        assert!(error.ends_with("--customer COLUMN --product COLUMN --time COLUMN"), "{error}");
        let who = ColumnArgs { customer: Some("WHO".into()), ..ColumnArgs::default() };
        assert_eq!(find(&["who", "sku", "total", "date"], &who).unwrap().customer, 0);
        let error = find(&["sku", "total", "date"], &who).unwrap_err();
        assert!(error.contains("--customer: there is no column `WHO`"), "{error}");
        let odd = ColumnArgs { currency: Some("coin".into()), ..ColumnArgs::default() };
        assert!(find(&["user", "sku", "total", "date"], &odd).unwrap_err().contains("--currency"));
    }

    #[test]
    fn the_separator_is_what_the_first_line_has_most_of() {
        for (line, expected) in [
            ("a,b,c", b','),
            ("a;b;c,d", b';'),
            ("a\tb", b'\t'),
            ("a|b|c", b'|'),
            ("\"a;b;c;d\",e", b','),
            ("alone", b','),
            ("a,b;c", b','),
        ] {
            assert_eq!(Separator::of(line.as_bytes()), Separator(expected), "{line}");
        }
        for (text, expected) in [("tab", b'\t'), (";", b';'), ("semicolon", b';'), ("|", b'|')] {
            assert_eq!(Separator::parse(text), Ok(Separator(expected)));
        }
        for bad in ["", "ab", "a", "\"", "é"] {
            assert!(Separator::parse(bad).is_err(), "{bad}");
        }
    }

    #[test]
    fn only_the_byte_order_mark_of_the_input_is_dropped() {
        let (mut all, separator) = head(&b"\xEF\xBB\xBFa;b\n1;2\n"[..]).unwrap();
        let mut text = String::new();
        all.read_to_string(&mut text).unwrap();
        assert_eq!((text.as_str(), separator), ("a;b\n1;2\n", Separator(b';')));
        for (bad, why) in [(&b"\xFF\xFEa\0"[..], "UTF-16"), (b"", "empty"), (b"\n1,2\n", "empty")] {
            assert!(head(bad).unwrap_err().to_string().contains(why));
        }
        assert!(head(&vec![b'a'; HEAD_BYTES_MAX + 1][..]).is_err());
    }
}
