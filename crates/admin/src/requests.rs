//! The JSON of action requests.

use http::{HeaderName, header};
use semel::core::{Caller, Fence, Field, Key, RecordId, Scope, StateName, StoredResponse};
use semel_tower::may_be_kept;
use serde::{Deserialize, Serialize};

use super::{action_error::ActionError, base64, json_object};

/// A record, with the state and fence that the operator saw. The requests repeat these fields,
/// because `flatten` cannot be combined with `deny_unknown_fields`.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct RecordTarget {
    /// The family of operations.
    pub scope: String,
    /// Who sent it; empty for the anonymous caller.
    pub caller: String,
    /// What the client called the operation.
    pub key: String,
    /// The state it was seen in.
    pub state: String,
    /// The fence it was seen with. An action on a record with a newer fence changes nothing.
    pub fence: u64,
}

/// `POST /v1/resolve`
#[derive(Clone, Debug, Deserialize, Serialize)]
#[serde(deny_unknown_fields)]
pub struct ResolveRequest {
    scope: String,
    caller: String,
    key: String,
    state: String,
    fence: u64,
    /// The outcome.
    pub to: ResolvedState,
    /// The answer that every repeat gets from now on, if it is completed.
    #[serde(
        default,
        skip_serializing_if = "Option::is_none",
        deserialize_with = "json_object::optional"
    )]
    pub answer: Option<AnswerInput>,
    /// Reason for the audit log.
    #[serde(default)]
    pub why: String,
    /// The author, for the audit log.
    #[serde(default)]
    pub who: String,
}

/// The outcome of a held record.
#[derive(Clone, Copy, Debug, Deserialize, PartialEq, Eq, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum ResolvedState {
    /// It happened, and there is an answer.
    Completed,
    /// It did not happen, and may run again.
    Released,
}

/// An answer as an operator writes it.
#[derive(Clone, Debug, Default, Deserialize, Serialize)]
#[serde(deny_unknown_fields)]
pub struct AnswerInput {
    /// The status.
    pub status: u16,
    /// The headers, as pairs of name and value.
    #[serde(default)]
    pub headers: Vec<(String, String)>,
    /// The body, if it is text.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub body: Option<String>,
    /// The body, if it is not.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub body_base64: Option<String>,
}

/// `POST /v1/delete`
#[derive(Clone, Debug, Deserialize, Serialize)]
#[serde(deny_unknown_fields)]
pub struct DeleteRequest {
    scope: String,
    caller: String,
    key: String,
    state: String,
    fence: u64,
    /// Reason for the audit log.
    #[serde(default)]
    pub why: String,
    /// The author, for the audit log.
    #[serde(default)]
    pub who: String,
}

/// `POST /v1/resolve-many`. The preview is `GET /v1/records?state=held` with any filters. The
/// request names each record of the preview with its fence, so that it changes no other record:
/// neither one held since then, nor one with a newer fence.
#[derive(Clone, Debug, Deserialize, Serialize)]
#[serde(deny_unknown_fields)]
pub struct ResolveManyRequest {
    /// At most [`MANY_MAX`] records that were seen to be held.
    #[serde(deserialize_with = "json_object::list")]
    pub records: Vec<SeenRecord>,
    /// The outcome.
    pub to: ResolvedState,
    /// The answer that every repeat of each gets from now on, if they are completed.
    #[serde(
        default,
        skip_serializing_if = "Option::is_none",
        deserialize_with = "json_object::optional"
    )]
    pub answer: Option<AnswerInput>,
    /// Reason for the audit log.
    #[serde(default)]
    pub why: String,
    /// The author, for the audit log.
    #[serde(default)]
    pub who: String,
}

/// Maximum number of records per request.
pub const MANY_MAX: usize = 200;

/// A held record, with the fence it was seen with.
#[derive(Clone, Debug, Deserialize, PartialEq, Eq, Serialize)]
#[serde(deny_unknown_fields)]
pub struct SeenRecord {
    /// The scope of the record.
    pub scope: String,
    /// The caller, as the record names it.
    pub caller: String,
    /// The key.
    pub key: String,
    /// The fence that the operator saw.
    pub fence: u64,
}

