//! Counters and timings for Prometheus.
//!
//! Everything here is on the way of every request: relaxed atomics, found by the name of their
//! scope, without a lock and without an allocation. How they are written out is in
//! `metrics/scrape.rs`.

mod held;
mod histogram;
mod scrape;

use std::{
    sync::{
        Arc,
        atomic::{AtomicI64, AtomicU64, Ordering},
    },
    time::{Duration, SystemTime},
};

use arc_swap::ArcSwap;
use semel::{
    Event, EventKind, ReplaySource, Run, Semel, StoreOperation, Would,
    core::{Problem, Scope},
};

use self::{held::HeldRecords, histogram::Histogram};

/// How many scopes have counters of their own; a configuration with more shares the last.
const SCOPES_MAX: usize = 1000;

/// Where a scope counts that has no counters of its own, and where requests count that no route
/// guards. No scope's name begins like these.
const REST: &str = "_rest";
const UNGUARDED: &str = "_unguarded";

/// Everything that is counted.
#[derive(Debug)]
pub(crate) struct Metrics {
    scopes: ArcSwap<Vec<Arc<ScopeMetrics>>>,
    rest: Arc<ScopeMetrics>,
    /// Only what is counted of the upstream.
    passing: Arc<ScopeMetrics>,
    store: [Histogram; OPERATIONS.len()],
    store_errors: [AtomicU64; OPERATIONS.len()],
    lapsed: AtomicU64,
    swept: AtomicU64,
    unguarded: [AtomicU64; Unguarded::ALL.len()],
    operator_refused: AtomicU64,
    malformed: AtomicU64,
    connections: AtomicI64,
    held: ArcSwap<HeldRecords>,
    /// When the store was created, in seconds since 1970.
    store_created: AtomicI64,
}

/// What is counted for each scope.
#[derive(Debug)]
struct ScopeMetrics {
    name: Box<str>,
    answered: [AtomicU64; ANSWERS.len()],
    refused: [AtomicU64; Problem::ALL.len()],
    records: [AtomicU64; RECORDS.len()],
    would: [AtomicU64; WOULD.len()],
    would_refuse: [AtomicU64; Problem::ALL.len()],
    upstream: [AtomicU64; UpstreamOutcome::ALL.len()],
    upstream_seconds: Histogram,
    wait_seconds: Histogram,
}

/// What became of a request that went to the upstream.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum UpstreamOutcome {
    /// It answered.
    Answered,
    /// It was never reached: no byte went out.
    Unreachable,
    /// It was sent, then the connection broke.
    Broken,
    /// It was sent, and no answer came in time.
    Timeout,
}

impl UpstreamOutcome {
    /// In the order of their numbers.
    const ALL: [Self; 4] = [Self::Answered, Self::Unreachable, Self::Broken, Self::Timeout];

    /// The word for it.
    pub(crate) const fn as_str(self) -> &'static str {
        match self {
            Self::Answered => "answered",
            Self::Unreachable => "unreachable",
            Self::Broken => "broken",
            Self::Timeout => "timeout",
        }
    }
}

/// Why a request is not guarded.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Unguarded {
    /// It matches no route.
    Unmatched,
    /// It matches no route, though it carries a key.
    UnmatchedKeyed,
    /// Its route says `guard = false`.
    Route,
    /// Its route does not guard its method.
    Method,
}

impl Unguarded {
    /// In the order of their numbers.
    const ALL: [Self; 4] = [Self::Unmatched, Self::UnmatchedKeyed, Self::Route, Self::Method];

    /// The word for it.
    const fn as_str(self) -> &'static str {
        match self {
            Self::Unmatched => "unmatched",
            Self::UnmatchedKeyed => "unmatched-keyed",
            Self::Route => "route",
            Self::Method => "method",
        }
    }
}

/// How a request got an answer that is no problem of ours.
#[derive(Clone, Copy, Debug)]
enum Answer {
    Executed,
    Joined,
    Replayed,
    ReplayedAway,
    Passed,
    Keyless,
}

/// The words for them, in the order of their numbers.
const ANSWERS: [&str; 6] =
    ["executed", "joined", "replayed", "replayed-store-away", "passed", "keyless"];

/// What happened to a record.
#[derive(Clone, Copy, Debug)]
enum Change {
    Claimed,
    Completed,
    Released,
    Held,
    Lost,
    Panicked,
}

