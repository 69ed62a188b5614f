//! Velocity limits: how many operations with equal values may count within a window.
//!
//! A claim carries its [`ClaimLimits`], and the store decides them in the same commit. A granted
//! claim *reserves* a unit of each limit. The end of the operation *settles* the reservation in the
//! same write: the operation counts, or it returns its unit. A held record keeps its reservation.
//! An operation has at most one unit of a limit, whatever its attempts.
//!
//! The rule is pure. A store keeps one [`LimitCounter`] for each [`LimitKey`]. What a change of a
//! record does to them is a [settlement](crate::settlement).
//!
//! ```
//! use std::time::Duration;
//! use semel_core::limit::*;
//! use semel_core::*;
//!
//! let limit = Limit::new(LimitKey::from_bytes([1; 16]), 1, Duration::from_secs(60));
//! let mut counters = CounterSet::default();
//! let now = StoreTime::from_millis(0);
//! let limits = ClaimLimits::new([limit])?;
//! let [first, second] = [[1; 16], [2; 16]].map(OperationId::from_bytes);
//! assert!(admit(&limits, first, &mut counters, now).is_ok());
//! assert_eq!(admit(&limits, second, &mut counters, now).unwrap_err().index, 0);
//! # Ok::<(), ClaimLimitsError>(())
//! ```

mod counter;
mod counters;

use std::{fmt, sync::Arc, time::Duration};

use sha2::{Digest as _, Sha256};

use crate::{Problem, RecordId, StatusSet, StoreTime};

pub use counter::{CounterError, LimitCounter};
pub use counters::CounterSet;

/// The largest `max` of a limit: a counter remembers each unit.
pub const LIMIT_MAX: u16 = 1000;

/// The shortest window.
pub const WINDOW_MIN: Duration = Duration::from_secs(1);

/// The longest window.
pub const WINDOW_MAX: Duration = Duration::from_secs(30 * 24 * 60 * 60);

/// How many limits one claim has at most.
pub const LIMITS_MAX: usize = 16;

/// The longest tag of an answer, in bytes.
pub const TAG_BYTES_MAX: usize = 64;

macro_rules! digest {
    ($(#[$doc:meta])* $name:ident) => {
        $(#[$doc])*
        #[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
        pub struct $name([u8; 16]);

        impl $name {
            /// The value with these bytes.
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
    };
}

digest! {
    /// Names one counter: a keyed hash of a rule and the values that it selects by. Rules that
    /// differ in any setting have different keys.
    LimitKey
}

digest! {
    /// Names one operation in a counter: a hash of its [`RecordId`].
    OperationId
}

impl OperationId {
    /// The operation that a record remembers.
    #[must_use]
    pub fn of(id: &RecordId) -> Self {
        let mut hash = Sha256::new();
        for part in [id.scope.as_str(), id.caller.as_str(), id.key.as_str()] {
            // With its length, so that different records never hash the same bytes.
            hash.update(u64::try_from(part.len()).unwrap_or(u64::MAX).to_be_bytes());
            hash.update(part);
        }
        let mut digest = [0; 16];
        digest.iter_mut().zip(hash.finalize()).for_each(|(to, byte)| *to = byte);
        Self(digest)
    }
}

/// Which ends of an operation a limit counts.
#[derive(Clone, Debug, Default, PartialEq, Eq, Hash)]
pub enum Counted {
    /// Every operation that reached the upstream, from its claim on.
    #[default]
    Executions,
    /// Operations whose recorded answer has a status below 400.
    Completed,
    /// Operations whose recorded answer has a status from 400 to 499.
    Declined,
    /// Operations that the upstream answered with one of these statuses, recorded or not.
    Statuses(StatusSet),
    /// Operations whose answer carried this tag.
    Tag(AnswerTag),
}

impl Counted {
    fn counts(&self, end: &LimitEnd) -> bool {
        let kept = |range: std::ops::Range<u16>| end.kept.is_some_and(|kept| range.contains(&kept));
        match self {
            Self::Executions => end.reached,
            Self::Completed => kept(0..400),
            Self::Declined => kept(400..500),
            Self::Statuses(set) => end.status.is_some_and(|status| set.contains(status)),
            Self::Tag(tag) => end.tag.as_ref() == Some(tag),
        }
    }
}

/// What the upstream calls an answer, for limits that count by it.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct AnswerTag(Box<str>);

impl AnswerTag {
    /// A tag of 1 to [`TAG_BYTES_MAX`] visible ASCII characters.
    #[must_use]
    pub fn new(tag: &str) -> Option<Self> {
        let fits = (1..=TAG_BYTES_MAX).contains(&tag.len());
        (fits && tag.bytes().all(|byte| byte.is_ascii_graphic())).then(|| Self(tag.into()))
    }

    /// The text.
    #[must_use]
    pub fn as_str(&self) -> &str {
        &self.0
    }
}

/// What a limit is for.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub enum LimitKind {
    /// It bounds how many operations there are.
    #[default]
    Velocity,
    /// It finds the same operation under another key.
    Duplicate,
}

impl LimitKind {
    /// The problem of a claim that such a limit refuses.
    #[must_use]
    pub const fn problem(self) -> Problem {
        match self {
            Self::Velocity => Problem::RateLimited,
            Self::Duplicate => Problem::PossibleDuplicate,
        }
    }
}

/// A limit of one claim.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub struct Limit {
    /// Its counter.
    pub key: LimitKey,
    /// How many units there are in a window, 1 to [`LIMIT_MAX`].
    pub max: u16,
    /// How long a unit counts, [`WINDOW_MIN`] to [`WINDOW_MAX`].
    pub window: Duration,
    /// What counts.
    pub counted: Counted,
    /// What it is for.
    pub kind: LimitKind,
    /// Whether a claim beyond it is refused; otherwise it is granted and
    /// [reported](crate::Grant::exceeded).
    pub refuses: bool,
}

impl Limit {
    /// A velocity limit that counts executions and refuses. Values out of bounds are moved to the
    /// nearest bound.
    #[must_use]
    pub fn new(key: LimitKey, max: u16, window: Duration) -> Self {
        Self {
            key,
            max: max.clamp(1, LIMIT_MAX),
            window: window.clamp(WINDOW_MIN, WINDOW_MAX),
            counted: Counted::default(),
            kind: LimitKind::default(),
            refuses: true,
        }
    }
}

/// Limits that cannot be those of one claim.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum ClaimLimitsError {
    /// There are more than [`LIMITS_MAX`].
    #[error("a claim has at most {LIMITS_MAX} limits")]
    TooMany,
    /// Two have the same key.
    #[error("two limits of a claim have the same key")]
    Repeated,
}

