//! The monotonic clock of this process, in the words of the request machine.
//!
//! It is tokio's clock, so that a test can stop it. Like every such clock it stands still while the
//! machine is suspended; the fence is what catches an owner that slept through its lease.

use std::time::Duration;

use semel_core::ProcessTime;
use tokio::time::{Instant, sleep_until};

#[derive(Clone, Copy, Debug)]
pub(crate) struct Clock {
    origin: Instant,
}

impl Clock {
    pub(crate) fn new() -> Self {
        Self { origin: Instant::now() }
    }

    /// To the nanosecond.
    pub(crate) fn elapsed(self) -> Duration {
        self.origin.elapsed()
    }

    pub(crate) fn now(self) -> ProcessTime {
        ProcessTime::default().after(self.origin.elapsed())
    }

    /// Sleeps until `alarm`; without one, for ever.
    pub(crate) async fn sleep_until(self, alarm: Option<ProcessTime>) {
        let instant = alarm
            .and_then(|alarm| self.origin.checked_add(Duration::from_millis(alarm.as_millis())));
        match instant {
            Some(instant) => sleep_until(instant).await,
            None => std::future::pending().await,
        }
    }
}
