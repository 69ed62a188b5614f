//! Counters and timings for Prometheus.
//!
//! Every request updates these counters: relaxed atomics, found by the name of their scope, without
//! a lock or an allocation. `metrics/scrape.rs` encodes them.

mod callers;
mod exposition;
mod held;
mod histogram;
mod process;
mod quota;
mod reconcile;
mod scrape;
mod totals;

use std::{
    sync::{
        Arc, OnceLock,
        atomic::{AtomicBool, AtomicI64, AtomicU64, Ordering},
    },
    time::{Duration, SystemTime},
};

use arc_swap::ArcSwap;
use jiff::Timestamp;
use semel::{
    Event, EventKind, ObservedOutcome, ReplaySource, Run, Semel, StoreOperation,
    core::{Problem, Scope},
};
use semel_tower::{CallerFailure, Jwks, MemoryBudget};

pub use self::{
    exposition::Exposition,
    reconcile::ReconcileEvent,
    totals::{LatencyCounts, StoreTotals, Totals},
};
use self::{held::HeldRecords, histogram::Histogram};
use crate::log::DroppedLines;

/// Maximum number of scopes with their own counters; further scopes share [`REST`].
const SCOPES_MAX: usize = 1000;

/// The label of a record that was held without a reason.
pub(crate) const NO_REASON: &str = "none";

/// Labels for scopes without their own counters, and for unguarded requests. No scope begins with
/// an underscore.
const REST: &str = "_rest";
const UNGUARDED: &str = "_unguarded";

/// Everything that is counted.
#[derive(Debug)]
pub struct Metrics {
    scopes: ArcSwap<Vec<Arc<ScopeMetrics>>>,
    rest: Arc<ScopeMetrics>,
    /// Only what is counted of the upstream.
    passing: Arc<ScopeMetrics>,
    store: [Histogram; OPERATIONS.len()],
    store_errors: [AtomicU64; OPERATIONS.len()],
    lapsed: AtomicU64,
    swept: AtomicU64,
    unguarded: [AtomicU64; UnguardedReason::ALL.len()],
    api_auth_failures: AtomicU64,
    malformed: AtomicU64,
    unmatched_refused: AtomicU64,
    not_retained: AtomicU64,
    streams_reset: AtomicU64,
    memory: OnceLock<MemoryBudget>,
    dropped_log_lines: OnceLock<DroppedLines>,
    connections: AtomicI64,
    streams: AtomicI64,
    tunnels: AtomicI64,
    evicted: [AtomicU64; EvictionReason::ALL.len()],
    held: ArcSwap<HeldRecords>,
    caller_failures: [AtomicU64; CallerFailure::ALL.len()],
    /// The keys that verify tokens.
    key_sets: ArcSwap<Vec<Jwks>>,
    /// When the store was created, in seconds since 1970.
    store_created: AtomicI64,
    started: Timestamp,
    reloads: [AtomicU64; RELOADS.len()],
    /// Whether the last reload was applied, and when the configuration in use was.
    reload_applied: AtomicBool,
    config_applied: AtomicI64,
    /// When the certificate of the gateway expires, in seconds since 1970; zero without one.
    certificate_not_after: AtomicI64,
}

/// What is counted for each scope.
#[derive(Debug)]
struct ScopeMetrics {
    name: Box<str>,
    answered: [AtomicU64; ANSWERS.len()],
    refused: [AtomicU64; Problem::ALL.len()],
    records: [AtomicU64; RECORDS.len()],
    would: [AtomicU64; WOULD.len()],
    observed_refusals: [AtomicU64; Problem::ALL.len()],
    reconcile: [AtomicU64; ReconcileEvent::ALL.len()],
    upstream: [AtomicU64; UpstreamOutcome::ALL.len()],
    upstream_seconds: Histogram,
    wait_seconds: Histogram,
}

/// The outcome of a request to the upstream.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum UpstreamOutcome {
    /// It answered.
    Answered,
    /// The upstream was not reached: no byte was sent.
    Unreachable,
    /// It was sent, then the connection broke.
    Broken,
    /// It was sent, and no answer came in time.
    Timeout,
}

impl UpstreamOutcome {
    /// In the order of their discriminants.
    const ALL: [Self; 4] = [Self::Answered, Self::Unreachable, Self::Broken, Self::Timeout];

    /// The label.
    pub const fn as_str(self) -> &'static str {
        match self {
            Self::Answered => "answered",
            Self::Unreachable => "unreachable",
            Self::Broken => "broken",
            Self::Timeout => "timeout",
        }
    }
}

