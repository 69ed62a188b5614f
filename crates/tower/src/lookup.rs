//! `GET /idempotency/{key}`: shows a caller the state and the answer of its own operation.

use std::{
    fmt::{self, Write as _},
    sync::Arc,
    time::SystemTime,
};

use data_encoding::BASE64;
use http::{HeaderValue, Response, StatusCode, header, request::Parts};
use jiff::Timestamp;
use semel::core::{
    Answer, Content, Field, Key, Problem, RecordId, Snapshot, StateView, StoredResponse,
};
use serde_json::{Value, json};

use crate::{
    LookupPath,
    body::Body,
    buffered_body::BufferedBody,
    caller::{ClientContext, Identified},
    config::{self, LayerConfig},
    memory::{MemoryUse, PeerMemory},
    refusal::RequestRefusal,
    request,
};

/// Answers a look-up.
pub(crate) async fn respond<B>(
    config: Arc<LayerConfig>,
    path: LookupPath,
    parts: Parts,
) -> Response<Body<B>> {
    match look_up(&config, &path, &parts).await {
        Ok(response) => response,
        Err(refusal) => config.refuse(config.responder(parts.version, &parts.headers), &refusal),
    }
}

async fn look_up<B>(
    config: &LayerConfig,
    path: &LookupPath,
    parts: &Parts,
) -> Result<Response<Body<B>>, RequestRefusal> {
    let key = decode(path.key_of(parts.uri.path()).unwrap_or_default())?;
    let mut caller = config.callers.identify(parts);
    if matches!(&caller, Err(refusal) if refusal.waits_for_keys()) {
        config.callers.keys_refreshed().await;
        caller = config.callers.identify(parts);
    }
    let Identified { caller, .. } = caller?;
    if caller.is_anonymous() {
        let detail = "anonymous callers share their keys, so they cannot look up an operation";
        return Err(RequestRefusal::detailed(Problem::CallerUnidentified, detail));
    }
    let id = RecordId::new(config.scope.clone(), caller, key);
    let former = config.former.ids(&id, parts);
    let seen = config.semel.look_up(&id, &former, config.policy.store_timeout).await?;
    let (status, document) = match &seen {
        None => (StatusCode::NOT_FOUND, json!({ "state": "absent" })),
        Some(seen) => (StatusCode::OK, describe(seen)?),
    };
    let body = write(&document, ClientContext::memory_of(&parts.extensions))?;
    let mut response = Response::new(Body::buffered(body));
    *response.status_mut() = status;
    let headers = response.headers_mut();
    headers.insert(header::CONTENT_TYPE, HeaderValue::from_static("application/json"));
    headers.insert(header::CACHE_CONTROL, HeaderValue::from_static("no-store"));
    if matches!(seen.map(|seen| seen.state), Some(StateView::InFlight { .. })) {
        headers.insert(header::RETRY_AFTER, HeaderValue::from_static("1"));
    }
    Ok(response)
}

/// Writes the document, in memory that is reserved before: with its escapes, a text is up to six
/// times as long as the answer.
fn write(document: &Value, memory: Option<&PeerMemory>) -> Result<BufferedBody, RequestRefusal> {
    let mut length = TextLength(0);
    // Neither counting nor writing to a String can fail.
    let _ = write!(length, "{document}");
    let reserve = |memory: &PeerMemory| {
        let reservation = memory.reserve(MemoryUse::Replays, length.0);
        reservation.ok_or_else(request::out_of_memory)
    };
    let reservation = memory.map(reserve).transpose()?;
    let mut text = String::with_capacity(length.0);
    let _ = write!(text, "{document}");
    let mut body = BufferedBody::new(text.into(), None);
    body.hold(reservation);
    Ok(body)
}

/// Counts the bytes of a text.
struct TextLength(usize);

impl fmt::Write for TextLength {
    fn write_str(&mut self, text: &str) -> fmt::Result {
        self.0 = self.0.saturating_add(text.len());
        Ok(())
    }
}

