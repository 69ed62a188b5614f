//! `GET /idempotency/{key}`: shows a caller the state and the answer of its own operation.

use std::{
    borrow::Cow,
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
    KeyLocation, LookupPath,
    body::Body,
    buffered_body::BufferedBody,
    caller::{ClientContext, Identified},
    config::{self, LayerConfig},
    header::IDEMPOTENCY_TRACE,
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
    let segment = path.key_of(parts.uri.path()).unwrap_or_default();
    let (first, others) = keys(segment, config.key.locations())?;
    let Identified { caller, shared, .. } = config.identify(parts).await?;
    if shared {
        let detail = "callers that are anonymous or named by their host alone share their keys, so \
                      they cannot look up an operation";
        return Err(RequestRefusal::detailed(Problem::CallerUnidentified, detail));
    }
    let id = |key| RecordId::new(config.scope.clone(), caller.clone(), key);
    let (first, others) = (id(first), others.into_iter().map(id));
    let mut further = config.former.ids(&first, parts);
    for other in others {
        let former = config.former.ids(&other, parts);
        further.push(other);
        further.extend(former);
    }
    let seen = config.semel.look_up(&first, &further, config.policy.store_timeout).await?;
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
    let fields = fields.iter().filter(|field| field.name != IDEMPOTENCY_TRACE.as_str());
    fields.map(|field| json!([text(&field.name), text(&field.value)])).collect()
}

/// A time to the second: what is computed from durations is not more exact.
fn time(at: SystemTime) -> Option<String> {
    let seconds = at.duration_since(SystemTime::UNIX_EPOCH).ok()?.as_secs();
    Timestamp::from_second(i64::try_from(seconds).ok()?).ok().map(|time| time.to_string())
}

/// The keys that a segment of a path may mean, at least one: a key from a body is stored in another
/// form than one from a header.
fn keys(segment: &str, locations: &[KeyLocation]) -> Result<(Key, Vec<Key>), RequestRefusal> {
    let (mut first, mut others) = (Err(malformed("this route reads no key")), Vec::new());
    for location in locations {
        match (key(segment, location), &first) {
            (Ok(key), Ok(known)) => {
                if key != *known && !others.contains(&key) {
                    others.push(key);
                }
            }
            (Err(_), Ok(_)) => {}
            (key, Err(_)) => first = key,
        }
    }
    first.map(|first| (first, others))
}

/// The key that a segment means for a request that has its key there.
fn key(segment: &str, location: &KeyLocation) -> Result<Key, RequestRefusal> {
    let pointers = match location {
        KeyLocation::Json(pointers) => pointers,
        KeyLocation::Header(_) | KeyLocation::CloudEvent => {
            // Text that is no UTF-8 has characters that no key has.
            let text = decode(segment)?;
            let key = Key::new(&String::from_utf8_lossy(&text));
            return key.map_err(|error| malformed(error.to_string()));
        }
    };
    let members: Vec<&str> =
        if pointers.len() == 1 { vec![segment] } else { segment.split(',').collect() };
    if members.len() != pointers.len() {
        return Err(malformed(format!(
            "the key of this route has {} members; send all of them, each percent-encoded, with \
             commas between them",
            pointers.len()
        )));
    }
    let text =
        |member| String::from_utf8(decode(member)?).map_err(|_| malformed("the key is not UTF-8"));
    let members: Vec<String> = members.into_iter().map(text).collect::<Result<_, _>>()?;
    let key = Key::from_members(members.iter().map(|member| Some(member.as_str())));
    key.map_err(|error| malformed(error.to_string()))
}

fn malformed(detail: impl Into<Cow<'static, str>>) -> RequestRefusal {
    RequestRefusal::detailed(Problem::KeyMalformed, detail)
}

/// Undoes percent-encoding.
fn decode(encoded: &str) -> Result<Vec<u8>, RequestRefusal> {
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
            malformed("a `%` in the path is not followed by two hexadecimal digits")
        })?);
    }
    Ok(decoded)
}

#[cfg(test)]
mod tests {
    use http::HeaderName;
    use semel::core::canonical::Pointer;

    use super::*;

    fn json(pointers: &[&str]) -> KeyLocation {
        KeyLocation::Json(pointers.iter().map(|text| Pointer::parse(text).unwrap()).collect())
    }

    fn named(segment: &str, locations: &[KeyLocation]) -> Vec<String> {
        let (first, others) = keys(segment, locations).unwrap();
        [first].into_iter().chain(others).map(|key| key.as_str().to_owned()).collect()
    }

    #[test]
    fn a_key_is_decoded_once() {
        let header = [KeyLocation::Header(HeaderName::from_static("idempotency-key"))];
        for (encoded, key) in [("a-b", "a-b"), ("a%2Fb", "a/b"), ("%2525", "%25"), ("x,y", "x,y")] {
            assert_eq!(named(encoded, &header), [key]);
        }
        for encoded in ["%", "%4", "%zz", "%00", "a%20b", "%C3%A9", "%c3", ""] {
            let refused = keys(encoded, &header).unwrap_err();
            assert_eq!(refused.problem, Problem::KeyMalformed, "{encoded}");
        }
    }

    #[test]
    fn a_key_from_a_body_is_looked_up_as_it_is_stored() {
        let body = [json(&["/order"])];
        for (encoded, member) in
            [("a%25b", "a%b"), ("x%2Cy", "x,y"), ("x,y", "x,y"), ("PO%204711", "PO 4711")]
        {
            let stored = Key::from_members([Some(member)]).unwrap();
            assert_eq!(named(encoded, &body), [stored.as_str()]);
        }
        let either = [KeyLocation::Header(HeaderName::from_static("k")), json(&["/order"])];
        assert_eq!(named("a-b", &either), ["a-b"]);
        assert_eq!(named("a%25b", &either), ["a%b", "a%25b"]);
        assert_eq!(named("%C3%BC", &either), ["%C3%BC"]);
        let several = [json(&["/contest", "/user"])];
        let stored = Key::from_members([Some("spring, cup"), Some("7")]).unwrap();
        assert_eq!(named("spring%2C%20cup,7", &several), [stored.as_str()]);
        for (encoded, locations) in
            [("a", &several), ("a,b,c", &several), ("%ff", &body), ("", &body)]
        {
            let refused = keys(encoded, locations.as_slice()).unwrap_err();
            assert_eq!(refused.problem, Problem::KeyMalformed, "{encoded}");
        }
    }
}
