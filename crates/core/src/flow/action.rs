//! What the request machine is given and what it gives: its plan, its steps, and the words for how
//! an execution ends.

use std::time::Duration;

use crate::{
    Answer, Fence, Fingerprint, Finish, Grant, OnStoreDown, OnUnknown, Policy, Problem,
    ProcessTime, Reason, Verdict,
};

/// The shortest lease. Below this, a claim would be over before its reply came.
pub const LEASE_MIN: Duration = Duration::from_millis(100);

/// Upper bound of `record_timeout`: after it the client learns that its outcome is not recorded.
const RECORD_TIMEOUT_MAX: Duration = Duration::from_secs(10);

const BACKOFF_MAX: Duration = Duration::from_secs(5);

/// The part of a policy that the machine asks.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Plan {
    pub(super) fingerprint: Fingerprint,
    pub(super) lease: Duration,
    pub(super) wait: Duration,
    pub(super) on_unknown: OnUnknown,
    pub(super) on_store_down: OnStoreDown,
    pub(super) store_timeout: Duration,
    pub(super) watched: bool,
    pub(super) deadline: Option<ProcessTime>,
    pub(super) known_key_only: bool,
}

impl Plan {
    /// What `policy` says, for a request with this fingerprint.
    #[must_use]
    pub const fn new(policy: &Policy, fingerprint: Fingerprint) -> Self {
        Self {
            fingerprint,
            lease: policy.lease,
            wait: policy.wait,
            on_unknown: policy.on_unknown,
            on_store_down: policy.on_store_down,
            store_timeout: policy.store_timeout,
            watched: false,
            deadline: None,
            known_key_only: false,
        }
    }

    /// The same plan for a request whose key must not be used for the first time, because the
    /// server issued it and it has expired. A first use is refused with `token-invalid`; what is
    /// known under the key is answered as ever.
    #[must_use]
    pub const fn with_known_key_only(mut self, known_key_only: bool) -> Self {
        self.known_key_only = known_key_only;
        self
    }

    /// Whether the key must not be used for the first time.
    #[must_use]
    pub const fn is_known_key_only(&self) -> bool {
        self.known_key_only
    }

    /// The same plan for a driver that watches the record once for all who wait for it: it reports
    /// `Flow::on_seen` when the record may have changed, and never gets `Look` while it waits.
    #[must_use]
    pub const fn watched(mut self) -> Self {
        self.watched = true;
        self
    }

    /// The same plan for a request that must not begin, and does not wait, after `deadline`. What
    /// has begun is not bounded by it.
    #[must_use]
    pub const fn with_deadline(mut self, deadline: Option<ProcessTime>) -> Self {
        self.deadline = deadline;
        self
    }

    /// Whether the deadline of the request has passed.
    pub(super) fn is_past_deadline(&self, now: ProcessTime) -> bool {
        self.deadline.is_some_and(|deadline| deadline <= now)
    }

    /// The earlier of `time` and the deadline.
    pub(super) fn by_deadline(&self, time: ProcessTime) -> ProcessTime {
        self.deadline.map_or(time, |deadline| deadline.min(time))
    }

    /// The same plan with a lease of at least [`LEASE_MIN`].
    #[must_use]
    pub fn with_sound_lease(mut self) -> Self {
        self.lease = self.lease.max(LEASE_MIN);
        self
    }

    /// How long the owner may stay silent. The claim must say the same to the store.
    #[must_use]
    pub const fn lease(&self) -> Duration {
        self.lease
    }

    /// How much of a lease its owner relies on: one hundredth less, for two clocks that do not run
    /// quite alike.
    #[must_use]
    pub fn lease_relied_on(&self) -> Duration {
        self.lease.saturating_sub(self.lease / 100)
    }

    /// How long a claim is retried on a failing store before the client gets an error.
    #[must_use]
    pub const fn store_timeout(&self) -> Duration {
        self.store_timeout
    }

    /// How long recording an outcome is retried on a failing store before the client gets an error.
    #[must_use]
    pub fn record_timeout(&self) -> Duration {
        (self.lease / 3).min(RECORD_TIMEOUT_MAX)
    }

    /// The longest backoff before what failed is tried again.
    pub(super) fn backoff_max(&self) -> Duration {
        (self.lease / 6).min(BACKOFF_MAX)
    }
}

/// What the driver does next.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
#[must_use]
pub enum Action {
    /// Ask the store for the claim, always with the owner token of this request, and report
    /// `Flow::on_claimed` or `Flow::on_claim_failed`.
    Claim,
    /// Begin the operation in a task of its own and report `Flow::on_ended`. Meanwhile serve
    /// the next tick, which renews the lease.
    Execute(Grant),
    /// The operation that runs unguarded has this grant from now on. Serve the next tick, which
    /// renews the lease.
    Guard(Grant),
    /// Renew the lease with this fence and the owner token of this request, and report
    /// `Flow::on_renewed`. The operation continues.
    Renew(Fence),
    /// Write how it ended with this fence and the owner token of this request, and report
    /// `Flow::on_recorded` or `Flow::on_record_failed`.
    Record(Fence, Finish),
    /// Read the record and report `Flow::on_seen` or `Flow::on_look_failed`.
    Look,
    /// Nothing until the next tick, or until the record may have changed (then tick early).
    Sleep,
    /// Give this to the client, then go on until `Flow::is_done`.
    Reply(Reply),
    /// Begin the operation without a claim in a task of its own and report `Flow::on_ended`.
    /// Meanwhile serve the next tick: it retries a claim that may have been granted.
    Pass,
    /// Nothing more.
    Done,
}

/// What the client gets.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub enum Reply {
    /// The answer of its own execution, kept or not.
    Ran(Answer),
    /// The answer of an execution in this process that it joined, kept or not.
    Joined(Answer),
    /// The answer of an execution without a claim, its own or one that it joined. It is not
    /// recorded, or not yet.
    Unguarded(Answer),
    /// The recorded answer.
    Replayed(Answer),
    /// An error of ours.
    Problem(Problem),
}

/// How an execution ended.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub enum ExecutionResult {
    /// No byte of the request went out.
    NeverReached,
    /// It answered.
    Answered {
        /// What the policy makes of the answer.
        verdict: Verdict,
        /// The answer.
        answer: Answer,
        /// Why the answer does not complete the record, where it does not.
        reason: Reason,
    },
    /// It was begun, and then broke, timed out or panicked.
    Broken(Reason),
}
