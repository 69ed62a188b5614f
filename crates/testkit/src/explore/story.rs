//! A story: what happened, one numbered line for each step, in words.

use std::fmt;

use semel_core::{
    Answer, Claimed, Content, Fenced, Occupied, RecordAction, Release, Reply, Resolved, StateView,
};

use super::world::{StoreReply, StoreRequest};

/// The steps that led to a violation.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct EventTrace {
    lines: Vec<String>,
}

impl EventTrace {
    /// The lines, without their numbers.
    #[must_use]
    pub fn lines(&self) -> &[String] {
        &self.lines
    }
}

impl fmt::Display for EventTrace {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        for (at, line) in self.lines.iter().enumerate() {
            writeln!(f, "{}. {line}", at + 1)?;
        }
        Ok(())
    }
}

/// Writes a story. While worlds are explored it is silent, and no text is formatted.
pub(super) struct TraceWriter {
    story: Option<EventTrace>,
}

impl TraceWriter {
    pub(super) const fn silent() -> Self {
        Self { story: None }
    }

    pub(super) fn recording() -> Self {
        Self { story: Some(EventTrace::default()) }
    }

    /// Begins a line.
    pub(super) fn begin(&mut self) {
        if let Some(story) = &mut self.story {
            story.lines.push(String::new());
        }
    }

    /// Adds to the line.
    pub(super) fn say(&mut self, words: impl FnOnce() -> String) {
        let Some(line) = self.story.as_mut().and_then(|story| story.lines.last_mut()) else {
            return;
        };
        if !line.is_empty() {
            line.push_str("; ");
        }
        line.push_str(&words());
    }

    pub(super) fn finish(self) -> EventTrace {
        self.story.unwrap_or_default()
    }
}

/// What an actor is called: A, B, C.
pub(super) fn name(actor: usize) -> char {
    char::from(b'A' + u8::try_from(actor).unwrap_or(25))
}

pub(super) fn store_request(store_request: &StoreRequest) -> String {
    match store_request {
        StoreRequest::Claim => "claim".to_owned(),
        StoreRequest::Renew(fence) => format!("renewal with fence {fence}"),
        StoreRequest::Record(fence, finish) => match &finish.action {
            RecordAction::Complete(answer) if *answer == Answer::failed() => {
                format!("failure with fence {fence}")
            }
            RecordAction::Complete(_) => format!("answer with fence {fence}"),
            RecordAction::Release(Release::NotSent) => {
                format!("release (nothing was sent) with fence {fence}")
            }
            RecordAction::Release(_) => format!("release with fence {fence}"),
            RecordAction::Hold => format!("hold with fence {fence}"),
            RecordAction::Forget => format!("forget with fence {fence}"),
        },
        StoreRequest::Look => "lookup of the record".to_owned(),
    }
}

pub(super) fn store_reply(store_reply: &StoreReply) -> String {
    match store_reply {
        StoreReply::Claimed(Claimed::Granted(grant)) => {
            format!("granted, fence {}, attempt {}", grant.fence, grant.attempt)
        }
        StoreReply::Claimed(Claimed::Occupied(occupied)) => match occupied {
            Occupied::FingerprintMismatch => "another fingerprint".to_owned(),
            Occupied::InFlight { .. } => "in flight".to_owned(),
            Occupied::Completed { answer, .. } => {
                format!("completed with {}", self::answer(answer))
            }
            Occupied::Held => "held".to_owned(),
            Occupied::Ended => "ended before".to_owned(),
            Occupied::Limited(refusal) => format!("refused by limit {}", refusal.index),
        },
        StoreReply::Fenced(Fenced::Applied) => "applied".to_owned(),
        StoreReply::Fenced(Fenced::Lost) => "lost".to_owned(),
        StoreReply::Seen(None) => "absent".to_owned(),
        StoreReply::Seen(Some(seen)) => match &seen.state {
            StateView::InFlight { lease_left } if lease_left.is_zero() => "lapsed".to_owned(),
            StateView::InFlight { .. } => "in flight".to_owned(),
            StateView::Completed { answer, .. } => {
                format!("completed with {}", self::answer(answer))
            }
            StateView::Released { .. } => "released".to_owned(),
            StateView::Held => "held".to_owned(),
        },
    }
}

pub(super) fn reply(reply: &Reply) -> String {
    match reply {
        Reply::Ran(answer) => answer_to(answer, ""),
        Reply::Joined(answer) => answer_to(answer, " of the execution it joined"),
        Reply::Unguarded(answer) => answer_to(answer, ", unguarded"),
        Reply::Replayed(answer) => answer_to(answer, ", replayed"),
        Reply::Problem(problem) => format!("{} {}", problem.status(), problem.slug()),
        Reply::Limited(refusal) => format!("{} by a limit", refusal.problem().status()),
    }
}

fn answer_to(answer: &Answer, how: &str) -> String {
    format!("{}{how}", self::answer(answer))
}

pub(super) fn answer(answer: &Answer) -> String {
    match answer.read() {
        Ok(Content::NotRetained { status: 299 }) => "the operator's answer".to_owned(),
        Ok(Content::NotRetained { status: 429 }) => "\"429, try again\"".to_owned(),
        Ok(Content::NotRetained { status: 307 }) => "\"307, elsewhere\"".to_owned(),
        Ok(Content::NotRetained { status }) => {
            format!("{}'s answer", name(usize::from(status.saturating_sub(201))))
        }
        Ok(Content::Failed) => "\"operation failed\"".to_owned(),
        Ok(Content::Response(_)) | Err(_) => "an answer".to_owned(),
    }
}

pub(super) fn resolved(resolved: Resolved) -> &'static str {
    match resolved {
        Resolved::Applied => "done",
        Resolved::Stale => "too late, the record is not what was seen",
    }
}
