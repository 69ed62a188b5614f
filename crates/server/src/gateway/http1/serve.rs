//! HTTP/1.1 with a client: the loop of one connection.
//!
//! A request is read, answered and its answer written, then the next one is read. Meanwhile only
//! the body of the request is read, by whoever has it, and the end of the connection is watched: a
//! client that is gone is not served on.

use std::{
    future::{Future, poll_fn},
    io, mem,
    pin::pin,
    sync::Arc,
    task::{Poll, ready},
    time::Duration,
};

use bytes::{Buf as _, Bytes, BytesMut};
use http::{Method, Request, Response, StatusCode, Version};
use http_body::{Body as _, SizeHint};
use http_body_util::{Either, Full};
use memchr::memchr;
use tokio::{
    io::AsyncWriteExt as _,
    sync::oneshot,
    time::{Instant, timeout},
};

use super::{
    Fault, OUT_MAX,
    handover::{Handed, Handover},
    inlet::{Inlet, Io},
    reply::{self, Addressee},
    request::{self, Asked, Bounds},
    write::Writing,
};
use crate::gateway::{
    alarm::Alarm,
    body::Arriving,
    check::Wrong,
    peer::Peer,
    refuse,
    site::Answer,
    stop::{Ear, Phase},
    worker::Worker,
};

/// How long a client may be silent, or keep its end open, after the last that it is told. Closed at
/// once, the connection would take with it what is still on the way: whatever a client sends to a
/// connection that is closed resets it.
const LINGER: Duration = Duration::from_secs(2);

/// How long it may go on sending.
const LINGER_MAX: Duration = Duration::from_secs(15);

/// How long a head that has begun may still take when the gateway ends.
const HURRY: Duration = Duration::from_secs(1);

const TOO_SLOW: Wrong =
    (StatusCode::REQUEST_TIMEOUT, "the head of the request did not come in time");

/// Serves a connection until it ends.
pub(crate) async fn serve(io: Box<dyn Io>, peer: &Arc<Peer>, worker: &Arc<Worker>) {
    let inlet = Inlet::new(io, worker.limits.headers);
    let ear = Ear::new(&worker.stop, Phase::Closing);
    let alarm = Alarm::default();
    Client { inlet: inlet.clone(), out: Vec::new(), alarm, ear, peer, worker }.serve().await;
    // Whoever still has the body of a request does not keep its connection open.
    drop(inlet.take());
}

/// One connection of a client.
struct Client<'a> {
    inlet: Inlet,
    /// Space for what goes out.
    out: Vec<u8>,
    /// For what is awaited of the client.
    alarm: Alarm,
    ear: Ear,
    peer: &'a Arc<Peer>,
    worker: &'a Arc<Worker>,
}

/// What came on a connection.
enum Next {
    Asked(Box<Asked>),
    Refused(Wrong),
    /// Nothing more.
    Over,
}

/// What becomes of a connection.
#[derive(Debug)]
enum After {
    Next,
    /// It was idle.
    Close,
    /// It has served its time, but the client has to read that.
    Linger,
    /// There is nobody, or nobody to whom more could be said.
    Drop,
}

