//! The trait every store implements, and the thirteen laws it keeps.
//!
//! # The laws
//!
//! Each is a case of the conformance kit, which runs against every store.
//!
//! 1. **claim is atomic.** Of any number of concurrent claims of one record, at most one is granted
//!    while its lease lives.
//! 2. **Durations cross the trait, instants never do.** The store stamps with its own clock, and a
//!    step of the wall clock must not lapse a lease.
//! 3. **Lost races are values** ([`Claimed::Occupied`], [`Fenced::Lost`]), not errors. A
//!    [`StoreError`] says whether the write may have happened.
//! 4. **Takeover is decided inside the atomic step**, never by read-then-swap, and only with an
//!    equal fingerprint.
//! 5. **renew and finish name the fence and the owner token.** A zombie's write changes nothing and
//!    gets [`Fenced::Lost`]. The token stays with the record until it is claimed again.
//! 6. **A repeated finish** is [`Fenced::Applied`]: a completion with the same bytes, or a release,
//!    hold or forget. It is our own retry of a lost reply.
//! 7. **A claim carries a random owner token**; claiming again with it gives the same fence. Once
//!    that claim was released or forgotten, a duplicate of it gets [`Occupied::Ended`].
//! 8. **The owner counts its lease from before it asked**, on a clock that counts suspend. An owner
//!    whose lease has ended does not *begin* to act. What it has begun before cannot be recalled:
//!    it may go on beside a new owner, and the fence refuses its late write (law 5). (Kept by
//!    [`flow`](crate::flow); a store makes it possible by counting from when it was asked, never
//!    from earlier.)
//! 9. **Past retention counts as absent**, swept or not; only completed and released records have a
//!    retention.
//! 10. **Acknowledged means durable**: after `kill -9` or a power cut every granted claim and every
//!     recorded answer is there. A commit whose result is unknown poisons the writer: effect
//!     unknown to all in the batch, reopen, reload.
//! 11. **A fence never repeats or falls** for a record while an older holder could still be alive:
//!     deletion, a new store, a restored backup and a failover included. The first fence of a store
//!     is the wall clock in microseconds.
//! 12. **A completed record never changes** until it expires or an operator acts, so it may be
//!     cached; nothing else may. An operator's act raises the [`Epoch`], which every cache follows.
//! 13. **Everything is bounded.** Back-pressure falls on new claims, never on renew or finish.
//!
//! What each operation does to each state is written once, as pure functions, in
//! [`rules`](crate::rules). A store either calls them inside its atomic step or restates them and
//! is tested against them.

mod list;

use std::{
    fmt::{self, Debug},
    pin::Pin,
    time::Duration,
};

use async_trait::async_trait;
use bytes::Bytes;

use crate::{
    About, Answer, Captured, Claimant, Fence, Fingerprint, NodeName, OnUnknown, OwnerToken, Policy,
    Reason, RecordId, Snapshot, StateName, StoreError, StoreErrorKind, Usage,
    limit::{AnswerTag, ClaimLimits, LimitKeys, LimitRefusal, LimitSet},
};

pub use list::{Cursor, ListQuery, PAGE_MAX, Page, Summary};

