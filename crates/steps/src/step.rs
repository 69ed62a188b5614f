//! A step of an operation: a future that runs once, or returns what is recorded.

use std::{
    fmt,
    future::pending,
    pin::Pin,
    sync::{Arc, PoisonError},
    task::{Context, Poll},
};

use serde::{Serialize, de::DeserializeOwned};

use crate::{
    context::{BoxFuture, StepContext, StepTransaction, Undo},
    error::{StepError, StepFailure},
    journal::{StepAction, StepKind, StopReason, UndoKind},
    owned_run::OwnedRun,
    store::{OperationStore, StepPart, StepState},
};

/// The maximum size of an input or a result.
pub(crate) const VALUE_BYTES_MAX: usize = 1024 * 1024;

/// A step: a future that returns its result, or the refusal that it was ended by.
///
/// It does not return while its outcome is unknown, or while the operation belongs to another
/// process: the operation is then run again from its beginning, and everything recorded is
/// replayed. Await every step; run steps concurrently with `join!`. An operation that drops a step
/// while it runs, as `select!` and time-outs do, is parked or undone, never continued.
#[must_use = "a step runs when it is awaited"]
pub struct Step<'a, S: OperationStore, T> {
    body: BoxFuture<'a, Result<T, StepError>>,
    call: StepCall<S>,
}

/// The call of a step in the journal, until the future of the step is dropped.
struct StepCall<S: OperationStore> {
    run: Arc<OwnedRun<S>>,
    name: Arc<str>,
    is_valid: bool,
}

impl<S: OperationStore> Drop for StepCall<S> {
    fn drop(&mut self) {
        if self.is_valid {
            self.run.journal().on_drop(&self.name);
        }
    }
}

