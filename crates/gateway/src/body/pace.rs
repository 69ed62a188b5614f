//! Limits how slowly a client may send a request body. Only the time counts in which the gateway
//! waits for the client, not the time in which the upstream accepts nothing.

use std::{
    sync::Arc,
    task::{Context, Poll, ready},
    time::Duration,
};

use tokio::time::Instant;

use semel_config::Limits;
use semel_telemetry::metrics::EvictionReason;

use crate::connections::{AwaitedBody, OpenConnection};
use semel_http1::lazy_timer::SharedLazyTimer;

/// Limits for slow bodies.
#[derive(Clone, Copy, Debug)]
pub(crate) struct BodyLimits {
    start: Duration,
    timeout: Duration,
    rate: u64,
}

impl BodyLimits {
    pub(crate) const fn new(limits: &Limits) -> Self {
        let Limits { body_start_timeout: start, body_timeout: timeout, body_rate: rate, .. } =
            *limits;
        Self { start, timeout, rate }
    }
}

/// The limits that apply to a body.
#[derive(Debug)]
pub(crate) enum PaceRule {
    /// A body that is read before the request is handled: it must be complete within the timeout,
    /// and start earlier.
    Buffered(AwaitedBody),
    /// A streamed body: an idle timeout, and a minimum rate after a while.
    Streamed,
    /// A minimum rate after a while, without an idle timeout.
    Paced,
    /// No limit: one side of a bidirectional stream.
    Unlimited,
}

/// Tracks the pace of a body.
#[derive(Debug)]
pub(crate) struct BodyPace {
    rule: PaceRule,
    limits: BodyLimits,
    connection: Arc<OpenConnection>,
    /// The timer of the connection, or its own, created when it is needed.
    timer: Option<SharedLazyTimer>,
    bytes: u64,
    /// Total time of the earlier waits.
    waited: Duration,
    /// Start of the current wait.
    since: Option<Instant>,
}

impl BodyPace {
    pub(crate) const fn new(
        rule: PaceRule,
        limits: BodyLimits,
        connection: Arc<OpenConnection>,
        timer: Option<SharedLazyTimer>,
    ) -> Self {
        Self { rule, limits, connection, timer, bytes: 0, waited: Duration::ZERO, since: None }
    }

    /// Records that this many bytes or the end arrived.
    pub(crate) fn record(&mut self, bytes: usize) {
        self.bytes = self.bytes.saturating_add(bytes.try_into().unwrap_or(u64::MAX));
        if let Some(since) = self.since.take() {
            self.waited = self.waited.saturating_add(since.elapsed());
        }
        if let PaceRule::Buffered(body) = &mut self.rule {
            body.stop_waiting();
        }
    }

    /// Ready with the exceeded limit when the client is too slow.
    pub(crate) fn poll(&mut self, context: &mut Context<'_>) -> Poll<Duration> {
        let since = *self.since.get_or_insert_with(Instant::now);
        if let PaceRule::Buffered(body) = &mut self.rule {
            body.start_waiting();
        }
        let Some((left, limit, reason)) = self.left() else { return Poll::Pending };
        let timer = self.timer.get_or_insert_default();
        ready!(timer.poll(since + left, context));
        self.connection.metrics().evicted(reason);
        Poll::Ready(limit)
    }

    /// Maximum duration of the current wait, its limit, and the reason to report.
    fn left(&self) -> Option<(Duration, Duration, EvictionReason)> {
        let BodyLimits { start, timeout, rate } = self.limits;
        let waits = |limit: Duration, reason| (limit.saturating_sub(self.waited), limit, reason);
        let by_rate = || {
            let earned = self.bytes.checked_div(rate).map(Duration::from_secs)?;
            Some(waits(timeout.saturating_add(earned), EvictionReason::BodyRate))
        };
        match self.rule {
            PaceRule::Buffered(_) if self.bytes == 0 && start < timeout => {
                Some(waits(start, EvictionReason::BodyStart))
            }
            PaceRule::Buffered(_) => Some(waits(timeout, EvictionReason::BodyTimeout)),
            PaceRule::Streamed => {
                let idle_timeout = (timeout, timeout, EvictionReason::BodyTimeout);
                Some(by_rate().filter(|by_rate| by_rate.0 < timeout).unwrap_or(idle_timeout))
            }
            PaceRule::Paced => by_rate(),
            PaceRule::Unlimited => None,
        }
    }
}

#[cfg(test)]
mod tests {
    use std::{future::poll_fn, net::Ipv4Addr};

    use tokio::time::{sleep, timeout};

    use super::*;
    use crate::connections::Connections;
    use semel_telemetry::metrics::Metrics;

    fn connection() -> Arc<OpenConnection> {
        let permit =
            Connections::new(1, &Metrics::new([])).try_admit((Ipv4Addr::LOCALHOST, 1).into());
        Arc::clone(permit.unwrap().connection())
    }

    impl BodyPace {
        /// 3 s to start, 30 s in total, and 100 bytes per second.
        pub(crate) fn test(rule: PaceRule) -> Self {
            let (start, timeout) = (Duration::from_secs(3), Duration::from_secs(30));
            Self::new(rule, BodyLimits { start, timeout, rate: 100 }, connection(), None)
        }
    }

    /// How long a body is accepted that sends `bytes` at each interval.
    async fn lasts(mut pace: BodyPace, bytes: usize, every: Duration) -> Duration {
        let begun = Instant::now();
        while timeout(every, poll_fn(|context| pace.poll(context))).await.is_err() {
            pace.record(bytes);
            // Time in which the upstream is slow does not count.
            sleep(every).await;
            if begun.elapsed() > Duration::from_secs(3600) {
                break;
            }
        }
        begun.elapsed()
    }

    #[tokio::test(start_paused = true)]
    async fn a_buffered_body_has_a_start_timeout_and_a_total_timeout() {
        let whole = || BodyPace::test(PaceRule::Buffered(AwaitedBody::new(connection())));
        let second = Duration::from_secs(1);
        assert_eq!(lasts(whole(), 0, second * 60).await, second * 3);
        assert_eq!(lasts(whole(), 1, second).await, second * 59, "half of the time is not a wait");
    }

    #[tokio::test(start_paused = true)]
    async fn a_streamed_body_has_an_idle_timeout_and_a_minimum_rate() {
        let streamed = || BodyPace::test(PaceRule::Streamed);
        let second = Duration::from_secs(1);
        assert_eq!(lasts(streamed(), 0, second * 60).await, second * 30);
        // 50 bytes in 20 s of waiting earn no extra time.
        assert_eq!(lasts(streamed(), 50, second * 20).await, second * 50);
        assert!(lasts(streamed(), 100, second).await > second * 3600, "fast enough");
    }

    #[tokio::test(start_paused = true)]
    async fn bytes_sent_before_earn_a_stream_idle_time() {
        let second = Duration::from_secs(1);
        let mut paced = BodyPace::test(PaceRule::Paced);
        paced.record(7000);
        assert_eq!(lasts(paced, 0, second * 600).await, second * 100);
        let conversation = BodyPace::test(PaceRule::Unlimited);
        assert!(lasts(conversation, 0, second * 60).await > second * 3600);
    }
}
