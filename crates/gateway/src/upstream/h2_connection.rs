//! An HTTP/2 connection to an upstream, shared by many requests.

use std::{
    future::{Future, poll_fn},
    pin::pin,
    sync::{
        Arc, Mutex, MutexGuard, PoisonError,
        atomic::{AtomicUsize, Ordering},
    },
    time::Duration,
};

use hyper::client::conn::http2;
use semel_tower::Body;
use tokio::time::Instant;

use crate::body::RequestBody;
use semel_http1::io::CountedStream;

/// Maximum number of requests on a connection, if the upstream allows more.
pub(super) const UPSTREAM_STREAMS_MAX: u16 = 100;

/// An HTTP/2 connection to an upstream.
#[derive(Clone, Debug)]
pub(crate) struct Http2Connection {
    pub sender: http2::SendRequest<Body<RequestBody>>,
    pub socket: CountedStream,
    streams: Arc<StreamCount>,
}

/// Counts the streams of a connection.
#[derive(Debug)]
struct StreamCount {
    open: AtomicUsize,
    /// Limit that the upstream announced.
    limit: AtomicUsize,
    /// Since when no stream is open.
    idle_since: Mutex<Instant>,
}

/// Permit for a stream, held until the response has ended.
#[derive(Debug)]
pub(crate) struct StreamPermit(Arc<StreamCount>);

impl Http2Connection {
    /// `limit` is the number of concurrent streams that the upstream allows.
    pub(crate) fn new(
        sender: http2::SendRequest<Body<RequestBody>>,
        socket: CountedStream,
        limit: usize,
    ) -> Self {
        let streams = StreamCount {
            open: AtomicUsize::new(0),
            limit: AtomicUsize::new(limit),
            idle_since: Mutex::new(Instant::now()),
        };
        Self { sender, socket, streams: Arc::new(streams) }
    }

    /// Drives a connection, and updates the stream limit of the upstream.
    pub(crate) async fn drive<C>(self, connection: C, max_streams: impl Fn(&C) -> usize)
    where
        C: Future + Unpin,
    {
        let mut connection = connection;
        let streams = Arc::clone(&self.streams);
        // The sender in `self` would keep the connection open.
        drop(self);
        poll_fn(|context| {
            let done = pin!(&mut connection).poll(context).map(drop);
            streams.limit.store(max_streams(&connection), Ordering::Relaxed);
            done
        })
        .await;
    }

    /// Reserves a stream, if the limit allows.
    ///
    /// A request sent above the limit would wait in hyper, and could not be taken back.
    pub(crate) fn reserve_stream(&self) -> Option<StreamPermit> {
        let limit =
            self.streams.limit.load(Ordering::Relaxed).min(usize::from(UPSTREAM_STREAMS_MAX));
        if self.streams.open.load(Ordering::Relaxed) >= limit {
            return None;
        }
        self.streams.open.fetch_add(1, Ordering::Relaxed);
        Some(StreamPermit(Arc::clone(&self.streams)))
    }

    /// Whether it may be used for another request. One that was idle for too long may have been
    /// dropped by a middlebox, or be closed already.
    pub(crate) fn is_alive(&self, idle_max: Duration) -> bool {
        if self.sender.is_closed() {
            return false;
        }
        if self.streams.open.load(Ordering::Relaxed) > 0 {
            return true;
        }
        self.streams.idle_since().elapsed() < idle_max && !self.socket.is_closed()
    }
}

impl StreamCount {
    fn idle_since(&self) -> MutexGuard<'_, Instant> {
        self.idle_since.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Drop for StreamPermit {
    fn drop(&mut self) {
        if self.0.open.fetch_sub(1, Ordering::Relaxed) == 1 {
            *self.0.idle_since() = Instant::now();
        }
    }
}