/// `POST /v1/reload`
#[derive(Clone, Debug, Default, Deserialize, Serialize)]
#[serde(deny_unknown_fields)]
pub struct ReloadRequest {
    /// Reason for the audit log.
    #[serde(default)]
    pub why: String,
    /// The author, for the audit log.
    #[serde(default)]
    pub who: String,
    /// Whether it is applied although keys that have run would run again.
    #[serde(default)]
    pub accept_identity_change: bool,
}

/// `POST /v1/sweep`
#[derive(Clone, Debug, Default, Deserialize, Serialize)]
#[serde(deny_unknown_fields)]
pub struct AuditNote {
    /// Reason for the audit log.
    #[serde(default)]
    pub why: String,
    /// The author, for the audit log.
    #[serde(default)]
    pub who: String,
}

impl ResolvedState {
    /// The state as text.
    pub const fn as_str(self) -> &'static str {
        match self {
            Self::Completed => "completed",
            Self::Released => "released",
        }
    }
}

impl ResolveRequest {
    /// A resolution of one record.
    pub fn new(
        target: RecordTarget,
        to: ResolvedState,
        answer: Option<AnswerInput>,
        words: AuditNote,
    ) -> Self {
        let (RecordTarget { scope, caller, key, state, fence }, AuditNote { why, who }) =
            (target, words);
        Self { scope, caller, key, state, fence, to, answer, why, who }
    }

    /// Which record.
    pub fn target(&self) -> RecordTarget {
        let Self { scope, caller, key, state, fence, .. } = self.clone();
        RecordTarget { scope, caller, key, state, fence }
    }
}

impl DeleteRequest {
    /// A deletion of one record.
    pub fn new(target: RecordTarget, words: AuditNote) -> Self {
        let (RecordTarget { scope, caller, key, state, fence }, AuditNote { why, who }) =
            (target, words);
        Self { scope, caller, key, state, fence, why, who }
    }

    /// Which record.
    pub fn target(&self) -> RecordTarget {
        let Self { scope, caller, key, state, fence, .. } = self.clone();
        RecordTarget { scope, caller, key, state, fence }
    }
}

impl ResolveManyRequest {
    /// Which records. All of them must be readable before the first is resolved.
    pub fn targets(&self) -> Result<Vec<RecordTarget>, ActionError> {
        let malformed = |detail: String| Err(ActionError::Malformed(detail));
        match self.records.len() {
            0 => return malformed("name at least one record".to_owned()),
            number if number > MANY_MAX => {
                return malformed(format!("{number} records are too many: at most {MANY_MAX}"));
            }
            _ => {}
        }
        let target = |record: &SeenRecord| {
            let SeenRecord { scope, caller, key, fence } = record.clone();
            let state = StateName::Held.as_str().to_owned();
            let target = RecordTarget { scope, caller, key, state, fence };
            target.read().map(|_| target)
        };
        self.records.iter().map(target).collect()
    }
}

impl RecordTarget {
    /// The record, its state and its fence.
    pub fn read(&self) -> Result<(RecordId, StateName, Fence), ActionError> {
        let id = record_id(&self.scope, &self.caller, &self.key)?;
        let state = state(&self.state)?;
        let fence = Fence::new(self.fence)
            .ok_or_else(|| ActionError::Malformed("a fence is never 0".to_owned()))?;
        Ok((id, state, fence))
    }
}

/// Scope, caller and key together; an empty caller is the anonymous one.
pub fn record_id(scope: &str, caller: &str, key: &str) -> Result<RecordId, ActionError> {
    let malformed = |error: &dyn std::fmt::Display| ActionError::Malformed(error.to_string());
    Ok(RecordId {
        scope: Scope::new(scope).map_err(|error| malformed(&error))?,
        caller: Caller::from_stored(caller).map_err(|error| malformed(&error))?,
        key: Key::new(key).map_err(|error| malformed(&error))?,
    })
}

/// The state that a word names.
pub fn state(word: &str) -> Result<StateName, ActionError> {
    STATES.into_iter().find(|state| state.as_str() == word).ok_or_else(|| {
        let words = STATES.map(StateName::as_str).join(", ");
        ActionError::Malformed(format!("`{word}` is not a state; states are {words}"))
    })
}

/// The states that a listing can ask for.
pub const STATES: [StateName; 4] =
    [StateName::InFlight, StateName::Completed, StateName::Released, StateName::Held];

/// Headers that are computed from the body.
const OF_THE_BODY: [HeaderName; 2] = [header::CONTENT_LENGTH, header::TRAILER];

