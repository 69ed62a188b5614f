//! The store's clock: boot time, anchored to the wall clock once per boot.
//!
//! Every instant in a file is `offset + boot time`. The offset is written to the file by the first
//! process that opens it after a boot, and shared by all: the wall clock at that moment, or the
//! latest instant the file has seen, whichever is later. From then on a jump of the wall clock
//! lapses no lease and neither restores nor expires a record. Across a reboot the clock only moves
//! forward, and a lease whose owner died with the machine ends when its time has passed.
//!
//! Containers on one machine may have their own boot ids and clocks. A process in one of them
//! anchors the clock again while others use the file. A process that finds the file's clock ahead
//! of its own raises its own: the later clock counts for all.

use std::{
    fmt,
    sync::{
        Arc,
        atomic::{AtomicI64, Ordering},
    },
    time::Duration,
};

use semel_core::{StoreTime, time::millis};

/// The source of time: [`SystemClock`], or the clock of a test.
pub trait BootClock: fmt::Debug + Send + Sync {
    /// The same text for every process until the machine reboots, and another one after that. Empty
    /// if it is not available; then a store refuses to open.
    fn boot_id(&self) -> String;
    /// Time since boot, suspension included. It never decreases.
    fn since_boot(&self) -> Duration;
    /// Time since 1970 by the wall clock, which may jump.
    fn wall(&self) -> Duration;
}

/// The machine's own clocks.
#[derive(Clone, Copy, Debug, Default)]
pub struct SystemClock;

impl BootClock for SystemClock {
    #[cfg(target_os = "linux")]
    fn boot_id(&self) -> String {
        let id = std::fs::read_to_string("/proc/sys/kernel/random/boot_id").unwrap_or_default();
        id.trim().to_owned()
    }

    /// The time since boot of the machine: the offset of a time namespace is subtracted.
    #[cfg(target_os = "linux")]
    fn since_boot(&self) -> Duration {
        static NAMESPACE: std::sync::OnceLock<i128> = std::sync::OnceLock::new();
        let added = *NAMESPACE.get_or_init(|| {
            let offsets = std::fs::read_to_string("/proc/self/timens_offsets");
            namespace_offset(&offsets.unwrap_or_default()).unwrap_or_default()
        });
        let now = rustix::time::clock_gettime(rustix::time::ClockId::Boottime);
        let nanos = i128::from(now.tv_sec) * NANOS + i128::from(now.tv_nsec) - added;
        Duration::from_nanos(u64::try_from(nanos).unwrap_or_default())
    }

    /// Other systems have no boot identity without unsafe code: the wall clock stands in, with its
    /// jumps.
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

#[cfg(target_os = "linux")]
const NANOS: i128 = 1_000_000_000;

/// The nanoseconds that a time namespace adds to the boot clock: the line `boottime SECONDS NANOS`.
#[cfg(target_os = "linux")]
fn namespace_offset(offsets: &str) -> Option<i128> {
    let mut words =
        offsets.lines().find_map(|line| line.strip_prefix("boottime"))?.split_whitespace();
    let (seconds, nanos): (i128, i128) = (words.next()?.parse().ok()?, words.next()?.parse().ok()?);
    Some(seconds * NANOS + nanos)
}

/// A clock anchored to a file. Clones are the same clock.
#[derive(Clone, Debug)]
pub(crate) struct StoreClock {
    source: Arc<dyn BootClock>,
    offsets: Arc<ClockOffsets>,
}

/// Store time minus boot time, in milliseconds. The greater of the two counts, and both only rise.
#[derive(Debug)]
struct ClockOffsets {
    /// The offset in the file, for all processes whose boot clock is the machine's.
    file: AtomicI64,
    /// The offset derived from instants in the file. It counts for this process alone: instants
    /// ahead of it come from a process with another boot clock.
    observed: AtomicI64,
}

/// The result of [`StoreClock::from_anchor`].
#[derive(Debug)]
pub(crate) struct AnchoredClock {
    pub(crate) clock: StoreClock,
    /// What to write to the file, when this is the first opening since the boot.
    pub(crate) anchor: Option<Anchor>,
}

impl StoreClock {
    /// Continues the clock of a file in this boot.
    pub(crate) fn from_anchor(source: Arc<dyn BootClock>, file: &Anchor) -> AnchoredClock {
        let boot_id = source.boot_id();
        if boot_id == file.boot_id {
            let clock = Self::new(source, file.offset);
            clock.raise_to(file.seen_at);
            return AnchoredClock { clock, anchor: None };
        }
        let now = signed(millis(source.wall())).max(file.seen_at);
        let offset = now.saturating_sub(signed(millis(source.since_boot())));
        let anchor = Anchor { boot_id, offset, seen_at: now };
        AnchoredClock { clock: Self::new(source, offset), anchor: Some(anchor) }
    }

