//! Reads the held records of one scope while this process holds the scope's lease.

use std::{
    collections::HashMap,
    hash::{BuildHasher as _, RandomState},
    sync::Arc,
    time::Duration,
};

use jiff::Timestamp;
use semel::core::{
    Answer, Fence, ProcessTime, RecordId, Resolution, Resolved, Scope, StateView, Summary,
    reconcile::{ReadAnswer, ReadFinding, ReconcileNote, ReconcileStep},
};
use semel_telemetry::metrics::ReconcileEvent;
use tokio::{task::JoinSet, time::Instant};

use super::lease::ReaderLease;
use super::read::{ReadRequest, UpstreamAnswer, read_timeout};
use super::record::{HeldRecord, values, word};
use super::{HeldListing, ReconcileAction, ReconcileContext, ReconciledScope};

/// Maximum number of reads at the same time.
const CONCURRENT_READS_MAX: usize = 8;

/// Failed reads in a row after which another process may try: this one may be cut off.
const FAILED_READS_MAX: u32 = 5;

/// How long a process that gave its lease back leaves it to others, in leases.
const PAUSE_LEASES: u32 = 2;

const LEASE_MIN: Duration = Duration::from_secs(3);

/// Reads the held records of one scope.
pub(super) struct ScopeReader {
    context: Arc<ReconcileContext>,
    known: ReconciledScope,
    lease: Option<ReaderLease>,
    records: HashMap<RecordId, HeldRecord>,
    /// Times of reads are counted from here.
    origin: Instant,
    failed_reads: u32,
    paused_until: Option<Instant>,
}

/// A read and its result.
struct FinishedRead {
    record: Summary,
    sent_at: Instant,
    answered_at: Instant,
    is_fenced: bool,
    finding: Result<ReadFinding, String>,
}

impl ScopeReader {
    pub(super) fn new(context: &Arc<ReconcileContext>, known: &ReconciledScope) -> Self {
        let lease = (read_timeout(&known.pool) * 3).max(LEASE_MIN);
        Self {
            context: Arc::clone(context),
            known: known.clone(),
            lease: ReaderLease::new(&known.scope, lease),
            records: HashMap::new(),
            origin: Instant::now(),
            failed_reads: 0,
            paused_until: None,
        }
    }

    pub(super) const fn scope(&self) -> &Scope {
        &self.known.scope
    }

    /// Takes the rule and the upstream of a changed configuration.
    pub(super) fn set_rule(&mut self, known: &ReconciledScope) {
        if self.known.rule != known.rule || !Arc::ptr_eq(&self.known.pool, &known.pool) {
            // What was absent by another rule, or at another upstream, is not absent by this one.
            self.records.clear();
        }
        self.known = known.clone();
    }

    /// Reads what is due, if this process may.
    pub(super) async fn run(&mut self, held: &HeldListing) {
        let mine: Vec<&Summary> =
            held.records.iter().filter(|record| record.id.scope == self.known.scope).collect();
        let is_current = |id: &RecordId, known: &HeldRecord| {
            mine.iter().any(|record| record.id == *id && record.fence == known.fence)
        };
        self.records.retain(|id, known| is_current(id, known));
        let is_open = |record: &&&Summary| !held.note(record).is_some_and(|note| note.is_stopped);
        let open: Vec<&Summary> = mine.iter().filter(is_open).copied().collect();
        let now = Instant::now();
        if open.is_empty() || self.paused_until.is_some_and(|until| now < until) {
            return self.release().await;
        }
        for record in &open {
            let new = || HeldRecord::new(record.fence, now);
            self.records.entry(record.id.clone()).or_insert_with(new);
        }
        let is_due = |record: &&&Summary| {
            self.records.get(&record.id).is_some_and(|known| known.is_due(now))
        };
        let due: Vec<Summary> =
            open.iter().filter(is_due).map(|record| (*record).clone()).collect();
        for batch in due.chunks(CONCURRENT_READS_MAX) {
            let Some(fence) = self.fence_above(batch).await else {
                // Another process reads: what this one has seen does not count.
                return self.records.clear();
            };
            for finished in self.read_all(batch, fence).await {
                self.finish(finished).await;
            }
            if self.failed_reads >= FAILED_READS_MAX {
                self.failed_reads = 0;
                let pause = read_timeout(&self.known.pool).max(LEASE_MIN) * PAUSE_LEASES;
                self.paused_until = Some(Instant::now() + pause);
                return self.release().await;
            }
        }
    }

