//! One request on a connection, and its response.

use std::{
    future::poll_fn,
    mem,
    task::{Context, Poll, ready},
    time::Duration,
};

use bytes::{Bytes, BytesMut};
use http::{HeaderMap, Method, Request, response::Parts};
use http_body::{Body, Frame};
use tokio::time::{Instant, timeout};

use crate::client::encode::encode_request;
use crate::client::parse::{HeadParser, ResponseHead};
use crate::decode::Decoder;
use crate::write::MessageWriter;
use crate::{BoxError, Http1Connection, Http1Error, RequestTarget, UpstreamStream};

/// Owns a connection while a request is on it, and takes it back for the next one.
pub trait ConnectionOwner: Send + 'static {
    /// The connection.
    fn connection(&self) -> &Http1Connection;

    /// The connection.
    fn connection_mut(&mut self) -> &mut Http1Connection;

    /// The connection, which is not used for another request.
    fn into_connection(self) -> Http1Connection;

    /// How long writing the request may make no progress after the response has ended.
    fn write_timeout(&self) -> Duration;

    /// Learns from the response head how long the connection stays open.
    fn apply_keep_alive(&mut self, headers: &HeaderMap);

    /// Takes the connection back for the next request.
    fn return_to_pool(self);
}

/// A request and its response. If dropped before the end, it closes the connection.
#[derive(Debug)]
pub struct Exchange<C, B> {
    owner: C,
    method: Method,
    writer: MessageWriter<B>,
    /// Bytes sent on the connection before this request.
    sent_before: u64,
    /// Why the request could not be written. There may still be a response, which often says why.
    write_error: Option<Http1Error>,
    parser: HeadParser,
    body: Decoder,
    /// Whether the connection may be reused afterwards.
    keep_alive: bool,
}

