//! The JSON of responses.

use std::{collections::BTreeMap, time::Duration};

use data_encoding::HEXLOWER;
use jiff::Timestamp;
use semel::core::{
    Answer, Content, Field, OnUnknown, Reason, RecordId, Snapshot, StateName, StateView, Store,
    Summary, reconcile::ReconcileNote, time::millis,
};
use serde::{Deserialize, Serialize};

use super::base64;
use crate::time_or_age;

/// Maximum number of bytes of a recorded body in a response.
const SHOWN_BODY_BYTES_MAX: usize = 1 << 20;

/// One page of a listing.
#[derive(Clone, Debug, Default, Deserialize, Serialize)]
pub struct RecordPageView {
    /// The records.
    pub records: Vec<RecordSummaryView>,
    /// Where the next page begins; absent after the last.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub next: Option<String>,
    /// How many records the store looked at to make this page.
    #[serde(default)]
    pub examined: u64,
}

/// The summary of a record.
#[derive(Clone, Debug, Deserialize, PartialEq, Eq, Serialize)]
pub struct RecordSummaryView {
    /// The scope.
    pub scope: String,
    /// The caller; empty for the anonymous caller.
    pub caller: String,
    /// The idempotency key.
    pub key: String,
    /// The state of the record.
    pub state: String,
    /// The current fence of the record; an operator action must send it back.
    pub fence: u64,
    /// Number of executions that count as attempts.
    pub attempt: u32,
    /// How long ago the newest claim was granted.
    pub age_ms: u64,
    /// Time of the newest claim: RFC 3339, UTC.
    #[serde(default)]
    pub claimed_at: String,
    /// How long ago the execution ended; absent while it is in flight.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub ended_ago_ms: Option<u64>,
    /// Time of the end of the execution: RFC 3339, UTC.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub ended_at: Option<String>,
    /// Whether the record is in flight and its lease has expired: the next request with its key
    /// settles it.
    #[serde(default)]
    pub lapsed: bool,
    /// What the operation is about, such as its method, host and path.
    #[serde(default, skip_serializing_if = "String::is_empty")]
    pub about: String,
    /// The process that made the newest claim.
    #[serde(default, skip_serializing_if = "String::is_empty")]
    pub node: String,
    /// Why the newest execution did not complete.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub reason: Option<String>,
    /// The kind of reason, as metrics and filters name it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub reason_label: Option<String>,
}

/// Everything about a record.
#[derive(Clone, Debug, Deserialize, Serialize)]
pub struct RecordView {
    /// The summary, as in a listing.
    #[serde(flatten)]
    pub line: RecordSummaryView,
    /// The fingerprint of the request in hexadecimal. Absent once the record is forgotten: then any
    /// request may claim its key.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub fingerprint: Option<String>,
    /// The `on_unknown` setting of its route: `hold`, `rerun` or `fail`.
    pub on_unknown: String,
    /// Maximum time in the held state, after which it fails with `operation-failed`; absent if
    /// there is none.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub hold_for_ms: Option<u64>,
    /// What the route captured of the request, by name.
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    pub captured: BTreeMap<String, String>,
    /// What is left of the lease, if it is in flight.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub lease_left_ms: Option<u64>,
    /// How long it is kept, if it is finished.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub expires_in_ms: Option<u64>,
    /// What every repeat gets, if it is completed.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub answer: Option<AnswerView>,
    /// What the last read of the upstream found, if the record is held and its route reconciles.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub reconcile: Option<String>,
}

/// A recorded answer.
#[derive(Clone, Debug, Default, Deserialize, Serialize)]
pub struct AnswerView {
    /// `response`, `not_retained`, `failed` or `damaged`.
    pub kind: String,
    /// The recorded status.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub status: Option<u16>,
    /// The kept headers, as pairs of name and value.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub headers: Vec<(String, String)>,
    /// How many bytes the body has.
    #[serde(default)]
    pub body_bytes: usize,
    /// The body, if it is text; cut after 1 MiB.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub body: Option<String>,
    /// The body in base64, if it is not text; cut after 1 MiB.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub body_base64: Option<String>,
    /// The kept trailers.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub trailers: Vec<(String, String)>,
    /// Why headers, body and trailers are not shown.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub withheld: Option<String>,
}

