//! The clock of this process, as the request state machine uses it.
//!
//! It is tokio's clock, so that a test can stop it, plus the time for which the machine was
//! suspended: a store counts leases through a suspend, so their owner must too (law 8), and so must
//! a cache that is trusted for a second.
//!
//! Limits: the suspended time is the difference between a clock that counts it (`CLOCK_BOOTTIME` on
//! Linux, `CLOCK_MONOTONIC` on macOS) and the one behind [`Instant`], which does not. Elsewhere it
//! is not counted. A virtual machine that its host pauses notices nothing in either clock. In both
//! cases the fence catches an owner that slept through its lease. A timer that was started before a
//! suspend fires late by its length; its user then reads this clock.

use std::{
    sync::{
        LazyLock,
        atomic::{AtomicU64, Ordering},
    },
    time::{Duration, Instant as SystemInstant},
};

use semel_core::{ProcessTime, time::millis};
use tokio::time::{Instant, sleep_until};

#[derive(Clone, Copy, Debug)]
pub(crate) struct EngineClock {
    origin: Instant,
    suspended_before: Duration,
}

impl EngineClock {
    pub(crate) fn new() -> Self {
        Self { origin: Instant::now(), suspended_before: suspended() }
    }

    pub(crate) fn now(self) -> ProcessTime {
        ProcessTime::default().after(self.awake() + self.suspended())
    }

    /// Time excluding suspends, in nanoseconds. Use it to measure durations; it is cheaper than
    /// [`now`](Self::now).
    pub(crate) fn awake(self) -> Duration {
        self.origin.elapsed()
    }

    /// Sleeps until `deadline`; without one, never returns.
    pub(crate) async fn sleep_until(self, deadline: Option<ProcessTime>) {
        let instant = deadline.and_then(|deadline| {
            let deadline = Duration::from_millis(deadline.as_millis());
            self.origin.checked_add(deadline.saturating_sub(self.suspended()))
        });
        match instant {
            Some(instant) => sleep_until(instant).await,
            None => std::future::pending().await,
        }
    }

    fn suspended(self) -> Duration {
        suspended().saturating_sub(self.suspended_before)
    }
}

/// How long the machine was suspended since the first call in this process. It never decreases.
fn suspended() -> Duration {
    static BEGAN: LazyLock<(Duration, SystemInstant)> = LazyLock::new(read_clocks);
    static LONGEST_MILLIS: AtomicU64 = AtomicU64::new(0);
    let (counting_before, awake_before) = *BEGAN;
    let (counting, awake) = read_clocks();
    let awake = awake.saturating_duration_since(awake_before);
    let now = millis(counting.saturating_sub(counting_before).saturating_sub(awake));
    let longest = LONGEST_MILLIS.load(Ordering::Relaxed);
    if now > longest {
        LONGEST_MILLIS.fetch_max(now, Ordering::Relaxed);
    }
    let suspended = Duration::from_millis(now.max(longest));
    #[cfg(test)]
    let suspended = suspended + tests::SUSPENDED.get();
    suspended
}

/// The clock that counts suspended time, then the one that does not. In this order a thread that is
/// interrupted in between sees less suspended time than there was, and never more.
#[expect(clippy::disallowed_methods, reason = "the clock of the driver")]
fn read_clocks() -> (Duration, SystemInstant) {
    (counting(), SystemInstant::now())
}

#[cfg(any(target_os = "linux", target_os = "macos"))]
fn counting() -> Duration {
    #[cfg(target_os = "linux")]
    let clock = rustix::time::ClockId::Boottime;
    #[cfg(target_os = "macos")]
    let clock = rustix::time::ClockId::Monotonic;
    let now = rustix::time::clock_gettime(clock);
    Duration::new(
        u64::try_from(now.tv_sec).unwrap_or_default(),
        u32::try_from(now.tv_nsec).unwrap_or_default(),
    )
}

#[cfg(not(any(target_os = "linux", target_os = "macos")))]
const fn counting() -> Duration {
    Duration::ZERO
}

#[cfg(test)]
pub(crate) mod tests {
    use std::cell::Cell;

    use super::*;

    thread_local! {
        /// How long a test has suspended the machine, per thread.
        pub(crate) static SUSPENDED: Cell<Duration> = const { Cell::new(Duration::ZERO) };
    }

    /// Suspends the machine, as seen by this thread.
    pub(crate) fn suspend(time: Duration) {
        SUSPENDED.set(SUSPENDED.get() + time);
    }

    #[tokio::test(start_paused = true)]
    async fn the_engine_clock_includes_suspended_time() {
        let hour = Duration::from_secs(3600);
        suspend(hour);
        let clock = EngineClock::new();
        assert_eq!(clock.now(), ProcessTime::default(), "what was before it does not count");
        tokio::time::sleep(Duration::from_secs(1)).await;
        suspend(hour);
        assert_eq!(clock.now(), ProcessTime::from_millis(3_601_000));
        // A deadline that passed while the machine slept fires at once.
        let before = Instant::now();
        clock.sleep_until(Some(ProcessTime::from_millis(3_600_000))).await;
        assert_eq!(before.elapsed(), Duration::ZERO);
        clock.sleep_until(Some(ProcessTime::from_millis(3_602_000))).await;
        assert_eq!(before.elapsed(), Duration::from_secs(1));
    }

    #[test]
    fn a_machine_that_is_awake_is_not_suspended() {
        let before = suspended();
        let (counting_before, awake_before) = read_clocks();
        while read_clocks().1.duration_since(awake_before) < Duration::from_millis(20) {}
        let counted = read_clocks().0.saturating_sub(counting_before);
        assert!(counted >= Duration::from_millis(20) || counted.is_zero(), "{counted:?}");
        assert!(suspended().saturating_sub(before) < Duration::from_millis(20));
    }
}
