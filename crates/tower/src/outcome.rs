//! The outcome of a request, for access logs.

use semel::{
    Lease,
    core::{Problem, RecordId},
};

/// The outcome of a request: an extension of its answer, if
/// [`IdempotencyLayer::record_outcome`](crate::IdempotencyLayer::record_outcome) is set.
#[derive(Clone, Debug)]
#[non_exhaustive]
pub struct RequestOutcome {
    /// The record; `None` if the request was refused before it had one.
    pub id: Option<RecordId>,
    /// How the request was answered.
    pub outcome: RequestOutcomeKind,
    /// The execution, if this request had one.
    pub lease: Option<Lease>,
}

/// How a request was answered.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum RequestOutcomeKind {
    /// The request ran. A streamed answer may still fail.
    Ran,
    /// It got the answer of a concurrent request.
    Joined,
    /// It got the recorded answer.
    Replayed,
    /// It ran, or joined an execution, although the store was unavailable; nothing is recorded yet.
    Unguarded,
    /// It got a problem of this layer. This includes a repeat whose answer was not retained, or
    /// whose operation counts as failed.
    Refused(Problem),
}
