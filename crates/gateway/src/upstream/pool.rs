//! The connections of one worker to one upstream.
//!
//! Each worker has its own pools, so that a request never waits for another thread. An HTTP/1.1
//! connection serves one request at a time and returns to the pool when the response has ended; an
//! HTTP/2 connection is shared.

use std::{
    future::Future,
    pin::Pin,
    sync::{
        Arc, Mutex, MutexGuard, PoisonError,
        atomic::{AtomicBool, Ordering},
    },
    time::{Duration, SystemTime},
};

use http::HeaderMap;
use tokio::time::{Instant, timeout};

use crate::error::ForwardError;
use crate::headers;
use crate::tls::UpstreamConnector;
use crate::upstream::connect;
use crate::upstream::connect::NewConnection;
use crate::upstream::h2_connection::{Http2Connection, StreamPermit};
use semel_config::{Protocol, Upstream};
use semel_http1::{ConnectionOwner, Http1Connection};

/// Margin subtracted from the upstream's `Keep-Alive: timeout`: its timer started before ours, and
/// a request takes time to arrive.
const KEEP_ALIVE_MARGIN: Duration = Duration::from_secs(1);

/// The connections of one worker to one upstream.
#[derive(Debug)]
pub(crate) struct Pool {
    upstream: Arc<Upstream>,
    connector: UpstreamConnector,
    ca_modified: Option<SystemTime>,
    idle: Mutex<Vec<IdleConnection>>,
    shared: Mutex<Vec<Http2Connection>>,
    /// Held while connecting over HTTP/2, so that concurrent requests open one connection.
    connecting: tokio::sync::Mutex<()>,
    /// Whether the last new connection speaks HTTP/1.1.
    is_http1: AtomicBool,
}

#[derive(Debug)]
struct IdleConnection {
    connection: Http1Connection,
    since: Instant,
    /// Maximum idle time.
    idle_max: Duration,
}

impl IdleConnection {
    fn is_expired(&self, now: Instant) -> bool {
        now.saturating_duration_since(self.since) >= self.idle_max
    }
}

/// A connection checked out of its pool.
#[derive(Debug)]
pub(crate) struct PooledConnection {
    connection: Http1Connection,
    pool: Arc<Pool>,
    /// Maximum idle time after its return, and since when that counts.
    idle_max: Duration,
    idle_since: Option<Instant>,
}

/// A connection to send a request on.
#[derive(Debug)]
pub(crate) enum Checkout {
    Http1(PooledConnection),
    Http2(Http2Connection, StreamPermit),
}

impl Pool {
    /// `ca_modified` is the modification time of the CA file.
    pub(crate) fn new(
        upstream: Arc<Upstream>,
        connector: UpstreamConnector,
        ca_modified: Option<SystemTime>,
    ) -> Self {
        Self {
            upstream,
            connector,
            ca_modified,
            idle: Mutex::default(),
            shared: Mutex::default(),
            connecting: tokio::sync::Mutex::default(),
            is_http1: AtomicBool::new(false),
        }
    }

    pub(crate) const fn ca_modified(&self) -> Option<SystemTime> {
        self.ca_modified
    }

    pub(crate) const fn upstream(&self) -> &Arc<Upstream> {
        &self.upstream
    }

    /// Whether its upstream may use HTTP/2, as far as that is known.
    pub(crate) fn may_use_http2(&self) -> bool {
        match self.upstream.protocol {
            Protocol::Http1 => false,
            Protocol::Auto => self.upstream.tls && !self.is_http1.load(Ordering::Relaxed),
            Protocol::Http2 => true,
        }
    }

    /// Checks out an existing connection, or connects.
    pub(crate) async fn checkout(self: &Arc<Self>) -> Result<Checkout, ForwardError> {
        match self.checkout_existing() {
            Some(checkout) => Ok(checkout),
            None => self.connect().await,
        }
    }