impl<'a, S, T> Step<'a, S, T>
where
    S: OperationStore,
    T: Serialize + DeserializeOwned + Send + 'static,
{
    /// A step that calls a service.
    pub(crate) fn call<F, B>(run: &Arc<OwnedRun<S>>, name: &str, kind: StepKind, body: B) -> Self
    where
        F: Future<Output = Result<T, StepError>> + Send + 'a,
        B: FnOnce(StepContext) -> F + Send + 'a,
    {
        Self::new(run, name, move |run, name| {
            Box::pin(async move {
                if let Some(replayed) = poll_journal(&run, &name, kind).await {
                    return replayed;
                }
                if kind == StepKind::Once {
                    let begun = run.record(&name, StepPart::Do, StepState::Begun, None);
                    let begun = Box::pin(begun).await;
                    resume(&run, &name, begun).await;
                }
                let leased = if run.is_leased() { Ok(()) } else { Err(StopReason::Reload) };
                resume(&run, &name, leased).await;
                let ended = body(StepContext::new(&run.row, &name, StepPart::Do)).await;
                let row = match &ended {
                    Ok(value) => to_json(&name, value).map(|json| (StepState::Done, Some(json))),
                    Err(error) => failure(&name, kind, error),
                };
                let (state, result) = resume(&run, &name, row).await;
                let recorded = run.record(&name, StepPart::Do, state, result);
                let recorded = Box::pin(recorded).await;
                resume(&run, &name, recorded).await;
                run.journal().on_ended(&name);
                match ended {
                    Err(StepError(StepFailure::Retry(why) | StepFailure::Unknown(why))) => {
                        halt(&run, &name, StopReason::Retry(why)).await
                    }
                    ended => ended,
                }
            })
        })
    }

    /// A step that writes to the database of the operation.
    pub(crate) fn transaction<F, B>(run: &Arc<OwnedRun<S>>, name: &str, body: B) -> Self
    where
        F: Future<Output = Result<T, StepError>> + Send + 'a,
        B: FnOnce(StepTransaction<S>) -> F + Send + 'a,
    {
        Self::new(run, name, move |run, name| {
            Box::pin(async move {
                let kind = StepKind::Transaction;
                if let Some(replayed) = poll_journal(&run, &name, kind).await {
                    return replayed;
                }
                let ended = in_transaction(&run, &name, StepPart::Do, async |transaction| {
                    let value = body(transaction).await?;
                    let json = to_json(&name, &value);
                    Ok((value, json))
                });
                match Box::pin(ended).await {
                    Ok(value) => {
                        run.journal().on_ended(&name);
                        Ok(value)
                    }
                    Err(TransactionFailure::Stop(reason)) => halt(&run, &name, reason).await,
                    Err(TransactionFailure::Body(error)) => {
                        let row = resume(&run, &name, failure(&name, kind, &error)).await;
                        let recorded = run.record(&name, StepPart::Do, row.0, row.1);
                        let recorded = Box::pin(recorded).await;
                        resume(&run, &name, recorded).await;
                        run.journal().on_ended(&name);
                        Err(error)
                    }
                }
            })
        })
    }

    fn new(
        run: &Arc<OwnedRun<S>>,
        name: &str,
        body: impl FnOnce(Arc<OwnedRun<S>>, Arc<str>) -> BoxFuture<'a, Result<T, StepError>>,
    ) -> Self {
        let name: Arc<str> = name.into();
        let is_valid = run.journal().on_call(&name);
        let body =
            if is_valid { body(Arc::clone(run), Arc::clone(&name)) } else { Box::pin(pending()) };
        Self { body, call: StepCall { run: Arc::clone(run), name, is_valid } }
    }

    /// Declares how to undo the step. The undo gets the result of the step and a key of its own; it
    /// is repeated until it succeeds, and runs again with the same key after a crash.
    ///
    /// If the outcome of the step is unknown when the operation is undone, the operation is parked;
    /// see [`undo_by_key`](Self::undo_by_key).
    pub fn undo<F, U>(self, undo: U) -> Self
    where
        F: Future<Output = Result<(), StepError>> + Send + 'static,
        U: FnOnce(StepContext, T) -> F + Send + 'static,
    {
        self.declare(UndoKind::Result, || {
            Undo::Call(Box::new(move |context, result| match from_json(result) {
                Ok(value) => Box::pin(undo(context, value)),
                Err(error) => Box::pin(async { Err(error) }),
            }))
        })
    }

    /// Declares an undo that needs nothing but the [key of the step](StepContext::step_key), and
    /// that also holds if the step never took effect, or takes effect later: the callee remembers
    /// that the key is cancelled. So it can undo a step whose outcome is unknown.
    pub fn undo_by_key<F, U>(self, undo: U) -> Self
    where
        F: Future<Output = Result<(), StepError>> + Send + 'static,
        U: FnOnce(StepContext) -> F + Send + 'static,
    {
        let call = |undo: U| Undo::Call(Box::new(move |context, _| Box::pin(undo(context))));
        self.declare(UndoKind::ByKey, || call(undo))
    }

    /// Declares an undo that writes to the database of the operation, in one transaction with its
    /// row: it takes effect exactly once.
    pub fn undo_tx<F, U>(self, undo: U) -> Self
    where
        F: Future<Output = Result<(), StepError>> + Send + 'static,
        U: FnOnce(StepTransaction<S>, T) -> F + Send + 'static,
    {
        self.declare(UndoKind::Result, || {
            Undo::Transaction(Box::new(move |transaction, result| match from_json(result) {
                Ok(value) => Box::pin(undo(transaction, value)),
                Err(error) => Box::pin(async { Err(error) }),
            }))
        })
    }

    fn declare(self, kind: UndoKind, undo: impl FnOnce() -> Undo<S>) -> Self {
        let StepCall { run, name, is_valid } = &self.call;
        if *is_valid {
            run.journal().on_undo_declared(name, kind);
            run.undos().insert(name.to_string(), undo());
        }
        self
    }
}

impl<S: OperationStore, T> Future for Step<'_, S, T> {
    type Output = Result<T, StepError>;

    fn poll(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<Self::Output> {
        self.body.as_mut().poll(context)
    }
}

impl<S: OperationStore, T> fmt::Debug for Step<'_, S, T> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Step").field("name", &self.call.name).finish_non_exhaustive()
    }
}

/// What is recorded of a step, or `None` if it is to run.
async fn poll_journal<S: OperationStore, T: DeserializeOwned>(
    run: &OwnedRun<S>,
    name: &str,
    kind: StepKind,
) -> Option<Result<T, StepError>> {
    let action = run.journal().on_poll(name, kind);
    match action {
        StepAction::Run => None,
        StepAction::Replay(json) => match serde_json::from_str(&json) {
            Ok(value) => Some(Ok(value)),
            Err(error) => {
                let why =
                    format!("the recorded result of the step `{name}` cannot be read: {error}");
                halt(run, name, StopReason::Park(why)).await
            }
        },
        StepAction::Refuse(json) => Some(Err(StepError(StepFailure::Refused(json)))),
        StepAction::Halt => pending().await,
    }
}

/// The value, or the end of this try.
async fn resume<S: OperationStore, T>(
    run: &OwnedRun<S>,
    name: &str,
    done: Result<T, StopReason>,
) -> T {
    match done {
        Ok(value) => value,
        Err(reason) => halt(run, name, reason).await,
    }
}

