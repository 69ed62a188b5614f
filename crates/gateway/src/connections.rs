//! The open client connections, their limit, and the eviction of idle ones.
//!
//! At the limit, a new connection evicts an idle one: one without a request, one whose requests all
//! wait for the rest of a guarded body, or a tunnel without traffic. The victim is the longest idle
//! connection of the peer with the most connections. Other connections are busy: their requests may
//! have been forwarded, so they are never evicted. One peer may have only a part of all connections
//! busy; the rest is reserved for other peers. A trusted proxy has the connections of many clients:
//! each counts as one client's, and all may be busy. A request costs a few atomic additions here;
//! idle connections are ranked only when an eviction is needed, for many evictions at a time.

use std::{
    cmp::Reverse,
    collections::{BinaryHeap, HashMap},
    net::{IpAddr, SocketAddr},
    sync::{
        Arc, Mutex, MutexGuard, PoisonError,
        atomic::{AtomicBool, AtomicU64, AtomicUsize, Ordering},
    },
    time::Duration,
};

use arc_swap::ArcSwap;
use semel::Sender;
use tokio::{
    sync::{OwnedSemaphorePermit, Semaphore},
    task::AbortHandle,
    time::{Instant, sleep, timeout},
};

use crate::proxies::TrustedProxies;
use semel_telemetry::metrics::{EvictionReason, Metrics};

/// Idle time after which a tunnel can be evicted, unless its peer has more connections than its
/// share.
const TUNNEL_IDLE_MIN: Duration = Duration::from_secs(1);

/// Time that a worker may take to close an evicted connection before another one is evicted.
const CLOSE_TIMEOUT: Duration = Duration::from_secs(1);

/// Interval between attempts while every connection is in use.
const EVICT_RETRY_INTERVAL: Duration = Duration::from_millis(20);

/// One ranking selects this fraction of the limit as candidates for eviction.
const BATCH_DIVISOR: usize = 16;
const BATCH_MAX: usize = 256;

/// This fraction of all connections is reserved for other peers than the busiest one.
const RESERVED_DIVISOR: usize = 8;

/// HTTP/2 streams that may be open however few connections may.
const STREAMS_MIN: usize = 1000;

/// Units of [`OpenConnection::requests`]: the closed flag, set by eviction and by closing; one
/// request; one request that waits for its body.
const EVICTED: u64 = 1 << 63;
const REQUEST: u64 = 1 << 32;
const AWAITED: u64 = 1;

/// The client connections of a gateway.
#[derive(Debug)]
pub(crate) struct Connections {
    permits: Arc<Semaphore>,
    max: usize,
    metrics: Arc<Metrics>,
    /// Peers whose connections are not one client's.
    proxies: ArcSwap<TrustedProxies>,
    streams: Arc<OpenStreams>,
    last_id: AtomicU64,
    open: Mutex<HashMap<u64, Arc<OpenConnection>>>,
    /// By address.
    peers: Mutex<HashMap<Option<IpAddr>, OpenOfPeer>>,
    /// Candidates for eviction with their `since` at the ranking. The next victim is last.
    candidates: Mutex<Vec<(Arc<OpenConnection>, u64)>>,
}

/// An open connection of a client.
#[derive(Debug)]
pub(crate) struct OpenConnection {
    id: u64,
    sender: Sender,
    /// Whether the peer is a trusted proxy.
    is_proxy: bool,
    opened: Instant,
    /// See [`EVICTED`].
    requests: AtomicU64,
    /// Time when it last became idle, in microseconds since it was opened.
    since: AtomicU64,
    is_tunnel: AtomicBool,
    /// The busy connections of its peer.
    busy: Arc<BusyConnections>,
    /// The HTTP/2 streams of all connections.
    streams: Arc<OpenStreams>,
    /// The task that serves it.
    task: Mutex<Option<AbortHandle>>,
    metrics: Arc<Metrics>,
}

/// Number of open connections of a peer, and its busy ones.
type OpenOfPeer = (usize, Arc<BusyConnections>);

