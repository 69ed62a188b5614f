//! The loop of one HTTP/1.1 client connection.
//!
//! It reads a request, writes the response, and reads the next request. Meanwhile only the request
//! body is read, by its owner, and a disconnect of the client cancels the request.

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

use crate::forward::body::ClientBody;
use crate::http1::server::conn::{Io, ServerConn};
use crate::http1::server::encode::ResponseParams;
use crate::http1::server::parse::{HeadLimits, RequestHead};
use crate::http1::server::upgrade::{PendingUpgrade, UpgradedConnection};
use crate::http1::server::{encode, parse};
use crate::http1::write::MessageWriter;
use crate::http1::{Http1Error, OUT_CAPACITY_MAX};
use crate::lazy_timer::LazyTimer;
use crate::listen::peer::ClientPeer;
use crate::listen::worker::WorkerState;
use crate::route::bad_request;
use crate::route::check::BadRequest;
use crate::route::table::GatewayBody;
use crate::shutdown::{ShutdownListener, ShutdownPhase};

/// Lingering close: how long a client may be silent, or keep its side open, after the last
/// response. Closed at once, the connection could lose that response: bytes that a client sends to
/// a closed connection reset it.
const LINGER: Duration = Duration::from_secs(2);

/// Maximum duration of a lingering close, if the client keeps sending.
const LINGER_MAX: Duration = Duration::from_secs(15);

/// Timeout during shutdown for a head that is partly received.
const SHUTDOWN_HEAD_TIMEOUT: Duration = Duration::from_secs(1);

const TOO_SLOW: BadRequest =
    (StatusCode::REQUEST_TIMEOUT, "The request head was not received in time.");

/// Serves a connection until it ends.
pub(crate) async fn serve(io: Box<dyn Io>, peer: &Arc<ClientPeer>, worker: &Arc<WorkerState>) {
    let conn = ServerConn::new(io, worker.limits.headers);
    let shutdown_listener = ShutdownListener::new(&worker.shutdown, ShutdownPhase::Closing);
    let timer = LazyTimer::default();
    ConnectionLoop { conn: conn.clone(), out: Vec::new(), timer, shutdown_listener, peer, worker }
        .serve()
        .await;
    // A request body that still exists must not keep the connection open.
    drop(conn.take_io());
}

/// The loop of one client connection.
struct ConnectionLoop<'a> {
    conn: ServerConn,
    /// Write buffer.
    out: Vec<u8>,
    /// Timer for input from the client.
    timer: LazyTimer,
    shutdown_listener: ShutdownListener,
    peer: &'a Arc<ClientPeer>,
    worker: &'a Arc<WorkerState>,
}

/// The next input on a connection.
enum NextRequest {
    Head(Box<RequestHead>),
    Refused(BadRequest),
    /// The connection has ended.
    End,
}

/// What to do with a connection after a request.
#[derive(Debug)]
enum NextAction {
    KeepAlive,
    /// Close it: it was idle.
    Close,
    /// Close it after the client has had the time to read the response.
    Linger,
    /// Drop it: the client has disconnected, or the connection cannot be used.
    Drop,
}

