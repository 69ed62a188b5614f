//! Concurrency limits on running and waiting requests.
//!
//! A request holds a permit while it runs or waits. There are three limits: on running requests of
//! this process, on waiting ones, and on both of one caller in its scope. Arriving bodies have a
//! limit of their own in `arrivals.rs`, except those of observed requests, which are counted here.

use std::sync::{
    Arc,
    atomic::{AtomicUsize, Ordering},
};

use tokio::sync::Notify;

use crate::per_caller::{PerCaller, ScopedCaller, ScopedCallerRef};

/// The most requests that may run or wait.
#[derive(Clone, Copy, Debug)]
pub(crate) struct ConcurrencyLimits {
    pub(crate) in_flight: usize,
    pub(crate) waiting: usize,
    pub(crate) per_caller: usize,
}

#[derive(Debug)]
pub(crate) struct Limiter {
    limits: ConcurrencyLimits,
    arriving: AtomicUsize,
    in_flight: AtomicUsize,
    waiting: AtomicUsize,
    callers: PerCaller<usize>,
    idle: Notify,
}

/// The purpose of a permit.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum PermitKind {
    /// An observed request whose body is being read.
    Arriving,
    InFlight,
    Waiting,
}

/// Counts against the limits until it is dropped.
#[derive(Debug)]
pub(crate) struct Permit {
    limiter: Arc<Limiter>,
    kind: PermitKind,
    caller: ScopedCaller,
}

impl Limiter {
    pub(crate) fn new(limits: ConcurrencyLimits) -> Self {
        Self {
            limits,
            arriving: AtomicUsize::new(0),
            in_flight: AtomicUsize::new(0),
            waiting: AtomicUsize::new(0),
            callers: PerCaller::new(),
            idle: Notify::new(),
        }
    }

    /// `None` when a limit is reached.
    pub(crate) fn acquire(
        self: &Arc<Self>,
        kind: PermitKind,
        caller: ScopedCallerRef<'_>,
    ) -> Option<Permit> {
        if !try_increment(self.count(kind), self.limit(kind)) {
            return None;
        }
        let allowed = self.acquire_caller(caller);
        if !allowed {
            self.release(kind);
            return None;
        }
        Some(Permit { limiter: Arc::clone(self), kind, caller: (&caller).into() })
    }

    pub(crate) fn in_flight(&self) -> usize {
        self.in_flight.load(Ordering::Acquire)
    }

    pub(crate) fn waiting(&self) -> usize {
        self.waiting.load(Ordering::Relaxed)
    }

    /// Returns once nothing runs.
    pub(crate) async fn idle(&self) {
        loop {
            let notified = self.idle.notified();
            if self.in_flight() == 0 {
                return;
            }
            notified.await;
        }
    }

    fn acquire_caller(&self, caller: ScopedCallerRef<'_>) -> bool {
        let mut callers = self.callers.shard(caller);
        if let Some(count) = callers.get_mut(&caller) {
            if *count >= self.limits.per_caller {
                return false;
            }
            *count += 1;
        } else {
            if self.limits.per_caller == 0 {
                return false;
            }
            callers.insert((&caller).into(), 1);
        }
        true
    }

    fn release_caller(&self, caller: &ScopedCaller) {
        let mut callers = self.callers.shard(caller.as_ref());
        if let Some(count) = callers.get_mut(caller) {
            *count -= 1;
            if *count == 0 {
                callers.remove(caller);
            }
        }
    }

    fn release(&self, kind: PermitKind) {
        let before = self.count(kind).fetch_sub(1, Ordering::AcqRel);
        if kind == PermitKind::InFlight && before == 1 {
            self.idle.notify_waiters();
        }
    }

    const fn count(&self, kind: PermitKind) -> &AtomicUsize {
        match kind {
            PermitKind::Arriving => &self.arriving,
            PermitKind::InFlight => &self.in_flight,
            PermitKind::Waiting => &self.waiting,
        }
    }

    const fn limit(&self, kind: PermitKind) -> usize {
        match kind {
            PermitKind::Arriving | PermitKind::InFlight => self.limits.in_flight,
            PermitKind::Waiting => self.limits.waiting,
        }
    }
}

