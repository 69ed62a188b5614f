//! A connection over HTTP/2, which many requests use at once.

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

use super::{body::Inbound, wire::Socket};

/// How many requests share a connection at most, whatever the upstream allows.
const STREAMS_MAX: usize = 100;

/// A connection over HTTP/2.
#[derive(Clone, Debug)]
pub(crate) struct Shared {
    pub(crate) sender: http2::SendRequest<Body<Inbound>>,
    pub(crate) socket: Socket,
    streams: Arc<Streams>,
}

/// The requests on a connection.
#[derive(Debug)]
struct Streams {
    open: AtomicUsize,
    /// How many the upstream allows.
    limit: AtomicUsize,
    /// Since when there are none.
    idle_since: Mutex<Instant>,
}

/// A request's place on a connection, until its answer has ended.
#[derive(Debug)]
pub(crate) struct Stream(Arc<Streams>);

impl Shared {
    /// `limit` is how many requests the upstream allows.
    pub(crate) fn new(
        sender: http2::SendRequest<Body<Inbound>>,
        socket: Socket,
        limit: usize,
    ) -> Self {
        let streams = Streams {
            open: AtomicUsize::new(0),
            limit: AtomicUsize::new(limit),
            idle_since: Mutex::new(Instant::now()),
        };
        Self { sender, socket, streams: Arc::new(streams) }
    }

    /// Drives a connection, and keeps an eye on how many requests the upstream allows.
    pub(crate) async fn drive<C>(self, connection: C, allowed: impl Fn(&C) -> usize)
    where
        C: Future + Unpin,
    {
        let mut connection = connection;
        let streams = Arc::clone(&self.streams);
        // The sender in it would keep the connection open.
        drop(self);
        poll_fn(|context| {
            let done = pin!(&mut connection).poll(context).map(drop);
            streams.limit.store(allowed(&connection), Ordering::Relaxed);
            done
        })
        .await;
    }

    /// A place for one more request, if there is one.
    ///
    /// A request that is given to hyper beyond the limit would wait there, and nobody could take it
    /// back.
    pub(crate) fn join(&self) -> Option<Stream> {
        let limit = self.streams.limit.load(Ordering::Relaxed).min(STREAMS_MAX);
        if self.streams.open.load(Ordering::Relaxed) >= limit {
            return None;
        }
        self.streams.open.fetch_add(1, Ordering::Relaxed);
        Some(Stream(Arc::clone(&self.streams)))
    }

    /// Whether it may be used for another request: one that has been idle for too long may have
    /// been forgotten on the way, or be closed already.
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

impl Streams {
    fn idle_since(&self) -> MutexGuard<'_, Instant> {
        self.idle_since.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Drop for Stream {
    fn drop(&mut self) {
        if self.0.open.fetch_sub(1, Ordering::Relaxed) == 1 {
            *self.0.idle_since() = Instant::now();
        }
    }
}
