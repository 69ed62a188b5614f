//! The engine as its fronts see it: what it is built from, and where an operation begins.

use std::{
    fmt,
    future::{Future, poll_fn},
    pin::pin,
    sync::Arc,
    task::Poll,
    time::Duration,
};

use semel_core::{
    About, Caller, Captured, Claim, ExecutionResult, Fingerprint, Flow, NodeName, OwnerToken, Plan,
    Policy, Problem, ProcessTime, RecordId, Reply, Scope, Step, Store, StoreError, StoreErrorKind,
};
use tokio::{sync::oneshot, time::timeout};

use crate::{
    Lease,
    breaker::Breaker,
    cache::Cache,
    clock::Clock,
    drive::{Driver, Execute},
    flights::{Boarding, Flights, Landed},
    gauge::{Gauge, Kind, Limits, Permit},
    house::House,
    observe::Unrecorded,
    observer::{EventKind, Listener, Observer, ReplaySource, Run, StoreOperation},
    owners::Owners,
    pending::Pending,
    renewals::Renewals,
    unsettled::Unsettled,
    watches::Watches,
};

/// How long a shutdown waits for what is only observed: that is numbers, and nobody's money.
const OBSERVED_DRAIN: Duration = Duration::from_secs(5);

/// One operation that a front wants to run once.
#[derive(Clone, Debug)]
#[non_exhaustive]
pub struct Operation {
    /// What it is remembered under.
    pub id: RecordId,
    /// What it means.
    pub fingerprint: Fingerprint,
    /// What its route says.
    pub policy: Arc<Policy>,
    /// What it is about, for people.
    pub about: About,
    /// What the route captured of the request.
    pub captured: Captured,
    /// Where else it may be remembered: in a scope, or under a caller, that the route had before.
    /// An operation that would begin is looked up there first, in this order. They are only read.
    pub former: Vec<RecordId>,
}

impl Operation {
    /// An operation about nothing in particular.
    #[must_use]
    pub fn new(id: RecordId, fingerprint: Fingerprint, policy: Arc<Policy>) -> Self {
        let (about, captured) = (About::default(), Captured::default());
        Self { id, fingerprint, policy, about, captured, former: Vec::new() }
    }

    pub(crate) fn into_claim(self, owner: OwnerToken, lease: Duration, node: &NodeName) -> Claim {
        let mut claim = Claim::by_policy(self.id, self.fingerprint, owner, &self.policy);
        claim.lease = lease;
        claim.about = self.about;
        claim.captured = self.captured;
        claim.node.clone_from(node);
        claim
    }
}

/// The engine: drives every operation through its store. Clones share everything.
///
/// Most users never call it but through a front: [`once`](Semel::once), or the layer of
/// `semel-tower`.
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
    pub(crate) shared: Arc<Shared>,
}

/// What all clones of an engine share.
pub(crate) struct Shared {
    pub(crate) store: Arc<dyn Store>,
    /// The name of this process in its records.
    pub(crate) node: NodeName,
    pub(crate) clock: Clock,
    pub(crate) owners: Owners,
    pub(crate) flights: Arc<Flights>,
    pub(crate) renewals: Renewals,
    pub(crate) watches: Watches,
    pub(crate) cache: Cache,
    pub(crate) breaker: Breaker,
    pub(crate) unsettled: Unsettled,
    pub(crate) gauge: Arc<Gauge>,
    /// Of what is only observed, which takes no room from what is guarded.
    pub(crate) observed: Arc<Gauge>,
    /// What was observed, has ended and is not yet recorded.
    pub(crate) unrecorded: Unrecorded,
    pub(crate) house: House,
    pub(crate) upkeep: bool,
    pub(crate) sweep_every: Duration,
    pub(crate) listener: Listener,
}

/// A request that may be read, from [`Semel::admit`].
#[derive(Debug)]
#[must_use]
pub struct Admission(
    #[expect(dead_code, reason = "it counts until it is dropped")] pub(crate) Permit,
);

