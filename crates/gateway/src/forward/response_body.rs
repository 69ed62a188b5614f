//! The body of a response, with an idle timeout for the upstream.

use std::{
    pin::Pin,
    task::{Context, Poll, ready},
    time::Duration,
};

use bytes::Bytes;
use http_body::{Body as _, Frame, SizeHint};
use http_body_util::{Either, Full};
use hyper::body::Incoming;
use semel_http1::Http1ResponseBody;
use semel_http1::lazy_timer::SharedLazyTimer;
use semel_tower::Body;
use tokio::time::Instant;

use crate::body::{BodyReadError, NextFrame, RequestBody, poll_h2_frame};
use crate::error::TimedOut;
use crate::upstream::h2_connection::StreamPermit;
use crate::upstream::pool::PooledConnection;

/// Idle timeout of a body. It starts when the body is first waited for, because most bodies have
/// already arrived.
#[derive(Debug)]
struct IdleTimeout {
    max: Duration,
    deadline: Option<Instant>,
    timer: SharedLazyTimer,
}

impl IdleTimeout {
    fn new(max: Duration) -> Self {
        Self { max, deadline: None, timer: SharedLazyTimer::default() }
    }

    /// Fails a body that has been pending for too long.
    fn check(
        this: &mut Option<Self>,
        next: Poll<NextFrame>,
        context: &mut Context<'_>,
    ) -> Poll<NextFrame> {
        let Some(idle_timeout) = this else { return next };
        let Poll::Ready(next) = next else {
            let max = idle_timeout.max;
            let deadline = *idle_timeout.deadline.get_or_insert_with(|| Instant::now() + max);
            ready!(idle_timeout.timer.poll(deadline, context));
            return Poll::Ready(Some(Err(BodyReadError::TimedOut(TimedOut::new(max)))));
        };
        idle_timeout.deadline = None;
        Poll::Ready(next)
    }
}

/// The body of a response.
#[derive(Debug)]
pub(crate) struct ResponseBody {
    source: UpstreamBody,
    idle_timeout: Option<IdleTimeout>,
    /// The error to return on the next poll.
    pending_error: Option<BodyReadError>,
}

/// The body of a response to a client: from an upstream or a record, or made by the gateway.
pub(crate) type GatewayBody = Either<Body<ResponseBody>, Full<Bytes>>;

/// A body received from an upstream.
#[derive(Debug)]
pub(crate) enum UpstreamBody {
    Http1(Http1ResponseBody<PooledConnection, Body<RequestBody>>),
    /// The permit is held until the stream has ended.
    Http2(Incoming, Option<StreamPermit>),
}

impl ResponseBody {
    /// `max` is the idle timeout for the upstream.
    pub(crate) fn new(source: UpstreamBody, max: Option<Duration>) -> Self {
        let idle_timeout = max.map(IdleTimeout::new);
        Self { source, idle_timeout, pending_error: None }
    }
}

impl UpstreamBody {
    fn poll(&mut self, context: &mut Context<'_>) -> Poll<NextFrame> {
        match self {
            Self::Http1(body) => {
                let frame = ready!(Pin::new(body).poll_frame(context));
                Poll::Ready(frame.map(|frame| frame.map_err(BodyReadError::Http1)))
            }
            Self::Http2(body, stream) => {
                let next = ready!(poll_h2_frame(body, context));
                // The body is not polled again after trailers.
                if !matches!(&next, Some(Ok(frame)) if frame.is_data()) || body.is_end_stream() {
                    *stream = None;
                }
                Poll::Ready(next)
            }
        }
    }
}

impl http_body::Body for ResponseBody {
    type Data = Bytes;
    type Error = BodyReadError;

    fn poll_frame(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, BodyReadError>>> {
        let Self { source, idle_timeout, pending_error } = &mut *self;
        if let Some(error) = pending_error.take() {
            return Poll::Ready(Some(Err(error)));
        }
        let next = source.poll(context);
        let next = ready!(IdleTimeout::check(idle_timeout, next, context));
        if let Some(Err(error)) = next {
            // hyper discards unwritten data when a body fails. The error is delayed by one poll, so
            // that hyper writes what came before it.
            *pending_error = Some(error);
            context.waker().wake_by_ref();
            return Poll::Pending;
        }
        Poll::Ready(next)
    }

    fn is_end_stream(&self) -> bool {
        match &self.source {
            UpstreamBody::Http1(body) => body.is_end_stream(),
            UpstreamBody::Http2(body, _) => body.is_end_stream(),
        }
    }

    fn size_hint(&self) -> SizeHint {
        match &self.source {
            UpstreamBody::Http1(body) => body.size_hint(),
            UpstreamBody::Http2(body, _) => body.size_hint(),
        }
    }
}
