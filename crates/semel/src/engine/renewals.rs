//! Lease renewal for the executions of this process.
//!
//! An operation may block its thread, so the task that runs it does not renew its lease. One task
//! per runtime checks all leases on it several times within a third of the shortest lease, and
//! renews those that are due. A runtime that shuts down ends only its own executions. Each
//! execution's own [`Flow`] decides when to renew and what the result means.

use std::{
    sync::{
        Arc, Mutex, MutexGuard, PoisonError, Weak,
        atomic::{AtomicU64, Ordering},
    },
    time::Duration,
};

use hashbrown::HashMap;
use semel_core::{Action, Fence, Fenced, Flow, Plan, ProcessTime, time::millis};
use tokio::{
    runtime::{Handle, Id},
    sync::Notify,
    time::timeout,
};

use super::EngineState;
use crate::{
    Lease,
    flights::{FlightId, FlightResult},
    observer::{EventKind, StoreOperation},
};

const SHARDS: u64 = 16;

/// The interval between checks of all leases.
const CHECK_INTERVAL_MIN: Duration = Duration::from_millis(10);
const CHECK_INTERVAL_MAX: Duration = Duration::from_secs(1);

/// The timeout of one renewal: a third of the lease within these bounds, which leaves time for a
/// retry.
const RENEW_TIMEOUT_MAX: Duration = Duration::from_secs(10);
const RENEW_TIMEOUT_MIN: Duration = Duration::from_millis(30);

#[derive(Debug)]
pub(crate) struct Renewals {
    shards: [Mutex<HashMap<u64, RenewalEntry>>; 16],
    next: AtomicU64,
    /// The shortest lease so far, in milliseconds, and the notification of a shorter one.
    shortest: AtomicU64,
    shorter: Arc<Notify>,
    /// The runtimes that have a renewing task.
    runtimes: Mutex<Vec<Id>>,
}

/// A running execution.
#[derive(Debug)]
struct RenewalEntry {
    /// A copy that only decides when to renew; the driver has its own.
    flow: Flow,
    lease: Lease,
    plan: Plan,
    flight_id: Option<FlightId>,
    runtime: Id,
}

/// Keeps the lease renewed until it is dropped.
#[derive(Debug)]
pub(crate) struct Renewal {
    shared: Arc<EngineState>,
    number: u64,
}

/// The result of a renewal.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum RenewalResult {
    Extended,
    /// The store did not reply.
    NoReply,
    /// The lease expired, but the record has no other owner: the late answer still counts.
    Held,
    /// The record has another owner.
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

    /// Renews the lease of an execution that begins now.
    pub(crate) fn add(
        shared: &Arc<EngineState>,
        flow: &Flow,
        lease: &Lease,
        plan: Plan,
        flight_id: Option<FlightId>,
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
        let entry =
            RenewalEntry { flow: flow.clone(), lease: lease.clone(), plan, flight_id, runtime };
        renewals.shard(number).insert(number, entry);
        Renewal { shared: Arc::clone(shared), number }
    }

    /// Starts the renewing task of this runtime, unless it runs.
    fn start(shared: &Arc<EngineState>, runtime: Id) {
        {
            let mut runtimes = lock(&shared.renewals.runtimes);
            if runtimes.contains(&runtime) {
                return;
            }
            runtimes.push(runtime);
        }
        // A runtime that is shutting down drops the task at once, which then locks the list.
        let renewer = Renewer { shared: Arc::downgrade(shared), runtime };
        tokio::spawn(renewer.run());
    }

    /// Several checks within the third of a lease after which it is renewed.
    fn check_interval(&self) -> Duration {
        let third = Duration::from_millis(self.shortest.load(Ordering::Relaxed)) / 3;
        (third / 4).clamp(CHECK_INTERVAL_MIN, CHECK_INTERVAL_MAX)
    }

    fn due(&self, shard: u64, on: Id, now: ProcessTime) -> Vec<(u64, Fence)> {
        let mut due = Vec::new();
        for (number, RenewalEntry { flow, runtime, .. }) in self.shard(shard).iter_mut() {
            if *runtime == on
                && flow.next_tick().is_some_and(|next_tick| next_tick <= now)
                && let Action::Renew(fence) = flow.on_tick(now)
            {
                due.push((*number, fence));
            }
        }
        due
    }

    fn shard(&self, number: u64) -> MutexGuard<'_, HashMap<u64, RenewalEntry>> {
        let [first, ..] = &self.shards;
        let shard = usize::try_from(number % SHARDS).unwrap_or(0);
        lock(self.shards.get(shard).unwrap_or(first))
    }
}

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

