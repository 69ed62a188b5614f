//! The store as its users see it: it opens the file, starts the threads, and hands them what it is
//! asked.

use std::{
    fmt,
    path::Path,
    sync::{Arc, Mutex, PoisonError},
    thread::{Builder, JoinHandle},
    time::{Duration, SystemTime},
};

use async_trait::async_trait;
use bytes::Bytes;
use semel_core::{
    Batch, Claim, Claimant, Claimed, Epoch, Fence, Fenced, Finish, ListQuery, Page, RecordAction,
    RecordId, Resolution, Resolved, Snapshot, Store, StoreError, StoreErrorKind, StoreId,
    store::check_metadata,
};

use crate::{
    clock::{Clock, SystemClock},
    file_system::FileSystem,
    open::{self, Synchronous},
    queue::{Ask, Queue, Told},
    reader::Reader,
    shared::{Settings, Shared},
    writer::Writer,
};

/// The largest answer that is recorded: 64 MiB.
const ANSWER_BYTES_MAX: usize = 64 << 20;

/// How many records are swept in one transaction: well under a millisecond of the writer's time.
const SWEEP_SLICE: u32 = 50;

/// Each question has one kind of answer; another one would be a mistake of this crate.
macro_rules! told {
    ($told:expr, $kind:ident) => {
        if let Told::$kind(told) = $told {
            Ok(told)
        } else {
            let message = "the store answered another question";
            Err(StoreError::new(StoreErrorKind::Corrupt, message).effect_unknown())
        }
    };
}

/// A store in one SQLite file. See the [crate](crate) for what it promises.
///
/// Dropping it serves what is still queued, then closes the file.
pub struct SqliteStore {
    shared: Arc<Shared>,
    info: StoreInfo,
    threads: Mutex<Vec<JoinHandle<()>>>,
}

/// What a store says of itself.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct StoreInfo {
    /// Its unique identity. A copy has the same.
    pub id: StoreId,
    /// When it was made, by the wall clock.
    pub created_at: SystemTime,
    /// Whether it was made when this handle was opened.
    pub is_new: bool,
    /// Whether a claim was ever granted in it.
    pub is_used: bool,
}

/// How to open a file.
///
/// ```
/// use semel_sqlite::Options;
/// # let folder = tempfile::tempdir()?;
/// # let path = folder.path().join("semel.db");
///
/// let store = Options::new().waiting_max(10_000).open(&path)?;
/// # drop(store);
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
#[derive(Clone, Debug)]
pub struct Options {
    settings: Settings,
}

impl Options {
    /// The defaults.
    #[must_use]
    pub fn new() -> Self {
        Self {
            settings: Settings {
                clock: Arc::new(SystemClock),
                synchronous: Synchronous::Full,
                create: true,
                waiting_max: 4096,
                readers: 2,
                // 8 MB: rather many short stalls than few long ones.
                checkpoint_pages: 2000,
                file_system: None,
            },
        }
    }

    /// Whether a store is made where there is none, which is the default. Without it, opening such
    /// a file is an error whose cause is [`NoStore`](crate::NoStore).
    ///
    /// A store that is lost and made again grants everything again: do not create one where a
    /// store existed.
    #[must_use]
    pub const fn create_if_missing(mut self, create: bool) -> Self {
        self.settings.create = create;
        self
    }

    /// How many claims may wait for the disk before the next one is refused.
    #[must_use]
    pub const fn waiting_max(mut self, claims: usize) -> Self {
        self.settings.waiting_max = claims;
        self
    }

    /// How many threads read.
    #[must_use]
    pub const fn readers(mut self, threads: usize) -> Self {
        self.settings.readers = threads;
        self
    }

    /// Another clock than the machine's: for tests.
    #[must_use]
    pub fn clock(mut self, clock: Arc<dyn Clock>) -> Self {
        self.settings.clock = clock;
        self
    }