impl ConnectionLoop<'_> {
    async fn serve(mut self) {
        loop {
            let action = match self.next().await {
                NextRequest::Head(head) => self.respond(head).await,
                NextRequest::Refused(wrong) => self.refuse(wrong).await,
                NextRequest::End => NextAction::Close,
            };
            match action {
                NextAction::KeepAlive => self.conn.lock().input.shrink(),
                NextAction::Close => {
                    // The client cannot be notified of an error.
                    let _ = timeout(LINGER, self.conn.shutdown()).await;
                    return;
                }
                NextAction::Linger => return self.linger().await,
                NextAction::Drop => return,
            }
        }
    }

    /// Reads the head of the next request.
    async fn next(&mut self) -> NextRequest {
        let limits = &self.worker.limits;
        let head_limits = HeadLimits { bytes: limits.header_bytes, fields: limits.headers };
        let mut deadline = Instant::now() + limits.header_timeout;
        // Length of the input that is known to hold no complete head.
        let mut seen = 0;
        let (mut has_begun, mut is_shutting_down) = (false, false);
        let Self { conn, timer, shutdown_listener, peer, .. } = self;
        poll_fn(|context| {
            let mut state = conn.lock();
            loop {
                skip_lines(&mut state.input);
                // Parse again if a new line arrived or the head is too long.
                let new = state.input.get(seen..).unwrap_or_default();
                if memchr(b'\n', new).is_some() || state.input.len() >= head_limits.bytes {
                    match parse::take_head(&mut state.input, head_limits) {
                        Ok(Some(head)) => {
                            return Poll::Ready(NextRequest::Head(Box::new(head)));
                        }
                        Ok(None) => {}
                        Err(wrong) => return Poll::Ready(NextRequest::Refused(wrong)),
                    }
                }
                seen = state.input.len();
                if let Poll::Ready(read) = state.poll_fill(context) {
                    if matches!(read, Ok(0) | Err(_)) {
                        return Poll::Ready(NextRequest::End);
                    }
                    continue;
                }
                if seen > 0 && !has_begun {
                    // The connection was idle until now.
                    (deadline, has_begun) = (Instant::now() + limits.header_timeout, true);
                    peer.connection().touch();
                }
                if shutdown_listener.poll(context).is_ready() {
                    if seen == 0 {
                        return Poll::Ready(NextRequest::End);
                    }
                    if !is_shutting_down {
                        (deadline, is_shutting_down) =
                            (deadline.min(Instant::now() + SHUTDOWN_HEAD_TIMEOUT), true);
                    }
                }
                ready!(timer.poll(deadline, context));
                return Poll::Ready(if seen == 0 {
                    NextRequest::End
                } else {
                    NextRequest::Refused(TOO_SLOW)
                });
            }
        })
        .await
    }

    /// Responds to a request.
    async fn respond(&mut self, head: Box<RequestHead>) -> NextAction {
        let Some(_request) = self.peer.connection().begin() else {
            return self.refuse_to_begin(&head).await;
        };
        let RequestHead { mut parts, body, keep_alive, expect_continue, wants_upgrade, trailers } =
            *head;
        let (method, version) = (parts.method.clone(), parts.version);
        let mut params = ResponseParams { method, version, keep_alive, trailers };
        let pending_upgrade = wants_upgrade.then(|| {
            let (sender, pending_upgrade) = PendingUpgrade::new();
            parts.extensions.insert(pending_upgrade);
            sender
        });
        let body = ClientBody::Http1(self.conn.take_body(body, expect_continue));
        let response =
            self.worker.route_table.load().respond(Request::from_parts(parts, body), self.peer);
        let Some(response) = until_disconnect(&self.conn, response).await else {
            return NextAction::Drop;
        };
        // The response announces the close, so that the client sends no further request on the
        // connection.
        params.keep_alive &= !self.worker.shutdown.is_draining();
        self.write_response(response, params, pending_upgrade).await
    }

    /// Refuses a request that its connection may not begin.
    async fn refuse_to_begin(&mut self, head: &RequestHead) -> NextAction {
        if self.peer.connection().is_evicted() {
            return NextAction::Drop;
        }
        let (method, version) = (head.parts.method.clone(), head.parts.version);
        let params = ResponseParams { method, version, keep_alive: false, trailers: false };
        let response = bad_request::over_share(version, &head.parts.headers);
        self.write_response(response, params, None).await
    }

    /// Refuses an invalid request.
    async fn refuse(&mut self, (status, detail): BadRequest) -> NextAction {
        self.worker.route_table.load().count_malformed();
        let response: Response<Full<Bytes>> = bad_request::response(status, detail);
        let params = ResponseParams {
            method: Method::GET,
            version: Version::HTTP_11,
            keep_alive: false,
            trailers: false,
        };
        self.write_response(response.map(Either::Right), params, None).await
    }

    /// Writes a response.
    async fn write_response(
        &mut self,
        response: Response<GatewayBody>,
        mut params: ResponseParams,
        pending_upgrade: Option<oneshot::Sender<UpgradedConnection>>,
    ) -> NextAction {
        let (parts, body) = response.into_parts();
        let (can_keep_alive, pending_continue) = poll_fn(|context| {
            let mut state = self.conn.lock();
            Poll::Ready((state.can_keep_alive(context), state.take_partial_continue()))
        })
        .await;
        params.keep_alive &= can_keep_alive;
        self.out.extend_from_slice(pending_continue);
        let size = if body.is_end_stream() { SizeHint::with_exact(0) } else { body.size_hint() };
        let date = self.worker.date.now();
        let framing = encode::write_head(&mut self.out, &parts, &size, &params, &date);
        let mut writer = MessageWriter::new(body, framing.framing);
        let mut out = mem::take(&mut self.out);
        let mut conn = self.conn.clone();
        let written = poll_fn(|context| writer.poll(&mut out, &mut conn, context));
        let written = until_disconnect(&self.conn, written).await;
        if let Some(Err(Http1Error::Body(_))) = written {
            // The client gets the data received before the error. It detects the truncation by the
            // closed connection, except over HTTP/1.0, where that may also be the end of the body.
            for piece in writer.unwritten(&out) {
                let _ = conn.write_all(piece).await;
            }
            let _ = conn.flush().await;
        }
        out.clear();
        out.shrink_to(OUT_CAPACITY_MAX);
        self.out = out;
        match (written, pending_upgrade) {
            (None | Some(Err(_)), _) => return NextAction::Drop,
            (Some(Ok(())), Some(pending_upgrade))
                if parts.status == StatusCode::SWITCHING_PROTOCOLS =>
            {
                let _ = pending_upgrade.send(self.conn.take_io());
                return NextAction::Drop;
            }
            (Some(Ok(())), _) => {}
        }
        if self.wait_for_body_end().await && framing.keep_alive {
            NextAction::KeepAlive
        } else {
            NextAction::Linger
        }
    }

    /// Waits for the end of a request body after an early response, as long as it makes progress.
    /// Returns whether the next request can be read.
    async fn wait_for_body_end(&mut self) -> bool {
        let body_timeout = self.worker.limits.body_timeout;
        let Self { conn, timer, .. } = self;
        let mut current_wait = None;
        poll_fn(|context| {
            loop {
                let mut state = conn.lock();
                if let Poll::Ready(can_keep_alive) = state.poll_body(context) {
                    return Poll::Ready(can_keep_alive);
                }
                let frames = state.frames_read();
                drop(state);
                let (deadline, seen) =
                    *current_wait.get_or_insert_with(|| (Instant::now() + body_timeout, frames));
                ready!(timer.poll(deadline, context));
                if frames == seen {
                    return Poll::Ready(false);
                }
                current_wait = None;
            }
        })
        .await
    }

    /// Closes the connection after the client has had the time to read the response.
    async fn linger(mut self) {
        // Input is discarded from now on, so the current body must fail instead of having a gap.
        self.conn.abandon_body();
        let lingering = async {
            self.conn.shutdown().await?;
            let read = || {
                poll_fn(|context| {
                    let mut state = self.conn.lock();
                    state.input.clear();
                    state.poll_fill(context)
                })
            };
            while timeout(LINGER, read()).await?? > 0 {}
            io::Result::Ok(())
        };
        // The client cannot be notified of an error.
        let _ = timeout(LINGER_MAX, lingering).await;
    }
}

/// The output of a future, or `None` if the client disconnects first.
async fn until_disconnect<T>(conn: &ServerConn, future: impl Future<Output = T>) -> Option<T> {
    let mut future = pin!(future);
    poll_fn(|context| {
        if let Poll::Ready(output) = future.as_mut().poll(context) {
            return Poll::Ready(Some(output));
        }
        conn.lock().poll_disconnect(context).map(|()| None)
    })
    .await
}

/// Skips empty lines before a request (RFC 9112, section 2.2).
fn skip_lines(input: &mut BytesMut) {
    while input.starts_with(b"\r\n") {
        input.advance(2);
    }
}

#[cfg(test)]
mod tests;
