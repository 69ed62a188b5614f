//! Acts as they are sent: the JSON that `semel` and other tools post.

use http::{HeaderName, header};
use semel::core::{Caller, Fence, Field, Key, RecordId, Scope, StateName, StoredResponse};
use semel_tower::may_be_kept;
use serde::{Deserialize, Serialize};

use super::{acts::ActError, base64};

/// Which record, and how it was seen. The forms have these fields one by one: a form with another
/// in it (`flatten`) could not refuse a field that it does not know.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Target {
    /// The family of operations.
    pub(crate) scope: String,
    /// Who sent it; empty for the anonymous caller.
    pub(crate) caller: String,
    /// What the client called the operation.
    pub(crate) key: String,
    /// The state it was seen in.
    pub(crate) state: String,
    /// The fence it was seen with. An act on a record that has a newer truth changes nothing.
    pub(crate) fence: u64,
}

/// `POST /v1/resolve`
#[derive(Clone, Debug, Deserialize, Serialize)]
#[serde(deny_unknown_fields)]
pub(crate) struct Resolve {
    scope: String,
    caller: String,
    key: String,
    state: String,
    fence: u64,
    /// What became of it.
    pub(crate) to: To,
    /// The answer that every repeat gets from now on, if it is completed.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(crate) answer: Option<AnswerForm>,
    /// Why, for the audit log.
    #[serde(default)]
    pub(crate) why: String,
    /// Who says so, for the audit log.
    #[serde(default)]
    pub(crate) who: String,
}

/// What became of a held record.
#[derive(Clone, Copy, Debug, Deserialize, PartialEq, Eq, Serialize)]
#[serde(rename_all = "snake_case")]
pub(crate) enum To {
    /// It happened, and there is an answer.
    Completed,
    /// It did not happen, and may run again.
    Released,
}

/// An answer as an operator writes it.
#[derive(Clone, Debug, Default, Deserialize, Serialize)]
#[serde(deny_unknown_fields)]
pub(crate) struct AnswerForm {
    /// The status.
    pub(crate) status: u16,
    /// The headers, as pairs of name and value.
    #[serde(default)]
    pub(crate) headers: Vec<(String, String)>,
    /// The body, if it is text.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(crate) body: Option<String>,
    /// The body, if it is not.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(crate) body_base64: Option<String>,
}

/// `POST /v1/delete`
#[derive(Clone, Debug, Deserialize, Serialize)]
#[serde(deny_unknown_fields)]
pub(crate) struct Delete {
    scope: String,
    caller: String,
    key: String,
    state: String,
    fence: u64,
    /// Why, for the audit log.
    #[serde(default)]
    pub(crate) why: String,
    /// Who says so, for the audit log.
    #[serde(default)]
    pub(crate) who: String,
}

/// `POST /v1/resolve-many`. The preview is `GET /v1/records?state=held` with any filters. The act
/// names each record that the preview showed, with its fence, so that it can touch no other: not
/// one that came to be held meanwhile, and not one that has a newer truth.
#[derive(Clone, Debug, Deserialize, Serialize)]
#[serde(deny_unknown_fields)]
pub(crate) struct ResolveMany {
    /// At most [`MANY_MAX`] records that were seen to be held.
    pub(crate) records: Vec<SeenRecord>,
    /// What became of them.
    pub(crate) to: To,
    /// The answer that every repeat of each gets from now on, if they are completed.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(crate) answer: Option<AnswerForm>,
    /// Why, for the audit log.
    #[serde(default)]
    pub(crate) why: String,
    /// Who says so, for the audit log.
    #[serde(default)]
    pub(crate) who: String,
}

/// How many records one request resolves at most.
pub(crate) const MANY_MAX: usize = 200;

/// A held record, with the fence it was seen with.
#[derive(Clone, Debug, Deserialize, PartialEq, Eq, Serialize)]
#[serde(deny_unknown_fields)]
pub(crate) struct SeenRecord {
    pub(crate) scope: String,
    pub(crate) caller: String,
    pub(crate) key: String,
    pub(crate) fence: u64,
}

/// `POST /v1/reload`
#[derive(Clone, Debug, Default, Deserialize, Serialize)]
#[serde(deny_unknown_fields)]
pub(crate) struct Reload {
    /// Why, for the audit log.
    #[serde(default)]
    pub(crate) why: String,
    /// Who says so, for the audit log.
    #[serde(default)]
    pub(crate) who: String,
    /// Whether it is applied although keys that have run would run again.
    #[serde(default)]
    pub(crate) accept_identity_change: bool,
}

/// `POST /v1/sweep`
#[derive(Clone, Debug, Default, Deserialize, Serialize)]
#[serde(deny_unknown_fields)]
pub(crate) struct Plain {
    /// Why, for the audit log.
    #[serde(default)]
    pub(crate) why: String,
    /// Who says so, for the audit log.
    #[serde(default)]
    pub(crate) who: String,
}

impl To {
    /// The word for it.
    pub(crate) const fn as_str(self) -> &'static str {
        match self {
            Self::Completed => "completed",
            Self::Released => "released",
        }
    }
}

impl Resolve {
    pub(crate) fn new(target: Target, to: To, answer: Option<AnswerForm>, words: Plain) -> Self {
        let (Target { scope, caller, key, state, fence }, Plain { why, who }) = (target, words);
        Self { scope, caller, key, state, fence, to, answer, why, who }
    }

    /// Which record.
    pub(crate) fn target(&self) -> Target {
        let Self { scope, caller, key, state, fence, .. } = self.clone();
        Target { scope, caller, key, state, fence }
    }
}