/// The connections of a peer that cannot be evicted.
#[derive(Debug)]
struct BusyConnections {
    count: AtomicUsize,
    max: usize,
    /// Open HTTP/2 streams of the peer.
    streams: AtomicUsize,
}

/// The open HTTP/2 streams of all clients.
#[derive(Debug)]
struct OpenStreams {
    count: AtomicUsize,
    max: usize,
}

/// An open HTTP/2 stream. It counts until it is dropped.
#[derive(Debug)]
pub(crate) struct OpenStream(Arc<OpenConnection>);

impl Drop for OpenStream {
    fn drop(&mut self) {
        let Self(connection) = self;
        connection.busy.streams.fetch_sub(1, Ordering::AcqRel);
        connection.streams.count.fetch_sub(1, Ordering::AcqRel);
        connection.metrics.stream_closed();
    }
}

/// Permit of a connection under the limit. Released on drop.
#[derive(Debug)]
pub(crate) struct ConnectionPermit {
    connection: Arc<OpenConnection>,
    connections: Arc<Connections>,
    _permit: OwnedSemaphorePermit,
}

impl Connections {
    pub(crate) fn new(max: usize, metrics: &Arc<Metrics>) -> Arc<Self> {
        Arc::new(Self {
            permits: Arc::new(Semaphore::new(max)),
            max,
            metrics: Arc::clone(metrics),
            proxies: ArcSwap::default(),
            streams: Arc::new(OpenStreams {
                count: AtomicUsize::new(0),
                max: max.max(STREAMS_MIN),
            }),
            last_id: AtomicU64::new(0),
            open: Mutex::default(),
            peers: Mutex::default(),
            candidates: Mutex::default(),
        })
    }

    /// Acquires a permit. Evicts another connection if none is left; waits while all of them are in
    /// use.
    pub(crate) async fn admit(self: &Arc<Self>, address: SocketAddr) -> ConnectionPermit {
        loop {
            if let Some(permit) = self.try_admit(address) {
                return permit;
            }
            let wait = if self.evict() { CLOSE_TIMEOUT } else { EVICT_RETRY_INTERVAL };
            // The semaphore is never closed.
            let permit = timeout(wait, Arc::clone(&self.permits).acquire_owned()).await;
            if let Ok(Ok(permit)) = permit {
                return self.open(address, permit);
            }
        }
    }

    /// Acquires a permit if one is left.
    pub(crate) fn try_admit(self: &Arc<Self>, address: SocketAddr) -> Option<ConnectionPermit> {
        let permit = Arc::clone(&self.permits).try_acquire_owned().ok()?;
        Some(self.open(address, permit))
    }

    /// Sets the trusted proxies. Connections that are open stay as they are.
    pub(crate) fn set_proxies(&self, proxies: TrustedProxies) {
        self.proxies.store(Arc::new(proxies));
    }

    /// Number of open connections.
    pub(crate) fn count(&self) -> usize {
        lock(&self.open).len()
    }

    /// Waits until no connection is open.
    pub(crate) async fn wait_all_closed(&self) {
        let all = u32::try_from(self.max).unwrap_or(u32::MAX);
        // The semaphore is never closed.
        let _ = self.permits.acquire_many(all).await;
    }

    fn open(
        self: &Arc<Self>,
        address: SocketAddr,
        permit: OwnedSemaphorePermit,
    ) -> ConnectionPermit {
        let id = self.last_id.fetch_add(1, Ordering::Relaxed);
        let sender = Sender::new(address.ip(), id);
        let is_proxy = self.proxies.load().contains(address.ip());
        let connection = Arc::new(OpenConnection {
            id,
            sender,
            is_proxy,
            opened: Instant::now(),
            requests: AtomicU64::new(0),
            since: AtomicU64::new(0),
            is_tunnel: AtomicBool::new(false),
            busy: self.add_connection_of(sender.peer()),
            streams: Arc::clone(&self.streams),
            task: Mutex::default(),
            metrics: Arc::clone(&self.metrics),
        });
        lock(&self.open).insert(id, Arc::clone(&connection));
        self.metrics.connection_opened();
        ConnectionPermit { connection, connections: Arc::clone(self), _permit: permit }
    }

