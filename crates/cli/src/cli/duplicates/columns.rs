//! Which column is which.

use anyhow::bail;
use csv::ByteRecord;

use crate::cli::csv_input::{listed, typed_column, usual_column};

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

#[cfg(test)]
mod tests {
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
}
