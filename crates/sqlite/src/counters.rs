//! The counters of velocity limits: loads, applies and writes them inside the writer's transaction.

use rusqlite::{Connection, Result, params};
use semel_core::{
    StoreTime,
    limit::{CounterSet, LimitCounter, LimitKey, LimitRefusal, LimitSet},
    settlement::LimitWork,
};

use crate::{error::damaged, tables::signed};

/// How many counters one step of the sweep examines.
const ROWS_EXAMINED_MAX: i64 = 400;

/// Applies limits to the stored counters. A refusal changes none.
pub(crate) fn apply(
    connection: &Connection,
    work: &LimitWork,
    now: StoreTime,
) -> Result<std::result::Result<LimitSet, LimitRefusal>> {
    let mut counters = CounterSet::default();
    let mut read =
        connection.prepare_cached("SELECT counter FROM limit_counters WHERE key = ?1")?;
    for key in work.keys().iter() {
        let mut rows = read.query([key.as_bytes()])?;
        if let Some(row) = rows.next()? {
            let counter = LimitCounter::decode(row.get_ref(0)?.as_blob()?);
            counters.load(key, counter.map_err(|_| damaged("a counter of a limit"))?);
        }
    }
    let admitted = work.apply(&mut counters, now);
    if admitted.is_ok() {
        for (key, counter) in counters.changed() {
            write(connection, key, counter)?;
        }
    }
    Ok(admitted)
}

fn write(connection: &Connection, key: LimitKey, counter: &LimitCounter) -> Result<()> {
    if counter.is_empty() {
        let delete = "DELETE FROM limit_counters WHERE key = ?1";
        return connection.prepare_cached(delete)?.execute([key.as_bytes()]).map(drop);
    }
    let put = "INSERT INTO limit_counters (key, expires_at, counter) VALUES (?1, ?2, ?3) \
               ON CONFLICT DO UPDATE SET expires_at = ?2, counter = ?3";
    let expires_at = signed(counter.expires_at().as_millis());
    let values = params![key.as_bytes(), expires_at, counter.encode()];
    connection.prepare_cached(put)?.execute(values).map(drop)
}

/// Deletes counters whose windows have passed. There is no index on that: it would change with
/// every claim. The sweep goes around all counters, in the order of their keys.
#[derive(Debug, Default)]
pub(crate) struct CounterSweeper {
    /// The key after which the next step begins.
    cursor: Vec<u8>,
}

impl CounterSweeper {
    /// Takes one step; returns whether the next one is likely to delete more.
    pub(crate) fn step(&mut self, connection: &Connection, now: StoreTime) -> Result<bool> {
        let last: Option<Vec<u8>> = connection
            .prepare_cached(
                "SELECT max(key) FROM (SELECT key FROM limit_counters WHERE key > ?1 \
                 ORDER BY key LIMIT ?2)",
            )?
            .query_row(params![self.cursor, ROWS_EXAMINED_MAX], |row| row.get(0))?;
        let Some(last) = last else {
            self.cursor.clear();
            return Ok(false);
        };
        let delete = "DELETE FROM limit_counters WHERE key > ?1 AND key <= ?2 AND expires_at <= ?3";
        let now = signed(now.as_millis());
        let deleted =
            connection.prepare_cached(delete)?.execute(params![self.cursor, last, now])?;
        self.cursor = last;
        Ok(deleted > 0)
    }
}
