//! The script of the demo: customers, prices and faults.

use std::fmt;

/// One customer who means to pay once.
#[derive(Debug)]
pub(super) struct DemoOrder {
    pub(super) customer: &'static str,
    pub(super) price: Cents,
    pub(super) fault: ScriptedFault,
}

/// What goes wrong with the first attempt to pay. The second one meets no fault.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum ScriptedFault {
    None,
    /// The card is charged, and the answer is lost on its way to the client.
    AnswerLost,
    /// The card network takes longer than the client waits.
    CardSlow,
    /// The card network charges, and its answer never reaches the payment API.
    CardLost,
}

/// An amount of money.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Cents(pub(super) u64);

/// The script. It is the same in both acts.
pub(super) const ORDERS: [DemoOrder; 5] = [
    DemoOrder { customer: "ann", price: Cents(19_99), fault: ScriptedFault::None },
    DemoOrder { customer: "ben", price: Cents(24_50), fault: ScriptedFault::AnswerLost },
    DemoOrder { customer: "cat", price: Cents(8_00), fault: ScriptedFault::None },
    DemoOrder { customer: "dan", price: Cents(61_00), fault: ScriptedFault::CardSlow },
    DemoOrder { customer: "eve", price: Cents(35_20), fault: ScriptedFault::CardLost },
];

/// The one whose answer is lost and whose retry is shown.
pub(super) const BEN: &DemoOrder = &ORDERS[1];

impl DemoOrder {
    /// What names this payment, in every attempt.
    pub(super) fn key(&self) -> String {
        format!("order-{}", self.customer)
    }

    /// What goes wrong for a customer, if the script knows them.
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