/// The limits of a claim. Usually there are none.
#[derive(Clone, Debug, Default, PartialEq, Eq, Hash)]
pub struct ClaimLimits(Option<Arc<[Limit]>>);

impl ClaimLimits {
    /// These limits. Their positions name them in a [`LimitRefusal`] and a [`LimitSet`].
    pub fn new(limits: impl IntoIterator<Item = Limit>) -> Result<Self, ClaimLimitsError> {
        let limits: Vec<Limit> = limits.into_iter().collect();
        if limits.len() > LIMITS_MAX {
            return Err(ClaimLimitsError::TooMany);
        }
        let mut keys: Vec<LimitKey> = limits.iter().map(|limit| limit.key).collect();
        keys.sort_unstable();
        keys.dedup();
        if keys.len() != limits.len() {
            return Err(ClaimLimitsError::Repeated);
        }
        Ok(Self((!limits.is_empty()).then(|| limits.into())))
    }

    /// The same limits, none of which refuses.
    #[must_use]
    pub fn reporting(&self) -> Self {
        let report = |limit: &Limit| Limit { refuses: false, ..limit.clone() };
        Self(self.0.as_ref().map(|limits| limits.iter().map(report).collect()))
    }

    /// Whether there are none.
    #[must_use]
    pub const fn is_empty(&self) -> bool {
        self.0.is_none()
    }

    /// The limits, in the order in which they were given.
    pub fn iter(&self) -> impl Iterator<Item = &Limit> {
        self.0.iter().flat_map(|limits| limits.iter())
    }

    /// Their keys, rising.
    #[must_use]
    pub fn keys(&self) -> LimitKeys {
        LimitKeys::new(self.iter().map(|limit| limit.key))
    }
}

/// The counters in which a record has reserved a unit, rising. Usually there are none.
#[derive(Clone, Debug, Default, PartialEq, Eq, Hash)]
pub struct LimitKeys(Option<Arc<[LimitKey]>>);

impl LimitKeys {
    /// No key.
    pub const NONE: Self = Self(None);

    /// These keys.
    pub fn new(keys: impl IntoIterator<Item = LimitKey>) -> Self {
        let mut keys: Vec<LimitKey> = keys.into_iter().collect();
        keys.sort_unstable();
        keys.dedup();
        Self((!keys.is_empty()).then(|| keys.into()))
    }

    /// Whether there are none.
    #[must_use]
    pub const fn is_empty(&self) -> bool {
        self.0.is_none()
    }

