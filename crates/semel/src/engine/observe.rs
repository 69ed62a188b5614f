//! Observed operations: they run unguarded, and the engine reports what it would have done with
//! each.
//!
//! Their records are in [a scope of its own](semel_core::Scope::observed), so that no guarded
//! request meets them. They are like other records, but never held: a held record waits for an
//! operator, and here there is nothing to decide. Where a guarded record would be held, an observed
//! one has failed. Retention sweeps it, and a repeat is judged by the policy.

mod unrecorded;

use std::{future::Future, sync::Arc};

use semel_core::{
    Caller, Claim, Claimed, Content, Effect, ExecutionResult, Fence, Fenced, Finish, Flow, Grant,
    Occupied, OnStoreDown, OnUnknown, Plan, Policy, Problem, Reason, RecordId, Release, Scope,
    StateView, StoreError, StoreErrorKind, Verdict,
};
use tokio::time::timeout;

pub(crate) use self::unrecorded::Unrecorded;
use self::unrecorded::{Execution, Mark};
use super::{
    Admission, BeginRequest, EngineState, Semel, drive::Driver, unsettled::UnsettledClaim,
};
use crate::{
    breaker::ProvesWrite,
    limiter::PermitKind,
    observer::{EventKind, ObservedOutcome, StoreOperation},
    per_caller::ScopedCallerRef,
};

impl Semel {
    /// Admits an observed request whose body is not read yet, as [`Semel::admit`] does for a
    /// guarded one. The two do not share their limits.
    pub fn admit_observed(&self, scope: &Scope, caller: &Caller) -> Result<Admission, Problem> {
        let caller = ScopedCallerRef { scope, caller };
        let permit = self.shared.observed.acquire(PermitKind::Arriving, caller);
        permit.map(Admission).ok_or(Problem::TooManyInFlight)
    }

    /// Reports what a guarding route would have done with an operation, and records how it `ended`.
    /// For fronts: spawn it, and do not wait for it.
    ///
    /// # Panics
    ///
    /// Outside a tokio runtime.
    pub async fn observe(
        &self,
        operation: BeginRequest,
        ended: impl Future<Output = ExecutionResult> + Send,
    ) {
        self.start_maintenance();
        let shared = &self.shared;
        let report = |would| shared.events.emit(&operation.id, EventKind::Observed(would));
        let Some(observed) = ObservedOperation::new(shared, &operation) else {
            return report(ObservedOutcome::Refuse(Problem::StoreUnavailable));
        };
        let caller = ScopedCallerRef::of(&operation.id);
        let Some(_permit) = shared.observed.acquire(PermitKind::InFlight, caller) else {
            let known_outcome = observed.known_outcome(&operation.policy).await;
            return report(
                known_outcome.unwrap_or(ObservedOutcome::Refuse(Problem::TooManyInFlight)),
            );
        };
        let now = shared.clock.now();
        if let Some(problem) = shared.quota.refuses(caller, operation.sender.peer(), now) {
            let known_outcome = observed.known_outcome(&operation.policy).await;
            return report(known_outcome.unwrap_or(ObservedOutcome::Refuse(problem)));
        }
        // Taken before the first await: what has ended by now ended before this request.
        let before = shared.unrecorded.settled(&operation.id);
        let mut execution = Execution::new(ended, &shared.unrecorded, operation.id.clone());
        let claim = async {
            let _ = timeout(observed.plan.store_timeout(), before).await;
            observed.claim().await
        };
        let claimed = execution.run_alongside(claim).await;
        report(would(&claimed, &operation));
        match claimed {
            Ok(Claimed::Granted(Grant { fence, .. })) => {
                let (id, fingerprint) = (&operation.id, operation.fingerprint);
                shared.caller_changes.granted(id, fingerprint, now, &shared.events);
                if let Some((result, _mark)) = observed.wait_for_end(fence, &mut execution).await {
                    let finish = finish(result, operation.policy.on_unknown);
                    let now = shared.clock.now();
                    shared.caller_changes.ended(id, fingerprint, &finish.action, now);
                    observed.record(fence, finish).await;
                }
            }
            Ok(Claimed::Occupied(_)) => {}
            Err(error) if error.effect() == Effect::None => {}
            Err(_) => observed.give_back(),
        }
    }
}

