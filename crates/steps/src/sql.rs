//! The statements on the two tables. The drivers of a database share them, so that programs with
//! different drivers can use one database.

/// Statements for PostgreSQL.
pub mod postgres {
    use std::sync::LazyLock;

    /// The advisory lock under which the tables are created, in case two programs start at once.
    pub const CREATE_TABLES_LOCK: i64 = 0x5e3e_1000_57e9_5000;

    /// Creates the tables.
    pub const TABLES: &str = include_str!("sql/postgres/tables.sql");
    /// The columns of an operation.
    const ROW: &str = include_str!("sql/postgres/row.sql");
    /// Inserts an operation.
    pub static START: LazyLock<String> =
        LazyLock::new(|| [include_str!("sql/postgres/start.sql"), ROW].concat());
    /// Reads the operation of a name and key.
    pub static FIND: LazyLock<String> =
        LazyLock::new(|| ["SELECT ", ROW, include_str!("sql/postgres/find.sql")].concat());
    /// Reads the operation in a row.
    pub static READ: LazyLock<String> =
        LazyLock::new(|| ["SELECT ", ROW, " FROM semel_operation WHERE id = $1"].concat());
    /// Lists operations.
    pub static LIST: LazyLock<String> =
        LazyLock::new(|| ["SELECT ", ROW, include_str!("sql/postgres/list.sql")].concat());
    /// Takes lapsed operations over.
    pub static TAKE_LAPSED: LazyLock<String> =
        LazyLock::new(|| [include_str!("sql/postgres/take_lapsed.sql").trim_end(), ROW].concat());
    /// Writes rows of steps.
    pub const STEP: &str = include_str!("sql/postgres/step.sql");
    /// Turns an operation backward.
    pub const TURN: &str = include_str!("sql/postgres/turn.sql");
    /// Ends an operation.
    pub const FINISH: &str = include_str!("sql/postgres/finish.sql");
    /// Renews leases.
    pub const RENEW: &str = include_str!("sql/postgres/renew.sql");
    /// Gives an operation up.
    pub const RELEASE: &str = include_str!("sql/postgres/release.sql");
    /// Reads the steps of an operation.
    pub const STEPS: &str = include_str!("sql/postgres/steps.sql");
    /// Resumes, undoes or parks an operation.
    pub const OPERATE: &str = include_str!("sql/postgres/operate.sql");
    /// Settles a step whose outcome is unknown.
    pub const SETTLE: &str = include_str!("sql/postgres/settle.sql");
    /// Deletes operations that ended.
    pub const SWEEP: &str = include_str!("sql/postgres/sweep.sql");
}

/// Statements for SQLite. Where a statement reads whole rows, `?1` is the wall clock in
/// milliseconds, `?2` the time since the machine was started, and `?3` which start that was.
pub mod sqlite {
    use std::sync::LazyLock;

    /// Creates the tables.
    pub const TABLES: &str = include_str!("sql/sqlite/tables.sql");
    /// The columns of an operation.
    const ROW: &str = include_str!("sql/sqlite/row.sql");
    /// Inserts an operation.
    pub const START: &str = include_str!("sql/sqlite/start.sql");
    /// Reads the operation of a name and key.
    pub static FIND: LazyLock<String> =
        LazyLock::new(|| ["SELECT ", ROW, include_str!("sql/sqlite/find.sql")].concat());
    /// Reads the operation in a row.
    pub static READ: LazyLock<String> =
        LazyLock::new(|| ["SELECT ", ROW, " FROM semel_operation WHERE id = ?4"].concat());
    /// Lists operations.
    pub static LIST: LazyLock<String> =
        LazyLock::new(|| ["SELECT ", ROW, include_str!("sql/sqlite/list.sql")].concat());
    /// Finds lapsed operations.
    pub const DUE: &str = include_str!("sql/sqlite/due.sql");
    /// Takes one of them over.
    pub const TAKE: &str = include_str!("sql/sqlite/take.sql");
    /// Writes the row of a step.
    pub const STEP: &str = include_str!("sql/sqlite/step.sql");
    /// Turns an operation backward.
    pub const TURN: &str = include_str!("sql/sqlite/turn.sql");
    /// Ends an operation.
    pub const FINISH: &str = include_str!("sql/sqlite/finish.sql");
    /// Renews a lease.
    pub const RENEW: &str = include_str!("sql/sqlite/renew.sql");
    /// Gives an operation up.
    pub const RELEASE: &str = include_str!("sql/sqlite/release.sql");
    /// Reads the steps of an operation.
    pub const STEPS: &str = include_str!("sql/sqlite/steps.sql");
    /// Resumes, undoes or parks an operation.
    pub const OPERATE: &str = include_str!("sql/sqlite/operate.sql");
    /// Settles a step whose outcome is unknown.
    pub const SETTLE: &str = include_str!("sql/sqlite/settle.sql");
    /// Deletes operations that ended.
    pub const SWEEP: &str = include_str!("sql/sqlite/sweep.sql");

    /// Names and versions as JSON, for [`DUE`]: SQLite has no arrays.
    #[must_use]
    pub fn known_json(known: &[(String, i32)]) -> String {
        serde_json::to_string(known).unwrap_or_default()
    }
}
