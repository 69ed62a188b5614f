//! HTTP/1.1 on both sides.
//!
//! Towards an upstream, whoever awaits an answer writes the request and reads the answer itself,
//! without a task and a channel between: [`ask`] and [`write`] write, [`head`] and [`decode`] read,
//! [`exchange`] is one request with its answer, [`answer`] the body of that. Between two requests
//! nobody reads a connection; the kernel is asked before it is used again.
//!
//! Towards a client, [`serve`](mod@serve) is the loop of a connection: [`request`] reads a head,
//! [`inlet`] what follows it, and [`reply`] with [`write`] gives the answer.

mod answer;
mod ask;
mod decode;
mod exchange;
mod handover;
mod head;
mod inlet;
mod input;
mod reply;
mod request;
mod serve;
mod stream;
#[cfg(test)]
mod tests;
mod write;

use std::{
    error, fmt, io,
    task::{Context, Poll, ready},
};

use semel_tower::BoxError;

use self::input::Input;
pub(crate) use self::{
    answer::Answer,
    ask::Ask,
    exchange::Exchange,
    handover::Handover,
    head::Head,
    inlet::{Delivery, Io},
    serve::serve,
    stream::Stream,
};
use super::alarm::Alarm;

/// How much space for what goes out is kept for the next request.
const OUT_MAX: usize = 16 * 1024;

/// A connection over HTTP/1.1.
#[derive(Debug)]
pub(crate) struct Connection {
    pub(crate) stream: Stream,
    input: Input,
    /// Space for what goes out.
    out: Vec<u8>,
    /// For the answer that is awaited on it.
    alarm: Alarm,
}

impl Connection {
    pub(crate) fn new(stream: Stream) -> Self {
        Self { stream, input: Input::new(), out: Vec::new(), alarm: Alarm::default() }
    }

    /// Whether the next request may go out on it.
    pub(crate) fn is_usable(&mut self) -> bool {
        self.input.is_empty() && !self.stream.socket().is_ended() && self.stream.is_silent()
    }

    /// Reads what has come, at least a byte.
    fn poll_fill(&mut self, context: &mut Context<'_>) -> Poll<Result<(), Fault>> {
        Poll::Ready(match ready!(self.input.poll_fill(&mut self.stream, context)) {
            Ok(0) => Err(Fault::Ended),
            Ok(_) => Ok(()),
            Err(error) => Err(Fault::Wire(error)),
        })
    }

    /// Makes it what it was before its request.
    pub(crate) fn clear(&mut self) {
        self.input.shrink();
        self.out.clear();
        self.out.shrink_to(OUT_MAX);
    }
}

/// What is wrong with an exchange.
#[derive(Debug)]
pub(crate) enum Fault {
    /// The connection broke.
    Wire(io::Error),
    /// The other side closed the connection before its message was whole.
    Ended,
    /// What it says is not HTTP.
    Malformed(&'static str),
    /// The body of what was to be written broke off.
    Body(BoxError),
}

impl fmt::Display for Fault {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Wire(error) => error.fmt(f),
            Self::Ended => f.write_str("the connection was closed before all of it had come"),
            Self::Malformed(what) => write!(f, "it is not HTTP: {what}"),
            Self::Body(error) => write!(f, "its body broke off: {error}"),
        }
    }
}

impl error::Error for Fault {
    fn source(&self) -> Option<&(dyn error::Error + 'static)> {
        match self {
            Self::Wire(error) => Some(error),
            Self::Body(error) => Some(&**error),
            Self::Ended | Self::Malformed(_) => None,
        }
    }
}
