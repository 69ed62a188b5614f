//! Timers that are set for every request and almost never fire.
//!
//! Each request on a connection has the same timeouts for its head, its body and its response, so
//! each deadline moves forward again and again. Resetting a runtime timer every time would be
//! expensive. So a lazy timer stays registered for an old deadline, and when it fires too early it
//! is reset to the current one.

use std::{
    future::Future,
    pin::Pin,
    sync::{Arc, Mutex, PoisonError},
    task::{Context, Poll, ready},
};

use tokio::time::{Instant, Sleep, sleep_until};

/// A reusable timer.
#[derive(Debug, Default)]
pub(crate) struct LazyTimer(Option<Pin<Box<Sleep>>>);

impl LazyTimer {
    /// Ready when the deadline is reached.
    pub(crate) fn poll(&mut self, deadline: Instant, context: &mut Context<'_>) -> Poll<()> {
        let sleep = self.0.get_or_insert_with(|| Box::pin(sleep_until(deadline)));
        if sleep.deadline() > deadline {
            sleep.as_mut().reset(deadline);
        }
        loop {
            ready!(sleep.as_mut().poll(context));
            if sleep.deadline() >= deadline {
                return Poll::Ready(());
            }
            sleep.as_mut().reset(deadline);
        }
    }
}

/// A timer with several owners, of which one uses it at a time.
#[derive(Clone, Debug, Default)]
pub(crate) struct SharedLazyTimer(Arc<Mutex<LazyTimer>>);

impl SharedLazyTimer {
    /// Ready when the deadline is reached.
    pub(crate) fn poll(&self, deadline: Instant, context: &mut Context<'_>) -> Poll<()> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner).poll(deadline, context)
    }
}

#[cfg(test)]
mod tests {
    use std::{future::poll_fn, time::Duration};

    use tokio::time::{advance, timeout};

    use super::*;

    const SECOND: Duration = Duration::from_secs(1);

    #[tokio::test(start_paused = true)]
    async fn a_timer_whose_deadline_moves_forward_fires_at_the_last_deadline() {
        let mut timer = LazyTimer::default();
        let begun = Instant::now();
        for _ in 0..10 {
            let deadline = Instant::now() + SECOND * 3;
            let expiry = poll_fn(|context| timer.poll(deadline, context));
            assert!(timeout(SECOND, expiry).await.is_err(), "too early");
        }
        let deadline = begun + SECOND * 12;
        poll_fn(|context| timer.poll(deadline, context)).await;
        assert_eq!(Instant::now(), deadline);
    }

    #[tokio::test(start_paused = true)]
    async fn a_timer_can_be_set_to_an_earlier_deadline() {
        let mut timer = LazyTimer::default();
        let late = Instant::now() + SECOND * 60;
        let expiry = poll_fn(|context| timer.poll(late, context));
        assert!(timeout(SECOND, expiry).await.is_err());
        let soon = Instant::now() + SECOND;
        poll_fn(|context| timer.poll(soon, context)).await;
        assert_eq!(Instant::now(), soon);
    }

    #[tokio::test(start_paused = true)]
    async fn a_timer_that_expired_without_a_poll_fires_at_its_next_deadline() {
        let mut timer = LazyTimer::default();
        let first = Instant::now() + SECOND;
        let once = poll_fn(|context| Poll::Ready(timer.poll(first, context)));
        assert!(once.await.is_pending());
        advance(SECOND * 100).await;
        let second = Instant::now() + SECOND;
        poll_fn(|context| timer.poll(second, context)).await;
        assert_eq!(Instant::now(), second);
    }
}
