//! The retry budget of a client: bounds the load that retries add when a server fails.

use std::time::Duration;

/// Seconds that [`BudgetRule::Window`] looks back, the current one included.
const WINDOW_SECONDS: u64 = 10;

/// The same, as a number of slots.
const WINDOW_SLOTS: usize = 10;

/// Retries per hundred first attempts.
const WINDOW_PERCENT: u64 = 10;

/// How retries of a client are bounded over all its calls.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum BudgetRule {
    /// Over 10 seconds: a tenth of the first attempts, and as many more as bring a client that
    /// sends less than one request a second up to one a second.
    Window,
    /// A bucket of tokens, as in AWS's SDKs. A retry pays, and the success of the call returns what
    /// its last retry paid; a success without a retry adds a little.
    Tokens {
        /// What the bucket holds, and begins with.
        max: u32,
        /// What a retry costs.
        retry: u32,
        /// What a retry costs where the server throttles.
        throttled: u32,
        /// What a success without a retry adds.
        refill: u32,
    },
    /// gRPC's throttle: a failure takes one token, a success adds a part of one, and a retry needs
    /// more than half of the tokens. In thousandths of a token.
    Throttle {
        /// What it holds, and begins with.
        max_milli: u32,
        /// What a success adds.
        refill_milli: u32,
    },
    /// No bound.
    Unlimited,
}

/// The budget of one client.
#[derive(Clone, Debug)]
pub struct RetryBudget {
    rule: BudgetRule,
    /// Of [`BudgetRule::Tokens`] and [`BudgetRule::Throttle`].
    tokens: u32,
    window: [Slot; WINDOW_SLOTS],
}

/// What was sent in one second.
#[derive(Clone, Copy, Debug, Default)]
struct Slot {
    second: u64,
    first_attempts: u64,
    retries: u64,
}

impl RetryBudget {
    /// A full one.
    #[must_use]
    pub fn new(rule: BudgetRule) -> Self {
        let tokens = match rule {
            BudgetRule::Tokens { max, .. } => max,
            BudgetRule::Throttle { max_milli, .. } => max_milli,
            BudgetRule::Window | BudgetRule::Unlimited => 0,
        };
        Self { rule, tokens, window: [Slot::default(); WINDOW_SLOTS] }
    }

    pub(super) fn on_first_attempt(&mut self, now: Duration) {
        if self.rule == BudgetRule::Window
            && let Some(slot) = self.slot(now)
        {
            slot.first_attempts = slot.first_attempts.saturating_add(1);
        }
    }

    /// A call succeeded, whose last retry paid this much.
    pub(super) fn on_success(&mut self, paid: Option<u32>) {
        match self.rule {
            BudgetRule::Tokens { max, refill, .. } => {
                self.tokens = self.tokens.saturating_add(paid.unwrap_or(refill)).min(max);
            }
            BudgetRule::Throttle { max_milli, refill_milli } => {
                self.tokens = self.tokens.saturating_add(refill_milli).min(max_milli);
            }
            BudgetRule::Window | BudgetRule::Unlimited => {}
        }
    }

    /// An attempt failed in a way that is retried.
    pub(super) fn on_failure(&mut self) {
        if matches!(self.rule, BudgetRule::Throttle { .. }) {
            self.tokens = self.tokens.saturating_sub(1000);
        }
    }

    /// Takes a retry out of the budget: what it paid, or `None` if it is used up.
    pub(super) fn withdraw(&mut self, now: Duration, throttled: bool) -> Option<u32> {
        match self.rule {
            BudgetRule::Unlimited => Some(0),
            BudgetRule::Tokens { retry, throttled: when_throttled, .. } => {
                let cost = if throttled { when_throttled } else { retry };
                self.tokens = self.tokens.checked_sub(cost)?;
                Some(cost)
            }
            BudgetRule::Throttle { max_milli, .. } => {
                (self.tokens > max_milli.div_euclid(2)).then_some(0)
            }
            BudgetRule::Window => {
                let (first_attempts, retries) = self.totals(now);
                let share = first_attempts.saturating_mul(WINDOW_PERCENT);
                let floor = WINDOW_SECONDS.saturating_sub(first_attempts).saturating_mul(100);
                let wanted = retries.saturating_add(1).saturating_mul(100);
                if wanted > share.saturating_add(floor) {
                    return None;
                }
                let slot = self.slot(now)?;
                slot.retries = slot.retries.saturating_add(1);
                Some(0)
            }
        }
    }

    /// The slot of this second, emptied if it counted another one.
    fn slot(&mut self, now: Duration) -> Option<&mut Slot> {
        let second = now.as_secs();
        let index = usize::try_from(second.checked_rem(WINDOW_SECONDS)?).ok()?;
        let slot = self.window.get_mut(index)?;
        if slot.second != second {
            *slot = Slot { second, ..Slot::default() };
        }
        Some(slot)
    }

    /// First attempts and retries of the window.
    fn totals(&self, now: Duration) -> (u64, u64) {
        let second = now.as_secs();
        let counts = |slot: &&Slot| second.saturating_sub(slot.second) < WINDOW_SECONDS;
        self.window.iter().filter(counts).fold((0, 0), |(first_attempts, retries), slot| {
            (
                slot.first_attempts.saturating_add(first_attempts),
                slot.retries.saturating_add(retries),
            )
        })
    }
}