/// How to build an engine. See each setting for its default.
#[derive(Debug)]
#[must_use]
pub struct Builder {
    store: Arc<dyn Store>,
    node: NodeName,
    limits: Limits,
    cache_bytes_max: u64,
    upkeep: bool,
    sweep_every: Duration,
    listener: Listener,
}

impl Builder {
    /// How many operations may run in this process at once (10,000), and how many bodies may be
    /// read. The next one is refused with `too-many-in-flight`.
    pub const fn in_flight_max(mut self, operations: usize) -> Self {
        self.limits.in_flight = operations;
        self
    }

    /// How many requests may wait in this process for an answer that another one makes (10,000).
    pub const fn waiting_max(mut self, requests: usize) -> Self {
        self.limits.waiting = requests;
        self
    }

    /// How many requests one caller may have under way, running or waiting (2,500).
    pub const fn per_caller_max(mut self, requests: usize) -> Self {
        self.limits.per_caller = requests;
        self
    }

    /// How many bytes of completed records are kept in this process (64 MiB); 0 keeps none.
    pub const fn cache_bytes_max(mut self, bytes: u64) -> Self {
        self.cache_bytes_max = bytes;
        self
    }

    /// Whether this engine reaps and sweeps its store (yes). One process of many is enough, and
    /// several do no harm. Where none does, what has lapsed is settled only when its key comes
    /// again, and a listing of what is open may have to look at every record.
    pub const fn upkeep(mut self, upkeep: bool) -> Self {
        self.upkeep = upkeep;
        self
    }

    /// How long after a sweep that left nothing the next one begins (15 minutes). The first begins
    /// with the upkeep.
    pub const fn sweep_every(mut self, period: Duration) -> Self {
        self.sweep_every = period;
        self
    }

    /// The name of this process in the records that it claims (none): a host name, say.
    pub fn node(mut self, name: &str) -> Self {
        self.node = NodeName::new(name);
        self
    }

    /// Who hears of everything that happens (nobody).
    pub fn observer(mut self, observer: impl Observer) -> Self {
        self.listener = Listener(Some(Arc::new(observer)));
        self
    }

    /// The engine.
    #[must_use]
    pub fn build(self) -> Semel {
        let shared = Shared {
            store: self.store,
            node: self.node,
            clock: Clock::new(),
            owners: Owners::default(),
            flights: Arc::new(Flights::new()),
            renewals: Renewals::new(),
            watches: Watches::default(),
            cache: Cache::new(self.cache_bytes_max),
            breaker: Breaker::default(),
            unsettled: Unsettled::default(),
            gauge: Arc::new(Gauge::new(self.limits)),
            observed: Arc::new(Gauge::new(self.limits)),
            unrecorded: Unrecorded::default(),
            house: House::default(),
            upkeep: self.upkeep,
            sweep_every: self.sweep_every,
            listener: self.listener,
        };
        Semel { shared: Arc::new(shared) }
    }
}

impl Semel {
    /// An engine on this store, with the default limits.
    pub fn new(store: impl Store) -> Self {
        Self::builder(store).build()
    }

    /// An engine on this store, to be set up.
    pub fn builder(store: impl Store) -> Builder {
        Self::builder_on(Arc::new(store))
    }