/// The record of an observed operation.
struct ObservedOperation<'a> {
    shared: &'a Arc<EngineState>,
    claim: Claim,
    plan: Plan,
}

impl<'a> ObservedOperation<'a> {
    /// `None` if the system has no randomness.
    fn new(shared: &'a Arc<EngineState>, operation: &BeginRequest) -> Option<Self> {
        let plan = Plan::new(&operation.policy, operation.fingerprint).with_sound_lease();
        let RecordId { scope, caller, key } = operation.id.clone();
        let owner = shared.owners.next_token(shared.clock.awake())?;
        let mut claim = operation.clone().into_claim(owner, plan.lease(), &shared.node);
        claim.limits = claim.limits.reporting();
        claim.id = RecordId { scope: scope.observed(), caller, key };
        claim.on_unknown = match operation.policy.on_unknown {
            OnUnknown::Rerun => OnUnknown::Rerun,
            OnUnknown::Hold | OnUnknown::Fail => OnUnknown::Fail,
        };
        Some(Self { shared, claim, plan })
    }

    /// What a repeat would get at the concurrency limit: guarded requests take a permit only if
    /// they find neither an answer nor an execution.
    async fn known_outcome(&self, policy: &Policy) -> Option<ObservedOutcome> {
        let call = self.shared.store.get(&self.claim.id);
        let seen = self.call_store(StoreOperation::Get, call).await.ok()??;
        let same = seen.fingerprint == Some(self.claim.fingerprint);
        match seen.state {
            StateView::InFlight { lease_left } if lease_left.is_zero() => None,
            StateView::Released { .. } | StateView::Held => None,
            StateView::InFlight { .. } | StateView::Completed { .. } if !same => {
                Some(ObservedOutcome::Refuse(Problem::KeyReused))
            }
            StateView::InFlight { .. } if policy.wait.is_zero() => {
                Some(ObservedOutcome::Refuse(Problem::InProgress))
            }
            StateView::InFlight { .. } => {
                let caller = ScopedCallerRef::of(&self.claim.id);
                let room = self.shared.observed.acquire(PermitKind::Waiting, caller);
                room.map(|_| ObservedOutcome::Join)
            }
            StateView::Completed { answer, expires_in } => {
                let occupied = Occupied::Completed { answer, expires_in };
                Some(would_meet(&occupied, policy))
            }
        }
    }

    async fn claim(&self) -> Result<Claimed, StoreError> {
        if !self.shared.breaker.admits(self.shared.clock) {
            return Err(StoreError::new(StoreErrorKind::Unavailable, "the store is away"));
        }
        self.call_store(StoreOperation::Claim, self.shared.store.claim(&self.claim)).await
    }

    /// A guarded request would not have run without its claim, so a claim whose reply was lost is
    /// given back.
    fn give_back(self) {
        let Self { shared, claim, plan } = self;
        let began = shared.clock.now();
        let flow = Flow::give_back(plan, began);
        Driver::settle_later(shared, UnsettledClaim { claim, flow, plan, began });
    }

    /// Waits for the end and renews the lease meanwhile; `None` if the record has another owner by
    /// then.
    async fn wait_for_end<F>(
        &self,
        fence: Fence,
        execution: &mut Execution<'_, F>,
    ) -> Option<(ExecutionResult, Mark)>
    where
        F: Future<Output = ExecutionResult>,
    {
        loop {
            if let Ok(ended) = timeout(self.claim.lease / 3, execution.end()).await {
                return Some(ended);
            }
            let by = self.claim.claimant(fence);
            let renewal = self.shared.store.renew(&self.claim.id, by, self.claim.lease);
            if let Ok(Fenced::Lost) = self.call_store(StoreOperation::Renew, renewal).await {
                return None;
            }
        }
    }

