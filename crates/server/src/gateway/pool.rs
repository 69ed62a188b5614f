//! The connections of one thread to one upstream.
//!
//! Each thread has its own, so that a request never waits for another thread. A connection over
//! HTTP/1.1 serves one request at a time and comes back when its answer has ended; one over HTTP/2
//! is shared.

use std::{
    future::Future,
    pin::Pin,
    sync::{Arc, Mutex, MutexGuard, PoisonError},
    time::{Duration, SystemTime},
};

use http::HeaderMap;
use tokio::time::{Instant, timeout};

use super::{
    connect::{self, Connected},
    error::ForwardError,
    headers,
    http1::Connection,
    shared::{Shared, Stream},
    tls::Connector,
};
use crate::config::{Protocol, Upstream};

/// How much sooner than an upstream says a connection counts as closed: its clock began before
/// ours, and a request takes a moment to arrive.
const ON_THE_WAY: Duration = Duration::from_secs(1);

/// The connections of one thread to one upstream.
#[derive(Debug)]
pub(crate) struct Pool {
    upstream: Arc<Upstream>,
    connector: Connector,
    trusted_since: Option<SystemTime>,
    idle: Mutex<Vec<Idle>>,
    shared: Mutex<Vec<Shared>>,
    /// Held by the one who connects by HTTP/2, so that a hundred requests do not all do it.
    connecting: tokio::sync::Mutex<()>,
}

#[derive(Debug)]
struct Idle {
    connection: Connection,
    since: Instant,
    /// How long it may be idle.
    for_at_most: Duration,
}

impl Idle {
    fn is_old(&self, now: Instant) -> bool {
        now.saturating_duration_since(self.since) >= self.for_at_most
    }
}

/// A connection that is in use, and where it belongs.
#[derive(Debug)]
pub(crate) struct Lent {
    pub(crate) connection: Connection,
    pool: Arc<Pool>,
    /// How long it may be idle afterwards, and since when that counts.
    idle_max: Duration,
    idle_since: Option<Instant>,
}

/// A way to the upstream.
#[derive(Debug)]
pub(crate) enum Way {
    Http1(Lent),
    Http2(Shared, Stream),
}

impl Pool {
    /// `trusted_since` is when the certificates that are trusted were last changed.
    pub(crate) fn new(
        upstream: Arc<Upstream>,
        connector: Connector,
        trusted_since: Option<SystemTime>,
    ) -> Self {
        Self {
            upstream,
            connector,
            trusted_since,
            idle: Mutex::default(),
            shared: Mutex::default(),
            connecting: tokio::sync::Mutex::default(),
        }
    }

    pub(crate) const fn trusted_since(&self) -> Option<SystemTime> {
        self.trusted_since
    }

    pub(crate) const fn upstream(&self) -> &Arc<Upstream> {
        &self.upstream
    }

    /// A connection that is here already, or a new one.
    pub(crate) async fn way(self: &Arc<Self>) -> Result<Way, ForwardError> {
        match self.at_hand() {
            Some(way) => Ok(way),
            None => self.connect().await,
        }
    }

