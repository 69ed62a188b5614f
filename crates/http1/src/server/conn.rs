//! A client connection over HTTP/1.1, shared by the connection loop and the body of a request that
//! is streamed to an upstream.

use std::{
    fmt, io, mem,
    pin::Pin,
    sync::{Arc, Mutex, MutexGuard, PoisonError},
    task::{Context, Poll, Waker, ready},
};

use bytes::{Bytes, BytesMut};
use http_body::{Body, Frame, SizeHint};
use tokio::io::{AsyncRead, AsyncWrite};

use crate::decode::{Decoder, length};
use crate::input::ReadBuffer;
use crate::{Http1Error, NextHttp1Frame};

/// The interim response that a client may wait for before it sends a body.
const CONTINUE: &[u8] = b"HTTP/1.1 100 Continue\r\n\r\n";

/// Maximum read-ahead after a request. It only serves to detect a disconnect.
const READ_AHEAD_MAX: usize = 16 * 1024;

/// Maximum length of an unread body that is drained so that the connection can be kept alive.
const DRAIN_BODY_MAX: u64 = 64 * 1024;

/// A byte stream.
pub trait Io: AsyncRead + AsyncWrite + Send + Unpin {}

impl<T: AsyncRead + AsyncWrite + Send + Unpin> Io for T {}

/// A client connection over HTTP/1.1.
#[derive(Clone, Debug)]
pub(crate) struct ServerConn(Arc<Mutex<ConnState>>);

pub(crate) struct ConnState {
    io: Box<dyn Io>,
    pub(crate) input: ReadBuffer,
    /// Decoder of the current request body.
    body: Decoder,
    /// Sequence number of the current request. The body of an earlier request must not read the
    /// connection.
    request_seq: u64,
    /// Whether the body of the current request still exists and may be read.
    has_reader: bool,
    /// Whether the body failed, so that the input after it cannot be parsed.
    is_body_broken: bool,
    /// The unwritten part of `100 Continue`.
    pending_continue: &'static [u8],
    /// Whether `100 Continue` is written and not yet flushed.
    is_flushing: bool,
    /// Woken when `100 Continue` is not needed any more.
    continue_waker: Option<Waker>,
    /// Number of body frames read.
    frames_read: u64,
    trailers_max: usize,
    /// Woken at the end of the body.
    end_waker: Option<Waker>,
    /// Waker of the task that reads the body.
    read_waker: Option<Waker>,
}

impl ServerConn {
    pub(crate) fn new(io: Box<dyn Io>, trailers_max: usize) -> Self {
        Self(Arc::new(Mutex::new(ConnState {
            io,
            input: ReadBuffer::new(),
            body: Decoder::Done,
            request_seq: 0,
            has_reader: false,
            is_body_broken: false,
            pending_continue: &[],
            is_flushing: false,
            continue_waker: None,
            frames_read: 0,
            trailers_max,
            end_waker: None,
            read_waker: None,
        })))
    }

    pub(crate) fn lock(&self) -> MutexGuard<'_, ConnState> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// The body of the request whose head was just read.
    pub(crate) fn take_body(&self, body: Decoder, expect_continue: bool) -> IncomingBody {
        let mut state = self.lock();
        let ConnState { input, .. } = &mut *state;
        let mut whole = body;
        match body {
            Decoder::Done => return IncomingBody::Whole(Bytes::new()),
            Decoder::Length(remaining)
                if u64::try_from(input.len()).is_ok_and(|here| here >= remaining) =>
            {
                let frame = whole.next(input).ok().flatten();
                let data = frame.and_then(|frame| frame.into_data().ok());
                return IncomingBody::Whole(data.unwrap_or_default());
            }
            Decoder::Length(_) | Decoder::Chunked { .. } | Decoder::UntilClose => {}
        }
        state.request_seq += 1;
        (state.body, state.has_reader) = (body, true);
        state.pending_continue = if expect_continue { CONTINUE } else { &[] };
        IncomingBody::Streaming(ConnectionBody {
            conn: self.clone(),
            request_seq: state.request_seq,
            is_done: false,
        })
    }

    /// Abandons the current request body: reading it returns an error, and the input that follows
    /// does not belong to it.
    pub(crate) fn abandon_body(&self) {
        let mut state = self.lock();
        state.request_seq += 1;
        let read_waker = state.read_waker.take();
        drop(state);
        if let Some(read_waker) = read_waker {
            read_waker.wake();
        }
    }

    /// Takes the byte stream and the buffered input. A request body that still exists loses its
    /// connection.
    pub(crate) fn take_io(&self) -> (Box<dyn Io>, BytesMut) {
        self.abandon_body();
        let mut state = self.lock();
        let io = mem::replace(&mut state.io, Box::new(tokio::io::empty()));
        (io, mem::replace(&mut state.input, ReadBuffer::new()).into_bytes())
    }
}

