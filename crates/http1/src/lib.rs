//! HTTP/1.1 on both sides of a proxy. It knows no route, no pool and no peer.
//!
//! `client` sends a request to an upstream and reads the response. The task that awaits the
//! response does the I/O itself, without another task and a channel. No task reads an idle
//! connection; its [owner](ConnectionOwner) asks the kernel before it reuses the connection.
//!
//! `server` serves a client's connection: the requests go to an [`Http1Service`]. `decode` reads
//! bodies and `write` writes messages, on both sides; `input` holds bytes that were received and
//! not yet parsed.

mod client;
mod decode;
mod input;
pub mod io;
pub mod lazy_timer;
mod server;
#[cfg(test)]
mod tests;
mod write;

use std::{
    error, fmt,
    task::{Context, Poll, ready},
};

use bytes::Bytes;
use http::StatusCode;
use http_body::Frame;

pub use crate::client::body::Http1ResponseBody;
pub use crate::client::encode::RequestTarget;
pub use crate::client::exchange::{ConnectionOwner, Exchange};
pub use crate::client::parse::ResponseHead;
pub use crate::client::stream::UpstreamStream;
use crate::input::ReadBuffer;
use crate::lazy_timer::LazyTimer;
pub use crate::server::conn::{ConnectionBody, IncomingBody, Io};
pub use crate::server::serve::{ConnectionLimits, Http1Service, serve};
pub use crate::server::upgrade::{PendingUpgrade, UpgradedConnection};

/// Capacity of the write buffer that is kept for the next request.
const WRITE_BUFFER_CAPACITY_MAX: usize = 16 * 1024;

/// An HTTP/1.1 connection to an upstream.
#[derive(Debug)]
pub struct Http1Connection {
    /// The byte stream.
    pub stream: UpstreamStream,
    input: ReadBuffer,
    /// Write buffer.
    out: Vec<u8>,
    /// Timer for the response.
    timer: LazyTimer,
}

impl Http1Connection {
    /// A connection on which nothing was sent so far.
    pub fn new(stream: UpstreamStream) -> Self {
        Self { stream, input: ReadBuffer::new(), out: Vec::new(), timer: LazyTimer::default() }
    }

    /// Whether the next request may be sent on it.
    pub fn is_usable(&mut self) -> bool {
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
    pub fn clear(&mut self) {
        self.input.shrink();
        self.out.clear();
        self.out.shrink_to(WRITE_BUFFER_CAPACITY_MAX);
    }
}

/// The next frame of a body, or `None` at its end.
pub(crate) type NextHttp1Frame = Option<Result<Frame<Bytes>, Http1Error>>;

/// The error of a body that someone else makes.
pub type BoxError = Box<dyn error::Error + Send + Sync>;

/// Status and detail of the response to an invalid request.
pub type BadRequest = (StatusCode, &'static str);

/// Why a message could not be read or written.
#[derive(Debug)]
pub enum Http1Error {
    /// The connection failed.
    Io(std::io::Error),
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
