//! The store's clock: boot time, tied to the wall clock once per boot.
//!
//! Every instant in a file is `offset + boot time`. The offset is written to the file by the first
//! process that opens it after a boot, and shared by all: the wall clock at that moment, or the
//! latest instant the file has seen, whichever is later. From then on the wall clock may jump as it
//! likes; no lease lapses and no record comes back or goes early because of it. Across a reboot the
//! clock only moves forward, and a lease whose owner died with the machine ends when its time has
//! passed.

use std::{fmt, sync::Arc, time::Duration};

use semel_core::{StoreTime, time::millis};

/// What tells the time. [`SystemClock`] unless a test brings its own.
pub trait Clock: fmt::Debug + Send + Sync {
    /// A text that is the same for every process until the machine boots again, and another one
    /// after that. Empty if it cannot be had; then a store refuses to open.
    fn boot_id(&self) -> String;
    /// Time since boot, suspension included. It never falls.
    fn since_boot(&self) -> Duration;
    /// Time since 1970 by the wall clock, which may jump.
    fn wall(&self) -> Duration;
}

/// The machine's own clocks.
#[derive(Clone, Copy, Debug, Default)]
pub struct SystemClock;

impl Clock for SystemClock {
    #[cfg(target_os = "linux")]
    fn boot_id(&self) -> String {
        let id = std::fs::read_to_string("/proc/sys/kernel/random/boot_id").unwrap_or_default();
        id.trim().to_owned()
    }

    #[cfg(target_os = "linux")]
    fn since_boot(&self) -> Duration {
        let now = rustix::time::clock_gettime(rustix::time::ClockId::Boottime);
        Duration::new(
            u64::try_from(now.tv_sec).unwrap_or_default(),
            u32::try_from(now.tv_nsec).unwrap_or_default(),
        )
    }

    /// Elsewhere there is no boot identity to be had without unsafe code: the wall clock stands in,
    /// and its jumps are felt.
    #[cfg(not(target_os = "linux"))]
    fn boot_id(&self) -> String {
        "wall".to_owned()
    }

    #[cfg(not(target_os = "linux"))]
    fn since_boot(&self) -> Duration {
        self.wall()
    }

    fn wall(&self) -> Duration {
        std::time::SystemTime::UNIX_EPOCH.elapsed().unwrap_or_default()
    }
}

/// A clock tied to a file.
#[derive(Clone, Debug)]
pub(crate) struct StoreClock {
    source: Arc<dyn Clock>,
    offset: i64,
}

impl StoreClock {
    /// What the file says about its clock, brought up to this boot. Gives the offset to write when
    /// this is the first opening since the boot.
    pub(crate) fn tie(source: Arc<dyn Clock>, file: &Anchor) -> (Self, Option<Anchor>) {
        let boot_id = source.boot_id();
        if boot_id == file.boot_id {
            return (Self { source, offset: file.offset }, None);
        }
        let now = signed(millis(source.wall())).max(file.seen_at);
        let offset = now.saturating_sub(signed(millis(source.since_boot())));
        let anchor = Anchor { boot_id, offset, seen_at: now };
        (Self { source, offset }, Some(anchor))
    }

    pub(crate) fn now(&self) -> StoreTime {
        let now = signed(millis(self.source.since_boot())).saturating_add(self.offset);
        StoreTime::from_millis(u64::try_from(now).unwrap_or_default())
    }
}

/// What a file knows about its clock.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Anchor {
    /// The boot that the offset belongs to.
    pub(crate) boot_id: String,
    /// Store time less boot time, in milliseconds.
    pub(crate) offset: i64,
    /// The latest instant the file has seen.
    pub(crate) seen_at: i64,
}

fn signed(millis: u64) -> i64 {
    i64::try_from(millis).unwrap_or(i64::MAX)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[derive(Debug)]
    struct Fake(&'static str, u64, u64);

    impl Clock for Fake {
        fn boot_id(&self) -> String {
            self.0.to_owned()
        }
        fn since_boot(&self) -> Duration {
            Duration::from_millis(self.1)
        }
        fn wall(&self) -> Duration {
            Duration::from_millis(self.2)
        }
    }

    fn anchor(boot_id: &str, offset: i64, seen_at: i64) -> Anchor {
        Anchor { boot_id: boot_id.to_owned(), offset, seen_at }
    }

    #[test]
    fn the_wall_clock_is_asked_once_per_boot() {
        let (clock, written) =
            StoreClock::tie(Arc::new(Fake("b1", 500, 10_000)), &anchor("", 0, 0));
        assert_eq!(written, Some(anchor("b1", 9_500, 10_000)));
        assert_eq!(clock.now(), StoreTime::from_millis(10_000));

        // An hour later by the wall clock, a second later by the boot clock.
        let later = Arc::new(Fake("b1", 1_500, 3_610_000));
        let (clock, written) = StoreClock::tie(later, &anchor("b1", 9_500, 10_000));
        assert_eq!(written, None);
        assert_eq!(clock.now(), StoreTime::from_millis(11_000));
    }

    #[test]
    fn a_boot_never_takes_time_back() {
        let (clock, _) = StoreClock::tie(Arc::new(Fake("b2", 10, 1)), &anchor("b1", 0, 77_000));
        assert_eq!(clock.now(), StoreTime::from_millis(77_000));
    }

    #[test]
    fn the_machine_has_a_boot_clock_that_moves() {
        let clock = SystemClock;
        let before = clock.since_boot();
        assert!(!clock.boot_id().is_empty());
        assert!(clock.wall() > Duration::from_secs(1_600_000_000));
        while clock.since_boot() == before {}
    }
}