impl Delete {
    pub(crate) fn new(target: Target, words: Plain) -> Self {
        let (Target { scope, caller, key, state, fence }, Plain { why, who }) = (target, words);
        Self { scope, caller, key, state, fence, why, who }
    }

    /// Which record.
    pub(crate) fn target(&self) -> Target {
        let Self { scope, caller, key, state, fence, .. } = self.clone();
        Target { scope, caller, key, state, fence }
    }
}

impl ResolveMany {
    /// Which records. All of them must be readable before the first is resolved.
    pub(crate) fn targets(&self) -> Result<Vec<Target>, ActError> {
        let malformed = |detail: String| Err(ActError::Malformed(detail));
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
            let target = Target { scope, caller, key, state, fence };
            target.read().map(|_| target)
        };
        self.records.iter().map(target).collect()
    }
}

impl Target {
    /// The record, its state and its fence.
    pub(crate) fn read(&self) -> Result<(RecordId, StateName, Fence), ActError> {
        let id = record_id(&self.scope, &self.caller, &self.key)?;
        let state = state(&self.state)?;
        let fence = Fence::new(self.fence)
            .ok_or_else(|| ActError::Malformed("a fence is never 0".to_owned()))?;
        Ok((id, state, fence))
    }
}

/// Scope, caller and key together; an empty caller is the anonymous one.
pub(crate) fn record_id(scope: &str, caller: &str, key: &str) -> Result<RecordId, ActError> {
    let malformed = |error: &dyn std::fmt::Display| ActError::Malformed(error.to_string());
    Ok(RecordId {
        scope: Scope::new(scope).map_err(|error| malformed(&error))?,
        caller: Caller::from_stored(caller).map_err(|error| malformed(&error))?,
        key: Key::new(key).map_err(|error| malformed(&error))?,
    })
}

/// The state that a word names.
pub(crate) fn state(word: &str) -> Result<StateName, ActError> {
    STATES.into_iter().find(|state| state.as_str() == word).ok_or_else(|| {
        let words = STATES.map(StateName::as_str).join(", ");
        ActError::Malformed(format!("`{word}` is no state: there are {words}"))
    })
}

pub(crate) const STATES: [StateName; 4] =
    [StateName::InFlight, StateName::Completed, StateName::Released, StateName::Held];

/// Headers that only the length and the shape of the body decide, whatever an operator says.
const OF_THE_BODY: [HeaderName; 2] = [header::CONTENT_LENGTH, header::TRAILER];

/// Headers that an answer has once; a client that sees two takes either.
const SINGLE: [HeaderName; 7] = [
    header::CONTENT_TYPE,
    header::CONTENT_ENCODING,
    header::CONTENT_LOCATION,
    header::CONTENT_RANGE,
    header::ETAG,
    header::LAST_MODIFIED,
    header::LOCATION,
];

impl AnswerForm {
    /// The answer to record. It cannot be put right later, so what no client could read is refused.
    pub(crate) fn read(&self) -> Result<StoredResponse, ActError> {
        let malformed = |detail: &str| ActError::Malformed(detail.to_owned());
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
            return Err(ActError::Malformed(detail));
        }
        let (headers, body) = (self.fields()?, body.into());
        Ok(StoredResponse { status: self.status, headers, body, trailers: vec![] })
    }

    /// The headers to record, in their order.
    fn fields(&self) -> Result<Vec<Field>, ActError> {
        let mut names: Vec<HeaderName> = Vec::with_capacity(self.headers.len());
        let mut fields = Vec::with_capacity(self.headers.len());
        for (name, value) in &self.headers {
            let wrong = |why: &str| ActError::Malformed(format!("`{name}: {value}` {why}"));
            let Ok(name) = name.parse::<HeaderName>() else { return Err(wrong("is no header")) };
            if http::HeaderValue::from_str(value).is_err() {
                return Err(wrong("is no header"));
            }
            if !may_be_kept(&name) || OF_THE_BODY.contains(&name) {
                return Err(wrong(
                    "cannot be replayed: it belongs to one connection, one moment or one client",
                ));
            }
            if SINGLE.contains(&name) && names.contains(&name) {
                return Err(wrong("is there already: an answer has it once"));
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

    fn refused(form: &AnswerForm) -> String {
        form.read().unwrap_err().to_string()
    }

    fn form(status: u16, headers: &[(&str, &str)], body: Option<&str>) -> AnswerForm {
        let pair = |(name, value): &(&str, &str)| ((*name).to_owned(), (*value).to_owned());
        let headers = headers.iter().map(pair).collect();
        AnswerForm { status, headers, body: body.map(str::to_owned), body_base64: None }
    }

    #[test]
    fn what_would_break_every_replay_is_not_recorded() {
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
            let wrong = refused(&form(200, &[(name, "5")], Some("hello")));
            assert!(wrong.contains("cannot be replayed"), "{name}: {wrong}");
        }
        let two = [("Content-Type", "text/plain"), ("content-type", "text/html")];
        assert!(refused(&form(200, &two, None)).contains("has it once"));
        for status in [204, 205, 304] {
            assert!(refused(&form(status, &[], Some("hello"))).contains("has no body"));
            assert!(form(status, &[], Some("")).read().is_ok());
        }
        assert!(refused(&form(101, &[], None)).contains("from 200 to 599"));
    }

    #[test]
    fn headers_keep_their_order_and_number() {
        let sent = [("Link", "</a>"), ("Content-Type", "text/plain"), ("link", "</b>")];
        let response = form(201, &sent, Some("hello")).read().unwrap();
        let expected = [("link", "</a>"), ("content-type", "text/plain"), ("link", "</b>")];
        assert_eq!(response.headers, expected.map(|(name, value)| Field::new(name, value)));
    }
}
