//! The statements of a store, with the qualified name of its table. The table is looked up once; a
//! `search_path` that an operation sets later does not change it.

use data_encoding::HEXLOWER;
use sha2::{Digest as _, Sha256};

use super::row::{DROP, READ, RECORD, SWEEP, TypedSql};

const LOCK: &str = include_str!("named/lock.sql");
static LOOKUP: TypedSql = TypedSql::new(include_str!("named/lookup.sql"), READ.types);
static ADD: TypedSql = TypedSql::new(include_str!("named/record.sql"), RECORD.types);

/// Looks up the qualified name of the table.
pub(super) const TABLE_NAME: &str = include_str!("table_name.sql");

#[derive(Debug)]
pub(super) struct TableStatements {
    /// The names of the statements that are prepared on each connection.
    pub(super) lock: String,
    pub(super) lookup: String,
    pub(super) record: String,
    /// The text that prepares them.
    pub(super) prepare: String,
    /// Unnamed statements: a named one may be deallocated, and is prepared again only at the begin
    /// of an operation.
    pub(super) read: TypedSql,
    pub(super) add: TypedSql,
    pub(super) drop: TypedSql,
    pub(super) sweep: TypedSql,
}

impl TableStatements {
    /// For the table of this name.
    pub(super) fn of(table: &str) -> Self {
        let [lookup, add, read, drop, sweep] =
            [&LOOKUP, &ADD, &READ, &DROP, &SWEEP].map(|sql| sql.on(table));
        // The names contain a hash of the text: behind a pooler, another version of this program
        // may have prepared its own statements on the same session.
        let mut hash = HEXLOWER.encode(&Sha256::digest([LOCK, &lookup.text, &add.text].concat()));
        hash.truncate(8);
        let [lock_name, lookup_name, record_name] =
            ["lock", "lookup", "record"].map(|what| format!("semel_transactional_{what}_{hash}"));
        // Statements that fail without the table come first, so that all or none are prepared.
        let prepare = format!(
            "PREPARE {lookup_name} (uuid) AS {}; \
             PREPARE {record_name} (uuid, text, text, text, bytea, bigint, bigint, bytea, bigint) \
             AS {}; \
             PREPARE {lock_name} (bigint) AS {LOCK}; ",
            lookup.text, add.text,
        );
        let (lock, lookup, record) = (lock_name, lookup_name, record_name);
        Self { lock, lookup, record, prepare, read, add, drop, sweep }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_statement_is_prepared_under_its_name() {
        let TableStatements { lock, lookup, record, prepare, .. } =
            TableStatements::of("public.semel_transactional");
        for name in [lock, lookup, record] {
            assert!(prepare.contains(&format!("PREPARE {name} (")), "{name}");
            assert!(name.len() < 64, "PostgreSQL truncates longer names");
        }
    }

    #[test]
    fn every_statement_uses_the_qualified_name_of_the_table() {
        let here = TableStatements::of("\"Shop\".semel_transactional");
        for TypedSql { text, .. } in [&here.read, &here.add, &here.drop, &here.sweep] {
            assert_eq!(
                text.matches("semel_transactional").count(),
                text.matches("\"Shop\".").count()
            );
            assert!(text.contains("\"Shop\".semel_transactional"), "{text}");
        }
        assert_eq!(here.prepare.matches("\"Shop\".semel_transactional").count(), 2);
        assert_ne!(here.record, TableStatements::of("public.semel_transactional").record);
    }
}
