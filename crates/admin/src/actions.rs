//! Operator actions on a store, each written to the audit log.

use std::time::Duration;

use semel::core::{Answer, Resolution, Resolved, Store};
use tokio::time::{Instant, sleep, sleep_until};

pub use super::action_error::ActionError;
use super::{
    requests::{
        AnswerInput, AuditNote, DeleteRequest, RecordTarget, ResolveManyRequest, ResolveRequest,
        ResolvedState,
    },
    resolve_observed,
    responses::{ActionResultView, RecordIdView, ResolveManyView, SweepView},
};
use crate::audit::{AnswerDigest, AuditLog, AuditResult, OperatorAction};

/// Records per batch of a sweep.
const SWEEP_BATCH: u32 = 500;

/// Pause after a batch, as a multiple of its duration, so that a sweep does not slow down claims.
const SWEEP_PAUSE_FACTOR: u32 = 4;
const SWEEP_PAUSE_MIN: Duration = Duration::from_millis(5);

/// Minimum time per record: at most 200 a second are resolved, so that claims do not slow down.
const RESOLVE_INTERVAL: Duration = Duration::from_millis(5);

impl AuditResult for ActionResultView {
    fn result(&self) -> String {
        self.result.clone()
    }
}

impl AuditResult for SweepView {
    fn result(&self) -> String {
        format!("deleted {}", self.deleted)
    }
}

/// Resolves a held record.
pub async fn resolve(
    store: &dyn Store,
    audit: &AuditLog,
    request: ResolveRequest,
    who: String,
) -> Result<ActionResultView, ActionError> {
    let action =
        OperatorChange::resolution(request.to, request.answer.as_ref(), who, &request.why)?;
    apply(store, audit, &request.target(), action).await
}

/// Resolves many held records, one after the other, for at most `time_limit`. Records that changed
/// are skipped. `progress` is called with the number of processed records.
///
/// # Errors
///
/// If the first record cannot be resolved. After a later failure the result has the number of
/// processed records. A request with the rest returns the error if it persists.
pub async fn resolve_many(
    store: &dyn Store,
    audit: &AuditLog,
    request: ResolveManyRequest,
    who: String,
    time_limit: Option<Duration>,
    mut progress: impl FnMut(usize),
) -> Result<ResolveManyView, ActionError> {
    let action =
        OperatorChange::resolution(request.to, request.answer.as_ref(), who, &request.why)?;
    let (targets, began) = (request.targets()?, Instant::now());
    let mut done = ResolveManyView::default();
    for target in targets {
        let next = Instant::now() + RESOLVE_INTERVAL;
        match apply(store, audit, &target, action.clone()).await {
            Ok(_) => done.applied = done.applied.saturating_add(1),
            Err(ActionError::Stale | ActionError::Absent) => {
                let RecordTarget { scope, caller, key, .. } = target;
                done.stale.push(RecordIdView { scope, caller, key });
            }
            Err(error) if done.processed == 0 => return Err(error),
            Err(_) => break,
        }
        done.processed = done.processed.saturating_add(1);
        progress(done.processed);
        if time_limit.is_some_and(|time_limit| began.elapsed() >= time_limit) {
            break;
        }
        sleep_until(next).await;
    }
    Ok(done)
}

/// Deletes a record.
pub async fn delete(
    store: &dyn Store,
    audit: &AuditLog,
    request: DeleteRequest,
    who: String,
) -> Result<ActionResultView, ActionError> {
    let target = request.target();
    let (_, state, _) = target.read()?;
    let action = OperatorChange {
        act: "delete",
        resolution: Resolution::Deleted(state),
        to: "absent".to_owned(),
        answer: None,
        who,
        why: required_reason(&request.why)?,
    };
    apply(store, audit, &target, action).await
}

/// A change of a record by an operator, with its author and reason.
#[derive(Clone)]
struct OperatorChange {
    act: &'static str,
    resolution: Resolution,
    /// The new state, for the audit log.
    to: String,
    /// Digest of the recorded answer, for the audit log.
    answer: Option<AnswerDigest>,
    who: String,
    why: String,
}

