//! Drives one request through its state machine: claims, executes, records.
//!
//! The driver is a task of its own, detached before the claim is sent, so that a client that
//! disconnects does not change the result. It decides nothing: [`Flow`] returns each step and takes
//! each result.
//!
//! The task is boxed in parts: a future is copied when it is spawned, and one large allocation
//! costs more than several small ones.

use std::{
    future::{Future, poll_fn},
    net::IpAddr,
    pin::Pin,
    sync::Arc,
    time::Duration,
};

use semel_core::{
    Action, Answer, Claim, Claimed, Epoch, ExecutionResult, Fence, Fenced, Finish, Flow, Grant,
    Occupied, OwnerToken, Plan, Problem, ProcessTime, Reason, RecordAction, RecordId, Reply,
    Snapshot, StoreError, StoreErrorKind, flow,
};

use tracing::Instrument as _;

use super::{
    BeginRequest, EngineState,
    operation::DrivenOperation,
    pending::RemoteWait,
    renewals::{Renewal, Renewals},
    unsettled::{SettleWorker, UnsettledClaim, UnsettledClaims},
};
use crate::{
    Lease,
    breaker::{LastAnswer, ProvesWrite},
    flights::{Flight, FlightResult},
    limiter::Permit,
    observer::{EventKind, ReplaySource, StoreOperation},
    per_caller::ScopedCallerRef,
    retained_reply::{RetainedReply, retention_left},
    span,
};

/// The operation of the request; `None` where only a claim is settled.
type ClaimedOperation = Option<Pin<Box<dyn DrivenOperation>>>;

/// One request that runs or is about to claim.
pub(crate) struct Driver {
    shared: Arc<EngineState>,
    claim: Claim,
    /// Former identities of the record, until they were looked up.
    former: Vec<RecordId>,
    plan: Plan,
    peer: Option<IpAddr>,
    flow: Flow,
    step: Action,
    /// When the request began, and when it last sent its claim.
    began: ProcessTime,
    asked: ProcessTime,
    /// The last reply of the store before that claim.
    last_answer: LastAnswer,
    lease: Lease,
    flight: Option<Flight>,
    permit: Option<Permit>,
    /// Whether the client has its reply.
    replied: bool,
    /// The source of a replayed answer.
    source: ReplaySource,
    /// When the retention of a completed record ends, or a little earlier.
    expires: Option<ProcessTime>,
}

impl Driver {
    pub(crate) fn new(
        shared: Arc<EngineState>,
        mut operation: BeginRequest,
        plan: Plan,
        lease: Lease,
        flight: Option<Flight>,
        permit: Permit,
        now: ProcessTime,
    ) -> Self {
        let former = std::mem::take(&mut operation.former);
        let peer = operation.sender.peer();
        let owner = OwnerToken::from_bytes([0; 16]);
        let claim = operation.into_claim(owner, plan.lease(), &shared.node);
        let (flow, step) = Flow::begin(plan, now);
        let entry = UnsettledClaim { claim, flow, plan, began: now };
        let permit = Some(permit);
        let driver = Self::of(shared, entry, lease);
        Self { former, peer, flight, permit, step, replied: false, ..driver }
    }

    /// Retries a claim in the background that may have been granted and whose client already has
    /// its reply.
    pub(crate) fn settle_later(shared: &Arc<EngineState>, entry: UnsettledClaim) {
        if let Some(worker) = UnsettledClaims::add(shared, entry) {
            tokio::spawn(Self::settle(worker));
        }
    }

    /// Settles claims until none is left.
    async fn settle(mut worker: SettleWorker) {
        while let Some(entry) = worker.next() {
            let shared = Arc::clone(&worker.shared);
            let lease = Lease::new(entry.claim.id.clone(), shared.clock, None);
            Box::new(Self::of(shared, entry, lease)).drive(None).await;
        }
    }

