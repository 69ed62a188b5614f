//! Observed executions that have ended and are not yet recorded.
//!
//! The store is called while an observed request runs, not before, so a request may be answered
//! before its own claim is granted. A repeat after that answer would be a replay on a guarded
//! route; it must not be counted as concurrent with the first.

use std::{
    collections::HashMap,
    future::{Future, poll_fn},
    mem,
    pin::Pin,
    sync::{Arc, Mutex, PoisonError},
    task::{Context, Poll},
};

use semel_core::{ExecutionResult, RecordId};
use tokio::sync::Notify;

/// Observed executions that have ended and are not yet recorded, by record.
#[derive(Clone, Debug, Default)]
pub(crate) struct Unrecorded(Arc<Mutex<HashMap<RecordId, Vec<Arc<Notify>>>>>);

impl Unrecorded {
    /// Completes when every execution of this record that ended before this call is recorded.
    pub(super) fn settled(&self, id: &RecordId) -> impl Future<Output = ()> + use<> {
        let all = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        let notified = |ended: &Arc<Notify>| Arc::clone(ended).notified_owned();
        // Created under the lock, so that none of them misses its notification.
        let pending: Vec<_> = all.get(id).into_iter().flatten().map(notified).collect();
        async move {
            for notified in pending {
                notified.await;
            }
        }
    }

    fn add(&self, id: RecordId) -> Mark {
        let ended = Arc::new(Notify::new());
        let mut all = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        all.entry(id.clone()).or_default().push(Arc::clone(&ended));
        Mark { unrecorded: self.clone(), id, ended }
    }
}

/// An execution that has ended and is not yet recorded. Drop it once it is.
#[derive(Debug)]
pub(super) struct Mark {
    unrecorded: Unrecorded,
    id: RecordId,
    ended: Arc<Notify>,
}

impl Drop for Mark {
    fn drop(&mut self) {
        let mut all = self.unrecorded.0.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(marks) = all.get_mut(&self.id) {
            marks.retain(|other| !Arc::ptr_eq(other, &self.ended));
            if marks.is_empty() {
                all.remove(&self.id);
            }
        }
        drop(all);
        self.ended.notify_waiters();
    }
}

/// An observed execution. Its end is noticed at once, whatever is awaited meanwhile.
pub(super) struct Execution<'a, F> {
    state: ExecutionState<F>,
    unrecorded: &'a Unrecorded,
    id: RecordId,
}

enum ExecutionState<F> {
    Running(Pin<Box<F>>),
    Ended(ExecutionResult, Mark),
    Taken,
}

impl<'a, F: Future<Output = ExecutionResult>> Execution<'a, F> {
    pub(super) fn new(ended: F, unrecorded: &'a Unrecorded, id: RecordId) -> Self {
        Self { state: ExecutionState::Running(Box::pin(ended)), unrecorded, id }
    }

    /// Awaits another future, and notices if the execution ends meanwhile.
    pub(super) async fn run_alongside<T>(&mut self, other: impl Future<Output = T>) -> T {
        let mut other = std::pin::pin!(other);
        poll_fn(|context| {
            self.poll(context);
            other.as_mut().poll(context)
        })
        .await
    }

    /// Awaits the end. Drop the mark once the end is recorded. Call it once only.
    pub(super) async fn end(&mut self) -> (ExecutionResult, Mark) {
        poll_fn(|context| {
            self.poll(context);
            match mem::replace(&mut self.state, ExecutionState::Taken) {
                ExecutionState::Ended(ended, mark) => Poll::Ready((ended, mark)),
                running @ (ExecutionState::Running(_) | ExecutionState::Taken) => {
                    self.state = running;
                    Poll::Pending
                }
            }
        })
        .await
    }

    fn poll(&mut self, context: &mut Context<'_>) {
        if let ExecutionState::Running(running) = &mut self.state
            && let Poll::Ready(ended) = running.as_mut().poll(context)
        {
            self.state = ExecutionState::Ended(ended, self.unrecorded.add(self.id.clone()));
        }
    }
}