    /// Connects. Boxed because it is rare and its future is large.
    pub(crate) fn connect(
        self: &Arc<Self>,
    ) -> Pin<Box<dyn Future<Output = Result<Checkout, ForwardError>> + Send + '_>> {
        Box::pin(self.connect_or_join())
    }

    async fn connect_or_join(self: &Arc<Self>) -> Result<Checkout, ForwardError> {
        if self.upstream.protocol != Protocol::Http2 {
            return self.connect_new().await;
        }
        // A request that waited for the lock uses the connection that the previous holder opened.
        // If that failed, the timeout bounds the wait.
        let guard = timeout(self.upstream.connect_timeout, self.connecting.lock()).await;
        let Ok(_guard) = guard else {
            let authority = &self.upstream.authority;
            return Err(ForwardError::unreachable(format!("no connection to {authority} yet")));
        };
        match self.checkout_existing() {
            Some(checkout) => Ok(checkout),
            None => self.connect_new().await,
        }
    }

    async fn connect_new(self: &Arc<Self>) -> Result<Checkout, ForwardError> {
        let connected = connect::connect(&self.upstream, &self.connector).await?;
        self.is_http1.store(matches!(connected, NewConnection::Http1(_)), Ordering::Relaxed);
        match connected {
            NewConnection::Http1(connection) => Ok(Checkout::Http1(self.check_out(connection))),
            NewConnection::Http2(shared) => {
                let full = || ForwardError::unreachable("the upstream allows no streams");
                let stream = shared.reserve_stream().ok_or_else(full)?;
                lock(&self.shared).push(shared.clone());
                Ok(Checkout::Http2(shared, stream))
            }
        }
    }

    fn checkout_existing(self: &Arc<Self>) -> Option<Checkout> {
        if let Some(pooled) = self.checkout_idle() {
            return Some(Checkout::Http1(pooled));
        }
        let mut shared = lock(&self.shared);
        shared.retain(|shared| shared.is_alive(self.upstream.pool_idle));
        shared
            .iter()
            .find_map(|shared| Some(Checkout::Http2(shared.clone(), shared.reserve_stream()?)))
    }

    /// Checks out an idle HTTP/1.1 connection.
    pub(crate) fn checkout_idle(self: &Arc<Self>) -> Option<PooledConnection> {
        self.take_idle().map(|connection| self.check_out(connection))
    }

    fn check_out(self: &Arc<Self>, connection: Http1Connection) -> PooledConnection {
        let idle_max = self.upstream.pool_idle;
        PooledConnection { connection, pool: Arc::clone(self), idle_max, idle_since: None }
    }

    fn take_idle(&self) -> Option<Http1Connection> {
        let now = Instant::now();
        loop {
            // The most recently used first, so that surplus connections expire.
            let mut idle = lock(&self.idle).pop()?;
            // Asks the kernel, at the cost of a system call: no task reads an idle connection, and
            // a request sent after the upstream closed it has an unknown outcome.
            if !idle.is_expired(now) && idle.connection.is_usable() {
                return Some(idle.connection);
            }
        }
    }

    /// Closes connections that have expired or ended.
    pub(crate) fn prune(&self) {
        let now = Instant::now();
        let keep = |idle: &mut IdleConnection| !idle.is_expired(now) && idle.connection.is_usable();
        lock(&self.idle).retain_mut(keep);
        lock(&self.shared).retain(|shared| shared.is_alive(self.upstream.pool_idle));
    }

    fn put(&self, connection: Http1Connection, since: Instant, idle_max: Duration) {
        let mut idle = lock(&self.idle);
        if idle.len() < self.upstream.pool_max && !idle_max.is_zero() {
            idle.push(IdleConnection { connection, since, idle_max });
        }
    }
}

impl PooledConnection {
    pub(crate) fn upstream(&self) -> &Upstream {
        &self.pool.upstream
    }
}

impl ConnectionOwner for PooledConnection {
    fn connection(&self) -> &Http1Connection {
        &self.connection
    }

    fn connection_mut(&mut self) -> &mut Http1Connection {
        &mut self.connection
    }

