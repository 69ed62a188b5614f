//! What a step is given: the key for its callee, or a transaction.

use std::{
    fmt,
    ops::{Deref, DerefMut},
    pin::Pin,
    sync::{Arc, Mutex, PoisonError},
};

use sha2::{Digest as _, Sha256};

use crate::{
    error::StepError,
    store::{OperationRow, OperationStore, StepPart},
};

pub(crate) type BoxFuture<'a, T> = Pin<Box<dyn Future<Output = T> + Send + 'a>>;

/// What a step or an undo is given: the key for its callee.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct StepContext {
    key: String,
    step_key: String,
    attempt: u32,
}

impl StepContext {
    pub(crate) fn new(row: &OperationRow, step: &str, part: StepPart) -> Self {
        let key = |part: StepPart| derived_key(&row.name, &row.key, step, part);
        let attempt = u32::try_from(row.attempt).unwrap_or_default().saturating_add(1);
        Self { key: key(part), step_key: key(StepPart::Do), attempt }
    }

    /// The idempotency key for the callee: 64 hexadecimal digits, the same in every attempt,
    /// another one for each step and each undo.
    #[must_use]
    pub fn key(&self) -> &str {
        &self.key
    }

    /// In an undo, the key that its step sent.
    #[must_use]
    pub fn step_key(&self) -> &str {
        &self.step_key
    }

    /// 1 for the process that started the operation, higher after every takeover.
    #[must_use]
    pub const fn attempt(&self) -> u32 {
        self.attempt
    }
}

/// The SHA-256 of the parts as netstrings, as `semel::keys::from_parts("semel-steps", …)` has it.
fn derived_key(operation: &str, key: &str, step: &str, part: StepPart) -> String {
    let mut hash = Sha256::new();
    for text in ["semel-steps", operation, key, step, part.as_str()] {
        hash.update(format!("{}:{text},", text.len()));
    }
    hash.finalize().iter().map(|byte| format!("{byte:02x}")).collect()
}

/// The open transaction of a step. Everything that is written through it is committed together with
/// the row of the step.
pub struct StepTransaction<S: OperationStore> {
    /// `None` only in `drop`.
    transaction: Option<S::Transaction>,
    /// Takes the transaction back when the step has ended.
    returned: Arc<Mutex<Option<S::Transaction>>>,
}

impl<S: OperationStore> StepTransaction<S> {
    /// The transaction, and where it is found when the step has ended.
    pub(crate) fn lend(transaction: S::Transaction) -> (Self, Arc<Mutex<Option<S::Transaction>>>) {
        let returned = Arc::default();
        (Self { transaction: Some(transaction), returned: Arc::clone(&returned) }, returned)
    }
}

impl<S: OperationStore> Deref for StepTransaction<S> {
    type Target = S::Transaction;

    #[expect(clippy::expect_used, reason = "only `drop` takes it")]
    fn deref(&self) -> &S::Transaction {
        self.transaction.as_ref().expect("the transaction is there until the value is dropped")
    }
}

impl<S: OperationStore> DerefMut for StepTransaction<S> {
    #[expect(clippy::expect_used, reason = "only `drop` takes it")]
    fn deref_mut(&mut self) -> &mut S::Transaction {
        self.transaction.as_mut().expect("the transaction is there until the value is dropped")
    }
}

impl<S: OperationStore> Drop for StepTransaction<S> {
    fn drop(&mut self) {
        *self.returned.lock().unwrap_or_else(PoisonError::into_inner) = self.transaction.take();
    }
}

impl<S: OperationStore> fmt::Debug for StepTransaction<S> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_tuple("StepTransaction").field(&self.transaction).finish()
    }
}

/// How to undo a step.
pub(crate) enum Undo<S: OperationStore> {
    /// Calls a service.
    Call(UndoBody<StepContext>),
    /// Writes to the database of the operation.
    Transaction(UndoBody<StepTransaction<S>>),
}

pub(crate) type UndoBody<C> =
    Box<dyn FnOnce(C, Option<String>) -> BoxFuture<'static, Result<(), StepError>> + Send>;
