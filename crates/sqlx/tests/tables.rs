//! The statements equal those of the other crates, so that programs with either crate may share one
//! database.

macro_rules! same {
    ($ours:literal, $theirs:literal: $($file:literal)*) => {
        $(assert_eq!(
            include_str!(concat!($ours, $file)),
            include_str!(concat!($theirs, $file)),
            $file,
        );)*
    };
}

#[test]
fn the_statements_for_postgresql_are_those_of_semel_postgres() {
    same!("../src/postgres/", "../../postgres/src/transactional/":
        "table.sql" "lock.sql" "read.sql" "running.sql" "drop.sql" "record.sql" "sweep.sql");
}

#[test]
fn the_statements_for_sqlite_are_those_of_semel_sqlite() {
    same!("../src/sqlite/", "../../sqlite/src/transactional/":
        "table.sql" "lookup.sql" "drop.sql" "record.sql" "sweep.sql");
}
