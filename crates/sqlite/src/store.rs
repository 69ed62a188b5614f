//! The public store: opens the file, starts the threads, and queues commands for them.

use std::{
    fmt,
    path::Path,
    sync::{Arc, Mutex, PoisonError},
    thread::{Builder, JoinHandle},
    time::Duration,
};

use async_trait::async_trait;
use bytes::Bytes;
use semel_core::{
    Batch, Claim, Claimant, Claimed, Epoch, Fence, Fenced, Finish, ListQuery, Page, RecordAction,
    RecordId, Resolution, Resolved, Snapshot, Store, StoreError, StoreErrorKind, StoreId, Usage,
    store::check_metadata,
};

use crate::{
    clock::{BootClock, SystemClock},
    command::{SqliteCommand, SqliteReply},
    file_system::FileSystem,
    open,
    queue::ThreadQueue,
    reader::StoreReader,
    shared::{SqliteSettings, SqliteShared, StoreInfo, Synchronous},
    writer::StoreWriter,
};

/// The largest answer that is recorded: 64 MiB.
const ANSWER_BYTES_MAX: usize = 64 << 20;

/// How many records are swept in one transaction: well under a millisecond of the writer's time.
const SWEEP_SLICE: u32 = 50;

/// Unwraps the kind of reply that belongs to a command. Another kind is a bug in this crate.
macro_rules! expect_reply {
    ($reply:expr, $kind:ident) => {
        if let SqliteReply::$kind(reply) = $reply {
            Ok(reply)
        } else {
            let message = "internal error: unexpected reply type from the store thread";
            Err(StoreError::new(StoreErrorKind::Corrupt, message).effect_unknown())
        }
    };
}

/// A store in one SQLite file. See the [crate](crate) for what it promises.
///
/// Dropping it serves what is still queued, then closes the file.
pub struct SqliteStore {
    shared: Arc<SqliteShared>,
    info: StoreInfo,
    threads: Mutex<Vec<JoinHandle<()>>>,
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
    settings: SqliteSettings,
}

impl Options {
    /// The defaults.
    #[must_use]
    pub fn new() -> Self {
        Self {
            settings: SqliteSettings {
                clock: Arc::new(SystemClock),
                synchronous: Synchronous::Full,
                create: true,
                waiting_max: 4096,
                readers: 2,
                // 8 MB: many short stalls instead of a few long ones.
                checkpoint_pages: 1000,
                file_system: None,
            },
        }
    }

    /// Whether a missing store is created, which is the default. Otherwise opening it fails with
    /// the cause [`NoStore`](crate::NoStore).
    ///
    /// A store that replaces a lost one grants every claim again: do not create one where a store
    /// existed.
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
    pub fn clock(mut self, clock: Arc<dyn BootClock>) -> Self {
        self.settings.clock = clock;
        self
    }

    /// After how many pages in the log the writer runs a checkpoint: for tests.
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

    /// Acknowledges commits before they are on disk: proves that a test can fail. Never for data.
    #[doc(hidden)]
    #[must_use]
    pub const fn without_durability(mut self) -> Self {
        self.settings.synchronous = Synchronous::Off;
        self
    }

    pub(crate) const fn settings(&self) -> &SqliteSettings {
        &self.settings
    }

