//! Header rewriting of a proxy: removes hop-by-hop fields, adds `Forwarded` and `Via`.

use std::time::Duration;

use http::{
    HeaderMap, HeaderName, HeaderValue, Version,
    header::{self, Entry},
    uri::Authority,
};
use semel::Lease;
use semel_tower::{
    header::{
        IDEMPOTENCY_ATTEMPT, IDEMPOTENCY_FENCE, IDEMPOTENCY_KEY, IDEMPOTENCY_OUTCOME,
        IDEMPOTENCY_TAG,
    },
    is_grpc_request,
};

use crate::peer::ClientPeer;
use semel_config::is_forwarded;

const FORWARDED: HeaderName = header::FORWARDED;
const X_FORWARDED_FOR: HeaderName = HeaderName::from_static("x-forwarded-for");
const X_FORWARDED_HOST: HeaderName = HeaderName::from_static("x-forwarded-host");
const X_FORWARDED_PROTO: HeaderName = HeaderName::from_static("x-forwarded-proto");
const KEEP_ALIVE: HeaderName = HeaderName::from_static("keep-alive");

/// Fields that an upstream trusts because the gateway sets them.
const GATEWAY_HEADERS: [HeaderName; 7] = [
    IDEMPOTENCY_KEY,
    IDEMPOTENCY_FENCE,
    IDEMPOTENCY_ATTEMPT,
    IDEMPOTENCY_OUTCOME,
    IDEMPOTENCY_TAG,
    header::CONTENT_LENGTH,
    header::TRANSFER_ENCODING,
];

/// Removes the hop-by-hop fields of a message.
pub(crate) fn remove_hop_by_hop(headers: &mut HeaderMap) {
    if let Some(line) = headers.get(header::CONNECTION) {
        // Almost always it names no other field.
        let alone = matches!(line.as_bytes(), b"keep-alive" | b"close" | b"Keep-Alive");
        if !alone || headers.get_all(header::CONNECTION).iter().nth(1).is_some() {
            for name in connection_options(headers).collect::<Vec<_>>() {
                headers.remove(name);
            }
        }
    }
    remove_where(headers, is_hop_by_hop);
}

/// Removes the fields that match. Most messages have none, so one pass over the names is cheaper
/// than a lookup for each name.
fn remove_where(headers: &mut HeaderMap, is_removed: impl Fn(&HeaderName) -> bool) {
    let removed: Vec<_> = headers.keys().filter(|name| is_removed(name)).cloned().collect();
    for name in removed {
        headers.remove(name);
    }
}

/// Whether a field is hop-by-hop even if `Connection` does not name it.
fn is_hop_by_hop(name: &HeaderName) -> bool {
    matches!(
        name.as_str(),
        "connection" | "keep-alive" | "proxy-connection" | "te" | "transfer-encoding" | "upgrade"
    )
}

/// The idle timeout that a message announces: `Keep-Alive: timeout=5`. The field is hop-by-hop, so
/// call this before [`remove_hop_by_hop`].
pub(crate) fn keep_alive_timeout(headers: &HeaderMap) -> Option<Duration> {
    let lines = headers.get_all(KEEP_ALIVE).iter().filter_map(|line| line.to_str().ok());
    let seconds = lines.flat_map(|line| line.split(',')).filter_map(|parameter| {
        let (name, value) = parameter.split_once('=')?;
        let is_timeout = name.trim().eq_ignore_ascii_case("timeout");
        is_timeout.then(|| value.trim().trim_matches('"').parse().ok()).flatten()
    });
    seconds.min().map(Duration::from_secs)
}

/// The fields that `Connection` names.
pub(crate) fn connection_options(headers: &HeaderMap) -> impl Iterator<Item = HeaderName> {
    let lines = headers.get_all(header::CONNECTION).iter();
    let names = lines.flat_map(|line| line.as_bytes().split(|byte| *byte == b','));
    names.filter_map(|name| HeaderName::from_bytes(name.trim_ascii()).ok())
}

/// Whether `Connection` names this field.
pub(crate) fn is_connection_option(headers: &HeaderMap, name: &HeaderName) -> bool {
    connection_options(headers).any(|one| one == *name)
}

