//! Operations that run in another process, which claims, renews and ends each by a call of its own.
//!
//! For fronts such as the service API. The engine keeps nothing between the calls, so any process
//! on the same store can take the next one. The owner draws its own token and repeats a call whose
//! reply was lost. For that reason a claim with an unknown result is never given back here: a
//! repeat of it, in this process or in another one, may have been granted and used meanwhile.

use std::{future::Future, sync::Arc, time::Duration};

use semel_core::{
    Action, Answer, Claim, Claimant, Claimed, Fenced, Finish, Flow, Grant, Occupied, OwnerToken,
    Plan, Problem, ProcessTime, Reason, RecordAction, RecordId, Release, Reply, Snapshot,
    StateView, StoreError, StoreErrorKind,
};

use super::{BeginRequest, EngineState, Semel, pending::RemoteWait};
use crate::{
    breaker::LastAnswer,
    limiter::{Permit, PermitKind},
    observer::{EventKind, ReplaySource, StoreOperation},
    per_caller::ScopedCallerRef,
};

/// The timeout of a store call that renews or ends an operation.
const CALL_TIMEOUT: Duration = Duration::from_secs(5);

/// The reply to [`Semel::remote_claim`].
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum RemoteClaim {
    /// Run it under this grant, for as long as the lease lives.
    Execute(Grant),
    /// It has run, and this is its answer.
    Replayed(Answer),
    /// This very claim was granted before and was released: its owner token cannot be used again.
    Ended,
    /// This very claim was granted before, and its lease has ended: the record is held. Its owner
    /// must not begin. If it has not begun, it gives the claim back and claims again, with another
    /// owner token.
    Lapsed(Grant),
    /// It may not run now.
    Refused(Problem),
}

/// The reply to [`Semel::remote_finish`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum RemoteFinish {
    /// It is recorded, durably.
    Applied,
    /// The completion is recorded without its answer, which is too large for the store.
    NotRetained,
    /// The operation was completed under this fence before, with another answer.
    Differs,
    /// The fence is not current, or the record no longer takes this write. Nothing changed.
    Lost,
}

impl Semel {
    /// Claims an operation for an owner in another process. For fronts.
    ///
    /// `owner` is drawn at random once per claim. The same claim again has the same owner and is
    /// granted under the same fence; so it is repeated after every lost reply and every error. The
    /// owner counts its lease from before it sent the claim (law 8).
    ///
    /// While another owner runs it, this waits until `end_wait` resolves, and is refused as in
    /// progress then. What the store is asked is awaited also after that: it may be a grant.
    ///
    /// The deadline and the former identities of the request are not used, and `on_store_down` is
    /// always `reject`.
    pub async fn remote_claim(
        &self,
        operation: BeginRequest,
        owner: OwnerToken,
        end_wait: impl Future<Output = ()>,
    ) -> RemoteClaim {
        self.start_maintenance();
        let (shared, now) = (&self.shared, self.shared.clock.now());
        let (id, fingerprint) = (&operation.id, operation.fingerprint);
        if let Some(known) = shared.cached_reply(id, fingerprint, now) {
            return RemoteClaim::from(known.reply);
        }
        let caller = ScopedCallerRef::of(id);
        let Some(permit) = shared.limiter.acquire(PermitKind::InFlight, caller) else {
            return RemoteClaim::from(shared.refuse(id, Problem::TooManyInFlight));
        };
        let plan = Plan::new(&operation.policy, fingerprint).with_sound_lease().watched();
        let (flow, step) = Flow::begin(plan, now);
        let driver = RemoteClaimDriver {
            claim: operation.into_claim(owner, plan.lease(), &shared.node),
            last_answer: shared.breaker.last_answer(shared.clock),
            shared: Arc::clone(shared),
            flow,
            plan,
            permit,
        };
        driver.run(step, end_wait).await
    }