    fn into_connection(self) -> Http1Connection {
        self.connection
    }

    fn write_timeout(&self) -> Duration {
        self.pool.upstream.timeout
    }

    /// Applies the upstream's `Keep-Alive: timeout`. The idle time is counted from the response
    /// head, because a slow client can delay reading the end of the body.
    fn apply_keep_alive(&mut self, headers: &HeaderMap) {
        self.idle_since = Some(Instant::now());
        if let Some(announced) = headers::keep_alive_timeout(headers) {
            self.idle_max = self.idle_max.min(announced.saturating_sub(KEEP_ALIVE_MARGIN));
        }
    }

    /// Returns the connection to the pool for the next request.
    fn return_to_pool(mut self) {
        self.connection.prepare_for_reuse();
        let since = self.idle_since.unwrap_or_else(Instant::now);
        self.pool.put(self.connection, since, self.idle_max);
    }
}

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

#[cfg(test)]
mod tests {
    use std::{io::Write as _, net::TcpListener, thread};

    use super::*;

    /// A pool with one idle connection, and its other end. Nothing is awaited afterwards, so the
    /// runtime gets no notification for it.
    async fn idle() -> (Arc<Pool>, std::net::TcpStream) {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let url = format!("http://{}", listener.local_addr().unwrap());
        let upstream = Arc::new(Upstream::at(&url).unwrap());
        let pool = Arc::new(Pool::new(upstream, UpstreamConnector::Clear, None));
        let Ok(Checkout::Http1(pooled)) = pool.connect().await else { panic!("no connection") };
        pooled.return_to_pool();
        while lock(&pool.idle).is_empty() {
            tokio::task::yield_now().await;
        }
        (pool, listener.accept().unwrap().0)
    }

    #[tokio::test]
    async fn an_upstream_that_has_negotiated_http1_is_not_taken_for_http2() {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let url = format!("https://{}", listener.local_addr().unwrap());
        let upstream = Arc::new(Upstream::at(&url).unwrap());
        assert_eq!(upstream.protocol, Protocol::Auto);
        // Without TLS, nothing but HTTP/1.1 is negotiated.
        let pool = Arc::new(Pool::new(upstream, UpstreamConnector::Clear, None));
        assert!(pool.may_use_http2(), "nothing is known yet");
        assert!(matches!(pool.connect_new().await, Ok(Checkout::Http1(_))));
        assert!(!pool.may_use_http2());
    }

    #[tokio::test]
    async fn idle_time_counts_from_the_head_of_the_last_response() {
        let (pool, _open) = idle().await;
        let mut pooled = pool.checkout_idle().expect("an idle connection");
        pooled.apply_keep_alive(&HeaderMap::new());
        let began = pooled.idle_since.expect("idle time counts");
        pooled.return_to_pool();
        let idle = lock(&pool.idle);
        assert!(!idle[0].is_expired(began + pool.upstream.pool_idle - Duration::from_nanos(1)));
        assert!(
            idle[0].is_expired(began + pool.upstream.pool_idle),
            "counted from the response head"
        );
    }

    #[tokio::test]
    async fn a_closed_or_unsolicited_connection_is_not_used_before_the_runtime_is_notified() {
        let (pool, _open) = idle().await;
        assert!(pool.checkout_existing().is_some(), "a good connection is used");
        let (pool, closed) = idle().await;
        drop(closed);
        // The kernel delivers the event; the runtime, whose thread this is, does not notice it.
        thread::sleep(Duration::from_millis(50));
        assert!(pool.checkout_existing().is_none(), "a closed connection");
        let (pool, mut spoke) = idle().await;
        spoke.write_all(b"HTTP/1.1 200 OK\r\n\r\n").unwrap();
        // The kernel delivers the event; the runtime, whose thread this is, does not notice it.
        thread::sleep(Duration::from_millis(50));
        assert!(pool.checkout_existing().is_none(), "a connection with unsolicited bytes");
    }
}
