//! HTTP/1.1 towards an upstream.
//!
//! Whoever awaits an answer writes the request and reads the answer itself, without a task and a
//! channel between: [`ask`] writes, [`head`] and [`decode`] read, [`exchange`] is one request with
//! its answer, [`answer`] the body of that. Between two requests nobody reads a connection; the
//! kernel is asked before it is used again.

mod answer;
mod ask;
mod decode;
mod exchange;
mod head;
mod stream;
#[cfg(test)]
mod tests;

use std::{
    error, fmt, io,
    pin::{Pin, pin},
    task::{Context, Poll, ready},
};

use bytes::BytesMut;
use semel_tower::BoxError;
use tokio::io::AsyncReadExt as _;

pub(crate) use self::{
    answer::Answer,
    ask::{Ask, Upload},
    exchange::Exchange,
    head::Head,
    stream::Stream,
};
use super::alarm::Alarm;

/// How much is read at once at first.
const ROOM: usize = 8 * 1024;

/// How much is read at once at most.
const ROOM_MAX: usize = 128 * 1024;

/// How much space for what goes out is kept for the next request.
const OUT_MAX: usize = 16 * 1024;

/// A connection over HTTP/1.1.
#[derive(Debug)]
pub(crate) struct Connection {
    pub(crate) stream: Stream,
    /// What has come and is not yet understood.
    input: BytesMut,
    /// How much is read at once.
    room: usize,
    /// Space for what goes out.
    out: Vec<u8>,
    /// For the answer that is awaited on it.
    alarm: Alarm,
}

impl Connection {
    pub(crate) fn new(stream: Stream) -> Self {
        let (input, out) = (BytesMut::new(), Vec::new());
        Self { stream, input, room: ROOM, out, alarm: Alarm::default() }
    }

    /// Whether the next request may go out on it.
    pub(crate) fn is_usable(&mut self) -> bool {
        self.input.is_empty() && !self.stream.socket().is_ended() && self.stream.is_silent()
    }

    /// Reads what has come, at least a byte.
    fn poll_fill(&mut self, context: &mut Context<'_>) -> Poll<Result<(), Fault>> {
        if self.input.capacity() - self.input.len() < self.room / 2 {
            self.input.reserve(self.room);
        }
        let room = self.input.capacity() - self.input.len();
        match ready!(pin!(self.stream.read_buf(&mut self.input)).poll(context)) {
            Ok(0) => Poll::Ready(Err(Fault::Ended)),
            Ok(read) => {
                // There is more than was asked for.
                if read == room {
                    self.room = (self.room * 2).min(ROOM_MAX);
                }
                Poll::Ready(Ok(()))
            }
            Err(error) => Poll::Ready(Err(Fault::Wire(error))),
        }
    }

    fn poll_flush(&mut self, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        tokio::io::AsyncWrite::poll_flush(Pin::new(&mut self.stream), context)
    }

    /// Makes it what it was before its request.
    pub(crate) fn clear(&mut self) {
        // The space of a large answer is not kept for the next one.
        if self.room > ROOM {
            (self.room, self.input) = (ROOM, BytesMut::new());
        }
        self.out.clear();
        self.out.shrink_to(OUT_MAX);
    }
}

/// What is wrong with an exchange.
#[derive(Debug)]
pub(crate) enum Fault {
    /// The connection broke.
    Wire(io::Error),
    /// The upstream closed the connection before its answer was whole.
    Ended,
    /// What it says is not HTTP.
    Malformed(&'static str),
    /// The request's own body broke off.
    Request(BoxError),
}

impl fmt::Display for Fault {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Wire(error) => error.fmt(f),
            Self::Ended => f.write_str("the connection was closed before the answer was whole"),
            Self::Malformed(what) => write!(f, "the answer is not HTTP: {what}"),
            Self::Request(error) => write!(f, "the request's body broke off: {error}"),
        }
    }
}

impl error::Error for Fault {
    fn source(&self) -> Option<&(dyn error::Error + 'static)> {
        match self {
            Self::Wire(error) => Some(error),
            Self::Request(error) => Some(&**error),
            Self::Ended | Self::Malformed(_) => None,
        }
    }
}
