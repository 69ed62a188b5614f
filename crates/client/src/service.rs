//! Claims keys by Semel's service API.

use std::{
    future::Future,
    pin::Pin,
    task::{Context, Poll, ready},
    time::Duration,
};

use semel_core::OnUnknown;
use serde::{Deserialize, Serialize};
use serde_json::{
    json,
    value::{RawValue, to_raw_value},
};
use tokio::runtime::Handle;

use crate::claim::ClaimGuard;
use crate::clock;
use crate::connection::{ServiceConnection, ServiceError, format_error};
use crate::retry_client::RetryClient;

/// For the renewal of a claim that waited before it was granted.
const RENEWAL_TIMEOUT_MIN: Duration = Duration::from_secs(1);

/// A client of the service API. Its clones share connections and the retry budget.
#[derive(Clone, Debug)]
pub struct ServiceClient {
    connection: ServiceConnection,
}

/// Which key is claimed, and how.
#[derive(Clone, Debug, Serialize)]
pub struct ClaimRequest {
    scope: String,
    key: String,
    attempt_id: String,
    on_unknown: &'static str,
    #[serde(skip_serializing_if = "Option::is_none")]
    payload: Option<Box<RawValue>>,
    #[serde(skip_serializing_if = "Option::is_none")]
    lease: Option<String>,
    #[serde(skip_serializing_if = "Option::is_none")]
    wait: Option<String>,
    #[serde(skip_serializing_if = "Option::is_none")]
    retention: Option<String>,
    #[serde(skip_serializing_if = "Option::is_none")]
    about: Option<String>,
    #[serde(skip_serializing_if = "Option::is_none")]
    caller: Option<String>,
}

/// What became of a claim.
#[derive(Debug)]
pub enum ClaimedKey {
    /// The operation is to run.
    Execute(Box<ClaimGuard>),
    /// The operation was done; `None` if its result is not stored.
    Replay(Option<OperationResult>),
}

/// A recorded result.
#[derive(Clone, Debug, Deserialize)]
pub struct OperationResult {
    /// The media type.
    pub content_type: String,
    /// The JSON text as it was recorded, where the media type is JSON.
    pub body: Option<Box<RawValue>>,
    /// Other bytes, in base64.
    pub body_base64: Option<String>,
}

/// The answer to a claim: the members of either outcome. An enum by `outcome` could not keep the
/// text of a result.
#[derive(Deserialize)]
struct ClaimAnswer {
    outcome: ClaimOutcome,
    #[serde(default)]
    claim: String,
    #[serde(default)]
    fence: u64,
    #[serde(default)]
    attempt: u32,
    #[serde(default)]
    lease_ms: u64,
    result: Option<OperationResult>,
}

#[derive(Deserialize)]
#[serde(rename_all = "snake_case")]
enum ClaimOutcome {
    Execute,
    Replay,
}

impl ClaimRequest {
    /// A claim of a key in a scope. An operation whose outcome is unknown is held.
    #[must_use]
    pub fn new(scope: impl Into<String>, key: impl Into<String>) -> Self {
        Self {
            scope: scope.into(),
            key: key.into(),
            attempt_id: uuid::Uuid::new_v4().simple().to_string(),
            on_unknown: "hold",
            payload: None,
            lease: None,
            wait: None,
            retention: None,
            about: None,
            caller: None,
        }
    }

    /// What must be equal in a repeat.
    ///
    /// # Errors
    ///
    /// If the value has no JSON.
    pub fn payload(mut self, payload: &impl Serialize) -> Result<Self, ServiceError> {
        self.payload = Some(to_raw_value(payload).map_err(format_error)?);
        Ok(self)
    }

    /// What an unknown outcome means.
    #[must_use]
    pub fn on_unknown(mut self, on_unknown: OnUnknown) -> Self {
        self.on_unknown = match on_unknown {
            OnUnknown::Hold => "hold",
            OnUnknown::Rerun => "rerun",
            OnUnknown::Fail => "fail",
        };
        self
    }

    /// How long the operation may stay silent; renewed in the background.
    #[must_use]
    pub fn lease(mut self, lease: Duration) -> Self {
        self.lease = Some(duration_text(lease));
        self
    }

    /// How long to wait for another owner's result.
    #[must_use]
    pub fn wait(mut self, wait: Duration) -> Self {
        self.wait = Some(duration_text(wait));
        self
    }