    /// A new connection. Boxed: it is rare, and its future is large.
    pub(crate) fn connect(
        self: &Arc<Self>,
    ) -> Pin<Box<dyn Future<Output = Result<Way, ForwardError>> + Send + '_>> {
        Box::pin(self.make())
    }

    async fn make(self: &Arc<Self>) -> Result<Way, ForwardError> {
        if self.upstream.protocol != Protocol::Http2 {
            return self.make_alone().await;
        }
        // Whoever waited here finds what the one before has made; or, if there was nothing to be
        // had, does not wait for a turn of its own as well.
        let turn = timeout(self.upstream.connect_timeout, self.connecting.lock()).await;
        let Ok(_turn) = turn else {
            let authority = &self.upstream.authority;
            return Err(ForwardError::unreachable(format!("no connection to {authority} so far")));
        };
        match self.at_hand() {
            Some(way) => Ok(way),
            None => self.make_alone().await,
        }
    }

    async fn make_alone(self: &Arc<Self>) -> Result<Way, ForwardError> {
        match connect::connect(&self.upstream, &self.connector).await? {
            Connected::Http1(connection) => Ok(Way::Http1(self.lend(connection))),
            Connected::Http2(shared) => {
                let full = || ForwardError::unreachable("the upstream allows no request");
                let stream = shared.join().ok_or_else(full)?;
                lock(&self.shared).push(shared.clone());
                Ok(Way::Http2(shared, stream))
            }
        }
    }

    fn at_hand(self: &Arc<Self>) -> Option<Way> {
        if let Some(lent) = self.idle() {
            return Some(Way::Http1(lent));
        }
        let mut shared = lock(&self.shared);
        shared.retain(|shared| shared.is_alive(self.upstream.pool_idle));
        shared.iter().find_map(|shared| Some(Way::Http2(shared.clone(), shared.join()?)))
    }

    /// A connection over HTTP/1.1 that is here already.
    pub(crate) fn idle(self: &Arc<Self>) -> Option<Lent> {
        self.take_idle().map(|connection| self.lend(connection))
    }

    fn lend(self: &Arc<Self>, connection: Connection) -> Lent {
        let idle_max = self.upstream.pool_idle;
        Lent { connection, pool: Arc::clone(self), idle_max, idle_since: None }
    }

    fn take_idle(&self) -> Option<Connection> {
        let now = Instant::now();
        loop {
            // The youngest first, so that those which are not needed grow old.
            let mut idle = lock(&self.idle).pop()?;
            // The kernel is asked, for the price of a system call: nobody reads while it is idle,
            // and a request that is sent after the end is one whose outcome is unknown.
            if !idle.is_old(now) && idle.connection.is_usable() {
                return Some(idle.connection);
            }
        }
    }

    /// Closes what has been idle for too long, or has ended.
    pub(crate) fn prune(&self) {
        let now = Instant::now();
        let keep = |idle: &mut Idle| !idle.is_old(now) && idle.connection.is_usable();
        lock(&self.idle).retain_mut(keep);
        lock(&self.shared).retain(|shared| shared.is_alive(self.upstream.pool_idle));
    }

    fn put(&self, connection: Connection, since: Instant, for_at_most: Duration) {
        let mut idle = lock(&self.idle);
        if idle.len() < self.upstream.pool_max && !for_at_most.is_zero() {
            idle.push(Idle { connection, since, for_at_most });
        }
    }
}

impl Lent {
    /// Heeds what an answer says about how long the upstream keeps the connection: used after that,
    /// it would break, and with it the request. When the upstream has sent the last of its answer
    /// nobody here can know, since a slow client delays the reading; it was not before the first.
    pub(crate) fn heed(&mut self, answer: &HeaderMap) {
        self.idle_since = Some(Instant::now());
        if let Some(kept) = headers::keep_alive(answer) {
            self.idle_max = self.idle_max.min(kept.saturating_sub(ON_THE_WAY));
        }
    }

    pub(crate) fn upstream(&self) -> &Upstream {
        &self.pool.upstream
    }

    /// Gives the connection back for the next request.
    pub(crate) fn give_back(mut self) {
        self.connection.clear();
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
    /// runtime hears of nothing that happens there.
    async fn idle() -> (Arc<Pool>, std::net::TcpStream) {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let url = format!("http://{}", listener.local_addr().unwrap());
        let upstream = Arc::new(Upstream::at(&url).unwrap());
        let pool = Arc::new(Pool::new(upstream, Connector::Clear, None));
        let Ok(Way::Http1(lent)) = pool.connect().await else { panic!("no connection") };
        lent.give_back();
        while lock(&pool.idle).is_empty() {
            tokio::task::yield_now().await;
        }
        (pool, listener.accept().unwrap().0)
    }

    #[tokio::test]
    async fn a_connection_is_as_old_as_the_beginning_of_its_last_answer() {
        let (pool, _open) = idle().await;
        let mut lent = pool.idle().expect("the idle one");
        lent.heed(&HeaderMap::new());
        let began = lent.idle_since.expect("it has begun");
        lent.give_back();
        let idle = lock(&pool.idle);
        assert!(!idle[0].is_old(began + pool.upstream.pool_idle - Duration::from_nanos(1)));
        assert!(idle[0].is_old(began + pool.upstream.pool_idle), "however long it took");
    }

    #[tokio::test]
    async fn what_ended_or_spoke_unasked_is_not_used_though_the_runtime_has_not_heard_of_it() {
        let (pool, _open) = idle().await;
        assert!(pool.at_hand().is_some(), "a good one is used");
        let (pool, closed) = idle().await;
        drop(closed);
        thread::sleep(Duration::from_millis(50));
        assert!(pool.at_hand().is_none(), "one that has ended");
        let (pool, mut spoke) = idle().await;
        spoke.write_all(b"HTTP/1.1 200 OK\r\n\r\n").unwrap();
        thread::sleep(Duration::from_millis(50));
        assert!(pool.at_hand().is_none(), "one that spoke unasked");
    }
}