    /// Extends the lease of an operation that runs in another process. For fronts.
    ///
    /// # Errors
    ///
    /// If the store fails. The same call may be repeated.
    pub async fn remote_renew(
        &self,
        id: &RecordId,
        by: Claimant,
        lease: Duration,
    ) -> Result<Fenced, StoreError> {
        let call = self.shared.store.renew(id, by, lease);
        let renewed = self.shared.call_store(StoreOperation::Renew, id, CALL_TIMEOUT, call).await?;
        if renewed == Fenced::Lost {
            self.shared.events.emit(id, EventKind::Lost(by.fence));
        }
        Ok(renewed)
    }

    /// Records how an operation ended that ran in another process. For fronts.
    ///
    /// # Errors
    ///
    /// If the store fails. The same call may be repeated.
    pub async fn remote_finish(
        &self,
        id: &RecordId,
        by: Claimant,
        finish: &Finish,
    ) -> Result<RemoteFinish, StoreError> {
        let shared = &self.shared;
        match shared.finish(id, by, finish).await {
            Ok(Fenced::Applied) => {
                shared.emit_finished(id, by, finish);
                Ok(RemoteFinish::Applied)
            }
            Ok(Fenced::Lost) => shared.why_lost(id, by, finish).await,
            Err(error) if error.kind() == StoreErrorKind::TooLarge => {
                let Some(smaller) = finish.without_body() else { return Err(error) };
                match shared.finish(id, by, &smaller).await? {
                    Fenced::Applied => {
                        shared.emit_finished(id, by, finish);
                        Ok(RemoteFinish::NotRetained)
                    }
                    Fenced::Lost => shared.why_lost(id, by, &smaller).await,
                }
            }
            Err(error) => Err(error),
        }
    }
}

impl EngineState {
    async fn finish(
        &self,
        id: &RecordId,
        by: Claimant,
        finish: &Finish,
    ) -> Result<Fenced, StoreError> {
        let call = self.store.finish(id, by, finish);
        self.call_store(StoreOperation::Record, id, CALL_TIMEOUT, call).await
    }

    fn emit_finished(&self, id: &RecordId, by: Claimant, finish: &Finish) {
        let kind = match finish.action {
            RecordAction::Complete(_) => EventKind::Completed(by.fence),
            RecordAction::Hold => EventKind::Held(by.fence),
            RecordAction::Release(_) | RecordAction::Forget => EventKind::Released(by.fence),
        };
        self.events.emit(id, kind);
    }

    /// Whether a write was refused because this owner has completed the record otherwise.
    async fn why_lost(
        &self,
        id: &RecordId,
        by: Claimant,
        finish: &Finish,
    ) -> Result<RemoteFinish, StoreError> {
        let call = self.store.get(id);
        let seen = self.call_store(StoreOperation::Get, id, CALL_TIMEOUT, call).await?;
        if let Some(seen) = seen
            && seen.fence == by.fence
            && let (RecordAction::Complete(_), StateView::Completed { answer, .. }) =
                (&finish.action, &seen.state)
            // The lease expired under `on_unknown = "fail"`: no answer of this owner.
            && answer.problem() != Some(Problem::OperationFailed)
        {
            return Ok(RemoteFinish::Differs);
        }
        self.events.emit(id, EventKind::Lost(by.fence));
        Ok(RemoteFinish::Lost)
    }
}

impl From<Reply> for RemoteClaim {
    fn from(reply: Reply) -> Self {
        match reply {
            Reply::Problem(problem) => Self::Refused(problem),
            Reply::Limited(refusal) => Self::Refused(refusal.problem()),
            Reply::Ran(answer)
            | Reply::Joined(answer)
            | Reply::Unguarded(answer)
            | Reply::Replayed(answer) => Self::Replayed(answer),
        }
    }
}

/// Drives the state machine of one claim until its owner is known.
struct RemoteClaimDriver {
    shared: Arc<EngineState>,
    claim: Claim,
    plan: Plan,
    flow: Flow,
    permit: Permit,
    /// The last reply of the store before the claim.
    last_answer: LastAnswer,
}

