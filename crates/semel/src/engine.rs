//! The engine's public interface: its builder, and where an operation begins.

mod begin_request;
mod drive;
mod look_up;
mod maintenance;
mod observe;
mod operation;
mod pending;
mod remote;
mod renewals;
mod unsettled;
mod watches;

use std::{
    fmt,
    future::{Future, poll_fn},
    pin::pin,
    sync::Arc,
    task::Poll,
    time::Duration,
};

use semel_core::{
    Action, Caller, Fingerprint, Flow, NodeName, Plan, Problem, ProcessTime, RecordId, Reply,
    Scope, Store, StoreError, StoreErrorKind,
};
use tokio::{sync::oneshot, time::timeout};
use tracing::Instrument as _;

pub use self::begin_request::BeginRequest;
pub use self::remote::{RemoteClaim, RemoteFinish};
use self::{
    drive::Driver, maintenance::Maintenance, observe::Unrecorded, operation::ClientOperation,
    renewals::Renewals, unsettled::UnsettledClaims, watches::Watches,
};
pub use self::{
    operation::{ExecutionOutput, RestOfExecution},
    pending::{OperationReply, OwnExecution, Pending, RecordedReply},
};
use crate::{
    Lease,
    arrivals::{Arrival, Arrivals, Sender},
    breaker::{ProvesWrite, StoreBreaker},
    cache::Cache,
    caller_changes::CallerChanges,
    clock::EngineClock,
    deadline::Deadline,
    flights::{FlightResult, Flights, JoinResult},
    limiter::{ConcurrencyLimits, Limiter, Permit, PermitKind},
    observer::{EventKind, EventSink, Observer, ReplaySource, Run, StoreOperation},
    owners::OwnerTokenGenerator,
    per_caller::{CallerMap, ScopedCaller, ScopedCallerRef},
    quota::{QuotaTracker, QuotaUsage, Quotas},
    retained_reply::RetainedReply,
    span,
};

/// How long a shutdown waits for observed operations. They only feed statistics.
const OBSERVED_DRAIN: Duration = Duration::from_secs(5);

/// The engine: drives every operation through its store. Clones share everything.
///
/// Most users call it through a front: [`once`](Semel::once), or the layer of `semel-tower`.
///
/// ```
/// use semel::{MemoryStore, Semel};
///
/// let semel = Semel::builder(MemoryStore::new())
///     .in_flight_max(1000)
///     .cache_bytes_max(16 << 20)
///     .build();
/// assert_eq!(semel.in_flight(), 0);
/// ```
#[derive(Clone)]
pub struct Semel {
    pub(crate) shared: Arc<EngineState>,
}

/// State that all clones of an engine share.
pub(crate) struct EngineState {
    pub(crate) store: Arc<dyn Store>,
    /// The name of this process in its records.
    pub(crate) node: NodeName,
    pub(crate) clock: EngineClock,
    pub(crate) owners: OwnerTokenGenerator,
    pub(crate) flights: Arc<Flights>,
    pub(crate) renewals: Renewals,
    pub(crate) watches: Watches,
    pub(crate) cache: Cache,
    pub(crate) breaker: StoreBreaker,
    pub(crate) unsettled: UnsettledClaims,
    pub(crate) limiter: Arc<Limiter>,
    pub(crate) arrivals: Arc<Arrivals>,
    /// Limits observed operations apart from guarded ones.
    pub(crate) observed: Arc<Limiter>,
    pub(crate) quota: QuotaTracker,
    pub(crate) caller_changes: CallerChanges,
    /// Observed operations that have ended and are not yet recorded.
    pub(crate) unrecorded: Unrecorded,
    pub(crate) maintenance: Maintenance,
    pub(crate) upkeep: bool,
    pub(crate) sweep_every: Duration,
    pub(crate) events: EventSink,
}

/// Permission to read the body of an observed request, from [`Semel::admit_observed`].
#[derive(Debug)]
#[must_use]
pub struct Admission(
    #[expect(dead_code, reason = "it counts until it is dropped")] pub(crate) Permit,
);

