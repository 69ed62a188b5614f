//! What is not urgent: listings, operators' acts, upkeep. It has a connection of its own, so that
//! no claim ever waits for it.

use std::{sync::Arc, time::Duration};

use bytes::Bytes;
use semel_core::{
    Answer, Batch, Epoch, Fence, ListQuery, Page, Reason, Resolution, Resolved, StateName,
    StoreError, StoreErrorKind, store::METADATA_ENTRIES_MAX,
};
use tokio::{
    sync::{mpsc, oneshot},
    time::timeout,
};
use tokio_postgres::{Error, Row};
use tracing::warn;

use crate::{
    digest::Digest,
    error::{Verdict, damaged, said, store_error},
    house::House,
    list::Listing,
    row::{column, number},
    session::{BEGIN_POOLED, PLAN_POOLED, Parameter, Session},
    statements::Verb,
    timeline::Timeline,
};

/// An errand that has not ended by now is given up with its connection.
const PATIENCE: Duration = Duration::from_secs(30);

/// How many records one statement of upkeep changes.
const UPKEEP_MAX: u32 = 1000;

/// How many claims of each retention a reaper looks at that were not looked at before.
const SPAN: i64 = 10_000;

/// Where an answer is waited for.
pub(crate) type Reply<T> = oneshot::Sender<Result<T, StoreError>>;

/// What is asked.
pub(crate) enum Errand {
    List(ListQuery, Reply<Page>),
    Resolve(Digest, Fence, Resolution, Reply<Resolved>),
    Reap(u32, Reply<Batch>),
    Sweep(u32, Reply<Batch>),
    Epoch(Reply<Epoch>),
    Metadata(Box<str>, Reply<Vec<(Box<str>, Bytes)>>),
    SetMetadata(Box<str>, Option<Vec<u8>>, Reply<()>),
}

/// Runs errands until nobody can ask for any more.
pub(crate) async fn run(house: Arc<House>, mut errands: mpsc::Receiver<Errand>) {
    let mut office = Office { house, session: None };
    while let Some(errand) = errands.recv().await {
        match errand {
            Errand::List(query, reply) => {
                let _ = reply.send(office.list(&query).await);
            }
            Errand::Resolve(digest, seen, resolution, reply) => {
                let _ = reply.send(office.resolve(digest, seen, &resolution).await);
            }
            Errand::Reap(limit, reply) => {
                let _ = reply.send(office.reap(limit.min(UPKEEP_MAX)).await);
            }
            Errand::Sweep(limit, reply) => {
                let _ = reply.send(office.sweep(limit.min(UPKEEP_MAX)).await);
            }
            Errand::Epoch(reply) => {
                let _ = reply.send(office.epoch().await);
            }
            Errand::Metadata(prefix, reply) => {
                let _ = reply.send(office.metadata(&prefix).await);
            }
            Errand::SetMetadata(name, value, reply) => {
                let _ = reply.send(office.set_metadata(&name, value).await);
            }
        }
    }
}

const fn batch(done: u32, limit: u32) -> Batch {
    Batch { done, more: done > 0 && done >= limit }
}

struct Office {
    house: Arc<House>,
    session: Option<Session>,
}

impl Office {
    /// The connection, made now if there is none.
    async fn session(&mut self) -> Result<Session, StoreError> {
        match self.session.take() {
            Some(session) if self.house.trusts(&session) => Ok(session),
            _ => self.house.open(|_| {}).await,
        }
    }

    /// Does something on the connection, and keeps it if it is still good.
    async fn with<T>(
        &mut self,
        work: impl AsyncFnOnce(&Session) -> Result<T, Error>,
    ) -> Result<T, StoreError> {
        let session = self.session().await?;
        let doubts = session.doubts();
        let told = timeout(PATIENCE, work(&session)).await;
        let lost = |why: &str| {
            let message = format!("the connection to the database was lost: {why}");
            StoreError::new(StoreErrorKind::Unavailable, message).effect_unknown()
        };
        match told {
            Err(_) => Err(lost("no answer")),
            Ok(Ok(_)) if session.doubts() != doubts => {
                self.session = Some(session);
                let message = "the database committed, but did not wait for its standby";
                Err(StoreError::new(StoreErrorKind::Unavailable, message).effect_unknown())
            }
            Ok(Ok(told)) => {
                self.session = Some(session);
                Ok(told)
            }
            Ok(Err(error)) => match Verdict::of(&error) {
                Verdict::Lost => Err(lost(&said(&error))),
                Verdict::Unfit => Err(store_error(error)),
                Verdict::Refused | Verdict::TryAgain => {
                    self.session = Some(session);
                    Err(store_error(error))
                }
            },
        }
    }

    /// One that goes by the primary key, and waits for nobody.
    async fn read(
        &mut self,
        verb: Verb,
        given: Vec<Parameter<'_>>,
    ) -> Result<Vec<Row>, StoreError> {
        self.with(async |session| session.query(verb, given).await).await
    }

    /// Through a pooler only a transaction can say how statements are planned, and how long a lock
    /// is waited for.
    async fn send(
        &mut self,
        verb: Verb,
        given: Vec<Parameter<'_>>,
    ) -> Result<Vec<Row>, StoreError> {
        self.with(async |session| {
            let work = session.query(verb, given);
            if session.named { work.await } else { transaction(session, work).await }
        })
        .await
    }

