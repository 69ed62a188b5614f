//! The connection of a client, for whoever reads and writes it: its loop, or the body of a request
//! that is passed on as it comes, wherever that is by then.

use std::{
    fmt, io, mem,
    pin::Pin,
    sync::{Arc, Mutex, MutexGuard, PoisonError},
    task::{Context, Poll, Waker, ready},
};

use bytes::{Bytes, BytesMut};
use http_body::{Body, Frame, SizeHint};
use tokio::io::{AsyncRead, AsyncWrite};

use super::{
    Fault,
    decode::{Decoder, length},
    input::Input,
};

/// The word that a client may wait for before it sends a body.
const CONTINUE: &[u8] = b"HTTP/1.1 100 Continue\r\n\r\n";

/// How much of what comes after a request is read before its turn: only to notice that the client
/// is gone.
const AHEAD_MAX: usize = 16 * 1024;

/// How much of a body that nobody wants is read so that the connection can be kept.
const DRAINED_MAX: u64 = 64 * 1024;

/// A connection.
pub(crate) trait Io: AsyncRead + AsyncWrite + Send + Unpin {}

impl<T: AsyncRead + AsyncWrite + Send + Unpin> Io for T {}

/// The connection of a client.
#[derive(Clone, Debug)]
pub(super) struct Inlet(Arc<Mutex<Inside>>);

pub(super) struct Inside {
    io: Box<dyn Io>,
    pub(super) input: Input,
    /// What is still to come of the body of the request under way.
    body: Decoder,
    /// Which request that is. Whoever still has the body of one before must not touch it.
    turn: u64,
    /// Whether somebody has that body who may want the rest of it.
    is_wanted: bool,
    /// Whether it broke off: what comes next means nothing.
    is_broken: bool,
    /// What the client waits for before it sends the body, as far as it is not yet written.
    owed: &'static [u8],
    /// Whether the last of that may still be on its way out.
    is_flushing: bool,
    /// Who waits to write it.
    owing: Option<Waker>,
    /// How many pieces of bodies were read.
    pieces: u64,
    trailers_max: usize,
    /// Who waits for the end of the body.
    waiting: Option<Waker>,
    /// Who waits for more of it.
    reading: Option<Waker>,
}

impl Inlet {
    pub(super) fn new(io: Box<dyn Io>, trailers_max: usize) -> Self {
        Self(Arc::new(Mutex::new(Inside {
            io,
            input: Input::new(),
            body: Decoder::Done,
            turn: 0,
            is_wanted: false,
            is_broken: false,
            owed: &[],
            is_flushing: false,
            owing: None,
            pieces: 0,
            trailers_max,
            waiting: None,
            reading: None,
        })))
    }

    pub(super) fn lock(&self) -> MutexGuard<'_, Inside> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// The body of a request whose head was just read.
    pub(super) fn deliver(&self, body: Decoder, expects: bool) -> Delivery {
        let mut inside = self.lock();
        let Inside { input, .. } = &mut *inside;
        let mut whole = body;
        match body {
            Decoder::Done => return Delivery::Whole(Bytes::new()),
            Decoder::Length(left) if u64::try_from(input.len()).is_ok_and(|here| here >= left) => {
                let frame = whole.next(input).ok().flatten();
                let data = frame.and_then(|frame| frame.into_data().ok());
                return Delivery::Whole(data.unwrap_or_default());
            }
            Decoder::Length(_) | Decoder::Chunked { .. } | Decoder::UntilClose => {}
        }
        inside.turn += 1;
        (inside.body, inside.is_wanted) = (body, true);
        inside.owed = if expects { CONTINUE } else { &[] };
        Delivery::Coming(Coming { inlet: self.clone(), turn: inside.turn, is_done: false })
    }

    /// Ends the body of the request under way: to whoever still has it, it broke off. What comes
    /// from now on is nobody's.
    pub(super) fn abandon(&self) {
        let mut inside = self.lock();
        inside.turn += 1;
        let reading = inside.reading.take();
        drop(inside);
        if let Some(reading) = reading {
            reading.wake();
        }
    }

