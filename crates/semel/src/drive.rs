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
    Answer, Claim, Claimed, Epoch, ExecutionResult, Fence, Fenced, Finish, Flow, Grant, Occupied,
    OwnerToken, Plan, Problem, ProcessTime, Reason, RecordAction, RecordId, Reply, Snapshot, Step,
    StoreError, StoreErrorKind, flow,
};
use tokio::sync::oneshot;

use crate::{
    Lease,
    breaker::LastAnswer,
    engine::{Operation, Shared},
    flights::{Flight, Landed},
    gauge::Permit,
    observer::{EventKind, ReplaySource, StoreOperation},
    pending::{Elsewhere, Told},
    renewals::{Renewal, Renewals},
    unsettled::{Entry, Unsettled},
};

/// The operation. It is called at most once.
pub(crate) type Execute =
    Box<dyn FnOnce(Lease) -> Pin<Box<dyn Future<Output = ExecutionResult> + Send>> + Send>;

/// An operation that runs; `None` if it panicked.
type Running = Pin<Box<dyn Future<Output = Option<ExecutionResult>> + Send>>;

/// One request that runs, or that wants to.
pub(crate) struct Driver {
    shared: Arc<Shared>,
    claim: Claim,
    /// Where the operation was remembered before, until that was looked up.
    former: Vec<RecordId>,
    plan: Plan,
    flow: Flow,
    step: Step,
    /// When it began, and when it last asked for its claim.
    began: ProcessTime,
    asked: ProcessTime,
    /// The last answer of the store before that.
    last_answer: LastAnswer,
    /// The epoch that was known before anything was asked.
    epoch: Option<Epoch>,
    lease: Option<Lease>,
    flight: Option<Flight>,
    permit: Option<Permit>,
    teller: Option<oneshot::Sender<Told>>,
    /// Where the reply came from, if it is a recorded one.
    source: ReplaySource,
}

impl Driver {
    pub(crate) fn new(
        shared: Arc<Shared>,
        mut operation: Operation,
        plan: Plan,
        flight: Option<Flight>,
        permit: Permit,
        teller: oneshot::Sender<Told>,
        now: ProcessTime,
    ) -> Self {
        let former = std::mem::take(&mut operation.former);
        let owner = OwnerToken::from_bytes([0; 16]);
        let claim = operation.into_claim(owner, plan.lease(), &shared.node);
        let (flow, step) = Flow::begin(plan, now);
        let entry = Entry { claim, flow, plan, began: now };
        let (permit, teller) = (Some(permit), Some(teller));
        Self { former, flight, permit, teller, step, ..Self::of(shared, entry) }
    }

    /// Asks for a claim that may have been granted, and whose client has its reply.
    pub(crate) async fn settle(shared: &Arc<Shared>, entry: Entry) {
        Box::new(Self::of(Arc::clone(shared), entry)).drive(None).await;
    }

    fn of(shared: Arc<Shared>, entry: Entry) -> Self {
        let Entry { claim, flow, plan, began } = entry;
        Self {
            epoch: shared.cache.epoch(),
            last_answer: shared.breaker.last_answer(),
            shared,
            claim,
            former: Vec::new(),
            plan,
            flow,
            step: Step::Sleep,
            began,
            asked: began,
            lease: None,
            flight: None,
            permit: None,
            teller: None,
            source: ReplaySource::Store,
        }
    }

    /// Until nothing is left to do.
    pub(crate) async fn run(mut self: Box<Self>, execute: Execute) {
        let Some(owner) = self.shared.owners.draw(self.shared.clock.awake()) else {
            return self.tell(Reply::Problem(Problem::StoreUnavailable));
        };
        self.claim.owner = owner;
        self.drive(Some(execute)).await;
    }

