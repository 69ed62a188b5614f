//! Drives one request through its machine: claims, executes, renews, records.
//!
//! The driver is a task of its own, detached before the claim is asked, so that nothing the client
//! does changes what becomes of the operation. The operation gets another one, so that the lease is
//! renewed even if it blocks its thread. The driver decides nothing: each step comes from [`Flow`],
//! and what happened goes back to it.

use std::{future::Future, sync::Arc, time::Duration};

use semel_core::{
    Answer, Claim, Claimed, Ended, Ending, Epoch, Fence, Fenced, Flow, Grant, Occupied, OwnerToken,
    Plan, Problem, ProcessTime, Reply, Step, StoreError,
};
use tokio::{sync::oneshot, task::JoinError};

use crate::{
    Lease,
    engine::{Operation, Shared},
    flights::{Flight, Landed},
    gauge::Permit,
    observer::{EventKind, StoreOperation},
    pending::{Elsewhere, Told},
};

/// One request that runs, or that wants to.
pub(crate) struct Driver {
    shared: Arc<Shared>,
    claim: Claim,
    flow: Flow,
    step: Step,
    /// When it was begun, and the epoch that was known then.
    began: ProcessTime,
    epoch: Option<Epoch>,
    /// How long one question to the store may take.
    patience: Duration,
    lease: Option<Lease>,
    plan: Plan,
    flight: Option<Flight>,
    permit: Option<Arc<Permit>>,
    teller: Option<oneshot::Sender<Told>>,
}

const PATIENCE_MIN: Duration = Duration::from_millis(50);

impl Driver {
    pub(crate) fn new(
        shared: Arc<Shared>,
        operation: Operation,
        plan: Plan,
        flight: Option<Flight>,
        permit: Permit,
        teller: oneshot::Sender<Told>,
        now: ProcessTime,
    ) -> Self {
        let Operation { id, fingerprint, policy } = operation;
        let (flow, step) = Flow::begin(plan, now);
        let claim = Claim {
            id,
            fingerprint,
            owner: OwnerToken::from_bytes([0; 16]),
            lease: plan.lease(),
            retention: policy.retention,
            on_unknown: policy.on_unknown,
        };
        Self {
            epoch: shared.cache.epoch(now),
            patience: plan.patience().max(PATIENCE_MIN),
            began: now,
            lease: None,
            flight,
            plan,
            permit: Some(Arc::new(permit)),
            teller: Some(teller),
            shared,
            claim,
            flow,
            step,
        }
    }

    /// Until nothing is left to do.
    pub(crate) async fn run<E, F>(mut self, execute: E)
    where
        E: FnOnce(Lease) -> F + Send + 'static,
        F: Future<Output = Ended> + Send + 'static,
    {
        let mut execute = Some(execute);
        if !self.draw_owner_token() {
            return;
        }
        loop {
            self.step = match std::mem::replace(&mut self.step, Step::Done) {
                Step::Claim => self.claim().await,
                Step::Execute(grant) => match execute.take() {
                    Some(execute) => self.execute(grant, execute).await,
                    None => Step::Done,
                },
                Step::Record(fence, ending) => self.record(fence, ending).await,
                Step::Look => self.look().await,
                Step::Reply(reply) => {
                    self.tell(reply);
                    self.after_telling()
                }
                Step::Pass => {
                    if let Some(execute) = execute.take() {
                        self.pass(execute);
                    }
                    self.after_telling()
                }
                Step::Sleep if self.flow.is_waiting() => return self.hand_over(),
                // Renewals happen inside the execution; there is none here.
                Step::Sleep | Step::Renew(_) => {
                    self.shared.clock.sleep_until(self.flow.alarm()).await;
                    self.flow.on_tick(self.shared.clock.now())
                }
                Step::Done => return,
            };
        }
    }

    /// Sixteen random bytes. A system that has none to give is one where nothing may run.
    fn draw_owner_token(&mut self) -> bool {
        let mut bytes = [0; 16];
        let drawn = getrandom::fill(&mut bytes).is_ok();
        if drawn {
            self.claim.owner = OwnerToken::from_bytes(bytes);
        } else {
            self.tell(Reply::Problem(Problem::StoreUnavailable));
        }
        drawn
    }