/// Never returns: the driver drops the function when no step is running.
async fn halt<S: OperationStore, T>(run: &OwnedRun<S>, name: &str, reason: StopReason) -> T {
    run.journal().on_halted(name, reason);
    pending().await
}

/// The row for a step that ended with an error, or the end of this try.
fn failure(
    name: &str,
    kind: StepKind,
    error: &StepError,
) -> Result<(StepState, Option<String>), StopReason> {
    match (&error.0, kind) {
        (StepFailure::Refused(json), _) => Ok((StepState::Refused, Some(json.clone()))),
        (StepFailure::Retry(_), StepKind::Once) => Ok((StepState::Released, None)),
        (StepFailure::Unknown(why), StepKind::Once) => {
            Err(StopReason::Park(format!("the outcome of the step `{name}` is unknown: {why}")))
        }
        (StepFailure::Retry(why) | StepFailure::Unknown(why), _) => {
            Err(StopReason::Retry(format!("the step `{name}` failed: {why}")))
        }
    }
}

/// A result as JSON, unless it is out of bounds.
type StepJson = Result<String, StopReason>;

/// Why a transaction was not committed.
pub(crate) enum TransactionFailure {
    /// What the step or undo returned.
    Body(StepError),
    /// The database.
    Stop(StopReason),
}

/// Runs this in a transaction, and commits it with the row.
async fn in_transaction<S: OperationStore, T>(
    run: &OwnedRun<S>,
    name: &str,
    part: StepPart,
    body: impl AsyncFnOnce(StepTransaction<S>) -> Result<(T, StepJson), StepError>,
) -> Result<T, TransactionFailure> {
    let stop = |reason| Err(TransactionFailure::Stop(reason));
    let transaction = match run.store.begin().await {
        Ok(transaction) => transaction,
        Err(error) => return stop(StopReason::Retry(error.to_string())),
    };
    if !run.is_leased() {
        return stop(StopReason::Reload);
    }
    let (lent, returned) = StepTransaction::lend(transaction);
    let (value, json) = body(lent).await.map_err(TransactionFailure::Body)?;
    let transaction = returned.lock().unwrap_or_else(PoisonError::into_inner).take();
    let Some(transaction) = transaction else {
        let why = format!("the transaction of the step `{name}` outlives the step");
        return stop(StopReason::Park(why));
    };
    let result = json.map_err(TransactionFailure::Stop)?;
    let committed = run.commit(transaction, name, part, Some(result)).await;
    committed.map(|()| value).map_err(TransactionFailure::Stop)
}

/// Runs an undo and records it.
pub(crate) async fn run_undo<S: OperationStore>(
    run: &OwnedRun<S>,
    name: &str,
    undo: Undo<S>,
    result: Option<String>,
) -> Result<(), StopReason> {
    let ended = match undo {
        Undo::Call(body) => {
            if !run.is_leased() {
                return Err(StopReason::Reload);
            }
            body(StepContext::new(&run.row, name, StepPart::Undo), result).await
        }
        Undo::Transaction(body) => {
            let body = async |transaction| {
                body(transaction, result).await?;
                Ok(((), Ok("null".to_owned())))
            };
            match Box::pin(in_transaction(run, name, StepPart::Undo, body)).await {
                Ok(()) => return Ok(()),
                Err(TransactionFailure::Stop(reason)) => return Err(reason),
                Err(TransactionFailure::Body(error)) => Err(error),
            }
        }
    };
    match ended {
        Ok(()) => run.record(name, StepPart::Undo, StepState::Done, None).await,
        Err(StepError(StepFailure::Refused(json))) => {
            Err(StopReason::Park(format!("the undo of the step `{name}` was refused: {json}")))
        }
        Err(StepError(StepFailure::Retry(why) | StepFailure::Unknown(why))) => {
            Err(StopReason::Retry(format!("the undo of the step `{name}` failed: {why}")))
        }
    }
}

/// A result as JSON, within bounds.
fn to_json<T: Serialize>(name: &str, value: &T) -> Result<String, StopReason> {
    let json = serde_json::to_string(value).map_err(|error| {
        StopReason::Park(format!("the result of the step `{name}` cannot be written: {error}"))
    })?;
    if json.len() > VALUE_BYTES_MAX {
        let why = format!("the result of the step `{name}` has more than {VALUE_BYTES_MAX} bytes");
        return Err(StopReason::Park(why));
    }
    Ok(json)
}

fn from_json<T: DeserializeOwned>(result: Option<String>) -> Result<T, StepError> {
    let json = result.unwrap_or_else(|| "null".to_owned());
    serde_json::from_str(&json).map_err(|error| StepError::refused(&error.to_string()))
}
