//! The numbers of a retry policy, and the presets that reproduce those of known SDKs.

use std::time::Duration;

use super::budget::BudgetRule;

/// How a client retries.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct RetryPolicy {
    /// Which outcomes are retried, and which headers are obeyed.
    pub rule: RetryRule,
    /// Attempts of one call, the first included. Waiting for a running operation does not count.
    pub attempts_max: u32,
    /// The delay before a retry.
    pub backoff: Backoff,
    /// For one call with all its attempts and delays; `None` for no limit.
    pub deadline: Option<Duration>,
    /// For all calls of a client together.
    pub budget: BudgetRule,
}

/// Which outcomes are retried, and which headers are obeyed.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum RetryRule {
    /// The table in the [module documentation](super).
    Semel,
    /// Of AWS's SDKs: 429, 500, 502, 503, 504 and broken connections; `x-amz-retry-after`.
    Aws,
    /// Of Stripe's SDKs: 409, 500 and above, and broken connections; `stripe-should-retry`.
    Stripe,
    /// Of gRPC (proposal A6): UNAVAILABLE; `grpc-retry-pushback-ms`.
    Grpc,
}

/// The delay before a retry: the base, doubled with each retry up to the maximum, then jitter.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Backoff {
    /// Before the first retry.
    pub base: Duration,
    /// The same where the server throttles (status 429).
    pub throttled_base: Duration,
    /// Before jitter.
    pub max: Duration,
    /// How the delay is spread.
    pub jitter: Jitter,
}

/// How delays are spread.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Jitter {
    /// Between nothing and the whole delay.
    Full,
    /// Between half the delay and the whole, but never below the base.
    HalfAboveBase,
}

impl Backoff {
    /// The delay before the next attempt, after so many retries; `random` is between 0 and 1.
    #[must_use]
    pub fn delay(&self, retries: u32, random: f64) -> Duration {
        self.jitter.apply(self.bound(retries, false), self.base, random)
    }

    /// The delay without jitter, after so many retries.
    pub(super) fn bound(&self, retries: u32, throttled: bool) -> Duration {
        let base = if throttled { self.throttled_base } else { self.base };
        let factor = 1_u32.checked_shl(retries).unwrap_or(u32::MAX);
        base.saturating_mul(factor).min(self.max)
    }
}

impl Jitter {
    pub(super) fn apply(self, bound: Duration, base: Duration, random: f64) -> Duration {
        let random = if random.is_finite() { random.clamp(0.0, 1.0) } else { 1.0 };
        match self {
            Self::Full => bound.mul_f64(random),
            Self::HalfAboveBase => bound.mul_f64(0.5 * (1.0 + random)).max(base),
        }
    }
}

impl RetryPolicy {
    /// Semel's own.
    pub const SEMEL: Self = Self {
        rule: RetryRule::Semel,
        attempts_max: 5,
        backoff: Backoff {
            base: Duration::from_millis(50),
            throttled_base: Duration::from_secs(1),
            max: Duration::from_secs(20),
            jitter: Jitter::Full,
        },
        deadline: Some(Duration::from_secs(60)),
        budget: BudgetRule::Window,
    };

    /// AWS's SDKs, retry mode `standard` of 2026: a bucket of 500 tokens, 14 a retry and 5 a
    /// throttled one.
    pub const AWS: Self = Self {
        rule: RetryRule::Aws,
        attempts_max: 3,
        backoff: Backoff {
            base: Duration::from_millis(50),
            throttled_base: Duration::from_secs(1),
            max: Duration::from_secs(20),
            jitter: Jitter::Full,
        },
        deadline: None,
        budget: BudgetRule::Tokens { max: 500, retry: 14, throttled: 5, refill: 1 },
    };

    /// Stripe's SDKs: two retries, half a second to five, no budget.
    pub const STRIPE: Self = Self {
        rule: RetryRule::Stripe,
        attempts_max: 3,
        backoff: Backoff {
            base: Duration::from_millis(500),
            throttled_base: Duration::from_millis(500),
            max: Duration::from_secs(5),
            jitter: Jitter::HalfAboveBase,
        },
        deadline: None,
        budget: BudgetRule::Unlimited,
    };

    /// gRPC with the numbers of its proposal's example: four attempts, 0.1 s to 1 s, ten tokens.
    pub const GRPC: Self = Self {
        rule: RetryRule::Grpc,
        attempts_max: 4,
        backoff: Backoff {
            base: Duration::from_millis(100),
            throttled_base: Duration::from_millis(100),
            max: Duration::from_secs(1),
            jitter: Jitter::Full,
        },
        deadline: None,
        budget: BudgetRule::Throttle { max_milli: 10_000, refill_milli: 100 },
    };

    /// The preset with this name: `semel`, `aws`, `stripe` or `grpc`.
    #[must_use]
    pub fn preset(name: &str) -> Option<Self> {
        match name {
            "semel" => Some(Self::SEMEL),
            "aws" => Some(Self::AWS),
            "stripe" => Some(Self::STRIPE),
            "grpc" => Some(Self::GRPC),
            _ => None,
        }
    }
}
