//! The engine as its fronts see it.

use std::{
    future::Future,
    pin::Pin,
    sync::Arc,
    task::{Context, Poll},
};

use semel_core::{Ended, Fingerprint, Policy, Problem, RecordId, Reply, Store};

use crate::Lease;

/// One operation that a front wants to run once.
#[derive(Clone, Debug)]
pub struct Operation {
    /// What it is remembered under.
    pub id: RecordId,
    /// What it means.
    pub fingerprint: Fingerprint,
    /// What its route says.
    pub policy: Arc<Policy>,
}

/// The engine. Clones share everything.
#[derive(Clone, Debug)]
pub struct Semel {
    store: Arc<dyn Store>,
}

impl Semel {
    /// An engine on this store, with the default limits.
    pub fn new(store: impl Store) -> Self {
        Self { store: Arc::new(store) }
    }

    /// The store.
    #[must_use]
    pub fn store(&self) -> &Arc<dyn Store> {
        &self.store
    }

    /// Begins an operation, or joins, waits or replays. Whatever has to be done is under way when
    /// this returns: dropping what it returns changes nothing.
    pub fn begin<E, F>(&self, operation: Operation, execute: E) -> Pending
    where
        E: FnOnce(Lease) -> F + Send + 'static,
        F: Future<Output = Ended> + Send + 'static,
    {
        let _ = (operation, execute);
        Pending {}
    }
}

/// The reply to come.
#[derive(Debug)]
#[must_use]
pub struct Pending {}

impl Future for Pending {
    type Output = Reply;

    fn poll(self: Pin<&mut Self>, _context: &mut Context<'_>) -> Poll<Reply> {
        Poll::Ready(Reply::Problem(Problem::StoreUnavailable))
    }
}
