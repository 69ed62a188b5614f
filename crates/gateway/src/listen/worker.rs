//! A worker thread with its own runtime, routes and upstream connections. A request stays on one
//! thread from its first byte to its last.

use std::{
    io,
    sync::{
        Arc,
        atomic::{AtomicUsize, Ordering},
    },
    thread::{self, JoinHandle},
    time::Duration,
};

use tokio::{
    runtime::Builder,
    sync::mpsc,
    time::{MissedTickBehavior, interval},
};

use crate::listen::accepted::Accepted;
use crate::listen::connection;
use crate::listen::worker_state::WorkerState;
use crate::shutdown::ShutdownPhase;

/// Interval at which idle upstream connections are pruned.
const PRUNE_INTERVAL: Duration = Duration::from_secs(1);

/// Period of a timer that is always registered. Without it, each timer of a request could become
/// the earliest one, and tokio would wake its I/O driver with a system call. It also refreshes the
/// `Date` header.
const TIMER_TICK: Duration = Duration::from_millis(20);

/// Sends connections to a worker.
#[derive(Clone, Debug)]
pub(crate) struct WorkerHandle {
    sender: mpsc::UnboundedSender<Accepted>,
    connections: Arc<AtomicUsize>,
}

impl WorkerHandle {
    pub(crate) fn connections(&self) -> usize {
        self.connections.load(Ordering::Relaxed)
    }

    pub(crate) const fn connection_counter(&self) -> &Arc<AtomicUsize> {
        &self.connections
    }

    /// The queue needs no limit of its own: every entry holds a connection permit.
    pub(crate) fn send(&self, accepted: Accepted) {
        // If the worker has ended, the connection is closed.
        let _ = self.sender.send(accepted);
    }
}

/// Poll the global queue every 4 tasks, so that commit notifications from the thread of the store
/// are not delayed by busy connections.
const GLOBAL_QUEUE_INTERVAL: u32 = 4;

/// Starts a worker thread.
pub(crate) fn start(
    name: String,
    worker: Arc<WorkerState>,
) -> io::Result<(WorkerHandle, JoinHandle<()>)> {
    let (sender, receiver) = mpsc::unbounded_channel();
    let runtime = Builder::new_current_thread()
        .enable_all()
        .global_queue_interval(GLOBAL_QUEUE_INTERVAL)
        .build()?;
    let thread = thread::Builder::new().name(name).spawn(move || {
        runtime.block_on(run(worker, receiver));
        // Do not wait for a DNS lookup that still runs.
        runtime.shutdown_background();
    })?;
    Ok((WorkerHandle { sender, connections: Arc::default() }, thread))
}

async fn run(worker: Arc<WorkerState>, mut receiver: mpsc::UnboundedReceiver<Accepted>) {
    tokio::spawn(refresh_date(Arc::clone(&worker)));
    tokio::spawn(prune(Arc::clone(&worker)));
    let mut shutdown = worker.shutdown.clone();
    loop {
        let accepted = tokio::select! {
            accepted = receiver.recv() => accepted,
            () = shutdown.wait_for(ShutdownPhase::Ended) => return,
        };
        match accepted {
            Some(accepted) => {
                let connection = Arc::clone(accepted.permit.connection());
                let task = tokio::spawn(connection::serve(accepted, Arc::clone(&worker)));
                connection.set_task(task.abort_handle());
            }
            // No connection will be accepted; the open ones are served until the shutdown ends.
            None => return shutdown.wait_for(ShutdownPhase::Ended).await,
        }
    }
}

async fn refresh_date(worker: Arc<WorkerState>) {
    let mut tick = interval(TIMER_TICK);
    tick.set_missed_tick_behavior(MissedTickBehavior::Skip);
    loop {
        tick.tick().await;
        worker.date.refresh();
    }
}

async fn prune(worker: Arc<WorkerState>) {
    let mut period = interval(PRUNE_INTERVAL);
    period.set_missed_tick_behavior(MissedTickBehavior::Skip);
    loop {
        period.tick().await;
        worker.pools.prune();
    }
}