    /// Counts a new connection of a peer.
    fn add_connection_of(&self, peer: Option<IpAddr>) -> Arc<BusyConnections> {
        let max = share_of(self.max);
        let (count, streams) = (AtomicUsize::new(0), AtomicUsize::new(0));
        let none = || (0, Arc::new(BusyConnections { count, max, streams }));
        let mut peers = lock(&self.peers);
        let (open, busy) = peers.entry(peer).or_insert_with(none);
        *open = open.saturating_add(1);
        Arc::clone(busy)
    }

    /// Evicts one connection, if one is idle.
    fn evict(&self) -> bool {
        let mut candidates = lock(&self.candidates);
        // The candidates of the last ranking may be in use by now; those of a new one hardly are.
        for _ in 0..2 {
            while let Some((connection, since)) = candidates.pop() {
                if connection.evict(since) {
                    return true;
                }
            }
            *candidates = self.rank();
        }
        false
    }

    /// Selects candidates for eviction, the next victim last.
    fn rank(&self) -> Vec<(Arc<OpenConnection>, u64)> {
        let mut peers: HashMap<_, (usize, Vec<_>)> = HashMap::new();
        for connection in lock(&self.open).values() {
            // Of a trusted proxy, each connection is a group of its own.
            let of_proxy = connection.is_proxy.then_some(connection.id);
            let (count, idle) = peers.entry((connection.sender.peer(), of_proxy)).or_default();
            *count += 1;
            idle.extend(connection.idle_rank().map(|rank| (rank, Arc::clone(connection))));
        }
        let mut heap = BinaryHeap::new();
        for (count, mut idle) in peers.into_values() {
            // Otherwise a peer whose tunnels are all new would keep them, and others would lose
            // idle connections or wait.
            if count <= share_of(self.max) {
                idle.retain(|(rank, _)| !rank.is_recent_tunnel());
            }
            idle.sort_unstable_by_key(|(rank, connection)| Reverse((*rank, connection.id)));
            if let Some((rank, _)) = idle.last() {
                heap.push(PeerConnections { count, first: *rank, idle });
            }
        }
        let batch = (self.max / BATCH_DIVISOR).clamp(1, BATCH_MAX);
        let mut found = Vec::with_capacity(batch);
        while found.len() < batch
            && let Some(mut peer) = heap.pop()
        {
            if let Some((rank, connection)) = peer.idle.pop() {
                found.push((connection, rank.since));
            }
            if let Some((rank, _)) = peer.idle.last() {
                (peer.count, peer.first) = (peer.count - 1, *rank);
                heap.push(peer);
            }
        }
        found.reverse();
        found
    }
}

/// How many of all connections one peer may have busy.
const fn share_of(max: usize) -> usize {
    max.saturating_sub(max / RESERVED_DIVISOR)
}

/// Order of eviction among the connections of a peer.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
struct EvictionRank {
    /// Tunnels are evicted last: idle periods are normal for them.
    is_tunnel: bool,
    waiting_since: Instant,
    since: u64,
}

impl EvictionRank {
    fn is_recent_tunnel(&self) -> bool {
        self.is_tunnel && self.waiting_since.elapsed() < TUNNEL_IDLE_MIN
    }
}

/// The connections of a peer. The greatest in this order loses a connection first.
struct PeerConnections {
    count: usize,
    first: EvictionRank,
    /// Sorted; the next victim last.
    idle: Vec<(EvictionRank, Arc<OpenConnection>)>,
}

impl PeerConnections {
    const fn order(&self) -> (usize, Reverse<EvictionRank>) {
        (self.count, Reverse(self.first))
    }
}

impl PartialEq for PeerConnections {
    fn eq(&self, other: &Self) -> bool {
        self.order() == other.order()
    }
}

impl Eq for PeerConnections {}

impl PartialOrd for PeerConnections {
    fn partial_cmp(&self, other: &Self) -> Option<std::cmp::Ordering> {
        Some(self.cmp(other))
    }
}

