//! Properties of the reader: every row is an order or a counted error, and no input panics.

use clap::Parser as _;
use proptest::{collection::vec, prelude::any, prop_assert, prop_assert_eq, proptest};

use super::*;

#[derive(Debug, clap::Parser)]
struct TestCli {
    #[command(flatten)]
    args: Args,
}

fn args() -> Args {
    TestCli::parse_from(["semel", "-"]).args
}

proptest! {
    #[test]
    fn every_row_is_an_order_or_is_counted_as_bad(
        rows in vec("[a-c]{0,1},[xy]{0,1},-?[0-9.,]{0,4},(17[0-9]{8}|[0-9:TZ+. -]{0,9})", 0..50),
    ) {
        let text = format!("user,sku,total,time\n{}\n", rows.join("\n"));
        let findings = read(text.as_bytes(), &args()).unwrap();
        prop_assert_eq!(findings.verdict.orders + findings.bad, rows.len() as u64);
        let surplus: usize =
            findings.verdict.groups.iter().map(|group| group.orders.len() - 1).sum();
        prop_assert_eq!(findings.verdict.surplus_orders, surplus as u64);
        prop_assert!(findings.verdict.surplus_orders <= findings.verdict.orders);
    }

    #[test]
    fn no_input_makes_the_reader_panic(bytes: Vec<u8>, has_header in any::<bool>()) {
        let head: &[u8] = if has_header { b"user,sku,total,time\n" } else { b"" };
        let _ = read(&[head, &bytes].concat()[..], &args());
    }

    #[test]
    fn no_text_makes_a_parser_panic_and_an_amount_round_trips(
        text in "\\PC{0,24}",
        number in "-?[0-9]{1,18}\\.[0-9]{0,12}",
    ) {
        let point = Some(Decimal::Point);
        let (_, _) = (time::read(&text), Amount::read(&text, None));
        let (amount, decimals) = Amount::read(&number, point).unwrap();
        let shown = amount.show(decimals);
        prop_assert_eq!(Amount::read(&shown, point).unwrap(), (amount, decimals), "{}", shown);
    }
}
