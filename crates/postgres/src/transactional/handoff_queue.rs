//! Hands connections off: an operation that commits begins the transaction of the next one.

use std::{
    collections::BTreeMap,
    sync::{Arc, Mutex, MutexGuard, PoisonError},
};

use tokio::sync::oneshot;

use super::{PgTransaction, row::RecordKey, simple_query::BeginReply};

/// Operations that wait for a connection, in the order in which they came.
#[derive(Debug, Default)]
pub(super) struct HandoffQueue(Mutex<HandoffState>);

#[derive(Debug, Default)]
struct HandoffState {
    last_number: u64,
    waiting: BTreeMap<u64, HandoffWaiter>,
}

/// A waiting operation.
#[derive(Debug)]
pub(super) struct HandoffWaiter {
    pub(super) record: RecordKey,
    sender: oneshot::Sender<HandedTransaction>,
}

/// A transaction that was begun for a waiting operation, with the reply of the server.
#[derive(Debug)]
pub(super) struct HandedTransaction {
    pub(super) transaction: PgTransaction,
    pub(super) reply: BeginReply,
}

/// A place in the queue, left when this is dropped.
#[derive(Debug)]
pub(super) struct HandoffPlace {
    queue: Arc<HandoffQueue>,
    number: u64,
    receiver: oneshot::Receiver<HandedTransaction>,
}

impl HandoffQueue {
    fn lock(&self) -> MutexGuard<'_, HandoffState> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    pub(super) fn enqueue(self: &Arc<Self>, record: RecordKey) -> HandoffPlace {
        let (sender, receiver) = oneshot::channel();
        let mut waiters = self.lock();
        waiters.last_number += 1;
        let number = waiters.last_number;
        waiters.waiting.insert(number, HandoffWaiter { record, sender });
        drop(waiters);
        HandoffPlace { queue: Arc::clone(self), number, receiver }
    }

    /// Removes the operation that has waited longest. From now on it waits for the caller alone.
    pub(super) fn pop_oldest(&self) -> Option<HandoffWaiter> {
        self.lock().waiting.pop_first().map(|(_, waiter)| waiter)
    }
}

impl HandoffWaiter {
    /// Hands a transaction over, or returns it if the operation is gone.
    pub(super) fn send(self, handed: HandedTransaction) -> Option<HandedTransaction> {
        self.sender.send(handed).err()
    }
}

impl HandoffPlace {
    /// Leaves the queue. Returns `false` if the operation was already removed for a hand-off.
    pub(super) fn leave(&self) -> bool {
        self.queue.lock().waiting.remove(&self.number).is_some()
    }

    /// Returns to the same place, after a hand-off that failed.
    pub(super) fn enqueue_again(&mut self, record: RecordKey) {
        let (sender, receiver) = oneshot::channel();
        self.receiver = receiver;
        self.queue.lock().waiting.insert(self.number, HandoffWaiter { record, sender });
    }

    /// Waits for the transaction; `None` if the hand-off failed.
    pub(super) async fn handed(&mut self) -> Option<HandedTransaction> {
        (&mut self.receiver).await.ok()
    }
}

impl Drop for HandoffPlace {
    fn drop(&mut self) {
        self.leave();
    }
}