/// Headers that an answer has at most once.
const SINGLE: [HeaderName; 7] = [
    header::CONTENT_TYPE,
    header::CONTENT_ENCODING,
    header::CONTENT_LOCATION,
    header::CONTENT_RANGE,
    header::ETAG,
    header::LAST_MODIFIED,
    header::LOCATION,
];

impl AnswerInput {
    /// The answer to record. It cannot be corrected later, so an invalid one is refused.
    pub fn read(&self) -> Result<StoredResponse, ActionError> {
        let malformed = |detail: &str| ActionError::Malformed(detail.to_owned());
        if !(200..=599).contains(&self.status) {
            return Err(malformed("an answer has a status from 200 to 599"));
        }
        let body = match (&self.body, &self.body_base64) {
            (Some(_), Some(_)) => return Err(malformed("send `body` or `body_base64`, not both")),
            (Some(text), None) => text.clone().into_bytes(),
            (None, Some(text)) => {
                base64::decode(text).ok_or_else(|| malformed("`body_base64` is not base64"))?
            }
            (None, None) => Vec::new(),
        };
        if matches!(self.status, 204 | 205 | 304) && !body.is_empty() {
            let status = self.status;
            let detail = format!("an answer with status {status} has no body: leave it out");
            return Err(ActionError::Malformed(detail));
        }
        let (headers, body) = (self.fields()?, body.into());
        Ok(StoredResponse { status: self.status, headers, body, trailers: vec![] })
    }

    /// The headers to record, in their order.
    fn fields(&self) -> Result<Vec<Field>, ActionError> {
        let mut names: Vec<HeaderName> = Vec::with_capacity(self.headers.len());
        let mut fields = Vec::with_capacity(self.headers.len());
        for (name, value) in &self.headers {
            let wrong = |why: &str| ActionError::Malformed(format!("`{name}: {value}` {why}"));
            let Ok(name) = name.parse::<HeaderName>() else {
                return Err(wrong("is not a valid header"));
            };
            if http::HeaderValue::from_str(value).is_err() {
                return Err(wrong("is not a valid header"));
            }
            if !may_be_kept(&name) || OF_THE_BODY.contains(&name) {
                return Err(wrong(
                    "cannot be replayed: it is specific to one connection, one point in time or \
                     one client",
                ));
            }
            if SINGLE.contains(&name) && names.contains(&name) {
                return Err(wrong("is a duplicate: an answer has it once"));
            }
            fields.push(Field::new(name.as_str().to_owned(), value.clone()));
            names.push(name);
        }
        Ok(fields)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn refused(request: &AnswerInput) -> String {
        request.read().unwrap_err().to_string()
    }

    fn request(status: u16, headers: &[(&str, &str)], body: Option<&str>) -> AnswerInput {
        let pair = |(name, value): &(&str, &str)| ((*name).to_owned(), (*value).to_owned());
        let headers = headers.iter().map(pair).collect();
        AnswerInput { status, headers, body: body.map(str::to_owned), body_base64: None }
    }

    #[test]
    fn answers_that_cannot_be_replayed_are_refused() {
        for name in [
            "Content-Length",
            "Transfer-Encoding",
            "Trailer",
            "Connection",
            "Keep-Alive",
            "Upgrade",
            "Set-Cookie",
            "Date",
            "Server",
            "Retry-After",
            "Idempotent-Replayed",
            "Idempotency-Outcome",
        ] {
            let wrong = refused(&request(200, &[(name, "5")], Some("hello")));
            assert!(wrong.contains("cannot be replayed"), "{name}: {wrong}");
        }
        let two = [("Content-Type", "text/plain"), ("content-type", "text/html")];
        assert!(refused(&request(200, &two, None)).contains("has it once"));
        for status in [204, 205, 304] {
            assert!(refused(&request(status, &[], Some("hello"))).contains("has no body"));
            assert!(request(status, &[], Some("")).read().is_ok());
        }
        assert!(refused(&request(101, &[], None)).contains("from 200 to 599"));
    }

    #[test]
    fn headers_keep_their_order_and_number() {
        let sent = [("Link", "</a>"), ("Content-Type", "text/plain"), ("link", "</b>")];
        let response = request(201, &sent, Some("hello")).read().unwrap();
        let expected = [("link", "</a>"), ("content-type", "text/plain"), ("link", "</b>")];
        assert_eq!(response.headers, expected.map(|(name, value)| Field::new(name, value)));
    }
}