impl<C, B> Exchange<C, B>
where
    C: ConnectionOwner,
    B: Body<Data = Bytes, Error: Into<BoxError>> + Send + Unpin + 'static,
{
    /// Encodes a request. Nothing is sent yet.
    pub fn new(mut owner: C, request: Request<B>, target: &RequestTarget<'_>) -> Self {
        let (mut parts, body) = request.into_parts();
        let connection = owner.connection_mut();
        let sent_before = connection.stream.socket().byte_counter().bytes();
        let writer = encode_request(&mut connection.write_buffer, &mut parts, body, target);
        let (method, parser, body) = (parts.method, HeadParser::default(), Decoder::Done);
        Self {
            owner,
            method,
            writer,
            sent_before,
            write_error: None,
            parser,
            body,
            keep_alive: false,
        }
    }

    /// Whether it can be retried on another connection: this one accepted nothing of it.
    pub fn can_retry(&self) -> bool {
        self.is_unsent() && !self.writer.has_begun()
    }

    /// Retries on another connection, with the write buffer of this one.
    pub fn retry_on(&mut self, mut owner: C) {
        let connection = owner.connection_mut();
        mem::swap(&mut connection.write_buffer, &mut self.owner.connection_mut().write_buffer);
        self.sent_before = connection.stream.socket().byte_counter().bytes();
        (self.owner, self.parser) = (owner, HeadParser::default());
    }

    /// Whether no byte of it was sent.
    pub fn is_unsent(&self) -> bool {
        self.sent() == self.sent_before
    }

    /// Total number of bytes sent on the connection.
    fn sent(&self) -> u64 {
        self.owner.connection().stream.socket().byte_counter().bytes()
    }

    /// Writes the request and reads the response head.
    pub fn poll_head(
        &mut self,
        context: &mut Context<'_>,
    ) -> Poll<Result<ResponseHead, Http1Error>> {
        self.write(context)?;
        loop {
            if !self.owner.connection().input.is_empty() && self.is_unsent() {
                return Poll::Ready(Err(Http1Error::Malformed(
                    "the response came before the request",
                )));
            }
            let connection = self.owner.connection_mut();
            if let Some(head) = self.parser.next(&mut connection.input, &self.method)? {
                return Poll::Ready(Ok(head));
            }
            if let Err(error) = ready!(connection.poll_fill(context)) {
                return Poll::Ready(Err(self.write_error.take().unwrap_or(error)));
            }
        }
    }

    /// Ready when the deadline is reached.
    pub fn poll_timer(&mut self, deadline: Instant, context: &mut Context<'_>) -> Poll<()> {
        self.owner.connection_mut().timer.poll(deadline, context)
    }

    /// Begins the body that follows a response head.
    pub(crate) fn begin_body(&mut self, head: &Parts, body: Decoder, keep_alive: bool) {
        (self.body, self.keep_alive) = (body, keep_alive);
        self.owner.apply_keep_alive(&head.headers);
    }

    /// The rest of the response body, if it was received completely.
    pub(crate) fn take_rest(&mut self) -> Bytes {
        let input = &mut self.owner.connection_mut().input;
        let has_come = |remaining| u64::try_from(input.len()).is_ok_and(|here| here >= remaining);
        let Decoder::Length(remaining) = self.body else { return Bytes::new() };
        if !has_come(remaining) {
            return Bytes::new();
        }
        let frame = self.body.next(input).ok().flatten();
        frame.and_then(|frame| frame.into_data().ok()).unwrap_or_default()
    }

    /// The next frame of the response body.
    pub(crate) fn poll_frame(
        &mut self,
        context: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, Http1Error>>> {
        self.write(context)?;
        loop {
            let connection = self.owner.connection_mut();
            if let Some(frame) = self.body.next(&mut connection.input)? {
                return Poll::Ready(Some(Ok(frame)));
            }
            if self.body.is_done() {
                return Poll::Ready(None);
            }
            match ready!(connection.poll_fill(context)) {
                Ok(()) => {}
                Err(Http1Error::Closed) => self.body.end()?,
                Err(error) => return Poll::Ready(Some(Err(error))),
            }
        }
    }

    /// Whether the response has ended.
    pub(crate) const fn has_ended(&self) -> bool {
        self.body.is_done()
    }

    /// Number of remaining bytes of the response body, if known.
    pub(crate) const fn remaining(&self) -> Option<u64> {
        self.body.remaining()
    }

    /// Whether the request is still being written.
    pub(crate) const fn is_writing(&self) -> bool {
        !self.writer.is_done() && self.write_error.is_none()
    }

    /// Writes as much of the request as possible.
    pub(crate) fn write(&mut self, context: &mut Context<'_>) -> Result<(), Http1Error> {
        if !self.is_writing() {
            return Ok(());
        }
        let Http1Connection { stream, write_buffer, .. } = self.owner.connection_mut();
        match self.writer.poll(write_buffer, stream, context) {
            Poll::Pending | Poll::Ready(Ok(())) => Ok(()),
            Poll::Ready(Err(error @ Http1Error::Io(_))) if !self.is_unsent() => {
                self.write_error = Some(error);
                Ok(())
            }
            Poll::Ready(Err(error)) => Err(error),
        }
    }

    /// Ends the exchange after the response. The connection returns to the pool once the request is
    /// written to its end: an upstream may respond before it has read all of it.
    pub(crate) fn finish(self) {
        if self.is_writing() {
            tokio::spawn(Box::new(self).write_to_end());
        } else if self.keep_alive
            && self.write_error.is_none()
            && self.owner.connection().input.is_empty()
        {
            self.owner.return_to_pool();
        }
    }

    /// Writes the request to its end, as long as it makes progress.
    pub(crate) async fn write_to_end(mut self: Box<Self>) {
        while self.is_writing() {
            let sent_before = self.sent();
            let write_timeout = self.owner.write_timeout();
            let writing = poll_fn(|context| match self.write(context) {
                Ok(()) if self.is_writing() => Poll::Pending,
                written => Poll::Ready(written),
            });
            let written = timeout(write_timeout, writing).await;
            if matches!(written, Ok(Err(_))) || (written.is_err() && self.sent() == sent_before) {
                return;
            }
        }
        self.finish();
    }

    /// The stream of a connection that switched protocols, and its buffered input.
    pub(crate) fn into_stream(self) -> (UpstreamStream, BytesMut) {
        let connection = self.owner.into_connection();
        (connection.stream, connection.input.into_bytes())
    }
}

#[cfg(test)]
mod tests;