/// Where records live.
///
/// Every method may be called from any number of tasks at once. Dropping a returned future does not
/// undo what it began: a claim may still be granted, an answer may still be recorded.
///
/// A store that [has limits](Self::has_limits) decides the [`limits`](crate::limit) of a claim in
/// the commit of the claim, and settles their reservations in the commit of every end: by the
/// owner, an operator, a reaper or the next claim. It takes the record first and then the counters
/// in rising order of their keys, and sweeps the counters itself.
#[async_trait]
pub trait Store: Debug + Send + Sync + 'static {
    /// Claims the key, or returns the record that prevents it (laws 1, 4, 7, 9).
    ///
    /// After an error whose [effect](StoreError::effect) is unknown, ask again with the same claim:
    /// the owner token makes that safe.
    async fn claim(&self, claim: &Claim) -> Result<Claimed, StoreError>;

    /// Extends the lease to `lease` from now, while the claimant owns the record in flight (law 5).
    async fn renew(
        &self,
        id: &RecordId,
        by: Claimant,
        lease: Duration,
    ) -> Result<Fenced, StoreError>;

    /// Writes how an execution ended, while the claimant owns the record (laws 5 and 6). A held
    /// record accepts it too: late truth beats a guess.
    async fn finish(
        &self,
        id: &RecordId,
        by: Claimant,
        finish: &Finish,
    ) -> Result<Fenced, StoreError>;

    /// Whether claims may have [`Claim::limits`]. A store that has none must not be given such a
    /// claim.
    fn has_limits(&self) -> bool {
        false
    }

    /// The record as it counts now. For waiters and operators; a decision to run is never taken on
    /// it.
    async fn get(&self, id: &RecordId) -> Result<Option<Snapshot>, StoreError>;

    /// One page of records, without answers, in an order of the store's own. A record that stays
    /// unchanged while all pages are read is listed exactly once. A page may be short, even empty,
    /// and still have a next one: a page also bounds how much is looked at.
    async fn list(&self, query: &ListQuery) -> Result<Page, StoreError>;

    /// An operator's act on the record that was seen with the fence `seen`. It raises the fence and
    /// the epoch, and loses against any newer truth.
    async fn resolve(
        &self,
        id: &RecordId,
        seen: Fence,
        resolution: &Resolution,
    ) -> Result<Resolved, StoreError>;

    /// Settles records whose lease has expired by their route's `hold` or `fail`, and ends those
    /// that were held for longer than `hold_for`; at most `limit`.
    async fn reap(&self, limit: u32) -> Result<Batch, StoreError>;

    /// Deletes records past retention, at most `limit`. The caller paces the batches.
    async fn sweep(&self, limit: u32) -> Result<Batch, StoreError>;

    /// How many operator's acts this store has seen.
    async fn epoch(&self) -> Result<Epoch, StoreError>;

    /// An identifier of this store, for caches that several stores share. `None` if the store has
    /// none; then nothing may be shared.
    async fn identity(&self) -> Result<Option<StoreId>, StoreError> {
        Ok(None)
    }

    /// How much the store holds, as far as it knows that without counting: for quotas, which are
    /// checked every few seconds. A store that knows nothing of it has no quota.
    async fn usage(&self) -> Result<Usage, StoreError> {
        Ok(Usage::default())
    }

    /// What is remembered beside the records under names with this prefix, at most
    /// [`METADATA_ENTRIES_MAX`] entries in the order of their names. All who open the store see the
    /// same ones. A store without a place for them has none.
    async fn metadata(&self, prefix: &str) -> Result<Vec<(Box<str>, Bytes)>, StoreError> {
        let _ = prefix;
        Ok(Vec::new())
    }

    /// Remembers `value` under `name`, durably, or removes what is there. A name has at most
    /// [`METADATA_NAME_BYTES_MAX`] bytes and a value at most [`METADATA_VALUE_BYTES_MAX`].
    async fn set_metadata(&self, name: &str, value: Option<&[u8]>) -> Result<(), StoreError> {
        let _ = (name, value);
        Ok(())
    }

    /// Subscribes to changes of the record: for requests that wait for another process. `None` if
    /// the store has no notifications, now or ever: poll instead.
    ///
    /// Read the record once more after subscribing, since earlier changes are not reported.
    async fn watch(&self, id: &RecordId) -> Result<Option<Changed>, StoreError> {
        let _ = id;
        Ok(None)
    }
}

/// Ends when a record that is [watched](Store::watch) may have changed, or when the store can no
/// longer notify. It may end spuriously. A lease that expires causes no notification.
pub type Changed = Pin<Box<dyn Future<Output = ()> + Send>>;

/// Compiles only while the trait can be used as `dyn Store`.
fn _object_safe(_: &dyn Store) {}

/// The longest name of an entry of [`Store::metadata`], in bytes.
pub const METADATA_NAME_BYTES_MAX: usize = 512;

/// The longest value of an entry of [`Store::metadata`], in bytes.
pub const METADATA_VALUE_BYTES_MAX: usize = 4096;

/// Whether an entry is within the bounds of [`Store::set_metadata`]: for implementations.
pub fn check_metadata(name: &str, value: Option<&[u8]>) -> Result<(), StoreError> {
    let fits = (1..=METADATA_NAME_BYTES_MAX).contains(&name.len())
        && value.is_none_or(|value| value.len() <= METADATA_VALUE_BYTES_MAX);
    let message = "an entry of the metadata is too long";
    fits.then_some(()).ok_or_else(|| StoreError::new(StoreErrorKind::TooLarge, message))
}

/// How many entries [`Store::metadata`] returns at most.
pub const METADATA_ENTRIES_MAX: usize = 1000;