    /// The keys, rising.
    pub fn iter(&self) -> impl Iterator<Item = LimitKey> {
        self.0.iter().flat_map(|keys| keys.iter().copied())
    }

    /// The bytes to store beside the record; `None` if there are no keys.
    #[must_use]
    pub fn to_bytes(&self) -> Option<Vec<u8>> {
        self.0.as_ref().map(|keys| keys.iter().flat_map(|key| key.0).collect())
    }

    /// Reads [`LimitKeys::to_bytes`]; `None` for other bytes.
    #[must_use]
    pub fn from_bytes(bytes: &[u8]) -> Option<Self> {
        let (keys, rest) = bytes.as_chunks::<16>();
        rest.is_empty().then(|| Self::new(keys.iter().map(|key| LimitKey(*key))))
    }
}

/// Why a claim was refused: nothing ran, and nothing changed.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub struct LimitRefusal {
    /// The position of the limit among those of the claim. Of several, the one that frees last.
    pub index: u8,
    /// What the limit is for.
    pub kind: LimitKind,
    /// When a unit frees; `None` if all are reserved by operations that have not ended.
    pub frees_in: Option<Duration>,
}

impl LimitRefusal {
    /// A refusal by the limit at this position.
    #[must_use]
    pub const fn new(index: u8, kind: LimitKind, frees_in: Option<Duration>) -> Self {
        Self { index, kind, frees_in }
    }

    /// The problem that the client gets.
    #[must_use]
    pub const fn problem(self) -> Problem {
        self.kind.problem()
    }
}

/// Positions of limits of a claim.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct LimitSet(u16);

impl LimitSet {
    /// No limit.
    pub const NONE: Self = Self(0);

    /// Whether the limit at this position is in the set.
    #[must_use]
    pub fn contains(self, index: u8) -> bool {
        1_u16.checked_shl(index.into()).is_some_and(|bit| self.0 & bit != 0)
    }

    /// Whether the set has no limit.
    #[must_use]
    pub const fn is_empty(self) -> bool {
        self.0 == 0
    }

    /// Adds the limit at this position.
    #[must_use]
    pub fn with(self, index: u8) -> Self {
        Self(self.0 | 1_u16.checked_shl(index.into()).unwrap_or_default())
    }
}

/// Reserves a unit of each limit for the operation, or none and returns the refusal. The returned
/// set has the limits that only report and were exceeded.
///
/// An operation that has a unit keeps it.
pub fn admit(
    limits: &ClaimLimits,
    operation: OperationId,
    counters: &mut CounterSet,
    now: StoreTime,
) -> Result<LimitSet, LimitRefusal> {
    let mut exceeded = LimitSet::default();
    let mut refusal: Option<LimitRefusal> = None;
    for (index, limit) in (0_u8..).zip(limits.iter()) {
        let Err(frees_in) = counters.get(limit).has_room(operation, now) else { continue };
        if !limit.refuses {
            exceeded = exceeded.with(index);
            continue;
        }
        // An unknown wait counts as the longest.
        let longer = refusal.is_none_or(|earlier| match (earlier.frees_in, frees_in) {
            (Some(earlier), Some(frees_in)) => frees_in > earlier,
            (earlier, frees_in) => earlier.is_some() && frees_in.is_none(),
        });
        if longer {
            refusal = Some(LimitRefusal { index, kind: limit.kind, frees_in });
        }
    }
    if let Some(refusal) = refusal {
        return Err(refusal);
    }
    for (index, limit) in (0_u8..).zip(limits.iter()) {
        // A counter without room keeps its size: a limit that reports counts what a limit that
        // refuses would have admitted.
        if !exceeded.contains(index) {
            counters.get_mut(limit).reserve(operation, now);
        }
    }
    Ok(exceeded)
}

/// How an operation ended, as limits see it.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub(crate) struct LimitEnd {
    pub(crate) reached: bool,
    /// The status of the recorded answer.
    pub(crate) kept: Option<u16>,
    /// The status that the upstream answered with, recorded or not.
    pub(crate) status: Option<u16>,
    pub(crate) tag: Option<AnswerTag>,
    pub(crate) claimed_at: StoreTime,
}

impl fmt::Display for Counted {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Executions => f.write_str("executions"),
            Self::Completed => f.write_str("completed"),
            Self::Declined => f.write_str("declined"),
            Self::Statuses(set) => {
                f.write_str("statuses")?;
                set.iter().try_for_each(|status| write!(f, " {status}"))
            }
            Self::Tag(tag) => write!(f, "tag {}", tag.as_str()),
        }
    }
}
