//! The statements on the user's table of records. The drivers of a database share them, so that
//! programs with different drivers can use one table.

/// Statements for PostgreSQL.
pub mod postgres {
    /// The advisory lock under which the table is created, in case two programs start at once.
    pub const CREATE_TABLE_LOCK: i64 = 0x5e3e_1000_7ab1_e000;

    /// Creates the table.
    pub const TABLE: &str = include_str!("sql/postgres/table.sql");
    /// Creates the functions for programs in other languages.
    pub const FUNCTIONS: &str = include_str!("sql/postgres/functions.sql");
    /// Tries the lock of an operation.
    pub const LOCK: &str = include_str!("sql/postgres/lock.sql");
    /// Reads a record.
    pub const READ: &str = include_str!("sql/postgres/read.sql");
    /// Whether a transaction holds the lock.
    pub const RUNNING: &str = include_str!("sql/postgres/running.sql");
    /// Deletes a record past its retention.
    pub const DROP: &str = include_str!("sql/postgres/drop.sql");
    /// Inserts a record.
    pub const RECORD: &str = include_str!("sql/postgres/record.sql");
    /// Deletes some records past their retention.
    pub const SWEEP: &str = include_str!("sql/postgres/sweep.sql");
}

/// Statements for SQLite.
pub mod sqlite {
    /// Creates the table.
    pub const TABLE: &str = include_str!("sql/sqlite/table.sql");
    /// Reads a record within its retention.
    pub const LOOKUP: &str = include_str!("sql/sqlite/lookup.sql");
    /// Deletes a record past its retention.
    pub const DROP: &str = include_str!("sql/sqlite/drop.sql");
    /// Inserts a record.
    pub const RECORD: &str = include_str!("sql/sqlite/record.sql");
    /// Deletes some records past their retention.
    pub const SWEEP: &str = include_str!("sql/sqlite/sweep.sql");
}
