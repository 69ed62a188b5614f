//! What is remembered under one [`RecordId`](crate::RecordId), inside a store and as seen from
//! outside.
//!
//! Inside, a [`Record`] carries instants of the store's clock. Outside, a [`Snapshot`] carries
//! durations. A record that is not there is `None`: *absent* is the fifth state.

use std::{fmt, num::NonZeroU64, time::Duration};

use crate::{
    About, Answer, Captured, Fingerprint, NodeName, OnUnknown, Reason, StoreTime, limit::LimitKeys,
};

/// A number the store issues with each claim, rising. A late owner's write is refused by it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Fence(NonZeroU64);

impl Fence {
    /// A fence with this number; `None` for zero, which no store issues.
    #[must_use]
    pub const fn new(number: u64) -> Option<Self> {
        match NonZeroU64::new(number) {
            Some(number) => Some(Self(number)),
            None => None,
        }
    }

    /// The number, as it is sent upstream in `Idempotency-Fence`.
    #[must_use]
    pub const fn get(self) -> u64 {
        self.0.get()
    }
}

impl fmt::Display for Fence {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.fmt(f)
    }
}

/// Sixteen random bytes that one claim carries, so that a claim whose reply was lost can be asked
/// again instead of guessed (law 7).
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct OwnerToken([u8; 16]);

impl OwnerToken {
    /// A token from bytes that the caller drew at random.
    #[must_use]
    pub const fn from_bytes(bytes: [u8; 16]) -> Self {
        Self(bytes)
    }

    /// The bytes.
    #[must_use]
    pub const fn as_bytes(&self) -> &[u8; 16] {
        &self.0
    }
}

impl fmt::Debug for OwnerToken {
    // The token proves ownership, so it is not printed.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("OwnerToken(..)")
    }
}

/// The owner of one granted claim: every later write names both parts (law 5).
///
/// The fence alone would not do: a store that lost its last commits in a failover could issue a
/// number again.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub struct Claimant {
    /// The fence that was granted.
    pub fence: Fence,
    /// The owner token that the claim carried.
    pub owner: OwnerToken,
}

impl Claimant {
    /// The owner that was granted this fence for a claim with this token.
    #[must_use]
    pub const fn new(fence: Fence, owner: OwnerToken) -> Self {
        Self { fence, owner }
    }
}

/// The state of a record that is there.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub enum State {
    /// An owner runs it.
    InFlight {
        /// The last millisecond of the lease, on the store's clock.
        lease_until: StoreTime,
    },
    /// It ended with this answer.
    Completed(Answer),
    /// It may run again. The fingerprint and the attempt count are remembered, unless it was
    /// forgotten.
    Released,
    /// Its outcome is unknown.
    Held,
}

/// A state without its data: what lists, metrics and audit lines name.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum StateName {
    /// [`State::InFlight`]
    InFlight,
    /// [`State::Completed`]
    Completed,
    /// [`State::Released`]
    Released,
    /// [`State::Held`]
    Held,
}

impl StateName {
    /// The word used in SQL, JSON, metrics and the command line.
    #[must_use]
    pub const fn as_str(self) -> &'static str {
        match self {
            Self::InFlight => "in_flight",
            Self::Completed => "completed",
            Self::Released => "released",
            Self::Held => "held",
        }
    }
}

impl fmt::Display for StateName {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.as_str())
    }
}

/// A record as a store keeps it.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub struct Record {
    /// What the request that made it meant; `None` once it was forgotten, and then the next claim
    /// takes it whatever it means.
    pub fingerprint: Option<Fingerprint>,
    /// The fence of the newest claim or of the operator's act after it.
    pub fence: Fence,
    /// The token of the newest claim. It stays when the record ends, so that a stale duplicate of
    /// that claim is recognised.
    pub owner: OwnerToken,
    /// How many executions were begun that count.
    pub attempt: u32,
    /// What the route that made it said about unknown outcomes.
    pub on_unknown: OnUnknown,
    /// How long it may be held before it ends with `operation-failed`.
    pub hold_for: Option<Duration>,
    /// How long it is kept once it is finished.
    pub retention: Duration,
    /// When the newest claim was granted.
    pub claimed_at: StoreTime,
    /// When the execution ended or its lease expired, or when it was resolved or failed after that;
    /// `None` while it is in flight.
    pub ended_at: Option<StoreTime>,
    /// When it may be swept, if it is finished by then.
    pub expires_at: StoreTime,
    /// What the newest claim was about.
    pub about: About,
    /// The process that made the newest claim.
    pub node: NodeName,
    /// What the route captured of the request.
    pub captured: Captured,
    /// Why the newest execution did not complete.
    pub reason: Option<Reason>,
    /// Where the newest claim has reserved a unit of a velocity limit; empty once it has ended.
    pub limits: LimitKeys,
    /// Where it stands.
    pub state: State,
}

