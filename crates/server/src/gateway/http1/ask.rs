//! A request on its way to an upstream: its head, and how its body is framed.

use http::{HeaderValue, header, request::Parts, uri::PathAndQuery};
use http_body::Body as _;
use semel_tower::Body;

use super::write::{Framing, Writing, write_field, write_number};
use crate::gateway::{body::Inbound, headers};

/// Where a request goes, beside what it says itself.
pub(crate) struct Ask<'a> {
    pub(crate) path: &'a PathAndQuery,
    pub(crate) host: Option<&'a HeaderValue>,
    /// Whether the client takes trailers.
    pub(crate) trailers: bool,
    /// Whether it wants to go on in another protocol.
    pub(crate) upgrade: bool,
}

/// A request that is being written.
pub(super) type Upload = Writing<Body<Inbound>>;

/// Puts the head where it is written from.
pub(super) fn upload(
    out: &mut Vec<u8>,
    parts: &mut Parts,
    body: Body<Inbound>,
    ask: &Ask<'_>,
) -> Upload {
    headers::join_cookies(&mut parts.headers);
    let length = if body.is_end_stream() { Some(0) } else { body.size_hint().exact() };
    write_head(out, parts, ask, length);
    let framing = match length {
        Some(length) => Framing::Length(length),
        None => Framing::Chunked(None),
    };
    Writing::new(body, framing)
}

fn write_head(out: &mut Vec<u8>, parts: &Parts, ask: &Ask<'_>, length: Option<u64>) {
    out.reserve(1024);
    out.extend_from_slice(parts.method.as_str().as_bytes());
    out.push(b' ');
    out.extend_from_slice(ask.path.as_str().as_bytes());
    out.extend_from_slice(b" HTTP/1.1\r\n");
    if let Some(host) = ask.host {
        write_field(out, &header::HOST, host);
    }
    for (name, value) in &parts.headers {
        // Said above and below.
        if *name != header::HOST && *name != header::CONTENT_LENGTH {
            write_field(out, name, value);
        }
    }
    if ask.trailers {
        out.extend_from_slice(b"te: trailers\r\n");
        if !ask.upgrade {
            out.extend_from_slice(b"connection: te\r\n");
        }
    }
    match length {
        // Nothing is said of a body that nobody has spoken of.
        Some(0) if !parts.headers.contains_key(header::CONTENT_LENGTH) => {}
        Some(length) => write_number(out, format_args!("content-length: {length}\r\n")),
        None => out.extend_from_slice(b"transfer-encoding: chunked\r\n"),
    }
    out.extend_from_slice(b"\r\n");
}
