//! Asking the upstream what became of a held operation: what its answer proves, and what follows.
//!
//! A read of the upstream has one of five results, its [`ReadFinding`]. *Found* proves that the
//! operation happened. *Absent* proves nothing by itself: an attempt may still be on its way. It
//! counts only where the route says how long an attempt can take effect ([`settles_within`]), or
//! where the service refuses every attempt older than the read ([`fenced`]). Everything else leaves
//! the record held.
//!
//! Pure, like all of core: the reader gives it status, body and times, and does what it says.
//!
//! [`settles_within`]: ReconcilePlan::settles_within
//! [`fenced`]: ReconcilePlan::fenced

mod note;
mod template;

use std::time::Duration;

use bytes::Bytes;

use crate::{
    Field, ProcessTime, StatusSet, StoredResponse,
    canonical::{self, Pointer, Value},
};

pub use note::{ReconcileNote, notes_prefix};
pub use template::{Template, TemplateError};

/// Marks an answer that a read of the upstream established.
pub const RECONCILED_HEADER: &str = "idempotency-reconciled";

/// How an answer of the upstream is read.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ReadRule {
    /// The statuses of an answer that may show the operation.
    pub completed: StatusSet,
    /// Where the operation is in such an answer; `None` if the status alone shows it.
    pub present: Option<Pointer>,
    /// The statuses that say that there is no such operation.
    pub absent: StatusSet,
    /// Where nothing is in an answer with a completed status if there is no such operation.
    pub or_missing: Option<Pointer>,
    /// What must agree with the request: a value of the answer, and a text of captured values.
    pub matches: Vec<(Pointer, Template)>,
    /// The part of the answer to record; `None` records all of it.
    pub answer: Option<Pointer>,
    /// The status to record.
    pub answer_status: u16,
}

/// What a read of the upstream found.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum ReadFinding {
    /// The operation happened, and this is its answer.
    Found(StoredResponse),
    /// More than one operation.
    TwoFound,
    /// No such operation.
    Absent,
    /// An operation that is not the one of the request: the value at this pointer differs.
    Differs(Pointer),
    /// The answer proves nothing.
    Unclear,
}

impl ReadFinding {
    /// Every [`label`](Self::label) there is.
    pub const LABELS: [&'static str; 5] = ["found", "two-found", "absent", "differs", "unclear"];

    /// The kind of finding, for metrics.
    #[must_use]
    pub const fn label(&self) -> &'static str {
        match self {
            Self::Found(_) => "found",
            Self::TwoFound => "two-found",
            Self::Absent => "absent",
            Self::Differs(_) => "differs",
            Self::Unclear => "unclear",
        }
    }
}

/// An answer of the upstream to a read.
#[derive(Clone, Copy, Debug)]
pub struct ReadAnswer<'a> {
    /// The status.
    pub status: u16,
    /// The media type, if there is one.
    pub content_type: Option<&'a [u8]>,
    /// The body.
    pub body: &'a [u8],
}

impl ReadRule {
    /// What an answer shows. `values` are those that the templates may name.
    #[must_use]
    pub fn judge(&self, answer: ReadAnswer<'_>, values: &[(String, String)]) -> ReadFinding {
        if self.absent.contains(answer.status) {
            return ReadFinding::Absent;
        }
        if !self.completed.contains(answer.status) {
            return ReadFinding::Unclear;
        }
        // Whichever pointer says where the operation is: without one, the whole answer is it.
        let operation = self.present.as_ref().or(self.or_missing.as_ref()).or(self.answer.as_ref());
        if let Some(operation) = operation {
            match exists(answer.body, operation) {
                Some(true) => {}
                Some(false) => return self.judge_missing(answer.body),
                None => return ReadFinding::Unclear,
            }
            match following(operation).map(|next| exists(answer.body, &next)) {
                Some(Some(true)) => return ReadFinding::TwoFound,
                Some(None) => return ReadFinding::Unclear,
                Some(Some(false)) | None => {}
            }
            // Present and missing at once: the pointers do not fit the answer.
            if self.judge_missing(answer.body) == ReadFinding::Absent {
                return ReadFinding::Unclear;
            }
        }
        for (pointer, template) in &self.matches {
            let Some(expected) = template.text(values) else { return ReadFinding::Unclear };
            let found = canonical::find(answer.body, pointer).ok().flatten();
            if found.as_ref().and_then(Value::text) != Some(&*expected) {
                return ReadFinding::Differs(pointer.clone());
            }
        }
        self.response(answer).map_or(ReadFinding::Unclear, ReadFinding::Found)
    }

    /// What an answer without the operation shows. An answer of another form, such as an error with
    /// status 200, shows nothing. So a list must be there that has no such element, or an object
    /// whose member is `null`; an object without the member may be an error document.
    fn judge_missing(&self, body: &[u8]) -> ReadFinding {
        let Some(missing) = &self.or_missing else { return ReadFinding::Unclear };
        let Some((parent, last)) = split_last(missing) else { return ReadFinding::Unclear };
        let Ok(parent) = canonical::raw_value(body, &parent) else { return ReadFinding::Unclear };
        let is_list = parent.is_some_and(|raw| raw.starts_with(b"["));
        let is_element = last.parse::<u32>().is_ok();
        match canonical::find(body, missing) {
            Ok(None) if is_list && is_element => ReadFinding::Absent,
            Ok(Some(Value::Null)) if !is_list && !is_element => ReadFinding::Absent,
            Ok(_) | Err(_) => ReadFinding::Unclear,
        }
    }