/// Builds an engine. Each setting names its default.
#[derive(Debug)]
#[must_use]
pub struct Builder {
    store: Arc<dyn Store>,
    node: NodeName,
    limits: ConcurrencyLimits,
    quotas: Quotas,
    cache_bytes_max: u64,
    upkeep: bool,
    sweep_every: Duration,
    events: EventSink,
}

impl Builder {
    /// How many operations may run in this process at once (10,000). The next one is refused with
    /// `too-many-in-flight`. The same number of bodies may be arriving: see [`Semel::admit`].
    pub const fn in_flight_max(mut self, operations: usize) -> Self {
        self.limits.in_flight = operations;
        self
    }

    /// How many requests may wait in this process for the answer of another one (10,000).
    pub const fn waiting_max(mut self, requests: usize) -> Self {
        self.limits.waiting = requests;
        self
    }

    /// How many requests one caller may have running or waiting (2,500).
    pub const fn per_caller_max(mut self, requests: usize) -> Self {
        self.limits.per_caller = requests;
        self
    }

    /// How much the store may hold, in total and per caller (no limits). An exhausted quota refuses
    /// new keys; replays and running operations continue.
    pub const fn quotas(mut self, quotas: Quotas) -> Self {
        self.quotas = quotas;
        self
    }

    /// How many bytes of completed records are cached in this process (64 MiB); 0 disables the
    /// cache.
    pub const fn cache_bytes_max(mut self, bytes: u64) -> Self {
        self.cache_bytes_max = bytes;
        self
    }

    /// Whether this engine reaps and sweeps its store (yes). One process of many is enough, and
    /// several do no harm. Without it, an expired lease is settled only when its key is used again,
    /// and a listing of open records may have to scan every record.
    pub const fn upkeep(mut self, upkeep: bool) -> Self {
        self.upkeep = upkeep;
        self
    }

    /// The interval between sweeps that leave nothing to delete (15 minutes). The first sweep
    /// starts with maintenance.
    pub const fn sweep_every(mut self, period: Duration) -> Self {
        self.sweep_every = period;
        self
    }

    /// The name of this process in the records that it claims (none), such as a host name.
    pub fn node(mut self, name: &str) -> Self {
        self.node = NodeName::new(name);
        self
    }

    /// Receives every event (none).
    pub fn observer(mut self, observer: impl Observer) -> Self {
        self.events = EventSink(Some(Arc::new(observer)));
        self
    }

    /// The engine.
    #[must_use]
    pub fn build(self) -> Semel {
        let shared = EngineState {
            store: self.store,
            node: self.node,
            clock: EngineClock::new(),
            owners: OwnerTokenGenerator::default(),
            flights: Arc::new(Flights::new()),
            renewals: Renewals::new(),
            watches: Watches::default(),
            cache: Cache::new(self.cache_bytes_max),
            breaker: StoreBreaker::default(),
            unsettled: UnsettledClaims::default(),
            limiter: Arc::new(Limiter::new(self.limits)),
            arrivals: Arc::new(Arrivals::new(self.limits.in_flight)),
            observed: Arc::new(Limiter::new(self.limits)),
            quota: QuotaTracker::new(self.quotas),
            caller_changes: CallerChanges::new(),
            unrecorded: Unrecorded::default(),
            maintenance: Maintenance::default(),
            upkeep: self.upkeep,
            sweep_every: self.sweep_every,
            events: self.events,
        };
        Semel { shared: Arc::new(shared) }
    }
}

impl Semel {
    /// An engine on this store, with the default limits.
    pub fn new(store: impl Store) -> Self {
        Self::builder(store).build()
    }

    /// A builder for an engine on this store.
    pub fn builder(store: impl Store) -> Builder {
        Self::builder_on(Arc::new(store))
    }

    /// A builder for an engine on a shared store.
    pub fn builder_on(store: Arc<dyn Store>) -> Builder {
        Builder {
            store,
            node: NodeName::default(),
            limits: ConcurrencyLimits { in_flight: 10_000, waiting: 10_000, per_caller: 2_500 },
            quotas: Quotas::default(),
            cache_bytes_max: 64 << 20,
            upkeep: true,
            sweep_every: Duration::from_secs(15 * 60),
            events: EventSink::default(),
        }
    }