    fn of(shared: Arc<EngineState>, entry: UnsettledClaim, lease: Lease) -> Self {
        let UnsettledClaim { claim, flow, plan, began } = entry;
        Self {
            last_answer: shared.breaker.last_answer(shared.clock),
            shared,
            claim,
            former: Vec::new(),
            plan,
            peer: None,
            flow,
            step: Action::Sleep,
            began,
            asked: began,
            lease,
            flight: None,
            permit: None,
            replied: true,
            source: ReplaySource::Store,
            expires: None,
        }
    }

    /// Runs until the state machine is done.
    pub(crate) async fn run(mut self: Box<Self>, operation: Pin<Box<dyn DrivenOperation>>) {
        let mut operation = Some(operation);
        let Some(owner) = self.shared.owners.next_token(self.shared.clock.awake()) else {
            return self.send_reply(&mut operation, Reply::Problem(Problem::StoreUnavailable));
        };
        self.claim.owner = owner;
        self.drive(operation).await;
    }

    async fn drive(mut self: Box<Self>, mut operation: ClaimedOperation) {
        // Whether the operation runs unguarded; its claim is retried concurrently.
        let mut unguarded = false;
        loop {
            self.step = match std::mem::replace(&mut self.step, Action::Done) {
                Action::Execute(grant) => match &mut operation {
                    Some(operation) => self.guard(grant, operation).await,
                    None => Action::Done,
                },
                Action::Pass => {
                    self.shared.events.emit(&self.claim.id, EventKind::Passed);
                    if let Some(operation) = &mut operation {
                        self.begin(operation);
                        unguarded = true;
                    }
                    Action::Sleep
                }
                Action::Guard(grant) => match &mut operation {
                    Some(operation) if std::mem::take(&mut unguarded) => {
                        self.guard(grant, operation).await
                    }
                    _ => Action::Sleep,
                },
                Action::Reply(reply) => {
                    self.send_reply(&mut operation, reply);
                    if self.flow.unsettled().is_some() {
                        let Self { shared, claim, flow, plan, began, .. } = *self;
                        return Self::settle_later(
                            &shared,
                            UnsettledClaim { claim, flow, plan, began },
                        );
                    }
                    if self.flow.is_done() { Action::Done } else { Action::Sleep }
                }
                Action::Sleep if self.flow.is_waiting() => return self.wait_remotely(operation),
                Action::Done => return,
                step @ (Action::Claim
                | Action::Renew(_)
                | Action::Record(..)
                | Action::Look
                | Action::Sleep) => match &mut operation {
                    Some(operation) if unguarded => tokio::select! {
                        biased;
                        result = poll_fn(|context| operation.as_mut().poll_end(context)) => {
                            unguarded = false;
                            self.end_unguarded(result)
                        }
                        step = self.perform(step) => step,
                    },
                    _ => self.perform(step).await,
                },
            };
        }
    }

    /// Calls the store or sleeps. If this is dropped, the state machine does not change.
    async fn perform(&mut self, step: Action) -> Action {
        match step {
            Action::Claim => self.claim().await,
            Action::Record(fence, finish) => self.record(fence, finish).await,
            Action::Look => self.read_record().await,
            // Renewals happen inside the execution; there is none here.
            Action::Sleep
            | Action::Renew(_)
            | Action::Execute(_)
            | Action::Guard(_)
            | Action::Pass
            | Action::Reply(_)
            | Action::Done => {
                self.shared.clock.sleep_until(self.flow.next_tick()).await;
                self.flow.on_tick(self.shared.clock.now())
            }
        }
    }

    // === the claim ===