/// What a sweep did.
#[derive(Clone, Copy, Debug, Deserialize, PartialEq, Eq, Serialize)]
pub struct SweepView {
    /// How many records it deleted.
    pub deleted: u64,
    /// Whether there is more to delete.
    pub more: bool,
}

/// The result of resolving many records.
#[derive(Clone, Debug, Default, Deserialize, PartialEq, Eq, Serialize)]
pub struct ResolveManyView {
    /// Number of processed records, counted from the first in the request. If it is less than the
    /// number sent, send the rest again.
    pub processed: usize,
    /// How many were resolved.
    pub applied: u64,
    /// Records that were skipped because they changed, do not exist or are in another state.
    pub stale: Vec<RecordIdView>,
}

/// The identity of a record.
#[derive(Clone, Debug, Deserialize, PartialEq, Eq, Serialize)]
pub struct RecordIdView {
    /// The scope.
    pub scope: String,
    /// The caller; empty for the anonymous caller.
    pub caller: String,
    /// The idempotency key.
    pub key: String,
}

/// The result of an action.
#[derive(Clone, Debug, Deserialize, PartialEq, Eq, Serialize)]
pub struct ActionResultView {
    /// Always `applied`.
    pub result: String,
    /// What changed, in words.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub detail: Option<String>,
}

/// A problem document: why something was not done.
#[derive(Debug, Deserialize, Serialize)]
pub struct ProblemDocument {
    /// The problem type, as a URN.
    #[serde(rename = "type")]
    pub kind: String,
    /// A short title.
    pub title: String,
    /// The status it comes with.
    pub status: u16,
    /// What to do about it.
    pub detail: String,
    /// The same error as an `error` object like Stripe's, which the problems of the gateway also
    /// have.
    #[serde(skip_deserializing)]
    pub error: ErrorMember,
}

/// The `error` member of a problem document.
#[derive(Debug, Default, Serialize)]
pub struct ErrorMember {
    /// The class of the error.
    #[serde(rename = "type")]
    pub kind: &'static str,
    /// The last part of the problem's `type`, with underscores.
    pub code: String,
    /// The problem's `detail`.
    pub message: String,
}

impl ProblemDocument {
    /// The last part of its `type`.
    pub fn slug(&self) -> &str {
        self.kind.strip_prefix("urn:semel:problem:").unwrap_or(&self.kind)
    }
}

impl ActionResultView {
    /// An action that was applied.
    pub fn applied(detail: Option<String>) -> Self {
        Self { result: "applied".to_owned(), detail }
    }
}

impl ResolveManyView {
    /// Adds the result of a later request.
    pub fn merge(&mut self, other: Self) {
        self.processed = self.processed.saturating_add(other.processed);
        self.applied = self.applied.saturating_add(other.applied);
        self.stale.extend(other.stale);
    }
}

impl RecordSummaryView {
    /// A record as a listing shows it at `now`, which is when the store was read.
    pub fn new(summary: &Summary, now: Timestamp) -> Self {
        let RecordId { scope, caller, key } = &summary.id;
        Self {
            scope: scope.as_str().to_owned(),
            caller: caller.as_str().to_owned(),
            key: key.as_str().to_owned(),
            state: summary.state.as_str().to_owned(),
            fence: summary.fence.get(),
            attempt: summary.attempt,
            age_ms: millis(summary.age),
            claimed_at: time_or_age::before(now, summary.age),
            ended_ago_ms: summary.ended.map(millis),
            ended_at: summary.ended.map(|age| time_or_age::before(now, age)),
            lapsed: summary.lapsed,
            about: summary.about.as_str().to_owned(),
            node: summary.node.as_str().to_owned(),
            reason: summary.reason.as_ref().map(ToString::to_string),
            reason_label: summary.reason.as_ref().map(|reason| Reason::label(reason).to_owned()),
        }
    }