/// Why the gateway closed something that waited for its client.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum EvictionReason {
    /// An idle connection was closed for another one.
    Connection,
    /// An idle tunnel was closed for a connection.
    Tunnel,
    /// A tunnel reached its idle timeout.
    TunnelTimeout,
    /// The first byte of a guarded body was too late.
    BodyStart,
    /// A body was too late.
    BodyTimeout,
    /// An unguarded body was too slow.
    BodyRate,
    /// A request would have made busy one connection more than its peer may have.
    Share,
    /// An HTTP/2 stream of a peer that has as many as it may have.
    Streams,
}

impl EvictionReason {
    /// In the order of their discriminants.
    const ALL: [Self; 8] = [
        Self::Connection,
        Self::Tunnel,
        Self::TunnelTimeout,
        Self::BodyStart,
        Self::BodyTimeout,
        Self::BodyRate,
        Self::Share,
        Self::Streams,
    ];

    /// The label.
    const fn as_str(self) -> &'static str {
        match self {
            Self::Connection => "connection",
            Self::Tunnel => "tunnel",
            Self::TunnelTimeout => "tunnel-timeout",
            Self::BodyStart => "body-start",
            Self::BodyTimeout => "body-timeout",
            Self::BodyRate => "body-rate",
            Self::Share => "share",
            Self::Streams => "streams",
        }
    }
}

/// Why a request is not guarded.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum UnguardedReason {
    /// It matches no route.
    Unmatched,
    /// It matches no route, though it carries a key.
    UnmatchedKeyed,
    /// Its route says `guard = false`.
    Route,
    /// Its route does not guard its method.
    Method,
}

impl UnguardedReason {
    /// In the order of their discriminants.
    const ALL: [Self; 4] = [Self::Unmatched, Self::UnmatchedKeyed, Self::Route, Self::Method];

    /// The label.
    const fn as_str(self) -> &'static str {
        match self {
            Self::Unmatched => "unmatched",
            Self::UnmatchedKeyed => "unmatched-keyed",
            Self::Route => "route",
            Self::Method => "method",
        }
    }
}

/// How a request was answered, if not with a problem.
#[derive(Clone, Copy, Debug)]
enum AnswerKind {
    Executed,
    Joined,
    Replayed,
    ReplayedAway,
    Passed,
    Keyless,
}

/// Their labels, in the order of their discriminants.
const ANSWERS: [&str; 6] =
    ["executed", "joined", "replayed", "replayed-store-away", "passed", "keyless"];

/// What happened to a record.
#[derive(Clone, Copy, Debug)]
enum RecordEvent {
    Claimed,
    Completed,
    Released,
    Held,
    Lost,
    Panicked,
    CallerChanged,
}

/// Their labels, in the order of their discriminants.
const RECORDS: [&str; 7] =
    ["claimed", "completed", "released", "held", "lost", "panicked", "caller-changed"];

/// Labels of observed outcomes other than refusals, each with its problem if it has one; see
/// [`observed_number`].
const WOULD: [(&str, &str); 6] = [
    ("run", ""),
    ("replay", ""),
    ("join", ""),
    ("pass", "key-missing"),
    ("pass", "store-unavailable"),
    ("unseen", ""),
];

const fn observed_number(would: ObservedOutcome) -> usize {
    match would {
        ObservedOutcome::Run => 0,
        ObservedOutcome::Replay => 1,
        ObservedOutcome::Join => 2,
        ObservedOutcome::Keyless => 3,
        ObservedOutcome::Pass => 4,
        // A variant added later counts here until it has its own label.
        ObservedOutcome::Unread | ObservedOutcome::Refuse(_) | _ => 5,
    }
}

/// Labels of the results of a reload.
const RELOADS: [&str; 2] = ["applied", "refused"];

/// Labels of store operations; see [`operation_number`].
const OPERATIONS: [&str; 5] = ["claim", "renew", "record", "get", "upkeep"];

const fn operation_number(operation: StoreOperation) -> usize {
    match operation {
        StoreOperation::Claim => 0,
        StoreOperation::Renew => 1,
        StoreOperation::Record => 2,
        StoreOperation::Get => 3,
        // An operation added later counts here until it has its own label.
        StoreOperation::Maintenance | _ => 4,
    }
}

