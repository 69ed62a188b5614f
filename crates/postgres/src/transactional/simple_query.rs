//! Begins and commits operations with one simple-query message each, to which the server replies
//! with one packet. Every packet wakes a process on either side, which costs more than most
//! statements.
//!
//! The message executes prepared statements of the connection, which are prepared again if they are
//! missing. Parameters are written as literals.

use std::fmt::Write as _;

use data_encoding::HEXLOWER;
use tokio_postgres::{
    Error, SimpleQueryMessage,
    error::{DbError, SqlState},
};

use super::{
    PgTransaction,
    row::{RecordKey, RecordValues},
    statements::TableStatements,
};

/// The largest answer that is sent as text. Text doubles its length; parsing a larger one takes as
/// long as a message of its own.
pub(super) const ANSWER_BYTES_MAX: usize = 4096;

/// The reply to the message that begins an operation.
#[derive(Debug)]
pub(super) struct BeginReply {
    /// The id of the transaction, if it got the lock.
    pub(super) transaction_id: Option<i64>,
    /// The fence of that transaction.
    pub(super) fence: i64,
    /// Whether the snapshot is younger than the lock.
    pub(super) current: bool,
    /// Whether the record is past its retention; `None` if there is no record.
    pub(super) expired: Option<bool>,
}

/// Begins, tries the lock, and looks up the record. `again` rolls an open transaction back first.
pub(super) async fn begin(
    client: &PgTransaction,
    again: bool,
    record: &RecordKey,
) -> Result<BeginReply, Error> {
    let prepare = client.is_new() && !again;
    let mut answer =
        client.simple_query(&begin_text(client.statements(), again, prepare, record)).await;
    // The statements were deallocated, or they exist although the connection is new to its pool: a
    // hook or a pooler behind it may have used the session before.
    for _ in 0..2 {
        let prepare = match answer.as_ref().err().and_then(Error::as_db_error).map(DbError::code) {
            Some(&SqlState::INVALID_SQL_STATEMENT_NAME) => true,
            Some(&SqlState::DUPLICATE_PSTATEMENT) => false,
            _ => break,
        };
        answer = client.simple_query(&begin_text(client.statements(), true, prepare, record)).await;
    }
    answer.map(|answer| begin_reply(&answer))
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
    let TableStatements { lock, lookup, .. } = client.statements();
    let key = record.lock;
    // Neither condition holds, so neither statement returns a row.
    let mut text = format!(
        "SELECT WHERE NOT pg_catalog.pg_try_advisory_lock({key}); ROLLBACK; BEGIN; \
         EXECUTE {lock}({key}); SELECT WHERE NOT pg_catalog.pg_advisory_unlock({key}); \
         EXECUTE {lookup}('"
    );
    hex(&mut text, &record.digest.0);
    text.push_str("')");
    client.simple_query(&text).await.map(|answer| begin_reply(&answer))
}

fn begin_text(
    statements: &TableStatements,
    again: bool,
    prepare: bool,
    record: &RecordKey,
) -> String {
    let TableStatements { lock, lookup, prepare: preparation, .. } = statements;
    let begin = if again { "ROLLBACK; BEGIN" } else { "BEGIN" };
    let preparation = if prepare { preparation } else { "" };
    let mut text =
        format!("{begin}; {preparation}EXECUTE {lock}({}); EXECUTE {lookup}('", record.lock);
    hex(&mut text, &record.digest.0);
    text.push_str("')");
    text
}

fn begin_reply(answer: &[SimpleQueryMessage]) -> BeginReply {
    let mut rows = answer.iter().filter_map(|message| match message {
        SimpleQueryMessage::Row(row) => Some(row),
        SimpleQueryMessage::CommandComplete(_) | SimpleQueryMessage::RowDescription(_) | _ => None,
    });
    let lock = rows.next();
    let number = |at| lock.and_then(|row| row.get(at)).and_then(|number| number.parse().ok());
    let (transaction_id, fence) = (number(0), number(1).unwrap_or(0));
    let current = lock.and_then(|row| row.get(2)) == Some("t");
    let expired = rows.next().map(|row| row.get(0) == Some("t"));
    BeginReply { transaction_id, fence, current, expired }
}

/// Inserts the record and commits. If the insert fails, the server skips the rest of the message
/// and does not commit; if it succeeds, the transaction has not failed before.
pub(super) async fn commit(client: &PgTransaction, values: &RecordValues<'_>) -> Result<(), Error> {
    client.batch_execute(&commit_text(client.statements(), values)).await
}

/// The same, and begins the transaction of the next operation. An error may have come before or
/// after the commit.
pub(super) async fn commit_and_begin(
    client: &PgTransaction,
    values: &RecordValues<'_>,
    next: &RecordKey,
) -> Result<BeginReply, Error> {
    let text = commit_text(client.statements(), values)
        + "; "
        + &begin_text(client.statements(), false, false, next);
    client.simple_query(&text).await.map(|answer| begin_reply(&answer))
}

fn commit_text(statements: &TableStatements, values: &RecordValues<'_>) -> String {
    let RecordValues {
        digest,
        scope,
        caller,
        key,
        fingerprint,
        fence,
        transaction_id,
        answer,
        retention,
    } = values;
    let literals = 2 * (fingerprint.len() + answer.len()) + scope.len() + caller.len() + key.len();
    let mut text = String::with_capacity(literals + 200);
    let _ = write!(text, "EXECUTE {}('", statements.record);
    hex(&mut text, &digest.0);
    text.push('\'');
    for part in [scope, caller, key] {
        text.push(',');
        quote(&mut text, part);
    }
    text.push_str(",E'\\\\x");
    hex(&mut text, fingerprint);
    let _ = write!(text, "',{fence},{transaction_id},E'\\\\x");
    hex(&mut text, answer);
    let _ = write!(text, "',{retention}); COMMIT");
    text
}

/// Writes a literal that does not depend on `standard_conforming_strings`.
fn quote(text: &mut String, part: &str) {
    text.push_str("E'");
    for char in part.chars() {
        if matches!(char, '\'' | '\\') {
            text.push(char);
        }
        text.push(char);
    }
    text.push('\'');
}

fn hex(text: &mut String, bytes: &[u8]) {
    HEXLOWER.encode_append(bytes, text);
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn quotes_and_backslashes_are_escaped() {
        let quoted = |part| {
            let mut text = String::new();
            quote(&mut text, part);
            text
        };
        assert_eq!(quoted("merchant-71"), "E'merchant-71'");
        assert_eq!(quoted(r"o'b\'; COMMIT --"), r"E'o''b\\''; COMMIT --'");
        assert_eq!(quoted("größe €"), "E'größe €'");
    }

    #[test]
    fn bytes_are_written_in_hexadecimal() {
        let mut text = String::new();
        hex(&mut text, &[0, 0x0f, 0xa5, 0xff]);
        assert_eq!(text, "000fa5ff");
    }
}
