//! Timers that are set for every request and almost never ring.
//!
//! Each request on a connection has the same time for its head, for its body and for its answer,
//! so each of these alarms moves on and on. To set and to clear a timer of the runtime every time
//! would cost more than all the rest of it; so the timer stays where it is, and when it rings too
//! early it is set to where the alarm is by then.

use std::{
    future::Future,
    pin::Pin,
    sync::{Arc, Mutex, PoisonError},
    task::{Context, Poll, ready},
};

use tokio::time::{Instant, Sleep, sleep_until};

/// A timer that is used again and again.
#[derive(Debug, Default)]
pub(crate) struct Alarm(Option<Pin<Box<Sleep>>>);

impl Alarm {
    /// Ready when it is as late as this.
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

/// An alarm that several have, of whom one uses it at a time.
#[derive(Clone, Debug, Default)]
pub(crate) struct SharedAlarm(Arc<Mutex<Alarm>>);

impl SharedAlarm {
    /// Ready when it is as late as this.
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
    async fn an_alarm_that_moves_on_rings_at_its_last_deadline() {
        let mut alarm = Alarm::default();
        let begun = Instant::now();
        for _ in 0..10 {
            let deadline = Instant::now() + SECOND * 3;
            let ringing = poll_fn(|context| alarm.poll(deadline, context));
            assert!(timeout(SECOND, ringing).await.is_err(), "too early");
        }
        let deadline = begun + SECOND * 12;
        poll_fn(|context| alarm.poll(deadline, context)).await;
        assert_eq!(Instant::now(), deadline);
    }

    #[tokio::test(start_paused = true)]
    async fn an_alarm_can_be_set_to_an_earlier_time() {
        let mut alarm = Alarm::default();
        let late = Instant::now() + SECOND * 60;
        let ringing = poll_fn(|context| alarm.poll(late, context));
        assert!(timeout(SECOND, ringing).await.is_err());
        let soon = Instant::now() + SECOND;
        poll_fn(|context| alarm.poll(soon, context)).await;
        assert_eq!(Instant::now(), soon);
    }

    #[tokio::test(start_paused = true)]
    async fn an_alarm_that_rang_while_nobody_listened_rings_again_when_it_should() {
        let mut alarm = Alarm::default();
        let first = Instant::now() + SECOND;
        let once = poll_fn(|context| Poll::Ready(alarm.poll(first, context)));
        assert!(once.await.is_pending());
        advance(SECOND * 100).await;
        let second = Instant::now() + SECOND;
        poll_fn(|context| alarm.poll(second, context)).await;
        assert_eq!(Instant::now(), second);
    }
}