    /// There is more to do as well where others are to be set aside.
    async fn reap(&mut self, limit: u32) -> Result<Batch, StoreError> {
        let failed = Answer::failed().as_bytes().to_vec();
        let given: Vec<Parameter<'_>> =
            vec![Box::new(failed), Box::new(i64::from(limit)), Box::new(SPAN)];
        let reaped = self.send(Verb::Reap, given).await?;
        let reaped = batch(u32::try_from(reaped.len()).unwrap_or(u32::MAX), limit);
        let more = self.set_aside().await.unwrap_or_else(|error| {
            warn!(%error, "nothing could be set aside");
            false
        });
        if let Err(error) = self.send(Verb::RaiseFences, Vec::new()).await {
            warn!(%error, "the sequence of fences could not be raised");
        }
        Ok(Batch { more: reaped.more || more, ..reaped })
    }

    /// Whether more is to be set aside.
    async fn set_aside(&mut self) -> Result<bool, StoreError> {
        let rows = self.send(Verb::SetAside, vec![Box::new(SPAN)]).await?;
        rows.first().map_or(Ok(false), |row| column(row, 0, "whether there is more"))
    }

    async fn sweep(&mut self, limit: u32) -> Result<Batch, StoreError> {
        let given: Vec<Parameter<'_>> = vec![Box::new(i64::from(limit))];
        let rows = self.send(Verb::Sweep, given).await?;
        let row = rows.first().ok_or_else(|| damaged("a count"))?;
        let count = |at| column::<i64>(row, at, "a count");
        let [done, due] = [count(0)?, count(1)?].map(|n| u32::try_from(n).unwrap_or(u32::MAX));
        Ok(Batch { done, more: batch(due, limit).more })
    }

    async fn epoch(&mut self) -> Result<Epoch, StoreError> {
        let rows = self.read(Verb::Epoch, Vec::new()).await?;
        let row = rows.first().ok_or_else(|| damaged("the epoch"))?;
        let epoch: i64 = column(row, 0, "the epoch")?;
        self.house.recognise(column(row, 1, "the store's name")?)?;
        self.follow_timeline().await?;
        Ok(Epoch(u64::try_from(epoch).map_err(|_| damaged("the epoch"))?))
    }

    async fn metadata(&mut self, prefix: &str) -> Result<Vec<(Box<str>, Bytes)>, StoreError> {
        let limit = i64::try_from(METADATA_ENTRIES_MAX).unwrap_or(i64::MAX);
        let rows = self.read(Verb::Metadata, vec![Box::new(prefix), Box::new(limit)]).await?;
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
            Some(value) => self.send(Verb::SetMetadata, vec![name, Box::new(value)]).await,
            None => self.send(Verb::RemoveMetadata, vec![name]).await,
        }
        .map(drop)
    }

    /// A connection of our own ends when its server does. One to a pooler stays when the server
    /// behind it is replaced by another.
    async fn follow_timeline(&mut self) -> Result<(), StoreError> {
        let Some(session) = self.session.as_ref().filter(|session| !session.named) else {
            return Ok(());
        };
        if session.timeline.is_none() {
            return Ok(());
        }
        let read = Timeline::read(&session.client);
        let read = timeout(PATIENCE, read).await.ok().and_then(Result::ok).flatten();
        read.map_or(Ok(()), |found| self.house.follow(session, found))
    }

    /// The act and the raised epoch are one transaction: a cache that has read the new epoch reads
    /// the new record.
    async fn resolve(
        &mut self,
        digest: Digest,
        seen: Fence,
        resolution: &Resolution,
    ) -> Result<Resolved, StoreError> {
        let (verb, state) = match resolution {
            Resolution::Completed(_) => (Verb::Resolve, StateName::Completed),
            Resolution::Released => (Verb::Resolve, StateName::Released),
            Resolution::Deleted(state) => (Verb::Delete, *state),
        };
        let mut given: Vec<Parameter<'_>> =
            vec![Box::new(digest), Box::new(number(seen)), Box::new(state.as_str())];
        let answer = match resolution {
            Resolution::Completed(answer) => Some(answer.as_bytes().as_ref()),
            Resolution::Released | Resolution::Deleted(_) => None,
        };
        if verb == Verb::Resolve {
            given.push(Box::new(answer as Option<&[u8]>));
            given.push(Box::new(Reason::Resolved.to_string()));
        }
        self.with(async |session| {
            let work = async {
                let applied = !session.query(verb, given).await?.is_empty();
                if applied {
                    session.query(Verb::Raise, Vec::new()).await?;
                }
                Ok(if applied { Resolved::Applied } else { Resolved::Stale })
            };
            transaction(session, work).await
        })
        .await
    }

    async fn list(&mut self, query: &ListQuery) -> Result<Page, StoreError> {
        let listing = Listing::of(query);
        let (verb, given) = (listing.verb(), listing.parameters(query));
        let rows = if listing.needs_planning() {
            self.send(verb, given).await?
        } else {
            self.read(verb, given).await?
        };
        listing.page(query, &rows)
    }
}

/// Does something as one transaction, which a session begins that need not be ours.
async fn transaction<T>(
    session: &Session,
    work: impl Future<Output = Result<T, Error>>,
) -> Result<T, Error> {
    let acted = async {
        session.run(BEGIN_POOLED).await?;
        if !session.named {
            session.run(PLAN_POOLED).await?;
        }
        work.await
    };
    let acted = acted.await;
    let ended = session.run(if acted.is_ok() { "COMMIT" } else { "ROLLBACK" }).await;
    acted.and_then(|told| ended.map(|_| told))
}
