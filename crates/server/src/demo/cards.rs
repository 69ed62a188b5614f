//! A card network: what it charged is in its ledger, whatever anybody was told.

use std::{
    sync::{Arc, Mutex, MutexGuard, PoisonError},
    time::Duration,
};

use bytes::Bytes;
use serde_json::json;
use tokio::{
    sync::{oneshot, watch},
    time::sleep,
};

use super::orders::{Cents, Fault, Order};

/// How long a slow charge takes: longer than the client waits, shorter than it keeps trying.
pub(super) const SLOW: Duration = Duration::from_millis(1600);

/// One charge that happened.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Charge {
    pub(super) id: String,
    pub(super) customer: String,
    pub(super) amount: Cents,
}

/// The connection to the card network broke: it may have charged, or not.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Broken;

/// The card network. Clones share the ledger.
#[derive(Clone, Debug)]
pub(super) struct Cards {
    books: Arc<Mutex<Books>>,
    /// How many charges are under way.
    running: watch::Sender<usize>,
}

#[derive(Debug, Default)]
struct Books {
    /// Whoever was asked to pay, so that only the first time goes wrong.
    asked: Vec<String>,
    ledger: Vec<Charge>,
}

impl Charge {
    /// What the payment API answers to the one who caused this charge. No two charges have the
    /// same.
    pub(super) fn receipt(&self) -> Bytes {
        let Self { id, customer, amount: Cents(cents) } = self;
        let receipt = json!({ "charge": id, "customer": customer, "cents": cents });
        format!("{receipt}\n").into()
    }
}

impl Cards {
    pub(super) fn new() -> Self {
        Self { books: Arc::default(), running: watch::Sender::new(0) }
    }

    /// Charges a card, or breaks the connection before it says what it did. What has been asked for
    /// happens, also if the asker is gone meanwhile.
    pub(super) async fn charge(&self, customer: &str, amount: Cents) -> Result<Charge, Broken> {
        let fault = self.fault(customer);
        let (answer, answered) = oneshot::channel();
        let (cards, customer) = (self.clone(), customer.to_owned());
        self.running.send_modify(|running| *running += 1);
        tokio::spawn(async move {
            if fault == Fault::CardSlow {
                sleep(SLOW).await;
            }
            let charge = cards.write_down(customer, amount);
            if fault != Fault::CardLost {
                // Nobody may be listening any more; the charge stands.
                let _ = answer.send(charge);
            }
            cards.running.send_modify(|running| *running -= 1);
        });
        answered.await.map_err(|_| Broken)
    }

    /// Waits until no charge is under way, so that the ledger says all there is to say.
    pub(super) async fn settled(&self) {
        // The sender lives as long as this waits, so there is no other way to end.
        let _ = self.running.subscribe().wait_for(|running| *running == 0).await;
    }

    /// All charges, in the order in which they happened.
    pub(super) fn ledger(&self) -> Vec<Charge> {
        self.books().ledger.clone()
    }

    /// The charges of one customer.
    pub(super) fn charges_of(&self, customer: &str) -> Vec<Charge> {
        let mut charges = self.ledger();
        charges.retain(|charge| charge.customer == customer);
        charges
    }

    fn fault(&self, customer: &str) -> Fault {
        let mut books = self.books();
        if books.asked.iter().any(|asked| asked == customer) {
            return Fault::None;
        }
        books.asked.push(customer.to_owned());
        Order::fault_of(customer)
    }

    fn write_down(&self, customer: String, amount: Cents) -> Charge {
        let mut books = self.books();
        let id = format!("ch_{}", books.ledger.len() + 1);
        let charge = Charge { id, customer, amount };
        books.ledger.push(charge.clone());
        charge
    }

    fn books(&self) -> MutexGuard<'_, Books> {
        self.books.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

#[cfg(test)]
mod tests {
    use tokio::time::timeout;

    use super::*;

    #[tokio::test(start_paused = true)]
    async fn a_slow_charge_happens_although_the_asker_gave_up_and_the_next_is_quick() {
        let cards = Cards::new();
        let half = timeout(SLOW / 2, cards.charge("dan", Cents(1))).await;
        assert!(half.is_err(), "it is slow");
        assert_eq!(cards.ledger().len(), 0);

        assert_eq!(cards.charge("dan", Cents(1)).await.map(|charge| charge.id), Ok("ch_1".into()));
        cards.settled().await;
        assert_eq!(cards.charges_of("dan").len(), 2);
        assert_ne!(cards.ledger()[0].receipt(), cards.ledger()[1].receipt());
    }

    #[tokio::test]
    async fn a_charge_whose_answer_is_lost_has_happened() {
        let cards = Cards::new();
        assert_eq!(cards.charge("eve", Cents(5)).await, Err(Broken));
        assert_eq!(cards.charges_of("eve").len(), 1);
        assert_eq!(cards.charges_of("ann").len(), 0);
    }
}
