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
//! 5. **complete, renew, release and hold check the fence.** A zombie's write changes nothing and
//!    is told [`Fenced::Lost`].
//! 6. **A repeated complete** with the same fence and bytes is [`Fenced::Applied`]: it is our own
//!    retry of a lost reply.
//! 7. **A claim carries a random owner token**; claiming again with it gives the same fence.
//! 8. **The owner counts its lease from before it asked**, on its monotonic clock. An owner whose
//!    lease has ended does not *begin* to act. What it has begun before cannot be recalled: it may
//!    go on beside a new owner, and the fence refuses its late write (law 5). (Kept by
//!    [`flow`](crate::flow); a store makes it possible by counting from when it was asked, never
//!    from earlier.)
//! 9. **Past retention counts as absent**, swept or not; only completed and released records have a
//!    retention.
//! 10. **Acknowledged means durable**: after `kill -9` or a power cut every granted claim and every
//!     recorded answer is there. A commit whose result is unknown poisons the writer: effect
//!     unknown to all in the batch, reopen, reload.
//! 11. **A fence never repeats or falls** for a record while an older holder could still be alive,
//!     deletion included.
//! 12. **A completed record never changes** until it expires or an operator acts, so it may be
//!     cached; nothing else may. An operator's act raises the [`Epoch`], which every cache follows.
//! 13. **Everything is bounded.** Back-pressure falls on new claims, never on complete, renew,
//!     release or hold.
//!
//! What each operation does to each state is written once, as pure functions, in
//! [`rules`](crate::rules). A store either calls them inside its atomic step or restates them and
//! is tested against them.

use std::{
    fmt::{self, Debug},
    pin::Pin,
    time::Duration,
};

use async_trait::async_trait;

use crate::{
    Answer, Fence, Fingerprint, OnUnknown, OwnerToken, RecordId, Scope, Snapshot, StateName,
    StoreError,
};

/// Where records live.
///
/// Every method may be called from any number of tasks at once. Dropping a returned future does not
/// undo what it began: a claim may still be granted, an answer may still be recorded.
#[async_trait]
pub trait Store: Debug + Send + Sync + 'static {
    /// Takes the key, or says what stands in its way (laws 1, 4, 7, 9).
    ///
    /// After an error whose [effect](StoreError::effect) is unknown, ask again with the same claim:
    /// the owner token makes that safe.
    async fn claim(&self, claim: &Claim) -> Result<Claimed, StoreError>;

    /// Extends the lease to `lease` from now, while the fence is current and the record in flight.
    async fn renew(
        &self,
        id: &RecordId,
        fence: Fence,
        lease: Duration,
    ) -> Result<Fenced, StoreError>;

    /// Records the answer while the fence is current. A held record accepts it too: late truth
    /// beats a guess.
    async fn complete(
        &self,
        id: &RecordId,
        fence: Fence,
        answer: &Answer,
    ) -> Result<Fenced, StoreError>;

    /// Frees the key for another try while the fence is current.
    async fn release(
        &self,
        id: &RecordId,
        fence: Fence,
        tried: Tried,
    ) -> Result<Fenced, StoreError>;

    /// Says that the outcome is unknown, while the fence is current.
    async fn hold(&self, id: &RecordId, fence: Fence) -> Result<Fenced, StoreError>;

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

    /// Moves lapsed records whose route said `hold` or `fail` where they belong, at most `limit`.
    async fn reap(&self, limit: u32) -> Result<Batch, StoreError>;

    /// Deletes records past retention, at most `limit`. The caller paces the batches.
    async fn sweep(&self, limit: u32) -> Result<Batch, StoreError>;

    /// How many operator's acts this store has seen.
    async fn epoch(&self) -> Result<Epoch, StoreError>;

    /// What tells this store's records from those of every other store, for caches that several
    /// share. `None` where the store has no such thing; then nothing may be shared.
    async fn identity(&self) -> Result<Option<StoreId>, StoreError> {
        Ok(None)
    }

    /// Asks to be told when the record changes: for those who wait for somebody elsewhere. `None`
    /// where the store cannot tell, now or ever: look again after a pause.
    ///
    /// Look once more after asking, since what changed before is not told.
    async fn watch(&self, id: &RecordId) -> Result<Option<Changed>, StoreError> {
        let _ = id;
        Ok(None)
    }
}

