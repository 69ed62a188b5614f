//! Those who wait for a connection to begin on, and how one that commits is handed on to them.

use std::{
    collections::BTreeMap,
    sync::{Arc, Mutex, MutexGuard, PoisonError},
};

use tokio::sync::oneshot;

use super::{PgTransaction, message::Met, row::Name};

/// In the order in which they came.
#[derive(Debug, Default)]
pub(super) struct Line(Mutex<Waiters>);

#[derive(Debug, Default)]
struct Waiters {
    came: u64,
    waiting: BTreeMap<u64, Waiter>,
}

/// Somebody who waits, and what for.
#[derive(Debug)]
pub(super) struct Waiter {
    pub(super) name: Name,
    teller: oneshot::Sender<Handed>,
}

/// A transaction that was begun for somebody else, and what it met.
#[derive(Debug)]
pub(super) struct Handed {
    pub(super) transaction: PgTransaction,
    pub(super) met: Met,
}

/// A place in the line, left when this is dropped.
#[derive(Debug)]
pub(super) struct Place {
    line: Arc<Line>,
    number: u64,
    told: oneshot::Receiver<Handed>,
}

impl Line {
    fn lock(&self) -> MutexGuard<'_, Waiters> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    pub(super) fn stand(self: &Arc<Self>, name: Name) -> Place {
        let (teller, told) = oneshot::channel();
        let mut waiters = self.lock();
        waiters.came += 1;
        let number = waiters.came;
        waiters.waiting.insert(number, Waiter { name, teller });
        drop(waiters);
        Place { line: Arc::clone(self), number, told }
    }

    /// Calls the one who waits longest. From now on they wait for the caller, and for nobody else.
    pub(super) fn call(&self) -> Option<Waiter> {
        self.lock().waiting.pop_first().map(|(_, waiter)| waiter)
    }
}

impl Waiter {
    /// Gives it back if they are gone.
    pub(super) fn hand(self, handed: Handed) -> Option<Handed> {
        self.teller.send(handed).err()
    }
}

impl Place {
    /// Whether nobody had called: whoever leaves may begin by themselves.
    pub(super) fn leave(&self) -> bool {
        self.line.lock().waiting.remove(&self.number).is_some()
    }

    /// Goes back to the same place, after who called could not hand anything on.
    pub(super) fn stand_again(&mut self, name: Name) {
        let (teller, told) = oneshot::channel();
        self.told = told;
        self.line.lock().waiting.insert(self.number, Waiter { name, teller });
    }

    /// What was handed on; nothing if who called could not.
    pub(super) async fn handed(&mut self) -> Option<Handed> {
        (&mut self.told).await.ok()
    }
}

impl Drop for Place {
    fn drop(&mut self) {
        self.leave();
    }
}
