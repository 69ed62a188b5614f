//! Whether to look in Redis at all.
//!
//! Where keys are hardly ever repeated a look is wasted, and costs every request. So looks are
//! bought: each repeat that was met buys some, and each look at a key that turned out to be new
//! spends one. With one repeat in seventeen requests or more every request looks; with fewer,
//! as many look as were paid for; without repeats nobody does. The first repeat after a quiet time
//! is met by the store itself, and buys the next looks.

use std::sync::atomic::{AtomicI64, Ordering};

/// What is there to begin with, and what can be saved up at most.
const SAVED_MAX: i64 = 1024;

/// How many looks a repeat buys.
const BOUGHT: i64 = 16;

#[derive(Debug)]
pub(crate) struct Appetite(AtomicI64);

impl Default for Appetite {
    fn default() -> Self {
        Self(AtomicI64::new(SAVED_MAX))
    }
}

impl Appetite {
    /// Whether to look.
    pub(crate) fn is_there(&self) -> bool {
        self.0.load(Ordering::Relaxed) > 0
    }

    /// A key that was looked for was new.
    pub(crate) fn wasted(&self) {
        self.0.fetch_sub(1, Ordering::Relaxed);
    }

    /// A key was not new, whoever knew it.
    pub(crate) fn repeated(&self) {
        // Those who look at once may spend a little more than there is, or save a little more than
        // they may: it comes to no harm, and needs no loop.
        let saved = self.0.load(Ordering::Relaxed);
        if saved < SAVED_MAX {
            self.0.fetch_add(BOUGHT.saturating_sub(saved.min(0)), Ordering::Relaxed);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// How many of so many requests look, when every `nth` is a repeat.
    fn looks(requests: u32, nth: u32) -> u32 {
        let appetite = Appetite::default();
        let mut looks = 0;
        for request in 1..=requests {
            let look = appetite.is_there();
            looks += u32::from(look);
            if request.is_multiple_of(nth) {
                appetite.repeated();
            } else if look {
                appetite.wasted();
            }
        }
        looks
    }

    #[test]
    fn where_nothing_repeats_nobody_looks_after_a_while() {
        assert_eq!(looks(100_000, u32::MAX), 1024);
    }

    #[test]
    fn where_much_repeats_everybody_looks() {
        assert_eq!(looks(100_000, 2), 100_000);
        assert_eq!(looks(100_000, 17), 100_000);
    }

    #[test]
    fn in_between_as_many_look_as_repeats_pay_for() {
        let looks = looks(100_000, 100);
        assert!((15_000..20_000).contains(&looks), "{looks}");
    }

    #[test]
    fn the_first_repeat_after_a_quiet_time_brings_it_back() {
        let appetite = Appetite::default();
        for _ in 0..5000 {
            appetite.wasted();
        }
        assert!(!appetite.is_there());
        appetite.repeated();
        assert!(appetite.is_there());
        for _ in 0..BOUGHT {
            assert!(appetite.is_there());
            appetite.wasted();
        }
        assert!(!appetite.is_there());
    }
}
