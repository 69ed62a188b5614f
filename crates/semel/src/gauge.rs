//! How much is under way, and the limits on it.
//!
//! A request holds a permit for as long as it is read, runs or waits. There are three limits: on
//! what runs in this process (and, apart, on what is read), on what waits in it, and on what one
//! caller has under way, read, running or waiting.

use std::{
    hash::BuildHasher,
    sync::{
        Arc, Mutex, MutexGuard, PoisonError,
        atomic::{AtomicUsize, Ordering},
    },
};

use hashbrown::{DefaultHashBuilder, HashMap};
use semel_core::Caller;
use tokio::sync::Notify;

/// Few enough to be cheap, many enough that two threads seldom meet.
const SHARDS: usize = 16;

/// The most that may be under way.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Limits {
    pub(crate) in_flight: usize,
    pub(crate) waiting: usize,
    pub(crate) per_caller: usize,
}

#[derive(Debug)]
pub(crate) struct Gauge {
    limits: Limits,
    arriving: AtomicUsize,
    in_flight: AtomicUsize,
    waiting: AtomicUsize,
    callers: [Mutex<HashMap<Caller, usize>>; SHARDS],
    hasher: DefaultHashBuilder,
    idle: Notify,
}

/// What a permit is for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Kind {
    /// Its body is being read.
    Arriving,
    InFlight,
    Waiting,
}

/// Counts as under way until it is dropped.
#[derive(Debug)]
pub(crate) struct Permit {
    gauge: Arc<Gauge>,
    kind: Kind,
    caller: Caller,
}

impl Gauge {
    pub(crate) fn new(limits: Limits) -> Self {
        Self {
            limits,
            arriving: AtomicUsize::new(0),
            in_flight: AtomicUsize::new(0),
            waiting: AtomicUsize::new(0),
            callers: Default::default(),
            hasher: DefaultHashBuilder::default(),
            idle: Notify::new(),
        }
    }

    /// `None` when a limit is reached.
    pub(crate) fn enter(self: &Arc<Self>, kind: Kind, caller: &Caller) -> Option<Permit> {
        if !raise(self.count(kind), self.limit(kind)) {
            return None;
        }
        let allowed = self.enter_caller(caller);
        if !allowed {
            self.leave(kind);
            return None;
        }
        Some(Permit { gauge: Arc::clone(self), kind, caller: caller.clone() })
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

    fn enter_caller(&self, caller: &Caller) -> bool {
        let mut callers = self.callers(caller);
        if let Some(count) = callers.get_mut(caller) {
            if *count >= self.limits.per_caller {
                return false;
            }
            *count += 1;
        } else {
            if self.limits.per_caller == 0 {
                return false;
            }
            callers.insert(caller.clone(), 1);
        }
        true
    }

    fn leave_caller(&self, caller: &Caller) {
        let mut callers = self.callers(caller);
        if let Some(count) = callers.get_mut(caller) {
            *count -= 1;
            if *count == 0 {
                callers.remove(caller);
            }
        }
    }

    fn callers(&self, caller: &Caller) -> MutexGuard<'_, HashMap<Caller, usize>> {
        let [first, ..] = &self.callers;
        let shard = usize::try_from(self.hasher.hash_one(caller) >> 32).unwrap_or(0) % SHARDS;
        // A number is changed or it is not: a poisoned lock guards sound data.
        let shard = self.callers.get(shard).unwrap_or(first);
        shard.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn leave(&self, kind: Kind) {
        let before = self.count(kind).fetch_sub(1, Ordering::AcqRel);
        if kind == Kind::InFlight && before == 1 {
            self.idle.notify_waiters();
        }
    }

    const fn count(&self, kind: Kind) -> &AtomicUsize {
        match kind {
            Kind::Arriving => &self.arriving,
            Kind::InFlight => &self.in_flight,
            Kind::Waiting => &self.waiting,
        }
    }

    const fn limit(&self, kind: Kind) -> usize {
        match kind {
            Kind::Arriving | Kind::InFlight => self.limits.in_flight,
            Kind::Waiting => self.limits.waiting,
        }
    }
}

impl Permit {
    /// The same request now waits instead of running, or not at all if too many wait.
    pub(crate) fn wait(self) -> Option<Self> {
        let raised = raise(self.gauge.count(Kind::Waiting), self.gauge.limit(Kind::Waiting));
        raised.then(|| {
            let mut permit = self;
            permit.gauge.leave(permit.kind);
            permit.kind = Kind::Waiting;
            permit
        })
    }
}

impl Drop for Permit {
    fn drop(&mut self) {
        self.gauge.leave_caller(&self.caller);
        self.gauge.leave(self.kind);
    }
}

/// Never above the limit, not even for a moment: whoever takes the last one away must see zero.
fn raise(count: &AtomicUsize, limit: usize) -> bool {
    let more = |count: usize| (count < limit).then(|| count + 1);
    count.fetch_update(Ordering::AcqRel, Ordering::Relaxed, more).is_ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn gauge(in_flight: usize, waiting: usize, per_caller: usize) -> Arc<Gauge> {
        Arc::new(Gauge::new(Limits { in_flight, waiting, per_caller }))
    }

    #[test]
    fn each_limit_holds_and_is_given_back() {
        let (a, b) = (Caller::new("a").unwrap(), Caller::new("b").unwrap());
        let gauge = gauge(3, 1, 2);
        let first = gauge.enter(Kind::InFlight, &a).unwrap();
        let second = gauge.enter(Kind::InFlight, &a).unwrap();
        assert!(gauge.enter(Kind::InFlight, &a).is_none(), "two is what one caller may have");
        let third = gauge.enter(Kind::InFlight, &b).unwrap();
        assert!(gauge.enter(Kind::InFlight, &b).is_none(), "three is what may run");
        let third = third.wait().unwrap();
        assert_eq!((gauge.in_flight(), gauge.waiting()), (2, 1));
        assert!(first.wait().is_none(), "one is what may wait");
        assert_eq!(gauge.in_flight(), 1, "who may not wait is gone");
        drop((second, third));
        assert_eq!((gauge.in_flight(), gauge.waiting()), (0, 0));
        assert!(gauge.callers.iter().all(|shard| shard.lock().unwrap().is_empty()));
    }

    #[test]
    fn a_limit_of_nothing_lets_nothing_in() {
        let caller = Caller::anonymous();
        assert!(gauge(0, 1, 1).enter(Kind::InFlight, &caller).is_none());
        assert!(gauge(1, 1, 0).enter(Kind::InFlight, &caller).is_none());
    }

    #[test]
    fn a_refusal_does_not_swallow_the_last_wake_up() {
        const ROUNDS: usize = 100_000;
        let gauge = gauge(1, 1, 9);
        let (caller, turn) = (&Caller::anonymous(), &AtomicUsize::new(0));
        let until = |number| {
            while turn.load(Ordering::SeqCst) != number {
                std::hint::spin_loop();
            }
        };
        let refused = || {
            for round in 0..ROUNDS {
                until(2 * round + 1);
                drop(gauge.enter(Kind::InFlight, caller));
                turn.store(2 * round + 2, Ordering::SeqCst);
            }
        };
        std::thread::scope(|scope| {
            scope.spawn(refused);
            for round in 0..ROUNDS {
                let permit = gauge.enter(Kind::InFlight, caller).unwrap();
                let mut idle = std::pin::pin!(gauge.idle());
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
