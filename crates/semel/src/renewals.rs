//! The leases of what runs in this process, and their renewal.
//!
//! An operation may block its thread for as long as it likes, so its lease is not renewed by the
//! task
//! that runs it. One task looks through all that run, a few times in a third of the shortest lease,
//! and renews what is due. When, and what a renewal comes to, is decided by each one's own
//! [`Flow`].

use std::{
    sync::{
        Arc, Mutex, MutexGuard, PoisonError, Weak,
        atomic::{AtomicU64, Ordering},
    },
    time::Duration,
};

use hashbrown::HashMap;
use semel_core::{Fence, Fenced, Flow, ProcessTime, Step, time::millis};
use tokio::time::sleep;

use crate::{
    Lease,
    engine::Shared,
    flights::{Landed, Ticket},
    observer::{EventKind, StoreOperation},
};

const SHARDS: u64 = 16;

const PAUSE_MIN: Duration = Duration::from_millis(10);
const PAUSE_MAX: Duration = Duration::from_secs(1);

/// How long one renewal may take.
const PATIENCE: Duration = Duration::from_secs(10);

#[derive(Debug)]
pub(crate) struct Renewals {
    shards: [Mutex<HashMap<u64, Entry>>; 16],
    next: AtomicU64,
    /// The shortest lease there ever was, in milliseconds.
    shortest: AtomicU64,
}

/// Something that runs.
#[derive(Debug)]
struct Entry {
    /// A copy, which knows when to renew; the driver's own knows everything else.
    flow: Flow,
    lease: Lease,
    duration: Duration,
    ticket: Option<Ticket>,
}

/// Renewed until it is dropped.
#[derive(Debug)]
pub(crate) struct Renewal {
    shared: Arc<Shared>,
    number: u64,
}

/// What a renewal came to.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Renewed {
    Still,
    /// The store did not say.
    Unheard,
    /// The lease lapsed, but nobody else has the record: the late answer still counts.
    Held,
    /// Somebody else has it.
    Lost,
}

impl Renewals {
    pub(crate) fn new() -> Self {
        Self {
            shards: Default::default(),
            next: AtomicU64::new(0),
            shortest: AtomicU64::new(u64::MAX),
        }
    }

    /// Renews the lease of what begins to run now.
    pub(crate) fn add(
        shared: &Arc<Shared>,
        flow: &Flow,
        lease: &Lease,
        duration: Duration,
        ticket: Option<Ticket>,
    ) -> Renewal {
        let renewals = &shared.renewals;
        if millis(duration) < renewals.shortest.load(Ordering::Relaxed) {
            renewals.shortest.fetch_min(millis(duration), Ordering::Relaxed);
        }
        let number = renewals.next.fetch_add(1, Ordering::Relaxed);
        let entry = Entry { flow: flow.clone(), lease: lease.clone(), duration, ticket };
        renewals.shard(number).insert(number, entry);
        Renewal { shared: Arc::clone(shared), number }
    }

    /// Until the engine is gone.
    pub(crate) async fn run(weak: &Weak<Shared>) {
        while let Some(shared) = weak.upgrade() {
            let now = shared.clock.now();
            for shard in 0..SHARDS {
                for (number, fence) in shared.renewals.due(shard, now) {
                    tokio::spawn(renew(Arc::clone(&shared), number, fence));
                }
            }
            let pause = shared.renewals.pause();
            drop(shared);
            sleep(pause).await;
        }
    }

    /// Several looks within the third of a lease after which it is renewed.
    fn pause(&self) -> Duration {
        let third = Duration::from_millis(self.shortest.load(Ordering::Relaxed)) / 3;
        (third / 4).clamp(PAUSE_MIN, PAUSE_MAX)
    }

    fn due(&self, shard: u64, now: ProcessTime) -> Vec<(u64, Fence)> {
        let mut due = Vec::new();
        for (number, Entry { flow, .. }) in self.shard(shard).iter_mut() {
            if flow.alarm().is_some_and(|alarm| alarm <= now)
                && let Step::Renew(fence) = flow.on_tick(now)
            {
                due.push((*number, fence));
            }
        }
        due
    }

    fn shard(&self, number: u64) -> MutexGuard<'_, HashMap<u64, Entry>> {
        let [first, ..] = &self.shards;
        let shard = usize::try_from(number % SHARDS).unwrap_or(0);
        let shard = self.shards.get(shard).unwrap_or(first);
        shard.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

async fn renew(shared: Arc<Shared>, number: u64, fence: Fence) {
    let found = shared.renewals.shard(number).get(&number).map(|e| (e.lease.clone(), e.duration));
    let Some((lease, duration)) = found else { return };
    let renewed = ask(&shared, &lease, fence, duration).await;
    let fenced = match renewed {
        Renewed::Still => Some(Fenced::Applied),
        Renewed::Unheard => None,
        Renewed::Held | Renewed::Lost => Some(Fenced::Lost),
    };
    let ticket = {
        let mut shard = shared.renewals.shard(number);
        // What has ended meanwhile is nobody's to lose.
        let Some(entry) = shard.get_mut(&number) else { return };
        let _ = entry.flow.on_renewed(fenced, shared.clock.now());
        if fenced == Some(Fenced::Lost) { entry.ticket.take() } else { None }
    };
    if renewed == Renewed::Lost {
        lease.lose();
        shared.listener.tell(lease.id(), EventKind::Lost(fence));
    }
    if let Some(ticket) = ticket {
        // Who comes now must hear what the record says, not what becomes of this run.
        shared.flights.land(ticket, &Landed::Elsewhere);
    }
}

async fn ask(shared: &Shared, lease: &Lease, fence: Fence, duration: Duration) -> Renewed {
    let (store, id) = (&shared.store, lease.id());
    let question = store.renew(id, fence, duration);
    match shared.ask(StoreOperation::Renew, id, PATIENCE, question).await {
        Err(_) => return Renewed::Unheard,
        Ok(Fenced::Applied) => return Renewed::Still,
        Ok(Fenced::Lost) => {}
    }
    match shared.ask(StoreOperation::Get, id, PATIENCE, store.get(id)).await {
        Err(_) => Renewed::Unheard,
        Ok(Some(seen)) if seen.fence == fence => Renewed::Held,
        Ok(_) => Renewed::Lost,
    }
}

impl Drop for Renewal {
    fn drop(&mut self) {
        self.shared.renewals.shard(self.number).remove(&self.number);
    }
}