    /// An engine on a store that is shared already.
    pub fn builder_on(store: Arc<dyn Store>) -> Builder {
        Builder {
            store,
            node: NodeName::default(),
            limits: Limits { in_flight: 10_000, waiting: 10_000, per_caller: 2_500 },
            cache_bytes_max: 64 << 20,
            upkeep: true,
            sweep_every: Duration::from_secs(15 * 60),
            listener: Listener::default(),
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
        self.shared.gauge.in_flight()
    }

    /// How many requests wait for an answer that another one makes.
    #[must_use]
    pub fn waiting(&self) -> usize {
        self.shared.gauge.waiting()
    }

    /// Starts the upkeep now: reaping, sweeping and following the store's epoch. Otherwise the
    /// first request starts it.
    ///
    /// # Panics
    ///
    /// Outside a tokio runtime.
    pub fn keep_house(&self) {
        if !self.shared.house.is_open() {
            House::open(&self.shared);
        }
    }

    /// Waits until nothing runs any more, at most for `limit`, and returns how many operations
    /// still do, or have a claim that the store has not answered.
    ///
    /// Call it on shutdown, after the server has stopped to accept requests and before the runtime
    /// ends. What is left then is as after a crash: its lease lapses.
    pub async fn drain(&self, limit: Duration) -> usize {
        let drained = async {
            self.shared.gauge.idle().await;
            self.shared.unsettled.idle().await;
            let _ = timeout(OBSERVED_DRAIN, self.shared.observed.idle()).await;
        };
        let _ = timeout(limit, drained).await;
        self.in_flight() + self.shared.unsettled.count()
    }

    /// Lets a request in whose body is still to be read, or refuses it when there are too many of
    /// those. For fronts: hold the permit until [`Semel::begin`].
    ///
    /// Bodies are read before there is an operation, so without this nothing would bound them.
    pub fn admit(&self, caller: &Caller) -> Result<Admission, Problem> {
        let permit = self.shared.gauge.enter(Kind::Arriving, caller);
        permit.map(Admission).ok_or(Problem::TooManyInFlight)
    }

    /// Tells the observer what happened to a request that has no record yet. For fronts.
    pub fn report(&self, scope: &Scope, kind: EventKind<'_>) {
        self.shared.listener.tell_of(Some(scope), kind);
    }

    /// Tells the observer what happened to an operation. For fronts.
    pub fn report_on(&self, lease: &Lease, kind: EventKind<'_>) {
        self.shared.listener.tell(lease.id(), kind);
    }

    /// Begins an operation, or joins, waits or replays, as the record has it. For fronts.
    ///
    /// Whatever has to be done is under way when this returns, in a task of its own: dropping what
    /// it returns, before or after it was polled, changes nothing. `execute` is called at most
    /// once, and only if the claim was granted (or the store is away and the policy says to pass it
    /// by, in which case the lease has no fence; if its claim turns out to be granted, the result
    /// is recorded all the same).
    ///
    /// An operation may block its thread, as long as the runtime has another one: the lease is
    /// renewed from there.
    ///
    /// # Panics
    ///
    /// Outside a tokio runtime.
    pub fn begin<E, F>(&self, operation: Operation, execute: E) -> Pending
    where
        E: FnOnce(Lease) -> F + Send + 'static,
        F: Future<Output = ExecutionResult> + Send + 'static,
    {
        self.keep_house();
        let shared = &self.shared;
        let (id, now) = (&operation.id, shared.clock.now());
        let plan = Plan::new(&operation.policy, operation.fingerprint);
        let plan = plan.with_sound_lease().watched();
        if let Some(reply) = shared.recall(id, operation.fingerprint, now) {
            return Pending::ready(reply);
        }
        let flight = match shared.flights.board(id, operation.fingerprint) {
            Boarding::Owner(flight) => Some(flight),
            Boarding::Stranger => None,
            Boarding::Joiner(theirs, landed) => {
                let (flow, step) = Flow::join(plan, theirs, now);
                if let Step::Reply(reply) = step {
                    shared.tell_reply(id, &reply, ReplaySource::Store);
                    return Pending::ready(reply);
                }
                let Some(permit) = shared.gauge.enter(Kind::Waiting, &id.caller) else {
                    return Pending::ready(shared.refuse(id, Problem::TooManyInFlight));
                };
                shared.listener.tell(id, EventKind::Joined);
                return Pending::joined(shared, operation.id, flow, landed, permit);
            }
        };
        let Some(permit) = shared.gauge.enter(Kind::InFlight, &id.caller) else {
            let reply = shared.refuse(id, Problem::TooManyInFlight);
            if let Some(flight) = flight {
                flight.land(&Landed::Reply(reply.clone()));
            }
            return Pending::ready(reply);
        };
        let (teller, told) = oneshot::channel();
        let driver = Driver::new(Arc::clone(shared), operation, plan, flight, permit, teller, now);
        let execute: Execute = Box::new(move |lease| Box::pin(execute(lease)));
        tokio::spawn(Box::new(driver).run(execute));
        Pending::owner(told)
    }
}

impl Shared {
    /// Asks the store. If it does not answer within `timeout` it is away, and what it may have done
    /// is unknown.
    pub(crate) async fn ask<T>(
        &self,
        operation: StoreOperation,
        id: &RecordId,
        timeout: Duration,
        question: impl Future<Output = Result<T, StoreError>>,
    ) -> Result<T, StoreError> {
        let asked = self.stopwatch();
        let answer = in_time(timeout, question).await;
        let now = self.clock.awake();
        if let Some(asked) = asked {
            let took = now.saturating_sub(asked);
            self.listener.tell(id, EventKind::Asked { operation, took });
        }
        match &answer {
            // What can be read need not be writable.
            Ok(_) if operation != StoreOperation::Get => self.breaker.close(now),
            Ok(_) => {}
            Err(error) => self.listener.tell(id, EventKind::StoreFailed { operation, error }),
        }
        answer
    }

