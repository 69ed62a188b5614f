//! The statements of a store, with the qualified name of its table. The table is looked up once; a
//! `search_path` that an operation sets later does not change it.

use super::row::{DROP, LOCK, READ, RECORD, SWEEP, TypedSql};

static NAMED_LOCK: TypedSql = TypedSql::new(include_str!("named/lock.sql"), LOCK.types);
/// Without the last parameter, the OID of the table.
static NAMED_RECORD: TypedSql =
    TypedSql::new(include_str!("named/record.sql"), RECORD.types.split_at(9).0);

/// Looks up the qualified name of the table.
pub(super) const TABLE_NAME: &str = include_str!("table_name.sql");

#[derive(Debug)]
pub(super) struct TableStatements {
    pub(super) lock: TypedSql,
    pub(super) read: TypedSql,
    pub(super) record: TypedSql,
    pub(super) drop: TypedSql,
    pub(super) sweep: TypedSql,
}

impl TableStatements {
    /// For the table of this name.
    pub(super) fn of(table: &str) -> Self {
        let [lock, read, record, drop, sweep] =
            [&NAMED_LOCK, &READ, &NAMED_RECORD, &DROP, &SWEEP].map(|sql| sql.on(table));
        Self { lock, read, record, drop, sweep }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_statement_uses_the_qualified_name_of_the_table() {
        let here = TableStatements::of("\"Shop\".semel_transactional");
        for TypedSql { text, .. } in [&here.read, &here.record, &here.drop, &here.sweep] {
            assert_eq!(
                text.matches("semel_transactional").count(),
                text.matches("\"Shop\".").count()
            );
            assert!(text.contains("\"Shop\".semel_transactional"), "{text}");
        }
        assert!(!here.lock.text.contains("semel_transactional"));
    }
}