    /// Gives the lease back.
    pub(super) async fn release(&mut self) {
        if let Some(lease) = &mut self.lease {
            lease.release(&*self.context.store).await;
        }
        self.records.clear();
    }

    /// The fence of the lease. Where reads are fenced, one above those of these records.
    async fn fence_above(&mut self, batch: &[Summary]) -> Option<Fence> {
        let (lease, store) = (self.lease.as_mut()?, &*self.context.store);
        let highest = batch.iter().map(|record| record.fence).max();
        match highest.filter(|_| self.known.rule.plan.fenced) {
            Some(highest) => lease.hold_above(store, highest).await,
            None => lease.hold(store).await,
        }
    }

    async fn read_all(&self, batch: &[Summary], fence: Fence) -> Vec<FinishedRead> {
        let mut reads = JoinSet::new();
        for record in batch {
            let (context, known) = (Arc::clone(&self.context), self.known.clone());
            reads.spawn(read(context, known, record.clone(), fence));
        }
        let mut finished = Vec::new();
        while let Some(read) = reads.join_next().await {
            // A panic was reported by its hook.
            finished.extend(read.ok().flatten());
        }
        finished
    }

    async fn finish(&mut self, finished: FinishedRead) {
        let FinishedRead { record, sent_at, answered_at, is_fenced, finding } = finished;
        let (origin, plan) = (self.origin, self.known.rule.plan);
        let time = |at: Instant| {
            let millis = at.saturating_duration_since(origin).as_millis();
            ProcessTime::from_millis(u64::try_from(millis).unwrap_or(u64::MAX))
        };
        let Some(known) = self.records.get_mut(&record.id) else { return };
        known.reads = known.reads.saturating_add(1);
        let held_for = record.ended.unwrap_or_default();
        let (event, step, found) = match &finding {
            Ok(finding) => {
                self.failed_reads = 0;
                let times = (time(sent_at), time(answered_at));
                let step = known.progress.on_read(&plan, finding, times, held_for, is_fenced);
                (ReconcileEvent::of(finding), step, describe(finding))
            }
            Err(error) => {
                self.failed_reads = self.failed_reads.saturating_add(1);
                let step = known.progress.on_read_failed(&plan, time(answered_at), held_for);
                (ReconcileEvent::ReadFailed, step, error.clone())
            }
        };
        self.context.metrics.reconcile(&self.known.scope, event);
        let reads = known.reads;
        known.next = match &step {
            ReconcileStep::ReadAgain(wait) => Some(answered_at + *wait + jitter(*wait)),
            ReconcileStep::Complete(_) | ReconcileStep::Release => Some(answered_at + plan.every),
            ReconcileStep::StopAtTwo | ReconcileStep::GiveUp => None,
        };
        self.context.reads.set_next(&record.id, known.next);
        let text = format!("{found} at {}, {reads} reads", now_text());
        self.apply(&record, step, text).await;
    }