    /// How long ago the newest claim was granted.
    pub const fn age(&self) -> Duration {
        Duration::from_millis(self.age_ms)
    }

    /// Whether it is a released record that was forgotten: such a record has no attempt that
    /// counts, and any request may take its key.
    pub fn is_forgotten(&self) -> bool {
        self.state == "released" && self.attempt == 0
    }
}

impl RecordView {
    /// A record as it was seen at `now`. With [`AnswerVisibility::Withheld`] it does not show
    /// headers, body and trailers of the answer.
    pub fn new(id: &RecordId, seen: Snapshot, answers: AnswerVisibility, now: Timestamp) -> Self {
        let (lease_left, expires_in, answer) = match &seen.state {
            StateView::InFlight { lease_left } => (Some(*lease_left), None, None),
            StateView::Completed { answer, expires_in } => (None, Some(*expires_in), Some(answer)),
            StateView::Released { expires_in } => (None, Some(*expires_in), None),
            StateView::Held => (None, None, None),
        };
        let on_unknown = match seen.on_unknown {
            OnUnknown::Hold => "hold",
            OnUnknown::Rerun => "rerun",
            OnUnknown::Fail => "fail",
        };
        Self {
            fingerprint: seen.fingerprint.map(|print| HEXLOWER.encode(print.as_bytes())),
            on_unknown: on_unknown.to_owned(),
            hold_for_ms: seen.hold_for.map(millis),
            captured: seen.captured.iter().collect(),
            lease_left_ms: lease_left.map(millis),
            expires_in_ms: expires_in.map(millis),
            answer: answer.map(|answer| AnswerView::of(answer, answers)),
            reconcile: None,
            line: RecordSummaryView::new(&Summary::new(id.clone(), seen), now),
        }
    }
}

impl RecordView {
    /// Adds what the last read of the upstream found, if the record is held.
    pub async fn with_reconcile_note(mut self, store: &dyn Store, id: &RecordId) -> Self {
        if self.line.state != StateName::Held.as_str() {
            return self;
        }
        let notes = store.metadata(&ReconcileNote::name(id)).await.unwrap_or_default();
        let note = notes.first().and_then(|(_, value)| ReconcileNote::from_stored(value));
        let note = note.filter(|note| note.fence.get() == self.line.fence);
        self.reconcile = note.map(|note| note.text);
        self
    }
}

/// Whether recorded answers are shown: they may contain personal data.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum AnswerVisibility {
    /// Shown in full.
    Shown,
    /// Without headers, body and trailers, and why.
    Withheld(&'static str),
}

impl AnswerView {
    fn of(answer: &Answer, answers: AnswerVisibility) -> Self {
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
        if let AnswerVisibility::Withheld(why) = answers {
            return Self { withheld: Some(why.to_owned()), ..view };
        }
        let (body, body_base64) = body_text_or_base64(&response.body);
        let (headers, trailers) = (pairs(&response.headers), pairs(&response.trailers));
        Self { headers, body, body_base64, trailers, ..view }
    }
}

