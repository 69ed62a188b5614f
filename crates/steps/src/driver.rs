//! Drives an operation that this process owns to its end, or gives it up.

use std::{
    any::Any,
    future::poll_fn,
    panic::{AssertUnwindSafe, catch_unwind},
    sync::Arc,
    task::Poll,
    time::Duration,
};

use tokio::{select, time::timeout};
use tracing::{debug, error, warn};

use crate::{
    clock::random,
    context::BoxFuture,
    error::{StepError, StepFailure},
    journal::{FunctionEnd, JournalAction, StopReason},
    operation::Operation,
    owned_run::OwnedRun,
    step::run_undo,
    store::{Direction, OperationEnd, OperationStore, ReleaseRequest, StepPart, StepState},
};

/// How often a function is run before the operation is given up for a longer pause.
const TRIES_MAX: u32 = 5;
/// The pause after the first failed try; it doubles with each.
const TRY_BACKOFF: Duration = Duration::from_millis(50);
/// The pause after the first attempt that failed in all its tries; it doubles with each.
const ATTEMPT_BACKOFF: Duration = Duration::from_secs(1);
const ATTEMPT_BACKOFF_MAX: Duration = Duration::from_secs(300);
/// How long a replayed function may take to reach every recorded step.
const REPLAY_TIMEOUT: Duration = Duration::from_secs(30);

/// A registered function: its result as JSON.
pub(crate) type OperationFunction<S> =
    Arc<dyn Fn(Operation<S>) -> BoxFuture<'static, Result<String, StepError>> + Send + Sync>;

/// How the drive ended.
#[derive(Debug, PartialEq, Eq)]
pub(crate) enum DriveEnd {
    /// The operation ended.
    Ended(OperationEnd),
    /// It will be continued later; whether after a failure.
    Released { failed: bool },
    /// Another process owns it.
    Lost,
}

/// The limits of a drive.
#[derive(Clone, Copy, Debug)]
pub(crate) struct DriveLimits {
    pub(crate) attempts_max: u32,
    pub(crate) lease: Duration,
}

/// Drives the operation.
pub(crate) async fn drive<S: OperationStore>(
    run: &Arc<OwnedRun<S>>,
    function: &OperationFunction<S>,
    limits: DriveLimits,
) -> DriveEnd {
    let mut tries = 0;
    loop {
        tries += 1;
        run.begin_try();
        let stop = match run_try(run, function).await {
            Ok(end) => match end_operation(run, end).await {
                Ok(ended) => return ended,
                Err(stop) => stop,
            },
            Err(stop) => stop,
        };
        debug!(operation = run.row.id, tries, ?stop, "a try of an operation ended");
        let gave_up = tries >= TRIES_MAX;
        let stop = match stop {
            StopReason::Reload if gave_up => StopReason::Retry("its rows keep changing".to_owned()),
            StopReason::Reload => match run.reload(limits.lease).await {
                Ok(()) => continue,
                Err(stop) => stop,
            },
            stop @ (StopReason::Retry(_)
            | StopReason::Release
            | StopReason::Park(_)
            | StopReason::Lost) => stop,
        };
        match stop {
            StopReason::Retry(why) if !gave_up => {
                warn!(operation = run.row.id, name = run.row.name, why, "running it again");
                let pause = jittered(TRY_BACKOFF * 2_u32.saturating_pow(tries));
                // A stop from outside ends the pause.
                let _ = timeout(pause, run.wake.notified()).await;
            }
            StopReason::Retry(why) => return give_up(run, why, limits).await,
            StopReason::Park(why) => return park(run, why).await,
            StopReason::Release => {
                let release =
                    ReleaseRequest { pause: Duration::ZERO, is_counted: false, reason: None };
                // If it fails, the lease ends by itself.
                let _ = run.store.release(run.owned(), &release).await;
                return DriveEnd::Released { failed: false };
            }
            StopReason::Reload | StopReason::Lost => return DriveEnd::Lost,
        }
    }
}

/// Runs the function once, forward or to learn its undos, and then the undos.
async fn run_try<S: OperationStore>(
    run: &Arc<OwnedRun<S>>,
    function: &OperationFunction<S>,
) -> Result<OperationEnd, StopReason> {
    let direction = run.journal().direction();
    let mut next = match direction {
        Direction::Forward => JournalAction::Replay,
        Direction::Backward => run.journal().next_undo(),
    };
    loop {
        next = match next {
            JournalAction::Finish(result) => return Ok(OperationEnd::Done(result)),
            JournalAction::Undone => return Ok(OperationEnd::Undone),
            JournalAction::Stop(reason) => return Err(reason),
            JournalAction::Replay => {
                let end = call_function(run, function).await;
                run.journal().on_return(end)
            }
            JournalAction::Turn { dropped, reason } => {
                for name in dropped {
                    run.record(&name, StepPart::Do, StepState::Begun, None).await?;
                }
                run.persist(|| run.store.turn(run.owned(), &reason)).await?;
                let mut journal = run.journal();
                journal.on_turned();
                journal.next_undo()
            }
            JournalAction::Undo { name, result } => {
                let undo = run.undos().remove(&name);
                // Each undo is declared once in a try, and taken once.
                let undo = undo.ok_or(StopReason::Reload)?;
                caught(run_undo(run, &name, undo, result)).await.unwrap_or_else(|panic| {
                    Err(StopReason::Retry(format!("the undo of `{name}` panicked: {panic}")))
                })?;
                run.journal().next_undo()
            }
        };
    }
}

