//! Writes a request: its head at once, its body as it comes.

use std::{
    fmt,
    io::{ErrorKind, IoSlice, Write as _},
    pin::Pin,
    task::{Context, Poll, ready},
};

use bytes::{Buf as _, Bytes};
use http::{HeaderMap, HeaderName, HeaderValue, header, request::Parts, uri::PathAndQuery};
use http_body::{Body as _, Frame};
use semel_tower::Body;
use tokio::io::AsyncWrite as _;

use super::{Connection, Fault};
use crate::gateway::{body::Inbound, headers};

/// Up to here a piece of a body is copied behind the head, so that both go out at once.
const COPIED: usize = 8 * 1024;

/// Where a request goes, beside what it says itself.
pub(crate) struct Ask<'a> {
    pub(crate) path: &'a PathAndQuery,
    pub(crate) host: Option<&'a HeaderValue>,
    /// Whether the client takes trailers.
    pub(crate) trailers: bool,
    /// Whether it wants to go on in another protocol.
    pub(crate) upgrade: bool,
}

/// What of a request is still to be written.
#[derive(Debug)]
pub(crate) struct Upload {
    /// How much of what the connection has to write is written.
    written: usize,
    /// What goes out after that.
    piece: Bytes,
    /// `None` once all of it is in the two.
    body: Option<Body<Inbound>>,
    framing: Framing,
    /// Whether a body that was not there at once has been given the time to come.
    waited: bool,
    /// Whether the connection has taken something of it.
    begun: bool,
    done: bool,
}

/// How a body says where it ends.
#[derive(Debug)]
enum Framing {
    /// By so many bytes to come.
    Length(u64),
    /// By its last chunk, after which these fields may follow.
    Chunked(Vec<HeaderName>),
}

impl Upload {
    /// Puts the head where it is written from.
    pub(crate) fn new(
        out: &mut Vec<u8>,
        parts: &mut Parts,
        body: Body<Inbound>,
        ask: &Ask<'_>,
    ) -> Self {
        headers::join_cookies(&mut parts.headers);
        let length = if body.is_end_stream() { Some(0) } else { body.size_hint().exact() };
        write_head(out, parts, ask, length);
        let framing = match length {
            Some(length) => Framing::Length(length),
            None => Framing::Chunked(announced(&parts.headers)),
        };
        let body = (length != Some(0)).then_some(body);
        let (piece, waited, begun, done) = (Bytes::new(), false, false, false);
        Self { written: 0, piece, body, framing, waited, begun, done }
    }

    /// Whether the connection has taken something of it.
    pub(crate) const fn has_begun(&self) -> bool {
        self.begun
    }

    /// Whether all of it is written.
    pub(crate) const fn is_done(&self) -> bool {
        self.done
    }

    /// Writes what there is. Ready when all of it is written.
    pub(crate) fn poll(
        &mut self,
        connection: &mut Connection,
        context: &mut Context<'_>,
    ) -> Poll<Result<(), Fault>> {
        loop {
            let waits = self.fill(&mut connection.out, context)?;
            if waits && !self.waited {
                // Often it is there in a moment, and then it goes out with the head.
                self.waited = true;
                context.waker().wake_by_ref();
                return Poll::Pending;
            }
            let out = connection.out.get(self.written..).unwrap_or_default();
            if out.is_empty() && self.piece.is_empty() {
                ready!(connection.poll_flush(context)).map_err(Fault::Wire)?;
                if waits {
                    return Poll::Pending;
                }
                self.done = true;
                return Poll::Ready(Ok(()));
            }
            let stream = Pin::new(&mut connection.stream);
            let wrote = if self.piece.is_empty() {
                stream.poll_write(context, out)
            } else {
                stream.poll_write_vectored(context, &[IoSlice::new(out), IoSlice::new(&self.piece)])
            };
            let wrote = ready!(wrote).map_err(Fault::Wire)?;
            if wrote == 0 {
                return Poll::Ready(Err(Fault::Wire(ErrorKind::WriteZero.into())));
            }
            let of_out = wrote.min(out.len());
            self.written += of_out;
            (self.waited, self.begun) = (true, true);
            self.piece.advance(wrote - of_out);
        }
    }

