//! Clocks that do not agree: processes on one file that are tied to different boots, and a wall
//! clock that has jumped while the file was not in use.

use std::{path::Path, time::Duration};

use rusqlite::{Connection, Result};
use semel_core::time::millis;

use crate::clock::StoreClock;

/// Clocks of one machine differ by less than this, whatever the containers are.
const TOLERANCE: Duration = Duration::from_secs(1);

/// Compares the clock of this process with the one in the file. Another process ties the file's
/// clock again if it has a different boot id, as each container may have. The later clock
/// counts: a lease that was granted by either of them must not lapse before its time.
///
/// To be called inside a transaction that writes.
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

/// Warns that the claims of another process were ahead of this one's clock, which was set forward
/// by `ahead`.
pub(crate) fn tell_ahead(path: &Path, ahead: Duration) {
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
pub(crate) fn tell_unseen(path: &Path, unseen: Option<Duration>, longest_retention: Option<i64>) {
    let (Some(unseen), Some(longest)) = (unseen, longest_retention) else { return };
    let longest = Duration::from_millis(u64::try_from(longest).unwrap_or_default());
    if unseen <= longest {
        return;
    }
    tracing::warn!(
        path = %path.display(),
        unseen_s = unseen.as_secs(),
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

    /// Counts what is logged.
    #[derive(Clone, Default)]
    struct Lines(Arc<AtomicUsize>);

    impl Subscriber for Lines {
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

    fn lines(log: impl FnOnce()) -> usize {
        let lines = Lines::default();
        tracing::subscriber::with_default(lines.clone(), log);
        lines.0.load(Ordering::SeqCst)
    }

    #[test]
    fn a_gap_is_told_only_where_it_outlasts_every_record() {
        let day = Duration::from_secs(86_400);
        let path = Path::new("semel.db");
        let tell = |unseen, longest| lines(|| tell_unseen(path, unseen, longest));
        assert_eq!(tell(Some(day * 2), Some(86_400_000)), 1);
        assert_eq!(tell(Some(day), Some(86_400_000)), 0);
        assert_eq!(tell(Some(day * 2), None), 0, "there are no records");
        assert_eq!(tell(None, Some(1)), 0, "the boot clock counted");
    }

    #[test]
    fn clocks_that_differ_by_less_than_a_tick_of_containers_are_not_told() {
        let path = Path::new("semel.db");
        assert_eq!(lines(|| tell_ahead(path, Duration::from_millis(999))), 0);
        assert_eq!(lines(|| tell_ahead(path, Duration::from_secs(1))), 1);
    }
}
