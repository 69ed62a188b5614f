//! Writes a request or a response: its head at once, its body as it arrives.

use std::{
    fmt,
    io::{ErrorKind, IoSlice, Write as _},
    pin::Pin,
    task::{Context, Poll, ready},
};

use bytes::{Buf as _, Bytes};
use http::{HeaderMap, HeaderName, HeaderValue, header};
use http_body::{Body, Frame};
use tokio::io::AsyncWrite;

use crate::{BoxError, Http1Error};

/// Maximum size of a body chunk that is copied into the write buffer after the head, so that one
/// system call writes both.
const COPY_MAX: usize = 8 * 1024;

/// The unwritten part of a message.
#[derive(Debug)]
pub(crate) struct MessageWriter<B> {
    /// Number of bytes of the write buffer that are written.
    written: usize,
    /// Data to write after the buffer.
    tail: Bytes,
    /// `None` after its end was read.
    body: Option<B>,
    framing: Framing,
    /// Whether a pending body already had its second poll.
    has_waited: bool,
    /// Whether the connection accepted a byte of it.
    has_begun: bool,
    is_done: bool,
}

/// Framing of a body: what marks its end.
#[derive(Debug)]
pub(crate) enum Framing {
    /// A length; the number of remaining bytes.
    Length(u64),
    /// The last chunk; these trailers may follow it.
    Chunked(Vec<HeaderName>),
    /// The end of the connection.
    UntilClose,
}

impl<B> MessageWriter<B> {
    /// A message whose head is already in the write buffer.
    pub(crate) fn new(body: B, framing: Framing) -> Self {
        let body = (!matches!(framing, Framing::Length(0))).then_some(body);
        let tail = Bytes::new();
        Self {
            written: 0,
            tail,
            body,
            framing,
            has_waited: false,
            has_begun: false,
            is_done: false,
        }
    }

    /// Whether the connection accepted a byte of it.
    pub(crate) const fn has_begun(&self) -> bool {
        self.has_begun
    }

    /// The unwritten data of a message whose body failed.
    pub(crate) fn unwritten<'a>(&'a self, out: &'a [u8]) -> [&'a [u8]; 2] {
        [out.get(self.written..).unwrap_or_default(), &self.tail]
    }

    /// Whether the whole message is written.
    pub(crate) const fn is_done(&self) -> bool {
        self.is_done
    }
}

