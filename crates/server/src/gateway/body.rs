//! The two bodies that pass through: a request's on its way in, with a limit on how long its sender
//! may take, and an answer's on its way out, with a limit on how long the upstream may be silent.

use std::{
    error, fmt,
    pin::Pin,
    sync::{
        Arc,
        atomic::{AtomicU64, Ordering},
    },
    task::{Context, Poll, ready},
    time::Duration,
};

use bytes::Bytes;
use http_body::{Body, Frame, SizeHint};
use hyper::body::Incoming;
use tokio::time::Instant;

use super::{
    alarm::SharedAlarm,
    error::TimedOut,
    headers,
    http1::{Answer, Delivery, Fault},
    shared::Stream,
};

/// How long something may stay silent. It counts from when it is first waited for: most bodies are
/// here already.
#[derive(Debug)]
struct Silence {
    max: Duration,
    deadline: Option<Instant>,
    /// One that is there already, or its own when it is needed.
    alarm: Option<SharedAlarm>,
    /// Whether a sign of life starts the count anew.
    restarts: bool,
}

impl Silence {
    const fn new(max: Duration, restarts: bool, alarm: Option<SharedAlarm>) -> Self {
        Self { max, deadline: None, alarm, restarts }
    }

    fn heard(&mut self) {
        if self.restarts {
            self.deadline = None;
        }
    }

    /// Looks at what was heard: if it is nothing, and has been for too long, that is the end.
    fn check(this: &mut Option<Self>, next: Poll<Next>, context: &mut Context<'_>) -> Poll<Next> {
        let Some(silence) = this else { return next };
        let Poll::Ready(next) = next else {
            let max = silence.max;
            let deadline = *silence.deadline.get_or_insert_with(|| Instant::now() + max);
            let alarm = silence.alarm.get_or_insert_default();
            ready!(alarm.poll(deadline, context));
            return Poll::Ready(Some(Err(BodyError::Slow(TimedOut::new(max)))));
        };
        silence.heard();
        Poll::Ready(next)
    }
}

/// A body as it arrives from a client.
#[derive(Debug)]
pub(crate) enum Arriving {
    Http1(Delivery),
    Http2(Incoming),
}

impl Arriving {
    fn poll(&mut self, context: &mut Context<'_>) -> Poll<Next> {
        match self {
            Self::Http1(body) => {
                let frame = ready!(Pin::new(body).poll_frame(context));
                Poll::Ready(frame.map(|frame| frame.map_err(BodyError::Http1)))
            }
            Self::Http2(body) => poll_stream(body, context),
        }
    }
}

/// The next frame of a stream of HTTP/2.
///
/// hyper takes one that is reset with `NO_ERROR` for one that has ended: a server may so tell a
/// client that it need not send the rest. From the other side it would make a body that was cut
/// look whole, and run or record it. The stream itself knows whether it has ended.
fn poll_stream(body: &mut Incoming, context: &mut Context<'_>) -> Poll<Next> {
    let frame = ready!(Pin::new(&mut *body).poll_frame(context));
    Poll::Ready(match frame {
        None if !body.is_end_stream() => Some(Err(BodyError::Cut)),
        frame => frame.map(|frame| frame.map_err(BodyError::Http2)),
    })
}

/// A frame, or the end.
type Next = Option<Result<Frame<Bytes>, BodyError>>;

/// The body of a request.
#[derive(Debug)]
pub(crate) struct Inbound {
    body: Arriving,
    silence: Option<Silence>,
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
    pub(crate) fn whole(body: Arriving, max: Duration, alarm: Option<SharedAlarm>) -> Self {
        let silence = Some(Silence::new(max, false, alarm));
        Self { body, silence, progress: Progress::default() }
    }