    async fn claim(&mut self) -> Action {
        if self.shared.breaker.is_open()
            && let Some(reply) = self.reply_from_store().await
        {
            return self.flow.on_known(reply, None, self.shared.clock.now());
        }
        self.asked = self.shared.clock.now();
        if !self.shared.breaker.admits(self.shared.clock) {
            return self.flow.on_store_away(self.asked);
        }
        if !self.former.is_empty() {
            match self.find_former().await {
                Ok(None) => self.asked = self.shared.clock.now(),
                Ok(Some(reply)) => return self.unclaimed(reply),
                // A failed read has claimed nothing.
                Err(error) => {
                    let error = StoreError::new(error.kind(), "a former record could not be read");
                    return self.claim_failed(&error);
                }
            }
        }
        if let Some(refused) = self.check_known_key().await {
            return refused;
        }
        if let Some(refused) = self.check_quota().await {
            return refused;
        }
        let (epoch, timeout) = (self.shared.cache.epoch(), self.flow.claim_timeout(self.asked));
        let call = self.shared.store.claim(&self.claim).instrument(span::of_claim());
        match self.shared.call_store(StoreOperation::Claim, &self.claim.id, timeout, call).await {
            Ok(claimed) => {
                if let Claimed::Occupied(Occupied::Completed { answer, expires_in }) = &claimed {
                    let expires = self.asked.after(*expires_in);
                    self.expires = Some(expires);
                    self.cache_answer(answer.compact(), expires, epoch);
                }
                self.flow.on_claimed(claimed, self.shared.clock.now())
            }
            Err(error) => self.claim_failed(&error),
        }
    }

    /// Refuses the first use of a key that must be known, without a write.
    async fn check_known_key(&mut self) -> Option<Action> {
        if self.replied || !self.plan.is_known_key_only() {
            return None;
        }
        match self.get(&self.claim.id).await {
            Ok(seen) if flow::would_begin(seen.as_ref()) => {
                Some(self.unclaimed(Reply::Problem(Problem::TokenInvalid)))
            }
            Ok(_) => {
                self.asked = self.shared.clock.now();
                None
            }
            // A failed read has claimed nothing.
            Err(error) => {
                let error = StoreError::new(error.kind(), "the record could not be looked up");
                Some(self.claim_failed(&error))
            }
        }
    }

    /// Refuses a new key when a quota is exhausted. A key that already has a record passes: its
    /// claim adds none.
    async fn check_quota(&mut self) -> Option<Action> {
        if self.replied {
            return None;
        }
        let caller = ScopedCallerRef::of(&self.claim.id);
        let problem = self.shared.quota.refuses(caller, self.peer, self.asked)?;
        match self.get(&self.claim.id).await {
            Ok(Some(_)) => {
                self.asked = self.shared.clock.now();
                None
            }
            Ok(None) => Some(self.unclaimed(Reply::Problem(problem))),
            // A failed read has claimed nothing.
            Err(error) => {
                let error = StoreError::new(error.kind(), "the record could not be looked up");
                Some(self.claim_failed(&error))
            }
        }
    }

    /// The reply is known, and the claim that the breaker admitted is not sent.
    fn unclaimed(&mut self, reply: Reply) -> Action {
        self.shared.breaker.return_probe(self.shared.clock.awake());
        self.flow.on_known(reply, None, self.shared.clock.now())
    }

