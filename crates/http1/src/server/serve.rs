//! The loop of one HTTP/1.1 client connection.
//!
//! It reads a request, writes the response, and reads the next request. While a request is in
//! progress, only the holder of its body reads from the connection; if the client disconnects, the
//! response future is dropped.

use std::{
    future::{Future, poll_fn},
    io, mem,
    pin::pin,
    task::{Context, Poll, ready},
    time::Duration,
};

use bytes::{Buf as _, Bytes, BytesMut};
use http::{Method, Request, Response, StatusCode, Version, request};
use http_body::{Body, SizeHint};
use memchr::memchr;
use tokio::{
    io::AsyncWriteExt as _,
    sync::oneshot,
    time::{Instant, timeout},
};

use crate::lazy_timer::LazyTimer;
use crate::server::conn::{IncomingBody, Io, ServerConn};
use crate::server::encode::ResponseParams;
use crate::server::parse::{HeadLimits, RequestHead};
use crate::server::upgrade::{PendingUpgrade, UpgradedConnection};
use crate::server::{encode, parse};
use crate::write::MessageWriter;
use crate::{BadRequest, BoxError, Http1Error, WRITE_BUFFER_CAPACITY_MAX};

/// Idle timeout of a lingering close (RFC 9112, section 9.6): how long the server reads on after
/// the last response. Without it, bytes that the client still sends would cause a TCP reset, and
/// the client could lose the response.
const LINGER_IDLE_TIMEOUT: Duration = Duration::from_secs(2);

/// Maximum duration of a lingering close, if the client keeps sending.
const LINGER_MAX: Duration = Duration::from_secs(15);

/// Timeout for closing the write side of a connection without a pending response.
const CLOSE_TIMEOUT: Duration = Duration::from_secs(2);

/// Timeout during shutdown for a head that is partly received.
const SHUTDOWN_HEAD_TIMEOUT: Duration = Duration::from_secs(1);

const HEAD_TIMED_OUT: BadRequest =
    (StatusCode::REQUEST_TIMEOUT, "The request head was not received in time.");

/// Responds to the requests of one connection, and provides its limits and shutdown state.
pub trait Http1Service: Send + Sync {
    /// The body of a response.
    type Body: Body<Data = Bytes, Error: Into<BoxError>> + Send + Unpin;

    /// Guard that lives as long as the request.
    type ActiveRequest: Send;

    /// The limits of the connection.
    fn limits(&self) -> ConnectionLimits;

    /// Called when the first bytes of a request arrive on an idle connection.
    fn on_input(&self);

    /// Registers a request; `None` if the connection was evicted or its client has too many busy
    /// connections.
    fn begin(&self) -> Option<Self::ActiveRequest>;

    /// The response to a request that has begun.
    fn respond(
        &self,
        request: Request<IncomingBody>,
    ) -> impl Future<Output = Response<Self::Body>> + Send;

    /// The response to a request for which `begin` returned `None`; `None` to drop the connection
    /// without a response.
    fn refuse_to_begin(&self, head: &request::Parts) -> Option<Response<Self::Body>>;

    /// The response to an invalid request.
    fn refuse(&self, bad_request: BadRequest) -> Response<Self::Body>;

    /// The value of the `Date` field.
    fn date(&self) -> impl AsRef<[u8]> + Send;

    /// Whether each response has to announce the close of the connection.
    fn is_draining(&self) -> bool;
}

/// The limits of a connection.
#[derive(Clone, Copy, Debug)]
pub struct ConnectionLimits {
    /// Size of a request head in bytes.
    pub header_bytes: usize,
    /// Number of fields in a request head.
    pub headers: usize,
    /// Timeout of a request head, and idle timeout of the connection.
    pub header_timeout: Duration,
    /// Idle timeout for the rest of a request body after an early response.
    pub body_timeout: Duration,
}

