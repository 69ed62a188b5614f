//! State that the writer and the readers of one store share.

use std::{
    collections::BTreeMap,
    path::PathBuf,
    sync::{
        Arc, Mutex, MutexGuard, PoisonError,
        atomic::{AtomicU64, Ordering},
    },
    time::SystemTime,
};

use semel_core::{StoreError, StoreErrorKind, StoreId, StoreTime};

use crate::{
    clock::BootClock, file_system::FileSystem, index::ClaimIndex, open_files::FileReplaced,
    queue::ThreadQueue,
};

/// The lease end of a claim that the reaper must not examine again.
pub(crate) const NEVER: StoreTime = StoreTime::from_millis(u64::MAX);

#[derive(Debug)]
pub(crate) struct SqliteShared {
    pub(crate) path: PathBuf,
    pub(crate) settings: SqliteSettings,
    pub(crate) index: ClaimIndex,
    /// Commands for the writer.
    pub(crate) writes: ThreadQueue,
    /// Commands for the readers.
    pub(crate) reads: ThreadQueue,
    in_flight: Mutex<BTreeMap<i64, StoreTime>>,
    /// Set while nothing may be read or written: the reason.
    outage: Mutex<Option<Outage>>,
    /// How often the writer has reopened the file.
    reopen_count: AtomicU64,
}

/// Why a store cannot be used.
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

impl From<&FileReplaced> for Outage {
    fn from(replaced: &FileReplaced) -> Self {
        Self { kind: replaced.kind(), message: replaced.to_string() }
    }
}

/// The values of [`Options`](crate::Options).
#[derive(Clone, Debug)]
pub(crate) struct SqliteSettings {
    pub(crate) clock: Arc<dyn BootClock>,
    pub(crate) synchronous: Synchronous,
    /// Whether a missing store is created.
    pub(crate) create: bool,
    /// The limit of waiting claims.
    pub(crate) waiting_max: usize,
    /// The number of reader threads.
    pub(crate) readers: usize,
    /// After how many pages in the log the writer runs a checkpoint.
    pub(crate) checkpoint_pages: u32,
    /// Overrides the detected file system: for tests.
    pub(crate) file_system: Option<FileSystem>,
}

/// When a commit is synced.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Synchronous {
    /// A commit is on disk before it is acknowledged.
    Full,
    /// Never: proves that a test can fail.
    Off,
}

impl SqliteShared {
    pub(crate) fn new(path: PathBuf, settings: SqliteSettings) -> Self {
        Self {
            path,
            index: ClaimIndex::new(),
            writes: ThreadQueue::new(settings.waiting_max),
            reads: ThreadQueue::new(settings.waiting_max),
            in_flight: Mutex::default(),
            outage: Mutex::default(),
            reopen_count: AtomicU64::new(0),
            settings,
        }
    }

    /// Refuses every request until [`resume`](Self::opened_again).
    pub(crate) fn suspend(&self, outage: Outage) {
        *self.outage.lock().unwrap_or_else(PoisonError::into_inner) = Some(outage);
    }

    /// Accepts requests again after the writer has reopened the file; readers reopen it before they
    /// read.
    pub(crate) fn resume(&self) {
        self.reopen_count.fetch_add(1, Ordering::AcqRel);
        *self.outage.lock().unwrap_or_else(PoisonError::into_inner) = None;
    }

    pub(crate) fn outage(&self) -> Option<Outage> {
        self.outage.lock().unwrap_or_else(PoisonError::into_inner).clone()
    }

    /// How often the writer has reopened the file.
    pub(crate) fn reopen_count(&self) -> u64 {
        self.reopen_count.load(Ordering::Acquire)
    }

    /// The claims that may be in flight, and when their leases end as far as this process knows.
    /// Another process may have ended or prolonged any of them.
    pub(crate) fn in_flight(&self) -> MutexGuard<'_, BTreeMap<i64, StoreTime>> {
        self.in_flight.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// Facts about a store.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct StoreInfo {
    /// Its unique identity. A copy has the same one.
    pub id: StoreId,
    /// When it was created, by the wall clock.
    pub created_at: SystemTime,
    /// Whether opening this handle created it.
    pub is_new: bool,
    /// Whether a claim was ever granted in it.
    pub is_used: bool,
}
