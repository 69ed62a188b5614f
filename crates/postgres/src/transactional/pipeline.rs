//! Begins and commits operations in one round trip each: statements with bound parameters, sent
//! together.

use std::{future::poll_fn, pin::pin, task::Poll};

use tokio::join;
use tokio_postgres::{
    Error, Row,
    error::{DbError, SqlState},
    types::Type,
};

use super::{
    PgTransaction,
    row::{RecordKey, RecordValues, TypedSql},
    statements::TableStatements,
};

static SESSION_LOCK: TypedSql =
    TypedSql::new("SELECT pg_catalog.pg_try_advisory_lock($1)", &[Type::INT8]);
static SESSION_UNLOCK: TypedSql =
    TypedSql::new("SELECT pg_catalog.pg_advisory_unlock($1)", &[Type::INT8]);

/// The replies to the statements that begin an operation.
#[derive(Debug)]
pub(super) struct BeginReply {
    /// The reply to the attempt to take the lock.
    pub(super) lock: Vec<Row>,
    /// The record, if there is one.
    pub(super) record: Vec<Row>,
}

impl BeginReply {
    fn of(
        begun: Result<(), Error>,
        lock: Result<Vec<Row>, Error>,
        record: Result<Vec<Row>, Error>,
    ) -> Result<Self, Error> {
        begun?;
        Ok(Self { lock: lock?, record: record? })
    }
}

/// Begins, tries the lock, and reads the record. `again` rolls an open transaction back first.
pub(super) async fn begin(
    client: &PgTransaction,
    again: bool,
    record: &RecordKey,
) -> Result<BeginReply, Error> {
    let reply = try_begin(client, again, record).await;
    let code = reply.as_ref().err().and_then(Error::as_db_error).map(DbError::code);
    if code != Some(&SqlState::INVALID_SQL_STATEMENT_NAME) {
        return reply;
    }
    // The session was reset, and has none of the statements in the cache of its connection.
    client.statement_cache.clear();
    client.batch_execute("ROLLBACK").await?;
    try_begin(client, false, record).await
}

async fn try_begin(
    client: &PgTransaction,
    again: bool,
    record: &RecordKey,
) -> Result<BeginReply, Error> {
    let TableStatements { lock, read, .. } = client.statements();
    client.prepare_all().await?;
    let begin = if again { "ROLLBACK; BEGIN" } else { "BEGIN" };
    let (key, digest) = (record.lock(), record.digest());
    let (begun, locked, found) = join!(biased;
        client.batch_execute(begin),
        client.query_prepared(lock, &key),
        client.query_prepared(read, &digest),
    );
    BeginReply::of(begun, locked, found)
}

/// Begins again with a snapshot that is younger than the lock of the open transaction.
///
/// Above read committed, a transaction keeps the snapshot of its first statement, which is the one
/// that takes the lock: it would miss a record that is committed between the two. So the session
/// takes the lock as well, keeps it while the transaction begins again, and releases it once the
/// new transaction has it.
pub(super) async fn begin_locked(
    client: &PgTransaction,
    record: &RecordKey,
) -> Result<BeginReply, Error> {
    let TableStatements { lock, read, .. } = client.statements();
    let (key, digest) = (record.lock(), record.digest());
    let (kept, begun, locked, released, found) = join!(biased;
        client.try_query_rows(&SESSION_LOCK, &key),
        client.batch_execute("ROLLBACK; BEGIN"),
        client.query_prepared(lock, &key),
        client.try_query_rows(&SESSION_UNLOCK, &key),
        client.query_prepared(read, &digest),
    );
    BeginReply::of(kept.and(begun), locked, released.and(found))
}

/// Inserts the record and commits. An insert that fails makes the server roll the transaction back
/// at COMMIT; if the insert cannot be sent, no COMMIT follows.
pub(super) async fn commit(
    transaction: &PgTransaction,
    values: &RecordValues<'_>,
) -> Result<(), Error> {
    let values = values.all();
    let insert = transaction.query_prepared(&transaction.statements().record, &values);
    let mut recording = pin!(insert);
    let sent = poll_fn(|context| Poll::Ready(recording.as_mut().poll(context))).await;
    let (recorded, committed) = match sent {
        Poll::Ready(Err(error)) => return Err(error),
        Poll::Ready(recorded @ Ok(_)) => (recorded, transaction.batch_execute("COMMIT").await),
        Poll::Pending => join!(biased; recording, transaction.batch_execute("COMMIT")),
    };
    recorded.and(committed)
}
