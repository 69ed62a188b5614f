//! Background tasks: listings, operators' actions, maintenance. They have a connection of their
//! own, so that no claim waits for them.

use std::{sync::Arc, time::Duration};

use bytes::Bytes;
use semel_core::{
    Answer, Batch, Epoch, Fence, ListQuery, Page, Reason, Resolution, Resolved, StateName,
    StoreError, StoreErrorKind, Usage, store::METADATA_ENTRIES_MAX,
};
use tokio::{
    sync::{mpsc, oneshot},
    time::timeout,
};
use tokio_postgres::{Error, Row};
use tracing::warn;

use crate::{
    batch::limits::{self, EndedRecord},
    digest::Digest,
    error::{ErrorClass, corrupt, describe, store_error},
    listing::ListPlan,
    row::{column, fence_number},
    session::{BEGIN_POOLED, BoxedParameter, PLAN_POOLED, Session},
    shared::SharedState,
    statements::StatementKind,
    timeline::Timeline,
};

/// A task that has not ended by now fails, and its connection is closed.
const TASK_TIMEOUT: Duration = Duration::from_secs(30);

/// How many records one maintenance statement changes.
const BATCH_MAX: u32 = 1000;

/// How many claims of each retention one reap or set-aside statement scans.
const SCAN_MAX: i64 = 10_000;

/// How many counters of velocity limits one step of a sweep examines.
const COUNTERS_EXAMINED_MAX: i64 = 1000;

/// How many pages are read to estimate the usage. A smaller table is counted whole.
const SAMPLED_PAGES: f64 = 512.0;

/// The channel for the reply to a task.
pub(crate) type ReplySender<T> = oneshot::Sender<Result<T, StoreError>>;

/// A task, with the channel for its reply.
pub(crate) enum BackgroundTask {
    List(ListQuery, ReplySender<Page>),
    Resolve(Digest, Fence, Resolution, ReplySender<Resolved>),
    Reap(u32, ReplySender<Batch>),
    Sweep(u32, ReplySender<Batch>),
    Epoch(ReplySender<Epoch>),
    Usage(ReplySender<Usage>),
    Metadata(Box<str>, ReplySender<Vec<(Box<str>, Bytes)>>),
    SetMetadata(Box<str>, Option<Vec<u8>>, ReplySender<()>),
}

/// Runs tasks until the store is dropped.
pub(crate) async fn run(shared: Arc<SharedState>, mut tasks: mpsc::Receiver<BackgroundTask>) {
    let mut background =
        BackgroundWorker { shared, session: None, swept_counter: Digest::default() };
    while let Some(task) = tasks.recv().await {
        match task {
            BackgroundTask::List(query, reply) => {
                let _ = reply.send(background.list(&query).await);
            }
            BackgroundTask::Resolve(digest, seen, resolution, reply) => {
                let _ = reply.send(background.resolve(digest, seen, &resolution).await);
            }
            BackgroundTask::Reap(limit, reply) => {
                let _ = reply.send(background.reap(limit.min(BATCH_MAX)).await);
            }
            BackgroundTask::Sweep(limit, reply) => {
                let _ = reply.send(background.sweep(limit.min(BATCH_MAX)).await);
            }
            BackgroundTask::Epoch(reply) => {
                let _ = reply.send(background.epoch().await);
            }
            BackgroundTask::Usage(reply) => {
                let _ = reply.send(background.usage().await);
            }
            BackgroundTask::Metadata(prefix, reply) => {
                let _ = reply.send(background.metadata(&prefix).await);
            }
            BackgroundTask::SetMetadata(name, value, reply) => {
                let _ = reply.send(background.set_metadata(&name, value).await);
            }
        }
    }
}

const fn batch(done: u32, limit: u32) -> Batch {
    Batch::new(done, done > 0 && done >= limit)
}

struct BackgroundWorker {
    shared: Arc<SharedState>,
    session: Option<Session>,
    /// The key of the last counter that was swept or kept.
    swept_counter: Digest,
}