impl Ord for PeerConnections {
    fn cmp(&self, other: &Self) -> std::cmp::Ordering {
        self.order().cmp(&other.order())
    }
}

impl OpenConnection {
    pub(crate) const fn sender(&self) -> Sender {
        self.sender
    }

    pub(crate) const fn metrics(&self) -> &Arc<Metrics> {
        &self.metrics
    }

    /// Sets the task to abort on eviction.
    pub(crate) fn set_task(&self, task: AbortHandle) {
        let mut slot = lock(&self.task);
        if self.is_evicted() {
            task.abort();
        }
        *slot = Some(task);
    }

    /// Starts a request. `None` if the connection was evicted before, or if its peer has too many
    /// busy connections.
    pub(crate) fn begin(self: &Arc<Self>) -> Option<ActiveRequest> {
        let more = |now: u64| (now & EVICTED == 0).then(|| now + REQUEST);
        let before = self.requests.fetch_update(Ordering::AcqRel, Ordering::Acquire, more).ok()?;
        let request = ActiveRequest(Arc::clone(self));
        let has_become = !is_busy(before);
        let busy = self.update_busy(before, before + REQUEST);
        if has_become && busy > self.busy.max && !self.is_proxy {
            self.metrics.evicted(EvictionReason::Share);
            return None;
        }
        Some(request)
    }

    /// Opens an HTTP/2 stream. One peer may have as many as it leaves free; connections of trusted
    /// proxies leave an eighth. `None` for one more.
    pub(crate) fn open_stream(self: &Arc<Self>) -> Option<OpenStream> {
        let of_peer = self.busy.streams.fetch_add(1, Ordering::AcqRel);
        let of_all = self.streams.count.fetch_add(1, Ordering::AcqRel);
        self.metrics.stream_opened();
        let stream = OpenStream(Arc::clone(self));
        let (max, free) = (self.streams.max, self.streams.max.saturating_sub(of_all));
        let fits = if self.is_proxy { free > max / RESERVED_DIVISOR } else { of_peer < free };
        if !fits {
            self.metrics.evicted(EvictionReason::Streams);
        }
        fits.then_some(stream)
    }

    /// Updates the peer's count of busy connections. Returns the new count.
    fn update_busy(&self, before: u64, after: u64) -> usize {
        let count = &self.busy.count;
        match (is_busy(before), is_busy(after)) {
            (false, true) => count.fetch_add(1, Ordering::AcqRel).saturating_add(1),
            (true, false) => count.fetch_sub(1, Ordering::AcqRel).saturating_sub(1),
            _ => 0,
        }
    }

    /// Records activity of the client.
    pub(crate) fn touch(&self) {
        let micros = self.opened.elapsed().as_micros();
        self.since.store(u64::try_from(micros).unwrap_or(u64::MAX), Ordering::Relaxed);
    }

    /// Time since the last activity.
    pub(crate) fn idle_time(&self) -> Duration {
        let since = Duration::from_micros(self.since.load(Ordering::Relaxed));
        self.opened.elapsed().saturating_sub(since)
    }

    pub(crate) fn is_evicted(&self) -> bool {
        self.requests.load(Ordering::Acquire) & EVICTED != 0
    }

    /// Its eviction rank; `None` if it is busy.
    fn idle_rank(&self) -> Option<EvictionRank> {
        let since = self.since.load(Ordering::Relaxed);
        let waiting_since = self.opened + Duration::from_micros(since);
        let is_tunnel = self.is_tunnel.load(Ordering::Relaxed);
        let waits = is_waiting(self.requests.load(Ordering::Acquire));
        waits.then_some(EvictionRank { is_tunnel, waiting_since, since })
    }