impl ConnState {
    /// Reads once, and returns the number of bytes: 0 at the end.
    pub(crate) fn poll_fill(&mut self, context: &mut Context<'_>) -> Poll<io::Result<usize>> {
        self.input.poll_fill(&mut self.io, context)
    }

    /// The same, while the head of a request has fewer than `bytes_max` bytes.
    pub(crate) fn poll_fill_head(
        &mut self,
        bytes_max: usize,
        context: &mut Context<'_>,
    ) -> Poll<io::Result<usize>> {
        self.input.poll_fill_head(bytes_max, &mut self.io, context)
    }

    /// Ready when the client has disconnected. While a body is being read, its reader detects that.
    pub(crate) fn poll_disconnect(&mut self, context: &mut Context<'_>) -> Poll<()> {
        if self.has_reader && !self.body.is_done() {
            return self.wait_for_end(context);
        }
        while self.input.len() < READ_AHEAD_MAX {
            if matches!(ready!(self.poll_fill(context)), Ok(0) | Err(_)) {
                return Poll::Ready(());
            }
        }
        Poll::Pending
    }

    /// The rest of a partly written `100 Continue`, which must precede the response.
    pub(crate) fn take_partial_continue(&mut self) -> &'static [u8] {
        if let Some(waker) = self.continue_waker.take() {
            waker.wake();
        }
        let pending_continue = mem::take(&mut self.pending_continue);
        if pending_continue.len() == CONTINUE.len() { &[] } else { pending_continue }
    }

    /// Whether the next request can be read on the connection, as far as is known by now. It cannot
    /// if the rest of an unread body has not arrived, or if the client still waits for `100
    /// Continue` and may never send the body.
    pub(crate) fn can_keep_alive(&mut self, context: &mut Context<'_>) -> bool {
        if self.is_body_broken || self.body.is_done() {
            return !self.is_body_broken;
        }
        if self.has_reader {
            return self.pending_continue.len() < CONTINUE.len();
        }
        let mut drained = 0;
        while !self.body.is_done() && drained <= DRAIN_BODY_MAX && self.pending_continue.is_empty()
        {
            match self.body.next(&mut self.input) {
                Ok(Some(frame)) => drained += frame.data_ref().map_or(0, length),
                Ok(None) if self.body.is_done() => {}
                Ok(None) => match self.poll_fill(context) {
                    Poll::Ready(Ok(1..)) => {}
                    Poll::Ready(Ok(0) | Err(_)) | Poll::Pending => return false,
                },
                Err(_) => {
                    self.is_body_broken = true;
                    return false;
                }
            }
        }
        self.body.is_done()
    }

    /// Number of body frames read so far.
    pub(crate) const fn frames_read(&self) -> u64 {
        self.frames_read
    }

    /// Ready when the body is not read any more. Returns whether the next request can be read.
    pub(crate) fn poll_body(&mut self, context: &mut Context<'_>) -> Poll<bool> {
        if self.has_reader && !self.body.is_done() && !self.is_body_broken {
            return self.wait_for_end(context);
        }
        Poll::Ready(self.can_keep_alive(context))
    }

    fn wait_for_end<T>(&mut self, context: &Context<'_>) -> Poll<T> {
        store_waker(&mut self.end_waker, context);
        Poll::Pending
    }

    fn wake(&mut self) {
        if let Some(waker) = self.end_waker.take() {
            waker.wake();
        }
    }

    /// The next frame of the body.
    fn poll_frame(&mut self, context: &mut Context<'_>) -> Poll<NextHttp1Frame> {
        if self.is_body_broken {
            return Poll::Ready(Some(Err(Http1Error::Closed)));
        }
        loop {
            if let Some(frame) = self.body.next(&mut self.input)? {
                self.frames_read += 1;
                let trailers = frame.trailers_ref().map_or(0, http::HeaderMap::len);
                if trailers > self.trailers_max {
                    return Poll::Ready(Some(Err(Http1Error::Malformed("too many trailers"))));
                }
                return Poll::Ready(Some(Ok(frame)));
            }
            if self.body.is_done() {
                return Poll::Ready(None);
            }
            ready!(self.poll_write_continue(context))?;
            match ready!(self.poll_fill(context)) {
                Ok(0) => return Poll::Ready(Some(Err(Http1Error::Closed))),
                Ok(_) => {}
                Err(error) => return Poll::Ready(Some(Err(Http1Error::Io(error)))),
            }
        }
    }

    /// Sends `100 Continue` to a client that waits for it. One that already sends the body does
    /// not.
    fn poll_write_continue(&mut self, context: &mut Context<'_>) -> Poll<Result<(), Http1Error>> {
        if !self.input.is_empty() && self.pending_continue.len() == CONTINUE.len() {
            self.pending_continue = &[];
        }
        while !self.pending_continue.is_empty() {
            self.is_flushing = true;
            let Poll::Ready(wrote) =
                Pin::new(&mut self.io).poll_write(context, self.pending_continue)
            else {
                self.continue_waker = Some(context.waker().clone());
                return Poll::Pending;
            };
            let wrote = wrote.map_err(Http1Error::Io)?;
            self.pending_continue =
                self.pending_continue.get(wrote..).filter(|_| wrote > 0).unwrap_or_default();
        }
        if self.is_flushing {
            ready!(Pin::new(&mut self.io).poll_flush(context)).map_err(Http1Error::Io)?;
            self.is_flushing = false;
        }
        Poll::Ready(Ok(()))
    }
}