impl BackgroundWorker {
    /// The connection, opened now if there is none.
    async fn session(&mut self) -> Result<Session, StoreError> {
        match self.session.take() {
            Some(session) if self.shared.is_usable(&session) => Ok(session),
            _ => self.shared.open(|_| {}).await,
        }
    }

    /// Runs something on the connection, and keeps the connection if it is still usable.
    async fn with_session<T>(
        &mut self,
        work: impl AsyncFnOnce(&Session) -> Result<T, Error>,
    ) -> Result<T, StoreError> {
        let session = self.session().await?;
        let unsynced_before = session.unsynced_commits();
        let done = timeout(TASK_TIMEOUT, work(&session)).await;
        let lost = |why: &str| {
            let message = format!("the connection to the database was lost: {why}");
            StoreError::new(StoreErrorKind::Unavailable, message).effect_unknown()
        };
        match done {
            Err(_) => Err(lost("no answer")),
            Ok(Ok(_)) if session.unsynced_commits() != unsynced_before => {
                self.session = Some(session);
                let message = "the database committed, but did not wait for its standby";
                Err(StoreError::new(StoreErrorKind::Unavailable, message).effect_unknown())
            }
            Ok(Ok(done)) => {
                self.session = Some(session);
                Ok(done)
            }
            Ok(Err(error)) => match ErrorClass::of(&error) {
                ErrorClass::ConnectionLost => Err(lost(&describe(&error))),
                ErrorClass::ConnectionUnusable => Err(store_error(error)),
                ErrorClass::Rejected | ErrorClass::Retryable => {
                    self.session = Some(session);
                    Err(store_error(error))
                }
            },
        }
    }

    /// Runs a read by the primary key, which takes no lock.
    async fn read(
        &mut self,
        kind: StatementKind,
        parameters: Vec<BoxedParameter<'_>>,
    ) -> Result<Vec<Row>, StoreError> {
        self.with_session(async |session| session.query(kind, parameters).await).await
    }

    /// Runs a statement that needs planner settings and a lock timeout. Through a pooler only a
    /// transaction can set them.
    async fn send(
        &mut self,
        kind: StatementKind,
        parameters: Vec<BoxedParameter<'_>>,
    ) -> Result<Vec<Row>, StoreError> {
        self.with_session(async |session| {
            let work = session.query(kind, parameters);
            if session.dedicated { work.await } else { transaction(session, work).await }
        })
        .await
    }

    /// Reaps, sets records aside, and raises the sequence of fences.
    async fn reap(&mut self, limit: u32) -> Result<Batch, StoreError> {
        let failed = Answer::failed().as_bytes().to_vec();
        let parameters: Vec<BoxedParameter<'_>> =
            vec![Box::new(failed), Box::new(i64::from(limit)), Box::new(SCAN_MAX)];
        let reaped = self
            .with_session(async |session| {
                let work = async {
                    let rows = session.query(StatementKind::Reap, parameters).await?;
                    limits::settle(session, &reaped_ends(&rows)).await?;
                    Ok(rows)
                };
                transaction(session, work).await
            })
            .await?;
        let reaped = batch(u32::try_from(reaped.len()).unwrap_or(u32::MAX), limit);
        let more = self.set_aside().await.unwrap_or_else(|error| {
            warn!(%error, "cannot set records in flight aside");
            false
        });
        if let Err(error) = self.send(StatementKind::RaiseFenceSequence, Vec::new()).await {
            warn!(%error, "cannot raise the sequence of fences");
        }
        Ok(Batch::new(reaped.done, reaped.more || more))
    }

    /// Sets records aside; returns whether there are more.
    async fn set_aside(&mut self) -> Result<bool, StoreError> {
        let rows = self.send(StatementKind::SetAside, vec![Box::new(SCAN_MAX)]).await?;
        rows.first().map_or(Ok(false), |row| column(row, 0, "whether there is more"))
    }

