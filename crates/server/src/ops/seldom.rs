//! Lines of the log that a client could write as often as it likes.

use std::{
    sync::atomic::{AtomicU64, Ordering},
    time::Duration,
};

use tokio::time::Instant;

/// How long something that repeats is only counted after it was logged, where nothing else is said.
const SILENCE: Duration = Duration::from_secs(10);

/// Something that may happen ten thousand times a second and is said now and then.
#[derive(Debug)]
pub(crate) struct Seldom {
    origin: Instant,
    silence: Duration,
    /// When it may be said again, in milliseconds since the origin.
    next: AtomicU64,
    unsaid: AtomicU64,
}

impl Seldom {
    pub(crate) fn new() -> Self {
        Self::every(SILENCE)
    }

    /// It is said this often at most.
    pub(crate) fn every(silence: Duration) -> Self {
        let (next, unsaid) = (AtomicU64::new(0), AtomicU64::new(0));
        Self { origin: Instant::now(), silence, next, unsaid }
    }

    /// Whether to say it now, and if so how many times it was left unsaid since the last time.
    pub(crate) fn say(&self) -> Option<u64> {
        let millis = |time: Duration| u64::try_from(time.as_millis()).unwrap_or(u64::MAX);
        let (now, next) = (millis(self.origin.elapsed()), self.next.load(Ordering::Relaxed));
        let then = now.saturating_add(millis(self.silence));
        let taken = now >= next
            && self.next.compare_exchange(next, then, Ordering::Relaxed, Ordering::Relaxed).is_ok();
        if taken {
            Some(self.unsaid.swap(0, Ordering::Relaxed))
        } else {
            self.unsaid.fetch_add(1, Ordering::Relaxed);
            None
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test(start_paused = true)]
    async fn what_repeats_is_said_now_and_then_with_a_count() {
        let seldom = Seldom::new();
        assert_eq!(seldom.say(), Some(0));
        assert_eq!((seldom.say(), seldom.say()), (None, None));
        tokio::time::advance(SILENCE).await;
        assert_eq!(seldom.say(), Some(2));
        assert_eq!(seldom.say(), None);
    }
}
