//! What operators do to a store, each act with its lines in the audit log.

use std::{fmt, time::Duration};

use semel::core::{Answer, Resolution, Resolved, Store, StoreError};
use tokio::time::{Instant, sleep, sleep_until};

use super::{
    form::{AnswerForm, Delete, Plain, Resolve, ResolveMany, Target, To},
    view::{DoneView, ManyView, NameView, SweepView},
};
use crate::ops::audit::{Act, Audit, Audited, Recorded};

/// How many records one batch deletes.
const BATCH: u32 = 500;

/// After a batch, how many times its own length passes until the next, so that claims do not feel
/// it.
const PAUSE_FACTOR: u32 = 4;
const PAUSE_MIN: Duration = Duration::from_millis(5);

/// How much time each of many records takes at least: at most 200 a second are resolved, so that
/// claims do not feel it.
const RESOLVE_INTERVAL: Duration = Duration::from_millis(5);

/// Why an act was not done.
#[derive(Debug)]
pub(crate) enum ActError {
    /// It makes no sense.
    Malformed(String),
    /// There is no such record.
    Absent,
    /// The record is not what the operator saw.
    Stale,
    /// The store could not do it.
    Store(StoreError),
    /// It could not be written down beforehand.
    Audit(anyhow::Error),
}

impl fmt::Display for ActError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Malformed(detail) => f.write_str(detail),
            Self::Absent => f.write_str("there is no such record"),
            Self::Stale => f.write_str(
                "stale: the record is not what was seen, or does not take this act; \
                 nothing was changed, look again",
            ),
            Self::Store(error) => error.fmt(f),
            Self::Audit(error) => write!(f, "{error:#}"),
        }
    }
}

impl std::error::Error for ActError {}

impl Audited for DoneView {
    fn result(&self) -> String {
        self.result.clone()
    }
}

impl Audited for SweepView {
    fn result(&self) -> String {
        format!("deleted {}", self.deleted)
    }
}

/// Says what became of a held record.
pub(crate) async fn resolve(
    store: &dyn Store,
    audit: &Audit,
    form: Resolve,
    who: String,
) -> Result<DoneView, ActError> {
    let intent = Intent::to_resolve(form.to, form.answer.as_ref(), who, &form.why)?;
    apply(store, audit, &form.target(), intent).await
}

/// Says what became of many held records, one after the other, until `limit` is over. Records that
/// are not what was seen are left alone. `progress` is called with how many are dealt with.
///
/// # Errors
///
/// If the first record cannot be resolved. Later ones that cannot end the act early: it says how
/// many were processed, and sending the rest again gives the error.
pub(crate) async fn resolve_many(
    store: &dyn Store,
    audit: &Audit,
    form: ResolveMany,
    who: String,
    limit: Option<Duration>,
    mut progress: impl FnMut(usize),
) -> Result<ManyView, ActError> {
    let intent = Intent::to_resolve(form.to, form.answer.as_ref(), who, &form.why)?;
    let (targets, began) = (form.targets()?, Instant::now());
    let mut done = ManyView::default();
    for target in targets {
        let next = Instant::now() + RESOLVE_INTERVAL;
        match apply(store, audit, &target, intent.clone()).await {
            Ok(_) => done.applied = done.applied.saturating_add(1),
            Err(ActError::Stale | ActError::Absent) => {
                let Target { scope, caller, key, .. } = target;
                done.stale.push(NameView { scope, caller, key });
            }
            Err(error) if done.processed == 0 => return Err(error),
            Err(_) => break,
        }
        done.processed = done.processed.saturating_add(1);
        progress(done.processed);
        if limit.is_some_and(|limit| began.elapsed() >= limit) {
            break;
        }
        sleep_until(next).await;
    }
    Ok(done)
}

/// Deletes a record.
pub(crate) async fn delete(
    store: &dyn Store,
    audit: &Audit,
    form: Delete,
    who: String,
) -> Result<DoneView, ActError> {
    let target = form.target();
    let (_, state, _) = target.read()?;
    let intent = Intent {
        act: "delete",
        resolution: Resolution::Deleted(state),
        to: "absent".to_owned(),
        answer: None,
        who,
        why: stated(&form.why)?,
    };
    apply(store, audit, &target, intent).await
}

/// An operator's act on a record, with its author and the reason.
#[derive(Clone)]
struct Intent {
    act: &'static str,
    resolution: Resolution,
    to: String,
    answer: Option<Recorded>,
    who: String,
    why: String,
}

impl Intent {
    fn to_resolve(
        to: To,
        answer: Option<&AnswerForm>,
        who: String,
        why: &str,
    ) -> Result<Self, ActError> {
        let (resolution, to, answer) = match (to, answer) {
            (To::Released, None) => (Resolution::Released, "released".to_owned(), None),
            (To::Completed, Some(answer)) => {
                let to = format!("completed with status {}", answer.status);
                let response = answer.read()?;
                let recorded = Recorded::of(&response);
                (Resolution::Completed(Answer::response(&response)), to, Some(recorded))
            }
            (To::Completed, None) => {
                return Err(ActError::Malformed("a completed record needs an answer".to_owned()));
            }
            (To::Released, Some(_)) => {
                return Err(ActError::Malformed("a released record has no answer".to_owned()));
            }
        };
        Ok(Self { act: "resolve", resolution, to, answer, who, why: stated(why)? })
    }
}

/// Why an act is done, which must be stated.
fn stated(why: &str) -> Result<String, ActError> {
    match why.trim() {
        "" => Err(ActError::Malformed("say why: it is written to the audit log".to_owned())),
        why => Ok(why.to_owned()),
    }
}

async fn apply(
    store: &dyn Store,
    audit: &Audit,
    target: &Target,
    intent: Intent,
) -> Result<DoneView, ActError> {
    let (id, state, fence) = target.read()?;
    let Intent { act, resolution, to, answer, who, why } = intent;
    let doing = async {
        match store.resolve(&id, fence, &resolution).await.map_err(ActError::Store)? {
            Resolved::Applied => Ok(DoneView::applied(None)),
            Resolved::Stale => match store.get(&id).await.map_err(ActError::Store)? {
                Some(_) => Err(ActError::Stale),
                None => Err(ActError::Absent),
            },
        }
    };
    let record = Some((id.clone(), state, fence));
    let act = Act { who, act, record, to: Some(to), answer, why };
    audit.around(act, doing).await.map_err(ActError::Audit)?
}

/// Deletes what retention has passed, in paced batches, until nothing is left or `patience` ends.
/// `progress` hears of every batch.
pub(crate) async fn sweep(
    store: &dyn Store,
    audit: &Audit,
    form: Plain,
    who: String,
    patience: Option<Duration>,
    mut progress: impl FnMut(u64),
) -> Result<SweepView, ActError> {
    let began = Instant::now();
    let doing = async {
        let mut done = SweepView { deleted: 0, more: true };
        while done.more && patience.is_none_or(|patience| began.elapsed() < patience) {
            let asked = Instant::now();
            let batch = store.sweep(BATCH).await.map_err(ActError::Store)?;
            done.deleted = done.deleted.saturating_add(batch.done.into());
            done.more = batch.more;
            progress(done.deleted);
            if batch.more {
                sleep(asked.elapsed().saturating_mul(PAUSE_FACTOR).max(PAUSE_MIN)).await;
            }
        }
        Ok(done)
    };
    let act = Act { who, act: "sweep", record: None, to: None, answer: None, why: form.why };
    audit.around(act, doing).await.map_err(ActError::Audit)?
}