impl Client<'_> {
    async fn serve(mut self) {
        loop {
            let after = match self.next().await {
                Next::Asked(asked) => self.answer(asked).await,
                Next::Refused(wrong) => self.refuse(wrong).await,
                Next::Over => After::Close,
            };
            match after {
                After::Next => self.inlet.lock().input.shrink(),
                After::Close => {
                    // There is nobody to tell if that fails.
                    let _ = timeout(LINGER, self.inlet.shutdown()).await;
                    return;
                }
                After::Linger => return self.linger().await,
                After::Drop => return,
            }
        }
    }

    /// The head of the next request.
    async fn next(&mut self) -> Next {
        let limits = &self.worker.limits;
        let bounds = Bounds { bytes: limits.header_bytes, fields: limits.headers };
        let mut deadline = Instant::now() + limits.header_timeout;
        // How much of what has come is known to be no whole head.
        let mut seen = 0;
        let (mut has_begun, mut hurries) = (false, false);
        let Self { inlet, alarm, ear, .. } = self;
        poll_fn(|context| {
            let mut inside = inlet.lock();
            loop {
                skip_lines(&mut inside.input);
                // A head ends with a line, and has to end somewhere.
                let new = inside.input.get(seen..).unwrap_or_default();
                if memchr(b'\n', new).is_some() || inside.input.len() >= bounds.bytes {
                    match request::take(&mut inside.input, bounds) {
                        Ok(Some(asked)) => return Poll::Ready(Next::Asked(Box::new(asked))),
                        Ok(None) => {}
                        Err(wrong) => return Poll::Ready(Next::Refused(wrong)),
                    }
                }
                seen = inside.input.len();
                if let Poll::Ready(read) = inside.poll_fill(context) {
                    if matches!(read, Ok(0) | Err(_)) {
                        return Poll::Ready(Next::Over);
                    }
                    continue;
                }
                if seen > 0 && !has_begun {
                    // Until now it was idle.
                    (deadline, has_begun) = (Instant::now() + limits.header_timeout, true);
                }
                if ear.poll(context).is_ready() {
                    if seen == 0 {
                        return Poll::Ready(Next::Over);
                    }
                    if !hurries {
                        (deadline, hurries) = (deadline.min(Instant::now() + HURRY), true);
                    }
                }
                ready!(alarm.poll(deadline, context));
                return Poll::Ready(if seen == 0 { Next::Over } else { Next::Refused(TOO_SLOW) });
            }
        })
        .await
    }

    /// Answers a request.
    async fn answer(&mut self, asked: Box<Asked>) -> After {
        let Asked { mut parts, body, keeps, expects, upgrades, trailers } = *asked;
        let (method, version) = (parts.method.clone(), parts.version);
        let mut to = Addressee { method, version, keeps, trailers };
        let handover = upgrades.then(|| {
            let (sender, handover) = Handover::new();
            parts.extensions.insert(handover);
            sender
        });
        let body = Arriving::Http1(self.inlet.deliver(body, expects));
        let answer = self.worker.site.load().answer(Request::from_parts(parts, body), self.peer);
        let Some(response) = unless_gone(&self.inlet, answer).await else { return After::Drop };
        // The client learns of the end by its answer, not by a connection that is cut under its
        // next request.
        to.keeps &= !self.worker.stop.is_draining();
        self.reply(response, to, handover).await
    }

    /// Refuses a request that is none.
    async fn refuse(&mut self, (status, detail): Wrong) -> After {
        self.worker.site.load().malformed();
        let response: Response<Full<Bytes>> = refuse::wrong(status, detail);
        let to = Addressee {
            method: Method::GET,
            version: Version::HTTP_11,
            keeps: false,
            trailers: false,
        };
        self.reply(response.map(Either::Right), to, None).await
    }

    /// Writes an answer.
    async fn reply(
        &mut self,
        response: Response<Answer>,
        mut to: Addressee,
        handover: Option<oneshot::Sender<Handed>>,
    ) -> After {
        let (parts, body) = response.into_parts();
        let (can_go_on, owed) = poll_fn(|context| {
            let mut inside = self.inlet.lock();
            Poll::Ready((inside.can_go_on(context), inside.take_owed()))
        })
        .await;
        to.keeps &= can_go_on;
        self.out.extend_from_slice(owed);
        let size = if body.is_end_stream() { SizeHint::with_exact(0) } else { body.size_hint() };
        let date = self.worker.date.now();
        let manner = reply::write_head(&mut self.out, &parts, &size, &to, &date);
        let mut writing = Writing::new(body, manner.framing);
        let mut out = mem::take(&mut self.out);
        let mut inlet = self.inlet.clone();
        let written = poll_fn(|context| writing.poll(&mut out, &mut inlet, context));
        let written = unless_gone(&self.inlet, written).await;
        if let Some(Err(Fault::Body(_))) = written {
            // The client gets what came before. That it is not all can be seen by the end of the
            // connection, but by HTTP/1.0, where that may be the end of the answer as well.
            for piece in writing.rest(&out) {
                let _ = inlet.write_all(piece).await;
            }
            let _ = inlet.flush().await;
        }
        out.clear();
        out.shrink_to(OUT_MAX);
        self.out = out;
        match (written, handover) {
            (None | Some(Err(_)), _) => return After::Drop,
            (Some(Ok(())), Some(handover)) if parts.status == StatusCode::SWITCHING_PROTOCOLS => {
                let _ = handover.send(self.inlet.take());
                return After::Drop;
            }
            (Some(Ok(())), _) => {}
        }
        if self.has_read_all().await && manner.keeps { After::Next } else { After::Linger }
    }

    /// Waits for the end of a request whose answer came before that, for as long as it comes on.
    /// Says whether the next request can be read.
    async fn has_read_all(&mut self) -> bool {
        let patience = self.worker.limits.body_timeout;
        let Self { inlet, alarm, .. } = self;
        let mut awaited = None;
        poll_fn(|context| {
            loop {
                let mut inside = inlet.lock();
                if let Poll::Ready(goes_on) = inside.poll_body(context) {
                    return Poll::Ready(goes_on);
                }
                let pieces = inside.pieces();
                drop(inside);
                let (deadline, seen) =
                    *awaited.get_or_insert_with(|| (Instant::now() + patience, pieces));
                ready!(alarm.poll(deadline, context));
                if pieces == seen {
                    return Poll::Ready(false);
                }
                awaited = None;
            }
        })
        .await
    }

    /// Closes the connection, but not before the client has had the time to read its answer.
    async fn linger(mut self) {
        // What is thrown away from now on must not be missing in the middle of a body.
        self.inlet.abandon();
        let lingering = async {
            self.inlet.shutdown().await?;
            let read = || {
                poll_fn(|context| {
                    let mut inside = self.inlet.lock();
                    inside.input.clear();
                    inside.poll_fill(context)
                })
            };
            while timeout(LINGER, read()).await?? > 0 {}
            io::Result::Ok(())
        };
        // There is nobody to tell if that fails.
        let _ = timeout(LINGER_MAX, lingering).await;
    }
}

/// What a future comes to, unless the client is gone before.
async fn unless_gone<T>(inlet: &Inlet, future: impl Future<Output = T>) -> Option<T> {
    let mut future = pin!(future);
    poll_fn(|context| {
        if let Poll::Ready(output) = future.as_mut().poll(context) {
            return Poll::Ready(Some(output));
        }
        inlet.lock().poll_gone(context).map(|()| None)
    })
    .await
}

/// Empty lines before a request are nothing (RFC 9112, section 2.2).
fn skip_lines(input: &mut BytesMut) {
    while input.starts_with(b"\r\n") {
        input.advance(2);
    }
}

#[cfg(test)]
mod tests;