    async fn drive(mut self: Box<Self>, mut execute: Option<Execute>) {
        // What runs unguarded, while its claim is asked for beside it.
        let mut unguarded: Option<Running> = None;
        loop {
            self.step = match std::mem::replace(&mut self.step, Step::Done) {
                Step::Execute(grant) => match execute.take() {
                    Some(execute) => {
                        let running = self.begin(execute);
                        self.guard(grant, running).await
                    }
                    None => Step::Done,
                },
                Step::Pass => {
                    self.shared.listener.tell(&self.claim.id, EventKind::Passed);
                    unguarded =
                        execute.take().map(|execute| -> Running { Box::pin(self.begin(execute)) });
                    Step::Sleep
                }
                Step::Guard(grant) => match unguarded.take() {
                    Some(running) => self.guard(grant, running).await,
                    None => Step::Sleep,
                },
                Step::Reply(reply) => {
                    self.tell(reply);
                    if self.flow.unsettled().is_some() {
                        let Self { shared, claim, flow, plan, began, .. } = *self;
                        return Unsettled::add(&shared, Entry { claim, flow, plan, began });
                    }
                    if self.flow.is_done() { Step::Done } else { Step::Sleep }
                }
                Step::Sleep if self.flow.is_waiting() => return self.hand_over(),
                Step::Done => return,
                step @ (Step::Claim
                | Step::Renew(_)
                | Step::Record(..)
                | Step::Look
                | Step::Sleep) => match &mut unguarded {
                    None => self.perform(step).await,
                    Some(running) => tokio::select! {
                        biased;
                        result = running => {
                            unguarded = None;
                            self.end_unguarded(result)
                        }
                        step = self.perform(step) => step,
                    },
                },
            };
        }
    }

    /// Asks the store or sleeps. If this is dropped, the machine has not heard of it.
    async fn perform(&mut self, step: Step) -> Step {
        match step {
            Step::Claim => self.claim().await,
            Step::Record(fence, finish) => self.record(fence, finish).await,
            Step::Look => self.look().await,
            // Renewals happen inside the execution; there is none here.
            Step::Sleep
            | Step::Renew(_)
            | Step::Execute(_)
            | Step::Guard(_)
            | Step::Pass
            | Step::Reply(_)
            | Step::Done => {
                self.shared.clock.sleep_until(self.flow.alarm()).await;
                self.flow.on_tick(self.shared.clock.now())
            }
        }
    }

    // === the claim ===

    async fn claim(&mut self) -> Step {
        self.asked = self.shared.clock.now();
        if !self.shared.breaker.admits(self.shared.clock) {
            return match self.recall() {
                Some(reply) => self.flow.on_known(reply, self.asked),
                None => self.flow.on_store_away(self.asked),
            };
        }
        if !self.former.is_empty() {
            match self.look_back().await {
                Ok(None) => self.asked = self.shared.clock.now(),
                Ok(Some(reply)) => return self.flow.on_known(reply, self.shared.clock.now()),
                // Nothing was claimed, whatever became of the look.
                Err(error) => {
                    let error = StoreError::new(error.kind(), "a former record could not be read");
                    return self.claim_failed(&error);
                }
            }
        }
        let timeout = self.flow.claim_timeout(self.asked);
        let question = self.shared.store.claim(&self.claim);
        match self.shared.ask(StoreOperation::Claim, &self.claim.id, timeout, question).await {
            Ok(claimed) => {
                if let Claimed::Occupied(Occupied::Completed { answer, expires_in }) = &claimed {
                    self.remember(answer.compact(), self.asked.after(*expires_in));
                }
                self.flow.on_claimed(claimed, self.shared.clock.now())
            }
            Err(error) => self.claim_failed(&error),
        }
    }

    fn claim_failed(&mut self, error: &StoreError) -> Step {
        let now = self.shared.clock.now();
        let away = error.kind() == StoreErrorKind::Unavailable;
        if away && let Some(reply) = self.recall() {
            return self.flow.on_known(reply, now);
        }
        let step = self.flow.on_claim_failed(error, now);
        let breaker = &self.shared.breaker;
        if step == Step::Sleep {
            // The store is still away: this one found out, and waits no longer either.
            let known = away && breaker.is_open();
            return if known { self.flow.on_store_away(now) } else { step };
        }
        if away {
            breaker.open(self.last_answer, self.shared.clock);
        }
        step
    }

    /// What is known to be completed is not run again, though the store cannot confirm it.
    fn recall(&mut self) -> Option<Reply> {
        if self.lease.is_some() || self.teller.is_none() {
            return None;
        }
        let Claim { id, fingerprint, .. } = &self.claim;
        let (source, now) = (ReplaySource::CacheWhileAway, self.shared.clock.now());
        let reply = self.shared.cache.get(id, *fingerprint, source, now)?;
        self.source = source;
        Some(reply)
    }

    /// Looks where the operation was remembered before, if it would begin now.
    async fn look_back(&mut self) -> Result<Option<Reply>, StoreError> {
        let seen = self.get(&self.claim.id).await?;
        if flow::would_begin(seen.as_ref()) {
            for id in &self.former {
                let seen = self.get(id).await?;
                let observed = id.scope.is_observed();
                let reply = seen.and_then(|seen| self.plan.reply_of_former(&seen, observed));
                if reply.is_some() {
                    return Ok(reply);
                }
            }
        }
        self.former.clear();
        Ok(None)
    }