    /// The store.
    #[must_use]
    pub fn store(&self) -> &Arc<dyn Store> {
        &self.shared.store
    }

    /// How many operations run, from before their claim until their end is recorded.
    #[must_use]
    pub fn in_flight(&self) -> usize {
        self.shared.limiter.in_flight()
    }

    /// How many requests wait for the answer of another one.
    #[must_use]
    pub fn waiting(&self) -> usize {
        self.shared.limiter.waiting()
    }

    /// The quotas that this engine was built with.
    #[must_use]
    pub fn quotas(&self) -> Quotas {
        self.shared.quota.limits()
    }

    /// How much of the quotas is used, measured every five seconds.
    #[must_use]
    pub fn quota_usage(&self) -> QuotaUsage {
        self.shared.quota.usage()
    }

    /// Sets how many records are held, by the scope and caller of each. Call it after listing them,
    /// because operators and other processes change the number. Until the next call, records that
    /// this process holds are added.
    pub fn set_held(&self, callers: impl IntoIterator<Item = (Scope, Caller)>) {
        let mut held: CallerMap<u64> = CallerMap::new();
        for (scope, caller) in callers {
            let count = held.entry(ScopedCaller { scope, caller }).or_default();
            *count = count.saturating_add(1);
        }
        self.shared.quota.set_held(held);
    }

    /// Starts maintenance now: reaping, sweeping and following the store's epoch. Otherwise the
    /// first request starts it.
    ///
    /// # Panics
    ///
    /// Outside a tokio runtime.
    pub fn start_maintenance(&self) {
        if !self.shared.maintenance.is_running() {
            Maintenance::start(&self.shared);
        }
    }

    /// Waits until no operation runs, at most for `limit`. Returns how many operations still run or
    /// have a claim that the store has not answered.
    ///
    /// Call it on shutdown, after the server has stopped accepting requests and before the runtime
    /// ends. Operations that remain end as after a crash: their leases expire.
    pub async fn drain(&self, limit: Duration) -> usize {
        let drained = async {
            self.shared.limiter.idle().await;
            self.shared.unsettled.idle().await;
            let _ = timeout(OBSERVED_DRAIN, self.shared.observed.idle()).await;
        };
        let _ = timeout(limit, drained).await;
        self.in_flight() + self.shared.unsettled.count()
    }

    /// Admits a request whose body is not read yet. For fronts: keep the [`Arrival`] until
    /// [`Semel::begin`], report each [progress](Arrival::progress), and refuse the request with
    /// `too-many-in-flight` once it is [evicted](Arrival::poll_evicted).
    ///
    /// Bodies are read before an operation exists, so its limits do not bound them. As many bodies
    /// may be read at once as operations may run. When the limit is reached, the next request
    /// evicts the body that has been idle the longest, from the connection with the most bodies of
    /// the peer with the most. An arrival does not count against its caller, because anyone can
    /// send the head of a request.
    pub fn admit(&self, sender: Sender) -> Result<Arrival, Problem> {
        self.shared.arrivals.admit(sender).ok_or(Problem::TooManyInFlight)
    }

    /// Evicts the request of this sender's peer whose body has been idle the longest, of those of
    /// which a part has arrived. Returns false if there is none. For fronts that limit the memory
    /// of a peer.
    #[must_use]
    pub fn evict_idlest_of(&self, sender: Sender) -> bool {
        self.shared.arrivals.evict_idlest_of(sender)
    }

    /// How many requests wait for the rest of their body.
    #[must_use]
    pub fn arriving(&self) -> usize {
        self.shared.arrivals.count()
    }

    /// How many requests were evicted while they waited for the rest of their body.
    #[must_use]
    pub fn evicted(&self) -> u64 {
        self.shared.arrivals.evicted()
    }

    /// Reports an event of a request that has no record yet. For fronts.
    pub fn report(&self, scope: &Scope, kind: EventKind<'_>) {
        self.shared.events.emit_scoped(Some(scope), kind);
    }

    /// Reports an event of an operation. For fronts.
    pub fn report_on(&self, lease: &Lease, kind: EventKind<'_>) {
        self.shared.events.emit(lease.id(), kind);
    }