impl Record {
    /// A first attempt in this state with nothing else known of it: for stores that read their rows
    /// back.
    #[must_use]
    pub fn new(by: Claimant, claimed_at: StoreTime, state: State) -> Self {
        Self {
            fingerprint: None,
            fence: by.fence,
            owner: by.owner,
            attempt: 1,
            on_unknown: OnUnknown::default(),
            hold_for: None,
            retention: Duration::ZERO,
            claimed_at,
            ended_at: None,
            expires_at: claimed_at,
            about: About::default(),
            node: NodeName::default(),
            captured: Captured::default(),
            reason: None,
            limits: LimitKeys::default(),
            state,
        }
    }

    /// Whether it was released and takes any request.
    #[must_use]
    pub const fn is_forgotten(&self) -> bool {
        self.fingerprint.is_none()
    }

    /// The owner that may write to it.
    #[must_use]
    pub const fn claimant(&self) -> Claimant {
        Claimant::new(self.fence, self.owner)
    }

    /// The name of its state.
    #[must_use]
    pub const fn state_name(&self) -> StateName {
        match self.state {
            State::InFlight { .. } => StateName::InFlight,
            State::Completed(_) => StateName::Completed,
            State::Released => StateName::Released,
            State::Held => StateName::Held,
        }
    }
}

/// A record as it counts now, in durations.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub struct Snapshot {
    /// What the request that made it meant; `None` once it was forgotten.
    pub fingerprint: Option<Fingerprint>,
    /// The current fence. An operator names it to say which record was seen.
    pub fence: Fence,
    /// How many executions were begun that count.
    pub attempt: u32,
    /// What the route that made it said about unknown outcomes.
    pub on_unknown: OnUnknown,
    /// How long it may be held before it ends with `operation-failed`.
    pub hold_for: Option<Duration>,
    /// How long ago the newest claim was granted.
    pub age: Duration,
    /// How long ago it ended; `None` while it is in flight.
    pub ended: Option<Duration>,
    /// What the newest claim was about.
    pub about: About,
    /// The process that made the newest claim.
    pub node: NodeName,
    /// What the route captured of the request.
    pub captured: Captured,
    /// Why the newest execution did not complete.
    pub reason: Option<Reason>,
    /// Where it stands.
    pub state: StateView,
}

impl Snapshot {
    /// A first attempt that stands so, claimed just now, with nothing else known of it.
    #[must_use]
    pub fn new(fingerprint: Fingerprint, fence: Fence, state: StateView) -> Self {
        Self {
            fingerprint: Some(fingerprint),
            fence,
            attempt: 1,
            on_unknown: OnUnknown::default(),
            hold_for: None,
            age: Duration::ZERO,
            ended: None,
            about: About::default(),
            node: NodeName::default(),
            captured: Captured::default(),
            reason: None,
            state,
        }
    }
}

/// The state of a [`Snapshot`].
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub enum StateView {
    /// An owner runs it, or ran it and did not report an end.
    InFlight {
        /// What is left of the lease; zero when it has lapsed and the next request decides.
        lease_left: Duration,
    },
    /// It ended with this answer.
    Completed {
        /// The answer.
        answer: Answer,
        /// How long it will be kept.
        expires_in: Duration,
    },
    /// It may run again.
    Released {
        /// How long the fingerprint and the attempt count will be kept.
        expires_in: Duration,
    },
    /// Its outcome is unknown.
    Held,
}

impl StateView {
    /// The name of the state.
    #[must_use]
    pub const fn name(&self) -> StateName {
        match self {
            Self::InFlight { .. } => StateName::InFlight,
            Self::Completed { .. } => StateName::Completed,
            Self::Released { .. } => StateName::Released,
            Self::Held => StateName::Held,
        }
    }
}