    async fn sweep(&mut self, limit: u32) -> Result<Batch, StoreError> {
        let parameters: Vec<BoxedParameter<'_>> = vec![Box::new(i64::from(limit))];
        let rows = self.send(StatementKind::Sweep, parameters).await?;
        let row = rows.first().ok_or_else(|| corrupt("a count"))?;
        let count = |at| column::<i64>(row, at, "a count");
        let [done, due] = [count(0)?, count(1)?].map(|n| u32::try_from(n).unwrap_or(u32::MAX));
        let more_counters = self.sweep_counters().await?;
        Ok(Batch::new(done, batch(due, limit).more || more_counters))
    }

    /// Sweeps some counters of velocity limits; returns whether the next step is likely to delete
    /// more.
    async fn sweep_counters(&mut self) -> Result<bool, StoreError> {
        let parameters: Vec<BoxedParameter<'_>> =
            vec![Box::new(self.swept_counter), Box::new(COUNTERS_EXAMINED_MAX)];
        let rows = self.send(StatementKind::SweepCounters, parameters).await?;
        let row = rows.first().ok_or_else(|| corrupt("a count"))?;
        let last: Option<Digest> = column(row, 0, "the key of a counter")?;
        self.swept_counter = last.unwrap_or_default();
        Ok(column::<i64>(row, 1, "a count")? > 0)
    }

    async fn epoch(&mut self) -> Result<Epoch, StoreError> {
        let rows = self.read(StatementKind::Epoch, Vec::new()).await?;
        let row = rows.first().ok_or_else(|| corrupt("the epoch"))?;
        let epoch: i64 = column(row, 0, "the epoch")?;
        self.shared.verify_identity(column(row, 1, "the store's name")?)?;
        self.check_timeline().await?;
        Ok(Epoch(u64::try_from(epoch).map_err(|_| corrupt("the epoch"))?))
    }

    /// Estimated from a sample of the pages: what the server has counted depends on when it last
    /// analyzed the table, and the size of the table does not fall when records are deleted.
    async fn usage(&mut self) -> Result<Usage, StoreError> {
        let rows = self.read(StatementKind::Size, Vec::new()).await?;
        let row = rows.first().ok_or_else(|| corrupt("a size"))?;
        #[expect(clippy::cast_precision_loss, reason = "an estimate")]
        let pages = column::<i64>(row, 0, "a size")? as f64;
        let share = (SAMPLED_PAGES / pages.max(1.0)).min(1.0);
        let rows = self.read(StatementKind::Usage, vec![Box::new(100.0 * share)]).await?;
        let row = rows.first().ok_or_else(|| corrupt("a sample"))?;
        let estimate = |at| -> Result<Option<u64>, StoreError> {
            #[expect(clippy::cast_precision_loss, reason = "an estimate")]
            let sampled = column::<i64>(row, at, "a sample")? as f64;
            #[expect(clippy::cast_possible_truncation, reason = "saturates")]
            #[expect(clippy::cast_sign_loss, reason = "never negative")]
            Ok(Some((sampled / share) as u64))
        };
        let mut usage = Usage::default();
        (usage.records, usage.bytes) = (estimate(0)?, estimate(1)?);
        Ok(usage)
    }

    async fn metadata(&mut self, prefix: &str) -> Result<Vec<(Box<str>, Bytes)>, StoreError> {
        let limit = i64::try_from(METADATA_ENTRIES_MAX).unwrap_or(i64::MAX);
        let rows =
            self.read(StatementKind::Metadata, vec![Box::new(prefix), Box::new(limit)]).await?;
        let entry = |row: &Row| {
            let name: &str = column(row, 0, "a name")?;
            let value: &[u8] = column(row, 1, "a value")?;
            Ok((name.into(), Bytes::copy_from_slice(value)))
        };
        rows.iter().map(entry).collect()
    }