/// The document for a record.
fn describe(seen: &Snapshot) -> Result<Value, RequestRefusal> {
    let now = config::now();
    let mut document = json!({
        "state": seen.state.name().as_str(),
        "attempt": seen.attempt,
        "claimed_at": now.checked_sub(seen.age).and_then(time),
        "ended_at": seen.ended.and_then(|ended| now.checked_sub(ended)).and_then(time),
    });
    if let StateView::Completed { answer, expires_in } = &seen.state {
        document["expires_at"] = now.checked_add(*expires_in).and_then(time).into();
        document["answer"] = describe_answer(answer)?;
    }
    Ok(document)
}

fn describe_answer(answer: &Answer) -> Result<Value, RequestRefusal> {
    Ok(match answer.read() {
        Ok(Content::Response(stored)) => describe_response(&stored),
        Ok(Content::NotRetained { status }) => json!({ "status": status, "retained": false }),
        Ok(Content::Failed) => {
            let failed = Problem::OperationFailed;
            json!({ "status": failed.status(), "retained": false, "problem": failed.slug() })
        }
        Err(error) => {
            let detail = format!("the recorded answer cannot be read: {error}");
            return Err(RequestRefusal::detailed(Problem::OutcomeUnknown, detail));
        }
    })
}

/// A body that is text is shown as it is, any other as Base64.
fn describe_response(stored: &StoredResponse) -> Value {
    let (name, body) = match str::from_utf8(&stored.body) {
        Ok(text) => ("body", text.to_owned()),
        Err(_) => ("body_base64", BASE64.encode(&stored.body)),
    };
    let mut document = json!({
        "status": stored.status,
        "retained": true,
        "headers": describe_fields(&stored.headers),
        name: body,
    });
    if !stored.trailers.is_empty() {
        document["trailers"] = describe_fields(&stored.trailers);
    }
    document
}

/// Names may repeat, so they are in pairs.
fn describe_fields(fields: &[Field]) -> Value {
    let text = |bytes: &[u8]| String::from_utf8_lossy(bytes).into_owned();
    fields.iter().map(|field| json!([text(&field.name), text(&field.value)])).collect()
}

/// A time to the second: what is computed from durations is not more exact.
fn time(at: SystemTime) -> Option<String> {
    let seconds = at.duration_since(SystemTime::UNIX_EPOCH).ok()?.as_secs();
    Timestamp::from_second(i64::try_from(seconds).ok()?).ok().map(|time| time.to_string())
}

/// Reads a percent-encoded key.
fn decode(encoded: &str) -> Result<Key, RequestRefusal> {
    let malformed = |detail: String| RequestRefusal::detailed(Problem::KeyMalformed, detail);
    let mut decoded = Vec::with_capacity(encoded.len());
    let mut bytes = encoded.bytes();
    while let Some(byte) = bytes.next() {
        if byte != b'%' {
            decoded.push(byte);
            continue;
        }
        let mut digit = || char::from(bytes.next()?).to_digit(16);
        let pair = digit().zip(digit()).and_then(|(high, low)| u8::try_from(high * 16 + low).ok());
        decoded.push(pair.ok_or_else(|| {
            malformed("a `%` in the path is not followed by two hexadecimal digits".to_owned())
        })?);
    }
    // Text that is no UTF-8 has characters that no key has.
    Key::new(&String::from_utf8_lossy(&decoded)).map_err(|error| malformed(error.to_string()))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_key_is_decoded_once() {
        for (encoded, key) in [("a-b", "a-b"), ("a%2Fb", "a/b"), ("%2525", "%25"), ("%c3", "")] {
            let decoded = decode(encoded).map(|key| key.as_str().to_owned());
            assert_eq!(decoded.unwrap_or_default(), key);
        }
        for encoded in ["%", "%4", "%zz", "%00", "a%20b", "%C3%A9"] {
            assert_eq!(decode(encoded).unwrap_err().problem, Problem::KeyMalformed, "{encoded}");
        }
    }
}
