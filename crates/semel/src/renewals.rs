//! The leases of what runs in this process, and their renewal.
//!
//! An operation may block its thread for as long as it likes, so its lease is not renewed by the
//! task that runs it. One task for each runtime looks through all that run on it, a few times in a
//! third of the shortest lease, and renews what is due; a runtime that ends takes with it what runs
//! there, and nothing else. When to renew, and what a renewal comes to, is decided by each one's
//! own [`Flow`].

use std::{
    sync::{
        Arc, Mutex, MutexGuard, PoisonError, Weak,
        atomic::{AtomicU64, Ordering},
    },
    time::Duration,
};

use hashbrown::HashMap;
use semel_core::{Fence, Fenced, Flow, Plan, ProcessTime, Step, time::millis};
use tokio::{
    runtime::{Handle, Id},
    sync::Notify,
    time::timeout,
};

use crate::{
    Lease,
    engine::Shared,
    flights::{Landed, Ticket},
    observer::{EventKind, StoreOperation},
};

const SHARDS: u64 = 16;

/// How often the leases are looked through.
const CHECK_INTERVAL_MIN: Duration = Duration::from_millis(10);
const CHECK_INTERVAL_MAX: Duration = Duration::from_secs(1);

/// How long one renewal may take, if the lease is long; else a third of it, so that there is time
/// for another try.
const RENEW_TIMEOUT_MAX: Duration = Duration::from_secs(10);
const RENEW_TIMEOUT_MIN: Duration = Duration::from_millis(30);

#[derive(Debug)]
pub(crate) struct Renewals {
    shards: [Mutex<HashMap<u64, Entry>>; 16],
    next: AtomicU64,
    /// The shortest lease there ever was, in milliseconds, and who is told of a shorter one.
    shortest: AtomicU64,
    shorter: Arc<Notify>,
    /// The runtimes that have a task that renews.
    runtimes: Mutex<Vec<Id>>,
}

/// Something that runs.
#[derive(Debug)]
struct Entry {
    /// A copy, which knows when to renew; the driver's own knows everything else.
    flow: Flow,
    lease: Lease,
    plan: Plan,
    ticket: Option<Ticket>,
    runtime: Id,
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
            shorter: Arc::default(),
            runtimes: Mutex::default(),
        }
    }

    /// Renews the lease of what begins to run now.
    pub(crate) fn add(
        shared: &Arc<Shared>,
        flow: &Flow,
        lease: &Lease,
        plan: Plan,
        ticket: Option<Ticket>,
    ) -> Renewal {
        let renewals = &shared.renewals;
        let runtime = Handle::current().id();
        Self::start(shared, runtime);
        let shortest = millis(plan.lease());
        if shortest < renewals.shortest.load(Ordering::Relaxed) {
            renewals.shortest.fetch_min(shortest, Ordering::Relaxed);
            renewals.shorter.notify_waiters();
        }
        let number = renewals.next.fetch_add(1, Ordering::Relaxed);
        let entry = Entry { flow: flow.clone(), lease: lease.clone(), plan, ticket, runtime };
        renewals.shard(number).insert(number, entry);
        Renewal { shared: Arc::clone(shared), number }
    }

    /// Starts the task that renews on this runtime, unless it runs.
    fn start(shared: &Arc<Shared>, runtime: Id) {
        {
            let mut runtimes = lock(&shared.renewals.runtimes);
            if runtimes.contains(&runtime) {
                return;
            }
            runtimes.push(runtime);
        }
        // A runtime that is ending drops the task at once, which then wants the list.
        let renewer = Renewer { shared: Arc::downgrade(shared), runtime };
        tokio::spawn(renewer.run());
    }

    /// Several looks within the third of a lease after which it is renewed.
    fn check_interval(&self) -> Duration {
        let third = Duration::from_millis(self.shortest.load(Ordering::Relaxed)) / 3;
        (third / 4).clamp(CHECK_INTERVAL_MIN, CHECK_INTERVAL_MAX)
    }

    fn due(&self, shard: u64, on: Id, now: ProcessTime) -> Vec<(u64, Fence)> {
        let mut due = Vec::new();
        for (number, Entry { flow, runtime, .. }) in self.shard(shard).iter_mut() {
            if *runtime == on
                && flow.alarm().is_some_and(|alarm| alarm <= now)
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
        lock(self.shards.get(shard).unwrap_or(first))
    }
}

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

/// The task that renews what runs on one runtime.
struct Renewer {
    shared: Weak<Shared>,
    runtime: Id,
}