    /// The connection itself, and what has come on it. Nothing is left here, also for a body that
    /// somebody still has.
    pub(super) fn take(&self) -> (Box<dyn Io>, BytesMut) {
        self.abandon();
        let mut inside = self.lock();
        let io = mem::replace(&mut inside.io, Box::new(tokio::io::empty()));
        (io, mem::replace(&mut inside.input, Input::new()).into_bytes())
    }
}

impl Inside {
    /// Reads what has come, and says how much: nothing at the end.
    pub(super) fn poll_fill(&mut self, context: &mut Context<'_>) -> Poll<io::Result<usize>> {
        self.input.poll_fill(&mut self.io, context)
    }

    /// Ready when the client is gone. As long as somebody reads a body, that one will hear of it.
    pub(super) fn poll_gone(&mut self, context: &mut Context<'_>) -> Poll<()> {
        if self.is_wanted && !self.body.is_done() {
            return self.wait(context);
        }
        while self.input.len() < AHEAD_MAX {
            if matches!(ready!(self.poll_fill(context)), Ok(0) | Err(_)) {
                return Poll::Ready(());
            }
        }
        Poll::Pending
    }

    /// What must still be written before an answer, because it was begun.
    pub(super) fn take_owed(&mut self) -> &'static [u8] {
        if let Some(waker) = self.owing.take() {
            waker.wake();
        }
        let owed = mem::take(&mut self.owed);
        if owed.len() == CONTINUE.len() { &[] } else { owed }
    }

    /// Whether the next request can be read on the connection, as far as is known by now: not if
    /// nobody reads the rest of the last one's body, and it is not here; nor if the client still
    /// waits for the word to send it, and may never do so.
    pub(super) fn can_go_on(&mut self, context: &mut Context<'_>) -> bool {
        if self.is_broken || self.body.is_done() {
            return !self.is_broken;
        }
        if self.is_wanted {
            return self.owed.len() < CONTINUE.len();
        }
        let mut drained = 0;
        while !self.body.is_done() && drained <= DRAINED_MAX && self.owed.is_empty() {
            match self.body.next(&mut self.input) {
                Ok(Some(frame)) => drained += frame.data_ref().map_or(0, length),
                Ok(None) if self.body.is_done() => {}
                Ok(None) => match self.poll_fill(context) {
                    Poll::Ready(Ok(1..)) => {}
                    Poll::Ready(Ok(0) | Err(_)) | Poll::Pending => return false,
                },
                Err(_) => {
                    self.is_broken = true;
                    return false;
                }
            }
        }
        self.body.is_done()
    }

    /// How many pieces of bodies were read so far.
    pub(super) const fn pieces(&self) -> u64 {
        self.pieces
    }

    /// Ready when nobody reads the body any more. Says whether the next request can be read.
    pub(super) fn poll_body(&mut self, context: &mut Context<'_>) -> Poll<bool> {
        if self.is_wanted && !self.body.is_done() && !self.is_broken {
            return self.wait(context);
        }
        Poll::Ready(self.can_go_on(context))
    }

    fn wait<T>(&mut self, context: &Context<'_>) -> Poll<T> {
        keep(&mut self.waiting, context);
        Poll::Pending
    }

    fn wake(&mut self) {
        if let Some(waker) = self.waiting.take() {
            waker.wake();
        }
    }

    /// The next frame of the body.
    fn poll_frame(&mut self, context: &mut Context<'_>) -> Poll<Next> {
        if self.is_broken {
            return Poll::Ready(Some(Err(Fault::Ended)));
        }
        loop {
            if let Some(frame) = self.body.next(&mut self.input)? {
                self.pieces += 1;
                let trailers = frame.trailers_ref().map_or(0, http::HeaderMap::len);
                if trailers > self.trailers_max {
                    return Poll::Ready(Some(Err(Fault::Malformed("it has too many trailers"))));
                }
                return Poll::Ready(Some(Ok(frame)));
            }
            if self.body.is_done() {
                return Poll::Ready(None);
            }
            ready!(self.poll_owed(context))?;
            match ready!(self.poll_fill(context)) {
                Ok(0) => return Poll::Ready(Some(Err(Fault::Ended))),
                Ok(_) => {}
                Err(error) => return Poll::Ready(Some(Err(Fault::Wire(error)))),
            }
        }
    }

    /// Tells a client to go on that waits for it. One that has gone on does not.
    fn poll_owed(&mut self, context: &mut Context<'_>) -> Poll<Result<(), Fault>> {
        if !self.input.is_empty() && self.owed.len() == CONTINUE.len() {
            self.owed = &[];
        }
        while !self.owed.is_empty() {
            self.is_flushing = true;
            let Poll::Ready(wrote) = Pin::new(&mut self.io).poll_write(context, self.owed) else {
                self.owing = Some(context.waker().clone());
                return Poll::Pending;
            };
            let wrote = wrote.map_err(Fault::Wire)?;
            self.owed = self.owed.get(wrote..).filter(|_| wrote > 0).unwrap_or_default();
        }
        if self.is_flushing {
            ready!(Pin::new(&mut self.io).poll_flush(context)).map_err(Fault::Wire)?;
            self.is_flushing = false;
        }
        Poll::Ready(Ok(()))
    }
}

