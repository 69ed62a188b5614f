//! HTTP/1.1 on both sides.
//!
//! [`client`] sends a request to an upstream and reads the response. The task that awaits the
//! response does the I/O itself, without another task and a channel. No task reads an idle
//! connection; the pool asks the kernel before it reuses the connection.
//!
//! [`server`] serves a client's connection. [`decode`] reads bodies and [`write`](mod@write) writes
//! messages, on both sides; [`input`] holds bytes that were received and not yet parsed.

pub(crate) mod client;
pub(crate) mod decode;
pub(crate) mod input;
pub(crate) mod server;
#[cfg(test)]
mod tests;
pub(crate) mod write;

use std::{
    error, fmt, io,
    task::{Context, Poll, ready},
};

use bytes::Bytes;
use http_body::Frame;
use semel_tower::BoxError;

pub(crate) use crate::http1::client::body::Http1ResponseBody;
pub(crate) use crate::http1::client::encode::RequestTarget;
pub(crate) use crate::http1::client::exchange::Exchange;
pub(crate) use crate::http1::client::parse::ResponseHead;
pub(crate) use crate::http1::client::stream::UpstreamStream;
use crate::http1::input::ReadBuffer;
pub(crate) use crate::http1::server::conn::{IncomingBody, Io};
pub(crate) use crate::http1::server::serve::serve;
pub(crate) use crate::http1::server::upgrade::PendingUpgrade;
use crate::lazy_timer::LazyTimer;

/// Capacity of the write buffer that is kept for the next request.
const OUT_CAPACITY_MAX: usize = 16 * 1024;

/// An HTTP/1.1 connection to an upstream.
#[derive(Debug)]
pub(crate) struct Http1Connection {
    pub stream: UpstreamStream,
    input: ReadBuffer,
    /// Write buffer.
    out: Vec<u8>,
    /// Timer for the response.
    timer: LazyTimer,
}

impl Http1Connection {
    pub(crate) fn new(stream: UpstreamStream) -> Self {
        Self { stream, input: ReadBuffer::new(), out: Vec::new(), timer: LazyTimer::default() }
    }

    /// Whether the next request may be sent on it.
    pub(crate) fn is_usable(&mut self) -> bool {
        self.input.is_empty() && !self.stream.socket().is_unusable() && self.stream.is_silent()
    }

    /// Reads at least a byte.
    fn poll_fill(&mut self, context: &mut Context<'_>) -> Poll<Result<(), Http1Error>> {
        Poll::Ready(match ready!(self.input.poll_fill(&mut self.stream, context)) {
            Ok(0) => Err(Http1Error::Closed),
            Ok(_) => Ok(()),
            Err(error) => Err(Http1Error::Io(error)),
        })
    }

    /// Prepares it for the next request.
    pub(crate) fn clear(&mut self) {
        self.input.shrink();
        self.out.clear();
        self.out.shrink_to(OUT_CAPACITY_MAX);
    }
}

/// The next frame of a body, or `None` at its end.
pub(crate) type NextHttp1Frame = Option<Result<Frame<Bytes>, Http1Error>>;

/// Why a message could not be read or written.
#[derive(Debug)]
pub(crate) enum Http1Error {
    /// The connection failed.
    Io(io::Error),
    /// The peer closed the connection before the message was complete.
    Closed,
    /// The message is not valid HTTP.
    Malformed(&'static str),
    /// The body to be written failed.
    Body(BoxError),
}

impl fmt::Display for Http1Error {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Io(error) => error.fmt(f),
            Self::Closed => {
                f.write_str("the connection was closed before the message was complete")
            }
            Self::Malformed(what) => write!(f, "malformed HTTP: {what}"),
            Self::Body(error) => write!(f, "reading the body failed: {error}"),
        }
    }
}

impl error::Error for Http1Error {
    fn source(&self) -> Option<&(dyn error::Error + 'static)> {
        match self {
            Self::Io(error) => Some(error),
            Self::Body(error) => Some(&**error),
            Self::Closed | Self::Malformed(_) => None,
        }
    }
}
