//! The two bodies that pass through: a request's on its way in, with a limit on how long its sender
//! may take, and an answer's on its way out, which gives its connection back when it has ended.

use std::{
    error, fmt,
    future::Future,
    pin::Pin,
    sync::{
        Arc,
        atomic::{AtomicU64, Ordering},
    },
    task::{Context, Poll, ready},
    time::Duration,
};

use bytes::Bytes;
use http::Version;
use http_body::{Body, Frame, SizeHint};
use hyper::body::Incoming;
use tokio::time::{Instant, Sleep, sleep};

use super::pool::Hold;

/// How long something may stay silent. The timer is made when it is first waited for: most bodies
/// are here already.
#[derive(Debug)]
struct Silence {
    max: Duration,
    timer: Option<Pin<Box<Sleep>>>,
    /// Whether a sign of life starts the count anew.
    restarts: bool,
}

impl Silence {
    const fn new(max: Duration, restarts: bool) -> Self {
        Self { max, timer: None, restarts }
    }

    fn heard(&mut self) {
        if self.restarts
            && let Some(timer) = &mut self.timer
        {
            timer.as_mut().reset(Instant::now() + self.max);
        }
    }

    /// Ready when it has been silent for too long.
    fn poll(&mut self, context: &mut Context<'_>) -> Poll<()> {
        let max = self.max;
        self.timer.get_or_insert_with(|| Box::pin(sleep(max))).as_mut().poll(context)
    }
}

/// A body as hyper reads it, with a limit on silence.
///
/// hyper takes an HTTP/2 stream that is reset with `NO_ERROR` for one that has ended: a server may
/// so tell a client that it need not send the rest. From the other side it would make a body that
/// was cut look whole, and run or record it. The stream itself knows whether it has ended.
#[derive(Debug)]
pub(crate) struct Arriving {
    body: Incoming,
    http2: bool,
    silence: Option<Silence>,
}

impl Arriving {
    pub(crate) fn new(body: Incoming, version: Version) -> Self {
        Self { body, http2: version == Version::HTTP_2, silence: None }
    }

    fn within(self, silence: Option<Silence>) -> Self {
        Self { silence, ..self }
    }

    fn poll(&mut self, context: &mut Context<'_>) -> Poll<Option<Result<Frame<Bytes>, BodyError>>> {
        let Poll::Ready(frame) = Pin::new(&mut self.body).poll_frame(context) else {
            let Some(silence) = &mut self.silence else { return Poll::Pending };
            ready!(silence.poll(context));
            return Poll::Ready(Some(Err(BodyError::Slow(silence.max))));
        };
        if let Some(silence) = &mut self.silence {
            silence.heard();
        }
        Poll::Ready(match frame {
            None if self.http2 && !self.body.is_end_stream() => Some(Err(BodyError::Cut)),
            frame => frame.map(|frame| frame.map_err(BodyError::Broken)),
        })
    }
}

/// The body of a request.
#[derive(Debug)]
pub(crate) struct Inbound {
    body: Arriving,
    progress: Progress,
}

/// How much of a body has been taken.
#[derive(Clone, Debug, Default)]
pub(crate) struct Progress(Arc<AtomicU64>);

impl Progress {
    pub(crate) fn frames(&self) -> u64 {
        self.0.load(Ordering::Relaxed)
    }
}

impl Inbound {
    /// A body that must have come as a whole after `max`: it is read before anything is done.
    pub(crate) fn whole(body: Arriving, max: Duration) -> Self {
        let body = body.within(Some(Silence::new(max, false)));
        Self { body, progress: Progress::default() }
    }

    /// A body that is passed on as it comes, whose sender may not be silent for longer than `max`.
    /// `None` where it may.
    pub(crate) fn streamed(body: Arriving, max: Option<Duration>) -> Self {
        let body = body.within(max.map(|max| Silence::new(max, true)));
        Self { body, progress: Progress::default() }
    }

    pub(crate) const fn progress(&self) -> &Progress {
        &self.progress
    }
}

impl Body for Inbound {
    type Data = Bytes;
    type Error = BodyError;

    fn poll_frame(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, BodyError>>> {
        let frame = ready!(self.body.poll(context));
        self.progress.0.fetch_add(1, Ordering::Relaxed);
        Poll::Ready(frame)
    }

    fn is_end_stream(&self) -> bool {
        self.body.body.is_end_stream()
    }

    fn size_hint(&self) -> SizeHint {
        self.body.body.size_hint()
    }
}

/// The body of an upstream's answer.
#[derive(Debug)]
pub(crate) struct Outbound {
    body: Arriving,
    hold: Option<Hold>,
}

impl Outbound {
    /// `max` is how long the upstream may be silent in the middle of it; `hold` is what it
    /// comes on.
    pub(crate) fn new(body: Arriving, max: Option<Duration>, hold: Hold) -> Self {
        let body = body.within(max.map(|max| Silence::new(max, true)));
        let mut outbound = Self { body, hold: Some(hold) };
        if outbound.is_end_stream() {
            outbound.give_back();
        }
        outbound
    }

    fn give_back(&mut self) {
        if let Some(hold) = self.hold.take() {
            hold.end();
        }
    }
}

impl Body for Outbound {
    type Data = Bytes;
    type Error = BodyError;

    fn poll_frame(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, BodyError>>> {
        let frame = ready!(self.body.poll(context));
        match &frame {
            // Nobody asks for what comes after trailers.
            Some(Ok(frame)) if frame.is_trailers() || self.is_end_stream() => self.give_back(),
            Some(Ok(_)) => {}
            Some(Err(_)) => self.hold = None,
            None => self.give_back(),
        }
        Poll::Ready(frame)
    }

    fn is_end_stream(&self) -> bool {
        self.body.body.is_end_stream()
    }

    fn size_hint(&self) -> SizeHint {
        self.body.body.size_hint()
    }
}

/// Why a body ended early.
#[derive(Debug)]
pub(crate) enum BodyError {
    Broken(hyper::Error),
    Cut,
    Slow(Duration),
}

impl fmt::Display for BodyError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Broken(error) => error.fmt(f),
            Self::Cut => f.write_str("its stream was reset"),
            Self::Slow(max) => write!(f, "it did not come within {max:?}"),
        }
    }
}

impl error::Error for BodyError {
    fn source(&self) -> Option<&(dyn error::Error + 'static)> {
        match self {
            Self::Broken(error) => Some(error),
            Self::Cut | Self::Slow(_) => None,
        }
    }
}