fn is_held_by_lapse(seen: &Snapshot) -> bool {
    seen.state == StateView::Held && seen.reason == Some(Reason::LeaseExpired)
}

/// What a claim call led to.
enum ClaimStep {
    Next(Action),
    Ended,
    Lapsed(Grant),
}

impl RemoteClaimDriver {
    async fn run(mut self, mut step: Action, end_wait: impl Future<Output = ()>) -> RemoteClaim {
        loop {
            step = match step {
                Action::Claim => match self.claim().await {
                    ClaimStep::Next(step) => step,
                    ClaimStep::Ended => return RemoteClaim::Ended,
                    ClaimStep::Lapsed(grant) => return RemoteClaim::Lapsed(grant),
                },
                Action::Execute(grant) => return self.granted(grant),
                Action::Reply(reply) => {
                    self.shared.emit_reply(&self.claim.id, &reply, ReplaySource::Store);
                    return RemoteClaim::from(reply);
                }
                Action::Sleep if self.flow.is_waiting() => return self.wait(end_wait).await,
                Action::Sleep => {
                    self.shared.clock.sleep_until(self.flow.next_tick()).await;
                    self.flow.on_tick(self.shared.clock.now())
                }
                // The record is held, perhaps under this claim, and perhaps another call with the
                // same owner runs it: nothing is given back.
                Action::Look
                | Action::Record(..)
                | Action::Renew(_)
                | Action::Guard(_)
                | Action::Pass
                | Action::Done => {
                    let refused = self.shared.refuse(&self.claim.id, Problem::OutcomeUnknown);
                    return RemoteClaim::from(refused);
                }
            };
        }
    }

    fn granted(self, grant: Grant) -> RemoteClaim {
        let Self { shared, claim, .. } = self;
        shared.events.emit(&claim.id, EventKind::Claimed(grant));
        // Counted now: another process may end it.
        let kept = RecordAction::Release(Release::Rerun);
        shared.quota.count(&claim, None, &kept, grant.attempt, shared.clock.now());
        RemoteClaim::Execute(grant)
    }

    async fn claim(&mut self) -> ClaimStep {
        let (shared, id) = (Arc::clone(&self.shared), self.claim.id.clone());
        let asked = shared.clock.now();
        if shared.breaker.is_open()
            && let Some(reply) = self.reply_from_store(&shared, &id).await
        {
            return ClaimStep::Next(self.flow.on_known(reply, None, asked));
        }
        if !shared.breaker.admits(shared.clock) {
            return ClaimStep::Next(self.flow.on_store_away(asked));
        }
        if let Some(problem) = shared.quota.refuses(ScopedCallerRef::of(&id), None, asked)
            && let Some(step) = self.check_known(&shared, &id, problem).await
        {
            return ClaimStep::Next(step);
        }
        let (epoch, timeout) = (shared.cache.epoch(), self.flow.claim_timeout(asked));
        let call = shared.store.claim(&self.claim);
        match shared.call_store(StoreOperation::Claim, &id, timeout, call).await {
            Ok(Claimed::Occupied(Occupied::Ended)) => ClaimStep::Ended,
            Ok(Claimed::Occupied(Occupied::Held)) => self.check_held(&shared, &id).await,
            Ok(claimed) => {
                if let Claimed::Occupied(Occupied::Completed { answer, expires_in }) = &claimed
                    && let Some(epoch) = epoch
                {
                    let (answer, expires) = (answer.compact(), asked.after(*expires_in));
                    shared.cache.put(&id, self.claim.fingerprint, answer, expires, epoch);
                }
                ClaimStep::Next(self.flow.on_claimed(claimed, shared.clock.now()))
            }
            Err(error) => ClaimStep::Next(self.claim_failed(&error, shared.clock.now())),
        }
    }

