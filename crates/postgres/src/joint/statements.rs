//! The statements of a store. Its table is found once, by its name alone; from then on all of them
//! mean that one, whatever an operation makes of the search path of its connection.

use data_encoding::HEXLOWER;
use sha2::{Digest as _, Sha256};

use super::row::{DROP, READ, RECORD, SWEEP, Sql};

const LOCK: &str = include_str!("named/lock.sql");
static FOUND: Sql = Sql::new(include_str!("named/found.sql"), READ.types);
static ADD: Sql = Sql::new(include_str!("named/record.sql"), RECORD.types);

/// Where the table is.
pub(super) const TABLE_NAME: &str = include_str!("table_name.sql");

#[derive(Debug)]
pub(super) struct Statements {
    /// The names of those that are prepared on each connection.
    pub(super) lock: String,
    pub(super) found: String,
    pub(super) record: String,
    /// What prepares them.
    pub(super) make: String,
    /// Those that have no name: one with a name may be gone, and is made again only where an
    /// operation begins.
    pub(super) read: Sql,
    pub(super) add: Sql,
    pub(super) drop: Sql,
    pub(super) sweep: Sql,
}

impl Statements {
    /// For the table of this name.
    pub(super) fn of(table: &str) -> Self {
        let [found, add, read, drop, sweep] =
            [&FOUND, &ADD, &READ, &DROP, &SWEEP].map(|sql| sql.on(table));
        // Names that no other text has: behind a pooler, another version of this program may have
        // made its own on the same connection.
        let mut mark = HEXLOWER.encode(&Sha256::digest([LOCK, &found.text, &add.text].concat()));
        mark.truncate(8);
        let [lock_name, found_name, record_name] =
            ["lock", "found", "record"].map(|what| format!("semel_joint_{what}_{mark}"));
        // Those first that fail where there is no table: nothing is to be made by halves.
        let make = format!(
            "PREPARE {found_name} (uuid) AS {}; \
             PREPARE {record_name} (uuid, text, text, text, bytea, bigint, bigint, bytea, bigint) \
             AS {}; \
             PREPARE {lock_name} (bigint) AS {LOCK}; ",
            found.text, add.text,
        );
        let (lock, found, record) = (lock_name, found_name, record_name);
        Self { lock, found, record, make, read, add, drop, sweep }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_statement_is_made_under_the_name_that_it_is_asked_for_by() {
        let Statements { lock, found, record, make, .. } = Statements::of("public.semel_joint");
        for name in [lock, found, record] {
            assert!(make.contains(&format!("PREPARE {name} (")), "{name}");
            assert!(name.len() < 64, "the server would cut it off");
        }
    }

    #[test]
    fn every_statement_means_the_table_that_was_found() {
        let here = Statements::of("\"Shop\".semel_joint");
        for Sql { text, .. } in [&here.read, &here.add, &here.drop, &here.sweep] {
            assert_eq!(text.matches("semel_joint").count(), text.matches("\"Shop\".").count());
            assert!(text.contains("\"Shop\".semel_joint"), "{text}");
        }
        assert_eq!(here.make.matches("\"Shop\".semel_joint").count(), 2);
        assert_ne!(here.record, Statements::of("public.semel_joint").record);
    }
}