    async fn get(&self, id: &RecordId) -> Result<Option<Snapshot>, StoreError> {
        let timeout = self.flow.claim_timeout(self.shared.clock.now());
        self.shared.ask(StoreOperation::Get, id, timeout, self.shared.store.get(id)).await
    }

    /// Keeps a completed record in this process.
    fn remember(&self, answer: Answer, expires: ProcessTime) {
        if let Some(epoch) = self.epoch {
            let Claim { id, fingerprint, .. } = &self.claim;
            self.shared.cache.put(id, *fingerprint, answer, expires, epoch);
        }
    }

    // === the execution ===

    fn begin(
        &mut self,
        execute: Execute,
    ) -> impl Future<Output = Option<ExecutionResult>> + Send + use<> {
        let lease = Lease::new(self.claim.id.clone(), self.shared.clock);
        self.lease = Some(lease.clone());
        caught(execute, lease)
    }

    /// Waits for the end of what runs under this grant, while its lease is renewed.
    async fn guard(
        &mut self,
        grant: Grant,
        running: impl Future<Output = Option<ExecutionResult>>,
    ) -> Step {
        let _renewal = self.renew(grant);
        self.shared.listener.tell(&self.claim.id, EventKind::Claimed(grant));
        let result = running.await.unwrap_or_else(|| {
            self.shared.listener.tell(&self.claim.id, EventKind::Panicked(grant.fence));
            ExecutionResult::Broken(Reason::Panicked)
        });
        self.flow.on_ended(result, self.shared.clock.now())
    }

    fn renew(&self, grant: Grant) -> Option<Renewal> {
        let lease = self.lease.as_ref()?;
        let until = self.asked.after(self.plan.lease_relied_on());
        lease.grant(grant, self.claim.owner, until);
        let ticket = self.flight.as_ref().map(Flight::granted);
        Some(Renewals::add(&self.shared, &self.flow, lease, self.plan, ticket))
    }

    /// What ran unguarded has ended, and the machine has not heard of what was asked meanwhile.
    fn end_unguarded(&mut self, result: Option<ExecutionResult>) -> Step {
        let now = self.shared.clock.now();
        let result = result.unwrap_or(ExecutionResult::Broken(Reason::Panicked));
        let step = self.flow.on_ended(result, now);
        let message = "the run ended before the store answered";
        let unheard = StoreError::new(StoreErrorKind::Unavailable, message).effect_unknown();
        let _ = self.flow.on_claim_failed(&unheard, now);
        step
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
            (Fenced::Applied, RecordAction::Complete(answer)) => {
                // The store counts its retention from the claim, which came later.
                self.remember(answer.clone(), self.began.after(self.claim.retention));
                EventKind::Completed(fence)
            }
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

    // === the client ===

    fn tell(&mut self, reply: Reply) {
        self.shared.tell_reply(&self.claim.id, &reply, self.source);
        // Those who joined first, then the one who began it.
        if let Some(flight) = self.flight.take() {
            flight.land(&Landed::Reply(reply.clone()));
        }
        if let Some(teller) = self.teller.take() {
            // Who hung up does not listen.
            let _ = teller.send(Told::Reply(reply));
        }
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

    /// Asks the store for something after the claim.
    async fn ask<T>(
        &self,
        operation: StoreOperation,
        question: impl Future<Output = Result<T, StoreError>>,
    ) -> Result<T, StoreError> {
        let timeout = self.plan.record_timeout().max(ASK_TIMEOUT_MIN);
        self.shared.ask(operation, &self.claim.id, timeout, question).await
    }
}

/// However short a lease is, the store gets this long to answer.
const ASK_TIMEOUT_MIN: Duration = Duration::from_millis(50);

/// Runs an operation. A panic is a value; the panic hook has reported it already.
async fn caught(execute: Execute, lease: Lease) -> Option<ExecutionResult> {
    let begun = catch_unwind(AssertUnwindSafe(|| execute(lease)));
    let mut execution = begun.ok()?;
    poll_fn(move |context| {
        // After a panic it is never polled again, so nothing broken is looked at.
        match catch_unwind(AssertUnwindSafe(|| execution.as_mut().poll(context))) {
            Ok(poll) => poll.map(Some),
            Err(_) => Poll::Ready(None),
        }
    })
    .await
}