/// A request to be the one that runs an operation.
///
/// ```
/// use std::time::Duration;
/// use semel_core::*;
///
/// let id = RecordId::new(Scope::new("payments")?, Caller::anonymous(), Key::new("order-7")?);
/// let fingerprint = Fingerprint::of_parts("charge", &[b"42.00"]);
/// let mut claim = Claim::new(id, fingerprint, OwnerToken::from_bytes([7; 16]));
/// claim.lease = Duration::from_secs(5);
/// assert_eq!(claim.on_unknown, OnUnknown::Hold);
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub struct Claim {
    /// The record.
    pub id: RecordId,
    /// What the request means.
    pub fingerprint: Fingerprint,
    /// Sixteen random bytes, drawn once for all repetitions of this claim.
    pub owner: OwnerToken,
    /// How long the owner may stay silent.
    pub lease: Duration,
    /// How long the record is kept once it is finished.
    pub retention: Duration,
    /// What to do when the outcome is unknown.
    pub on_unknown: OnUnknown,
    /// How long the record may be held before it ends with `operation-failed`.
    pub hold_for: Option<Duration>,
    /// What the operation is about.
    pub about: About,
    /// The process that claims.
    pub node: NodeName,
    /// What the route captured of the request.
    pub captured: Captured,
    /// The velocity limits of the operation.
    pub limits: ClaimLimits,
}

impl Claim {
    /// A claim with the defaults of [`Policy`], about nothing in particular.
    #[must_use]
    pub fn new(id: RecordId, fingerprint: Fingerprint, owner: OwnerToken) -> Self {
        Self::by_policy(id, fingerprint, owner, &Policy::default())
    }

    /// A claim with the durations and the `on_unknown` of a policy.
    #[must_use]
    pub fn by_policy(
        id: RecordId,
        fingerprint: Fingerprint,
        owner: OwnerToken,
        policy: &Policy,
    ) -> Self {
        Self {
            id,
            fingerprint,
            owner,
            lease: policy.lease,
            retention: policy.retention,
            on_unknown: policy.on_unknown,
            hold_for: policy.hold_for,
            about: About::default(),
            node: NodeName::default(),
            captured: Captured::default(),
            limits: ClaimLimits::default(),
        }
    }

    /// Who owns the record if the claim is granted with this fence.
    #[must_use]
    pub const fn claimant(&self, fence: Fence) -> Claimant {
        Claimant::new(fence, self.owner)
    }
}

/// What a claim met.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub enum Claimed {
    /// Run it.
    Granted(Grant),
    /// Do not run it.
    Occupied(Occupied),
}

/// The right to run an operation for as long as the lease lives.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub struct Grant {
    /// Names this run in every later write.
    pub fence: Fence,
    /// 1 for the first run; higher means that an earlier one may have left traces.
    pub attempt: u32,
    /// The limits of the claim that only report and were exceeded.
    pub exceeded: LimitSet,
}

impl Grant {
    /// The right to run under this fence.
    #[must_use]
    pub const fn new(fence: Fence, attempt: u32) -> Self {
        Self { fence, attempt, exceeded: LimitSet::NONE }
    }
}

/// Why a claim was not granted.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub enum Occupied {
    /// The record belongs to another fingerprint (`key-reused`). Nothing changed.
    FingerprintMismatch,
    /// An owner runs it.
    InFlight {
        /// What is left of its lease.
        lease_left: Duration,
    },
    /// It is done.
    Completed {
        /// What to replay.
        answer: Answer,
        /// How long the record will be kept; nothing may cache it for longer.
        expires_in: Duration,
    },
    /// Its outcome is unknown.
    Held,
    /// This very claim was granted before, and its execution has ended: the claim is a stale
    /// duplicate (law 7).
    Ended,
    /// A velocity limit of the claim has no unit left. Nothing changed.
    Limited(LimitRefusal),
}

/// What became of a write that carries a fence.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Fenced {
    /// It holds, durably.
    Applied,
    /// The fence is not current, or the record no longer takes this write. Nothing changed.
    Lost,
}

/// How an execution ended: what to write, and why it did not complete.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub struct Finish {
    /// What to write.
    pub action: RecordAction,
    /// Why the execution did not complete.
    pub reason: Option<Reason>,
    /// The limits of the claim. A store settles reservations without it too, but may need a round
    /// trip more.
    pub limits: LimitKeys,
    /// What the upstream called its answer, for limits that count by it.
    pub tag: Option<AnswerTag>,
}

