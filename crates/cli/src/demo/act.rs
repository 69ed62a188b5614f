//! One act: every customer pays, over a wire that leads to whatever stands at its other end.

use super::{
    cards::Charge,
    client::{AttemptResult, Payment, PaymentClient, ReceivedAnswer},
    orders::{Cents, DemoOrder, ScriptedFault},
    shop::Shop,
    wire::LossyWire,
};

/// The result of an order.
#[derive(Clone, Debug)]
pub(super) struct Paid {
    pub(super) order: &'static DemoOrder,
    /// The result of each attempt.
    pub(super) attempts: Vec<AttemptResult>,
    /// The entries of the ledger.
    pub(super) charges: Vec<Charge>,
}

/// Pays for one order, and looks into the ledger when all has settled.
pub(super) async fn pay(order: &'static DemoOrder, wire: &LossyWire, shop: &Shop) -> Paid {
    if order.fault == ScriptedFault::AnswerLost {
        wire.lose_next_answer();
    }
    let (key, customer) = (order.key(), order.customer);
    let payment = Payment { key: &key, customer, amount: order.price };
    let attempts = PaymentClient::at(wire.address).pay(&payment).await;
    shop.cards.settled().await;
    Paid { order, attempts, charges: shop.cards.charges_of(customer) }
}

impl Paid {
    /// Whether something was to go wrong.
    pub(super) fn is_unlucky(&self) -> bool {
        self.order.fault != ScriptedFault::None
    }

    /// The last answer.
    pub(super) fn answer(&self) -> Option<&ReceivedAnswer> {
        self.attempts.last()?.answer()
    }

    /// The amount charged beyond the price.
    pub(super) fn excess(&self) -> Cents {
        let taken: u64 = self.charges.iter().map(|charge| charge.amount.0).sum();
        Cents(taken.saturating_sub(self.order.price.0))
    }
}