/// Ends when a record that is [watched](Store::watch) may have changed, or when the store can no
/// longer tell. It may end for nothing, and what makes a lease lapse is time, which nobody tells.
pub type Changed = Pin<Box<dyn Future<Output = ()> + Send>>;

/// Compiles only while the trait can be used as `dyn Store`.
fn _object_safe(_: &dyn Store) {}

/// A request to be the one that runs an operation.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
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
pub struct Grant {
    /// Names this run in every later write.
    pub fence: Fence,
    /// 1 for the first run; higher means that an earlier one may have left traces.
    pub attempt: u32,
}

/// Why a claim was not granted.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub enum Occupied {
    /// The record belongs to another fingerprint (`key-reused`). Nothing changed.
    Reused,
    /// Somebody runs it.
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
}

/// What became of a write that carries a fence.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Fenced {
    /// It holds, durably.
    Applied,
    /// The fence is not current, or the record no longer takes this write. Nothing changed.
    Lost,
}

/// Whether a released execution counts as an attempt.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Tried {
    /// It ran.
    Counted,
    /// Nothing was sent: no byte of the request went out.
    NotCounted,
}

/// What an operator says about a record.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub enum Resolution {
    /// It happened, and this is the answer. Takes a held record.
    Completed(Answer),
    /// It did not happen and may run again. Takes a held record.
    Released,
    /// Forget the record that was seen in this state. Takes any record that nobody runs.
    ///
    /// The fence alone does not tell a held record from the same one with its late answer, and
    /// forgetting that answer would let the operation run twice.
    Forgotten(StateName),
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
    // Whoever knows it can write what a shared cache believes, so it is not printed.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("StoreId(..)")
    }
}

/// What a batch of upkeep did.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub struct Batch {
    /// How many records it changed.
    pub done: u32,
    /// Whether there was more to do.
    pub more: bool,
}

/// The largest page of [`Store::list`].
pub const PAGE_MAX: u32 = 1000;

/// Which records to list.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct ListQuery {
    /// Only records in this state.
    pub state: Option<StateName>,
    /// Only records of this scope.
    pub scope: Option<Scope>,
    /// Only records claimed at least this long ago.
    pub age_min: Duration,
    /// Where the last page ended.
    pub after: Option<Cursor>,
    /// How many; 0 means [`PAGE_MAX`], and more is cut to it.
    pub limit: u32,
}

impl ListQuery {
    /// Whether a record belongs on a page of this query.
    #[must_use]
    pub fn takes(&self, record: &Summary) -> bool {
        self.state.is_none_or(|state| state == record.state)
            && self.scope.as_ref().is_none_or(|scope| *scope == record.id.scope)
            && self.age_min <= record.age
    }

    /// How many records a page has at most.
    #[must_use]
    pub const fn page_size(&self) -> u32 {
        if self.limit == 0 || self.limit > PAGE_MAX { PAGE_MAX } else { self.limit }
    }
}

/// Where a page ended. Only the store that made it can read it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Cursor(pub u64);

/// One page of a listing.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Page {
    /// The records.
    pub items: Vec<Summary>,
    /// Where to go on; `None` after the last page.
    pub next: Option<Cursor>,
}

/// A line of a listing.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Summary {
    /// The record.
    pub id: RecordId,
    /// Its state as it counts now.
    pub state: StateName,
    /// Its fence, to name it in an operator's act.
    pub fence: Fence,
    /// How many executions were begun that count.
    pub attempt: u32,
    /// How long ago the newest claim was granted.
    pub age: Duration,
}
