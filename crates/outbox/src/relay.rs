//! The relay: reads committed messages, delivers them, and remembers how far it is.
//!
//! One task does everything in rounds: renew leases, try what is aside and due, fetch a batch,
//! deliver it, move the cursors. Whatever goes wrong at the database, it forgets its state and
//! loads it again.

use std::{
    pin::{Pin, pin},
    sync::{
        Arc,
        atomic::{AtomicU64, Ordering},
    },
    time::Duration,
};

use semel_core::retry::{Backoff, Jitter};
use tokio::{
    select,
    sync::Notify,
    task::JoinSet,
    time::{Instant, sleep, timeout},
};
use tracing::{info, warn};

use crate::{
    Delivery, OutboxMessage, Sink,
    batch::{DeliveryBatch, FailedLane},
    lanes::{Lanes, failed_attempt, random},
    store::{AsideMessage, OutboxError, RelayStore},
};

/// The delays while the database or the receiver is unavailable.
const OUTAGE_BACKOFF: Backoff = Backoff {
    base: Duration::from_millis(100),
    throttled_base: Duration::from_millis(100),
    max: Duration::from_secs(10),
    jitter: Jitter::HalfAboveBase,
};

/// How a relay works.
#[derive(Clone, Copy, Debug)]
#[non_exhaustive]
pub struct RelayOptions {
    /// The longest time until a message is found that another process has sent.
    pub poll_interval: Duration,
    /// The longest time for which delivered messages are not saved as delivered. A crash repeats
    /// them.
    pub save_interval: Duration,
    /// Failed attempts after which a message is parked.
    pub attempts_max: u32,
    /// Messages aside at which the relay stops until they are delivered or an operator acts.
    pub aside_max: u64,
    /// The longest time for which a stop waits for running deliveries.
    pub drain: Duration,
}

impl Default for RelayOptions {
    fn default() -> Self {
        Self {
            poll_interval: Duration::from_millis(50),
            save_interval: Duration::from_millis(500),
            attempts_max: 10,
            aside_max: 10_000,
            drain: Duration::from_secs(30),
        }
    }
}

/// How often delivered messages past their retention are looked for.
const SWEEP_INTERVAL: Duration = Duration::from_secs(10);

/// What a relay has done, for metrics.
#[derive(Debug, Default)]
pub struct RelayMetrics {
    delivered: AtomicU64,
    failed: AtomicU64,
    buckets: AtomicU64,
    aside: AtomicU64,
    parked: AtomicU64,
    age_ms: AtomicU64,
}

impl RelayMetrics {
    /// Messages that were delivered, repeats included.
    pub fn delivered(&self) -> u64 {
        self.delivered.load(Ordering::Relaxed)
    }

    /// Attempts that failed.
    pub fn failed(&self) -> u64 {
        self.failed.load(Ordering::Relaxed)
    }

    /// Buckets that this relay owns.
    pub fn buckets(&self) -> u64 {
        self.buckets.load(Ordering::Relaxed)
    }

    /// Messages of these buckets that are aside.
    pub fn aside(&self) -> u64 {
        self.aside.load(Ordering::Relaxed)
    }

    /// Lanes of these buckets that wait for an operator.
    pub fn parked(&self) -> u64 {
        self.parked.load(Ordering::Relaxed)
    }

    /// The age of the oldest message of the last batch; zero when there was none.
    pub fn age(&self) -> Duration {
        Duration::from_millis(self.age_ms.load(Ordering::Relaxed))
    }
}

/// Wakes a relay in the same process, after a commit.
#[derive(Clone, Debug)]
pub struct RelayWaker(Arc<Notify>);

impl RelayWaker {
    /// Lets the relay look for messages now.
    pub fn wake(&self) {
        self.0.notify_one();
    }
}

