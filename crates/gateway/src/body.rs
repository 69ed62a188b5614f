//! The body of a request, with a limit on how slowly the client may send it.

pub(crate) mod pace;

use std::{
    error, fmt,
    pin::Pin,
    sync::{
        Arc,
        atomic::{AtomicU64, Ordering},
    },
    task::{Context, Poll, ready},
};

use bytes::Bytes;
use http::HeaderName;
use http_body::{Body, Frame, SizeHint};
use hyper::body::Incoming;

use crate::body::pace::BodyPace;
use crate::error::TimedOut;
use crate::headers;
use semel_http1::{Http1Error, IncomingBody};

/// A body received from a client.
#[derive(Debug)]
pub(crate) enum ClientBody {
    Http1(IncomingBody),
    Http2(Incoming),
}

impl ClientBody {
    fn poll(&mut self, context: &mut Context<'_>) -> Poll<NextFrame> {
        match self {
            Self::Http1(body) => {
                let frame = ready!(Pin::new(body).poll_frame(context));
                Poll::Ready(frame.map(|frame| frame.map_err(BodyReadError::Http1)))
            }
            Self::Http2(body) => poll_h2_frame(body, context),
        }
    }
}

/// The next frame of an HTTP/2 stream.
///
/// hyper treats a stream that was reset with `NO_ERROR` as ended, because a server may reset it to
/// tell a client to stop sending. Here a truncated body would look complete, and a truncated
/// request would run or a truncated answer be recorded. `is_end_stream` tells the two apart.
pub(crate) fn poll_h2_frame(body: &mut Incoming, context: &mut Context<'_>) -> Poll<NextFrame> {
    let frame = ready!(Pin::new(&mut *body).poll_frame(context));
    Poll::Ready(match frame {
        None if !body.is_end_stream() => Some(Err(BodyReadError::StreamReset)),
        frame => frame.map(|frame| frame.map_err(BodyReadError::Http2)),
    })
}

/// A frame, or the end.
pub(crate) type NextFrame = Option<Result<Frame<Bytes>, BodyReadError>>;

/// The body of a request.
#[derive(Debug)]
pub(crate) struct RequestBody {
    body: ClientBody,
    pace: BodyPace,
    frame_count: FrameCount,
    /// If trailers are passed on: the names to remove from them, which the route reads as headers.
    stripped_trailers: Option<Vec<HeaderName>>,
}

/// Number of poll results of a body: its frames, its end and its errors.
#[derive(Clone, Debug, Default)]
pub(crate) struct FrameCount(Arc<AtomicU64>);

impl FrameCount {
    pub(crate) fn frames(&self) -> u64 {
        self.0.load(Ordering::Relaxed)
    }
}

impl RequestBody {
    pub(crate) fn new(body: ClientBody, pace: BodyPace) -> Self {
        Self { body, pace, frame_count: FrameCount::default(), stripped_trailers: None }
    }

    /// Passes its trailers on, except for the headers that the route reads. Otherwise the body ends
    /// before its trailers.
    pub(crate) fn with_trailers(mut self, route_headers: Vec<HeaderName>) -> Self {
        self.stripped_trailers = Some(route_headers);
        self
    }

    pub(crate) const fn frame_count(&self) -> &FrameCount {
        &self.frame_count
    }
}

impl Body for RequestBody {
    type Data = Bytes;
    type Error = BodyReadError;

    fn poll_frame(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, BodyReadError>>> {
        loop {
            let mut next = match self.body.poll(context) {
                Poll::Ready(next) => {
                    let data = next.as_ref().and_then(|next| next.as_ref().ok()?.data_ref());
                    self.pace.record(data.map_or(0, Bytes::len));
                    next
                }
                Poll::Pending => {
                    let limit = ready!(self.pace.poll(context));
                    Some(Err(BodyReadError::TimedOut(TimedOut::new(limit))))
                }
            };
            self.frame_count.0.fetch_add(1, Ordering::Relaxed);
            if let Some(Ok(frame)) = &mut next
                && let Some(trailers) = frame.trailers_mut()
            {
                let Some(names) = &self.stripped_trailers else { continue };
                headers::strip_trailers(trailers, names);
            }
            return Poll::Ready(next);
        }
    }

    fn is_end_stream(&self) -> bool {
        match &self.body {
            ClientBody::Http1(body) => body.is_end_stream(),
            ClientBody::Http2(body) => body.is_end_stream(),
        }
    }

    fn size_hint(&self) -> SizeHint {
        match &self.body {
            ClientBody::Http1(body) => body.size_hint(),
            ClientBody::Http2(body) => body.size_hint(),
        }
    }
}

/// Why a body could not be read to its end.
#[derive(Debug)]
pub(crate) enum BodyReadError {
    Http1(Http1Error),
    Http2(hyper::Error),
    StreamReset,
    TimedOut(TimedOut),
}

impl fmt::Display for BodyReadError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Http1(error) => error.fmt(f),
            Self::Http2(error) => error.fmt(f),
            Self::StreamReset => f.write_str("the stream was reset"),
            Self::TimedOut(timed_out) => {
                write!(f, "the body was not received in time (limit {:?})", timed_out.after())
            }
        }
    }
}

impl error::Error for BodyReadError {
    fn source(&self) -> Option<&(dyn error::Error + 'static)> {
        match self {
            Self::Http1(error) => Some(error),
            Self::Http2(error) => Some(error),
            Self::TimedOut(timed_out) => Some(timed_out.reason()),
            Self::StreamReset => None,
        }
    }
}