/// The words for them, in the order of their numbers.
const RECORDS: [&str; 6] = ["claimed", "completed", "released", "held", "lost", "panicked"];

/// What would have become of an observed request that would not have been refused, and the problem
/// that this is nevertheless, in the order of their numbers; see [`would_number`].
const WOULD: [(&str, &str); 6] = [
    ("run", ""),
    ("replay", ""),
    ("join", ""),
    ("pass", "key-missing"),
    ("pass", "store-unavailable"),
    ("unseen", ""),
];

const fn would_number(would: Would) -> usize {
    match would {
        Would::Run => 0,
        Would::Replay => 1,
        Would::Join => 2,
        Would::Keyless => 3,
        Would::Pass => 4,
        // What is added later counts here until it has a word of its own.
        Would::Unseen | Would::Refuse(_) | _ => 5,
    }
}

/// What a store is asked, in the order of their numbers; see [`operation_number`].
const OPERATIONS: [&str; 5] = ["claim", "renew", "record", "get", "upkeep"];

const fn operation_number(operation: StoreOperation) -> usize {
    match operation {
        StoreOperation::Claim => 0,
        StoreOperation::Renew => 1,
        StoreOperation::Record => 2,
        StoreOperation::Get => 3,
        // One that is added later counts here until it has a word of its own.
        StoreOperation::Upkeep | _ => 4,
    }
}

impl Metrics {
    /// Counters for these scopes; whatever belongs to another counts as `_rest`.
    pub(crate) fn new(scopes: impl IntoIterator<Item = Scope>) -> Arc<Self> {
        let metrics = Self {
            scopes: ArcSwap::default(),
            rest: Arc::new(ScopeMetrics::new(REST)),
            passing: Arc::new(ScopeMetrics::new(UNGUARDED)),
            store: Default::default(),
            store_errors: Default::default(),
            lapsed: AtomicU64::new(0),
            swept: AtomicU64::new(0),
            unguarded: Default::default(),
            operator_refused: AtomicU64::new(0),
            malformed: AtomicU64::new(0),
            connections: AtomicI64::new(0),
            held: ArcSwap::default(),
            store_created: AtomicI64::new(0),
        };
        metrics.add_scopes(scopes);
        Arc::new(metrics)
    }

    /// Says when the store was created.
    pub(crate) fn set_store_created(&self, at: SystemTime) {
        let since = at.duration_since(SystemTime::UNIX_EPOCH).unwrap_or_default();
        let seconds = i64::try_from(since.as_secs()).unwrap_or(i64::MAX);
        self.store_created.store(seconds, Ordering::Relaxed);
    }

    /// Adds the scopes of a changed configuration. Those that are gone stay: a counter never falls.
    pub(crate) fn add_scopes(&self, scopes: impl IntoIterator<Item = Scope>) {
        let mut known = Vec::clone(&self.scopes.load());
        for scope in scopes {
            let is_known = known.iter().any(|known| *known.name == *scope.as_str());
            if !is_known && known.len() < SCOPES_MAX {
                known.push(Arc::new(ScopeMetrics::new(scope.as_str())));
            }
        }
        known.sort_unstable_by(|one, two| one.name.cmp(&two.name));
        self.scopes.store(Arc::new(known));
    }

    /// A request went to the upstream, and this became of it.
    pub(crate) fn upstream(&self, scope: Option<&Scope>, outcome: UpstreamOutcome, took: Duration) {
        self.of(scope, |scope| {
            count(&scope.upstream, outcome as usize);
            scope.upstream_seconds.observe(took);
        });
    }

    /// A client connected.
    pub(crate) fn connection_opened(&self) {
        self.connections.fetch_add(1, Ordering::Relaxed);
    }

    /// A client's connection ended.
    pub(crate) fn connection_closed(&self) {
        self.connections.fetch_sub(1, Ordering::Relaxed);
    }

