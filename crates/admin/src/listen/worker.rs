//! A thread that serves connections of the listener on a runtime of its own.

use std::{
    collections::VecDeque,
    io,
    net::{SocketAddr, TcpStream},
    sync::{
        Arc,
        atomic::{AtomicBool, AtomicUsize, Ordering},
    },
    thread,
    time::Duration,
};

use tokio::{
    runtime::Builder,
    sync::{mpsc, watch},
    task::{AbortHandle, JoinSet},
    time::{MissedTickBehavior, interval, timeout},
};

use super::{ConnectionState, SHUTDOWN_TIMEOUT, serve_connection};

/// Poll the global queue every 4 tasks, so that commit notifications from the store are not delayed
/// by busy connections.
const GLOBAL_QUEUE_INTERVAL: u32 = 4;

/// Period of a timer that is always registered. Without one, each timer that a request sets may be
/// the earliest, and tokio wakes itself through the kernel for it.
const TIMER_TICK: Duration = Duration::from_millis(20);

/// Sends connections to a worker thread. The worker ends when this is dropped.
#[derive(Debug)]
pub(super) struct ApiWorker {
    sender: mpsc::UnboundedSender<(TcpStream, SocketAddr)>,
    connections: Arc<AtomicUsize>,
}

/// What the worker threads share.
#[derive(Clone)]
pub(super) struct WorkerContext {
    pub(super) connection: ConnectionState,
    /// Maximum number of open connections of one worker.
    pub(super) connections_max: usize,
    /// Changes on shutdown.
    pub(super) ended: watch::Receiver<()>,
    /// Closed once every worker has ended.
    pub(super) running: mpsc::Sender<()>,
}

impl ApiWorker {
    /// Starts a thread.
    pub(super) fn start(index: usize, context: WorkerContext) -> io::Result<Self> {
        let (sender, receiver) = mpsc::unbounded_channel();
        let connections = Arc::new(AtomicUsize::new(0));
        let counter = Arc::clone(&connections);
        let runtime = Builder::new_current_thread()
            .enable_all()
            .global_queue_interval(GLOBAL_QUEUE_INTERVAL)
            .build()?;
        thread::Builder::new().name(format!("api-{index}")).spawn(move || {
            runtime.block_on(run(receiver, context, counter));
            runtime.shutdown_background();
        })?;
        Ok(Self { sender, connections })
    }

    pub(super) fn connections(&self) -> usize {
        self.connections.load(Ordering::Relaxed)
    }

    pub(super) fn send(&self, stream: TcpStream, peer: SocketAddr) {
        self.connections.fetch_add(1, Ordering::Relaxed);
        // If the worker has ended, the connection is closed.
        let _ = self.sender.send((stream, peer));
    }
}

/// An open connection.
struct TrackedConnection {
    handle: AbortHandle,
    /// Whether it processes a request.
    busy: Arc<AtomicBool>,
}

/// Counts a connection until it is dropped.
struct ConnectionCount(Arc<AtomicUsize>);

impl Drop for ConnectionCount {
    fn drop(&mut self) {
        self.0.fetch_sub(1, Ordering::Relaxed);
    }
}

async fn run(
    mut receiver: mpsc::UnboundedReceiver<(TcpStream, SocketAddr)>,
    context: WorkerContext,
    counter: Arc<AtomicUsize>,
) {
    tokio::spawn(tick());
    let (mut connections, mut open) = (JoinSet::new(), VecDeque::new());
    while let Some((stream, peer)) = receiver.recv().await {
        while connections.try_join_next().is_some() {}
        let count = ConnectionCount(Arc::clone(&counter));
        if !make_room(&mut open, context.connections_max) {
            continue;
        }
        let busy = Arc::new(AtomicBool::new(false));
        let state = ConnectionState { peer, busy: Arc::clone(&busy), ..context.connection.clone() };
        let ended = context.ended.clone();
        let handle = connections.spawn(async move {
            serve_connection(stream, state, ended).await;
            drop(count);
        });
        open.push_back(TrackedConnection { handle, busy });
    }
    let all_ended = async { while connections.join_next().await.is_some() {} };
    let _ = timeout(SHUTDOWN_TIMEOUT, all_ended).await;
    drop(context.running);
}

/// Whether there is room for one more connection. At the limit, closes the oldest one that waits
/// for its client. A running call is not cut: its client could not know whether it was done.
fn make_room(open: &mut VecDeque<TrackedConnection>, connections_max: usize) -> bool {
    open.retain(|tracked| !tracked.handle.is_finished());
    if open.len() < connections_max {
        return true;
    }
    let idle = open.iter().position(|tracked| !tracked.busy.load(Ordering::Relaxed));
    let Some(tracked) = idle.and_then(|idle| open.remove(idle)) else { return false };
    tracked.handle.abort();
    true
}

async fn tick() {
    let mut tick = interval(TIMER_TICK);
    tick.set_missed_tick_behavior(MissedTickBehavior::Skip);
    loop {
        tick.tick().await;
    }
}
