//! A retry storm in simulated time: 1,000 clients and a server that fails for ten seconds.
#![allow(clippy::unwrap_used, reason = "a test reports by panicking")]

use std::{cmp::Reverse, collections::BinaryHeap, time::Duration};

use semel_core::retry::{
    AttemptOutcome, AttemptTiming, BudgetRule, ResponseSignals, RetryBudget, RetryDecision,
    RetryPolicy, RetryState,
};

const CLIENTS: u64 = 1000;
const LATENCY_US: u64 = 10_000;
const SECOND_US: u64 = 1_000_000;

/// The server fails from here …
const FAILS_AT_US: u64 = 20 * SECOND_US;
/// … until here.
const RECOVERS_AT_US: u64 = 30 * SECOND_US;
const END_US: u64 = 45 * SECOND_US;

/// It answers 503 to what exceeds this many requests in a second, per cent of the calls.
const CAPACITY_PERCENT: u64 = 150;

#[derive(Debug, Default)]
struct Storm {
    /// Requests that arrived while the server failed, per hundred calls that began then.
    load_percent: u64,
    /// Calls that began after the recovery, and those of them that succeeded within two seconds.
    begun_after: u64,
    succeeded_after: u64,
}

/// A call that sends an attempt.
struct Call {
    client: usize,
    began_us: u64,
    state: Option<RetryState>,
}

/// Numbers that look random, the same in every run.
struct Random(u64);

impl Random {
    fn next(&mut self, below: u64) -> u64 {
        // SplitMix64.
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut mixed = self.0;
        mixed = (mixed ^ (mixed >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        mixed = (mixed ^ (mixed >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        (mixed ^ (mixed >> 31)) % below
    }

    fn unit(&mut self) -> f64 {
        f64::from(u32::try_from(self.next(1 << 32)).unwrap()) / f64::from(u32::MAX)
    }
}

fn simulate(policy: RetryPolicy, calls_per_second: u64) -> Storm {
    let mut random = Random(7);
    let mut budgets: Vec<RetryBudget> =
        (0..CLIENTS).map(|_| RetryBudget::new(policy.budget)).collect();
    let mut calls: Vec<Call> = Vec::new();
    let mut events = BinaryHeap::new();
    let interval_us = SECOND_US / calls_per_second;
    for client in 0..usize::try_from(CLIENTS).unwrap() {
        let mut at = random.next(interval_us);
        while at < END_US {
            events.push(Reverse((at, calls.len())));
            calls.push(Call { client, began_us: at, state: None });
            at += interval_us;
        }
    }
    let capacity = CLIENTS * calls_per_second * CAPACITY_PERCENT / 100;
    let mut served = vec![0; usize::try_from(END_US / SECOND_US).unwrap() + 120];
    let (mut storm, mut arrived, mut begun) = (Storm::default(), 0, 0);
    while let Some(Reverse((at, number))) = events.pop() {
        let call = &mut calls[number];
        let budget = &mut budgets[call.client];
        let is_new = call.state.is_none();
        let now = Duration::from_micros(at);
        let state = call.state.get_or_insert_with(|| RetryState::begin(budget, now));
        let fails = (FAILS_AT_US..RECOVERS_AT_US).contains(&at);
        arrived += u64::from(fails);
        begun += u64::from(fails && is_new);
        storm.begun_after += u64::from(is_new && at >= RECOVERS_AT_US);
        let in_second = &mut served[usize::try_from(at / SECOND_US).unwrap()];
        *in_second += 1;
        let status = if fails || *in_second > capacity { 503 } else { 200 };
        let ended = at + LATENCY_US;
        let outcome = AttemptOutcome::Answered(ResponseSignals::of_status(status));
        let moment = AttemptTiming {
            now: Duration::from_micros(ended),
            elapsed: Duration::from_micros(ended - call.began_us),
            random: random.unit(),
        };
        match policy.decide(state, budget, &outcome, moment) {
            RetryDecision::Wait(delay) => {
                let again = ended + u64::try_from(delay.as_micros()).unwrap();
                events.push(Reverse((again, number)));
            }
            RetryDecision::Done => {
                let soon = ended - call.began_us <= 2 * SECOND_US;
                let begun_after = call.began_us >= RECOVERS_AT_US;
                storm.succeeded_after += u64::from(soon && begun_after);
            }
            RetryDecision::GiveUp(_) => {}
        }
    }
    storm.load_percent = arrived * 100 / begun;
    storm
}

#[test]
fn the_budget_keeps_a_retry_storm_small() {
    for calls_per_second in [1, 20] {
        let storm = simulate(RetryPolicy::SEMEL, calls_per_second);
        assert!(storm.load_percent <= 120, "at {calls_per_second}: {storm:?}");
        let succeeded = storm.succeeded_after * 100 / storm.begun_after;
        assert!(succeeded >= 99, "at {calls_per_second}: {storm:?}");
    }
}

#[test]
fn without_the_budget_retries_multiply_the_load() {
    for calls_per_second in [1, 20] {
        let policy = RetryPolicy { budget: BudgetRule::Unlimited, ..RetryPolicy::SEMEL };
        let storm = simulate(policy, calls_per_second);
        assert!(storm.load_percent >= 250, "at {calls_per_second}: {storm:?}");
    }
}
