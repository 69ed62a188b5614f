//! What became of a request, for whoever keeps a log of them.

use semel::{
    Lease,
    core::{Problem, RecordId},
};

/// What became of a request: an extension of its answer, where the layer was told to leave it
/// ([`IdempotencyLayer::served`](crate::IdempotencyLayer::served)).
#[derive(Clone, Debug)]
#[non_exhaustive]
pub struct Served {
    /// The record; `None` if the request was refused before it had one.
    pub id: Option<RecordId>,
    /// How the answer came about.
    pub outcome: ServedOutcome,
    /// The execution, if this request had one.
    pub lease: Option<Lease>,
}

/// How an answer came about.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ServedOutcome {
    /// The request ran. An answer that is a stream may still break.
    Ran,
    /// It got the answer of another request that ran meanwhile.
    Joined,
    /// It got the recorded answer.
    Replayed,
    /// It ran, or joined what ran, although the store could not be reached; nothing is recorded
    /// yet.
    Unguarded,
    /// It got an error of ours. A repeat whose answer was not retained, or whose operation counts
    /// as failed, is among them.
    Refused(Problem),
}
