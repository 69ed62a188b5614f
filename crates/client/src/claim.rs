//! A granted claim of the service API, renewed in the background until it is ended.

use std::{
    sync::{Arc, Mutex, PoisonError},
    time::Duration,
};

use serde::Serialize;
use serde_json::{
    json,
    value::{RawValue, to_raw_value},
};
use tokio::{sync::watch, task::JoinHandle};

use crate::clock;
use crate::connection::{ServiceConnection, ServiceError, format_error};

/// Between two renewals that failed, as a part of the lease.
const RETRY_PARTS: u32 = 30;

/// An operation that is to run. Its lease is renewed at a third of it.
///
/// It ends by [`complete`](Self::complete), [`release`](Self::release) or [`hold`](Self::hold). A
/// guard that is dropped is no longer renewed: its outcome is *unknown*, and when the lease ends,
/// `on_unknown` decides.
#[derive(Debug)]
pub struct ClaimGuard {
    connection: ServiceConnection,
    claim: String,
    fence: u64,
    attempt: u32,
    lease: Arc<Mutex<ClaimLease>>,
    lost: watch::Receiver<bool>,
    renewal: JoinHandle<()>,
}

/// The claim has another owner by now, or may have.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("the claim is lost: another owner may run the operation")]
pub struct ClaimLost;

#[derive(Clone, Copy, Debug)]
struct ClaimLease {
    asked_at: Duration,
    length: Duration,
}

#[derive(Serialize)]
struct Completion<'a> {
    claim: &'a str,
    result: CompletionResult,
}

#[derive(Serialize)]
struct CompletionResult {
    body: Box<RawValue>,
}

impl ClaimLease {
    fn rest(self) -> Duration {
        self.length.saturating_sub(clock::since_boot().saturating_sub(self.asked_at))
    }
}

impl ClaimGuard {
    pub(crate) fn new(
        connection: ServiceConnection,
        claim: String,
        fence: u64,
        attempt: u32,
        length: Duration,
        asked_at: Duration,
    ) -> Self {
        let lease = Arc::new(Mutex::new(ClaimLease { asked_at, length }));
        let (lost_tx, lost) = watch::channel(false);
        let (renewing, shared, renewed) = (connection.clone(), Arc::clone(&lease), claim.clone());
        let renewal = tokio::spawn(async move {
            renew_until_lost(&renewing, &renewed, &shared).await;
            lost_tx.send_replace(true);
        });
        Self { connection, claim, fence, attempt, lease, lost, renewal }
    }

    /// The fence. Write it with everything in your own database, and refuse a lower one there.
    #[must_use]
    pub fn fence(&self) -> u64 {
        self.fence
    }

    /// Above 1, an earlier attempt may have left traces.
    #[must_use]
    pub fn attempt(&self) -> u32 {
        self.attempt
    }

    /// What was not begun must not begin once the claim is lost.
    ///
    /// # Errors
    ///
    /// If another owner may have it.
    pub fn check(&self) -> Result<(), ClaimLost> {
        let is_lost = *self.lost.borrow() || read(&self.lease).rest().is_zero();
        if is_lost { Err(ClaimLost) } else { Ok(()) }
    }

    /// Waits until the claim is lost.
    pub async fn lost(&self) -> ClaimLost {
        let mut lost = self.lost.clone();
        // The sender lives as long as the renewal, which the guard ends.
        let _ = lost.wait_for(|lost| *lost).await;
        ClaimLost
    }

    /// Records the result as JSON. A value that has none holds the key: the operation has run.
    ///
    /// # Errors
    ///
    /// If the value has no JSON, or as of [`release`](Self::release).
    pub async fn complete(self, value: &impl Serialize) -> Result<(), ServiceError> {
        // Raw text, so that no number passes through a double.
        let body = match to_raw_value(value) {
            Ok(body) => body,
            Err(error) => {
                let _ = self.hold("the result has no JSON").await;
                return Err(format_error(error));
            }
        };
        let completion = Completion { claim: &self.claim, result: CompletionResult { body } };
        self.connection.end("complete", &completion).await
    }

    /// The operation did not happen and may run again. `counted` says whether this was an attempt.
    ///
    /// # Errors
    ///
    /// If the claim has another owner (`claim-lost`), or the service does not answer.
    pub async fn release(self, counted: bool) -> Result<(), ServiceError> {
        let body = json!({ "claim": self.claim, "counted": counted });
        self.connection.end("release", &body).await
    }

    /// The outcome is unknown; nothing runs under this key until an operator resolves it.
    ///
    /// # Errors
    ///
    /// As of [`release`](Self::release).
    pub async fn hold(self, reason: &str) -> Result<(), ServiceError> {
        let body = json!({ "claim": self.claim, "reason": reason });
        self.connection.end("hold", &body).await
    }
}

impl Drop for ClaimGuard {
    fn drop(&mut self) {
        self.renewal.abort();
    }
}

/// Returns when the claim is lost.
async fn renew_until_lost(connection: &ServiceConnection, claim: &str, shared: &Mutex<ClaimLease>) {
    let mut pause = read(shared).length / 3;
    loop {
        tokio::time::sleep(pause).await;
        let (asked_at, lease) = (clock::since_boot(), read(shared));
        let rest = lease.rest();
        if rest.is_zero() {
            return;
        }
        match connection.renew(claim, rest.min(lease.length / 3)).await {
            Ok(length) => {
                *shared.lock().unwrap_or_else(PoisonError::into_inner) =
                    ClaimLease { asked_at, length };
                pause = ClaimLease { asked_at, length: length / 3 }.rest();
            }
            Err(ServiceError::Problem(problem)) if problem.slug == "claim-lost" => return,
            Err(_) => pause = lease.length / RETRY_PARTS,
        }
    }
}

fn read(lease: &Mutex<ClaimLease>) -> ClaimLease {
    *lease.lock().unwrap_or_else(PoisonError::into_inner)
}
