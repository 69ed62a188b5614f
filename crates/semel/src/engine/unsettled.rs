//! Claims that may have been granted although their clients already have a reply.
//!
//! The store did not reply in time. Each claim is retried until the store replies. A granted claim
//! is given back, or ended as the unguarded run ended that continued without it: otherwise its
//! record would be held although nothing is unknown. A few tasks settle one claim after the other,
//! so that a store that recovers does not get all of them at once.

use std::{
    collections::VecDeque,
    sync::{Arc, Mutex, MutexGuard, PoisonError},
};

use semel_core::{Claim, Flow, Plan, ProcessTime, RecordAction};
use tokio::sync::Notify;

use super::EngineState;
use crate::observer::EventKind;

/// How many tasks retry claims.
const WORKERS: usize = 4;

/// The maximum number of waiting claims. The oldest are dropped first: most likely their leases
/// have expired.
const CLAIMS_MAX: usize = 10_000;

/// The maximum size of the answers that wait with them, in bytes.
const ANSWER_BYTES_MAX: usize = 64 << 20;

#[derive(Debug, Default)]
pub(crate) struct UnsettledClaims {
    state: Mutex<UnsettledState>,
    idle: Notify,
}

#[derive(Debug, Default)]
struct UnsettledState {
    waiting: VecDeque<UnsettledClaim>,
    answer_bytes: usize,
    /// How many claims a worker has taken.
    settling: usize,
    workers: usize,
}

/// A claim, and the state machine that settles it.
#[derive(Clone, Debug)]
pub(crate) struct UnsettledClaim {
    pub(crate) claim: Claim,
    pub(crate) flow: Flow,
    pub(crate) plan: Plan,
    /// When the request began.
    pub(crate) began: ProcessTime,
}

impl UnsettledClaim {
    fn answer_bytes(&self) -> usize {
        match self.flow.unsettled().map(|finish| &finish.action) {
            Some(RecordAction::Complete(answer)) => answer.as_bytes().len(),
            Some(_) | None => 0,
        }
    }
}

impl UnsettledClaims {
    /// Adds a claim to retry. A worker is returned if one more has to be started.
    pub(crate) fn add(shared: &Arc<EngineState>, entry: UnsettledClaim) -> Option<SettleWorker> {
        let mut state = shared.unsettled.lock();
        state.push(entry);
        let dropped = state.shrink();
        let start = state.workers < WORKERS;
        state.workers += usize::from(start);
        drop(state);
        for entry in dropped {
            shared.events.emit(&entry.claim.id, EventKind::ClaimDropped);
        }
        start.then(|| SettleWorker { shared: Arc::clone(shared), entry: None, over: false })
    }

    /// How many claims are unsettled.
    pub(crate) fn count(&self) -> usize {
        let state = self.lock();
        state.waiting.len() + state.settling
    }

    /// Returns once no claim is unsettled.
    pub(crate) async fn idle(&self) {
        loop {
            let notified = self.idle.notified();
            if self.count() == 0 {
                return;
            }
            notified.await;
        }
    }

    fn lock(&self) -> MutexGuard<'_, UnsettledState> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl UnsettledState {
    fn push(&mut self, entry: UnsettledClaim) {
        self.answer_bytes += entry.answer_bytes();
        self.waiting.push_back(entry);
    }

    fn pop(&mut self) -> Option<UnsettledClaim> {
        let entry = self.waiting.pop_front()?;
        self.answer_bytes -= entry.answer_bytes();
        Some(entry)
    }

    /// Removes claims beyond the limits.
    fn shrink(&mut self) -> Vec<UnsettledClaim> {
        let mut dropped = Vec::new();
        while self.waiting.len() > CLAIMS_MAX || self.answer_bytes > ANSWER_BYTES_MAX {
            dropped.extend(self.pop());
        }
        dropped
    }
}

/// The claims of a task that settles one after the other.
pub(crate) struct SettleWorker {
    pub(crate) shared: Arc<EngineState>,
    /// Its current claim.
    entry: Option<UnsettledClaim>,
    over: bool,
}

