//! Encodes a response head, and chooses the framing of its body.

use http::{Method, StatusCode, Version, header, response::Parts};
use http_body::SizeHint;
use hyper::ext::ReasonPhrase;

use crate::client::parse::{has_token, parse_digits};
use crate::write::{Framing, announced_trailers, write_field, write_formatted};

/// Properties of the request that determine the response.
#[derive(Clone, Debug)]
pub(crate) struct ResponseParams {
    pub(crate) method: Method,
    pub(crate) version: Version,
    /// Whether the connection can be kept alive and the client wants that.
    pub(crate) keep_alive: bool,
    /// Whether the client accepts trailers.
    pub(crate) trailers: bool,
}

/// How a response is sent.
#[derive(Debug)]
pub(crate) struct ResponseFraming {
    pub(crate) framing: Framing,
    /// Whether the connection is kept alive afterwards.
    pub(crate) keep_alive: bool,
}

/// Writes a response head to the buffer.
pub(crate) fn write_head(
    out: &mut Vec<u8>,
    parts: &Parts,
    size: &SizeHint,
    params: &ResponseParams,
    date: &[u8],
) -> ResponseFraming {
    let announced = parts.headers.get(header::CONTENT_LENGTH);
    let length = announced.and_then(|value| parse_digits(value.as_bytes())).or(size.exact());
    let is_bare = has_no_body(&params.method, parts.status);
    let framing = match length {
        _ if is_bare => Framing::Length(0),
        Some(length) => Framing::Length(length),
        None if params.version == Version::HTTP_10 => Framing::UntilClose,
        None if params.trailers => Framing::Chunked(announced_trailers(&parts.headers)),
        None => Framing::Chunked(Vec::new()),
    };
    let mut lines = parts.headers.get_all(header::CONNECTION).iter();
    let has_close = lines.any(|line| has_token(line.as_bytes(), b"close"));
    let keep_alive = params.keep_alive && !has_close && !matches!(framing, Framing::UntilClose);
    out.reserve(1024);
    write_status(out, parts, params.version);
    for (name, value) in &parts.headers {
        // Content-Length is written below. Only a response to HEAD passes on the header itself.
        if *name != header::CONTENT_LENGTH || (is_bare && may_have_body(parts.status)) {
            write_field(out, name, value);
        }
    }
    match &framing {
        Framing::Length(length) if !is_bare => {
            write_formatted(out, format_args!("content-length: {length}\r\n"));
        }
        Framing::Chunked(_) => out.extend_from_slice(b"transfer-encoding: chunked\r\n"),
        Framing::Length(_) | Framing::UntilClose => {}
    }
    if !keep_alive && !parts.headers.contains_key(header::CONNECTION) {
        out.extend_from_slice(b"connection: close\r\n");
    } else if keep_alive && params.version == Version::HTTP_10 {
        out.extend_from_slice(b"connection: keep-alive\r\n");
    }
    if !parts.headers.contains_key(header::DATE) {
        out.extend_from_slice(b"date: ");
        out.extend_from_slice(date);
        out.extend_from_slice(b"\r\n");
    }
    out.extend_from_slice(b"\r\n");
    ResponseFraming { framing, keep_alive }
}

fn write_status(out: &mut Vec<u8>, parts: &Parts, version: Version) {
    let protocol: &[u8] = if version == Version::HTTP_10 { b"HTTP/1.0 " } else { b"HTTP/1.1 " };
    out.extend_from_slice(protocol);
    out.extend_from_slice(parts.status.as_str().as_bytes());
    out.push(b' ');
    let reason = parts.extensions.get::<ReasonPhrase>().map(ReasonPhrase::as_bytes);
    let usual = || parts.status.canonical_reason().unwrap_or_default().as_bytes();
    out.extend_from_slice(reason.unwrap_or_else(usual));
    out.extend_from_slice(b"\r\n");
}

/// Whether a response has no body, despite its headers.
fn has_no_body(method: &Method, status: StatusCode) -> bool {
    *method == Method::HEAD || !may_have_body(status)
}

fn may_have_body(status: StatusCode) -> bool {
    let bare = [StatusCode::NO_CONTENT, StatusCode::NOT_MODIFIED];
    !status.is_informational() && !bare.contains(&status)
}
