//! The body of an answer.
//!
//! Whoever reads it reads the connection. Only where the answer has come before the request was
//! written to its end does a task do both: a client may read nothing before it has sent all.

use std::{
    future::poll_fn,
    mem,
    pin::Pin,
    task::{Context, Poll, ready},
};

use bytes::{Bytes, BytesMut};
use http_body::{Body, Frame, SizeHint};
use tokio::sync::mpsc;

use super::{Exchange, Fault, Stream, decode::length};

/// The body of an answer.
#[derive(Debug)]
pub(crate) struct Answer {
    /// What has come with the head.
    first: Bytes,
    rest: Rest,
}

/// What is still to come.
#[derive(Debug)]
enum Rest {
    Nothing,
    /// From the connection.
    Read(Box<Exchange>),
    /// From the task that reads it.
    Passed(mpsc::Receiver<Piece>, Option<u64>),
    /// Nothing of this protocol.
    Switched(Box<Exchange>),
}

/// A frame, or the end.
type Piece = Option<Result<Frame<Bytes>, Fault>>;

impl Answer {
    /// The answer whose head has come.
    pub(crate) fn new(mut exchange: Exchange) -> Self {
        let first = exchange.take_rest();
        if exchange.has_ended() {
            exchange.finish();
            return Self { first, rest: Rest::Nothing };
        }
        let exchange = Box::new(exchange);
        let rest = if exchange.is_writing() {
            let (sender, receiver) = mpsc::channel(1);
            let left = exchange.left();
            tokio::spawn(pass_on(exchange, sender));
            Rest::Passed(receiver, left)
        } else {
            Rest::Read(exchange)
        };
        Self { first, rest }
    }

    /// The answer of an upstream that speaks another protocol from now on.
    pub(crate) fn switched(exchange: Exchange) -> Self {
        Self { first: Bytes::new(), rest: Rest::Switched(Box::new(exchange)) }
    }

    /// The connection, and what has come on it, if another protocol is spoken there now.
    pub(crate) fn take_stream(&mut self) -> Option<(Stream, BytesMut)> {
        match mem::replace(&mut self.rest, Rest::Nothing) {
            Rest::Switched(exchange) => Some(exchange.into_stream()),
            rest @ (Rest::Nothing | Rest::Read(_) | Rest::Passed(..)) => {
                self.rest = rest;
                None
            }
        }
    }

    /// How many bytes are still to come, where that is known.
    fn left(&self) -> Option<u64> {
        let rest = match &self.rest {
            Rest::Nothing | Rest::Switched(_) => Some(0),
            Rest::Read(exchange) => exchange.left(),
            Rest::Passed(_, left) => *left,
        };
        rest?.checked_add(length(&self.first))
    }

    fn poll_rest(&mut self, context: &mut Context<'_>) -> Poll<Piece> {
        let piece = match &mut self.rest {
            Rest::Nothing | Rest::Switched(_) | Rest::Passed(_, Some(0)) => None,
            Rest::Read(exchange) => {
                let piece = ready!(exchange.poll_frame(context));
                if matches!(piece, Some(Ok(_))) && !exchange.has_ended() {
                    return Poll::Ready(piece);
                }
                if let Rest::Read(exchange) = mem::replace(&mut self.rest, Rest::Nothing)
                    && !matches!(piece, Some(Err(_)))
                {
                    exchange.finish();
                }
                piece
            }
            Rest::Passed(receiver, left) => {
                // A task that is gone before it has spoken of the end was cut off.
                let piece = ready!(receiver.poll_recv(context)).unwrap_or(Some(Err(Fault::Ended)));
                match &piece {
                    Some(Ok(frame)) if frame.is_trailers() => self.rest = Rest::Nothing,
                    Some(Ok(frame)) => {
                        let data = frame.data_ref().map_or(0, length);
                        *left = left.map(|left| left.saturating_sub(data));
                    }
                    Some(Err(_)) | None => self.rest = Rest::Nothing,
                }
                piece
            }
        };
        Poll::Ready(piece)
    }
}

impl Body for Answer {
    type Data = Bytes;
    type Error = Fault;

    fn poll_frame(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, Fault>>> {
        if self.first.is_empty() {
            return self.poll_rest(context);
        }
        Poll::Ready(Some(Ok(Frame::data(mem::take(&mut self.first)))))
    }

    fn is_end_stream(&self) -> bool {
        self.left() == Some(0)
    }

    fn size_hint(&self) -> SizeHint {
        self.left().map_or_else(SizeHint::new, SizeHint::with_exact)
    }
}

/// Passes an answer on while the request is still being written.
async fn pass_on(mut exchange: Box<Exchange>, sender: mpsc::Sender<Piece>) {
    loop {
        let room = tokio::select! {
            biased;
            room = sender.reserve() => room,
            () = write_only(&mut exchange) => return,
        };
        // Nobody wants the answer, and so nobody sends the rest of the request.
        let Ok(room) = room else { return };
        let piece = tokio::select! {
            biased;
            piece = poll_fn(|context| exchange.poll_frame(context)) => piece,
            () = sender.closed() => return,
        };
        let (is_broken, is_end) = (matches!(piece, Some(Err(_))), piece.is_none());
        room.send(piece);
        if is_broken {
            return;
        }
        if is_end || exchange.has_ended() {
            break;
        }
    }
    drop(sender);
    exchange.write_on().await;
}

/// Writes the request and nothing else. Ready only if its own body broke off.
async fn write_only(exchange: &mut Exchange) {
    poll_fn(|context| match exchange.write(context) {
        Ok(()) => Poll::Pending,
        Err(_) => Poll::Ready(()),
    })
    .await;
}