    fn claim_failed(&mut self, error: &StoreError) -> Action {
        let now = self.shared.clock.now();
        let away = error.kind() == StoreErrorKind::Unavailable;
        if away && let Some(reply) = self.cached_reply() {
            return self.flow.on_known(reply, Some(error), now);
        }
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

    /// A cached reply. A completed operation does not run again, even if the store cannot confirm
    /// it.
    fn cached_reply(&mut self) -> Option<Reply> {
        if self.lease.has_begun() || self.replied {
            return None;
        }
        let Claim { id, fingerprint, .. } = &self.claim;
        let (source, now) = (ReplaySource::CacheWhileAway, self.shared.clock.now());
        let known = self.shared.cache.get(id, *fingerprint, source, now)?;
        self.source = source;
        self.expires = known.expires_in.map(|left| now.after(left));
        Some(known.reply)
    }

    /// The reply to a repeat while the store accepts no writes. A repeat needs none. An operation
    /// that runs unguarded is no repeat: the record may be its own.
    async fn reply_from_store(&mut self) -> Option<Reply> {
        if self.lease.has_begun() || self.replied {
            return None;
        }
        let known = self.cached_reply();
        if known.is_some() || !self.shared.breaker.is_readable() {
            return known;
        }
        let (asked, seen) = (self.shared.clock.now(), self.get(&self.claim.id).await.ok()??);
        self.note_expiry(&seen, asked);
        self.plan.reply_of_former(&seen, false)
    }

    /// Looks the operation up under its former identities, if it would begin now.
    async fn find_former(&mut self) -> Result<Option<Reply>, StoreError> {
        let seen = self.get(&self.claim.id).await?;
        if flow::would_begin(seen.as_ref()) {
            for id in &self.former {
                let asked = self.shared.clock.now();
                let Some(seen) = self.get(id).await? else { continue };
                let reply = self.plan.reply_of_former(&seen, id.scope.is_observed());
                if reply.is_some() {
                    self.note_expiry(&seen, asked);
                    return Ok(reply);
                }
            }
        }
        self.former.clear();
        Ok(None)
    }

    async fn get(&self, id: &RecordId) -> Result<Option<Snapshot>, StoreError> {
        let timeout = self.flow.claim_timeout(self.shared.clock.now());
        self.shared.call_store(StoreOperation::Get, id, timeout, self.shared.store.get(id)).await
    }

    /// A record with an answer to replay was read; the read began at `asked`.
    fn note_expiry(&mut self, seen: &Snapshot, asked: ProcessTime) {
        self.expires = retention_left(seen).map(|left| asked.after(left));
    }

    /// Caches a completed record.
    fn cache_answer(&self, answer: Answer, expires: ProcessTime, epoch: Option<Epoch>) {
        if let Some(epoch) = epoch {
            let Claim { id, fingerprint, .. } = &self.claim;
            self.shared.cache.put(id, *fingerprint, answer, expires, epoch);
        }
    }

    // === the execution ===

    fn begin(&self, operation: &mut Pin<Box<dyn DrivenOperation>>) {
        self.lease.begin();
        operation.as_mut().start(self.lease.clone());
    }

    /// Runs the operation under this grant, while its lease is renewed. It may run already.
    async fn guard(
        &mut self,
        grant: Grant,
        operation: &mut Pin<Box<dyn DrivenOperation>>,
    ) -> Action {
        let _renewal = self.renew(grant);
        self.shared.events.emit(&self.claim.id, EventKind::Claimed(grant));
        let (Claim { id, fingerprint, .. }, asked) = (&self.claim, self.asked);
        self.shared.caller_changes.granted(id, *fingerprint, asked, &self.shared.events);
        if !self.lease.has_begun() {
            self.begin(operation);
        }
        let result = poll_fn(|context| operation.as_mut().poll_end(context)).await;
        let result = result.unwrap_or_else(|| {
            self.shared.events.emit(&self.claim.id, EventKind::Panicked(grant.fence));
            ExecutionResult::Broken(Reason::Panicked)
        });
        self.flow.on_ended(result, self.shared.clock.now())
    }

    fn renew(&self, grant: Grant) -> Renewal {
        let until = self.asked.after(self.plan.lease_relied_on());
        self.lease.grant(grant, self.claim.owner, until);
        let flight_id = self.flight.as_ref().map(Flight::granted);
        Renewals::add(&self.shared, &self.flow, &self.lease, self.plan, flight_id)
    }

    /// The unguarded run ended while a store call was pending. Its result never reaches the state
    /// machine.
    fn end_unguarded(&mut self, result: Option<ExecutionResult>) -> Action {
        let now = self.shared.clock.now();
        let result = result.unwrap_or(ExecutionResult::Broken(Reason::Panicked));
        let step = self.flow.on_ended(result, now);
        let message = "the run ended before the store answered";
        let unheard = StoreError::new(StoreErrorKind::Unavailable, message).effect_unknown();
        let _ = self.flow.on_claim_failed(&unheard, now);
        step
    }

    async fn record(&mut self, fence: Fence, mut finish: Finish) -> Action {
        if !self.claim.limits.is_empty() {
            finish = finish.with_limits(&self.claim.limits, self.lease.answer_tag());
        }
        let (by, epoch) = (self.claim.claimant(fence), self.shared.cache.epoch());
        let call = self.shared.store.finish(&self.claim.id, by, &finish);
        let call = call.instrument(span::of_record());
        match self.call_store(StoreOperation::Record, call).await {
            Ok(fenced) => {
                let now = self.shared.clock.now();
                self.recorded(fence, &finish, fenced, epoch, now);
                self.flow.on_recorded(fenced, now)
            }
            Err(error) => self.flow.on_record_failed(&error, self.shared.clock.now()),
        }
    }

    fn recorded(
        &mut self,
        fence: Fence,
        finish: &Finish,
        fenced: Fenced,
        epoch: Option<Epoch>,
        now: ProcessTime,
    ) {
        if fenced == Fenced::Applied {
            let attempt = self.lease.attempt();
            self.shared.quota.count(&self.claim, self.peer, &finish.action, attempt, now);
            let Claim { id, fingerprint, .. } = &self.claim;
            self.shared.caller_changes.ended(id, *fingerprint, &finish.action, now);
        }
        let kind = match (fenced, &finish.action) {
            (Fenced::Lost, _) => return self.report_lost(fence),
            (Fenced::Applied, RecordAction::Complete(answer)) => {
                // The store counts retention from the claim, which came later.
                let expires = self.began.after(self.claim.retention);
                self.expires = Some(expires);
                self.cache_answer(answer.clone(), expires, epoch);
                EventKind::Completed(fence)
            }
            (Fenced::Applied, RecordAction::Hold) => EventKind::Held(fence),
            (Fenced::Applied, _) => EventKind::Released(fence),
        };
        self.shared.events.emit(&self.claim.id, kind);
    }

    fn report_lost(&self, fence: Fence) {
        self.lease.mark_lost();
        self.shared.events.emit(&self.claim.id, EventKind::Lost(fence));
    }

    async fn read_record(&mut self) -> Action {
        let asked = self.shared.clock.now();
        let call = self.shared.store.get(&self.claim.id);
        match self.call_store(StoreOperation::Get, call).await {
            Ok(seen) => {
                if let Some(seen) = &seen {
                    self.note_expiry(seen, asked);
                }
                self.flow.on_seen(seen.as_ref(), self.shared.clock.now())
            }
            Err(_) => self.flow.on_look_failed(self.shared.clock.now()),
        }
    }

    // === the client ===

    fn send_reply(&mut self, operation: &mut ClaimedOperation, reply: Reply) {
        if self.lease.reports_reply() {
            self.shared.emit_reply(&self.claim.id, &reply, self.source);
        }
        let now = self.shared.clock.now();
        let reply = RetainedReply::new(reply, self.expires.map(|expires| expires.since(now)));
        // Joined requests first, then the owner.
        if let Some(flight) = self.flight.take() {
            flight.finish(&FlightResult::Reply(reply.clone()));
        }
        self.replied = true;
        if let Some(operation) = operation {
            operation.as_mut().reply(reply);
        }
    }

    /// Another process runs the operation. The client waits for it in its own task: it has nothing
    /// to protect from a disconnect.
    fn wait_remotely(mut self: Box<Self>, mut operation: ClaimedOperation) {
        if let Some(flight) = self.flight.take() {
            flight.finish(&FlightResult::Elsewhere);
        }
        let permit = self.permit.take().and_then(Permit::wait);
        let Some(permit) = permit else {
            return self.send_reply(&mut operation, Reply::Problem(Problem::TooManyInFlight));
        };
        if let Some(mut operation) = operation {
            let Self { shared, claim, flow, .. } = *self;
            let since = shared.stopwatch();
            let remote_wait = RemoteWait { shared, id: claim.id, flow, permit, since };
            operation.as_mut().wait_remotely(Box::new(remote_wait));
        }
    }

    /// Calls the store after the claim.
    async fn call_store<T: ProvesWrite>(
        &self,
        operation: StoreOperation,
        call: impl Future<Output = Result<T, StoreError>>,
    ) -> Result<T, StoreError> {
        let timeout = self.plan.record_timeout().max(STORE_TIMEOUT_MIN);
        self.shared.call_store(operation, &self.claim.id, timeout, call).await
    }
}

/// The minimum timeout of a store call, however short the lease is.
const STORE_TIMEOUT_MIN: Duration = Duration::from_millis(50);
