//! Records as operators see them, in JSON.

use std::time::Duration;

use semel::core::{
    Answer, Content, Field, Key, OnUnknown, Page, RecordId, Snapshot, Standing, Summary,
    time::millis,
};
use serde::{Deserialize, Serialize};

use super::base64;
use crate::store::hexadecimal;

/// How much of a body is shown.
const BODY_BYTES_MAX: usize = 1 << 20;

/// One page of a listing.
#[derive(Clone, Debug, Default, Deserialize, Serialize)]
pub(crate) struct ListView {
    /// The records.
    pub(crate) records: Vec<LineView>,
    /// Where the next page begins; absent after the last.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(crate) next: Option<String>,
}

/// A line of a listing.
#[derive(Clone, Debug, Deserialize, PartialEq, Eq, Serialize)]
pub(crate) struct LineView {
    /// The family of operations.
    pub(crate) scope: String,
    /// Who sent it; empty for the anonymous caller.
    pub(crate) caller: String,
    /// What the client called the operation.
    pub(crate) key: String,
    /// Where it stands.
    pub(crate) state: String,
    /// Its fence, to name it in an act.
    pub(crate) fence: u64,
    /// How many executions were begun that count.
    pub(crate) attempt: u32,
    /// How long ago the newest claim was granted.
    pub(crate) age_ms: u64,
}

/// Everything about a record.
#[derive(Clone, Debug, Deserialize, Serialize)]
pub(crate) struct RecordView {
    /// What a listing shows of it.
    #[serde(flatten)]
    pub(crate) line: LineView,
    /// What the request meant: version and hash.
    pub(crate) fingerprint: String,
    /// What its route says about unknown outcomes.
    pub(crate) on_unknown: String,
    /// What is left of the lease, if it is in flight.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(crate) lease_left_ms: Option<u64>,
    /// How long it is kept, if it is finished.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(crate) expires_in_ms: Option<u64>,
    /// What every repeat gets, if it is completed.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(crate) answer: Option<AnswerView>,
}

/// A recorded answer.
#[derive(Clone, Debug, Default, Deserialize, Serialize)]
pub(crate) struct AnswerView {
    /// `response`, `not_retained` or `failed`.
    pub(crate) kind: String,
    /// The status it was answered with.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(crate) status: Option<u16>,
    /// The kept headers, as pairs of name and value.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub(crate) headers: Vec<(String, String)>,
    /// How many bytes the body has.
    #[serde(default)]
    pub(crate) body_bytes: usize,
    /// The body, if it is text; cut after 1 MiB.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(crate) body: Option<String>,
    /// The body, if it is not; cut after 1 MiB.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(crate) body_base64: Option<String>,
    /// The kept trailers.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub(crate) trailers: Vec<(String, String)>,
    /// Why headers and body are not shown.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(crate) withheld: Option<String>,
}

/// What a sweep did.
#[derive(Clone, Copy, Debug, Deserialize, PartialEq, Eq, Serialize)]
pub(crate) struct SweepView {
    /// How many records it deleted.
    pub(crate) deleted: u64,
    /// Whether there is more to delete.
    pub(crate) more: bool,
}

/// What an act came to.
#[derive(Clone, Debug, Deserialize, PartialEq, Eq, Serialize)]
pub(crate) struct DoneView {
    /// `applied`.
    pub(crate) result: String,
    /// What changed, in words.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(crate) detail: Option<String>,
}

/// A problem document: why something was not done.
#[derive(Debug, Deserialize, Serialize)]
pub(crate) struct Problem {
    /// What it is, for programs.
    #[serde(rename = "type")]
    pub(crate) kind: String,
    /// What it is, for people.
    pub(crate) title: String,
    /// The status it comes with.
    pub(crate) status: u16,
    /// What to do about it.
    pub(crate) detail: String,
    /// The same in the form of Stripe's API, as the problems of the gateway have it.
    #[serde(skip_deserializing)]
    pub(crate) error: ErrorMember,
}

/// The `error` member of a problem document.
#[derive(Debug, Default, Serialize)]
pub(crate) struct ErrorMember {
    /// The class of the error.
    #[serde(rename = "type")]
    pub(crate) kind: &'static str,
    /// The last part of the problem's `type`, with underscores.
    pub(crate) code: String,
    /// The problem's `detail`.
    pub(crate) message: String,
}

impl Problem {
    /// The last part of its `type`.
    pub(crate) fn slug(&self) -> &str {
        self.kind.strip_prefix("urn:semel:problem:").unwrap_or(&self.kind)
    }
}

impl DoneView {
    pub(crate) fn applied(detail: Option<String>) -> Self {
        Self { result: "applied".to_owned(), detail }
    }
}

impl ListView {
    /// A page of a store; of the records on it only those with this key, if there is one. A store
    /// does not look for keys by themselves.
    pub(crate) fn of(page: &Page, key: Option<&Key>) -> Self {
        let listed = page.items.iter().filter(|record| key.is_none_or(|key| record.id.key == *key));
        Self {
            records: listed.map(LineView::from).collect(),
            next: page.next.map(|cursor| cursor.0.to_string()),
        }
    }
}

impl From<&Summary> for LineView {
    fn from(summary: &Summary) -> Self {
        let Summary { id, state, fence, attempt, age } = summary;
        let RecordId { scope, caller, key } = id;
        Self {
            scope: scope.as_str().to_owned(),
            caller: caller.as_str().to_owned(),
            key: key.as_str().to_owned(),
            state: state.as_str().to_owned(),
            fence: fence.get(),
            attempt: *attempt,
            age_ms: millis(*age),
        }
    }
}

