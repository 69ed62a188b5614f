//! What the writer and the readers of one store have in common.

use std::{
    collections::BTreeMap,
    path::PathBuf,
    sync::{
        Arc, Mutex, MutexGuard, PoisonError,
        atomic::{AtomicU64, Ordering},
    },
};

use semel_core::{StoreError, StoreErrorKind, StoreTime};

use crate::{
    clock::Clock, file_system::FileSystem, index::Index, open::Synchronous, open_files::Replaced,
    queue::Queue,
};

/// Nothing that a reaper would have to look at, however late it is.
pub(crate) const NEVER: StoreTime = StoreTime::from_millis(u64::MAX);

#[derive(Debug)]
pub(crate) struct Shared {
    pub(crate) path: PathBuf,
    pub(crate) settings: Settings,
    pub(crate) index: Index,
    /// What the writer has to do.
    pub(crate) writes: Queue,
    /// What the readers have to do.
    pub(crate) reads: Queue,
    in_flight: Mutex<BTreeMap<i64, StoreTime>>,
    /// Why nothing may be read or written, while that is so.
    outage: Mutex<Option<Outage>>,
    /// How often the writer has opened the file again.
    openings: AtomicU64,
}

/// Why a store cannot be used at all.
#[derive(Clone, Debug)]
pub(crate) struct Outage {
    kind: StoreErrorKind,
    message: String,
}

impl Outage {
    pub(crate) fn error(&self) -> StoreError {
        StoreError::new(self.kind, self.message.as_str())
    }
}

impl From<&Replaced> for Outage {
    fn from(replaced: &Replaced) -> Self {
        Self { kind: replaced.kind(), message: replaced.to_string() }
    }
}

/// What [`Options`](crate::Options) say.
#[derive(Clone, Debug)]
pub(crate) struct Settings {
    pub(crate) clock: Arc<dyn Clock>,
    pub(crate) synchronous: Synchronous,
    /// Whether a store is made where there is none.
    pub(crate) create: bool,
    /// How many claims may wait.
    pub(crate) waiting_max: usize,
    /// How many threads read.
    pub(crate) readers: usize,
    /// After how many pages in the log the writer moves them to the file.
    pub(crate) checkpoint_pages: u32,
    /// Overrides the detected file system: for tests.
    pub(crate) file_system: Option<FileSystem>,
}

impl Shared {
    pub(crate) fn new(path: PathBuf, settings: Settings) -> Self {
        Self {
            path,
            index: Index::new(),
            writes: Queue::new(settings.waiting_max),
            reads: Queue::new(settings.waiting_max),
            in_flight: Mutex::default(),
            outage: Mutex::default(),
            openings: AtomicU64::new(0),
            settings,
        }
    }

    /// From here on every request is refused, until [`opened_again`](Self::opened_again).
    pub(crate) fn suspend(&self, outage: Outage) {
        *self.outage.lock().unwrap_or_else(PoisonError::into_inner) = Some(outage);
    }

    /// The writer has the file again; readers follow before they read.
    pub(crate) fn opened_again(&self) {
        self.openings.fetch_add(1, Ordering::AcqRel);
        *self.outage.lock().unwrap_or_else(PoisonError::into_inner) = None;
    }

    pub(crate) fn outage(&self) -> Option<Outage> {
        self.outage.lock().unwrap_or_else(PoisonError::into_inner).clone()
    }

    /// How often the writer has opened the file again.
    pub(crate) fn openings(&self) -> u64 {
        self.openings.load(Ordering::Acquire)
    }

    /// The claims that may be in flight, and when their leases end as far as this process knows. It
    /// is a list of suspects: another process may have ended or prolonged any of them.
    pub(crate) fn in_flight(&self) -> MutexGuard<'_, BTreeMap<i64, StoreTime>> {
        self.in_flight.lock().unwrap_or_else(PoisonError::into_inner)
    }
}