    /// Opens the file, creating it if it is not there, and reads its index: about half a second per
    /// million records. It blocks; in async code call it through `spawn_blocking`.
    pub fn open(&self, path: impl AsRef<Path>) -> Result<SqliteStore, StoreError> {
        let shared = Arc::new(SqliteShared::new(path.as_ref().to_owned(), self.settings.clone()));
        let (writer, info) = StoreWriter::open(Arc::clone(&shared))?;
        let mut readers = Vec::new();
        for _ in 0..self.settings.readers.max(1) {
            let connection = open::reader(&shared.path)?;
            readers.push(StoreReader::new(Arc::clone(&shared), connection, writer.clock.clone()));
        }
        let store = SqliteStore { shared, info, threads: Mutex::default() };
        store.start("semel-sqlite-write", move |shared| {
            let _abandon = AbandonOnDrop(&shared.writes);
            writer.run();
        })?;
        for reader in readers {
            store.start("semel-sqlite-read", move |shared| {
                let _abandon = AbandonOnDrop(&shared.reads);
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

    /// Facts about the store, read when it was opened.
    #[must_use]
    pub const fn info(&self) -> &StoreInfo {
        &self.info
    }

    fn start(
        &self,
        name: &str,
        run: impl FnOnce(&SqliteShared) + Send + 'static,
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

    async fn write(&self, command: SqliteCommand) -> Result<SqliteReply, StoreError> {
        send_command(&self.shared.writes, command).await
    }

    async fn read(&self, command: SqliteCommand) -> Result<SqliteReply, StoreError> {
        send_command(&self.shared.reads, command).await
    }

    async fn fenced(&self, command: SqliteCommand) -> Result<Fenced, StoreError> {
        expect_reply!(self.write(command).await?, Fenced)
    }
}

/// Closes a queue when its thread ends, by a panic too, so that no caller waits for ever.
struct AbandonOnDrop<'a>(&'a ThreadQueue);

impl Drop for AbandonOnDrop<'_> {
    fn drop(&mut self) {
        self.0.abandon();
    }
}

async fn send_command(
    queue: &ThreadQueue,
    command: SqliteCommand,
) -> Result<SqliteReply, StoreError> {
    let stopped = |_| {
        let message = "the store stopped before it answered";
        StoreError::new(StoreErrorKind::Unavailable, message).effect_unknown()
    };
    queue.push(command)?.await.map_err(stopped)?
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
        let command =
            SqliteCommand::Claim(Box::new(claim.clone()), self.shared.index.hash_of(&claim.id));
        expect_reply!(self.write(command).await?, Claimed)
    }

    fn has_limits(&self) -> bool {
        true
    }

    async fn renew(
        &self,
        id: &RecordId,
        by: Claimant,
        lease: Duration,
    ) -> Result<Fenced, StoreError> {
        self.fenced(SqliteCommand::Renew(id.clone(), by, lease)).await
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
        self.fenced(SqliteCommand::Finish(id.clone(), by, finish.clone())).await
    }

    async fn get(&self, id: &RecordId) -> Result<Option<Snapshot>, StoreError> {
        expect_reply!(self.read(SqliteCommand::Get(id.clone())).await?, Got)
            .map(|seen| seen.map(|seen| *seen))
    }

    async fn list(&self, query: &ListQuery) -> Result<Page, StoreError> {
        expect_reply!(self.read(SqliteCommand::List(Box::new(query.clone()))).await?, Page)
    }

    async fn resolve(
        &self,
        id: &RecordId,
        seen: Fence,
        resolution: &Resolution,
    ) -> Result<Resolved, StoreError> {
        expect_reply!(
            self.write(SqliteCommand::Resolve(id.clone(), seen, resolution.clone())).await?,
            Resolved
        )
    }

    async fn reap(&self, limit: u32) -> Result<Batch, StoreError> {
        expect_reply!(self.write(SqliteCommand::Reap(limit)).await?, Batch)
    }

    /// In slices. Each slice shares a transaction with other queued commands, so a claim waits for
    /// at most one slice.
    async fn sweep(&self, limit: u32) -> Result<Batch, StoreError> {
        let mut swept = Batch::default();
        // A slice may delete nothing and still report more work, so the slices are bounded too.
        for _ in 0..=limit / SWEEP_SLICE * 2 {
            let slice = SWEEP_SLICE.min(limit.saturating_sub(swept.done));
            let batch = expect_reply!(self.write(SqliteCommand::Sweep(slice)).await?, Batch)?;
            swept = Batch::new(swept.done.saturating_add(batch.done), batch.more);
            if !swept.more || swept.done >= limit {
                break;
            }
        }
        Ok(swept)
    }

    async fn metadata(&self, prefix: &str) -> Result<Vec<(Box<str>, Bytes)>, StoreError> {
        expect_reply!(self.read(SqliteCommand::Metadata(prefix.into())).await?, Metadata)
    }

    async fn set_metadata(&self, name: &str, value: Option<&[u8]>) -> Result<(), StoreError> {
        check_metadata(name, value)?;
        let command = SqliteCommand::SetMetadata(name.into(), value.map(<[u8]>::to_vec));
        self.write(command).await.map(drop)
    }

    async fn epoch(&self) -> Result<Epoch, StoreError> {
        expect_reply!(self.read(SqliteCommand::Epoch).await?, Epoch)
    }

    async fn usage(&self) -> Result<Usage, StoreError> {
        expect_reply!(self.read(SqliteCommand::Usage).await?, Usage)
    }

    async fn identity(&self) -> Result<Option<StoreId>, StoreError> {
        Ok(Some(self.info.id))
    }
}