/// Keeps who is to be woken.
fn keep(waker: &mut Option<Waker>, context: &Context<'_>) {
    match waker {
        Some(waker) => waker.clone_from(context.waker()),
        none => *none = Some(context.waker().clone()),
    }
}

impl fmt::Debug for Inside {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { input, body, .. } = self;
        f.debug_struct("Inside").field("input", input).field("body", body).finish_non_exhaustive()
    }
}

/// Writes; each part of it locks for itself, since what is written may come from who reads.
impl AsyncWrite for Inlet {
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

/// The body of a request, as its client sends it.
#[derive(Debug)]
pub(crate) enum Delivery {
    /// It came with the head.
    Whole(Bytes),
    Coming(Coming),
}

/// What is still to come on a connection.
#[derive(Debug)]
pub(crate) struct Coming {
    inlet: Inlet,
    turn: u64,
    /// Whether all of it was read.
    is_done: bool,
}

impl Coming {
    /// The connection, if it is still this body's turn there.
    fn lock(&self) -> Option<MutexGuard<'_, Inside>> {
        Some(self.inlet.lock()).filter(|inside| inside.turn == self.turn)
    }

    fn poll_frame(&mut self, context: &mut Context<'_>) -> Poll<Next> {
        let Some(mut inside) = self.lock() else {
            // Nobody reads the next body by mistake, and nobody takes a part for the whole.
            return Poll::Ready((!self.is_done).then_some(Err(Fault::Ended)));
        };
        let Poll::Ready(next) = inside.poll_frame(context) else {
            keep(&mut inside.reading, context);
            return Poll::Pending;
        };
        inside.is_broken |= matches!(next, Some(Err(_)));
        let is_done = inside.body.is_done();
        if is_done || inside.is_broken {
            inside.wake();
        }
        drop(inside);
        self.is_done = is_done;
        Poll::Ready(next)
    }

    /// How many bytes are still to come, where that is known.
    fn left(&self) -> Option<u64> {
        match self.lock() {
            Some(inside) => inside.body.left(),
            None => self.is_done.then_some(0),
        }
    }
}

impl Drop for Coming {
    fn drop(&mut self) {
        if let Some(mut inside) = self.lock() {
            inside.is_wanted = false;
            inside.wake();
        }
    }
}

/// A frame, or the end.
type Next = Option<Result<Frame<Bytes>, Fault>>;

impl Body for Delivery {
    type Data = Bytes;
    type Error = Fault;

    fn poll_frame(self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<Next> {
        match self.get_mut() {
            Self::Whole(data) if data.is_empty() => Poll::Ready(None),
            Self::Whole(data) => Poll::Ready(Some(Ok(Frame::data(mem::take(data))))),
            Self::Coming(coming) => coming.poll_frame(context),
        }
    }

    fn is_end_stream(&self) -> bool {
        self.size_hint().exact() == Some(0)
    }

    fn size_hint(&self) -> SizeHint {
        let left = match self {
            Self::Whole(data) => Some(length(data)),
            Self::Coming(coming) => coming.left(),
        };
        left.map_or_else(SizeHint::new, SizeHint::with_exact)
    }
}

#[cfg(test)]
mod tests;
