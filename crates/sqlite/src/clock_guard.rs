//! Detects clocks that disagree: processes on one file with different boot ids, and a wall clock
//! that jumped while the file was not in use.

use std::{path::Path, time::Duration};

use rusqlite::{Connection, Result};
use semel_core::time::millis;

use crate::{clock::StoreClock, tables::signed};

/// Differences below this are not logged: the clocks of one machine agree that well, in containers
/// too.
const TOLERANCE: Duration = Duration::from_secs(1);

/// Compares the clock of this process with the one in the file. Another process anchors the file's
/// clock again if it has a different boot id, as each container may have. The later clock counts: a
/// lease that was granted by either of them must not lapse early.
///
/// Call it inside a write transaction.
pub(crate) fn follow(connection: &Connection, path: &Path, clock: &StoreClock) -> Result<()> {
    let get = "SELECT value FROM meta WHERE name = 'boot_offset'";
    let offset: i64 = connection.prepare_cached(get)?.query_row([], |row| row.get(0))?;
    let ours = clock.offset();
    if offset == ours {
        return Ok(());
    }
    let ahead = clock.raise_offset(offset);
    let behind = ours.saturating_sub(offset);
    if behind > 0 {
        let set = "UPDATE meta SET value = ?1 WHERE name = 'boot_offset'";
        connection.prepare_cached(set)?.execute([ours])?;
    }
    tracing::warn!(
        path = %path.display(),
        ahead_ms = millis(ahead),
        behind_ms = behind.max(0),
        "another process on this store has another clock (containers with boot ids of their own, \
         and a wall clock that was set between two starts): the later one counts"
    );
    Ok(())
}

/// Stores the current time, so that time does not go back after a reboot.
pub(crate) fn save_time(connection: &Connection, clock: &StoreClock) -> Result<()> {
    let note = "UPDATE meta SET value = max(value, ?1) WHERE name = 'seen_at'";
    let now = signed(clock.now().as_millis());
    connection.prepare_cached(note)?.execute([now]).map(drop)
}

/// Warns that the claims of another process were ahead of this one's clock, which was set forward
/// by `ahead`.
pub(crate) fn warn_clock_ahead(path: &Path, ahead: Duration) {
    if ahead < TOLERANCE {
        return;
    }
    tracing::warn!(
        path = %path.display(),
        ahead_ms = millis(ahead),
        "another process on this store has a clock that is ahead (time namespaces?): the later \
         one counts"
    );
}

/// Warns that, by an unconfirmed wall clock, the file was unused for longer than its longest
/// retention.
pub(crate) fn warn_unused_for_long(
    path: &Path,
    unused_for: Option<Duration>,
    longest_retention: Option<i64>,
) {
    let (Some(unused_for), Some(longest)) = (unused_for, longest_retention) else { return };
    let longest = Duration::from_millis(u64::try_from(longest).unwrap_or_default());
    if unused_for <= longest {
        return;
    }
    tracing::warn!(
        path = %path.display(),
        unseen_s = unused_for.as_secs(),
        longest_retention_s = longest.as_secs(),
        "by the wall clock this store was not used for longer than any of its records is kept: \
         every finished key may run again. If the clock is wrong, stop now, set it, and restore a \
         backup"
    );
}

#[cfg(test)]
mod tests {
    use std::sync::{
        Arc,
        atomic::{AtomicUsize, Ordering},
    };

    use tracing::{Event, Metadata, Subscriber, span};

    use super::*;

    /// Counts logged warnings.
    #[derive(Clone, Default)]
    struct WarningCounter(Arc<AtomicUsize>);

    impl Subscriber for WarningCounter {
        fn enabled(&self, _: &Metadata<'_>) -> bool {
            true
        }
        fn new_span(&self, _: &span::Attributes<'_>) -> span::Id {
            span::Id::from_u64(1)
        }
        fn record(&self, _: &span::Id, _: &span::Record<'_>) {}
        fn record_follows_from(&self, _: &span::Id, _: &span::Id) {}
        fn event(&self, event: &Event<'_>) {
            assert_eq!(*event.metadata().level(), tracing::Level::WARN);
            self.0.fetch_add(1, Ordering::SeqCst);
        }
        fn enter(&self, _: &span::Id) {}
        fn exit(&self, _: &span::Id) {}
    }

    fn count_warnings(log: impl FnOnce()) -> usize {
        let lines = WarningCounter::default();
        tracing::subscriber::with_default(lines.clone(), log);
        lines.0.load(Ordering::SeqCst)
    }

    #[test]
    fn an_unused_period_is_logged_only_when_it_outlasts_every_record() {
        let day = Duration::from_secs(86_400);
        let path = Path::new("semel.db");
        let warnings = |unused_for, longest| {
            count_warnings(|| warn_unused_for_long(path, unused_for, longest))
        };
        assert_eq!(warnings(Some(day * 2), Some(86_400_000)), 1);
        assert_eq!(warnings(Some(day), Some(86_400_000)), 0);
        assert_eq!(warnings(Some(day * 2), None), 0, "there are no records");
        assert_eq!(warnings(None, Some(1)), 0, "the boot clock counted");
    }

    #[test]
    fn clock_differences_within_the_tolerance_are_not_logged() {
        let path = Path::new("semel.db");
        assert_eq!(count_warnings(|| warn_clock_ahead(path, Duration::from_millis(999))), 0);
        assert_eq!(count_warnings(|| warn_clock_ahead(path, Duration::from_secs(1))), 1);
    }
}