/// Delivers the messages of an outbox to a sink.
pub struct Relay<S> {
    store: S,
    sink: Arc<dyn Sink>,
    options: RelayOptions,
    metrics: Arc<RelayMetrics>,
    wake: Arc<Notify>,
    batch: Option<DeliveryBatch>,
    lanes: Lanes,
    attempts: JoinSet<AttemptReport>,
    balance_at: Option<Instant>,
    sweep_at: Option<Instant>,
    save_at: Option<Instant>,
}

/// An attempt to deliver the first message of a lane that is aside.
struct AttemptReport {
    lane: (i16, String),
    number: i64,
    attempts: u32,
    /// The delivered messages when it began.
    delivered_before: u64,
    delivery: Delivery,
}

/// What to do after a round.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum NextRound {
    Now,
    After(Duration),
}

impl<S: RelayStore> Relay<S> {
    /// A relay from this outbox to this sink.
    #[must_use]
    pub fn new(store: S, sink: impl Sink) -> Self {
        Self {
            store,
            sink: Arc::new(sink),
            options: RelayOptions::default(),
            metrics: Arc::default(),
            wake: Arc::default(),
            batch: None,
            lanes: Lanes::default(),
            attempts: JoinSet::new(),
            balance_at: None,
            sweep_at: None,
            save_at: None,
        }
    }

    /// Other options than the default ones.
    #[must_use]
    pub const fn options(mut self, options: RelayOptions) -> Self {
        self.options = options;
        self
    }

    /// Wakes this relay.
    #[must_use]
    pub fn waker(&self) -> RelayWaker {
        RelayWaker(Arc::clone(&self.wake))
    }

    /// What this relay does.
    #[must_use]
    pub fn metrics(&self) -> Arc<RelayMetrics> {
        Arc::clone(&self.metrics)
    }

    /// Delivers messages until `shutdown` completes. Then it finishes its batch, saves its cursors
    /// and gives its leases back.
    pub async fn run(mut self, shutdown: impl Future<Output = ()>) {
        let mut shutdown = pin!(shutdown);
        let mut errors: u32 = 0;
        loop {
            let (next, is_stopping) = self.round_until(shutdown.as_mut()).await;
            let next = match next {
                Some(Ok(next)) => {
                    errors = 0;
                    next
                }
                Some(Err(error)) => {
                    let pause = OUTAGE_BACKOFF.delay(errors, random());
                    errors = errors.saturating_add(1);
                    warn!(%error, attempts = errors, "the relay cannot use its database");
                    self.reset();
                    NextRound::After(pause)
                }
                None => break,
            };
            if is_stopping || self.pause(next, shutdown.as_mut()).await {
                break;
            }
        }
        let stopped = timeout(self.options.drain, self.stop()).await;
        if let Ok(Err(error)) = stopped {
            warn!(%error, "the relay could not give its leases back; they lapse");
        }
    }

    /// One round. After a shutdown it may take as long as the drain time; `None` if it did not end.
    async fn round_until(
        &mut self,
        mut shutdown: Pin<&mut impl Future<Output = ()>>,
    ) -> (Option<Result<NextRound, OutboxError>>, bool) {
        let drain = self.options.drain;
        let mut round = pin!(self.round());
        select! {
            biased;
            () = shutdown.as_mut() => (timeout(drain, round).await.ok(), true),
            next = &mut round => (Some(next), false),
        }
    }

    /// Waits for the next round; `true` for a shutdown.
    async fn pause(
        &mut self,
        next: NextRound,
        shutdown: Pin<&mut impl Future<Output = ()>>,
    ) -> bool {
        let NextRound::After(pause) = next else { return false };
        let is_outage = self.batch.is_some();
        select! {
            () = shutdown => true,
            () = sleep(pause) => false,
            () = self.wake.notified(), if !is_outage => false,
        }
    }

    fn reset(&mut self) {
        self.store.reset();
        self.batch = None;
        self.lanes = Lanes::default();
        self.attempts = JoinSet::new();
        self.balance_at = None;
        self.save_at = None;
        self.metrics.buckets.store(0, Ordering::Relaxed);
    }

