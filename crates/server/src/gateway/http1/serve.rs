//! HTTP/1.1 with a client: the loop of one connection.
//!
//! A request is read, answered and its answer written, then the next one is read. Meanwhile only
//! the body of the request is read, by whoever has it, and the end of the connection is watched: a
//! client that is gone is not served on.

use std::{
    future::{Future, poll_fn},
    mem,
    pin::{Pin, pin},
    sync::Arc,
    task::{Context, Poll, ready},
    time::Duration,
};

use bytes::Bytes;
use http::{Request, Response, StatusCode};
use http_body::Body as _;
use http_body_util::{Either, Full};
use memchr::memchr;
use tokio::{
    io::AsyncWriteExt as _,
    sync::oneshot,
    task::unconstrained,
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
    stop::{Phase, Stop},
    worker::Worker,
};

/// How long a client may go on sending what nobody reads, after it was told so. Closed at once, the
/// connection would take the answer with it.
const LINGER: Duration = Duration::from_secs(2);

/// How much it may send then.
const LINGER_BYTES: usize = 4 * 1024 * 1024;

const TOO_SLOW: Wrong =
    (StatusCode::REQUEST_TIMEOUT, "the head of the request did not come in time");

/// Serves a connection until it ends.
pub(crate) async fn serve(io: Box<dyn Io>, peer: &Arc<Peer>, worker: &Arc<Worker>) {
    let mut stop = worker.stop.clone();
    // It must listen when it is asked to, even if the connection has used up what the task may do
    // at a time.
    let closing = pin!(unconstrained(stop.reached(Phase::Closing)));
    let end = End { seen: worker.stop.clone(), closing, listens: false };
    let inlet = Inlet::new(io, worker.limits.headers);
    let client = Client { inlet, out: Vec::new(), alarm: Alarm::default(), end, peer, worker };
    client.serve().await;
}

/// The end of the gateway, as a connection hears of it.
struct End<'a, F> {
    seen: Stop,
    closing: Pin<&'a mut F>,
    listens: bool,
}

impl<F: Future<Output = ()>> End<'_, F> {
    /// Ready when connections that are idle are to be closed.
    fn poll(&mut self, context: &mut Context<'_>) -> Poll<()> {
        // To look at the phase is cheaper than to listen for the next one, and whom to wake stays
        // the same. From the first change on it is asked every time: a phase can be seen before
        // its word arrives, and whoever had that word must listen again.
        if self.listens && self.seen.phase() == Phase::Serving {
            return Poll::Pending;
        }
        if self.seen.phase() >= Phase::Closing {
            return Poll::Ready(());
        }
        self.listens = true;
        self.closing.as_mut().poll(context)
    }
}

/// One connection of a client.
struct Client<'a, F> {
    inlet: Inlet,
    /// Space for what goes out.
    out: Vec<u8>,
    /// For the head that is awaited.
    alarm: Alarm,
    end: End<'a, F>,
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

/// What becomes of a connection after an answer.
#[derive(PartialEq, Eq)]
enum After {
    Next,
    /// It has served its time.
    Close,
    /// The same, but the client may not have sent all.
    Linger,
    /// There is nobody, or nobody to whom more could be said.
    Drop,
}

impl<F: Future<Output = ()>> Client<'_, F> {
    async fn serve(mut self) {
        loop {
            let after = match self.next().await {
                Next::Asked(asked) => self.answer(asked).await,
                Next::Refused(wrong) => self.refuse(wrong).await,
                Next::Over => After::Close,
            };
            match after {
                After::Next => {}
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
        let deadline = Instant::now() + limits.header_timeout;
        // How much of what has come is known to be no whole head.
        let mut seen = 0;
        let Self { inlet, alarm, end, .. } = self;
        poll_fn(|context| {
            let mut inside = inlet.lock();
            loop {
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
                if seen == 0 && end.poll(context).is_ready() {
                    return Poll::Ready(Next::Over);
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
        let Some(response) = self.unless_gone(answer).await else { return After::Drop };
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
            method: http::Method::GET,
            version: http::Version::HTTP_11,
            keeps: false,
            trailers: false,
        };
        match self.reply(response.map(Either::Right), to, None).await {
            After::Drop => After::Drop,
            After::Next | After::Close | After::Linger => After::Linger,
        }
    }

    /// What a future comes to, unless the client is gone before.
    async fn unless_gone<T>(&self, future: impl Future<Output = T>) -> Option<T> {
        let mut future = pin!(future);
        poll_fn(|context| {
            if let Poll::Ready(output) = future.as_mut().poll(context) {
                return Poll::Ready(Some(output));
            }
            self.inlet.lock().poll_gone(context).map(|()| None)
        })
        .await
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
        self.out.clear();
        self.out.extend_from_slice(owed);
        let size = if body.is_end_stream() {
            http_body::SizeHint::with_exact(0)
        } else {
            body.size_hint()
        };
        let date = self.worker.date.now();
        let manner = reply::write_head(&mut self.out, &parts, &size, &to, &date);
        let mut writing = Writing::new(body, manner.framing);
        let mut out = mem::take(&mut self.out);
        let mut inlet = self.inlet.clone();
        let written = poll_fn(|context| writing.poll(&mut out, &mut inlet, context));
        let written = self.unless_gone(written).await;
        if let Some(Err(Fault::Body(_))) = written {
            // The client gets what came before, and can see by the end of the connection that it is
            // not all.
            for piece in writing.rest(&out) {
                let _ = inlet.write_all(piece).await;
            }
        }
        self.out = out;
        self.out.shrink_to(OUT_MAX);
        match (written, handover) {
            (None | Some(Err(_)), _) => return After::Drop,
            (Some(Ok(())), Some(handover)) if parts.status == StatusCode::SWITCHING_PROTOCOLS => {
                let _ = handover.send(self.inlet.take());
                return After::Drop;
            }
            (Some(Ok(())), _) => {}
        }
        // An answer may come before the request has come to its end.
        let goes_on = poll_fn(|context| self.inlet.lock().poll_body(context)).await;
        match (goes_on, manner.keeps) {
            (true, true) => After::Next,
            (true, false) => After::Close,
            (false, _) => After::Linger,
        }
    }

    /// Closes the connection, but not before the client has had the time to read its answer.
    async fn linger(mut self) {
        let mut stop = self.worker.stop.clone();
        let lingering = async {
            self.inlet.shutdown().await?;
            let mut read = 0;
            poll_fn(|context| {
                let mut inside = self.inlet.lock();
                while read < LINGER_BYTES {
                    inside.input.clear();
                    match ready!(inside.poll_fill(context))? {
                        0 => break,
                        more => read += more,
                    }
                }
                Poll::Ready(std::io::Result::Ok(()))
            })
            .await
        };
        tokio::select! {
            // There is nobody to tell if that fails.
            _ = timeout(LINGER, lingering) => {}
            () = stop.reached(Phase::Closing) => {}
        }
    }
}
