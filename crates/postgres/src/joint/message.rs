//! Several statements in one message, which the server answers with one packet: what begins an
//! operation, and what ends it. Every packet wakes a process on either side, and that costs more
//! than most statements do.
//!
//! Such a message is text. Its statements are named ones of the connection, which are made where
//! they are missed, and what they are given is written as literals.

use std::{fmt::Write as _, sync::LazyLock};

use data_encoding::HEXLOWER;
use sha2::{Digest as _, Sha256};
use tokio_postgres::{
    Error, SimpleQueryMessage,
    error::{DbError, SqlState},
};

use super::{
    PgTransaction,
    row::{Held, Name, Values},
};

/// The largest answer that goes as text, twice as long: reading that takes a larger one as much
/// time as a message of its own.
pub(super) const ANSWER_BYTES_MAX: usize = 4096;

const LOCK: &str = include_str!("lock.sql");
const FOUND: &str = include_str!("found.sql");
const RECORD: &str = include_str!("record.sql");

static NAMED: LazyLock<Named> = LazyLock::new(Named::new);

/// The statements of a connection.
struct Named {
    lock: String,
    found: String,
    record: String,
    /// What makes them all.
    make: String,
}

impl Named {
    /// Under names that no other text has: behind a pooler, another version of this program may
    /// have made its own on the same connection.
    fn new() -> Self {
        let texts = [LOCK, FOUND, RECORD].concat();
        let mut mark = String::new();
        hex(&mut mark, &Sha256::digest(texts));
        mark.truncate(8);
        let [lock, found, record] =
            ["lock", "found", "record"].map(|what| format!("semel_joint_{what}_{mark}"));
        let make = format!(
            "PREPARE {lock} (bigint) AS {LOCK}; \
             PREPARE {found} (uuid) AS {FOUND}; \
             PREPARE {record} \
             (uuid, text, text, text, bytea, bigint, bigint, bytea, bigint, bigint) AS {RECORD}; "
        );
        Self { lock, found, record, make }
    }
}

/// What somebody met who asked for the lock.
#[derive(Debug)]
pub(super) struct Met {
    /// The lock, if it was taken.
    pub(super) held: Option<Held>,
    /// Whether the record that is there is past its retention.
    pub(super) expired: Option<bool>,
}

/// Begins, asks for the lock, and then for the record. `again` undoes what is open before.
pub(super) async fn begin(client: &PgTransaction, again: bool, name: &Name) -> Result<Met, Error> {
    let make = client.is_new() && !again;
    let mut answer = client.simple_query(&beginning(again, make, name)).await;
    // Somebody has made the statements go, or used the connection before us; or it is new to its
    // pool, and not to a pooler behind that.
    for _ in 0..2 {
        let make = match answer.as_ref().err().and_then(Error::as_db_error).map(DbError::code) {
            Some(&SqlState::INVALID_SQL_STATEMENT_NAME) => true,
            Some(&SqlState::DUPLICATE_PSTATEMENT) => false,
            _ => break,
        };
        answer = client.simple_query(&beginning(true, make, name)).await;
    }
    answer.map(|answer| met(&answer))
}

fn beginning(again: bool, make: bool, name: &Name) -> String {
    let Named { lock, found, make: making, .. } = &*NAMED;
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
    let number = |text: Option<&str>| text.and_then(|text| text.parse().ok());
    let held = rows
        .next()
        .and_then(|row| Some(Held { own: number(row.get(0))?, home: number(row.get(1))? }));
    let expired = rows.next().map(|row| row.get(0) == Some("t"));
    Met { held, expired }
}

/// Adds the record and commits. A record that is refused ends the message, so that the commit is
/// not reached; and where it was added, nothing has failed that would make a commit a rollback.
pub(super) async fn commit(client: &PgTransaction, values: &Values<'_>) -> Result<(), Error> {
    client.batch_execute(&ending(values)).await
}

/// The same, and begins for somebody else. An error may have come before or after the commit.
pub(super) async fn commit_and_begin(
    client: &PgTransaction,
    values: &Values<'_>,
    next: &Name,
) -> Result<Met, Error> {
    let text = ending(values) + "; " + &beginning(false, false, next);
    client.simple_query(&text).await.map(|answer| met(&answer))
}

fn ending(values: &Values<'_>) -> String {
    let Values { digest, scope, caller, key, fingerprint, fence, held, answer, retention } = values;
    let Held { own, home } = held;
    let literals = 2 * (fingerprint.len() + answer.len()) + scope.len() + caller.len() + key.len();
    let mut text = String::with_capacity(literals + 200);
    let _ = write!(text, "EXECUTE {}('", NAMED.record);
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
    let _ = write!(text, "',{retention},{home}); COMMIT");
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

    #[test]
    fn every_statement_is_made_under_the_name_that_it_is_asked_for_by() {
        let Named { lock, found, record, make } = Named::new();
        for name in [lock, found, record] {
            assert!(make.contains(&format!("PREPARE {name} (")), "{name}");
            assert!(name.len() < 64, "the server would cut it off");
        }
    }
}
