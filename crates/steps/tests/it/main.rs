//! Operations of several steps on PostgreSQL and SQLite, under crashes.
#![allow(
    clippy::expect_used,
    clippy::unwrap_used,
    clippy::panic,
    reason = "a test reports by panicking"
)]

mod crash_matrix;
mod databases;
mod failures;
mod harness;

/// Makes a module with these tests for each database.
macro_rules! on_both_databases {
    ($($test:ident),+ $(,)?) => {
        mod postgres {
            $(#[test] fn $test() { super::$test(&crate::databases::postgres()); })+
        }
        mod sqlite {
            $(#[test] fn $test() { super::$test(&crate::databases::SqliteFile::new()); })+
        }
    };
}
pub(crate) use on_both_databases;