    /// Does what follows from a read.
    async fn apply(&mut self, record: &Summary, step: ReconcileStep, text: String) {
        let (resolution, answer) = match &step {
            ReconcileStep::Complete(response) => {
                (Resolution::Completed(Answer::response(response)), Some(response.clone()))
            }
            ReconcileStep::Release => (Resolution::Released, None),
            ReconcileStep::ReadAgain(_) | ReconcileStep::StopAtTwo | ReconcileStep::GiveUp => {
                return self.note(record, &step, text).await;
            }
        };
        let (id, seen) = (record.id.clone(), record.fence);
        let action = ReconcileAction { id, seen, resolution, answer, why: text };
        let event = match (self.context.resolve)(action).await {
            Ok(Resolved::Applied) if step == ReconcileStep::Release => ReconcileEvent::Released,
            Ok(Resolved::Applied) => ReconcileEvent::Completed,
            // A newer truth came first.
            Ok(Resolved::Stale) => ReconcileEvent::Overtaken,
            // It is tried again after the next read.
            Err(error) => {
                tracing::error!(record = %record.id, error, "a held record was not resolved");
                return;
            }
        };
        self.context.metrics.reconcile(&self.known.scope, event);
        self.records.remove(&record.id);
    }

    async fn note(&self, record: &Summary, step: &ReconcileStep, text: String) {
        let is_stopped = !matches!(step, ReconcileStep::ReadAgain(_));
        let text = if is_stopped { format!("{}: {text}", word(step)) } else { text };
        if is_stopped {
            let two_found = *step == ReconcileStep::StopAtTwo;
            let event =
                if two_found { ReconcileEvent::StoppedAtTwo } else { ReconcileEvent::GivenUp };
            self.context.metrics.reconcile(&self.known.scope, event);
            tracing::warn!(record = %record.id, "a held record is read no more: {text}");
        }
        let note = ReconcileNote { fence: record.fence, is_stopped, text };
        let name = ReconcileNote::name(&record.id);
        let stored = note.to_stored();
        if let Err(error) = self.context.store.set_metadata(&name, Some(stored.as_bytes())).await {
            tracing::debug!(%error, "the result of a read was not noted");
        }
    }
}

/// Reads one record. `None` if it is not held any more.
async fn read(
    context: Arc<ReconcileContext>,
    known: ReconciledScope,
    record: Summary,
    fence: Fence,
) -> Option<FinishedRead> {
    let seen = context.store.get(&record.id).await.ok()??;
    if seen.fence != record.fence || seen.state != StateView::Held {
        return None;
    }
    let values = values(record.id.key.as_str(), &record.id.caller, &seen);
    let is_fenced = known.rule.plan.fenced && fence > record.fence;
    let sent_fence = is_fenced.then_some((fence, record.id.key.as_str()));
    let request = ReadRequest::new(&known.rule, &values, sent_fence);
    let sent_at = Instant::now();
    let answer = match request {
        Ok(request) => request.send(Arc::clone(&known.pool)).await,
        Err(error) => Err(error),
    };
    let finding = answer.map(|UpstreamAnswer { status, content_type, body }| {
        let content_type = content_type.as_deref();
        known.rule.read.judge(ReadAnswer { status, content_type, body: &body }, &values)
    });
    Some(FinishedRead { record, sent_at, answered_at: Instant::now(), is_fenced, finding })
}

fn describe(finding: &ReadFinding) -> String {
    match finding {
        ReadFinding::Found(_) => "found".to_owned(),
        ReadFinding::TwoFound => "two found".to_owned(),
        ReadFinding::Absent => "absent".to_owned(),
        ReadFinding::Differs(pointer) => format!("another operation found ({pointer} differs)"),
        ReadFinding::Unclear => "an answer that proves nothing".to_owned(),
    }
}

/// The time of day, to the second.
fn now_text() -> String {
    let now = Timestamp::now();
    now.round(jiff::Unit::Second).unwrap_or(now).to_string()
}

/// Up to a tenth of a time, so that the reads of many records do not come together.
fn jitter(time: Duration) -> Duration {
    let random = RandomState::new().hash_one(0_u8) % 1000;
    time.mul_f64(f64::from(u32::try_from(random).unwrap_or(0)) / 10_000.0)
}
