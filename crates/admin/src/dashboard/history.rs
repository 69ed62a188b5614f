//! The last hour of this process, in buckets of 30 seconds: bounded, and gone with the process.

use std::{collections::VecDeque, time::Duration};

use jiff::Timestamp;
use semel::core::Problem;
use semel_telemetry::metrics::{LatencyCounts, Totals};
use tokio::time::Instant;

/// The length of a bucket, and their number.
const BUCKET: Duration = Duration::from_secs(30);
pub(super) const BUCKETS: usize = 120;

/// The problems of repeats that would have run an operation a second time.
const DUPLICATE_PROBLEMS: [Problem; 4] = [
    Problem::InProgress,
    Problem::OutcomeUnknown,
    Problem::ResponseNotRetained,
    Problem::OperationFailed,
];

/// What happened within a bucket.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(super) struct Bucket {
    pub(super) ran: u64,
    pub(super) prevented: u64,
    pub(super) refused: u64,
    pub(super) in_flight_max: u64,
    pub(super) waiting_max: u64,
    pub(super) held: u64,
    pub(super) p50: Option<Duration>,
    pub(super) p99: Option<Duration>,
}

/// The gauges of the engine at one moment.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct Gauges {
    pub(super) in_flight: u64,
    pub(super) waiting: u64,
    pub(super) held: u64,
    /// Whether there may be more held records than were counted.
    pub(super) held_is_cut: bool,
}

/// The counters of this process, and what they were in the last hour.
#[derive(Debug)]
pub(super) struct History {
    pub(super) began: Timestamp,
    /// The counters now, and at the start of the current bucket.
    pub(super) now: Totals,
    bucket_start: Totals,
    bucket_began: Instant,
    pub(super) gauges: Gauges,
    /// The oldest first; the last is the current one.
    buckets: VecDeque<Bucket>,
}

impl History {
    pub(super) fn new(now: Totals) -> Self {
        Self {
            began: Timestamp::now(),
            bucket_start: now.clone(),
            now,
            bucket_began: Instant::now(),
            gauges: Gauges::default(),
            buckets: VecDeque::from([Bucket::default()]),
        }
    }

    /// Adds what was counted until now.
    pub(super) fn record(&mut self, now: Totals, gauges: Gauges) {
        // After a suspend there may be many to skip, but never more than are kept.
        for _ in 0..BUCKETS {
            if self.bucket_began.elapsed() < BUCKET {
                break;
            }
            self.bucket_began += BUCKET;
            self.bucket_start.clone_from(&self.now);
            self.buckets.push_back(Bucket::default());
            if self.buckets.len() > BUCKETS {
                self.buckets.pop_front();
            }
        }
        if self.bucket_began.elapsed() >= BUCKET {
            self.bucket_began = Instant::now();
        }
        (self.now, self.gauges) = (now, gauges);
        let latency = self.latency_of_bucket();
        let Some(bucket) = self.buckets.back_mut() else { return };
        let since =
            |count: fn(&Totals) -> u64| count(&self.now).saturating_sub(count(&self.bucket_start));
        bucket.ran = since(|totals| totals.executed);
        bucket.prevented = since(prevented);
        bucket.refused = since(refused);
        bucket.in_flight_max = bucket.in_flight_max.max(gauges.in_flight);
        bucket.waiting_max = bucket.waiting_max.max(gauges.waiting);
        bucket.held = gauges.held;
        bucket.p50 = latency.percentile(50);
        bucket.p99 = latency.percentile(99);
    }

    fn latency_of_bucket(&self) -> LatencyCounts {
        self.now.store_latency().since(&self.bucket_start.store_latency())
    }

    /// The buckets, the oldest first; those before the start of the process are `None`.
    pub(super) fn buckets(&self) -> impl Iterator<Item = Option<&Bucket>> {
        let missing = BUCKETS.saturating_sub(self.buckets.len());
        std::iter::repeat_n(None, missing).chain(self.buckets.iter().map(Some))
    }

    /// The sum over the current bucket and the two before it.
    pub(super) fn recent(&self, count: fn(&Bucket) -> u64) -> u64 {
        self.buckets.iter().rev().take(3).map(count).sum()
    }
}

/// Repeats that got an answer, or a refusal, instead of running the operation again.
pub(super) fn prevented(totals: &Totals) -> u64 {
    let refused = DUPLICATE_PROBLEMS.map(|problem| totals.refused_for(problem));
    refused.into_iter().sum::<u64>().saturating_add(totals.joined).saturating_add(totals.replayed)
}

/// Refusals of other kinds.
pub(super) fn refused(totals: &Totals) -> u64 {
    let duplicates = DUPLICATE_PROBLEMS.map(|problem| totals.refused_for(problem));
    totals.refusals().saturating_sub(duplicates.into_iter().sum())
}

#[cfg(test)]
mod tests {
    use tokio::time::advance;

    use super::*;

    fn totals(executed: u64, replayed: u64) -> Totals {
        let refused = vec![(Problem::KeyReused, 1), (Problem::InProgress, 2)];
        Totals { executed, replayed, refused, ..Totals::default() }
    }

    #[tokio::test(start_paused = true)]
    async fn a_bucket_has_what_was_counted_within_it() {
        let mut history = History::new(Totals::default());
        let busy = Gauges { in_flight: 7, ..Gauges::default() };
        history.record(totals(3, 1), busy);
        history.record(totals(5, 4), Gauges::default());
        advance(BUCKET).await;
        history.record(totals(6, 4), Gauges::default());
        let last: Vec<Bucket> = history.buckets().flatten().cloned().collect();
        let [first, second] = &last[..] else { panic!("{last:?}") };
        assert_eq!((first.ran, first.prevented, first.refused), (5, 6, 1));
        assert_eq!(first.in_flight_max, 7);
        assert_eq!((second.ran, second.prevented, second.refused), (1, 0, 0));
        assert_eq!(history.buckets().count(), BUCKETS);
    }

    #[tokio::test(start_paused = true)]
    async fn an_hour_is_kept_however_long_the_process_slept() {
        let mut history = History::new(Totals::default());
        for number in 0..200 {
            history.record(totals(number, 0), Gauges::default());
            advance(BUCKET).await;
        }
        assert_eq!(history.buckets().flatten().count(), BUCKETS);
        advance(Duration::from_secs(1_000_000)).await;
        history.record(totals(1000, 0), Gauges::default());
        let ran: u64 = history.buckets().flatten().map(|bucket| bucket.ran).sum();
        assert_eq!((history.buckets().count(), ran), (BUCKETS, 801));
    }
}
