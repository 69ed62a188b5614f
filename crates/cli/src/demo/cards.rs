//! A card network. Its ledger has every charge, whether or not the answer arrived.

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

use super::orders::{Cents, DemoOrder, ScriptedFault};

/// How long a slow charge takes: longer than the client waits, shorter than it keeps trying.
pub(super) const SLOW_CHARGE_TIME: Duration = Duration::from_millis(1600);

/// One charge that happened.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Charge {
    pub(super) id: String,
    pub(super) customer: String,
    pub(super) amount: Cents,
}

/// The connection to the card network broke: it may have charged, or not.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct ConnectionBroken;

/// The card network. Clones share the ledger.
#[derive(Clone, Debug)]
pub(super) struct Cards {
    ledger_state: Arc<Mutex<LedgerState>>,
    /// Number of charges in progress.
    running: watch::Sender<usize>,
}

#[derive(Debug, Default)]
struct LedgerState {
    /// Customers charged before, so that only the first attempt fails.
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
        Self { ledger_state: Arc::default(), running: watch::Sender::new(0) }
    }

    /// Charges a card, or breaks the connection before it answers. The charge happens even if the
    /// requester is gone.
    pub(super) async fn charge(
        &self,
        customer: &str,
        amount: Cents,
    ) -> Result<Charge, ConnectionBroken> {
        let fault = self.fault(customer);
        let (answer, answered) = oneshot::channel();
        let (cards, customer) = (self.clone(), customer.to_owned());
        self.running.send_modify(|running| *running += 1);
        tokio::spawn(async move {
            if fault == ScriptedFault::CardSlow {
                sleep(SLOW_CHARGE_TIME).await;
            }
            let charge = cards.write_down(customer, amount);
            if fault != ScriptedFault::CardLost {
                // The requester may be gone; the charge stands.
                let _ = answer.send(charge);
            }
            cards.running.send_modify(|running| *running -= 1);
        });
        answered.await.map_err(|_| ConnectionBroken)
    }

    /// Waits until no charge is in progress, so that the ledger is complete.
    pub(super) async fn settled(&self) {
        // The sender lives as long as this waits, so there is no other way to end.
        let _ = self.running.subscribe().wait_for(|running| *running == 0).await;
    }

    /// All charges, in the order in which they happened.
    pub(super) fn ledger(&self) -> Vec<Charge> {
        self.ledger_state().ledger.clone()
    }

    /// The charges of one customer.
    pub(super) fn charges_of(&self, customer: &str) -> Vec<Charge> {
        let mut charges = self.ledger();
        charges.retain(|charge| charge.customer == customer);
        charges
    }

    fn fault(&self, customer: &str) -> ScriptedFault {
        let mut ledger_state = self.ledger_state();
        if ledger_state.asked.iter().any(|asked| asked == customer) {
            return ScriptedFault::None;
        }
        ledger_state.asked.push(customer.to_owned());
        DemoOrder::fault_of(customer)
    }

    fn write_down(&self, customer: String, amount: Cents) -> Charge {
        let mut ledger_state = self.ledger_state();
        let id = format!("ch_{}", ledger_state.ledger.len() + 1);
        let charge = Charge { id, customer, amount };
        ledger_state.ledger.push(charge.clone());
        charge
    }

    fn ledger_state(&self) -> MutexGuard<'_, LedgerState> {
        self.ledger_state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

#[cfg(test)]
mod tests {
    use tokio::time::timeout;

    use super::*;

    #[tokio::test(start_paused = true)]
    async fn a_slow_charge_happens_although_the_asker_gave_up_and_the_next_is_quick() {
        let cards = Cards::new();
        let half = timeout(SLOW_CHARGE_TIME / 2, cards.charge("dan", Cents(1))).await;
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
        assert_eq!(cards.charge("eve", Cents(5)).await, Err(ConnectionBroken));
        assert_eq!(cards.charges_of("eve").len(), 1);
        assert_eq!(cards.charges_of("ann").len(), 0);
    }
}