/// Adds the `X-Forwarded-*`, `Forwarded` and `Via` fields of a request.
pub(crate) fn add_forwarded(
    headers: &mut HeaderMap,
    peer: &ClientPeer,
    host: Option<&HeaderValue>,
    version: Version,
    trust: bool,
) {
    if !trust {
        remove_forwarded(headers);
    }
    // One allocation for the fields to come.
    headers.reserve(8);
    append_element(headers, X_FORWARDED_FOR, peer.ip().clone());
    headers.entry(X_FORWARDED_PROTO).or_insert(HeaderValue::from_static(peer.scheme()));
    if let Some(host) = host {
        headers.entry(X_FORWARDED_HOST).or_insert_with(|| host.clone());
    }
    if let Some(element) = peer.forwarded(host) {
        append_element(headers, FORWARDED, element);
    }
    add_via(headers, version);
}

/// Removes the fields that say where a request comes from.
pub(crate) fn remove_forwarded(headers: &mut HeaderMap) {
    remove_where(headers, |name| is_forwarded(name.as_str()));
}

/// Adds the `Via` field.
pub(crate) fn add_via(headers: &mut HeaderMap, version: Version) {
    let via = match version {
        Version::HTTP_2 => "2 semel",
        Version::HTTP_10 => "1.0 semel",
        _ => "1.1 semel",
    };
    append_element(headers, header::VIA, HeaderValue::from_static(via));
}

/// Appends an element to a list field.
fn append_element(headers: &mut HeaderMap, name: HeaderName, element: HeaderValue) {
    match headers.entry(name) {
        Entry::Vacant(vacant) => {
            vacant.insert(element);
        }
        Entry::Occupied(mut lines) => {
            let all = lines.iter().chain([&element]).map(HeaderValue::as_bytes);
            let joined = all.collect::<Vec<_>>().join(&b", "[..]);
            if let Ok(value) = HeaderValue::from_maybe_shared(bytes::Bytes::from(joined)) {
                lines.insert(value);
            }
        }
    }
}

/// Adds the fence and the attempt of a guarded request. Its key is passed on as the client sent it.
pub(crate) fn add_lease(headers: &mut HeaderMap, lease: &Lease) {
    if let Some(fence) = lease.fence() {
        headers.insert(IDEMPOTENCY_FENCE, HeaderValue::from(fence.get()));
    }
    headers.insert(IDEMPOTENCY_ATTEMPT, HeaderValue::from(lease.attempt()));
}

/// Removes the fields that only the gateway may set, and alternate spellings of these, of
/// forwarding headers, and of the headers that the route has `read`.
pub(crate) fn strip_internal(headers: &mut HeaderMap, read: &[HeaderName]) {
    remove_where(headers, |name| {
        let private =
            [IDEMPOTENCY_FENCE, IDEMPOTENCY_ATTEMPT, IDEMPOTENCY_OUTCOME, IDEMPOTENCY_TAG];
        private.contains(name) || is_alternate_spelling(name, read)
    });
}

/// Whether the trailers of a request are passed on, which only gRPC needs. Some servers append
/// trailers to the headers, so trailers could name another caller than the headers did.
pub(crate) fn passes_trailers(version: Version, headers: &HeaderMap) -> bool {
    is_grpc_request(version, headers)
}

/// Removes from the trailers of a gRPC request what a client may not set. An upstream that merges
/// them into the headers would read them as set by the gateway, or as another credential, or as
/// another value of a header that the route has `read`.
pub(crate) fn strip_trailers(trailers: &mut HeaderMap, read: &[HeaderName]) {
    let credentials = [header::AUTHORIZATION, header::COOKIE, header::PROXY_AUTHORIZATION];
    remove_where(trailers, |name| {
        GATEWAY_HEADERS.contains(name)
            || credentials.contains(name)
            || read.contains(name)
            || is_alternate_spelling(name, read)
            || is_hop_by_hop(name)
            || is_forwarded(name.as_str())
    });
}

/// Whether a name is an alternate spelling of a field that the gateway sets or reads. To a server
/// that turns headers into variables, as CGI and WSGI do, `X_Merchant_Id` and `X-Merchant-Id` are
/// the same.
fn is_alternate_spelling(name: &HeaderName, read: &[HeaderName]) -> bool {
    let text = name.as_str();
    if read.contains(name) {
        return false;
    }
    if read.iter().any(|read| is_same_variable(read.as_str(), text)) {
        return true;
    }
    if text.bytes().all(is_plain_byte) {
        return false;
    }
    let usual: String =
        text.chars().map(|one| if one.is_ascii_alphanumeric() { one } else { '-' }).collect();
    is_forwarded(&usual) || GATEWAY_HEADERS.iter().any(|our| our.as_str() == usual)
}