    async fn round(&mut self) -> Result<NextRound, OutboxError> {
        self.balance().await?;
        self.try_aside().await?;
        if self.batch.is_none() && !self.fetch().await? {
            return Ok(NextRound::After(self.options.poll_interval));
        }
        let balance_interval = self.store.lease() / 3;
        let Some(batch) = &mut self.batch else { return Ok(NextRound::Now) };
        let pass = {
            let mut pass = pin!(batch.deliver(&self.sink));
            loop {
                select! {
                    pass = &mut pass => break pass,
                    () = sleep(balance_interval) => self.store.renew().await?,
                }
            }
        };
        self.metrics.delivered.fetch_add(pass.delivered, Ordering::Relaxed);
        for lane in pass.failed {
            self.move_aside(lane);
        }
        if let Some((reason, after)) = pass.outage {
            let outage = self.batch.as_ref().map_or(0, DeliveryBatch::outage);
            if outage == 1 {
                warn!(reason, "the receiver is unavailable; the relay waits for it");
            }
            let pause = OUTAGE_BACKOFF.delay(outage.saturating_sub(1), random());
            let pause = pause.max(after.unwrap_or_default().min(OUTAGE_BACKOFF.max));
            return Ok(NextRound::After(pause));
        }
        if self.batch.as_ref().is_some_and(DeliveryBatch::is_done) {
            self.end_batch().await?;
        }
        Ok(NextRound::Now)
    }

    /// Shares the buckets out again, when it is time. With a batch in hand, it only renews.
    async fn balance(&mut self) -> Result<(), OutboxError> {
        let now = Instant::now();
        if self.balance_at.is_some_and(|at| now < at) {
            return Ok(());
        }
        self.balance_at = Some(now + self.store.lease() / 3);
        if self.batch.is_some() {
            return self.store.renew().await;
        }
        self.store.save(Vec::new()).await?;
        self.save_at = None;
        let buckets = self.store.balance().await?;
        let before =
            self.metrics.buckets.swap(u64::try_from(buckets).unwrap_or(0), Ordering::Relaxed);
        if before == 0 && buckets > 0 {
            info!(buckets, "the relay delivers");
        }
        self.lanes.reload(self.store.lanes().await?, now);
        if self.sweep_at.is_none_or(|at| now >= at) {
            self.sweep_at = Some(now + SWEEP_INTERVAL);
            self.store.sweep().await?;
        }
        self.publish();
        Ok(())
    }

    /// Fetches the next batch; `false` if there is none.
    async fn fetch(&mut self) -> Result<bool, OutboxError> {
        if self.lanes.messages() >= self.options.aside_max {
            return Ok(false);
        }
        let messages = self.store.fetch().await?;
        let age = messages.iter().map(|message| message.age).max().unwrap_or_default();
        self.metrics
            .age_ms
            .store(u64::try_from(age.as_millis()).unwrap_or(u64::MAX), Ordering::Relaxed);
        if messages.is_empty() {
            self.store.advance();
            if self.save_at.is_some_and(|at| Instant::now() >= at) {
                self.store.save(Vec::new()).await?;
                self.save_at = None;
            }
            return Ok(false);
        }
        let lanes = &self.lanes;
        self.batch =
            Some(DeliveryBatch::new(messages, |bucket, lane| lanes.contains(bucket, lane)));
        Ok(true)
    }

    fn move_aside(&mut self, lane: FailedLane) {
        self.metrics.failed.fetch_add(1, Ordering::Relaxed);
        let FailedLane { messages, reason, after, refused } = lane;
        let Some(batch) = &mut self.batch else { return };
        let mut reason = Some(reason);
        for message in messages {
            let failed = reason.take().map(|reason| {
                let (number, limit) = (message.number, self.options.attempts_max);
                failed_attempt(number, 1, limit, refused, after, reason)
            });
            if let Some(failed) = &failed {
                let OutboxMessage { id, topic, .. } = &message;
                let (reason, parked) = (&failed.reason, failed.parked);
                warn!(%id, topic, reason, parked, "a message moves aside");
            }
            batch.aside.push(AsideMessage { message, failed });
        }
    }