/// Serves a connection until it ends. `poll_closing` is ready once idle connections are to be
/// closed, and from then on.
pub async fn serve(
    io: Box<dyn Io>,
    service: impl Http1Service,
    poll_closing: impl FnMut(&mut Context<'_>) -> Poll<()> + Send,
) {
    let conn = ServerConn::new(io, service.limits().headers);
    let (write_buffer, timer) = (Vec::new(), LazyTimer::default());
    ConnectionLoop { conn: conn.clone(), write_buffer, timer, service, poll_closing }.serve().await;
    // A request body that still exists must not keep the connection open.
    drop(conn.take_io());
}

/// The loop of one client connection.
struct ConnectionLoop<S, C> {
    conn: ServerConn,
    write_buffer: Vec<u8>,
    /// Timer for input from the client.
    timer: LazyTimer,
    service: S,
    poll_closing: C,
}

/// The next input on a connection.
enum NextRequest {
    Head(Box<RequestHead>),
    Refused(BadRequest),
    /// No further request: the client closed the connection, a read failed, or an idle connection
    /// is to be closed.
    End,
}

/// What to do with a connection after a request.
#[derive(Debug)]
enum NextAction {
    KeepAlive,
    /// Close it: no response is pending.
    Close,
    /// Close it after the client has had the time to read the response.
    Linger,
    /// Drop it: the client has disconnected, or the connection cannot be used.
    Drop,
}

impl<S, C> ConnectionLoop<S, C>
where
    S: Http1Service,
    C: FnMut(&mut Context<'_>) -> Poll<()> + Send,
{
    async fn serve(mut self) {
        loop {
            let action = match self.next().await {
                NextRequest::Head(head) => self.respond(head).await,
                NextRequest::Refused(bad_request) => self.refuse(bad_request).await,
                NextRequest::End => NextAction::Close,
            };
            match action {
                NextAction::KeepAlive => self.conn.lock().input.shrink(),
                NextAction::Close => {
                    // An error is ignored: the connection is closed in any case.
                    let _ = timeout(CLOSE_TIMEOUT, self.conn.shutdown()).await;
                    return;
                }
                NextAction::Linger => return self.linger().await,
                NextAction::Drop => return,
            }
        }
    }

    /// Reads the head of the next request.
    async fn next(&mut self) -> NextRequest {
        let limits = self.service.limits();
        let head_limits = HeadLimits { bytes: limits.header_bytes, fields: limits.headers };
        let mut deadline = Instant::now() + limits.header_timeout;
        // Number of buffered bytes already searched for the end of a head.
        let mut scanned_bytes = 0;
        let (mut has_begun, mut is_shutting_down) = (false, false);
        let Self { conn, timer, service, poll_closing, .. } = self;
        poll_fn(|context| {
            let mut state = conn.lock();
            loop {
                skip_empty_lines(&mut state.input);
                // Parse again if a new line arrived or the head is too long.
                let new = state.input.get(scanned_bytes..).unwrap_or_default();
                if memchr(b'\n', new).is_some() || state.input.len() >= head_limits.bytes {
                    match parse::take_head(&mut state.input, head_limits) {
                        Ok(Some(head)) => {
                            // The head holds a copy.
                            state.input.shrink();
                            return Poll::Ready(NextRequest::Head(Box::new(head)));
                        }
                        Ok(None) => {}
                        Err(bad_request) => return Poll::Ready(NextRequest::Refused(bad_request)),
                    }
                }
                scanned_bytes = state.input.len();
                if let Poll::Ready(read) = state.poll_fill_head(head_limits.bytes, context) {
                    if matches!(read, Ok(0) | Err(_)) {
                        return Poll::Ready(NextRequest::End);
                    }
                    continue;
                }
                if scanned_bytes > 0 && !has_begun {
                    // The connection was idle until now.
                    (deadline, has_begun) = (Instant::now() + limits.header_timeout, true);
                    service.on_input();
                }
                if poll_closing(context).is_ready() {
                    if scanned_bytes == 0 {
                        return Poll::Ready(NextRequest::End);
                    }
                    if !is_shutting_down {
                        (deadline, is_shutting_down) =
                            (deadline.min(Instant::now() + SHUTDOWN_HEAD_TIMEOUT), true);
                    }
                }
                ready!(timer.poll(deadline, context));
                return Poll::Ready(if scanned_bytes == 0 {
                    NextRequest::End
                } else {
                    NextRequest::Refused(HEAD_TIMED_OUT)
                });
            }
        })
        .await
    }

    /// Responds to a request.
    async fn respond(&mut self, head: Box<RequestHead>) -> NextAction {
        let Some(_request) = self.service.begin() else {
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
        let body = self.conn.take_body(body, expect_continue);
        let response = self.service.respond(Request::from_parts(parts, body));
        let Some(response) = until_disconnect(&self.conn, response).await else {
            return NextAction::Drop;
        };
        // The response announces the close, so that the client sends no further request on the
        // connection.
        params.keep_alive &= !self.service.is_draining();
        self.write_response(response, params, pending_upgrade).await
    }

    /// Refuses a request that its connection may not begin.
    async fn refuse_to_begin(&mut self, head: &RequestHead) -> NextAction {
        let Some(response) = self.service.refuse_to_begin(&head.parts) else {
            return NextAction::Drop;
        };
        let (method, version) = (head.parts.method.clone(), head.parts.version);
        let params = ResponseParams { method, version, keep_alive: false, trailers: false };
        self.write_response(response, params, None).await
    }

    /// Refuses an invalid request.
    async fn refuse(&mut self, bad_request: BadRequest) -> NextAction {
        let response = self.service.refuse(bad_request);
        let params = ResponseParams {
            method: Method::GET,
            version: Version::HTTP_11,
            keep_alive: false,
            trailers: false,
        };
        self.write_response(response, params, None).await
    }

    /// Writes a response.
    async fn write_response(
        &mut self,
        response: Response<S::Body>,
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
        self.write_buffer.extend_from_slice(pending_continue);
        let size = if body.is_end_stream() { SizeHint::with_exact(0) } else { body.size_hint() };
        let date = self.service.date();
        let framing =
            encode::write_head(&mut self.write_buffer, &parts, &size, &params, date.as_ref());
        drop(date);
        let mut writer = MessageWriter::new(body, framing.framing);
        let mut write_buffer = mem::take(&mut self.write_buffer);
        let mut conn = self.conn.clone();
        let written = poll_fn(|context| writer.poll(&mut write_buffer, &mut conn, context));
        let written = until_disconnect(&self.conn, written).await;
        if let Some(Err(Http1Error::Body(_))) = written {
            // The client gets the data received before the error. It detects the truncation by the
            // closed connection, except over HTTP/1.0, where that may also be the end of the body.
            for piece in writer.unwritten(&write_buffer) {
                let _ = conn.write_all(piece).await;
            }
            let _ = conn.flush().await;
        }
        write_buffer.clear();
        write_buffer.shrink_to(WRITE_BUFFER_CAPACITY_MAX);
        self.write_buffer = write_buffer;
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
        let body_timeout = self.service.limits().body_timeout;
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
                let (deadline, frames_at_start) =
                    *current_wait.get_or_insert_with(|| (Instant::now() + body_timeout, frames));
                ready!(timer.poll(deadline, context));
                if frames == frames_at_start {
                    return Poll::Ready(false);
                }
                current_wait = None;
            }
        })
        .await
    }

    /// Closes the connection after the client has had the time to read the response.
    async fn linger(mut self) {
        // Input is discarded from now on, so a request body that is still being read must fail;
        // otherwise it would miss bytes.
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
            while timeout(LINGER_IDLE_TIMEOUT, read()).await?? > 0 {}
            io::Result::Ok(())
        };
        // An error is ignored: the connection is closed in any case.
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
fn skip_empty_lines(input: &mut BytesMut) {
    while input.starts_with(b"\r\n") {
        input.advance(2);
    }
}

#[cfg(test)]
mod tests;
