//! The store as its users see it: it hands over what it is asked.

use std::{fmt, time::Duration};

use async_trait::async_trait;
use bytes::Bytes;
use semel_core::{
    Batch, Changed, Claim, Claimant, Claimed, Epoch, Fence, Fenced, Finish, ListQuery, Page,
    RecordAction, RecordId, Resolution, Resolved, Snapshot, Store, StoreError, StoreErrorKind,
    StoreId, store::check_metadata,
};
use tokio::sync::{mpsc::error::TrySendError, oneshot};

use crate::{
    digest::Digest,
    doors,
    error::closed,
    house::Resident,
    office::{Errand, Reply},
    options::Options,
    question::{Ask, Question, Step, Told},
    single::Lone,
};

/// The largest answer that is recorded: 64 MiB.
const ANSWER_BYTES_MAX: usize = 64 << 20;

/// How many records are swept by one statement: a few milliseconds of the database's time.
const SWEEP_SLICE: u32 = 100;

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

/// A store in PostgreSQL. See the [crate](crate) for what it promises.
///
/// Dropping it serves what is still queued, then closes its connections.
pub struct PostgresStore {
    resident: Resident,
}

impl PostgresStore {
    /// Opens the store that a URL names; see [`Options::parse`] for what it may say.
    ///
    /// # Errors
    ///
    /// If the URL is not understood, the database cannot be reached, or the tables are not there
    /// and may not be made.
    pub async fn connect(url: &str) -> Result<Self, StoreError> {
        Options::parse(url)?.connect().await
    }

    /// How many connections to former primaries were refused so far: servers that take writes on a
    /// timeline below the latest that was met.
    #[must_use]
    pub fn former_primaries_refused(&self) -> u64 {
        self.resident.house.connector.history.refused()
    }

    pub(crate) async fn open(options: Options) -> Result<Self, StoreError> {
        Ok(Self { resident: Resident::move_in(options).await? })
    }

    async fn ask(&self, digest: Digest, ask: Ask, step: Step) -> Result<Told, StoreError> {
        let (question, told) = Question::new(digest, ask, step);
        let house = &self.resident.house;
        if let Err(question) = doors::ask(house, question).await {
            house.queue.push(question)?;
        }
        told.await.map_err(|_| stopped())?
    }

    /// The same for what usually comes alone. The long way is apart, so that the future of the
    /// short one stays small: it is moved a few times.
    async fn ask_alone(
        &self,
        id: &RecordId,
        lone: Lone<'_>,
        ask: impl FnOnce() -> Ask,
    ) -> Result<Told, StoreError> {
        let digest = Digest::with_key(id);
        match doors::ask_alone(&self.resident.house, digest, lone).await {
            Ok(told) => told,
            Err(step) => Box::pin(self.ask(digest, ask(), step)).await,
        }
    }

    async fn fenced(&self, id: &RecordId, ask: Ask) -> Result<Fenced, StoreError> {
        told!(self.ask(Digest::with_key(id), ask, Step::First).await?, Fenced)
    }

    async fn send<T>(&self, errand: impl FnOnce(Reply<T>) -> Errand) -> Result<T, StoreError> {
        let errands = self.resident.errands.as_ref().ok_or_else(closed)?;
        let (reply, told) = oneshot::channel();
        errands.try_send(errand(reply)).map_err(|error| match error {
            TrySendError::Full(_) => {
                let message = "too much upkeep is waiting for the database: try again later";
                StoreError::new(StoreErrorKind::Busy, message)
            }
            TrySendError::Closed(_) => closed(),
        })?;
        told.await.map_err(|_| stopped())?
    }
}

fn stopped() -> StoreError {
    let message = "the store stopped before it answered";
    StoreError::new(StoreErrorKind::Unavailable, message).effect_unknown()
}

impl fmt::Debug for PostgresStore {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let options = &self.resident.house.connector.options;
        f.debug_tuple("PostgresStore").field(options).finish()
    }
}

#[async_trait]
impl Store for PostgresStore {
    async fn claim(&self, claim: &Claim) -> Result<Claimed, StoreError> {
        let ask = || Ask::Claim(Box::new(claim.clone()));
        told!(self.ask_alone(&claim.id, Lone::Claim(claim), ask).await?, Claimed)
    }

    async fn renew(
        &self,
        id: &RecordId,
        by: Claimant,
        lease: Duration,
    ) -> Result<Fenced, StoreError> {
        self.fenced(id, Ask::Renew(by, lease)).await
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
        let ask = || Ask::Finish(by, finish.clone());
        match Lone::completion(by, finish) {
            Some(lone) => told!(self.ask_alone(id, lone, ask).await?, Fenced),
            None => self.fenced(id, ask()).await,
        }
    }

    async fn get(&self, id: &RecordId) -> Result<Option<Snapshot>, StoreError> {
        told!(self.ask(Digest::with_key(id), Ask::Get, Step::First).await?, Got)
            .map(|seen| seen.map(|seen| *seen))
    }

    async fn list(&self, query: &ListQuery) -> Result<Page, StoreError> {
        self.send(|reply| Errand::List(query.clone(), reply)).await
    }

    async fn resolve(
        &self,
        id: &RecordId,
        seen: Fence,
        resolution: &Resolution,
    ) -> Result<Resolved, StoreError> {
        let digest = Digest::with_key(id);
        self.send(|reply| Errand::Resolve(digest, seen, resolution.clone(), reply)).await
    }

    async fn reap(&self, limit: u32) -> Result<Batch, StoreError> {
        self.send(|reply| Errand::Reap(limit, reply)).await
    }

    /// In slices, so that an operator's act waits for no more than one of them.
    async fn sweep(&self, limit: u32) -> Result<Batch, StoreError> {
        let mut swept = Batch::default();
        loop {
            let slice = SWEEP_SLICE.min(limit.saturating_sub(swept.done));
            let batch = self.send(|reply| Errand::Sweep(slice, reply)).await?;
            swept = Batch { done: swept.done.saturating_add(batch.done), more: batch.more };
            if !swept.more || swept.done >= limit {
                return Ok(swept);
            }
        }
    }

    async fn epoch(&self) -> Result<Epoch, StoreError> {
        self.send(Errand::Epoch).await
    }

    async fn identity(&self) -> Result<Option<StoreId>, StoreError> {
        Ok(self.resident.house.identity())
    }

    async fn metadata(&self, prefix: &str) -> Result<Vec<(Box<str>, Bytes)>, StoreError> {
        self.send(|reply| Errand::Metadata(prefix.into(), reply)).await
    }

    async fn set_metadata(&self, name: &str, value: Option<&[u8]>) -> Result<(), StoreError> {
        check_metadata(name, value)?;
        let value = value.map(<[u8]>::to_vec);
        self.send(|reply| Errand::SetMetadata(name.into(), value, reply)).await
    }

    async fn watch(&self, id: &RecordId) -> Result<Option<Changed>, StoreError> {
        let digest = Digest::with_key(id);
        let Some(changed) = self.resident.house.listener.wait_for(digest).await else {
            return Ok(None);
        };
        self.ask(digest, Ask::Watch, Step::First).await?;
        Ok(Some(changed))
    }
}