    /// Begins, joins, waits for or replays an operation, as its record requires. For fronts.
    ///
    /// The work runs in a task of its own from here on: dropping the returned future, before or
    /// after it was polled, changes nothing. `execute` is called at most once, and only if the
    /// claim was granted, or if the store is unavailable and the policy passes the request. In that
    /// case the lease has no fence; if the claim turns out to be granted, the result is recorded
    /// all the same.
    ///
    /// Beside the result for the record, the operation may return a value for this request alone:
    /// see [`ExecutionOutput`].
    ///
    /// An operation may block its thread if the runtime has another one, which renews the lease.
    ///
    /// # Panics
    ///
    /// Outside a tokio runtime.
    pub fn begin<T, E, F>(&self, operation: BeginRequest, execute: E) -> Pending<T>
    where
        T: Send + 'static,
        E: FnOnce(Lease) -> F + Send + 'static,
        F: Future<Output = ExecutionOutput<T>> + Send + 'static,
    {
        self.start_maintenance();
        let shared = &self.shared;
        let (id, now) = (&operation.id, shared.clock.now());
        let caller = ScopedCallerRef::of(id);
        let plan = Plan::new(&operation.policy, operation.fingerprint);
        let deadline = operation.deadline;
        let plan = plan
            .with_sound_lease()
            .watched()
            .with_deadline(deadline.map(Deadline::at))
            .with_known_key_only(operation.known_key_only);
        if let Some(reply) = shared.cached_reply(id, operation.fingerprint, now) {
            return Pending::ready(reply);
        }
        if deadline.is_some_and(|deadline| deadline.at() <= now) {
            return Pending::ready(shared.refuse(id, Problem::DeadlineExceeded));
        }
        let flight = match shared.flights.join_or_start(id, operation.fingerprint) {
            JoinResult::Owner(flight) => Some(flight),
            JoinResult::Conflict => None,
            JoinResult::Joiner(theirs, result) => {
                let (flow, step) = Flow::join(plan, theirs, now);
                if let Action::Reply(reply) = step {
                    shared.emit_reply(id, &reply, ReplaySource::Store);
                    return Pending::ready(reply);
                }
                let Some(permit) = shared.limiter.acquire(PermitKind::Waiting, caller) else {
                    return Pending::ready(shared.refuse(id, Problem::TooManyInFlight));
                };
                shared.events.emit(id, EventKind::Joined);
                return Pending::joined(shared, operation.id, flow, result, permit);
            }
        };
        let Some(permit) = shared.limiter.acquire(PermitKind::InFlight, caller) else {
            let reply = shared.refuse(id, Problem::TooManyInFlight);
            if let Some(flight) = flight {
                flight.finish(&FlightResult::Reply(reply.clone().into()));
            }
            return Pending::ready(reply);
        };
        let (reply_tx, reply_rx) = oneshot::channel();
        let lease = Lease::new(operation.id.clone(), shared.clock, deadline);
        let pending = Pending::owner(reply_rx, shared, lease.clone());
        let driver = Driver::new(Arc::clone(shared), operation, plan, lease, flight, permit, now);
        let execution = Box::pin(ClientOperation::new(execute, reply_tx));
        tokio::spawn(Box::new(driver).run(execution).instrument(span::of_operation()));
        pending
    }

    /// The deadline of a request that has this much time left.
    #[must_use]
    pub fn deadline_in(&self, left: Duration) -> Deadline {
        Deadline::new(self.shared.clock, left)
    }
}

impl EngineState {
    /// Calls the store. Without a reply within `timeout` the store is unavailable, and the effect
    /// of the call is unknown.
    pub(crate) async fn call_store<T: ProvesWrite>(
        &self,
        operation: StoreOperation,
        id: &RecordId,
        timeout: Duration,
        call: impl Future<Output = Result<T, StoreError>>,
    ) -> Result<T, StoreError> {
        let asked = self.stopwatch();
        let answer = with_store_timeout(timeout, call).await;
        let now = self.clock.awake();
        if let Some(asked) = asked {
            let took = now.saturating_sub(asked);
            self.events.emit(id, EventKind::StoreReplied { operation, took });
        }
        match &answer {
            // A store that can be read is not always writable.
            Ok(reply) if reply.proves_write() => self.breaker.close(now),
            Ok(_) => {
                self.breaker.on_read(now);
                if operation == StoreOperation::Claim {
                    self.breaker.return_probe(now);
                }
            }
            Err(error) => {
                if operation == StoreOperation::Get {
                    self.breaker.on_read_failed();
                }
                self.events.emit(id, EventKind::StoreFailed { operation, error });
            }
        }
        answer
    }

