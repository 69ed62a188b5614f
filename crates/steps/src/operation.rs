//! The operation as its function sees it.

use std::{fmt, sync::Arc};

use serde::{Serialize, de::DeserializeOwned};

use crate::{
    context::{StepContext, StepTransaction},
    error::StepError,
    journal::StepKind,
    owned_run::OwnedRun,
    step::Step,
    store::OperationStore,
};

/// A running operation, given to its function.
///
/// The function is run from its beginning in every attempt, also when it is undone. So what it does
/// between its steps must depend only on its input and on the results of its steps, and must have
/// no effects.
pub struct Operation<S: OperationStore> {
    pub(crate) run: Arc<OwnedRun<S>>,
}

impl<S: OperationStore> Operation<S> {
    /// The key of the operation.
    #[must_use]
    pub fn key(&self) -> &str {
        &self.run.row.key
    }

    /// A step whose callee takes an idempotency key, [`StepContext::key`]. After a crash it runs
    /// again with the same key. It costs one commit.
    ///
    /// The name identifies the step within its operation.
    pub fn step<'a, T, F, B>(&self, name: &str, body: B) -> Step<'a, S, T>
    where
        T: Serialize + DeserializeOwned + Send + 'static,
        F: Future<Output = Result<T, StepError>> + Send + 'a,
        B: FnOnce(StepContext) -> F + Send + 'a,
    {
        Step::call(&self.run, name, StepKind::Keyed, body)
    }

    /// A step whose callee takes no key. That it begins is committed first; a step that began and
    /// did not end is never run again, and parks the operation until an operator says what became
    /// of it. It costs two commits.
    pub fn step_once<'a, T, F, B>(&self, name: &str, body: B) -> Step<'a, S, T>
    where
        T: Serialize + DeserializeOwned + Send + 'static,
        F: Future<Output = Result<T, StepError>> + Send + 'a,
        B: FnOnce(StepContext) -> F + Send + 'a,
    {
        Step::call(&self.run, name, StepKind::Once, body)
    }

    /// A step that writes to the database of the operation. Its row is the last statement of the
    /// same transaction, so it takes effect exactly once, at the cost of the one commit that its
    /// writes need anyway.
    pub fn step_tx<'a, T, F, B>(&self, name: &str, body: B) -> Step<'a, S, T>
    where
        T: Serialize + DeserializeOwned + Send + 'static,
        F: Future<Output = Result<T, StepError>> + Send + 'a,
        B: FnOnce(StepTransaction<S>) -> F + Send + 'a,
    {
        Step::transaction(&self.run, name, body)
    }
}

impl<S: OperationStore> fmt::Debug for Operation<S> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Operation").field("key", &self.key()).finish_non_exhaustive()
    }
}
