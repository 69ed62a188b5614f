//! The counters as sums over all scopes, for the dashboard.

use std::{array, sync::atomic::Ordering, time::Duration};

use semel::core::Problem;

use super::{
    AnswerKind, Metrics, OPERATIONS, RecordEvent, ScopeMetrics,
    histogram::{BOUNDS, Histogram},
};

/// What was counted since the process started.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Totals {
    /// Requests that ran the operation.
    pub executed: u64,
    /// Requests that got the answer of an execution that they met.
    pub joined: u64,
    /// Requests that got a recorded answer.
    pub replayed: u64,
    /// Refused requests, by problem; without those that never occurred.
    pub refused: Vec<(Problem, u64)>,
    /// Executions whose outcome was unknown at their end.
    pub held: u64,
    /// Records with an expired lease that maintenance settled.
    pub lapsed: u64,
    /// Records past retention that maintenance deleted.
    pub swept: u64,
    /// The calls of the store, by operation.
    pub store: [StoreTotals; OPERATIONS.len()],
}

/// What was counted of one operation of the store.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct StoreTotals {
    /// The operation, as its label names it.
    pub operation: &'static str,
    /// Calls that failed.
    pub errors: u64,
    /// How long the others took.
    pub latency: LatencyCounts,
}

/// How many calls took how long.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct LatencyCounts([u64; BOUNDS.len() + 1]);

impl Totals {
    /// Refusals for this problem.
    pub fn refused_for(&self, problem: Problem) -> u64 {
        self.refused.iter().find(|(known, _)| *known == problem).map_or(0, |(_, count)| *count)
    }

    /// All refusals.
    pub fn refusals(&self) -> u64 {
        self.refused.iter().map(|(_, count)| count).sum()
    }

    /// The latency of all operations of the store together.
    pub fn store_latency(&self) -> LatencyCounts {
        let mut sum = LatencyCounts::default();
        for operation in &self.store {
            sum.add(&operation.latency);
        }
        sum
    }
}

impl LatencyCounts {
    /// What was counted after `earlier`.
    #[must_use]
    pub fn since(&self, earlier: &Self) -> Self {
        let mut counts = self.clone();
        for (count, before) in counts.0.iter_mut().zip(&earlier.0) {
            *count = count.saturating_sub(*before);
        }
        counts
    }

    /// The number of calls.
    pub fn count(&self) -> u64 {
        self.0.iter().sum()
    }

    /// The time that this part of the calls did not exceed, in percent: the upper bound of a
    /// bucket. `None` without calls, and above the largest bound.
    pub fn percentile(&self, percent: u64) -> Option<Duration> {
        let rank = self.count().saturating_mul(percent).div_ceil(100).max(1);
        let mut seen = 0_u64;
        for (count, bound) in self.0.iter().zip(BOUNDS) {
            seen = seen.saturating_add(*count);
            if seen >= rank {
                return Some(Duration::from_micros(bound));
            }
        }
        None
    }

    fn add(&mut self, other: &Self) {
        for (count, more) in self.0.iter_mut().zip(&other.0) {
            *count = count.saturating_add(*more);
        }
    }
}

impl Histogram {
    fn counts(&self) -> LatencyCounts {
        let count = |bucket: usize| self.buckets.get(bucket).map_or(0, |it| it.load(ORDER));
        LatencyCounts(array::from_fn(count))
    }
}

const ORDER: Ordering = Ordering::Relaxed;

impl Metrics {
    /// The counters now.
    pub fn totals(&self) -> Totals {
        let mut totals = Totals {
            lapsed: self.lapsed.load(ORDER),
            swept: self.swept.load(ORDER),
            store: array::from_fn(|number| StoreTotals {
                operation: OPERATIONS.get(number).copied().unwrap_or_default(),
                errors: self.store_errors.get(number).map_or(0, |errors| errors.load(ORDER)),
                latency: self.store.get(number).map(Histogram::counts).unwrap_or_default(),
            }),
            ..Totals::default()
        };
        let mut refused = [0_u64; Problem::ALL.len()];
        let scopes = self.scopes.load();
        for scope in scopes.iter().chain([&self.rest, &self.passing]) {
            totals.add(scope);
            for (sum, count) in refused.iter_mut().zip(&scope.refused) {
                *sum = sum.saturating_add(count.load(ORDER));
            }
        }
        let named = Problem::ALL.iter().copied().zip(refused);
        totals.refused = named.filter(|(_, count)| *count > 0).collect();
        totals
    }

    /// The records that were held when they were last counted, by scope and by the label of their
    /// reason; and whether these are all.
    pub fn held_records(&self) -> (Vec<(String, &'static str, u64)>, bool) {
        let held = self.held.load();
        (held.all(), held.complete)
    }
}

impl Totals {
    fn add(&mut self, scope: &ScopeMetrics) {
        let answered = |kind: AnswerKind| {
            scope.answered.get(kind as usize).map_or(0, |count| count.load(ORDER))
        };
        let replayed = answered(AnswerKind::Replayed) + answered(AnswerKind::ReplayedAway);
        self.executed = self.executed.saturating_add(answered(AnswerKind::Executed));
        self.joined = self.joined.saturating_add(answered(AnswerKind::Joined));
        self.replayed = self.replayed.saturating_add(replayed);
        let held = scope.records.get(RecordEvent::Held as usize);
        self.held = self.held.saturating_add(held.map_or(0, |count| count.load(ORDER)));
    }
}

#[cfg(test)]
mod tests {
    use semel::{EventKind, MemoryStore, Run, Semel, core::Scope};

    use super::*;
    use crate::EngineObserver;

    #[test]
    fn totals_are_sums_over_all_scopes() {
        let scope = |name: &str| Scope::new(name).unwrap();
        let metrics = Metrics::new([scope("payments")]);
        let observer = EngineObserver::new(metrics.clone());
        let semel = Semel::builder(MemoryStore::new()).observer(observer).build();
        // The second has no counters of its own.
        for scope in [scope("payments"), scope("orders")] {
            semel.report(&scope, EventKind::Answered(Run::Own));
            semel.report(&scope, EventKind::Refused(Problem::InProgress));
        }
        let totals = metrics.totals();
        assert_eq!((totals.executed, totals.replayed), (2, 0));
        assert_eq!(totals.refused, [(Problem::InProgress, 2)]);
        assert_eq!((totals.refusals(), totals.refused_for(Problem::KeyReused)), (2, 0));
    }

    #[test]
    fn a_percentile_is_the_upper_bound_of_its_bucket() {
        let micros = Duration::from_micros;
        let histogram = Histogram::default();
        assert_eq!(histogram.counts().percentile(50), None);
        (0..98).for_each(|_| histogram.observe(micros(80)));
        let before = histogram.counts();
        histogram.observe(micros(700));
        histogram.observe(micros(40_000));
        let latency = histogram.counts();
        assert_eq!(latency.count(), 100);
        let bounds = [50, 99, 100].map(|percent| latency.percentile(percent));
        assert_eq!(bounds, [100, 1000, 50_000].map(|bound| Some(micros(bound))));
        let since = latency.since(&before);
        assert_eq!((since.count(), since.percentile(1)), (2, Some(micros(1000))));
    }
}
