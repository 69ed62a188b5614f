//! What a relay does in SQLite.

use std::{
    fmt,
    path::Path,
    sync::{Arc, Mutex, PoisonError},
    time::Duration,
};

use async_trait::async_trait;
use rusqlite::{Connection, OptionalExtension as _, Row, Transaction, TransactionBehavior};
use tokio::task::spawn_blocking;
use uuid::Uuid;

use super::{SCHEMA, count, id, sqlite_error};
use crate::{AsideAttempt, AsideLane, AsideMessage, LEASE, OutboxError, OutboxMessage, RelayStore};

/// Messages of one batch.
const BATCH_MAX: i64 = 500;

/// Delivered messages that one sweep deletes.
const SWEEP_MAX: i64 = 5_000;

/// How long a write waits for another process that writes.
const BUSY_TIMEOUT: Duration = Duration::from_secs(5);

/// Milliseconds since 1970, by the clock of the database. A step of the wall clock can make two
/// relays deliver at once, which repeats messages and keeps their order.
const NOW: &str = "CAST(unixepoch('subsec') * 1000 AS INTEGER)";

/// The relay's side of the outbox in a SQLite file.
pub struct SqliteOutbox {
    connection: Arc<Mutex<Connection>>,
    owner: String,
    retention: Duration,
    lease: Duration,
    owned: Option<Owned>,
    /// The last number of the last fetch.
    fetched: Option<i64>,
}

#[derive(Clone, Copy, Debug)]
struct Owned {
    fence: i64,
    position: i64,
}

impl SqliteOutbox {
    /// Opens a database file, and creates the tables of the outbox in it.
    ///
    /// # Errors
    ///
    /// If SQLite refuses.
    pub fn open(path: impl AsRef<Path>) -> Result<Self, OutboxError> {
        let open = || {
            let connection = Connection::open(path)?;
            connection.busy_timeout(BUSY_TIMEOUT)?;
            // A saved cursor may be lost with the power: the messages are then delivered again.
            connection.execute_batch("PRAGMA journal_mode = WAL; PRAGMA synchronous = NORMAL")?;
            connection.execute_batch(SCHEMA)?;
            Ok(connection)
        };
        Ok(Self {
            connection: Arc::new(Mutex::new(open().map_err(sqlite_error)?)),
            owner: Uuid::new_v4().to_string(),
            retention: Duration::from_hours(1),
            lease: LEASE,
            owned: None,
            fetched: None,
        })
    }

    /// How long delivered messages are kept at least, instead of an hour.
    #[must_use]
    pub const fn retention(mut self, retention: Duration) -> Self {
        self.retention = retention;
        self
    }

    /// How long the relay may stay silent before another one takes over, instead of [`LEASE`].
    #[must_use]
    pub const fn with_lease(mut self, lease: Duration) -> Self {
        self.lease = lease;
        self
    }

    /// Runs one write transaction on a thread that may wait for the disk.
    async fn write<T: Send + 'static>(
        &self,
        work: impl FnOnce(&Transaction<'_>) -> rusqlite::Result<T> + Send + 'static,
    ) -> Result<T, OutboxError> {
        let shared = Arc::clone(&self.connection);
        let written = spawn_blocking(move || {
            let mut connection = shared.lock().unwrap_or_else(PoisonError::into_inner);
            let transaction =
                connection.transaction_with_behavior(TransactionBehavior::Immediate)?;
            let done = work(&transaction)?;
            transaction.commit()?;
            Ok(done)
        });
        written
            .await
            .map_err(|error| OutboxError::because("the task ended", error))?
            .map_err(sqlite_error)
    }

    /// Reads on a thread that may wait for the disk.
    async fn read<T: Send + 'static>(
        &self,
        work: impl FnOnce(&Connection) -> rusqlite::Result<T> + Send + 'static,
    ) -> Result<T, OutboxError> {
        let shared = Arc::clone(&self.connection);
        let read =
            spawn_blocking(move || work(&shared.lock().unwrap_or_else(PoisonError::into_inner)));
        read.await
            .map_err(|error| OutboxError::because("the task ended", error))?
            .map_err(sqlite_error)
    }
}

