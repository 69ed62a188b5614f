//! Drives one request through its machine: claims, executes, renews, records.
//!
//! The driver is a task of its own, detached before the claim is asked, so that nothing the client
//! does changes what becomes of the operation. It decides nothing: each step comes from
//! [`Flow`], and what happened goes back to it.

use std::{
    future::{Future, poll_fn},
    panic::{AssertUnwindSafe, catch_unwind},
    pin::pin,
    sync::Arc,
    task::Poll,
    time::Duration,
};

use semel_core::{
    Answer, Claim, Claimed, Ended, Ending, Epoch, Fence, Fenced, Flow, Grant, Occupied, OwnerToken,
    Plan, Problem, ProcessTime, Reply, Step, StoreError,
};
use tokio::sync::oneshot;

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
    flight: Option<Flight>,
    permit: Option<Permit>,
    teller: Option<oneshot::Sender<Told>>,
}

const PATIENCE_MIN: Duration = Duration::from_millis(50);
const PATIENCE_MAX: Duration = Duration::from_secs(10);

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
            lease: policy.lease,
            retention: policy.retention,
            on_unknown: policy.on_unknown,
        };
        Self {
            epoch: shared.cache.epoch(now),
            patience: (policy.lease / 3).clamp(PATIENCE_MIN, PATIENCE_MAX),
            began: now,
            lease: None,
            flight,
            permit: Some(permit),
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
                    self.keep(answer, asked.after(*expires_in));
                }
                self.flow.on_claimed(claimed, now)
            }
            Err(error) => self.flow.on_claim_failed(&error, now),
        }
    }

    async fn execute<E, F>(&mut self, grant: Grant, execute: E) -> Step
    where
        E: FnOnce(Lease) -> F,
        F: Future<Output = Ended>,
    {
        let lease = Lease::new(self.claim.id.clone(), Some(grant));
        self.lease = Some(lease.clone());
        if let Some(flight) = &self.flight {
            flight.granted();
        }
        self.shared.listener.tell(&self.claim.id, EventKind::Claimed(grant));
        let mut execution = pin!(caught(execute, lease));
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
            if renewed == Some(Fenced::Lost) {
                self.lose(fence);
            }
            let _ = self.flow.on_renewed(renewed, clock.now());
        }
    }

    fn ended(&mut self, fence: Fence, ended: Result<Ended, Panicked>) -> Step {
        let ended = ended.unwrap_or_else(|_panicked| {
            self.shared.listener.tell(&self.claim.id, EventKind::Panicked(fence));
            Ended::Broken
        });
        self.flow.on_ended(ended, self.shared.clock.now())
    }

    async fn renew(&self, fence: Fence) -> Option<Fenced> {
        let question = self.shared.store.renew(&self.claim.id, fence, self.claim.lease);
        self.ask(StoreOperation::Renew, question).await.ok()
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
                self.keep(answer, self.began.after(self.claim.retention));
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
    /// back a claim that may have been granted, goes on beside it.
    fn pass<E, F>(&mut self, execute: E)
    where
        E: FnOnce(Lease) -> F + Send + 'static,
        F: Future<Output = Ended> + Send + 'static,
    {
        let lease = Lease::new(self.claim.id.clone(), None);
        self.shared.listener.tell(&self.claim.id, EventKind::Passed);
        let (flight, teller, permit) = (self.flight.take(), self.teller.take(), self.permit.take());
        tokio::spawn(async move {
            let reply = match caught(execute, lease).await {
                Ok(Ended::Answered { answer, .. }) => Reply::Ran(answer),
                Ok(Ended::NeverReached) => Reply::Problem(Problem::UpstreamUnreachable),
                Ok(Ended::Broken) | Err(Panicked) => Reply::Problem(Problem::UpstreamTimeout),
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
    fn hand_over(mut self) {
        if let Some(flight) = self.flight.take() {
            flight.land(&Landed::Elsewhere);
        }
        if let (Some(teller), Some(permit)) = (self.teller.take(), self.permit.take()) {
            let Self { shared, claim, flow, .. } = self;
            let elsewhere = Elsewhere { shared, id: claim.id, flow, permit };
            let _ = teller.send(Told::Elsewhere(Box::new(elsewhere)));
        }
    }

    fn keep(&self, answer: &Answer, expires: ProcessTime) {
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

/// The operation panicked; the panic hook has said so already.
#[derive(Debug)]
struct Panicked;

/// Runs an operation; a panic is a value.
async fn caught<E, F>(execute: E, lease: Lease) -> Result<Ended, Panicked>
where
    E: FnOnce(Lease) -> F,
    F: Future<Output = Ended>,
{
    let mut execution = pin!(async move { execute(lease).await });
    poll_fn(move |context| {
        // After a panic it is never polled again, so nothing broken is looked at.
        match catch_unwind(AssertUnwindSafe(|| execution.as_mut().poll(context))) {
            Ok(poll) => poll.map(Ok),
            Err(_) => Poll::Ready(Err(Panicked)),
        }
    })
    .await
}
