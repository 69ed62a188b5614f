//! The deadline of a request, on the clock of the engine.

use std::time::Duration;

use semel_core::ProcessTime;

use crate::clock::EngineClock;

/// The time after which a client no longer waits for its answer, from
/// [`Semel::deadline_in`](crate::Semel::deadline_in).
///
/// An operation does not begin after it. An operation that has begun is not cancelled: its answer
/// is recorded, and a later request with the same key gets it.
#[derive(Clone, Copy, Debug)]
pub struct Deadline {
    at: ProcessTime,
    clock: EngineClock,
}

impl Deadline {
    pub(crate) fn new(clock: EngineClock, left: Duration) -> Self {
        Self { at: clock.now().after(left), clock }
    }

    pub(crate) const fn at(self) -> ProcessTime {
        self.at
    }

    /// The time that is left; zero once it has passed.
    #[must_use]
    pub fn left(self) -> Duration {
        self.at.since(self.clock.now())
    }

    /// Whether it has passed.
    #[must_use]
    pub fn has_passed(self) -> bool {
        self.at <= self.clock.now()
    }

    /// Waits until it has passed.
    pub async fn wait(self) {
        // A timer that was started before a suspend fires late, and never early.
        self.clock.sleep_until(Some(self.at)).await;
    }
}