/// A body as text, or else as base64; at most [`SHOWN_BODY_BYTES_MAX`] of it.
fn body_text_or_base64(body: &[u8]) -> (Option<String>, Option<String>) {
    let cut = body.get(..SHOWN_BODY_BYTES_MAX).unwrap_or(body);
    match str::from_utf8(cut) {
        Ok(text) => (Some(text.to_owned()), None),
        // The limit split a UTF-8 character.
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
    use semel::core::{
        About, Caller, Captured, Fence, Fingerprint, Key, NodeName, Scope, StoredResponse,
    };
    use semel_testkit::with;
    use serde_json::json;

    use super::*;

    /// A record that was held two minutes after its claim.
    fn held() -> Snapshot {
        let fence = Fence::new(1_763_474_602_123_456).unwrap();
        let fingerprint = Fingerprint::from_bytes(&[1; 33]).unwrap();
        with(Snapshot::new(fingerprint, fence, StateView::Held), |seen| {
            seen.age = Duration::from_secs(300);
            seen.ended = Some(Duration::from_secs(180));
            seen.hold_for = Some(Duration::from_secs(86_400));
            seen.about = About::new("POST api.example.com/v1/charges");
            seen.node = NodeName::new("gateway-1");
            seen.captured = Captured::new([("order", "o-1"), ("amount", "12.50")]);
            seen.reason = Some(Reason::Answered(503));
        })
    }

    fn shown_as(seen: Snapshot) -> RecordView {
        let (scope, key) = (Scope::new("payments").unwrap(), Key::new("k").unwrap());
        let id = RecordId::new(scope, Caller::new("shop-7").unwrap(), key);
        let now = "2026-11-18T14:00:00Z".parse().unwrap();
        RecordView::new(&id, seen, AnswerVisibility::Shown, now)
    }

    #[test]
    fn a_record_says_what_it_is_about_and_when_it_happened() {
        assert_eq!(
            serde_json::to_value(shown_as(held())).unwrap(),
            json!({
                "scope": "payments", "caller": "shop-7", "key": "k", "state": "held",
                "fence": 1_763_474_602_123_456_u64, "attempt": 1, "lapsed": false,
                "age_ms": 300_000, "claimed_at": "2026-11-18T13:55:00.000Z",
                "ended_ago_ms": 180_000, "ended_at": "2026-11-18T13:57:00.000Z",
                "about": "POST api.example.com/v1/charges", "node": "gateway-1",
                "reason": "upstream answered 503", "reason_label": "answered",
                "captured": { "order": "o-1", "amount": "12.50" }, "hold_for_ms": 86_400_000,
                "fingerprint": "01".repeat(33), "on_unknown": "hold",
            })
        );
    }

    #[test]
    fn a_forgotten_record_is_released_and_has_no_fingerprint() {
        let forgotten = shown_as(with(held(), |seen| {
            seen.state = StateView::Released { expires_in: Duration::from_secs(60) };
            (seen.fingerprint, seen.attempt) = (None, 0);
        }));
        assert!(forgotten.line.is_forgotten());
        let json = serde_json::to_value(&forgotten).unwrap();
        assert_eq!((&json["state"], json.get("fingerprint")), (&json!("released"), None));
        let released = with(held(), |seen| {
            seen.state = StateView::Released { expires_in: Duration::from_secs(60) };
        });
        assert!(!shown_as(released).line.is_forgotten());
    }

    fn view(body: &[u8]) -> AnswerView {
        let body = body.to_vec().into();
        let response = StoredResponse { status: 200, body, ..StoredResponse::default() };
        AnswerView::of(&Answer::response(&response), AnswerVisibility::Shown)
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
        let mut body = vec![b'x'; SHOWN_BODY_BYTES_MAX - 1];
        body.extend("é and more".as_bytes());
        let shown = view(&body);
        assert_eq!(shown.body_bytes, body.len());
        assert_eq!(shown.body.map(|text| text.len()), Some(SHOWN_BODY_BYTES_MAX - 1));
    }

    #[test]
    fn an_answer_without_a_body_shows_its_kind() {
        let large = AnswerView::of(&Answer::not_retained(201), AnswerVisibility::Shown);
        assert_eq!((large.kind.as_str(), large.status), ("not_retained", Some(201)));
        let failed = AnswerView::of(&Answer::failed(), AnswerVisibility::Shown);
        assert_eq!((failed.kind.as_str(), failed.status), ("failed", None));
    }
}
