//! Drives one request through its machine: claims, executes, records.
//!
//! The driver is a task of its own, detached before the claim is asked, so that nothing the client
//! does changes what becomes of the operation. It decides nothing: each step comes from [`Flow`],
//! and what happened goes back to it.
//!
//! What the task consists of is boxed in pieces: a future is copied when it is spawned, and a large
//! one costs more to allocate than several small ones.

use std::{
    future::{Future, poll_fn},
    panic::{AssertUnwindSafe, catch_unwind},
    pin::Pin,
    sync::Arc,
    task::Poll,
    time::Duration,
};

use semel_core::{
    Claim, Claimed, Epoch, ExecutionResult, Fence, Fenced, Finish, Flow, Grant, Occupied,
    OwnerToken, Plan, Problem, ProcessTime, Reason, RecordAction, Reply, Step, StoreError,
};
use tokio::sync::oneshot;

use crate::{
    Lease,
    engine::{Operation, Shared},
    flights::{Flight, Landed},
    gauge::Permit,
    observer::{EventKind, Run, StoreOperation},
    pending::{Elsewhere, Told},
    renewals::Renewals,
};

/// The operation. It is called at most once.
pub(crate) type Execute =
    Box<dyn FnOnce(Lease) -> Pin<Box<dyn Future<Output = ExecutionResult> + Send>> + Send>;