    async fn claim(&mut self) -> Step {
        let question = self.shared.store.claim(&self.claim);
        let asked = self.shared.clock.now();
        let claimed = self.ask(StoreOperation::Claim, question).await;
        let now = self.shared.clock.now();
        match claimed {
            Ok(claimed) => {
                if let Claimed::Occupied(Occupied::Completed { answer, expires_in }) = &claimed {
                    self.keep(answer.compact(), asked.after(*expires_in));
                }
                self.flow.on_claimed(claimed, now)
            }
            Err(error) => self.flow.on_claim_failed(&error, now),
        }
    }

    async fn execute<E, F>(&mut self, grant: Grant, execute: E) -> Step
    where
        E: FnOnce(Lease) -> F + Send + 'static,
        F: Future<Output = Ended> + Send + 'static,
    {
        let lease = Lease::new(self.claim.id.clone(), Some(grant));
        self.lease = Some(lease.clone());
        if let Some(flight) = &self.flight {
            flight.granted();
        }
        self.shared.listener.tell(&self.claim.id, EventKind::Claimed(grant));
        let mut execution = tokio::spawn(async move { execute(lease).await });
        loop {
            let clock = self.shared.clock;
            let fence = tokio::select! {
                biased;
                ended = &mut execution => return self.ended(grant.fence, ended),
                () = clock.sleep_until(self.flow.alarm()) => {
                    let Step::Renew(fence) = self.flow.on_tick(clock.now()) else { continue };
                    fence
                }
            };
            let renewed = tokio::select! {
                biased;
                // A renewal under way is left alone: what is recorded next has the same fence.
                ended = &mut execution => return self.ended(grant.fence, ended),
                renewed = self.renew(fence) => renewed,
            };
            self.renewed(fence, renewed);
        }
    }

    fn ended(&mut self, fence: Fence, ended: Result<Ended, JoinError>) -> Step {
        let ended = ended.unwrap_or_else(|_panicked| {
            self.shared.listener.tell(&self.claim.id, EventKind::Panicked(fence));
            Ended::Broken
        });
        self.flow.on_ended(ended, self.shared.clock.now())
    }

    async fn renew(&self, fence: Fence) -> Renewed {
        let (store, id) = (&self.shared.store, &self.claim.id);
        let question = store.renew(id, fence, self.claim.lease);
        match self.ask(StoreOperation::Renew, question).await {
            Err(_) => return Renewed::Unheard,
            Ok(Fenced::Applied) => return Renewed::Still,
            Ok(Fenced::Lost) => {}
        }
        match self.ask(StoreOperation::Get, store.get(id)).await {
            Err(_) => Renewed::Unheard,
            Ok(Some(seen)) if seen.fence == fence => Renewed::Held,
            Ok(_) => Renewed::Lost,
        }
    }

    fn renewed(&mut self, fence: Fence, renewed: Renewed) {
        let fenced = match renewed {
            Renewed::Still => Some(Fenced::Applied),
            Renewed::Unheard => None,
            Renewed::Held | Renewed::Lost => Some(Fenced::Lost),
        };
        let _ = self.flow.on_renewed(fenced, self.shared.clock.now());
        if renewed == Renewed::Lost {
            self.lose(fence);
        }
        if fenced == Some(Fenced::Lost) {
            // Who comes now must hear what the record says, not what becomes of this run.
            if let Some(flight) = self.flight.take() {
                flight.land(&Landed::Elsewhere);
            }
        }
    }

    async fn record(&mut self, fence: Fence, ending: Ending) -> Step {
        let (store, id) = (&self.shared.store, &self.claim.id);
        let question = match &ending {
            Ending::Complete(answer) => store.complete(id, fence, answer),
            Ending::Release(tried) => store.release(id, fence, *tried),
            Ending::Hold => store.hold(id, fence),
        };
        match self.ask(StoreOperation::Record, question).await {
            Ok(fenced) => {
                self.recorded(fence, &ending, fenced);
                self.flow.on_recorded(fenced, self.shared.clock.now())
            }
            Err(error) => self.flow.on_record_failed(&error, self.shared.clock.now()),
        }
    }

    fn recorded(&self, fence: Fence, ending: &Ending, fenced: Fenced) {
        let kind = match (fenced, ending) {
            (Fenced::Lost, _) => return self.lose(fence),
            (Fenced::Applied, Ending::Complete(answer)) => {
                // Retention counts from the claim or from later.
                self.keep(answer.clone(), self.began.after(self.claim.retention));
                EventKind::Completed(fence)
            }
            (Fenced::Applied, Ending::Release(_)) => EventKind::Released(fence),
            (Fenced::Applied, Ending::Hold) => EventKind::Held(fence),
        };
        self.shared.listener.tell(&self.claim.id, kind);
    }

