//! The body of a response.
//!
//! Reading the body reads the connection. Only if the response begins before the request is written
//! does a separate task do both, because a client may read nothing before it has sent its whole
//! request.

use std::{
    future::poll_fn,
    mem,
    pin::Pin,
    task::{Context, Poll, ready},
};

use bytes::{Bytes, BytesMut};
use http::{Response, StatusCode};
use http_body::{Body, Frame, SizeHint};
use tokio::sync::mpsc;

use crate::client::parse::ResponseHead;
use crate::decode::length;
use crate::{BoxError, ConnectionOwner, Exchange, Http1Error, NextHttp1Frame, UpstreamStream};

/// The body of an HTTP/1.1 response.
#[derive(Debug)]
pub struct Http1ResponseBody<C, B> {
    /// Data received with the head.
    first: Bytes,
    rest: Remaining<C, B>,
}

/// The rest of a response body.
#[derive(Debug)]
enum Remaining<C, B> {
    Nothing,
    /// Read from the connection.
    Read(Box<Exchange<C, B>>),
    /// Received from the task that reads the connection.
    Channel(mpsc::Receiver<NextHttp1Frame>, Option<u64>),
    /// Another protocol follows.
    Switched(Box<Exchange<C, B>>),
}

impl<C, B> Http1ResponseBody<C, B>
where
    C: ConnectionOwner,
    B: Body<Data = Bytes, Error: Into<BoxError>> + Send + Unpin + 'static,
{
    /// The response of an exchange whose head was read.
    pub fn response(mut exchange: Exchange<C, B>, head: ResponseHead) -> Response<Self> {
        let ResponseHead { parts, body, keep_alive, .. } = head;
        exchange.begin_body(&parts, body, keep_alive);
        let body = match parts.status {
            StatusCode::SWITCHING_PROTOCOLS => {
                Self { first: Bytes::new(), rest: Remaining::Switched(Box::new(exchange)) }
            }
            _ => Self::new(exchange),
        };
        Response::from_parts(parts, body)
    }

    /// The body of a response whose head was read.
    fn new(mut exchange: Exchange<C, B>) -> Self {
        let first = exchange.take_rest();
        if exchange.has_ended() {
            exchange.finish();
            return Self { first, rest: Remaining::Nothing };
        }
        let exchange = Box::new(exchange);
        let rest = if exchange.is_writing() {
            let (sender, receiver) = mpsc::channel(1);
            let remaining = exchange.remaining();
            tokio::spawn(forward_body(exchange, sender));
            Remaining::Channel(receiver, remaining)
        } else {
            Remaining::Read(exchange)
        };
        Self { first, rest }
    }

    /// The connection and its buffered input, if the upstream switched protocols.
    pub fn take_stream(&mut self) -> Option<(UpstreamStream, BytesMut)> {
        match mem::replace(&mut self.rest, Remaining::Nothing) {
            Remaining::Switched(exchange) => Some(exchange.into_stream()),
            rest @ (Remaining::Nothing | Remaining::Read(_) | Remaining::Channel(..)) => {
                self.rest = rest;
                None
            }
        }
    }

    /// Number of remaining bytes, if known.
    fn remaining(&self) -> Option<u64> {
        let rest = match &self.rest {
            Remaining::Nothing | Remaining::Switched(_) => Some(0),
            Remaining::Read(exchange) => exchange.remaining(),
            Remaining::Channel(_, remaining) => *remaining,
        };
        rest?.checked_add(length(&self.first))
    }

    fn poll_rest(&mut self, context: &mut Context<'_>) -> Poll<NextHttp1Frame> {
        let frame = match &mut self.rest {
            Remaining::Nothing | Remaining::Switched(_) | Remaining::Channel(_, Some(0)) => None,
            Remaining::Read(exchange) => {
                let frame = ready!(exchange.poll_frame(context));
                if matches!(frame, Some(Ok(_))) && !exchange.has_ended() {
                    return Poll::Ready(frame);
                }
                if let Remaining::Read(exchange) = mem::replace(&mut self.rest, Remaining::Nothing)
                    && !matches!(frame, Some(Err(_)))
                {
                    exchange.finish();
                }
                frame
            }
            Remaining::Channel(receiver, remaining) => {
                // The task was aborted if it ends without a last frame.
                let frame =
                    ready!(receiver.poll_recv(context)).unwrap_or(Some(Err(Http1Error::Closed)));
                match &frame {
                    Some(Ok(frame)) if frame.is_trailers() => self.rest = Remaining::Nothing,
                    Some(Ok(frame)) => {
                        let data = frame.data_ref().map_or(0, length);
                        *remaining = remaining.map(|remaining| remaining.saturating_sub(data));
                    }
                    Some(Err(_)) | None => self.rest = Remaining::Nothing,
                }
                frame
            }
        };
        Poll::Ready(frame)
    }
}

impl<C, B> Body for Http1ResponseBody<C, B>
where
    C: ConnectionOwner,
    B: Body<Data = Bytes, Error: Into<BoxError>> + Send + Unpin + 'static,
{
    type Data = Bytes;
    type Error = Http1Error;

    fn poll_frame(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<NextHttp1Frame> {
        if self.first.is_empty() {
            return self.poll_rest(context);
        }
        Poll::Ready(Some(Ok(Frame::data(mem::take(&mut self.first)))))
    }

    fn is_end_stream(&self) -> bool {
        self.remaining() == Some(0)
    }

    fn size_hint(&self) -> SizeHint {
        self.remaining().map_or_else(SizeHint::new, SizeHint::with_exact)
    }
}

/// Forwards a response while the request is still being written.
async fn forward_body<C, B>(mut exchange: Box<Exchange<C, B>>, sender: mpsc::Sender<NextHttp1Frame>)
where
    C: ConnectionOwner,
    B: Body<Data = Bytes, Error: Into<BoxError>> + Send + Unpin + 'static,
{
    loop {
        let room = tokio::select! {
            biased;
            room = sender.reserve() => room,
            () = write_only(&mut exchange) => return,
        };
        // The response was dropped, so the rest of the request is not needed.
        let Ok(room) = room else { return };
        let frame = tokio::select! {
            biased;
            frame = poll_fn(|context| exchange.poll_frame(context)) => frame,
            () = sender.closed() => return,
        };
        let (is_broken, is_end) = (matches!(frame, Some(Err(_))), frame.is_none());
        room.send(frame);
        if is_broken {
            return;
        }
        if is_end || exchange.has_ended() {
            break;
        }
    }
    drop(sender);
    exchange.write_to_end().await;
}

/// Writes the request and reads nothing. Ready only if the request body fails.
async fn write_only<C, B>(exchange: &mut Exchange<C, B>)
where
    C: ConnectionOwner,
    B: Body<Data = Bytes, Error: Into<BoxError>> + Send + Unpin + 'static,
{
    poll_fn(|context| match exchange.write(context) {
        Ok(()) => Poll::Pending,
        Err(_) => Poll::Ready(()),
    })
    .await;
}