const fn is_plain_byte(byte: u8) -> bool {
    byte.is_ascii_alphanumeric() || byte == b'-'
}

/// Whether two names in lower case differ in punctuation at most.
fn is_same_variable(one: &str, other: &str) -> bool {
    let is_same = |(one, other): (u8, u8)| {
        one == other || !(one.is_ascii_alphanumeric() || other.is_ascii_alphanumeric())
    };
    one.len() == other.len() && one.bytes().zip(other.bytes()).all(is_same)
}

/// Host and port as a header value.
pub(crate) fn host_value(authority: &Authority) -> Option<HeaderValue> {
    HeaderValue::from_str(authority.as_str()).ok()
}

/// Whether the client accepts trailers. gRPC servers require it.
pub(crate) fn accepts_trailers(headers: &HeaderMap) -> bool {
    headers.get_all(header::TE).iter().any(|line| {
        let mut codings = line.as_bytes().split(|byte| *byte == b',');
        codings.any(|coding| coding.trim_ascii().eq_ignore_ascii_case(b"trailers"))
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_form_of_a_keep_alive_timeout_is_read() {
        for (lines, seconds) in [
            (&["timeout=5"][..], Some(5)),
            (&["max=100, Timeout = \"7\""], Some(7)),
            (&["timeout=9", "timeout=3"], Some(3)),
            (&["max=100"], None),
            (&["timeout=soon"], None),
            (&["timeout"], None),
            (&[], None),
        ] {
            let mut headers = HeaderMap::new();
            for line in lines {
                headers.append(KEEP_ALIVE, HeaderValue::from_static(line));
            }
            assert_eq!(
                keep_alive_timeout(&headers),
                seconds.map(Duration::from_secs),
                "{headers:?}"
            );
        }
    }

    #[test]
    fn only_trailers_of_grpc_over_http_2_are_passed_on() {
        for (content_type, version, passes) in [
            ("application/grpc+proto", Version::HTTP_2, true),
            ("application/grpc", Version::HTTP_11, false),
            ("application/json", Version::HTTP_2, false),
        ] {
            let content_type = HeaderValue::from_static(content_type);
            let headers = HeaderMap::from_iter([(header::CONTENT_TYPE, content_type)]);
            assert_eq!(passes_trailers(version, &headers), passes, "{headers:?} {version:?}");
        }
        let names = [
            "idempotency-key",
            "authorization",
            "cookie",
            "x-forwarded-user",
            "te",
            "x-sum",
            "x-merchant",
            "x_merchant",
        ];
        let fields = names.map(|name| (HeaderName::from_static(name), HeaderValue::from(1)));
        let mut trailers = HeaderMap::from_iter(fields);
        strip_trailers(&mut trailers, &[HeaderName::from_static("x-merchant")]);
        assert_eq!(trailers.keys().collect::<Vec<_>>(), ["x-sum"]);
    }

    #[test]
    fn a_field_of_the_gateway_cannot_be_forged_with_an_underscore() {
        let forged = ["idempotency-fence", "idempotency_fence", "idempotency-attempt"];
        let more = ["idempotency_attempt", "idempotency_key", "x_forwarded-for", "content_length"];
        let checkout = ["x_forwarded_user", "x_real_ip", "x.forwarded.host", "x_original-url"];
        let read = ["x_merchant_id", "x-merchant_id", "x.merchant.id", "sm-user"];
        let others = ["idempotency-key", "idempotency_fences", "x_request_id", "host", "sm_user"];
        let mut headers = HeaderMap::new();
        for name in [&forged[..], &more, &checkout, &read, &others].concat() {
            headers.append(name, HeaderValue::from_static("1"));
        }
        strip_internal(&mut headers, &["x-merchant-id", "sm_user"].map(HeaderName::from_static));
        let left: Vec<_> = headers.keys().map(HeaderName::as_str).collect();
        assert_eq!(left.len(), others.len(), "{left:?}");
        assert!(others.iter().all(|name| headers.contains_key(*name)), "{left:?}");
    }
}