    /// Evicts it, unless it is in use or was used after `since`.
    fn evict(&self, since: u64) -> bool {
        if self.since.load(Ordering::Relaxed) != since {
            return false;
        }
        let close = |now: u64| is_waiting(now).then_some(now | EVICTED);
        if self.requests.fetch_update(Ordering::AcqRel, Ordering::Acquire, close).is_err() {
            return false;
        }
        let is_tunnel = self.is_tunnel.load(Ordering::Relaxed);
        self.metrics.evicted(if is_tunnel {
            EvictionReason::Tunnel
        } else {
            EvictionReason::Connection
        });
        if let Some(task) = &*lock(&self.task) {
            task.abort();
        }
        true
    }
}

/// Whether every request of a connection waits for its body, that is, for the client.
const fn is_waiting(requests: u64) -> bool {
    requests & EVICTED == 0 && !is_busy(requests)
}

/// Whether a request of a connection waits for something else than its client.
const fn is_busy(requests: u64) -> bool {
    let requests = requests & !EVICTED;
    requests / REQUEST != requests % REQUEST
}

/// A request in progress. It protects its connection from eviction.
#[derive(Debug)]
pub(crate) struct ActiveRequest(Arc<OpenConnection>);

impl Drop for ActiveRequest {
    fn drop(&mut self) {
        self.0.touch();
        let before = self.0.requests.fetch_sub(REQUEST, Ordering::AcqRel);
        self.0.update_busy(before, before.wrapping_sub(REQUEST));
    }
}

/// A body that is still being read. Its request has had no effect yet, so its connection may be
/// evicted.
#[derive(Debug)]
pub(crate) struct AwaitedBody {
    connection: Arc<OpenConnection>,
    is_waiting: bool,
}

impl AwaitedBody {
    pub(crate) const fn new(connection: Arc<OpenConnection>) -> Self {
        Self { connection, is_waiting: false }
    }

    pub(crate) fn start_waiting(&mut self) {
        if !self.is_waiting {
            self.is_waiting = true;
            let before = self.connection.requests.fetch_add(AWAITED, Ordering::AcqRel);
            self.connection.update_busy(before, before.wrapping_add(AWAITED));
        }
    }

    pub(crate) fn stop_waiting(&mut self) {
        if self.is_waiting {
            self.is_waiting = false;
            self.connection.touch();
            let before = self.connection.requests.fetch_sub(AWAITED, Ordering::AcqRel);
            self.connection.update_busy(before, before.wrapping_sub(AWAITED));
        }
    }
}

impl Drop for AwaitedBody {
    fn drop(&mut self) {
        self.stop_waiting();
    }
}

/// A connection that has become a tunnel.
#[derive(Debug)]
pub(crate) struct Tunnel(Arc<OpenConnection>);

impl Tunnel {
    pub(crate) fn new(connection: &Arc<OpenConnection>) -> Self {
        connection.is_tunnel.store(true, Ordering::Relaxed);
        connection.touch();
        connection.metrics.tunnel_opened();
        Self(Arc::clone(connection))
    }

    /// Waits until the tunnel has been idle for `max`.
    pub(crate) async fn wait_idle(&self, max: Duration) {
        loop {
            let left = max.saturating_sub(self.0.idle_time());
            if left.is_zero() {
                return self.0.metrics.evicted(EvictionReason::TunnelTimeout);
            }
            sleep(left).await;
        }
    }
}

impl Drop for Tunnel {
    fn drop(&mut self) {
        self.0.metrics.tunnel_closed();
    }
}

impl ConnectionPermit {
    pub(crate) const fn connection(&self) -> &Arc<OpenConnection> {
        &self.connection
    }
}

impl Drop for ConnectionPermit {
    fn drop(&mut self) {
        // It may still be a candidate; evicting a closed connection would free no permit.
        self.connection.requests.fetch_or(EVICTED, Ordering::AcqRel);
        lock(&self.connections.open).remove(&self.connection.id);
        let peer = self.connection.sender.peer();
        let mut peers = lock(&self.connections.peers);
        if let Some((open, _)) = peers.get_mut(&peer) {
            *open = open.saturating_sub(1);
            if *open == 0 {
                peers.remove(&peer);
            }
        }
        drop(peers);
        self.connections.metrics.connection_closed();
    }
}

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

#[cfg(test)]
mod tests;