    /// After how many pages in its log the writer moves them to the file: for tests that want to
    /// see it happen.
    #[doc(hidden)]
    #[must_use]
    pub const fn checkpoint_pages(mut self, pages: u32) -> Self {
        self.settings.checkpoint_pages = pages;
        self
    }

    /// Overrides the magic number of the file system: for tests.
    #[doc(hidden)]
    #[must_use]
    pub const fn file_system_magic(mut self, magic: u32) -> Self {
        self.settings.file_system = Some(FileSystem::from_magic(magic));
        self
    }

    /// Acknowledges before the disk has it: shows in a test that the test can fail. Never for data.
    #[doc(hidden)]
    #[must_use]
    pub const fn without_durability(mut self) -> Self {
        self.settings.synchronous = Synchronous::Off;
        self
    }

    pub(crate) const fn settings(&self) -> &Settings {
        &self.settings
    }

    /// Opens the file, creating it if it is not there, and reads its index: about half a second per
    /// million records. It blocks; in async code call it through `spawn_blocking`.
    pub fn open(&self, path: impl AsRef<Path>) -> Result<SqliteStore, StoreError> {
        let shared = Arc::new(Shared::new(path.as_ref().to_owned(), self.settings.clone()));
        let (writer, info) = Writer::open(Arc::clone(&shared))?;
        let mut readers = Vec::new();
        for _ in 0..self.settings.readers.max(1) {
            let connection = open::reader(&shared.path)?;
            readers.push(Reader::new(Arc::clone(&shared), connection, writer.clock.clone()));
        }
        let store = SqliteStore { shared, info, threads: Mutex::default() };
        store.start("semel-sqlite-write", move |shared| {
            let _abandon = Abandon(&shared.writes);
            writer.run();
        })?;
        for reader in readers {
            store.start("semel-sqlite-read", move |shared| {
                let _abandon = Abandon(&shared.reads);
                reader.run();
            })?;
        }
        Ok(store)
    }
}

impl Default for Options {
    fn default() -> Self {
        Self::new()
    }
}

impl SqliteStore {
    /// Opens a file with the default [`Options`].
    pub fn open(path: impl AsRef<Path>) -> Result<Self, StoreError> {
        Options::new().open(path)
    }

    /// What is known of the store since it was opened.
    #[must_use]
    pub const fn info(&self) -> &StoreInfo {
        &self.info
    }

    fn start(
        &self,
        name: &str,
        run: impl FnOnce(&Shared) + Send + 'static,
    ) -> Result<(), StoreError> {
        let shared = Arc::clone(&self.shared);
        let run = move || run(&shared);
        let thread = Builder::new().name(name.to_owned()).spawn(run).map_err(|error| {
            let message = "a thread of the store cannot be started";
            StoreError::new(StoreErrorKind::Unavailable, message).because(error)
        })?;
        self.threads.lock().unwrap_or_else(PoisonError::into_inner).push(thread);
        Ok(())
    }

    async fn write(&self, ask: Ask) -> Result<Told, StoreError> {
        asked(&self.shared.writes, ask).await
    }

    async fn read(&self, ask: Ask) -> Result<Told, StoreError> {
        asked(&self.shared.reads, ask).await
    }

    async fn fenced(&self, ask: Ask) -> Result<Fenced, StoreError> {
        told!(self.write(ask).await?, Fenced)
    }
}

/// Closes a queue when the thread that serves it ends, by whatever way: nobody waits for ever.
struct Abandon<'a>(&'a Queue);

impl Drop for Abandon<'_> {
    fn drop(&mut self) {
        self.0.abandon();
    }
}

async fn asked(queue: &Queue, ask: Ask) -> Result<Told, StoreError> {
    let stopped = |_| {
        let message = "the store stopped before it answered";
        StoreError::new(StoreErrorKind::Unavailable, message).effect_unknown()
    };
    queue.push(ask)?.await.map_err(stopped)?
}

