//! What the writer and the readers of one store have in common.

use std::{
    collections::BTreeMap,
    path::PathBuf,
    sync::{
        Arc, Mutex, MutexGuard, PoisonError,
        atomic::{AtomicU64, Ordering},
    },
};

use semel_core::StoreTime;

use crate::{clock::Clock, index::Index, open::Synchronous, queue::Queue};

/// Nothing that a reaper would have to look at, however late it is.
pub(crate) const NEVER: StoreTime = StoreTime::from_millis(u64::MAX);

#[derive(Debug)]
pub(crate) struct Shared {
    pub(crate) path: PathBuf,
    pub(crate) source: Arc<dyn Clock>,
    pub(crate) synchronous: Synchronous,
    pub(crate) index: Index,
    /// What the writer has to do.
    pub(crate) writes: Queue,
    /// What the readers have to do.
    pub(crate) reads: Queue,
    in_flight: Mutex<BTreeMap<i64, StoreTime>>,
    loads: AtomicU64,
}

impl Shared {
    pub(crate) fn new(
        path: PathBuf,
        source: Arc<dyn Clock>,
        synchronous: Synchronous,
        waiting_max: usize,
    ) -> Self {
        Self {
            path,
            source,
            synchronous,
            index: Index::new(),
            writes: Queue::new(waiting_max),
            reads: Queue::new(waiting_max),
            in_flight: Mutex::default(),
            // Odd: the first load is under way.
            loads: AtomicU64::new(1),
        }
    }

    /// The claims that may be in flight, and when their leases end as far as this process knows. It
    /// is a list of suspects: another process may have ended or prolonged any of them.
    pub(crate) fn in_flight(&self) -> MutexGuard<'_, BTreeMap<i64, StoreTime>> {
        self.in_flight.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Which load of the file the index comes from; `None` while it is being loaded.
    pub(crate) fn load_number(&self) -> Option<u64> {
        let number = self.loads.load(Ordering::Acquire);
        number.is_multiple_of(2).then_some(number)
    }

    pub(crate) fn begin_load(&self) {
        self.loads.fetch_or(1, Ordering::AcqRel);
    }

    pub(crate) fn end_load(&self) {
        // Odd to the next even number.
        self.loads.fetch_add(1, Ordering::AcqRel);
    }
}
