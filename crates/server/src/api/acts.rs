//! What operators do to a store, each act with its lines in the audit log.

use std::{fmt, time::Duration};

use semel::core::{Resolution, Resolved, Store, StoreError};
use tokio::time::{Instant, sleep};

use super::{
    form::{Forget, Plain, Resolve, Target, To},
    view::{DoneView, SweepView},
};
use crate::ops::audit::{Act, Audit, Audited};

/// How many records one batch deletes.
const BATCH: u32 = 500;

/// After a batch, how many times its own length passes until the next, so that claims do not feel
/// it.
const PAUSE_FACTOR: u32 = 4;
const PAUSE_MIN: Duration = Duration::from_millis(5);

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
    let (resolution, to) = match (form.to, &form.answer) {
        (To::Released, None) => (Resolution::Released, "released".to_owned()),
        (To::Completed, Some(answer)) => {
            let to = format!("completed with status {}", answer.status);
            (Resolution::Completed(answer.read()?), to)
        }
        (To::Completed, None) => {
            return Err(ActError::Malformed("to complete it, say which answer".to_owned()));
        }
        (To::Released, Some(_)) => {
            return Err(ActError::Malformed("what is released has no answer".to_owned()));
        }
    };
    apply(store, audit, "resolve", &form.target, resolution, Words { who, why: form.why, to }).await
}

/// Forgets a record.
pub(crate) async fn forget(
    store: &dyn Store,
    audit: &Audit,
    form: Forget,
    who: String,
) -> Result<DoneView, ActError> {
    let (_, state, _) = form.target.read()?;
    let words = Words { who, why: form.why, to: "absent".to_owned() };
    apply(store, audit, "forget", &form.target, Resolution::Forgotten(state), words).await
}

/// Who says what, and why.
struct Words {
    who: String,
    why: String,
    to: String,
}

async fn apply(
    store: &dyn Store,
    audit: &Audit,
    act: &'static str,
    target: &Target,
    resolution: Resolution,
    words: Words,
) -> Result<DoneView, ActError> {
    let (id, state, fence) = target.read()?;
    let why = words.why.trim();
    if why.is_empty() {
        let detail = "say why: it is written to the audit log".to_owned();
        return Err(ActError::Malformed(detail));
    }
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
    let act = Act { who: words.who, act, record, to: Some(words.to), why: why.to_owned() };
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
    let act = Act { who, act: "sweep", record: None, to: None, why: form.why };
    audit.around(act, doing).await.map_err(ActError::Audit)?
}
