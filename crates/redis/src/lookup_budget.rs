//! The lookup budget: each repeat earns 16 lookups, each miss costs one.
//!
//! Where keys hardly ever repeat, lookups in Redis only add latency. With one repeat in seventeen
//! requests or more, every request looks up; with fewer, the budget limits the lookups; without
//! repeats there are none. The store answers the first repeat after a quiet time, and that repeat
//! earns the next lookups.

use std::sync::atomic::{AtomicI64, Ordering};

/// The initial and the maximum budget.
const LOOKUPS_MAX: i64 = 1024;

/// How many lookups a repeat earns.
const LOOKUPS_PER_REPEAT: i64 = 16;

#[derive(Debug)]
pub(crate) struct LookupBudget(AtomicI64);

impl Default for LookupBudget {
    fn default() -> Self {
        Self(AtomicI64::new(LOOKUPS_MAX))
    }
}

impl LookupBudget {
    /// Whether the budget allows a lookup.
    pub(crate) fn allows_lookup(&self) -> bool {
        self.0.load(Ordering::Relaxed) > 0
    }

    /// A key that was looked up was new.
    pub(crate) fn on_miss(&self) {
        self.0.fetch_sub(1, Ordering::Relaxed);
    }

    /// A key was not new, by Redis or by the store.
    pub(crate) fn on_repeat(&self) {
        // Concurrent lookups may exceed the budget a little in both directions, which does no harm.
        let saved = self.0.load(Ordering::Relaxed);
        if saved < LOOKUPS_MAX {
            self.0.fetch_add(LOOKUPS_PER_REPEAT.saturating_sub(saved.min(0)), Ordering::Relaxed);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// How many of these requests look up, when every `nth` is a repeat.
    fn lookups(requests: u32, nth: u32) -> u32 {
        let lookup_budget = LookupBudget::default();
        let mut lookups = 0;
        for request in 1..=requests {
            let look = lookup_budget.allows_lookup();
            lookups += u32::from(look);
            if request.is_multiple_of(nth) {
                lookup_budget.on_repeat();
            } else if look {
                lookup_budget.on_miss();
            }
        }
        lookups
    }

    #[test]
    fn without_repeats_lookups_stop_when_the_budget_is_spent() {
        assert_eq!(lookups(100_000, u32::MAX), 1024);
    }

    #[test]
    fn with_many_repeats_every_request_looks_up() {
        assert_eq!(lookups(100_000, 2), 100_000);
        assert_eq!(lookups(100_000, 17), 100_000);
    }

    #[test]
    fn with_few_repeats_lookups_are_limited_by_the_repeats() {
        let lookups = lookups(100_000, 100);
        assert!((15_000..20_000).contains(&lookups), "{lookups}");
    }

    #[test]
    fn the_first_repeat_after_a_quiet_time_allows_lookups_again() {
        let lookup_budget = LookupBudget::default();
        for _ in 0..5000 {
            lookup_budget.on_miss();
        }
        assert!(!lookup_budget.allows_lookup());
        lookup_budget.on_repeat();
        assert!(lookup_budget.allows_lookup());
        for _ in 0..LOOKUPS_PER_REPEAT {
            assert!(lookup_budget.allows_lookup());
            lookup_budget.on_miss();
        }
        assert!(!lookup_budget.allows_lookup());
    }
}