/// Stores the waker of a task.
fn store_waker(waker: &mut Option<Waker>, context: &Context<'_>) {
    match waker {
        Some(waker) => waker.clone_from(context.waker()),
        none => *none = Some(context.waker().clone()),
    }
}

impl fmt::Debug for ConnState {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { input, body, .. } = self;
        f.debug_struct("ConnState")
            .field("input", input)
            .field("body", body)
            .finish_non_exhaustive()
    }
}

/// Each write locks separately, because the data to write may come from the body that reads the
/// connection.
impl AsyncWrite for ServerConn {
    fn poll_write(
        self: Pin<&mut Self>,
        context: &mut Context<'_>,
        bytes: &[u8],
    ) -> Poll<io::Result<usize>> {
        Pin::new(&mut self.lock().io).poll_write(context, bytes)
    }

    fn poll_write_vectored(
        self: Pin<&mut Self>,
        context: &mut Context<'_>,
        pieces: &[io::IoSlice<'_>],
    ) -> Poll<io::Result<usize>> {
        Pin::new(&mut self.lock().io).poll_write_vectored(context, pieces)
    }

    fn is_write_vectored(&self) -> bool {
        self.lock().io.is_write_vectored()
    }

    fn poll_flush(self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.lock().io).poll_flush(context)
    }

    fn poll_shutdown(self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.lock().io).poll_shutdown(context)
    }
}

/// The body of a request.
#[derive(Debug)]
pub enum IncomingBody {
    /// It arrived with the head.
    Whole(Bytes),
    /// Read from the connection.
    Streaming(ConnectionBody),
}

/// A body that is read from the connection.
#[derive(Debug)]
pub struct ConnectionBody {
    conn: ServerConn,
    request_seq: u64,
    /// Whether it was read to its end.
    is_done: bool,
}

impl ConnectionBody {
    /// The connection, if this body is still the current one.
    fn lock(&self) -> Option<MutexGuard<'_, ConnState>> {
        Some(self.conn.lock()).filter(|state| state.request_seq == self.request_seq)
    }

    fn poll_frame(&mut self, context: &mut Context<'_>) -> Poll<NextHttp1Frame> {
        let Some(mut state) = self.lock() else {
            // It must not read the next body, and a truncated body must not look complete.
            return Poll::Ready((!self.is_done).then_some(Err(Http1Error::Closed)));
        };
        let Poll::Ready(next) = state.poll_frame(context) else {
            store_waker(&mut state.read_waker, context);
            return Poll::Pending;
        };
        state.is_body_broken |= matches!(next, Some(Err(_)));
        let is_done = state.body.is_done();
        if is_done || state.is_body_broken {
            state.wake();
        }
        drop(state);
        self.is_done = is_done;
        Poll::Ready(next)
    }

    /// Number of remaining bytes, if known.
    fn remaining(&self) -> Option<u64> {
        match self.lock() {
            Some(state) => state.body.remaining(),
            None => self.is_done.then_some(0),
        }
    }
}

impl Drop for ConnectionBody {
    fn drop(&mut self) {
        if let Some(mut state) = self.lock() {
            state.has_reader = false;
            state.wake();
        }
    }
}

impl Body for IncomingBody {
    type Data = Bytes;
    type Error = Http1Error;

    fn poll_frame(self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<NextHttp1Frame> {
        match self.get_mut() {
            Self::Whole(data) if data.is_empty() => Poll::Ready(None),
            Self::Whole(data) => Poll::Ready(Some(Ok(Frame::data(mem::take(data))))),
            Self::Streaming(body) => body.poll_frame(context),
        }
    }

    fn is_end_stream(&self) -> bool {
        self.size_hint().exact() == Some(0)
    }

    fn size_hint(&self) -> SizeHint {
        let remaining = match self {
            Self::Whole(data) => Some(length(data)),
            Self::Streaming(body) => body.remaining(),
        };
        remaining.map_or_else(SizeHint::new, SizeHint::with_exact)
    }
}

#[cfg(test)]
mod tests;
