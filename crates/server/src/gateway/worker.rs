//! A thread that serves: its own runtime, its own routes, its own connections to the upstreams. A
//! request lives on one thread from its first byte to its last.

use std::{
    io,
    sync::{
        Arc,
        atomic::{AtomicUsize, Ordering},
    },
    thread::{self, JoinHandle},
    time::Duration,
};

use arc_swap::ArcSwap;
use tokio::{
    runtime::Builder,
    sync::mpsc,
    time::{MissedTickBehavior, interval},
};

use super::{
    connection,
    date::Date,
    listen::Accepted,
    pools::Pools,
    site::Site,
    stop::{Phase, Stop},
};
use crate::config::Limits;

/// How often a thread looks after its connections.
const PRUNE_EVERY: Duration = Duration::from_secs(1);

/// A timer that is never far away. Without one, tokio wakes itself through the kernel for each
/// timer that a request sets, since it may be the nearest.
const TICK: Duration = Duration::from_millis(20);

/// What all connections of a thread share.
#[derive(Debug)]
pub(crate) struct Worker {
    pub(crate) site: ArcSwap<Site>,
    pub(crate) pools: Pools,
    pub(crate) limits: Limits,
    pub(crate) stop: Stop,
    pub(crate) date: Date,
}

/// Where a thread takes its connections from.
#[derive(Clone, Debug)]
pub(crate) struct Hand {
    sender: mpsc::UnboundedSender<Accepted>,
    connections: Arc<AtomicUsize>,
}

impl Hand {
    pub(crate) fn connections(&self) -> usize {
        self.connections.load(Ordering::Relaxed)
    }

    pub(crate) const fn counter(&self) -> &Arc<AtomicUsize> {
        &self.connections
    }

    /// The queue has no bound of its own: there are never more in it than there are places.
    pub(crate) fn give(&self, accepted: Accepted) {
        // A thread that has ended serves nobody; the connection is closed.
        let _ = self.sender.send(accepted);
    }
}

/// After how many tasks a thread looks for what others have woken. The word that a batch is on the
/// disk comes that way, and must not wait behind every connection that has something to say.
const FOREIGN_WAKE_INTERVAL: u32 = 4;

/// Starts a thread.
pub(crate) fn start(name: String, worker: Arc<Worker>) -> io::Result<(Hand, JoinHandle<()>)> {
    let (sender, receiver) = mpsc::unbounded_channel();
    let runtime = Builder::new_current_thread()
        .enable_all()
        .global_queue_interval(FOREIGN_WAKE_INTERVAL)
        .build()?;
    let thread = thread::Builder::new().name(name).spawn(move || {
        runtime.block_on(run(worker, receiver));
        // A name that is still being looked up need not be waited for.
        runtime.shutdown_background();
    })?;
    Ok((Hand { sender, connections: Arc::default() }, thread))
}

async fn run(worker: Arc<Worker>, mut receiver: mpsc::UnboundedReceiver<Accepted>) {
    tokio::spawn(tick(Arc::clone(&worker)));
    tokio::spawn(prune(Arc::clone(&worker)));
    let mut stop = worker.stop.clone();
    loop {
        let accepted = tokio::select! {
            accepted = receiver.recv() => accepted,
            () = stop.reached(Phase::Ended) => return,
        };
        match accepted {
            Some(accepted) => {
                tokio::spawn(connection::serve(accepted, Arc::clone(&worker)));
            }
            // Nobody new will come; what is here goes on until the end.
            None => return stop.reached(Phase::Ended).await,
        }
    }
}

async fn tick(worker: Arc<Worker>) {
    let mut tick = interval(TICK);
    tick.set_missed_tick_behavior(MissedTickBehavior::Skip);
    loop {
        tick.tick().await;
        worker.date.look();
    }
}

async fn prune(worker: Arc<Worker>) {
    let mut period = interval(PRUNE_EVERY);
    period.set_missed_tick_behavior(MissedTickBehavior::Skip);
    loop {
        period.tick().await;
        worker.pools.prune();
    }
}