impl OperatorChange {
    fn resolution(
        to: ResolvedState,
        answer: Option<&AnswerInput>,
        who: String,
        why: &str,
    ) -> Result<Self, ActionError> {
        let (resolution, to, answer) = match (to, answer) {
            (ResolvedState::Released, None) => (Resolution::Released, "released".to_owned(), None),
            (ResolvedState::Completed, Some(answer)) => {
                let to = format!("completed with status {}", answer.status);
                let response = answer.read()?;
                let recorded = AnswerDigest::of(&response);
                (Resolution::Completed(Answer::response(&response)), to, Some(recorded))
            }
            (ResolvedState::Completed, None) => {
                return Err(ActionError::Malformed(
                    "a completed record needs an answer".to_owned(),
                ));
            }
            (ResolvedState::Released, Some(_)) => {
                return Err(ActionError::Malformed("a released record has no answer".to_owned()));
            }
        };
        Ok(Self { act: "resolve", resolution, to, answer, who, why: required_reason(why)? })
    }
}

/// The reason of an action, which is required.
fn required_reason(why: &str) -> Result<String, ActionError> {
    match why.trim() {
        "" => Err(ActionError::Malformed(
            "`why` is required: it is written to the audit log".to_owned(),
        )),
        why => Ok(why.to_owned()),
    }
}

async fn apply(
    store: &dyn Store,
    audit: &AuditLog,
    target: &RecordTarget,
    action: OperatorChange,
) -> Result<ActionResultView, ActionError> {
    let (id, state, fence) = target.read()?;
    let OperatorChange { act, resolution, to, answer, who, why } = action;
    let operation = async {
        // A record of an observed scope is never held, so the store cannot resolve it.
        let deletes = matches!(resolution, Resolution::Deleted(_));
        let resolved = if id.scope.is_observed() && !deletes {
            resolve_observed::resolve(store, &id, fence, &resolution).await
        } else {
            store.resolve(&id, fence, &resolution).await
        };
        match resolved.map_err(ActionError::Store)? {
            Resolved::Applied => Ok(ActionResultView::applied(None)),
            Resolved::Stale => match store.get(&id).await.map_err(ActionError::Store)? {
                Some(_) => Err(ActionError::Stale),
                None => Err(ActionError::Absent),
            },
        }
    };
    let record = Some((id.clone(), state, fence));
    let act = OperatorAction { who, act, record, to: Some(to), answer, why };
    audit.run_logged(act, operation).await.map_err(ActionError::AuditLog)?
}

/// Deletes records past their retention in batches with pauses, until none is left or the time
/// limit is reached. `progress` is called after every batch.
pub async fn sweep(
    store: &dyn Store,
    audit: &AuditLog,
    request: AuditNote,
    who: String,
    time_limit: Option<Duration>,
    mut progress: impl FnMut(u64),
) -> Result<SweepView, ActionError> {
    let began = Instant::now();
    let operation = async {
        let mut done = SweepView { deleted: 0, more: true };
        while done.more && time_limit.is_none_or(|time_limit| began.elapsed() < time_limit) {
            let batch_start = Instant::now();
            let batch = store.sweep(SWEEP_BATCH).await.map_err(ActionError::Store)?;
            done.deleted = done.deleted.saturating_add(batch.done.into());
            done.more = batch.more;
            progress(done.deleted);
            if batch.more {
                sleep(
                    batch_start.elapsed().saturating_mul(SWEEP_PAUSE_FACTOR).max(SWEEP_PAUSE_MIN),
                )
                .await;
            }
        }
        Ok(done)
    };
    let act = OperatorAction {
        who,
        act: "sweep",
        record: None,
        to: None,
        answer: None,
        why: request.why,
    };
    audit.run_logged(act, operation).await.map_err(ActionError::AuditLog)?
}
