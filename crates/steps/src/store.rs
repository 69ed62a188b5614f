//! The verbs of a database that keeps operations, all of them fenced by the operation's row.

use std::{fmt::Debug, time::Duration};

use async_trait::async_trait;
use semel_core::{Fenced, StoreError};
use serde::Serialize;

/// Whether an operation is being done or undone.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum Direction {
    /// Its steps are done.
    Forward,
    /// Its steps are undone.
    Backward,
}

/// The state of an operation.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum OperationState {
    /// A process runs it, or will take it over.
    Running,
    /// All done.
    Done,
    /// All undone.
    Undone,
    /// Only an operator can go on.
    Parked,
}

/// Which half of a step a row is about.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum StepPart {
    /// The step.
    Do,
    /// Its undo.
    Undo,
}

/// The state of a step.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum StepState {
    /// It began, and its outcome is unknown.
    Begun,
    /// It has a result.
    Done,
    /// It was refused, and had no effect.
    Refused,
    /// It certainly had no effect, and may run again.
    Released,
}

/// The names that are stored, of all states.
macro_rules! stored_as {
    ($type:ident { $($variant:ident = $text:literal),+ }) => {
        impl $type {
            /// The text in the table.
            #[must_use]
            pub const fn as_str(self) -> &'static str {
                match self { $(Self::$variant => $text),+ }
            }

            /// Reads the text of the table.
            #[must_use]
            pub fn parse(text: &str) -> Option<Self> {
                match text { $($text => Some(Self::$variant),)+ _ => None }
            }
        }
    };
}

stored_as!(Direction { Forward = "forward", Backward = "backward" });
stored_as!(OperationState {
    Running = "running",
    Done = "done",
    Undone = "undone",
    Parked = "parked"
});
stored_as!(StepPart { Do = "do", Undo = "undo" });
stored_as!(StepState {
    Begun = "begun",
    Done = "done",
    Refused = "refused",
    Released = "released"
});

/// A row of `semel_step`.
#[derive(Clone, Debug, PartialEq, Eq, Hash, Serialize)]
pub struct StepRow {
    /// The name of the step.
    pub name: String,
    /// The step or its undo.
    pub part: StepPart,
    /// Its state.
    pub state: StepState,
    /// Its result or refusal, as JSON.
    pub result: Option<String>,
    /// Its place in the order of completion.
    pub position: i64,
}

/// The rows that one write makes durable.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct StepWrite {
    /// The row of the step.
    pub own: StepRow,
    /// Notes for other steps that run at the same time. They change no row that says more.
    pub noted: Vec<StepRow>,
}

/// An operation to start.
#[derive(Clone, Copy, Debug)]
pub struct NewOperation<'a> {
    /// The name under which its function is registered.
    pub name: &'a str,
    /// The version of the function.
    pub version: i32,
    /// What identifies the operation among those of its name.
    pub key: &'a str,
    /// The input, as JSON.
    pub input: &'a str,
    /// A random number, by which a repeated start recognises its own row.
    pub owner: i64,
    /// The lease.
    pub lease: Duration,
}

/// The row of an operation together with the fence under which a process owns it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct OwnedOperation {
    /// The row.
    pub id: i64,
    /// The fence.
    pub fence: i64,
}

/// A row of `semel_operation`.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct OperationRow {
    /// The row.
    pub id: i64,
    /// The name of its function.
    pub name: String,
    /// The version of its function.
    pub version: i32,
    /// Its key.
    pub key: String,
    /// Its input, as JSON.
    pub input: String,
    /// The fence of its owner; every other write is refused.
    pub fence: i64,
    /// The random number of its owner, 0 without one.
    #[serde(skip)]
    pub owner: i64,
    /// Its direction.
    pub direction: Direction,
    /// Its state.
    pub state: OperationState,
    /// How often it was taken over since it began or turned.
    pub attempt: i32,
    /// Its result, as JSON.
    pub result: Option<String>,
    /// Why it was turned, as JSON.
    pub refusal: Option<String>,
    /// Why it is parked, or why its last try failed.
    pub reason: Option<String>,
    /// How long ago it was started, in milliseconds.
    pub age_ms: i64,
    /// How long its lease or the pause before its next try lasts, in milliseconds; negative if it
    /// has ended.
    pub lease_ms: i64,
}

/// The end of an operation.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum OperationEnd {
    /// All done, with this result.
    Done(String),
    /// All undone.
    Undone,
    /// Parked, for this reason.
    Parked(String),
}

/// What [`take_lapsed`](OperationStore::take_lapsed) looks for.
#[derive(Clone, Copy, Debug)]
pub struct TakeRequest<'a> {
    /// The names and versions that this process has functions for.
    pub known: &'a [(String, i32)],
    /// A random number.
    pub owner: i64,
    /// The lease.
    pub lease: Duration,
    /// The maximum number of operations.
    pub limit: u32,
}

