//! Rate limit for log lines that clients can trigger.

use std::{
    sync::atomic::{AtomicU64, Ordering},
    time::Duration,
};

use tokio::time::Instant;

/// Default minimum time between two lines.
const LOG_INTERVAL_DEFAULT: Duration = Duration::from_secs(10);

/// Allows one log line per interval and counts the suppressed ones.
#[derive(Debug)]
pub struct LogThrottle {
    origin: Instant,
    interval: Duration,
    /// Earliest time of the next line, in milliseconds since the origin.
    next: AtomicU64,
    suppressed: AtomicU64,
}

impl Default for LogThrottle {
    /// Allows one line in each period of the default length.
    fn default() -> Self {
        Self::every(LOG_INTERVAL_DEFAULT)
    }
}

impl LogThrottle {
    /// Allows one line per interval.
    pub fn every(interval: Duration) -> Self {
        let (next, suppressed) = (AtomicU64::new(0), AtomicU64::new(0));
        Self { origin: Instant::now(), interval, next, suppressed }
    }

    /// `Some(suppressed)` if a line may be logged now, with the number of lines suppressed since
    /// the last one.
    pub fn allow(&self) -> Option<u64> {
        let millis = |time: Duration| u64::try_from(time.as_millis()).unwrap_or(u64::MAX);
        let (now, next) = (millis(self.origin.elapsed()), self.next.load(Ordering::Relaxed));
        let then = now.saturating_add(millis(self.interval));
        let taken = now >= next
            && self.next.compare_exchange(next, then, Ordering::Relaxed, Ordering::Relaxed).is_ok();
        if taken {
            Some(self.suppressed.swap(0, Ordering::Relaxed))
        } else {
            self.suppressed.fetch_add(1, Ordering::Relaxed);
            None
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test(start_paused = true)]
    async fn one_line_per_interval_is_allowed_with_the_number_suppressed() {
        let throttle = LogThrottle::default();
        assert_eq!(throttle.allow(), Some(0));
        assert_eq!((throttle.allow(), throttle.allow()), (None, None));
        tokio::time::advance(LOG_INTERVAL_DEFAULT).await;
        assert_eq!(throttle.allow(), Some(2));
        assert_eq!(throttle.allow(), None);
    }
}
