//! Acts as they are sent: the JSON that `semel` and other tools post.

use semel::core::{Answer, Caller, Fence, Field, Key, RecordId, Scope, StateName, StoredResponse};
use serde::{Deserialize, Serialize};

use super::{acts::ActError, base64};

/// Which record, and how it was seen.
#[derive(Clone, Debug, Deserialize, PartialEq, Eq, Serialize)]
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
pub(crate) struct Resolve {
    /// Which record.
    #[serde(flatten)]
    pub(crate) target: Target,
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

/// `POST /v1/forget`
#[derive(Clone, Debug, Deserialize, Serialize)]
pub(crate) struct Forget {
    /// Which record.
    #[serde(flatten)]
    pub(crate) target: Target,
    /// Why, for the audit log.
    #[serde(default)]
    pub(crate) why: String,
    /// Who says so, for the audit log.
    #[serde(default)]
    pub(crate) who: String,
}

/// `POST /v1/sweep` and `POST /v1/reload`
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

impl AnswerForm {
    /// The answer to record.
    pub(crate) fn read(&self) -> Result<Answer, ActError> {
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
        let mut headers = Vec::with_capacity(self.headers.len());
        for (name, value) in &self.headers {
            let good = name.parse::<http::HeaderName>().is_ok()
                && http::HeaderValue::from_str(value).is_ok();
            if !good {
                return Err(ActError::Malformed(format!("`{name}: {value}` is no header")));
            }
            headers.push(Field::new(name.to_ascii_lowercase(), value.clone()));
        }
        let body = body.into();
        let response = StoredResponse { status: self.status, headers, body, trailers: vec![] };
        Ok(Answer::response(&response))
    }
}
