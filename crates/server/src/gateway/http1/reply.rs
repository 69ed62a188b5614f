//! The head of an answer to a client, and how its body is framed.

use http::{Method, StatusCode, Version, header, response::Parts};
use http_body::SizeHint;
use hyper::ext::ReasonPhrase;

use super::{
    head::{digits, says},
    write::{Framing, announced, write_field, write_number},
};

/// Whom an answer is for.
#[derive(Clone, Debug)]
pub(super) struct Addressee {
    pub(super) method: Method,
    pub(super) version: Version,
    /// Whether the connection can be kept and the client wants that.
    pub(super) keeps: bool,
    /// Whether the client takes trailers.
    pub(super) trailers: bool,
}

/// How an answer goes out.
#[derive(Debug)]
pub(super) struct Manner {
    pub(super) framing: Framing,
    /// Whether the connection is kept afterwards.
    pub(super) keeps: bool,
}

/// Puts the head of an answer where it is written from.
pub(super) fn write_head(
    out: &mut Vec<u8>,
    parts: &Parts,
    size: &SizeHint,
    to: &Addressee,
    date: &[u8],
) -> Manner {
    let said = parts.headers.get(header::CONTENT_LENGTH);
    let length = said.and_then(|said| digits(said.as_bytes())).or(size.exact());
    let is_bare = has_no_body(&to.method, parts.status);
    let framing = match length {
        _ if is_bare => Framing::Length(0),
        Some(length) => Framing::Length(length),
        None if to.version == Version::HTTP_10 => Framing::UntilClose,
        None if to.trailers => Framing::Chunked(Some(announced(&parts.headers))),
        None => Framing::Chunked(Some(Vec::new())),
    };
    let mut lines = parts.headers.get_all(header::CONNECTION).iter();
    let said_close = lines.any(|line| says(line.as_bytes(), b"close"));
    let keeps = to.keeps && !said_close && !matches!(framing, Framing::UntilClose);
    out.reserve(1024);
    write_status(out, parts, to.version);
    for (name, value) in &parts.headers {
        // Said below, or not at all: only to HEAD does an answer say how long another would be.
        if *name != header::CONTENT_LENGTH || (is_bare && may_have_body(parts.status)) {
            write_field(out, name, value);
        }
    }
    match &framing {
        Framing::Length(length) if !is_bare => {
            write_number(out, format_args!("content-length: {length}\r\n"));
        }
        Framing::Chunked(_) => out.extend_from_slice(b"transfer-encoding: chunked\r\n"),
        Framing::Length(_) | Framing::UntilClose => {}
    }
    if !keeps && !parts.headers.contains_key(header::CONNECTION) {
        out.extend_from_slice(b"connection: close\r\n");
    } else if keeps && to.version == Version::HTTP_10 {
        out.extend_from_slice(b"connection: keep-alive\r\n");
    }
    if !parts.headers.contains_key(header::DATE) {
        out.extend_from_slice(b"date: ");
        out.extend_from_slice(date);
        out.extend_from_slice(b"\r\n");
    }
    out.extend_from_slice(b"\r\n");
    Manner { framing, keeps }
}

fn write_status(out: &mut Vec<u8>, parts: &Parts, version: Version) {
    let ours: &[u8] = if version == Version::HTTP_10 { b"HTTP/1.0 " } else { b"HTTP/1.1 " };
    out.extend_from_slice(ours);
    out.extend_from_slice(parts.status.as_str().as_bytes());
    out.push(b' ');
    let reason = parts.extensions.get::<ReasonPhrase>().map(ReasonPhrase::as_bytes);
    let usual = || parts.status.canonical_reason().unwrap_or_default().as_bytes();
    out.extend_from_slice(reason.unwrap_or_else(usual));
    out.extend_from_slice(b"\r\n");
}

/// Whether an answer has no body, whatever it says of one.
fn has_no_body(method: &Method, status: StatusCode) -> bool {
    *method == Method::HEAD || !may_have_body(status)
}

fn may_have_body(status: StatusCode) -> bool {
    let bare = [StatusCode::NO_CONTENT, StatusCode::NOT_MODIFIED];
    !status.is_informational() && !bare.contains(&status)
}