    /// Takes what has come of the body, until there is enough to write. Says whether more of it is
    /// waited for.
    fn fill(&mut self, out: &mut Vec<u8>, context: &mut Context<'_>) -> Result<bool, Fault> {
        while let Some(body) = &mut self.body {
            if self.written == out.len() {
                out.clear();
                self.written = 0;
            }
            if !self.piece.is_empty() || out.len() > COPIED {
                return Ok(false);
            }
            let Poll::Ready(frame) = Pin::new(&mut *body).poll_frame(context) else {
                return Ok(true);
            };
            let is_last = frame.is_none() || body.is_end_stream();
            let mut trailers = None;
            match frame.transpose().map_err(Fault::Request)?.map(Frame::into_data) {
                Some(Ok(data)) => self.put(out, data)?,
                Some(Err(frame)) => trailers = frame.into_trailers().ok(),
                None => {}
            }
            if is_last || trailers.is_some() || matches!(self.framing, Framing::Length(0)) {
                self.body = None;
                self.end(out, trailers.as_ref())?;
            }
        }
        Ok(false)
    }

    fn put(&mut self, out: &mut Vec<u8>, data: Bytes) -> Result<(), Fault> {
        match &mut self.framing {
            Framing::Length(left) => {
                let length = u64::try_from(data.len()).unwrap_or(u64::MAX);
                let longer = || Fault::Request("it is longer than it said".into());
                *left = left.checked_sub(length).ok_or_else(longer)?;
                if data.len() <= COPIED {
                    out.extend_from_slice(&data);
                } else {
                    self.piece = data;
                }
            }
            // A chunk of no length would be the last.
            Framing::Chunked(_) if data.is_empty() => {}
            Framing::Chunked(_) => {
                write_number(out, format_args!("{:x}\r\n", data.len()));
                out.extend_from_slice(&data);
                out.extend_from_slice(b"\r\n");
            }
        }
        Ok(())
    }

    fn end(&self, out: &mut Vec<u8>, trailers: Option<&HeaderMap>) -> Result<(), Fault> {
        match &self.framing {
            Framing::Length(0) => Ok(()),
            Framing::Length(_) => Err(Fault::Request("it is shorter than it said".into())),
            Framing::Chunked(announced) => {
                out.extend_from_slice(b"0\r\n");
                for (name, value) in trailers.into_iter().flatten() {
                    if announced.contains(name) && may_trail(name) {
                        write_field(out, name, value);
                    }
                }
                out.extend_from_slice(b"\r\n");
                Ok(())
            }
        }
    }
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

fn write_field(out: &mut Vec<u8>, name: &HeaderName, value: &HeaderValue) {
    out.extend_from_slice(name.as_str().as_bytes());
    out.extend_from_slice(b": ");
    out.extend_from_slice(value.as_bytes());
    out.extend_from_slice(b"\r\n");
}

fn write_number(out: &mut Vec<u8>, text: fmt::Arguments<'_>) {
    // To memory it cannot fail.
    let _ = out.write_fmt(text);
}

/// The trailers that a request announces.
fn announced(headers: &HeaderMap) -> Vec<HeaderName> {
    let lines = headers.get_all(header::TRAILER).iter();
    let names = lines.flat_map(|line| line.as_bytes().split(|byte| *byte == b','));
    names.filter_map(|name| HeaderName::from_bytes(name.trim_ascii()).ok()).collect()
}

/// Whether a field may come after the body that it is about (RFC 9110, section 6.5.1).
fn may_trail(name: &HeaderName) -> bool {
    ![
        header::AUTHORIZATION,
        header::CACHE_CONTROL,
        header::CONTENT_ENCODING,
        header::CONTENT_LENGTH,
        header::CONTENT_RANGE,
        header::CONTENT_TYPE,
        header::HOST,
        header::MAX_FORWARDS,
        header::SET_COOKIE,
        header::TE,
        header::TRAILER,
        header::TRANSFER_ENCODING,
    ]
    .contains(name)
}