    /// The records that were held when they were last counted, each by its scope and the label of
    /// its reason; and whether these are all.
    pub(super) fn held<'a>(
        &self,
        records: impl Iterator<Item = (&'a str, &'static str)>,
        complete: bool,
    ) {
        let scopes = self.scopes.load();
        let is_known =
            |scope: &str| scopes.binary_search_by(|known| (*known.name).cmp(scope)).is_ok();
        self.held.store(Arc::new(HeldRecords::new(records, complete, is_known)));
    }

    /// A request passed that is not guarded.
    pub(crate) fn unguarded(&self, why: Unguarded) {
        count(&self.unguarded, why as usize);
    }

    /// A request was refused that could be read in two ways.
    pub(crate) fn malformed(&self) {
        self.malformed.fetch_add(1, Ordering::Relaxed);
    }

    /// Somebody came to the operators' listener without the token, or with a wrong one.
    pub(crate) fn operator_refused(&self) {
        self.operator_refused.fetch_add(1, Ordering::Relaxed);
    }

    /// Everything, in the text that a scraper reads.
    pub(crate) fn encode(self: &Arc<Self>, semel: &Semel) -> String {
        scrape::encode(self, semel.in_flight(), semel.waiting())
    }

    /// Counts what the engine tells.
    pub(crate) fn hear(&self, event: &Event<'_>) {
        match event.kind {
            EventKind::Answered(Run::Own) => self.answer(event, Answer::Executed),
            EventKind::Answered(Run::Joined) => self.answer(event, Answer::Joined),
            EventKind::Answered(Run::Unguarded) => self.answer(event, Answer::Passed),
            EventKind::Replayed(ReplaySource::CacheWhileAway) => {
                self.answer(event, Answer::ReplayedAway);
            }
            EventKind::Replayed(_) => self.answer(event, Answer::Replayed),
            EventKind::Keyless => self.answer(event, Answer::Keyless),
            EventKind::Refused(problem) => {
                self.of(event.scope, |scope| count(&scope.refused, problem as usize));
            }
            EventKind::Would(Would::Refuse(problem)) => {
                self.of(event.scope, |scope| count(&scope.would_refuse, problem as usize));
            }
            EventKind::Would(would) => {
                self.of(event.scope, |scope| count(&scope.would, would_number(would)));
            }
            EventKind::Claimed(_) => self.change(event, Change::Claimed),
            EventKind::Completed(_) => self.change(event, Change::Completed),
            EventKind::Released(_) => self.change(event, Change::Released),
            EventKind::Held(_) => self.change(event, Change::Held),
            EventKind::Lost(_) => self.change(event, Change::Lost),
            EventKind::Panicked(_) => self.change(event, Change::Panicked),
            EventKind::Waited { took } => {
                self.of(event.scope, |scope| scope.wait_seconds.observe(took));
            }
            EventKind::Asked { operation, took } => {
                if let Some(histogram) = self.store.get(operation_number(operation)) {
                    histogram.observe(took);
                }
            }
            EventKind::StoreFailed { operation, .. } => {
                count(&self.store_errors, operation_number(operation));
            }
            EventKind::Reaped { records } => {
                self.lapsed.fetch_add(records.into(), Ordering::Relaxed);
            }
            EventKind::Swept { records } => {
                self.swept.fetch_add(records.into(), Ordering::Relaxed);
            }
            // What they come to is told too.
            EventKind::Passed
            | EventKind::Joined
            | EventKind::Waiting
            | EventKind::Failed(_)
            | _ => {}
        }
    }

    fn answer(&self, event: &Event<'_>, answer: Answer) {
        self.of(event.scope, |scope| count(&scope.answered, answer as usize));
    }

    fn change(&self, event: &Event<'_>, change: Change) {
        self.of(event.scope, |scope| count(&scope.records, change as usize));
    }

    fn of(&self, scope: Option<&Scope>, act: impl FnOnce(&ScopeMetrics)) {
        let Some(scope) = scope else { return act(&self.passing) };
        let scopes = self.scopes.load();
        let place = scopes.binary_search_by(|known| (*known.name).cmp(scope.as_str())).ok();
        act(place.and_then(|place| scopes.get(place)).unwrap_or(&self.rest));
    }
}

impl ScopeMetrics {
    fn new(name: &str) -> Self {
        Self {
            name: name.into(),
            answered: Default::default(),
            refused: [const { AtomicU64::new(0) }; Problem::ALL.len()],
            records: Default::default(),
            would: Default::default(),
            would_refuse: [const { AtomicU64::new(0) }; Problem::ALL.len()],
            upstream: Default::default(),
            upstream_seconds: Histogram::default(),
            wait_seconds: Histogram::default(),
        }
    }
}

fn count(counters: &[AtomicU64], number: usize) {
    if let Some(counter) = counters.get(number) {
        counter.fetch_add(1, Ordering::Relaxed);
    }
}

#[cfg(test)]
mod tests;
