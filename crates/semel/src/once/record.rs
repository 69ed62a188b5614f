//! How values, refusals and other results are encoded as an answer in a record.
//!
//! A record is readable as JSON: a value is a response with status 200, a refusal one with 422.
//! Results that are not recorded have an encoding too, for requests that joined the execution; it
//! never reaches a store.

use bytes::Bytes;
use semel_core::{Answer, Content, StoredResponse};
use serde::{Serialize, de::DeserializeOwned};

use super::{FailureCause, OnceError, OnceErrorKind};

const VALUE: u16 = 200;
const REFUSAL: u16 = 422;
const RETRY: u16 = 503;
const UNKNOWN: u16 = 504;

/// The maximum length of an error text for joined requests, in bytes.
const NOTE_BYTES_MAX: usize = 1024;

/// A result as read from a record.
pub(super) enum RecordedOutcome<T> {
    Value(T),
    /// The reason as JSON, if it was retained.
    Refusal(Option<Bytes>),
}

/// The result of an execution that was joined.
pub(super) enum JoinedOutcome<T> {
    Kept(RecordedOutcome<T>),
    Retry(FailureCause),
    Unknown(FailureCause),
}

/// The answer that `once` records for this value.
///
/// For operators: where an outcome is held and the operation did happen, this is what
/// [`Resolution::Completed`](semel_core::Resolution::Completed) takes. A value that cannot be
/// written is recorded as completed, without the value.
///
/// ```
/// use semel::{core::Resolution, once};
///
/// let it_happened = Resolution::Completed(once::answer(&"invoice-7"));
/// # let _ = it_happened;
/// ```
#[must_use]
pub fn answer<T: Serialize + ?Sized>(value: &T) -> Answer {
    bounded(VALUE, written(value).as_deref(), usize::MAX)
}

/// The answer that `once` records for a refusal with this reason; see [`answer`].
#[must_use]
pub fn refusal<R: Serialize + ?Sized>(reason: &R) -> Answer {
    bounded(REFUSAL, written(reason).as_deref(), usize::MAX)
}

pub(super) fn to_json<V: Serialize + ?Sized>(value: &V) -> Option<Bytes> {
    written(value).map(Bytes::from)
}

fn written<V: Serialize + ?Sized>(value: &V) -> Option<Vec<u8>> {
    serde_json::to_vec(value).ok()
}

pub(super) fn of_value<T: Serialize>(value: &T, bytes_max: usize) -> Answer {
    bounded(VALUE, written(value).as_deref(), bytes_max)
}

pub(super) fn of_refusal(reason: Option<&Bytes>, bytes_max: usize) -> Answer {
    bounded(REFUSAL, reason.map(|reason| &**reason), bytes_max)
}

pub(super) fn of_retry(reason: &FailureCause) -> Answer {
    encode_reason(RETRY, reason)
}

pub(super) fn of_unknown(reason: &FailureCause) -> Answer {
    encode_reason(UNKNOWN, reason)
}

/// The completion is recorded in any case; its value, if possible.
fn bounded(status: u16, json: Option<&[u8]>, bytes_max: usize) -> Answer {
    match json {
        Some(body) if body.len() <= bytes_max => response(status, "application/json", body),
        Some(_) | None => Answer::not_retained(status),
    }
}

fn encode_reason(status: u16, reason: &FailureCause) -> Answer {
    response(status, "text/plain", &truncated_text(reason))
}

fn truncated_text(reason: &FailureCause) -> Bytes {
    let mut text = reason.with_sources();
    text.truncate(text.floor_char_boundary(NOTE_BYTES_MAX));
    text.into()
}

fn response(status: u16, content_type: &str, body: &[u8]) -> Answer {
    Answer::encode(status, &[(b"content-type", content_type.as_bytes())], &[], body)
}

/// Reads a recorded answer. An operator may have written it: any 2xx is a value and any 4xx a
/// refusal.
pub(super) fn read<T: DeserializeOwned>(answer: &Answer) -> Result<RecordedOutcome<T>, OnceError> {
    let unreadable = |status| {
        let what = format!("the record has an answer with status {status}");
        OnceError::because(OnceErrorKind::Unreadable, what)
    };
    match content(answer)? {
        Content::Response(StoredResponse { status: 200..=299, body, .. }) => {
            Ok(RecordedOutcome::Value(from_json(&body)?))
        }
        Content::Response(StoredResponse { status: 400..=499, body, .. }) => {
            Ok(RecordedOutcome::Refusal(Some(body)))
        }
        Content::NotRetained { status: 400..=499 } => Ok(RecordedOutcome::Refusal(None)),
        Content::NotRetained { status: 200..=299 } => {
            Err(OnceError::new(OnceErrorKind::NotRetained))
        }
        Content::Response(StoredResponse { status, .. }) | Content::NotRetained { status } => {
            Err(unreadable(status))
        }
        Content::Failed => Err(OnceError::new(OnceErrorKind::Failed)),
    }
}

/// Reads the answer of an execution's owner, recorded or not.
pub(super) fn read_joined<T: DeserializeOwned>(
    answer: &Answer,
) -> Result<JoinedOutcome<T>, OnceError> {
    match content(answer)? {
        Content::Response(StoredResponse { status: RETRY, body, .. }) => {
            Ok(JoinedOutcome::Retry(reason_from(&body)))
        }
        Content::Response(StoredResponse { status: UNKNOWN, body, .. }) => {
            Ok(JoinedOutcome::Unknown(reason_from(&body)))
        }
        Content::Response(_) | Content::NotRetained { .. } | Content::Failed => {
            read(answer).map(JoinedOutcome::Kept)
        }
    }
}

fn reason_from(text: &Bytes) -> FailureCause {
    FailureCause::from_text(String::from_utf8_lossy(text).into_owned())
}

pub(super) fn from_json<V: DeserializeOwned>(json: &[u8]) -> Result<V, OnceError> {
    serde_json::from_slice(json)
        .map_err(|error| OnceError::because(OnceErrorKind::Unreadable, error))
}

fn content(answer: &Answer) -> Result<Content, OnceError> {
    answer.read().map_err(|error| OnceError::because(OnceErrorKind::Unreadable, error))
}
