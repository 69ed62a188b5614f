//! The public store: it passes commands to the queue and to the background task.

use std::{fmt, time::Duration};

use async_trait::async_trait;
use bytes::Bytes;
use semel_core::{
    Batch, Changed, Claim, Claimant, Claimed, Epoch, Fence, Fenced, Finish, ListQuery, Page,
    RecordAction, RecordId, Resolution, Resolved, Snapshot, Store, StoreError, StoreErrorKind,
    StoreId, Usage, store::check_metadata,
};
use tokio::sync::{mpsc::error::TrySendError, oneshot};

use crate::{
    background::{BackgroundTask, ReplySender},
    command::{CommandReply, QueuedCommand, RecordCommand, StatementStage},
    digest::Digest,
    error::closed,
    options::Options,
    single::SingleCommand,
    store_thread::StoreThread,
};

/// The largest answer that is recorded: 64 MiB.
const ANSWER_BYTES_MAX: usize = 64 << 20;

/// How many records one statement sweeps: a few milliseconds of the database's time.
const SWEEP_SLICE: u32 = 100;

/// Each command has one kind of reply; another one would be a bug in this crate.
macro_rules! expect_reply {
    ($reply:expr, $kind:ident) => {
        if let CommandReply::$kind(reply) = $reply {
            Ok(reply)
        } else {
            let message = "internal error: unexpected reply type from the store thread";
            Err(StoreError::new(StoreErrorKind::Corrupt, message).effect_unknown())
        }
    };
}

/// A store in PostgreSQL. See the [crate](crate) for its guarantees.
///
/// Dropping it serves what is still queued, then closes its connections.
pub struct PostgresStore {
    thread: StoreThread,
}

impl Options {
    /// Opens the store. It has a thread of its own and outlives the runtime it was opened on.
    ///
    /// # Errors
    ///
    /// If the database cannot be reached, or the tables do not exist and may not be created.
    pub async fn connect(&self) -> Result<PostgresStore, StoreError> {
        PostgresStore::open(self.clone()).await
    }
}

impl PostgresStore {
    /// Opens the store that a URL names; see [`Options::parse`] for its parameters.
    ///
    /// # Errors
    ///
    /// If the URL is invalid, the database cannot be reached, or the tables do not exist and may
    /// not be created.
    pub async fn connect(url: &str) -> Result<Self, StoreError> {
        Options::parse(url)?.connect().await
    }

    /// How many connections to former primaries were refused so far: servers that accept writes on
    /// a timeline below the latest known one.
    #[must_use]
    pub fn former_primaries_refused(&self) -> u64 {
        self.thread.shared.connector.history.refused()
    }

    pub(crate) async fn open(options: Options) -> Result<Self, StoreError> {
        Ok(Self { thread: StoreThread::spawn(options).await? })
    }

    async fn run(
        &self,
        digest: Digest,
        command: RecordCommand,
        stage: StatementStage,
    ) -> Result<CommandReply, StoreError> {
        let (queued, receiver) = QueuedCommand::new(digest, command, stage);
        if let Err(queued) = self.thread.direct.try_send(queued).await {
            self.thread.shared.queue.push(queued)?;
        }
        receiver.await.map_err(|_| stopped())?
    }

    /// Runs a command that has a single statement. The queued path is boxed, so that the future of
    /// the direct one stays small: it is moved a few times.
    async fn run_single(
        &self,
        id: &RecordId,
        single: SingleCommand<'_>,
        command: impl FnOnce() -> RecordCommand,
    ) -> Result<CommandReply, StoreError> {
        let digest = Digest::with_key(id);
        match self.thread.direct.try_single(digest, single).await {
            Ok(reply) => reply,
            Err(stage) => Box::pin(self.run(digest, command(), stage)).await,
        }
    }

    async fn fenced(&self, id: &RecordId, command: RecordCommand) -> Result<Fenced, StoreError> {
        expect_reply!(self.run(Digest::with_key(id), command, StatementStage::First).await?, Fenced)
    }

