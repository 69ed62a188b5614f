//! Operations that are only observed: they run by themselves, and the engine says what it would
//! have done with each.
//!
//! What is remembered for that lives in [a scope of its own](semel_core::Scope::observed), so that
//! no guarded request ever meets it. It is a record like any other, but it is never held: held
//! records wait for an operator, and here nobody has anything to decide. Where a guarded one would
//! be, it has failed, which retention sweeps, and a repeat is judged by what the policy says.

mod unrecorded;

use std::{future::Future, sync::Arc};

use semel_core::{
    Caller, Claim, Claimed, Content, Effect, ExecutionResult, Fence, Fenced, Finish, Flow, Grant,
    Occupied, OnStoreDown, OnUnknown, Plan, Policy, Problem, Reason, RecordId, Release, Standing,
    StoreError, StoreErrorKind, Verdict,
};
use tokio::time::timeout;

pub(crate) use self::unrecorded::Unrecorded;
use self::unrecorded::{Execution, Mark};
use crate::{
    Admission, Operation, Semel,
    engine::Shared,
    gauge::Kind,
    observer::{EventKind, StoreOperation, Would},
    unsettled::{Entry, Unsettled},
};

impl Semel {
    /// Lets a request in that is only observed and whose body is still to be read, as
    /// [`Semel::admit`] does for one that is guarded. The two do not share their limits.
    pub fn admit_observed(&self, caller: &Caller) -> Result<Admission, Problem> {
        let permit = self.shared.observed.enter(Kind::Arriving, caller);
        permit.map(Admission).ok_or(Problem::TooManyInFlight)
    }

    /// Tells the observer what would have become of an operation that runs by itself, and remembers
    /// how it `ended`. For fronts; spawn it, and let nothing wait for it.
    ///
    /// # Panics
    ///
    /// Outside a tokio runtime.
    pub async fn observe(
        &self,
        operation: Operation,
        ended: impl Future<Output = ExecutionResult> + Send,
    ) {
        self.keep_house();
        let shared = &self.shared;
        let tell = |would| shared.listener.tell(&operation.id, EventKind::Would(would));
        let Some(witness) = Witness::new(shared, &operation) else {
            return tell(Would::Refuse(Problem::StoreUnavailable));
        };
        let Some(_permit) = shared.observed.enter(Kind::InFlight, &operation.id.caller) else {
            let known = witness.known(&operation.policy).await;
            return tell(known.unwrap_or(Would::Refuse(Problem::TooManyInFlight)));
        };
        // Taken before anything is awaited: what has ended by now has ended before this request.
        let before = shared.unrecorded.settled(&operation.id);
        let mut execution = Execution::new(ended, &shared.unrecorded, operation.id.clone());
        let claim = async {
            let _ = timeout(witness.plan.store_timeout(), before).await;
            witness.claim().await
        };
        let claimed = execution.beside(claim).await;
        tell(would(&claimed, &operation.policy));
        match claimed {
            Ok(Claimed::Granted(Grant { fence, .. })) => {
                if let Some((result, _mark)) = witness.attend(fence, &mut execution).await {
                    witness.record(fence, finish(result, operation.policy.on_unknown)).await;
                }
            }
            Ok(Claimed::Occupied(_)) => {}
            Err(error) if error.effect() == Effect::None => {}
            Err(_) => witness.give_back(),
        }
    }
}

/// What is remembered of an operation beside which it stands.
struct Witness<'a> {
    shared: &'a Arc<Shared>,
    claim: Claim,
    plan: Plan,
}

impl<'a> Witness<'a> {
    /// `None` if the system has no randomness to give.
    fn new(shared: &'a Arc<Shared>, operation: &Operation) -> Option<Self> {
        let plan = Plan::new(&operation.policy, operation.fingerprint).with_sound_lease();
        let RecordId { scope, caller, key } = operation.id.clone();
        let owner = shared.owners.draw(shared.clock.awake())?;
        let mut claim = operation.clone().into_claim(owner, plan.lease(), &shared.node);
        claim.id = RecordId { scope: scope.observed(), caller, key };
        claim.on_unknown = match operation.policy.on_unknown {
            OnUnknown::Rerun => OnUnknown::Rerun,
            OnUnknown::Hold | OnUnknown::Fail => OnUnknown::Fail,
        };
        Some(Self { shared, claim, plan })
    }