    /// A reading of the clock, if somebody listens.
    pub(crate) fn stopwatch(&self) -> Option<Duration> {
        self.listener.is_heard().then(|| self.clock.awake())
    }

    /// The time since a reading.
    pub(crate) fn since(&self, stopwatch: Option<Duration>) -> Option<Duration> {
        stopwatch.map(|then| self.clock.awake().saturating_sub(then))
    }

    /// What a request gets whose record is known to be completed, without asking the store.
    fn recall(&self, id: &RecordId, fingerprint: Fingerprint, now: ProcessTime) -> Option<Reply> {
        let find = |from| Some((self.cache.get(id, fingerprint, from, now)?, from));
        let found = find(ReplaySource::Cache);
        let away = || self.breaker.is_open().then(|| find(ReplaySource::CacheWhileAway)).flatten();
        let (reply, from) = found.or_else(away)?;
        self.tell_reply(id, &reply, from);
        Some(reply)
    }

    pub(crate) fn refuse(&self, id: &RecordId, problem: Problem) -> Reply {
        self.listener.tell(id, EventKind::Refused(problem));
        Reply::Problem(problem)
    }

    /// Tells the listener of a reply that is about to be given.
    pub(crate) fn tell_reply(&self, id: &RecordId, reply: &Reply, from: ReplaySource) {
        // The owner has its answer itself; others get what is recorded of it.
        let problem = match reply {
            Reply::Problem(problem) => Some(*problem),
            Reply::Replayed(answer) | Reply::Joined(answer) => answer.problem(),
            Reply::Ran(_) | Reply::Unguarded(_) => None,
        };
        let kind = match (problem, reply) {
            (Some(problem), _) => EventKind::Refused(problem),
            (None, Reply::Replayed(_)) => EventKind::Replayed(from),
            (None, Reply::Joined(_)) => EventKind::Answered(Run::Joined),
            (None, Reply::Unguarded(_)) => EventKind::Answered(Run::Unguarded),
            (None, Reply::Ran(_) | Reply::Problem(_)) => EventKind::Answered(Run::Own),
        };
        self.listener.tell(id, kind);
    }

    /// The same for a request that has waited since `stopwatch`.
    pub(crate) fn tell_waited(&self, id: &RecordId, reply: &Reply, stopwatch: Option<Duration>) {
        if let Some(took) = self.since(stopwatch) {
            self.listener.tell(id, EventKind::Waited { took });
        }
        self.tell_reply(id, reply, ReplaySource::Store);
    }
}

/// The store's answer; one that does not come in time is an error whose effect is unknown.
pub(crate) async fn in_time<T>(
    limit: Duration,
    question: impl Future<Output = Result<T, StoreError>>,
) -> Result<T, StoreError> {
    let mut question = pin!(question);
    // A store in memory answers at once, and needs no timer.
    let first = poll_fn(|context| Poll::Ready(question.as_mut().poll(context))).await;
    if let Poll::Ready(answer) = first {
        return answer;
    }
    timeout(limit, question).await.unwrap_or_else(|_| {
        let message = "the store did not answer in time";
        Err(StoreError::new(StoreErrorKind::Unavailable, message).effect_unknown())
    })
}

impl fmt::Debug for Shared {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Shared").field("store", &self.store).finish_non_exhaustive()
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