fn message(row: &Row<'_>) -> rusqlite::Result<OutboxMessage> {
    Ok(OutboxMessage {
        number: row.get("number")?,
        bucket: 0,
        id: id(row)?,
        topic: row.get("topic")?,
        key: row.get("key")?,
        payload: row.get("payload")?,
        age: Duration::from_millis(count(row, "age")?),
    })
}

fn lane(row: &Row<'_>) -> rusqlite::Result<AsideLane> {
    Ok(AsideLane {
        bucket: 0,
        lane: row.get("lane")?,
        attempts: row.get("attempts")?,
        due: Duration::from_millis(count(row, "due")?),
        parked: row.get("parked")?,
        messages: count(row, "messages")?,
    })
}

fn milliseconds(duration: Duration) -> i64 {
    i64::try_from(duration.as_millis()).unwrap_or(i64::MAX)
}

#[async_trait]
impl RelayStore for SqliteOutbox {
    fn lease(&self) -> Duration {
        self.lease
    }

    async fn balance(&mut self) -> Result<usize, OutboxError> {
        let (owner, lease, known) = (self.owner.clone(), milliseconds(self.lease), self.owned);
        self.fetched = None;
        let take = move |transaction: &Transaction<'_>| {
            let sql = format!(
                "UPDATE semel_outbox_relay SET lease_until = {NOW} + ?2,
                    fence = fence + (owner IS NOT ?1), owner = ?1
                WHERE owner = ?1 OR owner IS NULL OR lease_until < {NOW}
                RETURNING fence, position"
            );
            let owned = |row: &Row<'_>| Ok(Owned { fence: row.get(0)?, position: row.get(1)? });
            transaction.prepare_cached(&sql)?.query_row((owner, lease), owned).optional()
        };
        let found = self.write(take).await?;
        // What is in memory is as far as what is saved, or further.
        self.owned = found.map(|found| known.filter(|it| it.fence == found.fence).unwrap_or(found));
        Ok(usize::from(self.owned.is_some()))
    }

    async fn renew(&mut self) -> Result<(), OutboxError> {
        let (owner, lease) = (self.owner.clone(), milliseconds(self.lease));
        let sql =
            format!("UPDATE semel_outbox_relay SET lease_until = {NOW} + ?2 WHERE owner = ?1");
        self.write(move |transaction| transaction.execute(&sql, (owner, lease)).map(drop)).await
    }

    async fn fetch(&mut self) -> Result<Vec<OutboxMessage>, OutboxError> {
        let Some(Owned { position, .. }) = self.owned else { return Ok(Vec::new()) };
        let sql = format!(
            "SELECT *, max(0, {NOW} - sent_at) AS age FROM semel_outbox_message
            WHERE number > ?1 ORDER BY number LIMIT ?2"
        );
        let read = move |connection: &Connection| {
            let mut statement = connection.prepare_cached(&sql)?;
            statement.query_map([position, BATCH_MAX], message)?.collect::<Result<Vec<_>, _>>()
        };
        let messages = self.read(read).await?;
        self.fetched = messages.last().map(|message| message.number);
        Ok(messages)
    }

    fn advance(&mut self) {
        if let (Some(number), Some(owned)) = (self.fetched.take(), &mut self.owned) {
            owned.position = number;
        }
    }

    async fn save(&mut self, aside: Vec<AsideMessage>) -> Result<(), OutboxError> {
        let Some(Owned { fence, position }) = self.owned else { return Ok(()) };
        let (owner, lease) = (self.owner.clone(), milliseconds(self.lease));
        let save = move |transaction: &Transaction<'_>| {
            let sql = format!(
                "UPDATE semel_outbox_relay SET position = ?3, lease_until = {NOW} + ?4
                WHERE owner = ?1 AND fence = ?2"
            );
            if transaction.execute(&sql, (owner, fence, position, lease))? == 0 {
                return Ok(false);
            }
            for AsideMessage { message, failed } in &aside {
                insert_aside(transaction, message, failed.as_ref())?;
            }
            Ok(true)
        };
        if !self.write(save).await? {
            self.owned = None;
        }
        Ok(())
    }

    async fn lanes(&mut self) -> Result<Vec<AsideLane>, OutboxError> {
        if self.owned.is_none() {
            return Ok(Vec::new());
        }
        // The other columns of a group with a minimum are those of its row.
        let sql = format!(
            "SELECT min(number), lane, attempts, parked, max(0, due_at - {NOW}) AS due,
                count(*) AS messages
            FROM semel_outbox_aside GROUP BY lane"
        );
        let read = move |connection: &Connection| {
            let mut statement = connection.prepare_cached(&sql)?;
            statement.query_map([], lane)?.collect::<Result<Vec<_>, _>>()
        };
        self.read(read).await
    }

    async fn head(
        &mut self,
        _: i16,
        name: &str,
    ) -> Result<Option<(OutboxMessage, AsideLane)>, OutboxError> {
        let name = name.to_owned();
        let sql = format!(
            "SELECT *, max(0, {NOW} - sent_at) AS age, 0 AS due, 0 AS messages
            FROM semel_outbox_aside WHERE lane = ?1 ORDER BY number LIMIT 1"
        );
        let read = move |connection: &Connection| {
            let mut statement = connection.prepare_cached(&sql)?;
            statement.query_row([name], |row| Ok((message(row)?, lane(row)?))).optional()
        };
        self.read(read).await
    }

    async fn settle(&mut self, number: i64) -> Result<(), OutboxError> {
        let sql = "DELETE FROM semel_outbox_aside WHERE number = ?1";
        self.write(move |transaction| transaction.execute(sql, [number]).map(drop)).await
    }

    async fn defer(&mut self, failed: &AsideAttempt) -> Result<(), OutboxError> {
        let AsideAttempt { number, attempts, delay, parked, reason } = failed.clone();
        let sql = format!(
            "UPDATE semel_outbox_aside
            SET attempts = ?2, due_at = {NOW} + ?3, parked = ?4, reason = ?5 WHERE number = ?1"
        );
        let values = (number, attempts, milliseconds(delay), parked, reason);
        self.write(move |transaction| transaction.execute(&sql, values).map(drop)).await
    }

    async fn sweep(&mut self) -> Result<(), OutboxError> {
        if self.owned.is_none() {
            return Ok(());
        }
        let sql = format!(
            "DELETE FROM semel_outbox_message WHERE number IN (
                SELECT number FROM semel_outbox_message
                WHERE number <= (SELECT position FROM semel_outbox_relay)
                    AND sent_at < {NOW} - ?1
                ORDER BY number LIMIT ?2)"
        );
        let values = (milliseconds(self.retention), SWEEP_MAX);
        self.write(move |transaction| transaction.execute(&sql, values).map(drop)).await
    }

    async fn release(&mut self) -> Result<(), OutboxError> {
        self.owned = None;
        let owner = self.owner.clone();
        let sql = "UPDATE semel_outbox_relay SET owner = NULL, lease_until = 0 WHERE owner = ?1";
        self.write(move |transaction| transaction.execute(sql, [owner]).map(drop)).await
    }

    fn reset(&mut self) {
        self.owned = None;
        self.fetched = None;
    }
}

fn insert_aside(
    transaction: &Transaction<'_>,
    message: &OutboxMessage,
    failed: Option<&AsideAttempt>,
) -> rusqlite::Result<()> {
    let sql = format!(
        "INSERT OR IGNORE INTO semel_outbox_aside
        VALUES (?1, ?2, ?3, ?4, ?5, ?6, {NOW} - ?7, ?8, {NOW} + ?9, ?10, ?11)"
    );
    let delay = failed.map_or(0, |failed| milliseconds(failed.delay));
    let values = (
        message.number,
        message.lane(),
        message.id.to_string(),
        &message.topic,
        &message.key,
        &message.payload,
        milliseconds(message.age),
        failed.map_or(0, |failed| failed.attempts),
        delay,
        failed.is_some_and(|failed| failed.parked),
        failed.map(|failed| failed.reason.as_str()),
    );
    transaction.prepare_cached(&sql)?.execute(values).map(drop)
}

impl fmt::Debug for SqliteOutbox {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("SqliteOutbox")
            .field("owner", &self.owner)
            .field("owned", &self.owned)
            .finish_non_exhaustive()
    }
}