impl Permit {
    /// Turns a permit to run into one to wait; `None` if too many wait.
    pub(crate) fn wait(self) -> Option<Self> {
        let raised = try_increment(
            self.limiter.count(PermitKind::Waiting),
            self.limiter.limit(PermitKind::Waiting),
        );
        raised.then(|| {
            let mut permit = self;
            permit.limiter.release(permit.kind);
            permit.kind = PermitKind::Waiting;
            permit
        })
    }
}

impl Drop for Permit {
    fn drop(&mut self) {
        self.limiter.release_caller(&self.caller);
        self.limiter.release(self.kind);
    }
}

/// The count never exceeds the limit, even briefly: the release of the last permit must see zero.
fn try_increment(count: &AtomicUsize, limit: usize) -> bool {
    let more = |count: usize| (count < limit).then(|| count + 1);
    count.fetch_update(Ordering::AcqRel, Ordering::Relaxed, more).is_ok()
}

#[cfg(test)]
mod tests {
    use semel_core::{Caller, Scope};

    use super::*;

    fn caller(name: &str) -> ScopedCaller {
        let caller = Caller::new(name).unwrap();
        ScopedCaller { scope: Scope::new("payments").unwrap(), caller }
    }

    fn limiter(in_flight: usize, waiting: usize, per_caller: usize) -> Arc<Limiter> {
        Arc::new(Limiter::new(ConcurrencyLimits { in_flight, waiting, per_caller }))
    }

    #[test]
    fn each_limit_holds_and_is_given_back() {
        let (a, b) = (caller("a"), caller("b"));
        let (a, b) = (a.as_ref(), b.as_ref());
        let limiter = limiter(3, 1, 2);
        let first = limiter.acquire(PermitKind::InFlight, a).unwrap();
        let second = limiter.acquire(PermitKind::InFlight, a).unwrap();
        assert!(
            limiter.acquire(PermitKind::InFlight, a).is_none(),
            "two is what one caller may have"
        );
        let third = limiter.acquire(PermitKind::InFlight, b).unwrap();
        assert!(limiter.acquire(PermitKind::InFlight, b).is_none(), "three is what may run");
        let third = third.wait().unwrap();
        assert_eq!((limiter.in_flight(), limiter.waiting()), (2, 1));
        assert!(first.wait().is_none(), "one is what may wait");
        assert_eq!(limiter.in_flight(), 1, "who may not wait is gone");
        drop((second, third));
        assert_eq!((limiter.in_flight(), limiter.waiting()), (0, 0));
        assert!(limiter.callers.shards().all(|shard| shard.is_empty()));
    }

    #[test]
    fn a_limit_of_nothing_lets_nothing_in() {
        let caller = caller("a");
        assert!(limiter(0, 1, 1).acquire(PermitKind::InFlight, caller.as_ref()).is_none());
        assert!(limiter(1, 1, 0).acquire(PermitKind::InFlight, caller.as_ref()).is_none());
    }

    #[test]
    fn a_refusal_does_not_swallow_the_last_wake_up() {
        const ROUNDS: usize = 100_000;
        let limiter = limiter(1, 1, 9);
        let (caller, turn) = (caller("a"), &AtomicUsize::new(0));
        let caller = caller.as_ref();
        let until = |number| {
            while turn.load(Ordering::SeqCst) != number {
                std::hint::spin_loop();
            }
        };
        let refused = || {
            for round in 0..ROUNDS {
                until(2 * round + 1);
                drop(limiter.acquire(PermitKind::InFlight, caller));
                turn.store(2 * round + 2, Ordering::SeqCst);
            }
        };
        std::thread::scope(|scope| {
            scope.spawn(refused);
            for round in 0..ROUNDS {
                let permit = limiter.acquire(PermitKind::InFlight, caller).unwrap();
                let mut idle = std::pin::pin!(limiter.idle());
                let mut context = std::task::Context::from_waker(std::task::Waker::noop());
                assert!(idle.as_mut().poll(&mut context).is_pending());
                turn.store(2 * round + 1, Ordering::SeqCst);
                drop(permit);
                until(2 * round + 2);
                assert!(idle.as_mut().poll(&mut context).is_ready(), "round {round}");
            }
        });
    }
}