/// Runs the function until it ends, or until nothing that it awaits can change what follows.
async fn call_function<S: OperationStore>(
    run: &Arc<OwnedRun<S>>,
    function: &OperationFunction<S>,
) -> Option<FunctionEnd> {
    let mut future = function(Operation { run: Arc::clone(run) });
    let mut poll = poll_fn(|context| {
        let polled = catch_unwind(AssertUnwindSafe(|| future.as_mut().poll(context)));
        match polled.unwrap_or_else(|panic| Poll::Ready(Err(panicked(&*panic)))) {
            Poll::Ready(Ok(json)) => Poll::Ready(Some(FunctionEnd::Value(json))),
            Poll::Ready(Err(StepError(StepFailure::Refused(json)))) => {
                Poll::Ready(Some(FunctionEnd::Refused(json)))
            }
            Poll::Ready(Err(StepError(StepFailure::Retry(why) | StepFailure::Unknown(why)))) => {
                Poll::Ready(Some(FunctionEnd::Failed(why)))
            }
            Poll::Pending if run.journal().is_stopped() => Poll::Ready(None),
            Poll::Pending => Poll::Pending,
        }
    });
    let is_replay = run.journal().direction() == Direction::Backward;
    loop {
        select! {
            biased;
            end = &mut poll => return end,
            // Polled again: the journal may be stopped.
            () = run.wake.notified() => {}
            () = tokio::time::sleep(REPLAY_TIMEOUT), if is_replay => {
                let why = "the replayed code did not reach every recorded step in time";
                run.journal().stop(StopReason::Park(why.to_owned()));
                return None;
            }
        }
    }
}

/// The result of a future, or the message of its panic.
async fn caught<T>(future: impl Future<Output = T>) -> Result<T, String> {
    let mut future = Box::pin(future);
    let polled =
        poll_fn(|context| match catch_unwind(AssertUnwindSafe(|| future.as_mut().poll(context))) {
            Ok(Poll::Pending) => Poll::Pending,
            Ok(Poll::Ready(value)) => Poll::Ready(Ok(value)),
            Err(panic) => Poll::Ready(Err(message(&*panic))),
        });
    polled.await
}

fn panicked(panic: &(dyn Any + Send)) -> StepError {
    StepError(StepFailure::Unknown(format!("the code panicked: {}", message(panic))))
}

fn message(panic: &(dyn Any + Send)) -> String {
    let text = panic.downcast_ref::<&str>().map(|text| (*text).to_owned());
    text.or_else(|| panic.downcast_ref::<String>().cloned()).unwrap_or_default()
}

async fn end_operation<S: OperationStore>(
    run: &OwnedRun<S>,
    end: OperationEnd,
) -> Result<DriveEnd, StopReason> {
    run.persist(|| run.store.finish(run.owned(), &end)).await?;
    Ok(DriveEnd::Ended(end))
}

async fn park<S: OperationStore>(run: &OwnedRun<S>, why: String) -> DriveEnd {
    error!(operation = run.row.id, name = run.row.name, key = run.row.key, why, "parked");
    let parked = end_operation(run, OperationEnd::Parked(why)).await;
    parked.unwrap_or(DriveEnd::Lost)
}

/// Leaves the operation to a later attempt, or parks it after the last.
async fn give_up<S: OperationStore>(
    run: &OwnedRun<S>,
    why: String,
    limits: DriveLimits,
) -> DriveEnd {
    let attempt = u32::try_from(run.row.attempt).unwrap_or_default();
    if attempt.saturating_add(1) >= limits.attempts_max {
        return park(run, why).await;
    }
    let pause = ATTEMPT_BACKOFF.saturating_mul(2_u32.saturating_pow(attempt));
    let pause = jittered(pause.min(ATTEMPT_BACKOFF_MAX));
    warn!(operation = run.row.id, name = run.row.name, why, ?pause, "leaving it for later");
    let release = ReleaseRequest { pause, is_counted: true, reason: Some(&why) };
    let _ = run.store.release(run.owned(), &release).await;
    DriveEnd::Released { failed: true }
}

/// Between half of a pause and all of it.
fn jittered(pause: Duration) -> Duration {
    pause.mul_f64(0.5 + (random() % 1024) as f64 / 2048.0)
}
