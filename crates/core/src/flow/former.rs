//! Records under which an operation was remembered before: in another scope, under another caller
//! secret, or while the route only observed.
//!
//! They are read and never written. A driver looks there before the claim of an operation that
//! [would begin](would_begin), and reports a reply with `Flow::on_known`.

use crate::{Answer, Content, OnUnknown, Problem, Snapshot, StateView};

use super::{Plan, Reply};

/// Whether a claim of the record that stands so would be the first attempt.
#[must_use]
pub fn would_begin(seen: Option<&Snapshot>) -> bool {
    seen.is_none_or(|seen| seen.fingerprint.is_none())
}

impl Plan {
    /// What a request gets where the operation was remembered so before; `None` if it may begin.
    /// `observed`: it was remembered while the route only observed.
    #[must_use]
    pub fn reply_of_former(&self, seen: &Snapshot, observed: bool) -> Option<Reply> {
        if seen.fingerprint? != self.fingerprint {
            return Some(Reply::Problem(Problem::KeyReused));
        }
        match &seen.state {
            StateView::Completed { answer, .. } if observed => Some(self.reply_of_observed(answer)),
            StateView::Completed { answer, .. } => Some(Reply::Replayed(answer.clone())),
            // Operators do not resolve records that were only observed.
            StateView::Held if observed => None,
            StateView::Held => Some(Reply::Problem(Problem::OutcomeUnknown)),
            StateView::InFlight { lease_left }
                if lease_left.is_zero() && seen.on_unknown == OnUnknown::Rerun =>
            {
                None
            }
            StateView::InFlight { .. } => Some(Reply::Problem(Problem::InProgress)),
            StateView::Released { .. } => None,
        }
    }

    /// An observed record has no answer, only the status of one; and where a guarded one would be
    /// held, it has failed.
    fn reply_of_observed(&self, answer: &Answer) -> Reply {
        match answer.read() {
            Ok(Content::Failed) if self.on_unknown == OnUnknown::Hold => {
                Reply::Problem(Problem::OutcomeUnknown)
            }
            Ok(Content::Response(response)) => {
                Reply::Replayed(Answer::not_retained(response.status))
            }
            Ok(Content::Failed | Content::NotRetained { .. }) | Err(_) => {
                Reply::Replayed(answer.clone())
            }
        }
    }
}