    async fn set_metadata(&mut self, name: &str, value: Option<Vec<u8>>) -> Result<(), StoreError> {
        let name = Box::new(name);
        match value {
            Some(value) => self.send(StatementKind::SetMetadata, vec![name, Box::new(value)]).await,
            None => self.send(StatementKind::RemoveMetadata, vec![name]).await,
        }
        .map(drop)
    }

    /// Checks the timeline behind a pooler. A direct connection ends with its server; one to a
    /// pooler stays open when the server behind it is replaced.
    async fn check_timeline(&mut self) -> Result<(), StoreError> {
        let Some(session) = self.session.as_ref().filter(|session| !session.dedicated) else {
            return Ok(());
        };
        if session.timeline.is_none() {
            return Ok(());
        }
        let read = Timeline::read(&session.client);
        let read = timeout(TASK_TIMEOUT, read).await.ok().and_then(Result::ok).flatten();
        read.map_or(Ok(()), |found| self.shared.verify_timeline(session, found))
    }

    /// The action and the raised epoch are one transaction: a cache that has read the new epoch
    /// reads the new record.
    async fn resolve(
        &mut self,
        digest: Digest,
        seen: Fence,
        resolution: &Resolution,
    ) -> Result<Resolved, StoreError> {
        let (kind, state) = match resolution {
            Resolution::Completed(_) => (StatementKind::Resolve, StateName::Completed),
            Resolution::Released => (StatementKind::Resolve, StateName::Released),
            Resolution::Deleted(state) => (StatementKind::Delete, *state),
        };
        let mut parameters: Vec<BoxedParameter<'_>> =
            vec![Box::new(digest), Box::new(fence_number(seen)), Box::new(state.as_str())];
        let kept = match resolution {
            Resolution::Completed(answer) => Some(answer),
            Resolution::Released | Resolution::Deleted(_) => None,
        };
        let answer = kept.map(|answer| answer.as_bytes().as_ref());
        if kind == StatementKind::Resolve {
            parameters.push(Box::new(answer as Option<&[u8]>));
            parameters.push(Box::new(Reason::Resolved.to_string()));
        }
        self.with_session(async |session| {
            let work = async {
                let rows = session.query(kind, parameters).await?;
                let applied = !rows.is_empty();
                if applied {
                    let ended = rows.iter().filter_map(|row| EndedRecord::read(row, kept));
                    limits::settle(session, &ended.collect::<Vec<_>>()).await?;
                    session.query(StatementKind::RaiseEpoch, Vec::new()).await?;
                }
                Ok(if applied { Resolved::Applied } else { Resolved::Stale })
            };
            transaction(session, work).await
        })
        .await
    }

    async fn list(&mut self, query: &ListQuery) -> Result<Page, StoreError> {
        let plan = ListPlan::of(query);
        let (kind, parameters) = (plan.statement(), plan.parameters(query));
        let rows = if plan.needs_planning() {
            self.send(kind, parameters).await?
        } else {
            self.read(kind, parameters).await?
        };
        plan.page(query, &rows)
    }
}

/// The records with reservations whose executions a reap has ended: held ones keep theirs.
fn reaped_ends(rows: &[Row]) -> Vec<EndedRecord> {
    let failed = Answer::failed();
    let has_failed = |row: &&Row| row.try_get(4).is_ok_and(|state: &str| state == "completed");
    rows.iter().filter(has_failed).filter_map(|row| EndedRecord::read(row, Some(&failed))).collect()
}

/// Runs something as one transaction, with the settings that a pooled session lacks.
async fn transaction<T>(
    session: &Session,
    work: impl Future<Output = Result<T, Error>>,
) -> Result<T, Error> {
    let done = async {
        session.execute(BEGIN_POOLED).await?;
        if !session.dedicated {
            session.execute(PLAN_POOLED).await?;
        }
        work.await
    };
    let done = done.await;
    let ended = session.execute(if done.is_ok() { "COMMIT" } else { "ROLLBACK" }).await;
    done.and_then(|done| ended.map(|_| done))
}
