//! What a proxy does to headers: those of one connection end here, those about the way are added.

use std::time::Duration;

use http::{
    HeaderMap, HeaderName, HeaderValue, Version,
    header::{self, Entry},
    uri::Authority,
};
use semel::Lease;
use semel_tower::header::{
    IDEMPOTENCY_ATTEMPT, IDEMPOTENCY_FENCE, IDEMPOTENCY_KEY, IDEMPOTENCY_OUTCOME,
};

use super::peer::Peer;

const FORWARDED: HeaderName = header::FORWARDED;
const X_FORWARDED_FOR: HeaderName = HeaderName::from_static("x-forwarded-for");
const X_FORWARDED_HOST: HeaderName = HeaderName::from_static("x-forwarded-host");
const X_FORWARDED_PROTO: HeaderName = HeaderName::from_static("x-forwarded-proto");
const KEEP_ALIVE: HeaderName = HeaderName::from_static("keep-alive");

/// Fields that say to an upstream what the gateway vouches for.
const OURS: [HeaderName; 9] = [
    IDEMPOTENCY_KEY,
    IDEMPOTENCY_FENCE,
    IDEMPOTENCY_ATTEMPT,
    IDEMPOTENCY_OUTCOME,
    X_FORWARDED_FOR,
    X_FORWARDED_HOST,
    X_FORWARDED_PROTO,
    header::CONTENT_LENGTH,
    header::TRANSFER_ENCODING,
];

/// Removes what belongs to the connection that a message came on, but for the fields that are
/// `kept` though `Connection` names them.
pub(crate) fn end_hop(headers: &mut HeaderMap, kept: &[HeaderName]) {
    if let Some(line) = headers.get(header::CONNECTION) {
        // Almost always it names nothing but itself.
        let alone = matches!(line.as_bytes(), b"keep-alive" | b"close" | b"Keep-Alive");
        if !alone || headers.get_all(header::CONNECTION).iter().nth(1).is_some() {
            for name in named(headers).into_iter().filter(|name| !kept.contains(name)) {
                headers.remove(name);
            }
        }
    }
    remove_where(headers, is_of_hop);
}

/// Removes the fields of these names. Hardly a message has any, so one look at each name is cheaper
/// than a search for each that must not be there.
fn remove_where(headers: &mut HeaderMap, is_doomed: impl Fn(&HeaderName) -> bool) {
    let doomed: Vec<_> = headers.keys().filter(|name| is_doomed(name)).cloned().collect();
    for name in doomed {
        headers.remove(name);
    }
}

/// Whether a field belongs to one connection, besides those that `Connection` names.
fn is_of_hop(name: &HeaderName) -> bool {
    matches!(
        name.as_str(),
        "connection" | "keep-alive" | "proxy-connection" | "te" | "transfer-encoding" | "upgrade"
    )
}

/// Whether a field says something about the way of a request. From a client it is a mere claim.
fn is_about_way(name: &HeaderName) -> bool {
    matches!(
        name.as_str(),
        "forwarded"
            | "x-forwarded-for"
            | "x-forwarded-host"
            | "x-forwarded-port"
            | "x-forwarded-proto"
            | "x-real-ip"
    )
}

/// How long the sender of a message keeps its connection when that is idle, where it says so:
/// `Keep-Alive: timeout=5`. It belongs to the connection, so it is gone after [`end_hop`].
pub(crate) fn keep_alive(headers: &HeaderMap) -> Option<Duration> {
    let lines = headers.get_all(KEEP_ALIVE).iter().filter_map(|line| line.to_str().ok());
    let seconds = lines.flat_map(|line| line.split(',')).filter_map(|parameter| {
        let (name, value) = parameter.split_once('=')?;
        let is_timeout = name.trim().eq_ignore_ascii_case("timeout");
        is_timeout.then(|| value.trim().trim_matches('"').parse().ok()).flatten()
    });
    seconds.min().map(Duration::from_secs)
}

/// The fields that `Connection` names.
fn named(headers: &HeaderMap) -> Vec<HeaderName> {
    headers
        .get_all(header::CONNECTION)
        .iter()
        .flat_map(|line| line.as_bytes().split(|byte| *byte == b','))
        .filter_map(|name| HeaderName::from_bytes(name.trim_ascii()).ok())
        .collect()
}

/// Whether `Connection` names this field.
pub(crate) fn is_named(headers: &HeaderMap, name: &HeaderName) -> bool {
    named(headers).contains(name)
}