/// One request that runs, or that wants to.
pub(crate) struct Driver {
    shared: Arc<Shared>,
    claim: Claim,
    flow: Flow,
    step: Step,
    /// When it began, and the epoch that was known then.
    began: ProcessTime,
    epoch: Option<Epoch>,
    /// How long one question to the store may take.
    patience: Duration,
    lease: Option<Lease>,
    plan: Plan,
    flight: Option<Flight>,
    permit: Option<Permit>,
    /// The permit, once it is shared with an unguarded run.
    passing: Option<Arc<Permit>>,
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
        let (flow, step) = Flow::begin(plan, now);
        let owner = OwnerToken::from_bytes([0; 16]);
        let claim = operation.into_claim(owner, plan.lease(), &shared.node);
        Self {
            epoch: shared.cache.epoch(now),
            patience: plan.store_timeout().max(PATIENCE_MIN),
            began: now,
            lease: None,
            flight,
            plan,
            permit: Some(permit),
            passing: None,
            teller: Some(teller),
            shared,
            claim,
            flow,
            step,
        }
    }

    /// Until nothing is left to do.
    pub(crate) async fn run(mut self: Box<Self>, execute: Execute) {
        let mut execute = Some(execute);
        let Some(owner) = self.shared.owners.draw(self.shared.clock.elapsed()) else {
            return self.tell(Reply::Problem(Problem::StoreUnavailable));
        };
        self.claim.owner = owner;
        loop {
            self.step = match std::mem::replace(&mut self.step, Step::Done) {
                Step::Claim => self.claim().await,
                Step::Execute(grant) => match execute.take() {
                    Some(execute) => self.execute(grant, execute).await,
                    None => Step::Done,
                },
                Step::Record(fence, finish) => self.record(fence, finish).await,
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

    async fn claim(&mut self) -> Step {
        let question = self.shared.store.claim(&self.claim);
        let claimed = self.ask(StoreOperation::Claim, question).await;
        let now = self.shared.clock.now();
        match claimed {
            Ok(claimed) => {
                if let Claimed::Occupied(Occupied::Completed { answer, expires_in }) = &claimed
                    && let Some(epoch) = self.epoch
                {
                    let (Claim { id, fingerprint, .. }, expires) =
                        (&self.claim, self.began.after(*expires_in));
                    self.shared.cache.put(id, *fingerprint, answer.compact(), expires, epoch);
                }
                self.flow.on_claimed(claimed, now)
            }
            Err(error) => self.flow.on_claim_failed(&error, now),
        }
    }

    async fn execute(&mut self, grant: Grant, execute: Execute) -> Step {
        let lease = Lease::new(self.claim.id.clone(), Some((grant, self.claim.owner)));
        self.lease = Some(lease.clone());
        let ticket = self.flight.as_ref().map(Flight::granted);
        let renewal = Renewals::add(&self.shared, &self.flow, &lease, self.claim.lease, ticket);
        self.shared.listener.tell(&self.claim.id, EventKind::Claimed(grant));
        let ended = caught(execute, lease).await.unwrap_or_else(|Panicked| {
            self.shared.listener.tell(&self.claim.id, EventKind::Panicked(grant.fence));
            ExecutionResult::Broken(Reason::Panicked)
        });
        drop(renewal);
        self.flow.on_ended(ended, self.shared.clock.now())
    }

    async fn record(&mut self, fence: Fence, finish: Finish) -> Step {
        let by = self.claim.claimant(fence);
        let question = self.shared.store.finish(&self.claim.id, by, &finish);
        match self.ask(StoreOperation::Record, question).await {
            Ok(fenced) => {
                self.recorded(fence, &finish, fenced);
                self.flow.on_recorded(fenced, self.shared.clock.now())
            }
            Err(error) => self.flow.on_record_failed(&error, self.shared.clock.now()),
        }
    }

    fn recorded(&self, fence: Fence, finish: &Finish, fenced: Fenced) {
        let kind = match (fenced, &finish.action) {
            (Fenced::Lost, _) => return self.lose(fence),
            (Fenced::Applied, RecordAction::Complete(_)) => EventKind::Completed(fence),
            (Fenced::Applied, RecordAction::Hold) => EventKind::Held(fence),
            (Fenced::Applied, _) => EventKind::Released(fence),
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
    fn pass(&mut self, execute: Execute) {
        let (shared, id) = (Arc::clone(&self.shared), self.claim.id.clone());
        if let Some(hit) = shared.cache.recall(&id, self.claim.fingerprint, shared.clock.now()) {
            let reply = shared.replay(&id, self.plan, hit);
            return land(self.flight.take(), self.teller.take(), reply);
        }
        shared.listener.tell(&id, EventKind::Passed);
        let (flight, teller) = (self.flight.take(), self.teller.take());
        let permit = self.permit.take().map(Arc::new);
        self.passing.clone_from(&permit);
        tokio::spawn(async move {
            let lease = Lease::new(id.clone(), None);
            let reply = match caught(execute, lease).await {
                Ok(ExecutionResult::Answered { answer, .. }) => {
                    shared.listener.tell(&id, EventKind::Answered(Run::Unguarded));
                    Reply::Ran(answer)
                }
                Ok(ExecutionResult::NeverReached) => {
                    shared.refuse(&id, Problem::UpstreamUnreachable)
                }
                Ok(ExecutionResult::Broken(_)) | Err(Panicked) => {
                    shared.refuse(&id, Problem::UpstreamTimeout)
                }
            };
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
    fn hand_over(mut self: Box<Self>) {
        if let Some(flight) = self.flight.take() {
            flight.land(&Landed::Elsewhere);
        }
        let permit = self.permit.take().and_then(Permit::wait);
        let Some(permit) = permit else {
            return self.tell(Reply::Problem(Problem::TooManyInFlight));
        };
        if let Some(teller) = self.teller.take() {
            let Self { shared, claim, flow, .. } = *self;
            let since = shared.stopwatch();
            let elsewhere = Elsewhere { shared, id: claim.id, flow, permit, since };
            let _ = teller.send(Told::Elsewhere(Box::new(elsewhere)));
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

/// The operation panicked; the panic hook has said so already.
#[derive(Debug)]
struct Panicked;

/// Runs an operation; a panic is a value.
async fn caught(execute: Execute, lease: Lease) -> Result<ExecutionResult, Panicked> {
    let begun = catch_unwind(AssertUnwindSafe(|| execute(lease)));
    let mut execution = begun.map_err(|_| Panicked)?;
    poll_fn(move |context| {
        // After a panic it is never polled again, so nothing broken is looked at.
        match catch_unwind(AssertUnwindSafe(|| execution.as_mut().poll(context))) {
            Ok(poll) => poll.map(Ok),
            Err(_) => Poll::Ready(Err(Panicked)),
        }
    })
    .await
}
