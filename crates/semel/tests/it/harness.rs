//! The test harness: an engine, operations that are counted, and a store that fails on demand.

use std::{
    future::Future,
    pin::Pin,
    sync::{
        Arc, Mutex,
        atomic::{AtomicU32, Ordering},
    },
    time::Duration,
};

use semel::{
    BeginRequest, Builder, Event, ExecutionOutput, Lease, MemoryStore, Observer, Semel,
    core::{
        Answer, Caller, ExecutionResult, Fence, Fingerprint, Key, OnUnknown, Policy, Problem,
        Reason, RecordId, Reply, Scope, StateView, Store, StoredResponse, Verdict,
    },
};
use semel_testkit::flaky_store::FlakyStore;
pub(crate) use semel_testkit::gate::Gate;

/// A store in memory on tokio's clock.
pub(crate) fn memory() -> MemoryStore {
    let origin = tokio::time::Instant::now();
    MemoryStore::with_clock(move || origin.elapsed())
}

pub(crate) struct Harness {
    pub(crate) store: FlakyStore,
    pub(crate) semel: Semel,
    pub(crate) policy: Policy,
    pub(crate) runs: Arc<AtomicU32>,
    pub(crate) events: Events,
}

/// Every event, as text without its record.
#[derive(Clone, Debug, Default)]
pub(crate) struct Events(Arc<Mutex<Vec<String>>>);

impl Observer for Events {
    fn on_event(&self, event: &Event<'_>) {
        self.0.lock().unwrap().push(format!("{:?}", event.kind));
    }
}

impl Events {
    pub(crate) fn count(&self, kind: &str) -> usize {
        self.0.lock().unwrap().iter().filter(|event| event.starts_with(kind)).count()
    }
}

impl Harness {
    pub(crate) fn new() -> Self {
        Self::with(|builder| builder)
    }

    pub(crate) fn with(set: impl FnOnce(Builder) -> Builder) -> Self {
        Self::on(FlakyStore::new(memory()), set)
    }

    pub(crate) fn on(store: FlakyStore, set: impl FnOnce(Builder) -> Builder) -> Self {
        let events = Events::default();
        let builder = Semel::builder(store.clone()).observer(events.clone());
        let semel = set(builder).build();
        Self { store, semel, policy: Policy::default(), runs: Arc::default(), events }
    }

    /// A second process on the same store.
    pub(crate) fn second_process(&self) -> Self {
        let other = Self::on(self.store.clone(), |builder| builder);
        Self { runs: Arc::clone(&self.runs), policy: self.policy.clone(), ..other }
    }

    pub(crate) fn on_unknown(mut self, on_unknown: OnUnknown) -> Self {
        self.policy.on_unknown = on_unknown;
        self
    }

    pub(crate) fn operation(&self, key: &str, meaning: u8) -> BeginRequest {
        let fingerprint = Fingerprint::from_bytes(&[meaning; 33]).unwrap();
        BeginRequest::new(id(key), fingerprint, Arc::new(self.policy.clone()))
    }

    /// Begins a counted operation that ends with `end`.
    pub(crate) fn begin<F>(
        &self,
        key: &str,
        end: impl FnOnce(Lease) -> F + Send + 'static,
    ) -> PendingReply
    where
        F: Future<Output = ExecutionResult> + Send + 'static,
    {
        self.begin_as(key, 1, end)
    }

    pub(crate) fn begin_as<F>(
        &self,
        key: &str,
        meaning: u8,
        end: impl FnOnce(Lease) -> F + Send + 'static,
    ) -> PendingReply
    where
        F: Future<Output = ExecutionResult> + Send + 'static,
    {
        let runs = Arc::clone(&self.runs);
        begin(&self.semel, self.operation(key, meaning), move |lease| {
            runs.fetch_add(1, Ordering::SeqCst);
            end(lease)
        })
    }

    /// Begins an operation that answers at once.
    pub(crate) fn answer(&self, key: &str, text: &'static str) -> PendingReply {
        self.begin(key, move |_| async move { completed(text) })
    }

    /// Begins an operation that waits for the gate, and then answers.
    pub(crate) fn blocked_on(&self, gate: &Gate, key: &str, text: &'static str) -> PendingReply {
        let gate = gate.clone();
        self.begin(key, move |_| async move {
            gate.wait_open().await;
            completed(text)
        })
    }

    pub(crate) fn runs(&self) -> u32 {
        self.runs.load(Ordering::SeqCst)
    }

    pub(crate) async fn state(&self, key: &str) -> Option<StateView> {
        self.store.get(&id(key)).await.unwrap().map(|seen| seen.state)
    }

    pub(crate) async fn fence(&self, key: &str) -> Fence {
        self.store.get(&id(key)).await.unwrap().unwrap().fence
    }
}

/// The reply to an operation without a value.
pub(crate) type PendingReply = Pin<Box<dyn Future<Output = Reply> + Send>>;

/// Begins an operation that ends with `end` and has no value.
pub(crate) fn begin<F>(
    semel: &Semel,
    operation: BeginRequest,
    end: impl FnOnce(Lease) -> F + Send + 'static,
) -> PendingReply
where
    F: Future<Output = ExecutionResult> + Send + 'static,
{
    let pending = semel.begin(operation, move |lease| {
        let end = end(lease);
        async { ExecutionOutput::from(end.await) }
    });
    Box::pin(pending.reply())
}

pub(crate) fn id(key: &str) -> RecordId {
    let caller = Caller::new("shop-7").unwrap();
    RecordId::new(Scope::new("payments").unwrap(), caller, Key::new(key).unwrap())
}

pub(crate) fn text(text: &str) -> Answer {
    let body = text.as_bytes().to_vec().into();
    Answer::response(&StoredResponse { status: 201, body, ..Default::default() })
}

pub(crate) fn ended(verdict: Verdict, answer: &str) -> ExecutionResult {
    let reason = Reason::Answered(201);
    ExecutionResult::Answered { verdict, answer: text(answer), reason }
}

pub(crate) fn broken() -> ExecutionResult {
    ExecutionResult::Broken(Reason::ConnectionLost(0))
}

pub(crate) fn completed(answer: &str) -> ExecutionResult {
    ended(Verdict::Completed, answer)
}

pub(crate) fn problem(problem: Problem) -> Reply {
    Reply::Problem(problem)
}

/// Lets every ready task run. Paused time advances as little as possible.
pub(crate) async fn run_ready_tasks() {
    tokio::time::sleep(Duration::from_millis(1)).await;
    for _ in 0..100 {
        tokio::task::yield_now().await;
    }
}

pub(crate) async fn sleep_for(time: Duration) {
    tokio::time::sleep(time).await;
}