    /// A record that is held because its lease has ended may be held under this very claim, whose
    /// reply was lost. Another hold under its fence and token says so, and changes nothing (laws 5
    /// and 6). The claim is not given back here: this may be a stale duplicate, whose owner runs.
    async fn check_held(&mut self, shared: &EngineState, id: &RecordId) -> ClaimStep {
        let timeout = self.flow.claim_timeout(shared.clock.now());
        let found = async {
            let call = shared.store.get(id);
            let seen = shared.call_store(StoreOperation::Get, id, timeout, call).await?;
            let Some(seen) = seen.filter(is_held_by_lapse) else {
                return Ok::<_, StoreError>(None);
            };
            let by = Claimant::new(seen.fence, self.claim.owner);
            let held = Finish::hold(Reason::LeaseExpired);
            let call = shared.store.finish(id, by, &held);
            let held = shared.call_store(StoreOperation::Record, id, timeout, call).await?;
            let grant = Grant::new(seen.fence, seen.attempt);
            Ok((held == Fenced::Applied).then_some(grant))
        };
        let found = found.await;
        let now = shared.clock.now();
        match found {
            Ok(Some(grant)) => ClaimStep::Lapsed(grant),
            Ok(None) => {
                let held = Claimed::Occupied(Occupied::Held);
                ClaimStep::Next(self.flow.on_claimed(held, now))
            }
            Err(error) => {
                let error = StoreError::new(error.kind(), "the held record could not be read");
                ClaimStep::Next(self.claim_failed(&error, now))
            }
        }
    }

    /// The reply to a repeat while the store accepts no writes: a repeat needs none.
    async fn reply_from_store(&self, shared: &EngineState, id: &RecordId) -> Option<Reply> {
        if !shared.breaker.is_readable() {
            return None;
        }
        let call = shared.store.get(id);
        let timeout = self.flow.claim_timeout(shared.clock.now());
        let seen = shared.call_store(StoreOperation::Get, id, timeout, call).await.ok()??;
        // It may be held under this very claim, which only a write finds out.
        let seen = Some(seen).filter(|seen| !is_held_by_lapse(seen))?;
        self.plan.reply_of_former(&seen, false)
    }

    /// Refuses a new key because a quota is exhausted; `None` if the key has a record already.
    async fn check_known(
        &mut self,
        shared: &EngineState,
        id: &RecordId,
        problem: Problem,
    ) -> Option<Action> {
        let timeout = self.flow.claim_timeout(shared.clock.now());
        let call = shared.store.get(id);
        let seen = shared.call_store(StoreOperation::Get, id, timeout, call).await;
        let now = shared.clock.now();
        match seen {
            Ok(Some(_)) => None,
            Ok(None) => {
                shared.breaker.return_probe(shared.clock.awake());
                Some(self.flow.on_known(Reply::Problem(problem), None, now))
            }
            // A failed read has claimed nothing.
            Err(error) => {
                let error = StoreError::new(error.kind(), "the record could not be looked up");
                Some(self.claim_failed(&error, now))
            }
        }
    }

    fn claim_failed(&mut self, error: &StoreError, now: ProcessTime) -> Action {
        let away = error.kind() == StoreErrorKind::Unavailable;
        let step = self.flow.on_claim_failed(error, now);
        let breaker = &self.shared.breaker;
        if step == Action::Sleep {
            // The breaker is open: this request does not wait any longer either.
            let known = away && breaker.is_open();
            return if known { self.flow.on_store_away(now) } else { step };
        }
        if away {
            breaker.open(self.last_answer, self.shared.clock);
        }
        step
    }

    /// Another owner runs it.
    async fn wait(self, end_wait: impl Future<Output = ()>) -> RemoteClaim {
        let Self { shared, claim, flow, permit, .. } = self;
        let Some(permit) = permit.wait() else {
            return RemoteClaim::from(shared.refuse(&claim.id, Problem::TooManyInFlight));
        };
        let since = shared.stopwatch();
        let wait = RemoteWait { shared, id: claim.id, flow, permit, since };
        tokio::select! {
            biased;
            retained = wait.watch() => RemoteClaim::from(retained.reply),
            () = end_wait => RemoteClaim::Refused(Problem::InProgress),
        }
    }
}
