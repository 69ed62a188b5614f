//! One request on a connection, and its answer.

use std::{
    future::poll_fn,
    mem,
    task::{Context, Poll, ready},
};

use bytes::{Bytes, BytesMut};
use http::{Method, Request, Response, StatusCode};
use http_body::Frame;
use semel_tower::Body;
use tokio::time::{Instant, timeout};

use super::{
    Answer, Ask, Connection, Fault, Stream,
    ask::{Upload, upload},
    decode::Decoder,
    head::{Head, Search},
};
use crate::gateway::{body::Inbound, pool::Lent};

/// A request on its way, and its answer. Dropped before its end, it closes the connection.
#[derive(Debug)]
pub(crate) struct Exchange {
    lent: Lent,
    method: Method,
    upload: Upload,
    /// How many bytes had gone out on the connection before.
    before: u64,
    /// Why the request could not be written to its end. There may be an answer all the same: often
    /// it says why.
    broken: Option<Fault>,
    search: Search,
    body: Decoder,
    /// Whether the connection may be used again afterwards.
    kept: bool,
}

impl Exchange {
    pub(crate) fn new(mut lent: Lent, request: Request<Body<Inbound>>, ask: &Ask<'_>) -> Self {
        let (mut parts, body) = request.into_parts();
        let before = lent.connection.stream.socket().meter().bytes();
        let upload = upload(&mut lent.connection.out, &mut parts, body, ask);
        let (method, search, body) = (parts.method, Search::default(), Decoder::Done);
        Self { lent, method, upload, before, broken: None, search, body, kept: false }
    }

    /// Whether it can go on another connection: this one has taken nothing of it.
    pub(crate) fn can_move(&self) -> bool {
        self.is_unsent() && !self.upload.has_begun()
    }

    /// Goes on another connection, with all that was to be written on this one.
    pub(crate) fn move_to(&mut self, mut lent: Lent) {
        mem::swap(&mut lent.connection.out, &mut self.lent.connection.out);
        self.before = lent.connection.stream.socket().meter().bytes();
        (self.lent, self.search) = (lent, Search::default());
    }

    /// Whether no byte of it has gone out.
    pub(crate) fn is_unsent(&self) -> bool {
        self.sent() == self.before
    }

    /// How many bytes have ever gone out on the connection.
    fn sent(&self) -> u64 {
        self.lent.connection.stream.socket().meter().bytes()
    }

    /// Writes the request and reads the head of the answer.
    pub(crate) fn poll_head(&mut self, context: &mut Context<'_>) -> Poll<Result<Head, Fault>> {
        self.write(context)?;
        loop {
            if !self.lent.connection.input.is_empty() && self.is_unsent() {
                return Poll::Ready(Err(Fault::Malformed("it came before the request")));
            }
            let connection = &mut self.lent.connection;
            if let Some(head) = self.search.next(&mut connection.input, &self.method)? {
                return Poll::Ready(Ok(head));
            }
            if let Err(fault) = ready!(connection.poll_fill(context)) {
                return Poll::Ready(Err(self.broken.take().unwrap_or(fault)));
            }
        }
    }

    /// Ready when it is as late as this.
    pub(crate) fn poll_alarm(&mut self, deadline: Instant, context: &mut Context<'_>) -> Poll<()> {
        self.lent.connection.alarm.poll(deadline, context)
    }

    /// The answer that begins with this head.
    pub(crate) fn answer(mut self, head: Head) -> Response<Answer> {
        let Head { parts, body, kept } = head;
        (self.body, self.kept) = (body, kept);
        self.lent.heed(&parts.headers);
        let body = match parts.status {
            StatusCode::SWITCHING_PROTOCOLS => Answer::switched(self),
            _ => Answer::new(self),
        };
        Response::from_parts(parts, body)
    }

    /// The rest of the answer, if all of it has come.
    pub(crate) fn take_rest(&mut self) -> Bytes {
        let input = &mut self.lent.connection.input;
        let has_come = |left| u64::try_from(input.len()).is_ok_and(|here| here >= left);
        let Decoder::Length(left) = self.body else { return Bytes::new() };
        if !has_come(left) {
            return Bytes::new();
        }
        let frame = self.body.next(input).ok().flatten();
        frame.and_then(|frame| frame.into_data().ok()).unwrap_or_default()
    }

    /// The next frame of the answer.
    pub(crate) fn poll_frame(
        &mut self,
        context: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, Fault>>> {
        self.write(context)?;
        loop {
            let connection = &mut self.lent.connection;
            if let Some(frame) = self.body.next(&mut connection.input)? {
                return Poll::Ready(Some(Ok(frame)));
            }
            if self.body.is_done() {
                return Poll::Ready(None);
            }
            match ready!(connection.poll_fill(context)) {
                Ok(()) => {}
                Err(Fault::Ended) => self.body.end()?,
                Err(fault) => return Poll::Ready(Some(Err(fault))),
            }
        }
    }

    /// Whether the answer has ended.
    pub(crate) const fn has_ended(&self) -> bool {
        self.body.is_done()
    }

    /// How many bytes of the answer are still to come, where that is known.
    pub(crate) const fn left(&self) -> Option<u64> {
        self.body.left()
    }

    /// Whether the request is still being written.
    pub(crate) const fn is_writing(&self) -> bool {
        !self.upload.is_done() && self.broken.is_none()
    }

    /// Writes what can be written.
    pub(crate) fn write(&mut self, context: &mut Context<'_>) -> Result<(), Fault> {
        if !self.is_writing() {
            return Ok(());
        }
        let Connection { stream, out, .. } = &mut self.lent.connection;
        match self.upload.poll(out, stream, context) {
            Poll::Pending | Poll::Ready(Ok(())) => Ok(()),
            Poll::Ready(Err(fault @ Fault::Wire(_))) if !self.is_unsent() => {
                self.broken = Some(fault);
                Ok(())
            }
            Poll::Ready(Err(fault)) => Err(fault),
        }
    }

    /// Says that the answer has ended. The connection serves another request, once this one is
    /// written to its end: an upstream may answer before it has read the whole of it.
    pub(crate) fn finish(self) {
        if self.is_writing() {
            tokio::spawn(Box::new(self).write_on());
        } else if self.kept && self.broken.is_none() && self.lent.connection.input.is_empty() {
            self.lent.give_back();
        }
    }

    /// Writes the request to its end, as long as that goes on.
    pub(crate) async fn write_on(mut self: Box<Self>) {
        while self.is_writing() {
            let before = self.sent();
            let patience = self.lent.upstream().timeout;
            let writing = poll_fn(|context| match self.write(context) {
                Ok(()) if self.is_writing() => Poll::Pending,
                written => Poll::Ready(written),
            });
            let written = timeout(patience, writing).await;
            if matches!(written, Ok(Err(_))) || (written.is_err() && self.sent() == before) {
                return;
            }
        }
        self.finish();
    }

    /// What is left of a connection that speaks another protocol now: its stream, and what has come
    /// of that protocol.
    pub(crate) fn into_stream(self) -> (Stream, BytesMut) {
        let connection = self.lent.connection;
        (connection.stream, connection.input.into_bytes())
    }
}

#[cfg(test)]
mod tests;