impl Metrics {
    /// Counters for these scopes; whatever belongs to another counts as `_rest`.
    pub fn new(scopes: impl IntoIterator<Item = Scope>) -> Arc<Self> {
        let metrics = Self {
            scopes: ArcSwap::default(),
            rest: Arc::new(ScopeMetrics::new(REST)),
            passing: Arc::new(ScopeMetrics::new(UNGUARDED)),
            store: Default::default(),
            store_errors: Default::default(),
            lapsed: AtomicU64::new(0),
            swept: AtomicU64::new(0),
            unguarded: Default::default(),
            api_auth_failures: AtomicU64::new(0),
            malformed: AtomicU64::new(0),
            unmatched_refused: AtomicU64::new(0),
            not_retained: AtomicU64::new(0),
            streams_reset: AtomicU64::new(0),
            memory: OnceLock::new(),
            dropped_log_lines: OnceLock::new(),
            connections: AtomicI64::new(0),
            streams: AtomicI64::new(0),
            tunnels: AtomicI64::new(0),
            evicted: Default::default(),
            held: ArcSwap::default(),
            caller_failures: Default::default(),
            key_sets: ArcSwap::default(),
            store_created: AtomicI64::new(0),
            started: Timestamp::now(),
            reloads: Default::default(),
            reload_applied: AtomicBool::new(true),
            config_applied: AtomicI64::new(Timestamp::now().as_second()),
            certificate_not_after: AtomicI64::new(0),
        };
        metrics.add_scopes(scopes);
        Arc::new(metrics)
    }

    /// Sets the creation time of the store.
    pub fn set_store_created(&self, at: SystemTime) {
        let since = at.duration_since(SystemTime::UNIX_EPOCH).unwrap_or_default();
        let seconds = i64::try_from(since.as_secs()).unwrap_or(i64::MAX);
        self.store_created.store(seconds, Ordering::Relaxed);
    }

    /// Counts a reload of the configuration.
    pub fn config_reloaded(&self, applied: bool) {
        count(&self.reloads, usize::from(!applied));
        self.reload_applied.store(applied, Ordering::Relaxed);
        if applied {
            self.config_applied.store(Timestamp::now().as_second(), Ordering::Relaxed);
        }
    }

    /// Sets when the certificate of the gateway expires, in seconds since 1970.
    pub fn set_certificate_not_after(&self, seconds: i64) {
        self.certificate_not_after.store(seconds, Ordering::Relaxed);
    }

    /// Sets the keys that verify tokens.
    pub fn set_key_sets(&self, key_sets: Vec<Jwks>) {
        self.key_sets.store(Arc::new(key_sets));
    }

    /// Sets the memory budget of bodies and answers.
    pub fn set_memory(&self, memory: MemoryBudget) {
        let _ = self.memory.set(memory);
    }

    /// Sets the counter of log lines that were dropped.
    pub fn set_dropped_log_lines(&self, dropped: DroppedLines) {
        let _ = self.dropped_log_lines.set(dropped);
    }

    /// Adds the scopes of a changed configuration. Those that are gone stay: a counter never falls.
    pub fn add_scopes(&self, scopes: impl IntoIterator<Item = Scope>) {
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

    /// Counts an event of a held record whose upstream is asked about it.
    pub fn reconcile(&self, scope: &Scope, event: ReconcileEvent) {
        self.of(Some(scope), |scope| count(&scope.reconcile, event as usize));
    }

    /// Counts a request to the upstream.
    pub fn upstream(&self, scope: Option<&Scope>, outcome: UpstreamOutcome, took: Duration) {
        self.of(scope, |scope| {
            count(&scope.upstream, outcome as usize);
            scope.upstream_seconds.observe(took);
        });
    }

    /// A client connected.
    pub fn connection_opened(&self) {
        self.connections.fetch_add(1, Ordering::Relaxed);
    }

    /// A client opened an HTTP/2 stream.
    pub fn stream_opened(&self) {
        self.streams.fetch_add(1, Ordering::Relaxed);
    }

    /// An HTTP/2 stream of a client ended.
    pub fn stream_closed(&self) {
        self.streams.fetch_sub(1, Ordering::Relaxed);
    }

    /// A client's connection became a tunnel.
    pub fn tunnel_opened(&self) {
        self.tunnels.fetch_add(1, Ordering::Relaxed);
    }

    /// A tunnel ended.
    pub fn tunnel_closed(&self) {
        self.tunnels.fetch_sub(1, Ordering::Relaxed);
    }

    /// Counts an eviction.
    pub fn evicted(&self, why: EvictionReason) {
        count(&self.evicted, why as usize);
    }

    /// A client's connection ended.
    pub fn connection_closed(&self) {
        self.connections.fetch_sub(1, Ordering::Relaxed);
    }

    /// The records that were held when they were last counted, each by its scope, the label of its
    /// reason and its age; and whether these are all.
    pub(super) fn held<'a>(
        &self,
        records: impl Iterator<Item = (&'a str, &'static str, Duration)>,
        complete: bool,
    ) {
        let scopes = self.scopes.load();
        let is_known =
            |scope: &str| scopes.binary_search_by(|known| (*known.name).cmp(scope)).is_ok();
        self.held.store(Arc::new(HeldRecords::new(records, complete, is_known)));
    }

