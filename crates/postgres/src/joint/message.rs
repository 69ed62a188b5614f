//! Several statements in one message, which the server answers with one packet: what begins an
//! operation, and what ends it. Every packet wakes a process on either side, and that costs more
//! than most statements do.
//!
//! Such a message is text. Its statements are named ones of the connection, which are made where
//! they are missed, and what they are given is written as literals.

use std::fmt::Write as _;

use data_encoding::HEXLOWER;
use tokio_postgres::{
    Error, SimpleQueryMessage,
    error::{DbError, SqlState},
};

use super::{
    PgTransaction,
    row::{Name, Values},
    statements::Statements,
};

/// The largest answer that goes as text, twice as long: reading that takes a larger one as much
/// time as a message of its own.
pub(super) const ANSWER_BYTES_MAX: usize = 4096;

/// What somebody met who asked for the lock.
#[derive(Debug)]
pub(super) struct Met {
    /// The number of the transaction, if it has the lock.
    pub(super) own: Option<i64>,
    /// The fence of that transaction.
    pub(super) fence: i64,
    /// Whether the record was looked for in a snapshot that is younger than the lock.
    pub(super) current: bool,
    /// Whether the record that is there is past its retention.
    pub(super) expired: Option<bool>,
}

/// Begins, asks for the lock, and then for the record. `again` undoes what is open before.
pub(super) async fn begin(client: &PgTransaction, again: bool, name: &Name) -> Result<Met, Error> {
    let make = client.is_new() && !again;
    let mut answer = client.simple_query(&beginning(client.statements(), again, make, name)).await;
    // Somebody has made the statements go, or used the connection before us; or it is new to its
    // pool, and not to a pooler behind that.
    for _ in 0..2 {
        let make = match answer.as_ref().err().and_then(Error::as_db_error).map(DbError::code) {
            Some(&SqlState::INVALID_SQL_STATEMENT_NAME) => true,
            Some(&SqlState::DUPLICATE_PSTATEMENT) => false,
            _ => break,
        };
        answer = client.simple_query(&beginning(client.statements(), true, make, name)).await;
    }
    answer.map(|answer| met(&answer))
}

/// Begins again in a snapshot that is younger than the lock, which the open transaction has.
///
/// Above read committed, a transaction has the snapshot of its first statement, and that is the one
/// that takes the lock: a record that is committed between the two would not be seen. So the
/// session takes the lock as well, keeps it while the transaction is begun again, and gives it up
/// once the new transaction has it.
pub(super) async fn begin_locked(client: &PgTransaction, name: &Name) -> Result<Met, Error> {
    let Statements { lock, found, .. } = client.statements();
    let key = name.lock;
    // Neither of the conditions holds, so that neither statement returns a row.
    let mut text = format!(
        "SELECT WHERE NOT pg_catalog.pg_try_advisory_lock({key}); ROLLBACK; BEGIN; \
         EXECUTE {lock}({key}); SELECT WHERE NOT pg_catalog.pg_advisory_unlock({key}); \
         EXECUTE {found}('"
    );
    hex(&mut text, &name.digest.0);
    text.push_str("')");
    client.simple_query(&text).await.map(|answer| met(&answer))
}

fn beginning(statements: &Statements, again: bool, make: bool, name: &Name) -> String {
    let Statements { lock, found, make: making, .. } = statements;
    let begin = if again { "ROLLBACK; BEGIN" } else { "BEGIN" };
    let making = if make { making } else { "" };
    let mut text = format!("{begin}; {making}EXECUTE {lock}({}); EXECUTE {found}('", name.lock);
    hex(&mut text, &name.digest.0);
    text.push_str("')");
    text
}

fn met(answer: &[SimpleQueryMessage]) -> Met {
    let mut rows = answer.iter().filter_map(|message| match message {
        SimpleQueryMessage::Row(row) => Some(row),
        SimpleQueryMessage::CommandComplete(_) | SimpleQueryMessage::RowDescription(_) | _ => None,
    });
    let lock = rows.next();
    let number = |at| lock.and_then(|row| row.get(at)).and_then(|number| number.parse().ok());
    let (own, fence) = (number(0), number(1).unwrap_or(0));
    let current = lock.and_then(|row| row.get(2)) == Some("t");
    let expired = rows.next().map(|row| row.get(0) == Some("t"));
    Met { own, fence, current, expired }
}

/// Adds the record and commits. A record that is refused ends the message, so that the commit is
/// not reached; and where it was added, nothing has failed that would make a commit a rollback.
pub(super) async fn commit(client: &PgTransaction, values: &Values<'_>) -> Result<(), Error> {
    client.batch_execute(&ending(client.statements(), values)).await
}

/// The same, and begins for somebody else. An error may have come before or after the commit.
pub(super) async fn commit_and_begin(
    client: &PgTransaction,
    values: &Values<'_>,
    next: &Name,
) -> Result<Met, Error> {
    let text = ending(client.statements(), values)
        + "; "
        + &beginning(client.statements(), false, false, next);
    client.simple_query(&text).await.map(|answer| met(&answer))
}

fn ending(statements: &Statements, values: &Values<'_>) -> String {
    let Values { digest, scope, caller, key, fingerprint, fence, own, answer, retention } = values;
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
    let _ = write!(text, "',{fence},{own},E'\\\\x");
    hex(&mut text, answer);
    let _ = write!(text, "',{retention}); COMMIT");
    text
}

/// A literal that means the same whatever `standard_conforming_strings` says.
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
    fn a_literal_ends_where_its_text_ends() {
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
    fn bytes_are_written_as_the_database_reads_them() {
        let mut text = String::new();
        hex(&mut text, &[0, 0x0f, 0xa5, 0xff]);
        assert_eq!(text, "000fa5ff");
    }
}