impl LineView {
    /// How long ago the newest claim was granted.
    pub(crate) const fn age(&self) -> Duration {
        Duration::from_millis(self.age_ms)
    }
}

impl RecordView {
    /// Whether it is in flight and its lease has ended. Under `hold` it counts as held by then.
    pub(crate) fn has_lapsed(&self) -> bool {
        self.line.state == "in_flight" && self.lease_left_ms == Some(0)
    }

    /// A record as it was seen. Without `answers` it does not show what clients were answered.
    pub(crate) fn of(id: &RecordId, seen: &Snapshot, answers: Answers) -> Self {
        let summary = Summary {
            id: id.clone(),
            state: seen.standing.name(),
            fence: seen.fence,
            attempt: seen.attempt,
            age: seen.age,
        };
        let (lease_left, expires_in, answer) = match &seen.standing {
            Standing::InFlight { lease_left } => (Some(*lease_left), None, None),
            Standing::Completed { answer, expires_in } => (None, Some(*expires_in), Some(answer)),
            Standing::Released { expires_in } => (None, Some(*expires_in), None),
            Standing::Held => (None, None, None),
        };
        let on_unknown = match seen.on_unknown {
            OnUnknown::Hold => "hold",
            OnUnknown::Rerun => "rerun",
            OnUnknown::Fail => "fail",
        };
        Self {
            line: (&summary).into(),
            fingerprint: hexadecimal(seen.fingerprint.as_bytes()),
            on_unknown: on_unknown.to_owned(),
            lease_left_ms: lease_left.map(millis),
            expires_in_ms: expires_in.map(millis),
            answer: answer.map(|answer| AnswerView::of(answer, answers)),
        }
    }
}

/// Whether answers are shown: they are somebody's personal data.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Answers {
    /// All of them.
    Shown,
    /// Not their headers and bodies, and why.
    Withheld(&'static str),
}

impl AnswerView {
    fn of(answer: &Answer, answers: Answers) -> Self {
        let kind = |kind: &str| Self { kind: kind.to_owned(), ..Self::default() };
        let response = match answer.read() {
            Ok(Content::Response(response)) => response,
            Ok(Content::NotRetained { status }) => {
                return Self { status: Some(status), ..kind("not_retained") };
            }
            Ok(Content::Failed) => return kind("failed"),
            Err(error) => return Self { withheld: Some(error.to_string()), ..kind("damaged") },
        };
        let view = Self {
            status: Some(response.status),
            body_bytes: response.body.len(),
            ..kind("response")
        };
        if let Answers::Withheld(why) = answers {
            return Self { withheld: Some(why.to_owned()), ..view };
        }
        let (body, body_base64) = shown(&response.body);
        let (headers, trailers) = (pairs(&response.headers), pairs(&response.trailers));
        Self { headers, body, body_base64, trailers, ..view }
    }
}

/// A body as text, or else as base64; at most [`BODY_BYTES_MAX`] of it.
fn shown(body: &[u8]) -> (Option<String>, Option<String>) {
    let cut = body.get(..BODY_BYTES_MAX).unwrap_or(body);
    match str::from_utf8(cut) {
        Ok(text) => (Some(text.to_owned()), None),
        // The cut went through a character.
        Err(error) if cut.len() < body.len() && error.error_len().is_none() => {
            let whole = cut.get(..error.valid_up_to()).unwrap_or_default();
            (Some(String::from_utf8_lossy(whole).into_owned()), None)
        }
        Err(_) => (None, Some(base64::encode(cut))),
    }
}

fn pairs(fields: &[Field]) -> Vec<(String, String)> {
    let text = |bytes: &[u8]| String::from_utf8_lossy(bytes).into_owned();
    fields.iter().map(|field| (text(&field.name), text(&field.value))).collect()
}

#[cfg(test)]
mod tests {
    use semel::core::StoredResponse;

    use super::*;

    fn view(body: &[u8]) -> AnswerView {
        let body = body.to_vec().into();
        let response = StoredResponse { status: 200, body, ..StoredResponse::default() };
        AnswerView::of(&Answer::response(&response), Answers::Shown)
    }

    #[test]
    fn a_body_is_shown_as_text_or_else_as_base64() {
        let text = view("Zoë".as_bytes());
        assert_eq!((text.body.as_deref(), text.body_base64), (Some("Zoë"), None));
        let bytes = view(b"\xFFbytes");
        assert_eq!((bytes.body, bytes.body_base64.as_deref()), (None, Some("/2J5dGVz")));
    }

    #[test]
    fn a_large_body_is_cut_between_two_characters() {
        let mut body = vec![b'x'; BODY_BYTES_MAX - 1];
        body.extend("é and more".as_bytes());
        let shown = view(&body);
        assert_eq!(shown.body_bytes, body.len());
        assert_eq!(shown.body.map(|text| text.len()), Some(BODY_BYTES_MAX - 1));
    }

    #[test]
    fn what_has_no_body_says_what_it_is() {
        let large = AnswerView::of(&Answer::not_retained(201), Answers::Shown);
        assert_eq!((large.kind.as_str(), large.status), ("not_retained", Some(201)));
        let failed = AnswerView::of(&Answer::failed(), Answers::Shown);
        assert_eq!((failed.kind.as_str(), failed.status), ("failed", None));
    }
}