impl Drop for SqliteStore {
    fn drop(&mut self) {
        self.shared.reads.close();
        self.shared.writes.close();
        let threads = self.threads.get_mut().unwrap_or_else(PoisonError::into_inner);
        for thread in threads.drain(..) {
            let _ = thread.join();
        }
    }
}

impl fmt::Debug for SqliteStore {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("SqliteStore").field("path", &self.shared.path).finish_non_exhaustive()
    }
}

#[async_trait]
impl Store for SqliteStore {
    async fn claim(&self, claim: &Claim) -> Result<Claimed, StoreError> {
        let ask = Ask::Claim(Box::new(claim.clone()), self.shared.index.hash_of(&claim.id));
        told!(self.write(ask).await?, Claimed)
    }

    async fn renew(
        &self,
        id: &RecordId,
        by: Claimant,
        lease: Duration,
    ) -> Result<Fenced, StoreError> {
        self.fenced(Ask::Renew(id.clone(), by, lease)).await
    }

    async fn finish(
        &self,
        id: &RecordId,
        by: Claimant,
        finish: &Finish,
    ) -> Result<Fenced, StoreError> {
        if let RecordAction::Complete(answer) = &finish.action {
            let size = answer.as_bytes().len();
            if size > ANSWER_BYTES_MAX {
                let message =
                    format!("the answer has {size} bytes, at most {ANSWER_BYTES_MAX} fit");
                return Err(StoreError::new(StoreErrorKind::TooLarge, message));
            }
        }
        self.fenced(Ask::Finish(id.clone(), by, finish.clone())).await
    }

    async fn get(&self, id: &RecordId) -> Result<Option<Snapshot>, StoreError> {
        told!(self.read(Ask::Get(id.clone())).await?, Got).map(|seen| seen.map(|seen| *seen))
    }

    async fn list(&self, query: &ListQuery) -> Result<Page, StoreError> {
        told!(self.read(Ask::List(Box::new(query.clone()))).await?, Page)
    }

    async fn resolve(
        &self,
        id: &RecordId,
        seen: Fence,
        resolution: &Resolution,
    ) -> Result<Resolved, StoreError> {
        told!(self.write(Ask::Resolve(id.clone(), seen, resolution.clone())).await?, Resolved)
    }

    async fn reap(&self, limit: u32) -> Result<Batch, StoreError> {
        told!(self.write(Ask::Reap(limit)).await?, Batch)
    }

    /// In slices, each in a transaction with whatever else has queued up, so that no claim waits
    /// for more than one of them.
    async fn sweep(&self, limit: u32) -> Result<Batch, StoreError> {
        let mut swept = Batch::default();
        // A slice may find nothing and still leave more to look at, so they are counted too.
        for _ in 0..=limit / SWEEP_SLICE * 2 {
            let slice = SWEEP_SLICE.min(limit.saturating_sub(swept.done));
            let batch = told!(self.write(Ask::Sweep(slice)).await?, Batch)?;
            swept = Batch { done: swept.done.saturating_add(batch.done), more: batch.more };
            if !swept.more || swept.done >= limit {
                break;
            }
        }
        Ok(swept)
    }

    async fn metadata(&self, prefix: &str) -> Result<Vec<(Box<str>, Bytes)>, StoreError> {
        told!(self.read(Ask::Metadata(prefix.into())).await?, Metadata)
    }

    async fn set_metadata(&self, name: &str, value: Option<&[u8]>) -> Result<(), StoreError> {
        check_metadata(name, value)?;
        let ask = Ask::SetMetadata(name.into(), value.map(<[u8]>::to_vec));
        self.write(ask).await.map(drop)
    }

    async fn epoch(&self) -> Result<Epoch, StoreError> {
        told!(self.read(Ask::Epoch).await?, Epoch)
    }

    async fn identity(&self) -> Result<Option<StoreId>, StoreError> {
        Ok(Some(self.info.id))
    }
}