/// The task that renews the leases of one runtime.
struct Renewer {
    shared: Weak<EngineState>,
    runtime: Id,
}

impl Renewer {
    /// Runs until the engine is dropped.
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

async fn renew(shared: Arc<EngineState>, number: u64, fence: Fence) {
    let found = shared.renewals.shard(number).get(&number).map(|e| (e.lease.clone(), e.plan));
    let Some((lease, plan)) = found else { return };
    let until = shared.clock.now().after(plan.lease_relied_on());
    let mut attempt = RenewalAttempt { shared, number, result: RenewalResult::NoReply };
    attempt.result = call_store(&attempt.shared, &lease, fence, plan.lease()).await;
    if attempt.result == RenewalResult::Extended {
        lease.extend(until);
    }
    if attempt.report() && attempt.result == RenewalResult::Lost {
        lease.mark_lost();
        attempt.shared.events.emit(lease.id(), EventKind::Lost(fence));
    }
}

/// A renewal in progress. If it is dropped or panics, it counts as no reply, and the lease is due
/// again.
struct RenewalAttempt {
    shared: Arc<EngineState>,
    number: u64,
    result: RenewalResult,
}

impl RenewalAttempt {
    /// Reports the result to the state machine; false if the execution has ended meanwhile.
    fn report(&self) -> bool {
        let fenced = match self.result {
            RenewalResult::Extended => Some(Fenced::Applied),
            RenewalResult::NoReply => None,
            RenewalResult::Held | RenewalResult::Lost => Some(Fenced::Lost),
        };
        let flight_id = {
            let mut shard = self.shared.renewals.shard(self.number);
            let Some(entry) = shard.get_mut(&self.number) else { return false };
            let _ = entry.flow.on_renewed(fenced, self.shared.clock.now());
            if fenced == Some(Fenced::Lost) { entry.flight_id.take() } else { None }
        };
        if let Some(flight_id) = flight_id {
            // New requests must get what the record says, not the result of this run.
            self.shared.flights.finish(flight_id, &FlightResult::Elsewhere);
        }
        true
    }
}

impl Drop for RenewalAttempt {
    fn drop(&mut self) {
        if self.result == RenewalResult::NoReply {
            self.report();
        }
    }
}

async fn call_store(
    shared: &EngineState,
    lease: &Lease,
    fence: Fence,
    duration: Duration,
) -> RenewalResult {
    let (store, id) = (&shared.store, lease.id());
    let timeout = (duration / 3).clamp(RENEW_TIMEOUT_MIN, RENEW_TIMEOUT_MAX);
    let Some(by) = lease.claimant() else { return RenewalResult::Lost };
    let call = store.renew(id, by, duration);
    match shared.call_store(StoreOperation::Renew, id, timeout, call).await {
        Err(_) => return RenewalResult::NoReply,
        Ok(Fenced::Applied) => return RenewalResult::Extended,
        Ok(Fenced::Lost) => {}
    }
    match shared.call_store(StoreOperation::Get, id, timeout, store.get(id)).await {
        Err(_) => RenewalResult::NoReply,
        Ok(Some(seen)) if seen.fence == fence => RenewalResult::Held,
        Ok(_) => RenewalResult::Lost,
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
    fn a_renewal_that_starts_while_its_runtime_shuts_down_does_not_deadlock() {
        let (ended, hears) = mpsc::channel();
        thread::spawn(move || {
            let runtime = Builder::new_current_thread().enable_all().build().unwrap();
            let semel = runtime.block_on(async { Semel::new(MemoryStore::new()) });
            let handle = runtime.handle().clone();
            drop(runtime);
            let _inside = handle.enter();
            Renewals::start(&semel.shared, handle.id());
            assert!(lock(&semel.shared.renewals.runtimes).is_empty(), "no task renews there");
            ended.send(()).unwrap();
        });
        hears.recv_timeout(Duration::from_secs(30)).expect("it waits");
    }
}
