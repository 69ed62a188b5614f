//! How many records are held and for how long, by scope and reason.

use std::{collections::HashMap, time::Duration};

use semel::core::Reason;

use tokio::time::Instant;

use super::{NO_REASON, REST};

/// What the last count found.
#[derive(Debug)]
pub(super) struct HeldRecords {
    /// By scope, then by the label of the reason.
    counts: HashMap<Box<str>, HashMap<&'static str, i64>>,
    /// Since when the oldest is held, by the same.
    oldest: HashMap<Box<str>, HashMap<&'static str, Instant>>,
    /// Whether the count was not cut short.
    pub(super) complete: bool,
}

impl Default for HeldRecords {
    fn default() -> Self {
        Self { counts: HashMap::new(), oldest: HashMap::new(), complete: true }
    }
}

impl HeldRecords {
    /// Counts records by their scope and the label of their reason, each with its age. Scopes
    /// without counters of their own count as one.
    pub(super) fn new<'a>(
        records: impl Iterator<Item = (&'a str, &'static str, Duration)>,
        complete: bool,
        is_known: impl Fn(&str) -> bool,
    ) -> Self {
        let mut counts: HashMap<Box<str>, HashMap<_, i64>> = HashMap::new();
        let mut oldest: HashMap<Box<str>, HashMap<_, Instant>> = HashMap::new();
        let now = Instant::now();
        for (scope, label, age) in records {
            let scope = if is_known(scope) { scope } else { REST };
            let count = counts.entry(scope.into()).or_default().entry(label).or_default();
            *count = count.saturating_add(1);
            // A machine that was started after the record was held counts from its start.
            let since = now.checked_sub(age).unwrap_or(now);
            let first = oldest.entry(scope.into()).or_default().entry(label).or_insert(since);
            *first = since.min(*first);
        }
        Self { counts, oldest, complete }
    }

    /// For how long the oldest record of a scope and a label is held; zero if there is none.
    pub(super) fn oldest(&self, scope: &str, label: &str) -> Duration {
        let since = self.oldest.get(scope).and_then(|labels| labels.get(label));
        since.map(Instant::elapsed).unwrap_or_default()
    }

    /// The number for each scope and label, without zeros, in a fixed order.
    pub(super) fn all(&self) -> Vec<(String, &'static str, u64)> {
        let mut counts = Vec::new();
        for (scope, labels) in &self.counts {
            for (label, count) in labels {
                counts.push((scope.to_string(), *label, u64::try_from(*count).unwrap_or_default()));
            }
        }
        counts.sort_unstable();
        counts
    }

    /// The number of a scope for each label, also where there is none: a series that appears with
    /// the first record would not be seen to rise.
    pub(super) fn of(&self, scope: &str) -> impl Iterator<Item = (&'static str, i64)> {
        let counts = self.counts.get(scope);
        let count = move |label| counts.and_then(|counts| counts.get(label)).copied();
        let labels = Reason::LABELS.into_iter().chain([NO_REASON]);
        labels.map(move |label| (label, count(label).unwrap_or_default()))
    }
}
