//! Writes a message: its head at once, its body as it comes. The same for a request and for an
//! answer.

use std::{
    fmt,
    io::{ErrorKind, IoSlice, Write as _},
    pin::Pin,
    task::{Context, Poll, ready},
};

use bytes::{Buf as _, Bytes};
use http::{HeaderMap, HeaderName, HeaderValue, header};
use http_body::{Body, Frame};
use semel_tower::BoxError;
use tokio::io::AsyncWrite;

use super::Fault;

/// Up to here a piece of a body is copied behind the head, so that both go out at once.
const COPIED: usize = 8 * 1024;

/// What of a message is still to be written.
#[derive(Debug)]
pub(super) struct Writing<B> {
    /// How much of what stands in the space for it is written.
    written: usize,
    /// What goes out after that.
    piece: Bytes,
    /// `None` once all of it is in the two.
    body: Option<B>,
    framing: Framing,
    /// Whether a body that was not there at once has been given the time to come.
    waited: bool,
    /// Whether the connection has taken something of it.
    begun: bool,
    done: bool,
}

/// How a body says where it ends.
#[derive(Debug)]
pub(super) enum Framing {
    /// By so many bytes to come.
    Length(u64),
    /// By its last chunk, after which these fields may follow; or any that can.
    Chunked(Option<Vec<HeaderName>>),
    /// By the end of the connection.
    UntilClose,
}

impl<B> Writing<B> {
    /// A message whose head stands in the space that it is written from.
    pub(super) fn new(body: B, framing: Framing) -> Self {
        let body = (!matches!(framing, Framing::Length(0))).then_some(body);
        let piece = Bytes::new();
        Self { written: 0, piece, body, framing, waited: false, begun: false, done: false }
    }

    /// Whether the connection has taken something of it.
    pub(super) const fn has_begun(&self) -> bool {
        self.begun
    }

    /// What came of it before its body broke off, and is not yet written.
    pub(super) fn rest<'a>(&'a self, out: &'a [u8]) -> [&'a [u8]; 2] {
        [out.get(self.written..).unwrap_or_default(), &self.piece]
    }

    /// Whether all of it is written.
    pub(super) const fn is_done(&self) -> bool {
        self.done
    }
}

impl<B> Writing<B>
where
    B: Body<Data = Bytes> + Unpin,
    B::Error: Into<BoxError>,
{
    /// Writes what there is. Ready when all of it is written.
    pub(super) fn poll<W>(
        &mut self,
        out: &mut Vec<u8>,
        to: &mut W,
        context: &mut Context<'_>,
    ) -> Poll<Result<(), Fault>>
    where
        W: AsyncWrite + Unpin,
    {
        loop {
            let waits = self.fill(out, context)?;
            if waits && !self.waited {
                // Often it is there in a moment, and then it goes out with the head.
                self.waited = true;
                context.waker().wake_by_ref();
                return Poll::Pending;
            }
            let rest = out.get(self.written..).unwrap_or_default();
            if rest.is_empty() && self.piece.is_empty() {
                ready!(Pin::new(&mut *to).poll_flush(context)).map_err(Fault::Wire)?;
                if waits {
                    return Poll::Pending;
                }
                self.done = true;
                return Poll::Ready(Ok(()));
            }
            let stream = Pin::new(&mut *to);
            let wrote = if self.piece.is_empty() {
                stream.poll_write(context, rest)
            } else {
                let pieces = [IoSlice::new(rest), IoSlice::new(&self.piece)];
                stream.poll_write_vectored(context, &pieces)
            };
            let wrote = ready!(wrote).map_err(Fault::Wire)?;
            if wrote == 0 {
                return Poll::Ready(Err(Fault::Wire(ErrorKind::WriteZero.into())));
            }
            let of_rest = wrote.min(rest.len());
            self.written += of_rest;
            (self.waited, self.begun) = (true, true);
            self.piece.advance(wrote - of_rest);
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
            let frame = frame.transpose().map_err(|error| Fault::Body(error.into()))?;
            match frame.map(Frame::into_data) {
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
            // A chunk of no length would be the last.
            Framing::Chunked(_) if data.is_empty() => return Ok(()),
            Framing::Chunked(_) => {
                write_number(out, format_args!("{:x}\r\n", data.len()));
                out.extend_from_slice(&data);
                out.extend_from_slice(b"\r\n");
                return Ok(());
            }
            Framing::Length(left) => {
                let length = u64::try_from(data.len()).unwrap_or(u64::MAX);
                let longer = || Fault::Body("it is longer than it said".into());
                *left = left.checked_sub(length).ok_or_else(longer)?;
            }
            Framing::UntilClose => {}
        }
        if data.len() <= COPIED {
            out.extend_from_slice(&data);
        } else {
            self.piece = data;
        }
        Ok(())
    }

    fn end(&self, out: &mut Vec<u8>, trailers: Option<&HeaderMap>) -> Result<(), Fault> {
        match &self.framing {
            Framing::Length(0) | Framing::UntilClose => Ok(()),
            Framing::Length(_) => Err(Fault::Body("it is shorter than it said".into())),
            Framing::Chunked(announced) => {
                out.extend_from_slice(b"0\r\n");
                let is_expected = |name| announced.as_ref().is_none_or(|all| all.contains(name));
                for (name, value) in trailers.into_iter().flatten() {
                    if is_expected(name) && may_trail(name) {
                        write_field(out, name, value);
                    }
                }
                out.extend_from_slice(b"\r\n");
                Ok(())
            }
        }
    }
}

pub(super) fn write_field(out: &mut Vec<u8>, name: &HeaderName, value: &HeaderValue) {
    out.extend_from_slice(name.as_str().as_bytes());
    out.extend_from_slice(b": ");
    out.extend_from_slice(value.as_bytes());
    out.extend_from_slice(b"\r\n");
}

pub(super) fn write_number(out: &mut Vec<u8>, text: fmt::Arguments<'_>) {
    // To memory it cannot fail.
    let _ = out.write_fmt(text);
}

/// The trailers that a message announces.
pub(super) fn announced(headers: &HeaderMap) -> Vec<HeaderName> {
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