    /// The time now, if an observer is set.
    pub(crate) fn stopwatch(&self) -> Option<Duration> {
        self.events.is_enabled().then(|| self.clock.awake())
    }

    /// The time since a reading.
    pub(crate) fn since(&self, stopwatch: Option<Duration>) -> Option<Duration> {
        stopwatch.map(|then| self.clock.awake().saturating_sub(then))
    }

    /// The reply to a request whose record is known to be completed, without a store call.
    fn cached_reply(
        &self,
        id: &RecordId,
        fingerprint: Fingerprint,
        now: ProcessTime,
    ) -> Option<RetainedReply> {
        let find = |from| Some((self.cache.get(id, fingerprint, from, now)?, from));
        let found = find(ReplaySource::Cache);
        let away = || self.breaker.is_open().then(|| find(ReplaySource::CacheWhileAway)).flatten();
        let (known, from) = found.or_else(away)?;
        self.emit_reply(id, &known.reply, from);
        Some(known)
    }

    pub(crate) fn refuse(&self, id: &RecordId, problem: Problem) -> Reply {
        self.events.emit(id, EventKind::Refused(problem));
        Reply::Problem(problem)
    }

    /// Emits the event for a reply that is about to be sent.
    pub(crate) fn emit_reply(&self, id: &RecordId, reply: &Reply, from: ReplaySource) {
        // The owner has its own answer; joined and replayed requests get the recorded one.
        let problem = match reply {
            Reply::Problem(problem) => Some(*problem),
            Reply::Limited(refusal) => Some(refusal.problem()),
            Reply::Replayed(answer) | Reply::Joined(answer) => answer.problem(),
            Reply::Ran(_) | Reply::Unguarded(_) => None,
        };
        let kind = match (problem, reply) {
            (Some(problem), _) => EventKind::Refused(problem),
            (None, Reply::Replayed(_)) => EventKind::Replayed(from),
            (None, Reply::Joined(_)) => EventKind::Answered(Run::Joined),
            (None, Reply::Unguarded(_)) => EventKind::Answered(Run::Unguarded),
            (None, Reply::Ran(_) | Reply::Limited(_) | Reply::Problem(_)) => {
                EventKind::Answered(Run::Own)
            }
        };
        self.events.emit(id, kind);
    }

    /// As [`emit_reply`](Self::emit_reply), for a request that has waited since `stopwatch`.
    pub(crate) fn emit_waited(&self, id: &RecordId, reply: &Reply, stopwatch: Option<Duration>) {
        if let Some(took) = self.since(stopwatch) {
            self.events.emit(id, EventKind::Waited { took });
        }
        self.emit_reply(id, reply, ReplaySource::Store);
    }
}

/// Limits a store call in time. A timeout is an error whose effect is unknown.
pub(crate) async fn with_store_timeout<T>(
    limit: Duration,
    call: impl Future<Output = Result<T, StoreError>>,
) -> Result<T, StoreError> {
    let mut call = pin!(call);
    // A store in memory replies at once and needs no timer.
    let first = poll_fn(|context| Poll::Ready(call.as_mut().poll(context))).await;
    if let Poll::Ready(answer) = first {
        return answer;
    }
    timeout(limit, call).await.unwrap_or_else(|_| {
        let message = "the store did not answer in time";
        Err(StoreError::new(StoreErrorKind::Unavailable, message).effect_unknown())
    })
}

impl fmt::Debug for EngineState {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("EngineState").field("store", &self.store).finish_non_exhaustive()
    }
}

impl fmt::Debug for Semel {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Semel")
            .field("store", &self.shared.store)
            .field("in_flight", &self.in_flight())
            .field("waiting", &self.waiting())
            .finish_non_exhaustive()
    }
}