impl SettleWorker {
    /// The next claim, when the one before is settled; without one, the worker ends under the same
    /// lock.
    pub(crate) fn next(&mut self) -> Option<UnsettledClaim> {
        let mut state = self.shared.unsettled.lock();
        state.settling -= usize::from(self.entry.take().is_some());
        self.entry = state.pop();
        match &self.entry {
            Some(_) => state.settling += 1,
            None => state.workers -= 1,
        }
        drop(state);
        if self.entry.is_none() {
            self.over = true;
            self.shared.unsettled.idle.notify_waiters();
        }
        self.entry.clone()
    }
}

impl Drop for SettleWorker {
    /// Its runtime shut down: the next worker takes its claim over.
    fn drop(&mut self) {
        if self.over {
            return;
        }
        let mut state = self.shared.unsettled.lock();
        state.workers -= 1;
        if let Some(entry) = self.entry.take() {
            state.settling -= 1;
            state.push(entry);
        }
    }
}

#[cfg(test)]
mod tests {
    use semel_core::{
        Answer, Caller, ExecutionResult, Fingerprint, Key, OnStoreDown, OwnerToken, Policy, Reason,
        RecordId, Scope, StoreError, StoreErrorKind, StoredResponse, Verdict,
    };

    use super::*;

    fn entry(number: usize, flow: impl FnOnce(Plan) -> Flow) -> UnsettledClaim {
        let key = Key::new(&number.to_string()).unwrap();
        let id = RecordId::new(Scope::new("s").unwrap(), Caller::anonymous(), key);
        let fingerprint = Fingerprint::from_bytes(&[1; 33]).unwrap();
        let policy = Policy { on_store_down: OnStoreDown::Pass, ..Policy::default() };
        let plan = Plan::new(&policy, fingerprint);
        let claim = Claim::new(id, fingerprint, OwnerToken::from_bytes([1; 16]));
        UnsettledClaim { claim, flow: flow(plan), plan, began: ProcessTime::default() }
    }

    fn unused(plan: Plan) -> Flow {
        Flow::give_back(plan, ProcessTime::default())
    }

    /// An unguarded run that has answered with this many bytes.
    fn ran(plan: Plan, bytes: usize) -> Flow {
        let (mut flow, _) = Flow::begin(plan, ProcessTime::default());
        let away = StoreError::new(StoreErrorKind::Unavailable, "away").effect_unknown();
        let now = ProcessTime::from_millis(10_000);
        let _ = flow.on_claim_failed(&away, now);
        let body = vec![0; bytes].into();
        let answer = Answer::response(&StoredResponse { status: 200, body, ..Default::default() });
        let (verdict, reason) = (Verdict::Completed, Reason::Answered(200));
        let _ = flow.on_ended(ExecutionResult::Answered { verdict, answer, reason }, now);
        assert!(flow.unsettled().is_some());
        flow
    }

    fn keys(entries: &[UnsettledClaim]) -> Vec<&str> {
        entries.iter().map(|entry| entry.claim.id.key.as_str()).collect()
    }

    #[test]
    fn the_oldest_claims_are_dropped_when_there_are_too_many() {
        let mut state = UnsettledState::default();
        for number in 0..CLAIMS_MAX {
            state.push(entry(number, unused));
            assert!(state.shrink().is_empty());
        }
        for number in CLAIMS_MAX..CLAIMS_MAX + 3 {
            state.push(entry(number, unused));
        }
        assert_eq!(keys(&state.shrink()), ["0", "1", "2"]);
        assert_eq!(state.waiting.len(), CLAIMS_MAX);
    }

    #[test]
    fn the_oldest_claims_are_dropped_when_their_answers_are_too_large() {
        let mut state = UnsettledState::default();
        for number in 0..10 {
            state.push(entry(number, |plan| ran(plan, 8 << 20)));
        }
        assert_eq!(keys(&state.shrink()), ["0", "1", "2"], "each has a few bytes more");
        while state.pop().is_some() {}
        assert_eq!(state.answer_bytes, 0);
    }
}