    /// Tried once: if it fails, the lease expires, and the next repeat counts as a first.
    async fn record(&self, fence: Fence, finish: Finish) {
        let by = self.claim.claimant(fence);
        let finish = finish.with_limits(&self.claim.limits, None);
        let call = self.shared.store.finish(&self.claim.id, by, &finish);
        let _ = self.call_store(StoreOperation::Record, call).await;
    }

    async fn call_store<T: ProvesWrite>(
        &self,
        operation: StoreOperation,
        call: impl Future<Output = Result<T, StoreError>>,
    ) -> Result<T, StoreError> {
        self.shared.call_store(operation, &self.claim.id, self.plan.store_timeout(), call).await
    }
}

/// What a guarded request would have got.
fn would(claimed: &Result<Claimed, StoreError>, operation: &BeginRequest) -> ObservedOutcome {
    match claimed {
        Ok(Claimed::Granted(grant)) => {
            let mut limits = (0_u8..).zip(operation.limits.iter());
            let refusing =
                limits.find(|(index, limit)| limit.refuses && grant.exceeded.contains(*index));
            refusing.map_or(ObservedOutcome::Run, |(_, limit)| {
                ObservedOutcome::Refuse(limit.kind.problem())
            })
        }
        Ok(Claimed::Occupied(occupied)) => would_meet(occupied, &operation.policy),
        Err(error) if error.kind() == StoreErrorKind::Busy => {
            ObservedOutcome::Refuse(Problem::TooManyInFlight)
        }
        Err(_) => match operation.policy.on_store_down {
            OnStoreDown::Reject => ObservedOutcome::Refuse(Problem::StoreUnavailable),
            OnStoreDown::Pass => ObservedOutcome::Pass,
        },
    }
}

/// What a guarded request would have got whose claim met this.
fn would_meet(occupied: &Occupied, policy: &Policy) -> ObservedOutcome {
    match occupied {
        Occupied::FingerprintMismatch => ObservedOutcome::Refuse(Problem::KeyReused),
        Occupied::Ended => ObservedOutcome::Refuse(Problem::InProgress),
        Occupied::InFlight { .. } if policy.wait.is_zero() => {
            ObservedOutcome::Refuse(Problem::InProgress)
        }
        Occupied::InFlight { .. } => ObservedOutcome::Join,
        Occupied::Held => ObservedOutcome::Refuse(Problem::OutcomeUnknown),
        Occupied::Limited(refusal) => ObservedOutcome::Refuse(refusal.problem()),
        Occupied::Completed { answer, .. } => match answer.read() {
            Ok(Content::Response(_)) => ObservedOutcome::Replay,
            Ok(Content::NotRetained { .. }) => {
                ObservedOutcome::Refuse(Problem::ResponseNotRetained)
            }
            Ok(Content::Failed) => ObservedOutcome::Refuse(match policy.on_unknown {
                OnUnknown::Hold => Problem::OutcomeUnknown,
                OnUnknown::Rerun | OnUnknown::Fail => Problem::OperationFailed,
            }),
            Err(_) => ObservedOutcome::Refuse(Problem::StoreUnavailable),
        },
    }
}

/// How an observed execution is recorded: as a guarded one, but never held.
fn finish(result: ExecutionResult, on_unknown: OnUnknown) -> Finish {
    let on_unknown = match on_unknown {
        OnUnknown::Rerun => OnUnknown::Rerun,
        OnUnknown::Hold | OnUnknown::Fail => OnUnknown::Fail,
    };
    match result {
        ExecutionResult::NeverReached => Finish::release(Release::NotSent, Reason::NotSent),
        ExecutionResult::Answered { verdict, answer, reason } => match verdict {
            Verdict::Completed => Finish::complete(answer),
            Verdict::Retry => Finish::release(Release::Refused, reason),
            Verdict::Forget => Finish::forget(reason),
            Verdict::Unknown => Finish::unknown(on_unknown, reason),
        },
        ExecutionResult::Broken(reason) => Finish::unknown(on_unknown, reason),
    }
}