    /// How long the result is kept.
    #[must_use]
    pub fn retention(mut self, retention: Duration) -> Self {
        self.retention = Some(duration_text(retention));
        self
    }

    /// A description for operators.
    #[must_use]
    pub fn about(mut self, about: impl Into<String>) -> Self {
        self.about = Some(about.into());
        self
    }

    /// The caller whose key it is, where the token may name one.
    #[must_use]
    pub fn caller(mut self, caller: impl Into<String>) -> Self {
        self.caller = Some(caller.into());
        self
    }
}

impl ServiceClient {
    /// A client of the API at this address, such as `http://127.0.0.1:8081`, with a token.
    ///
    /// # Errors
    ///
    /// If TLS cannot be set up, or the token is not visible ASCII.
    pub fn new(url: &str, token: Option<&str>) -> Result<Self, ServiceError> {
        let client = RetryClient::new().map_err(format_error)?;
        Self::with_client(url, token, client)
    }

    /// The same with a retry policy and connections of your own.
    ///
    /// # Errors
    ///
    /// If the token is not visible ASCII.
    pub fn with_client(
        url: &str,
        token: Option<&str>,
        client: RetryClient,
    ) -> Result<Self, ServiceError> {
        ServiceConnection::new(url, token, client).map(|connection| Self { connection })
    }

    /// Claims a key. A claim that is granted is renewed in the background, on this runtime.
    ///
    /// If this future is dropped, the claim is asked for to its end in the background, and is
    /// released where it is granted.
    ///
    /// # Errors
    ///
    /// If the service refuses it or does not answer. Both leave the operation not begun here.
    pub async fn claim(&self, request: &ClaimRequest) -> Result<ClaimedKey, ServiceError> {
        let (client, request) = (self.clone(), request.clone());
        let asking = Box::pin(async move { client.ask(&request).await });
        PendingClaim { asking: Some(asking), runtime: Handle::current() }.await
    }

    async fn ask(&self, request: &ClaimRequest) -> Result<ClaimedKey, ServiceError> {
        let asked_at = clock::since_boot();
        let answer: ClaimAnswer = self.connection.call("claims", request, None).await?;
        match answer.outcome {
            ClaimOutcome::Replay => Ok(ClaimedKey::Replay(answer.result)),
            ClaimOutcome::Execute => {
                self.guard(answer, asked_at).await.map(Box::new).map(ClaimedKey::Execute)
            }
        }
    }

    async fn guard(
        &self,
        granted: ClaimAnswer,
        mut asked_at: Duration,
    ) -> Result<ClaimGuard, ServiceError> {
        let ClaimAnswer { claim, fence, attempt, lease_ms, .. } = granted;
        let mut lease = Duration::from_millis(lease_ms);
        if clock::since_boot().saturating_sub(asked_at) > lease / 3 {
            // The claim waited: only the server knows how long its lease is.
            asked_at = clock::since_boot();
            let renewed = self.connection.renew(&claim, lease.max(RENEWAL_TIMEOUT_MIN)).await;
            if renewed.is_err() {
                // Nothing was begun.
                let release = json!({ "claim": claim, "counted": false });
                self.connection.end("release", &release).await?;
            }
            lease = renewed?;
        }
        let connection = self.connection.clone();
        Ok(ClaimGuard::new(connection, claim, fence, attempt, lease, asked_at))
    }
}

type ClaimResult = Result<ClaimedKey, ServiceError>;

/// A claim on its way, which may be granted although its caller no longer waits.
struct PendingClaim {
    /// `None` once it is answered.
    asking: Option<Pin<Box<dyn Future<Output = ClaimResult> + Send>>>,
    runtime: Handle,
}

impl Future for PendingClaim {
    type Output = ClaimResult;

    fn poll(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<Self::Output> {
        let Some(asking) = &mut self.asking else { return Poll::Pending };
        let claimed = ready!(asking.as_mut().poll(context));
        self.asking = None;
        Poll::Ready(claimed)
    }
}

impl Drop for PendingClaim {
    fn drop(&mut self) {
        let Some(asking) = self.asking.take() else { return };
        self.runtime.spawn(async move {
            if let Ok(ClaimedKey::Execute(guard)) = asking.await {
                // Nothing was begun. If this fails, the lease ends the claim.
                let _ = guard.release(false).await;
            }
        });
    }
}

fn duration_text(time: Duration) -> String {
    format!("{}ms", time.as_millis())
}