    /// A request passed that is not guarded.
    pub fn unguarded(&self, why: UnguardedReason) {
        count(&self.unguarded, why as usize);
    }

    /// A request was refused because no route takes it.
    pub fn unmatched_refused(&self) {
        self.unmatched_refused.fetch_add(1, Ordering::Relaxed);
    }

    /// A request was refused that could be read in two ways.
    pub fn malformed(&self) {
        self.malformed.fetch_add(1, Ordering::Relaxed);
    }

    /// A stream of HTTP/2 was reset because its client took nothing of the answer.
    pub fn stream_reset(&self) {
        self.streams_reset.fetch_add(1, Ordering::Relaxed);
    }

    /// Counts a request to the API whose token is missing, unknown or of an insufficient role.
    pub fn api_auth_failed(&self) {
        self.api_auth_failures.fetch_add(1, Ordering::Relaxed);
    }

    /// All metrics as text.
    pub fn encode(self: &Arc<Self>, semel: &Semel, format: Exposition) -> String {
        format.of_open_metrics(scrape::encode(self, semel))
    }

    /// Counts an event of the engine.
    pub fn record_event(&self, event: &Event<'_>) {
        match event.kind {
            EventKind::Answered(Run::Own) => self.answer(event, AnswerKind::Executed),
            EventKind::Answered(Run::Joined) => self.answer(event, AnswerKind::Joined),
            EventKind::Answered(Run::Unguarded) => self.answer(event, AnswerKind::Passed),
            EventKind::Replayed(ReplaySource::CacheWhileAway) => {
                self.answer(event, AnswerKind::ReplayedAway);
            }
            EventKind::Replayed(_) => self.answer(event, AnswerKind::Replayed),
            EventKind::Keyless => self.answer(event, AnswerKind::Keyless),
            EventKind::Refused(problem) => {
                self.of(event.scope, |scope| count(&scope.refused, problem as usize));
            }
            EventKind::CallerRefused { reason } => {
                let number = CallerFailure::ALL.iter().position(|known| known.as_str() == reason);
                count(&self.caller_failures, number.unwrap_or(usize::MAX));
            }
            EventKind::Observed(ObservedOutcome::Refuse(problem)) => {
                self.of(event.scope, |scope| count(&scope.observed_refusals, problem as usize));
            }
            EventKind::Observed(would) => {
                self.of(event.scope, |scope| count(&scope.would, observed_number(would)));
            }
            EventKind::Claimed(_) => self.change(event, RecordEvent::Claimed),
            EventKind::Completed(_) => self.change(event, RecordEvent::Completed),
            EventKind::Released(_) => self.change(event, RecordEvent::Released),
            EventKind::Held(_) => self.change(event, RecordEvent::Held),
            EventKind::Lost(_) => self.change(event, RecordEvent::Lost),
            EventKind::Panicked(_) => self.change(event, RecordEvent::Panicked),
            EventKind::CallerChanged => self.change(event, RecordEvent::CallerChanged),
            EventKind::Waited { took } => {
                self.of(event.scope, |scope| scope.wait_seconds.observe(took));
            }
            EventKind::NotRetained => {
                self.not_retained.fetch_add(1, Ordering::Relaxed);
            }
            EventKind::StoreReplied { operation, took } => {
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
            // Later events count their outcome.
            EventKind::Passed
            | EventKind::Joined
            | EventKind::Waiting
            | EventKind::Failed(_)
            | _ => {}
        }
    }

    fn answer(&self, event: &Event<'_>, answer: AnswerKind) {
        self.of(event.scope, |scope| count(&scope.answered, answer as usize));
    }

    fn change(&self, event: &Event<'_>, change: RecordEvent) {
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
            observed_refusals: [const { AtomicU64::new(0) }; Problem::ALL.len()],
            reconcile: Default::default(),
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
mod reference;
#[cfg(test)]
mod tests;
