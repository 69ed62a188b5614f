//! What an answer makes of its record, and what becomes of a record whose outcome is unknown.

/// What an answer makes of its record.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Verdict {
    /// Recorded and replayed.
    Completed,
    /// Not recorded; the key is free for the same request.
    Retry,
    /// Not recorded; the key is free for any request.
    Forget,
    /// The answer proves nothing: `on_unknown` decides.
    Unknown,
}

impl Verdict {
    /// Reads `Idempotency-Outcome`.
    #[must_use]
    pub fn from_header(value: &[u8]) -> Option<Self> {
        match value.trim_ascii() {
            b"completed" => Some(Self::Completed),
            b"retry" => Some(Self::Retry),
            b"forget" => Some(Self::Forget),
            b"unknown" => Some(Self::Unknown),
            _ => None,
        }
    }
}

/// What becomes of a record whose outcome is unknown.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum OnUnknown {
    /// Nothing runs again until someone resolves it. The safe choice where money may have moved.
    #[default]
    Hold,
    /// The next request runs it again, with a higher fence.
    Rerun,
    /// It ends with `operation-failed`, which is replayed.
    Fail,
}
