//! One act: every customer pays, over a wire that leads to whatever stands at its other end.

use super::{
    cards::Charge,
    client::{Answer, Client, Heard, Payment},
    orders::{Cents, Fault, Order},
    shop::Shop,
    wire::Wire,
};

/// What an order came to.
#[derive(Clone, Debug)]
pub(super) struct Paid {
    pub(super) order: &'static Order,
    /// What the client heard, attempt by attempt.
    pub(super) tries: Vec<Heard>,
    /// What the ledger says.
    pub(super) charges: Vec<Charge>,
}

/// Pays for one order, and looks into the ledger when all has settled.
pub(super) async fn pay(order: &'static Order, wire: &Wire, shop: &Shop) -> Paid {
    if order.fault == Fault::AnswerLost {
        wire.lose_next_answer();
    }
    let (key, customer) = (order.key(), order.customer);
    let payment = Payment { key: &key, customer, amount: order.price };
    let tries = Client::at(wire.address).pay(&payment).await;
    shop.cards.settled().await;
    Paid { order, tries, charges: shop.cards.charges_of(customer) }
}

impl Paid {
    /// Whether something was to go wrong.
    pub(super) fn is_unlucky(&self) -> bool {
        self.order.fault != Fault::None
    }

    /// What the client heard in the end.
    pub(super) fn answer(&self) -> Option<&Answer> {
        self.tries.last()?.answer()
    }

    /// What was taken beyond the price.
    pub(super) fn excess(&self) -> Cents {
        let taken: u64 = self.charges.iter().map(|charge| charge.amount.0).sum();
        Cents(taken.saturating_sub(self.order.price.0))
    }
}