    fn new(source: Arc<dyn BootClock>, offset: i64) -> Self {
        let offsets =
            ClockOffsets { file: AtomicI64::new(offset), observed: AtomicI64::new(offset) };
        Self { source, offsets: Arc::new(offsets) }
    }

    pub(crate) fn now(&self) -> StoreTime {
        let offset = self.offset().max(self.offsets.observed.load(Ordering::Acquire));
        let now = signed(millis(self.source.since_boot())).saturating_add(offset);
        StoreTime::from_millis(u64::try_from(now).unwrap_or_default())
    }

    /// The offset as it is in the file.
    pub(crate) fn offset(&self) -> i64 {
        self.offsets.file.load(Ordering::Acquire)
    }

    /// Sets the clock forward to an offset of the file, if that is later. Returns by how much the
    /// clock was behind.
    pub(crate) fn raise_offset(&self, offset: i64) -> Duration {
        raise(&self.offsets.file, offset)
    }

    /// Sets the clock forward to an instant of the file, if that is later. Returns by how much the
    /// clock was behind.
    pub(crate) fn raise_to(&self, instant: i64) -> Duration {
        let now = signed(self.now().as_millis());
        if instant <= now {
            return Duration::ZERO;
        }
        let offset = instant.saturating_sub(signed(millis(self.source.since_boot())));
        raise(&self.offsets.observed, offset);
        Duration::from_millis(u64::try_from(instant.saturating_sub(now)).unwrap_or_default())
    }
}

fn raise(offset: &AtomicI64, to: i64) -> Duration {
    let before = offset.fetch_max(to, Ordering::AcqRel);
    Duration::from_millis(u64::try_from(to.saturating_sub(before)).unwrap_or_default())
}

/// The clock data in a file.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Anchor {
    /// The boot that the offset belongs to.
    pub(crate) boot_id: String,
    /// Store time minus boot time, in milliseconds.
    pub(crate) offset: i64,
    /// The latest instant in the file.
    pub(crate) seen_at: i64,
}

fn signed(millis: u64) -> i64 {
    i64::try_from(millis).unwrap_or(i64::MAX)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[derive(Debug)]
    struct FakeClock(&'static str, u64, u64);

    impl BootClock for FakeClock {
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
    fn the_wall_clock_is_read_once_per_boot() {
        let anchored =
            StoreClock::from_anchor(Arc::new(FakeClock("b1", 500, 10_000)), &anchor("", 0, 0));
        assert_eq!(anchored.anchor, Some(anchor("b1", 9_500, 10_000)));
        assert_eq!(anchored.clock.now(), StoreTime::from_millis(10_000));

        // An hour later by the wall clock, a second later by the boot clock.
        let later = Arc::new(FakeClock("b1", 1_500, 3_610_000));
        let anchored = StoreClock::from_anchor(later, &anchor("b1", 9_500, 10_000));
        assert_eq!(anchored.anchor, None);
        assert_eq!(anchored.clock.now(), StoreTime::from_millis(11_000));
    }

    #[test]
    fn a_boot_never_takes_time_back() {
        let anchored =
            StoreClock::from_anchor(Arc::new(FakeClock("b2", 10, 1)), &anchor("b1", 0, 77_000));
        assert_eq!(anchored.clock.now(), StoreTime::from_millis(77_000));
    }

    #[test]
    fn a_clock_is_set_forward_for_all_its_clones_and_never_back() {
        let anchored =
            StoreClock::from_anchor(Arc::new(FakeClock("b1", 500, 10_000)), &anchor("", 0, 0));
        let clock = anchored.clock.clone();
        assert_eq!(anchored.clock.raise_to(9_000), Duration::ZERO);
        assert_eq!(anchored.clock.raise_to(12_000), Duration::from_secs(2));
        assert_eq!(clock.now(), StoreTime::from_millis(12_000));
        assert_eq!(clock.offset(), 9_500, "the boot clock of another process is not shared");
        assert_eq!(clock.raise_offset(9_499), Duration::ZERO);
        assert_eq!(clock.raise_offset(12_500), Duration::from_secs(3));
        assert_eq!(anchored.clock.now(), StoreTime::from_millis(13_000));
    }

    #[test]
    #[cfg(target_os = "linux")]
    fn the_offset_of_a_time_namespace_is_parsed() {
        let host = "monotonic           0         0\nboottime            0         0\n";
        assert_eq!(namespace_offset(host), Some(0));
        let container = "monotonic  86400 7\nboottime     -604800  500000000\n";
        assert_eq!(namespace_offset(container), Some(-604_799_500_000_000));
        assert_eq!(namespace_offset(""), None);
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