impl<B> MessageWriter<B>
where
    B: Body<Data = Bytes> + Unpin,
    B::Error: Into<BoxError>,
{
    /// Writes what is available. Ready when the whole message is written.
    pub(crate) fn poll<W>(
        &mut self,
        out: &mut Vec<u8>,
        to: &mut W,
        context: &mut Context<'_>,
    ) -> Poll<Result<(), Http1Error>>
    where
        W: AsyncWrite + Unpin,
    {
        loop {
            let is_pending = self.fill(out, context)?;
            if is_pending && !self.has_waited {
                // Often the body is ready at the next poll, and is then written with the head.
                self.has_waited = true;
                context.waker().wake_by_ref();
                return Poll::Pending;
            }
            let rest = out.get(self.written..).unwrap_or_default();
            if rest.is_empty() && self.tail.is_empty() {
                ready!(Pin::new(&mut *to).poll_flush(context)).map_err(Http1Error::Io)?;
                if is_pending {
                    return Poll::Pending;
                }
                self.is_done = true;
                return Poll::Ready(Ok(()));
            }
            let stream = Pin::new(&mut *to);
            let wrote = if self.tail.is_empty() {
                stream.poll_write(context, rest)
            } else {
                let slices = [IoSlice::new(rest), IoSlice::new(&self.tail)];
                stream.poll_write_vectored(context, &slices)
            };
            let wrote = ready!(wrote).map_err(Http1Error::Io)?;
            if wrote == 0 {
                return Poll::Ready(Err(Http1Error::Io(ErrorKind::WriteZero.into())));
            }
            let of_rest = wrote.min(rest.len());
            self.written += of_rest;
            (self.has_waited, self.has_begun) = (true, true);
            self.tail.advance(wrote - of_rest);
        }
    }

    /// Reads the body until there is enough to write. Returns whether the body is pending.
    fn fill(&mut self, out: &mut Vec<u8>, context: &mut Context<'_>) -> Result<bool, Http1Error> {
        while let Some(body) = &mut self.body {
            if self.written == out.len() {
                out.clear();
                self.written = 0;
            }
            if !self.tail.is_empty() || out.len() > COPY_MAX {
                return Ok(false);
            }
            let Poll::Ready(frame) = Pin::new(&mut *body).poll_frame(context) else {
                return Ok(true);
            };
            let is_last = frame.is_none() || body.is_end_stream();
            let mut trailers = None;
            let frame = frame.transpose().map_err(|error| Http1Error::Body(error.into()))?;
            match frame.map(Frame::into_data) {
                Some(Ok(data)) => self.push_data(out, data)?,
                Some(Err(frame)) => trailers = frame.into_trailers().ok(),
                None => {}
            }
            if is_last || trailers.is_some() || matches!(self.framing, Framing::Length(0)) {
                self.body = None;
                self.finish(out, trailers.as_ref())?;
            }
        }
        Ok(false)
    }

    fn push_data(&mut self, out: &mut Vec<u8>, data: Bytes) -> Result<(), Http1Error> {
        match &mut self.framing {
            // An empty chunk would mark the end.
            Framing::Chunked(_) if data.is_empty() => return Ok(()),
            Framing::Chunked(_) => {
                write_formatted(out, format_args!("{:x}\r\n", data.len()));
                out.extend_from_slice(&data);
                out.extend_from_slice(b"\r\n");
                return Ok(());
            }
            Framing::Length(remaining) => {
                let length = u64::try_from(data.len()).unwrap_or(u64::MAX);
                let longer =
                    || Http1Error::Body("the body is longer than its Content-Length".into());
                *remaining = remaining.checked_sub(length).ok_or_else(longer)?;
            }
            Framing::UntilClose => {}
        }
        if data.len() <= COPY_MAX {
            out.extend_from_slice(&data);
        } else {
            self.tail = data;
        }
        Ok(())
    }

    fn finish(&self, out: &mut Vec<u8>, trailers: Option<&HeaderMap>) -> Result<(), Http1Error> {
        match &self.framing {
            Framing::Length(0) | Framing::UntilClose => Ok(()),
            Framing::Length(_) => {
                Err(Http1Error::Body("the body is shorter than its Content-Length".into()))
            }
            Framing::Chunked(announced_trailers) => {
                out.extend_from_slice(b"0\r\n");
                for (name, value) in trailers.into_iter().flatten() {
                    if announced_trailers.contains(name) && is_allowed_trailer(name) {
                        write_field(out, name, value);
                    }
                }
                out.extend_from_slice(b"\r\n");
                Ok(())
            }
        }
    }
}

pub(crate) fn write_field(out: &mut Vec<u8>, name: &HeaderName, value: &HeaderValue) {
    out.extend_from_slice(name.as_str().as_bytes());
    out.extend_from_slice(b": ");
    out.extend_from_slice(value.as_bytes());
    out.extend_from_slice(b"\r\n");
}

pub(crate) fn write_formatted(out: &mut Vec<u8>, text: fmt::Arguments<'_>) {
    // Writing to memory cannot fail.
    let _ = out.write_fmt(text);
}

/// The names in the `Trailer` field.
pub(crate) fn announced_trailers(headers: &HeaderMap) -> Vec<HeaderName> {
    let lines = headers.get_all(header::TRAILER).iter();
    let names = lines.flat_map(|line| line.as_bytes().split(|byte| *byte == b','));
    names.filter_map(|name| HeaderName::from_bytes(name.trim_ascii()).ok()).collect()
}

/// Whether a field is allowed as a trailer (RFC 9110, section 6.5.1).
fn is_allowed_trailer(name: &HeaderName) -> bool {
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