    /// What a repeat would get where there is no room to run: the guarded ones ask for room only
    /// once they know neither an answer nor an execution.
    async fn known(&self, policy: &Policy) -> Option<Would> {
        let question = self.shared.store.get(&self.claim.id);
        let seen = self.ask(StoreOperation::Get, question).await.ok()??;
        let same = seen.fingerprint == Some(self.claim.fingerprint);
        match seen.standing {
            Standing::InFlight { lease_left } if lease_left.is_zero() => None,
            Standing::Released { .. } | Standing::Held => None,
            Standing::InFlight { .. } | Standing::Completed { .. } if !same => {
                Some(Would::Refuse(Problem::KeyReused))
            }
            Standing::InFlight { .. } if policy.wait.is_zero() => {
                Some(Would::Refuse(Problem::InProgress))
            }
            Standing::InFlight { .. } => {
                let room = self.shared.observed.enter(Kind::Waiting, &self.claim.id.caller);
                room.map(|_| Would::Join)
            }
            Standing::Completed { answer, expires_in } => {
                let occupied = Occupied::Completed { answer, expires_in };
                Some(would(&Ok(Claimed::Occupied(occupied)), policy))
            }
        }
    }

    async fn claim(&self) -> Result<Claimed, StoreError> {
        if !self.shared.breaker.admits(self.shared.clock) {
            return Err(StoreError::new(StoreErrorKind::Unavailable, "the store is away"));
        }
        self.ask(StoreOperation::Claim, self.shared.store.claim(&self.claim)).await
    }

    /// A guarded request would not have run without its claim, so a claim whose reply was lost is
    /// given back.
    fn give_back(self) {
        let Self { shared, claim, plan } = self;
        let began = shared.clock.now();
        let flow = Flow::give_back(plan, began);
        Unsettled::add(shared, Entry { claim, flow, plan, began });
    }

    /// Waits for the end and renews the lease meanwhile; `None` if the record is somebody else's by
    /// then.
    async fn attend<F>(
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
            if let Ok(Fenced::Lost) = self.ask(StoreOperation::Renew, renewal).await {
                return None;
            }
        }
    }

    /// Tried once: if it fails, the lease lapses, and the next repeat counts as a first.
    async fn record(&self, fence: Fence, finish: Finish) {
        let by = self.claim.claimant(fence);
        let question = self.shared.store.finish(&self.claim.id, by, &finish);
        let _ = self.ask(StoreOperation::Record, question).await;
    }

    async fn ask<T>(
        &self,
        operation: StoreOperation,
        question: impl Future<Output = Result<T, StoreError>>,
    ) -> Result<T, StoreError> {
        self.shared.ask(operation, &self.claim.id, self.plan.store_timeout(), question).await
    }
}

/// What a request that met this would have got.
fn would(claimed: &Result<Claimed, StoreError>, policy: &Policy) -> Would {
    let occupied = match claimed {
        Ok(Claimed::Granted(_)) => return Would::Run,
        Ok(Claimed::Occupied(occupied)) => occupied,
        Err(error) if error.kind() == StoreErrorKind::Busy => {
            return Would::Refuse(Problem::TooManyInFlight);
        }
        Err(_) => {
            return match policy.on_store_down {
                OnStoreDown::Reject => Would::Refuse(Problem::StoreUnavailable),
                OnStoreDown::Pass => Would::Pass,
            };
        }
    };
    match occupied {
        Occupied::FingerprintMismatch => Would::Refuse(Problem::KeyReused),
        Occupied::Ended => Would::Refuse(Problem::InProgress),
        Occupied::InFlight { .. } if policy.wait.is_zero() => Would::Refuse(Problem::InProgress),
        Occupied::InFlight { .. } => Would::Join,
        Occupied::Held => Would::Refuse(Problem::OutcomeUnknown),
        Occupied::Completed { answer, .. } => match answer.read() {
            Ok(Content::Response(_)) => Would::Replay,
            Ok(Content::NotRetained { .. }) => Would::Refuse(Problem::ResponseNotRetained),
            Ok(Content::Failed) => Would::Refuse(match policy.on_unknown {
                OnUnknown::Hold => Problem::OutcomeUnknown,
                OnUnknown::Rerun | OnUnknown::Fail => Problem::OperationFailed,
            }),
            Err(_) => Would::Refuse(Problem::StoreUnavailable),
        },
    }
}

/// How an observed execution is written down: as a guarded one is, but never held.
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