    /// A body that is passed on as it comes, whose sender may not be silent for longer than `max`.
    /// `None` where it may.
    pub(crate) fn streamed(
        body: Arriving,
        max: Option<Duration>,
        alarm: Option<SharedAlarm>,
    ) -> Self {
        let silence = max.map(|max| Silence::new(max, true, alarm));
        Self { body, silence, progress: Progress::default() }
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
        let next = self.body.poll(context);
        let mut next = ready!(Silence::check(&mut self.silence, next, context));
        if let Some(Ok(frame)) = &mut next
            && let Some(trailers) = frame.trailers_mut()
        {
            headers::strip_trailers(trailers);
        }
        self.progress.0.fetch_add(1, Ordering::Relaxed);
        Poll::Ready(next)
    }

    fn is_end_stream(&self) -> bool {
        match &self.body {
            Arriving::Http1(body) => body.is_end_stream(),
            Arriving::Http2(body) => body.is_end_stream(),
        }
    }

    fn size_hint(&self) -> SizeHint {
        match &self.body {
            Arriving::Http1(body) => body.size_hint(),
            Arriving::Http2(body) => body.size_hint(),
        }
    }
}

/// The body of an upstream's answer.
#[derive(Debug)]
pub(crate) struct Outbound {
    source: Source,
    silence: Option<Silence>,
    /// Why it broke off, until that is told.
    broken: Option<BodyError>,
}

/// Where an answer comes from.
#[derive(Debug)]
pub(crate) enum Source {
    Http1(Answer),
    /// The stream counts until it has ended.
    Http2(Incoming, Option<Stream>),
}

impl Outbound {
    /// `max` is how long the upstream may be silent in the middle of it.
    pub(crate) fn new(source: Source, max: Option<Duration>) -> Self {
        let silence = max.map(|max| Silence::new(max, true, None));
        Self { source, silence, broken: None }
    }
}

impl Source {
    fn poll(&mut self, context: &mut Context<'_>) -> Poll<Next> {
        match self {
            Self::Http1(answer) => {
                let frame = ready!(Pin::new(answer).poll_frame(context));
                Poll::Ready(frame.map(|frame| frame.map_err(BodyError::Http1)))
            }
            Self::Http2(body, stream) => {
                let next = ready!(poll_stream(body, context));
                // Nobody asks for what comes after trailers.
                if !matches!(&next, Some(Ok(frame)) if frame.is_data()) || body.is_end_stream() {
                    *stream = None;
                }
                Poll::Ready(next)
            }
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
        let Self { source, silence, broken } = &mut *self;
        if let Some(error) = broken.take() {
            return Poll::Ready(Some(Err(error)));
        }
        let next = source.poll(context);
        let next = ready!(Silence::check(silence, next, context));
        if let Some(Err(error)) = next {
            // hyper forgets what it has not yet written when a body breaks off. The client is to
            // get what came before, so hyper is given the time to write it.
            *broken = Some(error);
            context.waker().wake_by_ref();
            return Poll::Pending;
        }
        Poll::Ready(next)
    }

    fn is_end_stream(&self) -> bool {
        match &self.source {
            Source::Http1(answer) => answer.is_end_stream(),
            Source::Http2(body, _) => body.is_end_stream(),
        }
    }

    fn size_hint(&self) -> SizeHint {
        match &self.source {
            Source::Http1(answer) => answer.size_hint(),
            Source::Http2(body, _) => body.size_hint(),
        }
    }
}

/// Why a body ended early.
#[derive(Debug)]
pub(crate) enum BodyError {
    Http1(Fault),
    Http2(hyper::Error),
    Cut,
    Slow(TimedOut),
}

impl fmt::Display for BodyError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Http1(fault) => fault.fmt(f),
            Self::Http2(error) => error.fmt(f),
            Self::Cut => f.write_str("its stream was reset"),
            Self::Slow(timed_out) => {
                write!(f, "it did not come within {:?}", timed_out.after())
            }
        }
    }
}

impl error::Error for BodyError {
    fn source(&self) -> Option<&(dyn error::Error + 'static)> {
        match self {
            Self::Http1(fault) => Some(fault),
            Self::Http2(error) => Some(error),
            Self::Slow(timed_out) => Some(timed_out.reason()),
            Self::Cut => None,
        }
    }
}
