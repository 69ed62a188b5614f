//! Rounds, medians and percentiles.
//!
//! The machine is never quiet, so figures are compared, not taken alone: all subjects run in one
//! process, alternating round by round, and the ratio is taken within each round.

use std::{hint::black_box, time::Duration};

/// The order of `count` subjects in a round: forward and backward, so that none always follows the
/// same one.
pub(crate) fn turns(round: usize, count: usize) -> Vec<usize> {
    let order = 0..count;
    if round.is_multiple_of(2) { order.collect() } else { order.rev().collect() }
}

/// The middle value; of an even number, the mean of the two in the middle.
pub(crate) fn median(values: &[f64]) -> f64 {
    let mut sorted = values.to_vec();
    sorted.sort_by(f64::total_cmp);
    let upper = sorted.get(sorted.len() / 2).copied();
    let lower = sorted.len().checked_sub(1).and_then(|last| sorted.get(last / 2)).copied();
    match (lower, upper) {
        (Some(lower), Some(upper)) => f64::midpoint(lower, upper),
        _ => f64::NAN,
    }
}

/// The ratio of each pair, round by round.
pub(crate) fn ratios(values: &[f64], bases: &[f64]) -> Vec<f64> {
    values.iter().zip(bases).map(|(value, base)| value / base).collect()
}

/// Latencies in microseconds.
#[derive(Clone, Debug, Default)]
pub(crate) struct Latencies {
    micros: Vec<u32>,
}

impl Latencies {
    pub(crate) fn push(&mut self, took: Duration) {
        self.micros.push(u32::try_from(took.as_micros()).unwrap_or(u32::MAX));
    }

    pub(crate) fn append(&mut self, mut others: Self) {
        self.micros.append(&mut others.micros);
    }

    pub(crate) const fn len(&self) -> usize {
        self.micros.len()
    }

    /// The latency that this share of all stays within, in milliseconds; 1.0 gives the longest.
    pub(crate) fn within(&mut self, share: f64) -> f64 {
        self.micros.sort_unstable();
        let last = self.micros.len().saturating_sub(1);
        let at = as_count(as_f64(last) * share);
        self.micros.get(at).map_or(f64::NAN, |micros| f64::from(*micros) / 1e3)
    }
}

/// Nanoseconds of processor time that one call of `work` takes, over as many calls as fit into
/// `length`. The processor time of other programs does not count.
pub(crate) fn nanos_per_call<T>(length: Duration, mut work: impl FnMut() -> T) -> f64 {
    const CALLS: u32 = 64;
    let spent = || {
        let spent = rustix::time::clock_gettime(rustix::time::ClockId::ThreadCPUTime);
        Duration::try_from(spent).unwrap_or_default()
    };
    let begin = spent();
    let mut calls = 0.0;
    loop {
        for _ in 0..CALLS {
            black_box(work());
        }
        calls += f64::from(CALLS);
        let took = spent().saturating_sub(begin);
        if took >= length {
            return took.as_secs_f64() * 1e9 / calls;
        }
    }
}

#[expect(clippy::as_conversions, clippy::cast_precision_loss, reason = "a count of a benchmark")]
pub(crate) const fn as_f64(count: usize) -> f64 {
    count as f64
}

#[expect(
    clippy::as_conversions,
    clippy::cast_possible_truncation,
    clippy::cast_sign_loss,
    reason = "a place in a list, which is never negative"
)]
const fn as_count(value: f64) -> usize {
    value.round() as usize
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_median_is_the_middle() {
        assert!((median(&[3.0, 1.0, 2.0]) - 2.0).abs() < 1e-9);
        assert!((median(&[4.0, 1.0, 2.0, 3.0]) - 2.5).abs() < 1e-9);
        assert!(median(&[]).is_nan());
    }

    #[test]
    fn percentiles_come_from_the_sorted_list() {
        let mut latencies = Latencies::default();
        for millis in (1..=101).rev() {
            latencies.push(Duration::from_millis(millis));
        }
        assert!((latencies.within(0.5) - 51.0).abs() < 1e-9);
        assert!((latencies.within(0.99) - 100.0).abs() < 1e-9);
        assert!((latencies.within(1.0) - 101.0).abs() < 1e-9);
    }

    #[test]
    fn every_other_round_goes_back() {
        assert_eq!(turns(0, 3), [0, 1, 2]);
        assert_eq!(turns(1, 3), [2, 1, 0]);
    }
}