    async fn send<T>(
        &self,
        task: impl FnOnce(ReplySender<T>) -> BackgroundTask,
    ) -> Result<T, StoreError> {
        let tasks = self.thread.tasks.as_ref().ok_or_else(closed)?;
        let (reply, receiver) = oneshot::channel();
        tasks.try_send(task(reply)).map_err(|error| match error {
            TrySendError::Full(_) => {
                let message = "too many background tasks wait for the database: try again later";
                StoreError::new(StoreErrorKind::Busy, message)
            }
            TrySendError::Closed(_) => closed(),
        })?;
        receiver.await.map_err(|_| stopped())?
    }
}

fn stopped() -> StoreError {
    let message = "the store stopped before it replied";
    StoreError::new(StoreErrorKind::Unavailable, message).effect_unknown()
}

impl fmt::Debug for PostgresStore {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let options = &self.thread.shared.connector.options;
        f.debug_tuple("PostgresStore").field(options).finish()
    }
}

#[async_trait]
impl Store for PostgresStore {
    async fn claim(&self, claim: &Claim) -> Result<Claimed, StoreError> {
        let command = || RecordCommand::Claim(Box::new(claim.clone()));
        let reply = match SingleCommand::claim(claim) {
            Some(single) => self.run_single(&claim.id, single, command).await?,
            None => {
                let digest = Digest::with_key(&claim.id);
                Box::pin(self.run(digest, command(), StatementStage::First)).await?
            }
        };
        expect_reply!(reply, Claimed)
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
        self.fenced(id, RecordCommand::Renew(by, lease)).await
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
        let command = || RecordCommand::Finish(by, finish.clone());
        match SingleCommand::completion(by, finish) {
            Some(single) => expect_reply!(self.run_single(id, single, command).await?, Fenced),
            None => self.fenced(id, command()).await,
        }
    }

    async fn get(&self, id: &RecordId) -> Result<Option<Snapshot>, StoreError> {
        expect_reply!(
            self.run(Digest::with_key(id), RecordCommand::Get, StatementStage::First).await?,
            Got
        )
        .map(|seen| seen.map(|seen| *seen))
    }

    async fn list(&self, query: &ListQuery) -> Result<Page, StoreError> {
        self.send(|reply| BackgroundTask::List(query.clone(), reply)).await
    }

    async fn resolve(
        &self,
        id: &RecordId,
        seen: Fence,
        resolution: &Resolution,
    ) -> Result<Resolved, StoreError> {
        let digest = Digest::with_key(id);
        self.send(|reply| BackgroundTask::Resolve(digest, seen, resolution.clone(), reply)).await
    }

    async fn reap(&self, limit: u32) -> Result<Batch, StoreError> {
        self.send(|reply| BackgroundTask::Reap(limit, reply)).await
    }

    /// Sweeps in slices, so that an operator's action waits for no more than one of them.
    async fn sweep(&self, limit: u32) -> Result<Batch, StoreError> {
        let mut swept = Batch::default();
        loop {
            let slice = SWEEP_SLICE.min(limit.saturating_sub(swept.done));
            let batch = self.send(|reply| BackgroundTask::Sweep(slice, reply)).await?;
            swept = Batch::new(swept.done.saturating_add(batch.done), batch.more);
            if !swept.more || swept.done >= limit {
                return Ok(swept);
            }
        }
    }

    async fn epoch(&self) -> Result<Epoch, StoreError> {
        self.send(BackgroundTask::Epoch).await
    }

    async fn usage(&self) -> Result<Usage, StoreError> {
        self.send(BackgroundTask::Usage).await
    }

    async fn identity(&self) -> Result<Option<StoreId>, StoreError> {
        Ok(self.thread.shared.identity())
    }

    async fn metadata(&self, prefix: &str) -> Result<Vec<(Box<str>, Bytes)>, StoreError> {
        self.send(|reply| BackgroundTask::Metadata(prefix.into(), reply)).await
    }

    async fn set_metadata(&self, name: &str, value: Option<&[u8]>) -> Result<(), StoreError> {
        check_metadata(name, value)?;
        let value = value.map(<[u8]>::to_vec);
        self.send(|reply| BackgroundTask::SetMetadata(name.into(), value, reply)).await
    }

    async fn watch(&self, id: &RecordId) -> Result<Option<Changed>, StoreError> {
        let digest = Digest::with_key(id);
        let Some(changed) = self.thread.listener.watch_record(digest).await else {
            return Ok(None);
        };
        self.run(digest, RecordCommand::Watch, StatementStage::First).await?;
        Ok(Some(changed))
    }
}