/// Lets an operation be taken over, after a pause.
#[derive(Clone, Copy, Debug)]
pub struct ReleaseRequest<'a> {
    /// The pause.
    pub pause: Duration,
    /// Whether this try counts.
    pub is_counted: bool,
    /// Why it failed.
    pub reason: Option<&'a str>,
}

/// Which operations to list.
#[derive(Clone, Debug, Default)]
pub struct OperationFilter {
    /// Only those in this state.
    pub state: Option<OperationState>,
    /// Only those of this name.
    pub name: Option<String>,
    /// Only those before this row: the last one of the page before.
    pub before: Option<i64>,
    /// The maximum number.
    pub limit: u32,
}

/// What an operator does to an operation.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum OperatorStep {
    /// Continue a parked operation in its direction.
    Resume,
    /// Undo an operation that is parked or running.
    Undo,
    /// Park a running operation, for this reason.
    Park(String),
    /// Say what became of a step whose outcome is unknown, while the operation is parked: it has
    /// this result, or it had no effect.
    Settle {
        /// The step.
        step: String,
        /// Its result as JSON.
        result: Option<String>,
    },
}

/// A database that keeps operations and their steps, in two tables.
///
/// Every write of an owner names the [fence](OwnedOperation::fence) and changes nothing if it is
/// not the current one: then it is [`Fenced::Lost`]. A write whose effect is unknown may be
/// repeated.
#[async_trait]
pub trait OperationStore: Debug + Send + Sync + 'static {
    /// An open transaction. Dropping it rolls back.
    type Transaction: Debug + Send + 'static;

    /// Inserts an operation, or returns the one that has its name and key. A repeated start finds
    /// its own row by the owner.
    async fn start(&self, new: &NewOperation<'_>) -> Result<OperationRow, StoreError>;

    /// Writes rows of steps in one statement.
    async fn step(&self, owned: OwnedOperation, write: &StepWrite) -> Result<Fenced, StoreError>;

    /// Begins a transaction for a step.
    async fn begin(&self) -> Result<Self::Transaction, StoreError>;

    /// Adds the row of a step to its transaction, and commits. [`Fenced::Lost`] rolls back; so does
    /// a row that says that the step has ended.
    async fn commit(
        &self,
        transaction: Self::Transaction,
        owned: OwnedOperation,
        write: &StepWrite,
    ) -> Result<Fenced, StoreError>;

    /// Turns an operation backward for this reason, as JSON.
    async fn turn(&self, owned: OwnedOperation, refusal: &str) -> Result<Fenced, StoreError>;

    /// Ends an operation.
    async fn finish(&self, owned: OwnedOperation, end: &OperationEnd)
    -> Result<Fenced, StoreError>;

    /// Takes operations over whose lease has ended: raises the fence, skips locked rows.
    async fn take_lapsed(&self, request: &TakeRequest<'_>)
    -> Result<Vec<OperationRow>, StoreError>;

    /// Renews leases, and returns the rows that are still owned.
    async fn renew(
        &self,
        owned: &[OwnedOperation],
        lease: Duration,
    ) -> Result<Vec<i64>, StoreError>;

    /// Gives an operation up, so that any process may take it over.
    async fn release(
        &self,
        owned: OwnedOperation,
        release: &ReleaseRequest<'_>,
    ) -> Result<Fenced, StoreError>;

    /// The operation in this row.
    async fn read(&self, id: i64) -> Result<Option<OperationRow>, StoreError>;

    /// The steps of an operation in the order of their positions.
    async fn steps(&self, id: i64) -> Result<Vec<StepRow>, StoreError>;

    /// Lists operations, the latest first.
    async fn list(&self, filter: &OperationFilter) -> Result<Vec<OperationRow>, StoreError>;

    /// Does what an operator says, if the fence is still the one that the operator saw.
    async fn operate(&self, seen: OwnedOperation, act: &OperatorStep)
    -> Result<Fenced, StoreError>;

    /// Deletes operations that ended before this time, at most `limit`, with their steps.
    async fn sweep(&self, retention: Duration, limit: u32) -> Result<u64, StoreError>;
}

impl OperationEnd {
    /// The state, the result and the reason in the table.
    #[must_use]
    pub fn columns(&self) -> (OperationState, Option<&str>, Option<&str>) {
        match self {
            Self::Done(result) => (OperationState::Done, Some(result), None),
            Self::Undone => (OperationState::Undone, None, None),
            Self::Parked(reason) => (OperationState::Parked, None, Some(reason)),
        }
    }
}