impl Renewer {
    /// Until the engine is gone.
    async fn run(self) {
        while let Some(shared) = self.shared.upgrade() {
            let now = shared.clock.now();
            for shard in 0..SHARDS {
                for (number, fence) in shared.renewals.due(shard, self.runtime, now) {
                    tokio::spawn(renew(Arc::clone(&shared), number, fence));
                }
            }
            let interval = shared.renewals.check_interval();
            let shorter = Arc::clone(&shared.renewals.shorter);
            drop(shared);
            let _ = timeout(interval, shorter.notified()).await;
        }
    }
}

impl Drop for Renewer {
    fn drop(&mut self) {
        if let Some(shared) = self.shared.upgrade() {
            lock(&shared.renewals.runtimes).retain(|runtime| *runtime != self.runtime);
        }
    }
}

async fn renew(shared: Arc<Shared>, number: u64, fence: Fence) {
    let found = shared.renewals.shard(number).get(&number).map(|e| (e.lease.clone(), e.plan));
    let Some((lease, plan)) = found else { return };
    let until = shared.clock.now().after(plan.lease_relied_on());
    let mut asked = Asked { shared, number, renewed: Renewed::Unheard };
    asked.renewed = ask(&asked.shared, &lease, fence, plan.lease()).await;
    if asked.renewed == Renewed::Still {
        lease.extend(until);
    }
    if asked.hear() && asked.renewed == Renewed::Lost {
        lease.lose();
        asked.shared.listener.tell(lease.id(), EventKind::Lost(fence));
    }
}

/// A renewal under way. If it is dropped or panics, the store was not heard of, and the lease is
/// due again.
struct Asked {
    shared: Arc<Shared>,
    number: u64,
    renewed: Renewed,
}

impl Asked {
    /// Reports what the renewal came to; false if what ran has ended meanwhile, and is nobody's to
    /// lose.
    fn hear(&self) -> bool {
        let fenced = match self.renewed {
            Renewed::Still => Some(Fenced::Applied),
            Renewed::Unheard => None,
            Renewed::Held | Renewed::Lost => Some(Fenced::Lost),
        };
        let ticket = {
            let mut shard = self.shared.renewals.shard(self.number);
            let Some(entry) = shard.get_mut(&self.number) else { return false };
            let _ = entry.flow.on_renewed(fenced, self.shared.clock.now());
            if fenced == Some(Fenced::Lost) { entry.ticket.take() } else { None }
        };
        if let Some(ticket) = ticket {
            // Who comes now must hear what the record says, not what becomes of this run.
            self.shared.flights.land(ticket, &Landed::Elsewhere);
        }
        true
    }
}

impl Drop for Asked {
    fn drop(&mut self) {
        if self.renewed == Renewed::Unheard {
            self.hear();
        }
    }
}

async fn ask(shared: &Shared, lease: &Lease, fence: Fence, duration: Duration) -> Renewed {
    let (store, id) = (&shared.store, lease.id());
    let timeout = (duration / 3).clamp(RENEW_TIMEOUT_MIN, RENEW_TIMEOUT_MAX);
    let Some(by) = lease.claimant() else { return Renewed::Lost };
    let question = store.renew(id, by, duration);
    match shared.ask(StoreOperation::Renew, id, timeout, question).await {
        Err(_) => return Renewed::Unheard,
        Ok(Fenced::Applied) => return Renewed::Still,
        Ok(Fenced::Lost) => {}
    }
    match shared.ask(StoreOperation::Get, id, timeout, store.get(id)).await {
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

#[cfg(test)]
mod tests {
    use std::{sync::mpsc, thread};

    use tokio::runtime::Builder;

    use super::*;
    use crate::{MemoryStore, Semel};

    #[test]
    fn what_begins_while_its_runtime_ends_does_not_wait_for_itself() {
        let (ended, hears) = mpsc::channel();
        thread::spawn(move || {
            let runtime = Builder::new_current_thread().enable_all().build().unwrap();
            let semel = runtime.block_on(async { Semel::new(MemoryStore::new()) });
            let handle = runtime.handle().clone();
            drop(runtime);
            let _inside = handle.enter();
            Renewals::start(&semel.shared, handle.id());
            assert!(lock(&semel.shared.renewals.runtimes).is_empty(), "nobody renews there");
            ended.send(()).unwrap();
        });
        hears.recv_timeout(Duration::from_secs(30)).expect("it waits");
    }
}