    fn response(&self, answer: ReadAnswer<'_>) -> Option<StoredResponse> {
        let json: &[u8] = b"application/json";
        let (body, content_type) = match &self.answer {
            Some(pointer) => {
                (canonical::raw_value(answer.body, pointer).ok().flatten()?, Some(json))
            }
            None => (answer.body, answer.content_type),
        };
        let content_type = content_type
            .map(|value| Field::new(&b"content-type"[..], Bytes::copy_from_slice(value)));
        let reconciled = Field::new(RECONCILED_HEADER.as_bytes(), &b"true"[..]);
        Some(StoredResponse {
            status: self.answer_status,
            headers: content_type.into_iter().chain([reconciled]).collect(),
            body: Bytes::copy_from_slice(body),
            trailers: Vec::new(),
        })
    }
}

/// Whether there is a value other than `null` at a pointer; `None` if the body is not JSON.
fn exists(body: &[u8], pointer: &Pointer) -> Option<bool> {
    let found = canonical::find(body, pointer).ok()?;
    Some(found.is_some_and(|value| value != Value::Null))
}

/// The pointer without its last token, and that token.
fn split_last(pointer: &Pointer) -> Option<(Pointer, &str)> {
    let (parent, last) = pointer.as_str().rsplit_once('/')?;
    Some((Pointer::parse(parent).ok()?, last))
}

/// The same place in the next element of the innermost list that a pointer goes through:
/// `/data/1/id` for `/data/0/id`.
fn following(pointer: &Pointer) -> Option<Pointer> {
    let mut tokens: Vec<String> = pointer.as_str().split('/').map(str::to_owned).collect();
    let element = tokens.iter_mut().rev().find_map(|token| {
        let number = token.parse::<u32>().ok()?;
        Some((token, number.checked_add(1)?))
    });
    let (token, next) = element?;
    *token = next.to_string();
    Pointer::parse(&tokens.join("/")).ok()
}

/// When a route reads, and what *absent* means to it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ReconcilePlan {
    /// The time between two reads.
    pub every: Duration,
    /// How long after it was held a record is read.
    pub give_up: Duration,
    /// The longest time in which an attempt can still take effect; `None` if that is not known.
    pub settles_within: Option<Duration>,
    /// Whether the service refuses every attempt with a lower fence than that of the read.
    pub fenced: bool,
}

/// What is known of one held record from the reads so far. It belongs to one fence.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub struct ReconcileProgress {
    /// When the first answer came that showed no operation, with none since that contradicts it.
    absent_since: Option<ProcessTime>,
}

/// What follows from a read.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum ReconcileStep {
    /// It happened: record this answer.
    Complete(StoredResponse),
    /// It did not happen, and no attempt can take effect any more: release the record.
    Release,
    /// Read again after this time.
    ReadAgain(Duration),
    /// Stop reading: more than one operation was found.
    StopAtTwo,
    /// Stop reading: the record was held for too long.
    GiveUp,
}

impl ReconcileProgress {
    /// Decides after a read that was sent and answered at these times. `held_for` is how long the
    /// record has been held. `is_fenced`: the read carried a fence that is higher than that of
    /// every attempt.
    pub fn on_read(
        &mut self,
        plan: &ReconcilePlan,
        finding: &ReadFinding,
        (sent_at, answered_at): (ProcessTime, ProcessTime),
        held_for: Duration,
        is_fenced: bool,
    ) -> ReconcileStep {
        match finding {
            ReadFinding::Found(response) => return ReconcileStep::Complete(response.clone()),
            ReadFinding::TwoFound => return ReconcileStep::StopAtTwo,
            ReadFinding::Absent if plan.fenced && is_fenced => return ReconcileStep::Release,
            ReadFinding::Absent => {
                let since = *self.absent_since.get_or_insert(answered_at);
                // Both times are rounded down, so a millisecond more is waited for.
                if plan.settles_within.is_some_and(|window| sent_at > since.after(window)) {
                    return ReconcileStep::Release;
                }
            }
            // There is an operation, so the earlier answers have missed it.
            ReadFinding::Differs(_) => self.absent_since = None,
            ReadFinding::Unclear => {}
        }
        self.read_again(plan, answered_at, held_for)
    }

    /// Decides after a read that failed.
    #[must_use]
    pub fn on_read_failed(
        &self,
        plan: &ReconcilePlan,
        now: ProcessTime,
        held_for: Duration,
    ) -> ReconcileStep {
        self.read_again(plan, now, held_for)
    }

    /// Whether the last answers showed no operation.
    #[must_use]
    pub const fn is_absent(&self) -> bool {
        self.absent_since.is_some()
    }

    fn read_again(
        &self,
        plan: &ReconcilePlan,
        now: ProcessTime,
        held_for: Duration,
    ) -> ReconcileStep {
        if held_for >= plan.give_up {
            return ReconcileStep::GiveUp;
        }
        let window = plan.settles_within.zip(self.absent_since);
        let end = window.map(|(window, since)| since.after(window).since(now));
        let wait = end.map_or(plan.every, |left| plan.every.min(left.saturating_add(MARGIN)));
        ReconcileStep::ReadAgain(wait)
    }
}

/// Added to the end of the time in which an attempt can take effect, since times are rounded down.
const MARGIN: Duration = Duration::from_millis(2);
