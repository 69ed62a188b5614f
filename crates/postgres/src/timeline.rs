//! The timeline of a server, by which former primaries are refused.
//!
//! PostgreSQL numbers the timelines of a cluster: every promotion of a standby, and every recovery
//! to a point in time, begins a higher one. A former primary that comes back and still accepts
//! writes continues a lower timeline than its successor. No other server knows the claims that are
//! made there, so a connection to it is refused.

use std::sync::{
    Mutex, MutexGuard, PoisonError,
    atomic::{AtomicU64, Ordering},
};

use semel_core::{StoreError, StoreErrorKind};
use tokio_postgres::{Client, Error, SimpleQueryMessage};
use tracing::warn;

/// By default every role may execute these functions.
const WITH_CLUSTER: &str = "SELECT pg_catalog.pg_walfile_name(pg_catalog.pg_current_wal_lsn()), \
                            system_identifier FROM pg_catalog.pg_control_system()";
const WITHOUT_CLUSTER: &str = "SELECT pg_catalog.pg_walfile_name(pg_catalog.pg_current_wal_lsn())";

/// The timeline that a primary writes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Timeline {
    /// The identifier of the cluster. A standby has that of its primary; the target of a restored
    /// dump or of `pg_upgrade` has another. Zero if the role may not read it.
    pub(crate) cluster: i64,
    pub(crate) number: u32,
}

impl Timeline {
    /// Queries a primary; `None` if the role may not read it, or the server has no timelines.
    pub(crate) async fn read(client: &Client) -> Result<Option<Self>, Error> {
        for query in [WITH_CLUSTER, WITHOUT_CLUSTER] {
            match client.simple_query(query).await {
                Ok(answer) => return Ok(answer.iter().find_map(Self::from_row)),
                Err(error) if error.as_db_error().is_some() => {}
                Err(error) => return Err(error),
            }
        }
        Ok(None)
    }

    fn from_row(message: &SimpleQueryMessage) -> Option<Self> {
        let SimpleQueryMessage::Row(row) = message else { return None };
        let cluster = if row.len() > 1 { row.get(1)?.parse().ok()? } else { 0 };
        // The name of a WAL file begins with the timeline in eight hexadecimal digits.
        let number = u32::from_str_radix(row.get(0)?.get(..8)?, 16).ok()?;
        Some(Self { cluster, number })
    }

    /// Whether both belong to one cluster, and the other one is later.
    pub(crate) const fn precedes(self, other: Self) -> bool {
        self.cluster == other.cluster && self.number < other.number
    }
}

/// The latest timeline that this process has seen.
#[derive(Debug, Default)]
pub(crate) struct TimelineHistory {
    seen: Mutex<TimelineState>,
    /// How often a later one was seen. Connections from before are not used.
    changes: AtomicU64,
    refused: AtomicU64,
}

#[derive(Debug, Default)]
struct TimelineState {
    latest: Option<Timeline>,
    /// The refused timeline that was logged last, so that each is logged once.
    logged: Option<Timeline>,
}

impl TimelineHistory {
    fn lock(&self) -> MutexGuard<'_, TimelineState> {
        self.seen.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// How often a later timeline was seen.
    pub(crate) fn changes(&self) -> u64 {
        self.changes.load(Ordering::Acquire)
    }

    /// How many connections to former primaries were refused.
    pub(crate) fn refused(&self) -> u64 {
        self.refused.load(Ordering::Relaxed)
    }

    /// Admits a connection to a server on this timeline, unless a later one is known. Returns the
    /// number of changes up to then.
    pub(crate) fn admit(&self, found: Option<Timeline>, host: &str) -> Result<u64, StoreError> {
        let mut seen = self.lock();
        if let Some(found) = found {
            match seen.latest {
                Some(latest) if found.precedes(latest) => {
                    return Err(self.refuse(&mut seen, found, latest, host));
                }
                Some(latest) if latest != found => {
                    warn!(host, from = ?latest, to = ?found, "the database's timeline changed");
                    self.changes.fetch_add(1, Ordering::AcqRel);
                }
                Some(_) | None => {}
            }
            seen.latest = Some(found);
        }
        Ok(self.changes())
    }

    /// Records the timeline of a server that was only surveyed.
    pub(crate) fn record_surveyed(&self, found: Timeline) {
        let mut seen = self.lock();
        if seen.latest.is_none_or(|latest| latest.precedes(found)) {
            seen.latest = Some(found);
        }
    }

    /// Refuses a server whose tables were used on a later timeline.
    pub(crate) fn refuse_recorded(
        &self,
        found: Timeline,
        recorded: Timeline,
        host: &str,
    ) -> StoreError {
        self.refuse(&mut self.lock(), found, recorded, host)
    }

    fn refuse(
        &self,
        seen: &mut TimelineState,
        found: Timeline,
        latest: Timeline,
        host: &str,
    ) -> StoreError {
        self.refused.fetch_add(1, Ordering::Relaxed);
        let (found_number, latest_number) = (found.number, latest.number);
        let message = format!(
            "{host}: a former primary: it continues timeline {found_number} of the database, and \
             timeline {latest_number} was begun since; stop it, or make it a standby of the new \
             primary"
        );
        if seen.logged != Some(found) {
            warn!(host, timeline = found_number, latest = latest_number, "{message}");
            seen.logged = Some(found);
        }
        StoreError::new(StoreErrorKind::Unavailable, message)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn timeline(number: u32) -> Option<Timeline> {
        Some(Timeline { cluster: 7, number })
    }

    #[test]
    fn a_lower_timeline_of_the_same_cluster_is_refused() {
        let history = TimelineHistory::default();
        assert_eq!(history.admit(timeline(1), "a").unwrap(), 0);
        assert_eq!(history.admit(timeline(1), "a").unwrap(), 0);
        assert_eq!(history.admit(timeline(2), "b").unwrap(), 1, "older connections are not used");
        let error = history.admit(timeline(1), "a").unwrap_err().to_string();
        assert!(error.starts_with("a: a former primary: it continues timeline 1 "), "{error}");
        assert_eq!((history.changes(), history.refused()), (1, 1));
        assert_eq!(history.admit(timeline(2), "b").unwrap(), 1);
    }

    #[test]
    fn a_surveyed_timeline_counts() {
        let history = TimelineHistory::default();
        history.record_surveyed(Timeline { cluster: 7, number: 3 });
        history.record_surveyed(Timeline { cluster: 7, number: 2 });
        history.record_surveyed(Timeline { cluster: 8, number: 9 });
        assert!(history.admit(timeline(2), "a").is_err());
        assert_eq!(history.admit(timeline(3), "b").unwrap(), 0);
    }

    /// After `pg_upgrade`, or where a dump was restored elsewhere, numbers start again at 1.
    #[test]
    fn another_cluster_has_timelines_of_its_own() {
        let history = TimelineHistory::default();
        history.admit(timeline(5), "a").unwrap();
        let other = Some(Timeline { cluster: 8, number: 1 });
        assert_eq!(history.admit(other, "b").unwrap(), 1);
        assert_eq!(history.admit(None, "c").unwrap(), 1, "its timeline is unknown");
    }
}
