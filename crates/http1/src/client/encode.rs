//! Encodes a request to an upstream: its head and the framing of its body.

use http::{HeaderValue, header, request::Parts, uri::PathAndQuery};
use http_body::Body as _;
use semel_tower::Body;

use crate::forward::body::RequestBody;
use crate::forward::headers;
use crate::http1::write::{Framing, MessageWriter, write_field, write_formatted};

/// Target and connection options of a request.
pub(crate) struct RequestTarget<'a> {
    pub path: &'a PathAndQuery,
    pub host: Option<&'a HeaderValue>,
    /// Whether the client accepts trailers.
    pub trailers: bool,
    /// Whether the request asks for an upgrade.
    pub upgrade: bool,
}

/// A request that is being written.
pub(crate) type RequestWriter = MessageWriter<Body<RequestBody>>;

/// Writes the head to the buffer, and returns the writer of the request.
pub(crate) fn encode_request(
    out: &mut Vec<u8>,
    parts: &mut Parts,
    body: Body<RequestBody>,
    target: &RequestTarget<'_>,
) -> RequestWriter {
    headers::join_cookies(&mut parts.headers);
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