    /// Moves the cursors, and saves them if it is time or messages move aside.
    async fn end_batch(&mut self) -> Result<(), OutboxError> {
        let Some(batch) = self.batch.take() else { return Ok(()) };
        self.store.advance();
        let now = Instant::now();
        let save_at = *self.save_at.get_or_insert(now + self.options.save_interval);
        if batch.aside.is_empty() && now < save_at {
            return Ok(());
        }
        let aside: Vec<_> = batch
            .aside
            .iter()
            .map(|aside| (aside.message.bucket, aside.message.lane(), aside.failed.clone()))
            .collect();
        self.store.save(batch.aside).await?;
        self.save_at = None;
        for (bucket, lane, failed) in aside {
            self.lanes.add(bucket, lane, failed.as_ref(), now);
        }
        self.publish();
        Ok(())
    }

    fn publish(&self) {
        self.metrics.aside.store(self.lanes.messages(), Ordering::Relaxed);
        self.metrics.parked.store(self.lanes.parked(), Ordering::Relaxed);
    }

    /// Ends the attempts that have completed, and begins those that are due.
    async fn try_aside(&mut self) -> Result<(), OutboxError> {
        while let Some(ended) = self.attempts.try_join_next() {
            // A sink that panics is retried with the next reload.
            if let Ok(report) = ended {
                self.end_attempt(report).await?;
            }
        }
        if self.batch.as_ref().is_some_and(|batch| batch.outage() > 0) {
            return Ok(());
        }
        let free = self.sink.concurrency().saturating_sub(self.attempts.len());
        for key in self.lanes.begin_due(Instant::now(), free) {
            let Some((message, lane)) = self.store.head(key.0, &key.1).await? else {
                self.lanes.remove(&key);
                continue;
            };
            let (sink, delivered_before) = (Arc::clone(&self.sink), self.metrics.delivered());
            self.attempts.spawn(async move {
                let delivery = sink.deliver(&message).await;
                let (number, attempts) = (message.number, lane.attempts);
                AttemptReport { lane: key, number, attempts, delivered_before, delivery }
            });
        }
        Ok(())
    }

    async fn end_attempt(&mut self, report: AttemptReport) -> Result<(), OutboxError> {
        let AttemptReport { lane, number, attempts, delivered_before, delivery } = report;
        let (reason, after, refused, is_counted) = match delivery {
            Delivery::Delivered => {
                self.metrics.delivered.fetch_add(1, Ordering::Relaxed);
                self.store.settle(number).await?;
                self.lanes.end(&lane, None, Instant::now());
                self.publish();
                return Ok(());
            }
            Delivery::Refused { reason } => (reason, None, true, true),
            Delivery::Failed { reason, after } => (reason, after, false, true),
            // Counted only where the receiver was available to others meanwhile.
            Delivery::Unavailable { reason, after } => {
                (reason, after, false, self.metrics.delivered() > delivered_before)
            }
        };
        self.metrics.failed.fetch_add(1, Ordering::Relaxed);
        let limit = if is_counted { self.options.attempts_max } else { u32::MAX };
        let attempts = attempts.saturating_add(u32::from(is_counted));
        let failed = failed_attempt(number, attempts, limit, refused, after, reason);
        self.store.defer(&failed).await?;
        self.lanes.end(&lane, Some(&failed), Instant::now());
        self.publish();
        Ok(())
    }

    async fn stop(&mut self) -> Result<(), OutboxError> {
        while let Some(ended) = self.attempts.join_next().await {
            if let Ok(report) = ended {
                self.end_attempt(report).await?;
            }
        }
        // A batch that did not end is fetched again by the next owner.
        self.store.save(Vec::new()).await?;
        self.store.release().await
    }
}

impl<S> std::fmt::Debug for Relay<S> {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Relay").field("options", &self.options).finish_non_exhaustive()
    }
}
