//! What the writer and the readers of one store have in common.

use std::{
    collections::BTreeMap,
    path::PathBuf,
    sync::{Arc, Mutex, MutexGuard, PoisonError},
};

use semel_core::StoreTime;

use crate::{clock::Clock, file_system::FileSystem, index::Index, open::Synchronous, queue::Queue};

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
}

/// What [`Options`](crate::Options) say.
#[derive(Clone, Debug)]
pub(crate) struct Settings {
    pub(crate) clock: Arc<dyn Clock>,
    pub(crate) synchronous: Synchronous,
    /// How many claims may wait.
    pub(crate) waiting_max: usize,
    /// How many threads read.
    pub(crate) readers: usize,
    /// After how many pages in the log the writer moves them to the file.
    pub(crate) checkpoint_pages: u32,
    /// What the file system is said to be, instead of asking: for tests.
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
            settings,
        }
    }

    /// The claims that may be in flight, and when their leases end as far as this process knows. It
    /// is a list of suspects: another process may have ended or prolonged any of them.
    pub(crate) fn in_flight(&self) -> MutexGuard<'_, BTreeMap<i64, StoreTime>> {
        self.in_flight.lock().unwrap_or_else(PoisonError::into_inner)
    }
}