    fn lose(&self, fence: Fence) {
        if let Some(lease) = &self.lease {
            lease.lose();
        }
        self.shared.listener.tell(&self.claim.id, EventKind::Lost(fence));
    }

    async fn look(&mut self) -> Step {
        let question = self.shared.store.get(&self.claim.id);
        match self.ask(StoreOperation::Get, question).await {
            Ok(seen) => self.flow.on_seen(seen.as_ref(), self.shared.clock.now()),
            Err(_) => self.flow.on_look_failed(self.shared.clock.now()),
        }
    }

    /// Runs it unguarded, in a task of its own: what the machine still has to do, such as to give
    /// back a claim that may have been granted, goes on beside it. What is known to be completed is
    /// not run again, though the store cannot confirm it.
    fn pass<E, F>(&mut self, execute: E)
    where
        E: FnOnce(Lease) -> F + Send + 'static,
        F: Future<Output = Ended> + Send + 'static,
    {
        let (shared, id) = (Arc::clone(&self.shared), self.claim.id.clone());
        if let Some(hit) = shared.cache.recall(&id, self.claim.fingerprint, shared.clock.now()) {
            let reply = shared.replay(&id, self.plan, hit);
            return land(self.flight.take(), self.teller.take(), reply);
        }
        shared.listener.tell(&id, EventKind::Passed);
        let (flight, teller) = (self.flight.take(), self.teller.take());
        let permit = self.permit.clone();
        tokio::spawn(async move {
            let lease = Lease::new(id.clone(), None);
            let reply = match tokio::spawn(async move { execute(lease).await }).await {
                Ok(Ended::Answered { answer, .. }) => Reply::Ran(answer),
                Ok(Ended::NeverReached) => Reply::Problem(Problem::UpstreamUnreachable),
                Ok(Ended::Broken) | Err(_) => Reply::Problem(Problem::UpstreamTimeout),
            };
            shared.tell_reply(&id, &reply, false);
            land(flight, teller, reply);
            drop(permit);
        });
    }

    fn tell(&mut self, reply: Reply) {
        self.shared.tell_reply(&self.claim.id, &reply, false);
        land(self.flight.take(), self.teller.take(), reply);
    }

    /// After the reply, some machines still have something to write.
    fn after_telling(&self) -> Step {
        if self.flow.is_done() { Step::Done } else { Step::Sleep }
    }

    /// Somebody elsewhere runs it. Whoever began this waits for that one by themselves, since
    /// nothing is left to be protected from their hanging up.
    fn hand_over(mut self) {
        if let Some(flight) = self.flight.take() {
            flight.land(&Landed::Elsewhere);
        }
        let permit = self.permit.take().and_then(Arc::into_inner).and_then(Permit::wait);
        let Some(permit) = permit else {
            return self.tell(Reply::Problem(Problem::TooManyInFlight));
        };
        if let Some(teller) = self.teller.take() {
            let Self { shared, claim, flow, .. } = self;
            let elsewhere = Elsewhere { shared, id: claim.id, flow, permit };
            let _ = teller.send(Told::Elsewhere(Box::new(elsewhere)));
        }
    }

    fn keep(&self, answer: Answer, expires: ProcessTime) {
        if let Some(epoch) = self.epoch {
            let (id, fingerprint) = (&self.claim.id, self.claim.fingerprint);
            self.shared.cache.put(id, fingerprint, answer, expires, epoch);
        }
    }

    async fn ask<T>(
        &self,
        operation: StoreOperation,
        question: impl Future<Output = Result<T, StoreError>>,
    ) -> Result<T, StoreError> {
        self.shared.ask(operation, &self.claim.id, self.patience, question).await
    }
}

/// Tells those who joined, then the one who began it.
fn land(flight: Option<Flight>, teller: Option<oneshot::Sender<Told>>, reply: Reply) {
    if let Some(flight) = flight {
        flight.land(&Landed::Reply(reply.clone()));
    }
    if let Some(teller) = teller {
        // Who hung up does not listen.
        let _ = teller.send(Told::Reply(reply));
    }
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