/// What is told to the upstream about the way that a request has come.
pub(crate) fn tell_way(
    headers: &mut HeaderMap,
    peer: &Peer,
    host: Option<&HeaderValue>,
    version: Version,
    trust: bool,
) {
    if !trust {
        remove_where(headers, is_about_way);
    }
    // At once, and not one by one, as there are a few to come.
    headers.reserve(8);
    add(headers, X_FORWARDED_FOR, peer.ip().clone());
    headers.entry(X_FORWARDED_PROTO).or_insert(HeaderValue::from_static(peer.scheme()));
    if let Some(host) = host {
        headers.entry(X_FORWARDED_HOST).or_insert_with(|| host.clone());
    }
    if let Some(element) = peer.forwarded(host) {
        add(headers, FORWARDED, element);
    }
    add_via(headers, version);
}

/// Says on a message that it has come through here.
pub(crate) fn add_via(headers: &mut HeaderMap, version: Version) {
    let via = match version {
        Version::HTTP_2 => "2 semel",
        Version::HTTP_10 => "1.0 semel",
        _ => "1.1 semel",
    };
    add(headers, header::VIA, HeaderValue::from_static(via));
}

/// Adds an element to a field that is a list.
fn add(headers: &mut HeaderMap, name: HeaderName, element: HeaderValue) {
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

/// What a guarded request says to the upstream besides its key, which goes on as the client sent
/// it: its fence and its attempt.
pub(crate) fn tell_lease(headers: &mut HeaderMap, lease: &Lease) {
    if let Some(fence) = lease.fence() {
        headers.insert(IDEMPOTENCY_FENCE, HeaderValue::from(fence.get()));
    }
    headers.insert(IDEMPOTENCY_ATTEMPT, HeaderValue::from(lease.attempt()));
}

/// Removes what only a layer around the upstream may read, or only a gateway may say. To a server
/// that hands headers on as variables, as CGI and WSGI do, an underscore in a name is a dash: there
/// a name with underscores would forge ours.
pub(crate) fn strip_private(headers: &mut HeaderMap) {
    remove_where(headers, |name| {
        let private = [IDEMPOTENCY_FENCE, IDEMPOTENCY_ATTEMPT, IDEMPOTENCY_OUTCOME];
        private.contains(name) || is_ours_but(name)
    });
}

/// Removes from a request's trailers what a client may not say: to an upstream that makes fields of
/// them it would be the gateway's word, or another opinion of where the request ends.
pub(crate) fn strip_trailers(trailers: &mut HeaderMap) {
    remove_where(trailers, |name| {
        OURS.contains(name) || is_ours_but(name) || is_of_hop(name) || is_about_way(name)
    });
}

/// Whether underscores are all that tells a name from one that is said here.
fn is_ours_but(name: &HeaderName) -> bool {
    let name = name.as_str();
    let ours = |our: &HeaderName| {
        let dashed = name.bytes().map(|byte| if byte == b'_' { b'-' } else { byte });
        our.as_str().len() == name.len() && our.as_str().bytes().eq(dashed)
    };
    name.contains('_') && OURS.iter().any(ours)
}

/// Host and port as a header says them.
pub(crate) fn host_value(authority: &Authority) -> Option<HeaderValue> {
    HeaderValue::from_str(authority.as_str()).ok()
}

/// Puts cookies on one line. A client may send them in pieces by HTTP/2, and only there.
pub(crate) fn join_cookies(headers: &mut HeaderMap) {
    if headers.get_all(header::COOKIE).iter().nth(1).is_none() {
        return;
    }
    let lines = headers.get_all(header::COOKIE).iter().map(HeaderValue::as_bytes);
    let joined = lines.collect::<Vec<_>>().join(&b"; "[..]);
    if let Ok(value) = HeaderValue::from_maybe_shared(bytes::Bytes::from(joined)) {
        headers.insert(header::COOKIE, value);
    }
}

/// Whether the client takes trailers: gRPC servers insist on hearing it.
pub(crate) fn takes_trailers(headers: &HeaderMap) -> bool {
    headers.get_all(header::TE).iter().any(|line| {
        let mut codings = line.as_bytes().split(|byte| *byte == b',');
        codings.any(|coding| coding.trim_ascii().eq_ignore_ascii_case(b"trailers"))
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_keep_alive_is_read_however_it_is_written() {
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
            assert_eq!(keep_alive(&headers), seconds.map(Duration::from_secs), "{headers:?}");
        }
    }

    #[test]
    fn what_the_gateway_says_cannot_be_forged_with_an_underscore() {
        let forged = ["idempotency-fence", "idempotency_fence", "idempotency-attempt"];
        let more = ["idempotency_attempt", "idempotency_key", "x_forwarded-for", "content_length"];
        let others = ["idempotency-key", "idempotency_fences", "x_request_id", "host"];
        let mut headers = HeaderMap::new();
        for name in [&forged[..], &more, &others].concat() {
            headers.append(name, HeaderValue::from_static("1"));
        }
        strip_private(&mut headers);
        let left: Vec<_> = headers.keys().map(HeaderName::as_str).collect();
        assert_eq!(left.len(), others.len(), "{left:?}");
        assert!(others.iter().all(|name| headers.contains_key(*name)), "{left:?}");
    }
}
