//! Orders, and what is made of them.

use tokio::time::Instant;

use super::*;

const SECOND: i64 = 1_000_000;

fn amount(text: &str) -> Amount {
    Amount::read(text, None).unwrap().0
}

fn order(customer: &'static str, amount_text: &str, second: i64) -> OrderRow<'static> {
    let at = second * SECOND;
    let amount = amount(amount_text);
    OrderRow { customer, product: "tea", currency: "EUR", amount, at, line: 2, id: "" }
}

fn judged(orders: &[OrderRow<'_>]) -> DetectionResult {
    let mut detector = DuplicateDetector::new(Duration::from_secs(600));
    orders.iter().for_each(|order| detector.add(order));
    detector.finish()
}

/// The seconds of each group.
fn seconds(verdict: &DetectionResult) -> Vec<Vec<i64>> {
    let group =
        |group: &DuplicateGroup| group.orders.iter().map(|order| order.at / SECOND).collect();
    verdict.groups.iter().map(group).collect()
}

#[test]
fn each_is_compared_with_the_one_before_whatever_the_order_of_rows() {
    let rows = [1500, 0, 600, 1201, 1200].map(|second| order("ada", "5", second));
    let verdict = judged(&rows);
    // From 600 to 1200 are just ten minutes.
    assert_eq!(seconds(&verdict), [vec![0, 600, 1200, 1201, 1500]]);
    let apart = judged(&[0, 601, 1202].map(|second| order("ada", "5", second)));
    assert!(apart.groups.is_empty());
    assert_eq!((apart.orders, apart.surplus_orders), (3, 0));
    let twice = judged(&[0, 10, 5000, 5010].map(|second| order("ada", "5", second)));
    assert_eq!(seconds(&twice), [vec![0, 10], vec![5000, 5010]]);
    assert_eq!(twice.surplus_orders, 2);
}

#[test]
fn only_what_is_equal_in_all_is_a_duplicate() {
    let first = order("ada", "5.00", 0);
    let others = [
        OrderRow { customer: "zoe", ..first },
        OrderRow { product: "coffee", ..first },
        OrderRow { currency: "USD", ..first },
        OrderRow { amount: amount("5.01"), ..first },
        // Not taken for each other where one text ends and the next begins.
        OrderRow { customer: "adat", product: "ea", ..first },
    ];
    assert!(judged(&[&[first][..], &others].concat()).groups.is_empty());
    let same = OrderRow { amount: amount("5"), at: SECOND, ..first };
    assert_eq!(seconds(&judged(&[first, same])), [vec![0, 1]]);
}

#[test]
fn the_totals_are_exact_and_by_currency() {
    let dollars = |second| OrderRow { currency: "USD", ..order("zoe", "0.10", second) };
    let rows = [
        order("ada", "19.99", 0),
        order("ada", "19.99", 1),
        order("ada", "19.99", 11),
        dollars(0),
        dollars(1),
        dollars(2),
        dollars(3),
        order("eve", "7", 0),
        order("eve", "7", 400),
        order("kim", "7", 400),
    ];
    let verdict = judged(&rows);
    assert_eq!((verdict.orders, verdict.surplus_orders, verdict.groups.len()), (10, 6, 3));
    let sums: Vec<(&str, String)> =
        verdict.surplus.iter().map(|(name, sum)| (&**name, sum.show(2))).collect();
    assert_eq!(sums, [("EUR", "46.98".to_owned()), ("USD", "0.30".to_owned())]);
    assert_eq!(verdict.gaps, GapCounts { clicks: 4, retries: 1, longer: 1 });
    let customers: Vec<&str> = verdict.groups.iter().map(|group| &*group.customer).collect();
    assert_eq!(customers, ["ada", "eve", "zoe"], "what costs most comes first");
}

#[test]
fn duplicate_refunds_are_summed_separately() {
    let rows = [
        order("ada", "20", 0),
        order("ada", "20", 1),
        order("eve", "-30.50", 0),
        order("eve", "-30.50", 1),
        order("kim", "-5", 0),
        order("kim", "-5", 1),
        // A charge and what pays it back are not equal.
        order("zoe", "7", 0),
        order("zoe", "-7", 1),
    ];
    let verdict = judged(&rows);
    assert_eq!((verdict.surplus_orders, verdict.groups.len()), (3, 3));
    assert_eq!(verdict.surplus, [("EUR".into(), amount("20"))].into());
    assert_eq!(verdict.refunds, [("EUR".into(), amount("35.50"))].into());
    let customers: Vec<&str> = verdict.groups.iter().map(|group| &*group.customer).collect();
    assert_eq!(customers, ["eve", "ada", "kim"], "what comes to most comes first");
}

#[test]
fn the_edges_of_the_gaps_are_where_they_are_said_to_be() {
    let at = |at| OrderRow { at, ..order("ada", "5", 0) };
    let gap = |gap: i64| judged(&[at(0), at(gap)]).gaps;
    assert_eq!(gap(0), GapCounts { clicks: 1, ..GapCounts::default() });
    assert_eq!(gap(2 * SECOND - 1), GapCounts { clicks: 1, ..GapCounts::default() });
    assert_eq!(gap(2 * SECOND), GapCounts { retries: 1, ..GapCounts::default() });
    assert_eq!(gap(30 * SECOND - 1), GapCounts { retries: 1, ..GapCounts::default() });
    assert_eq!(gap(30 * SECOND), GapCounts { longer: 1, ..GapCounts::default() });
    assert_eq!(gap(600 * SECOND + 1), GapCounts::default());
    assert_eq!(judged(&[at(i64::MIN), at(i64::MAX)]).gaps, GapCounts::default());
}

/// To copy the times of all for each group would be to copy 640 GB here: most of a minute, for
/// what takes a fraction of a second.
#[test]
fn very_many_groups_of_one_customer_and_product_take_no_longer_than_others() {
    let mut detector = DuplicateDetector::new(Duration::from_secs(600));
    let pairs = 200_000;
    for pair in 0..pairs {
        detector.add(&order("ada", "5", pair * 1000));
        detector.add(&order("ada", "5", pair * 1000 + 1));
    }
    let begun = Instant::now();
    let verdict = detector.finish();
    let took = begun.elapsed();
    assert!(took < Duration::from_secs(20), "{took:?}");
    assert_eq!((verdict.orders, verdict.surplus_orders), (400_000, 200_000));
    let expected: Vec<Vec<i64>> =
        (0..pairs).map(|pair| vec![pair * 1000, pair * 1000 + 1]).collect();
    assert_eq!(seconds(&verdict), expected);
}
