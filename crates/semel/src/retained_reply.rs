//! A reply, and how long the record that it comes from is kept.

use std::time::Duration;

use semel_core::{Problem, Reply, Snapshot, StateView};

/// A reply that is sent now.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct RetainedReply {
    pub(crate) reply: Reply,
    /// What is left of the retention of its record, at least; `None` if the reply is not recorded.
    pub(crate) expires_in: Option<Duration>,
}

impl RetainedReply {
    /// A reply to a request whose record, if it is completed, is kept for `expires_in`.
    pub(crate) fn new(reply: Reply, expires_in: Option<Duration>) -> Self {
        let is_recorded = match &reply {
            Reply::Ran(_) | Reply::Joined(_) | Reply::Replayed(_) => true,
            Reply::Problem(problem) => *problem == Problem::OperationFailed,
            Reply::Unguarded(_) | Reply::Limited(_) => false,
        };
        let expires_in = expires_in.filter(|left| is_recorded && !left.is_zero());
        Self { reply, expires_in }
    }
}

impl From<Reply> for RetainedReply {
    fn from(reply: Reply) -> Self {
        Self { reply, expires_in: None }
    }
}

/// What is left of the retention of a completed record.
pub(crate) const fn retention_left(seen: &Snapshot) -> Option<Duration> {
    match seen.state {
        StateView::Completed { expires_in, .. } => Some(expires_in),
        StateView::InFlight { .. } | StateView::Released { .. } | StateView::Held => None,
    }
}
