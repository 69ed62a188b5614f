//! Encodes a request to an upstream: its head and the framing of its body.

use bytes::Bytes;
use http::{HeaderMap, HeaderValue, header, request::Parts, uri::PathAndQuery};
use http_body::Body;

use crate::write::{Framing, MessageWriter, write_field, write_formatted};

/// Target and connection options of a request.
#[derive(Debug)]
pub struct RequestTarget<'a> {
    /// Path and query.
    pub path: &'a PathAndQuery,
    /// The `Host` field.
    pub host: Option<&'a HeaderValue>,
    /// Whether the client accepts trailers.
    pub trailers: bool,
    /// Whether the request asks for an upgrade.
    pub upgrade: bool,
}

/// Writes the head to the buffer, and returns the writer of the request.
pub(crate) fn encode_request<B: Body<Data = Bytes>>(
    out: &mut Vec<u8>,
    parts: &mut Parts,
    body: B,
    target: &RequestTarget<'_>,
) -> MessageWriter<B> {
    join_cookies(&mut parts.headers);
    let length = if body.is_end_stream() { Some(0) } else { body.size_hint().exact() };
    write_head(out, parts, target, length);
    let framing = match length {
        Some(length) => Framing::Length(length),
        // Only gRPC has request trailers, and it needs HTTP/2.
        None => Framing::Chunked(Vec::new()),
    };
    MessageWriter::new(body, framing)
}

fn write_head(out: &mut Vec<u8>, parts: &Parts, target: &RequestTarget<'_>, length: Option<u64>) {
    out.reserve(1024);
    out.extend_from_slice(parts.method.as_str().as_bytes());
    out.push(b' ');
    out.extend_from_slice(target.path.as_str().as_bytes());
    out.extend_from_slice(b" HTTP/1.1\r\n");
    if let Some(host) = target.host {
        write_field(out, &header::HOST, host);
    }
    for (name, value) in &parts.headers {
        // Written above and below.
        if *name != header::HOST && *name != header::CONTENT_LENGTH {
            write_field(out, name, value);
        }
    }
    if target.trailers {
        out.extend_from_slice(b"te: trailers\r\n");
        if !target.upgrade {
            out.extend_from_slice(b"connection: te\r\n");
        }
    }
    match length {
        // The client announced no body.
        Some(0) if !parts.headers.contains_key(header::CONTENT_LENGTH) => {}
        Some(length) => write_formatted(out, format_args!("content-length: {length}\r\n")),
        None => out.extend_from_slice(b"transfer-encoding: chunked\r\n"),
    }
    out.extend_from_slice(b"\r\n");
}

/// Joins cookie fields into one. A client may split them over HTTP/2, and only there.
fn join_cookies(headers: &mut HeaderMap) {
    if headers.get_all(header::COOKIE).iter().nth(1).is_none() {
        return;
    }
    let lines = headers.get_all(header::COOKIE).iter().map(HeaderValue::as_bytes);
    let joined = lines.collect::<Vec<_>>().join(&b"; "[..]);
    if let Ok(value) = HeaderValue::from_maybe_shared(Bytes::from(joined)) {
        headers.insert(header::COOKIE, value);
    }
}