impl Finish {
    const fn new(action: RecordAction, reason: Option<Reason>) -> Self {
        Self { action, reason, limits: LimitKeys::NONE, tag: None }
    }

    /// The execution ended with this answer.
    #[must_use]
    pub const fn complete(answer: Answer) -> Self {
        Self::new(RecordAction::Complete(answer), None)
    }

    /// The key is free for the same request.
    #[must_use]
    pub const fn release(release: Release, reason: Reason) -> Self {
        Self::new(RecordAction::Release(release), Some(reason))
    }

    /// The outcome is unknown.
    #[must_use]
    pub const fn hold(reason: Reason) -> Self {
        Self::new(RecordAction::Hold, Some(reason))
    }

    /// The key is free for any request.
    #[must_use]
    pub const fn forget(reason: Reason) -> Self {
        Self::new(RecordAction::Forget, Some(reason))
    }

    /// The completion without the body of its answer; `None` if there is nothing to leave out.
    #[must_use]
    pub fn without_body(&self) -> Option<Self> {
        let RecordAction::Complete(answer) = &self.action else { return None };
        let smaller = RecordAction::Complete(answer.without_body()?);
        Some(Self { action: smaller, ..self.clone() })
    }

    /// The outcome is unknown, and the route says what that means.
    #[must_use]
    pub const fn unknown(on_unknown: OnUnknown, reason: Reason) -> Self {
        let action = match on_unknown {
            OnUnknown::Hold => RecordAction::Hold,
            OnUnknown::Rerun => RecordAction::Release(Release::Rerun),
            OnUnknown::Fail => RecordAction::Complete(Answer::failed()),
        };
        Self::new(action, Some(reason))
    }

    /// The same end of an operation whose claim had limits.
    #[must_use]
    pub fn with_limits(mut self, limits: &ClaimLimits, tag: Option<AnswerTag>) -> Self {
        (self.limits, self.tag) = (limits.keys(), tag);
        self
    }
}

/// What the end of an execution makes of its record.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub enum RecordAction {
    /// Record this answer.
    Complete(Answer),
    /// Free the key for the same request.
    Release(Release),
    /// The outcome is unknown: nothing runs until someone resolves it.
    Hold,
    /// Free the key for any request. The row stays for a while, so that a stale duplicate of the
    /// claim is recognised.
    Forget,
}

/// Why a key is free for the same request.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Release {
    /// No byte of the request went out. The attempt does not count; if it was the only one, the
    /// record is forgotten.
    NotSent,
    /// The service refused the request before the work began. Kept for at most
    /// [`RELEASED_RETENTION_MAX`].
    Refused,
    /// The outcome is unknown and the route says `rerun`. Kept for its retention.
    Rerun,
}

/// How long a record is kept at most that was released before the work began, or forgotten.
pub const RELEASED_RETENTION_MAX: Duration = Duration::from_secs(60 * 60);

/// What an operator says about a record.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub enum Resolution {
    /// It happened, and this is the answer. Takes a held record.
    Completed(Answer),
    /// It did not happen and may run again. Takes a held record.
    Released,
    /// Delete the record that was seen in this state. Takes any record that is not running.
    ///
    /// The fence alone does not distinguish a held record from the same one with its late answer;
    /// deleting that answer would let the operation run twice.
    Deleted(StateName),
}

/// What became of an operator's act.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Resolved {
    /// It holds.
    Applied,
    /// The record is not what was seen, or not one that takes this act. Look again.
    Stale,
}

/// How many operator's acts a store has seen. Whatever was cached under a lower epoch is dropped.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Epoch(pub u64);

/// Sixteen random bytes, drawn when a store was made and kept with its records: all who open it
/// see the same ones, and no other store has them.
#[derive(Clone, Copy, PartialEq, Eq, Hash)]
pub struct StoreId([u8; 16]);

impl StoreId {
    /// An identity from bytes that were drawn at random.
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

impl Debug for StoreId {
    // With it, entries of a shared cache can be forged, so it is not printed.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("StoreId(..)")
    }
}

/// The result of one maintenance batch.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub struct Batch {
    /// How many records it changed.
    pub done: u32,
    /// Whether there was more to do.
    pub more: bool,
}

impl Batch {
    /// A batch that changed `done` records.
    #[must_use]
    pub const fn new(done: u32, more: bool) -> Self {
        Self { done, more }
    }
}
