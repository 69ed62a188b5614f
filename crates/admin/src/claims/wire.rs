//! The JSON of the service API's requests.

use semel::core::{Answer, Content};
use serde::{Deserialize, Deserializer};
use serde_json::value::RawValue;

use crate::{base64, json_object};

/// `POST /v1/claims`
#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub(crate) struct ClaimCall<'a> {
    #[serde(default)]
    op: Option<String>,
    pub(crate) scope: String,
    pub(crate) key: String,
    pub(crate) attempt_id: String,
    #[serde(default, borrow, deserialize_with = "present")]
    pub(crate) payload: Option<&'a RawValue>,
    #[serde(default)]
    pub(crate) fingerprint: Option<String>,
    #[serde(default)]
    pub(crate) caller: Option<String>,
    #[serde(default)]
    pub(crate) about: Option<String>,
    #[serde(default)]
    pub(crate) lease: Option<String>,
    #[serde(default)]
    pub(crate) wait: Option<String>,
    #[serde(default)]
    pub(crate) retention: Option<String>,
    #[serde(default)]
    pub(crate) on_unknown: Option<OnUnknownWord>,
}

/// What to do when the outcome is unknown.
#[derive(Clone, Copy, Debug, Deserialize, PartialEq, Eq)]
#[serde(rename_all = "snake_case")]
pub(crate) enum OnUnknownWord {
    Hold,
    Rerun,
    Fail,
}

/// `POST /v1/claims/complete`
#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub(crate) struct CompleteCall<'a> {
    #[serde(default)]
    op: Option<String>,
    pub(crate) claim: String,
    #[serde(default, borrow, deserialize_with = "json_object::optional")]
    pub(crate) result: Option<ResultInput<'a>>,
}

/// The result of an operation.
#[derive(Debug, Default, Deserialize)]
#[serde(deny_unknown_fields)]
pub(crate) struct ResultInput<'a> {
    #[serde(default)]
    content_type: Option<String>,
    #[serde(default, borrow, deserialize_with = "present")]
    body: Option<&'a RawValue>,
    #[serde(default)]
    body_base64: Option<String>,
}

/// `POST /v1/claims/renew`
#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub(crate) struct RenewCall {
    #[serde(default)]
    op: Option<String>,
    pub(crate) claim: String,
    #[serde(default)]
    pub(crate) lease: Option<String>,
}

/// `POST /v1/claims/release`
#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub(crate) struct ReleaseCall {
    #[serde(default)]
    op: Option<String>,
    pub(crate) claim: String,
    #[serde(default)]
    pub(crate) counted: Option<bool>,
    #[serde(default)]
    pub(crate) reason: Option<String>,
}

/// `POST /v1/claims/hold`
#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub(crate) struct HoldCall {
    #[serde(default)]
    op: Option<String>,
    pub(crate) claim: String,
    #[serde(default)]
    pub(crate) reason: Option<String>,
}

/// A body of one operation, which in a batch is named by `op`.
pub(crate) trait CallBody {
    fn op(&self) -> Option<&str>;
}

macro_rules! call_bodies {
    ($($kind:ty),+) => {
        $(impl CallBody for $kind {
            fn op(&self) -> Option<&str> {
                self.op.as_deref()
            }
        })+
    };
}
call_bodies!(ClaimCall<'_>, CompleteCall<'_>, RenewCall, ReleaseCall, HoldCall);

/// The name of an operation in a batch.
#[derive(Debug, Deserialize)]
pub(crate) struct NamedCall {
    pub(crate) op: ClaimVerb,
}

/// The operations on claims.
#[derive(Clone, Copy, Debug, Deserialize, PartialEq, Eq)]
#[serde(rename_all = "snake_case")]
pub(crate) enum ClaimVerb {
    Claim,
    Complete,
    Renew,
    Release,
    Hold,
}

/// A member that is there, be it `null`.
fn present<'de: 'a, 'a, D: Deserializer<'de>>(from: D) -> Result<Option<&'a RawValue>, D::Error> {
    <&RawValue>::deserialize(from).map(Some)
}

const JSON: &str = "application/json";
const BYTES: &str = "application/octet-stream";

/// The longest media type.
const CONTENT_TYPE_BYTES_MAX: usize = 255;

/// The status of a result in its record: the same as that of a value of `once`.
const STATUS: u16 = 200;

impl ResultInput<'_> {
    /// What is recorded; a result over `bytes_max` is recorded without its body.
    pub(crate) fn answer(&self, bytes_max: usize) -> Result<Answer, &'static str> {
        let (body, default) = match (&self.body, &self.body_base64) {
            (Some(_), Some(_)) => return Err("send `body` or `body_base64`, not both"),
            (Some(json), None) => (json.get().as_bytes().to_vec(), JSON),
            (None, Some(text)) => {
                let bytes = base64::decode(text).ok_or("`body_base64` is not base64")?;
                (bytes, BYTES)
            }
            (None, None) => (b"null".to_vec(), JSON),
        };
        let content_type = self.content_type.as_deref().unwrap_or(default);
        let is_plain = content_type.bytes().all(|byte| byte == b' ' || byte.is_ascii_graphic());
        if !is_plain || !(1..=CONTENT_TYPE_BYTES_MAX).contains(&content_type.len()) {
            return Err("`content_type` is 1 to 255 visible ASCII characters and spaces");
        }
        Ok(if body.len() > bytes_max {
            Answer::not_retained(STATUS)
        } else {
            let headers: [(&[u8], &[u8]); 1] = [(b"content-type", content_type.as_bytes())];
            Answer::encode(STATUS, &headers, &[], &body)
        })
    }
}

/// The members `result` and `retained` of a replay, without braces; `None` if the record cannot be
/// read.
pub(crate) fn replayed(answer: &Answer) -> Option<String> {
    let response = match answer.read().ok()? {
        Content::NotRetained { .. } => return Some("\"retained\":false".to_owned()),
        Content::Response(response) => response,
        Content::Failed => return None,
    };
    let named = |name: &[u8]| name.eq_ignore_ascii_case(b"content-type");
    let content_type = response.headers.iter().find(|field| named(&field.name));
    let content_type = content_type.and_then(|field| str::from_utf8(&field.value).ok());
    let content_type = content_type.unwrap_or(BYTES);
    let json = str::from_utf8(&response.body).ok().filter(|_| is_json(content_type));
    let json = json.filter(|text| serde_json::from_str::<&RawValue>(text).is_ok());
    let body = match json {
        Some(text) => format!("\"body\":{text}"),
        None => format!("\"body_base64\":\"{}\"", base64::encode(&response.body)),
    };
    let content_type = quoted(content_type);
    let result = format!("{{\"content_type\":{content_type},{body}}}");
    Some(format!("\"result\":{result},\"retained\":true"))
}

fn is_json(content_type: &str) -> bool {
    let essence = content_type.split(';').next().unwrap_or_default().trim();
    let essence = essence.to_ascii_lowercase();
    essence == JSON || essence.ends_with("+json")
}

/// A text as JSON.
fn quoted(text: &str) -> String {
    serde_json::Value::from(text).to_string()
}
