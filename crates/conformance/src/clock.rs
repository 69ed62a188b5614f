//! A clock that stands still until a test moves it.

use std::{
    sync::{
        Arc,
        atomic::{AtomicU64, Ordering},
    },
    time::Duration,
};

use semel_core::time::millis;

/// Where a new clock stands. Not zero, so that an origin taken for an instant shows.
const START_MILLIS: u64 = 1_000_000_000;

/// A clock that stands still until a test moves it. Clones are the same clock.
///
/// ```
/// use std::time::Duration;
/// use semel_conformance::clock::ManualClock;
///
/// let clock = ManualClock::new();
/// let read = clock.reader();
/// let before = read();
/// clock.advance(Duration::from_secs(5));
/// assert_eq!(read() - before, Duration::from_secs(5));
/// ```
#[derive(Clone, Debug)]
pub struct ManualClock(Arc<AtomicU64>);

impl ManualClock {
    /// A clock of its own.
    #[must_use]
    pub fn new() -> Self {
        Self(Arc::new(AtomicU64::new(START_MILLIS)))
    }

    /// Moves the clock forward. It counts whole milliseconds, as stores do.
    pub fn advance(&self, by: Duration) {
        self.0.fetch_add(millis(by), Ordering::SeqCst);
    }

    /// The time since the clock's origin.
    #[must_use]
    pub fn now(&self) -> Duration {
        Duration::from_millis(self.0.load(Ordering::SeqCst))
    }

    /// What a store takes as its clock.
    pub fn reader(&self) -> impl Fn() -> Duration + Send + Sync + 'static {
        let clock = self.clone();
        move || clock.now()
    }
}

impl Default for ManualClock {
    fn default() -> Self {
        Self::new()
    }
}
