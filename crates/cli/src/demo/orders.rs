//! The script of the demo: customers, prices and faults.

use std::fmt;

/// The order of one customer, to be paid once.
#[derive(Debug)]
pub(super) struct DemoOrder {
    pub(super) customer: &'static str,
    pub(super) price: Cents,
    pub(super) fault: ScriptedFault,
}

/// Fault of the first payment attempt. The second attempt succeeds.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum ScriptedFault {
    None,
    /// The card is charged, but the client never receives the answer.
    AnswerLost,
    /// The card network takes longer than the client's timeout.
    CardSlow,
    /// The card network charges, but the payment API never receives its answer.
    CardLost,
}

/// An amount of money.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Cents(pub(super) u64);

/// The orders of the demo: the same with and without Semel.
pub(super) const ORDERS: [DemoOrder; 5] = [
    DemoOrder { customer: "ann", price: Cents(19_99), fault: ScriptedFault::None },
    DemoOrder { customer: "ben", price: Cents(24_50), fault: ScriptedFault::AnswerLost },
    DemoOrder { customer: "cat", price: Cents(8_00), fault: ScriptedFault::None },
    DemoOrder { customer: "dan", price: Cents(61_00), fault: ScriptedFault::CardSlow },
    DemoOrder { customer: "eve", price: Cents(35_20), fault: ScriptedFault::CardLost },
];

/// The order whose answer is lost and whose retry is printed.
pub(super) const BEN: &DemoOrder = &ORDERS[1];

impl DemoOrder {
    /// The idempotency key, the same in every attempt.
    pub(super) fn key(&self) -> String {
        format!("order-{}", self.customer)
    }

    /// The fault of a customer's order; `None` for an unknown customer.
    pub(super) fn fault_of(customer: &str) -> ScriptedFault {
        let order = ORDERS.iter().find(|order| order.customer == customer);
        order.map_or(ScriptedFault::None, |order| order.fault)
    }
}

impl fmt::Display for Cents {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(&format!("${}.{:02}", self.0 / 100, self.0 % 100))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn money_is_written_in_dollars_and_two_digits_and_can_be_aligned() {
        assert_eq!(Cents(8_05).to_string(), "$8.05");
        assert_eq!(format!("[{:>7}]", Cents(24_50)), "[ $24.50]");
    }

    #[test]
    fn the_script_has_every_fault_and_ben_loses_his_answer() {
        for fault in [
            ScriptedFault::None,
            ScriptedFault::AnswerLost,
            ScriptedFault::CardSlow,
            ScriptedFault::CardLost,
        ] {
            assert!(ORDERS.iter().any(|order| order.fault == fault), "{fault:?}");
        }
        assert_eq!((BEN.customer, BEN.fault), ("ben", ScriptedFault::AnswerLost));
        assert_eq!(DemoOrder::fault_of("another"), ScriptedFault::None);
    }
}
