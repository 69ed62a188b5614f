//! The calls of Semel's service API, with retries.

use std::time::{Duration, Instant};

use bytes::Bytes;
use http::{HeaderValue, Request, header};
use semel_core::OnUnknown;
use serde::{Deserialize, Serialize, de::DeserializeOwned};
use serde_json::{
    json,
    value::{RawValue, to_raw_value},
};

use crate::claim::ClaimGuard;
use crate::retry_client::{CallError, RetryClient};

/// A claim may wait a minute for another owner's result.
const ATTEMPT_TIMEOUT: Duration = Duration::from_secs(90);

/// For the renewal of a claim that waited before it was granted.
const RENEWAL_TIMEOUT_MIN: Duration = Duration::from_secs(1);

/// A client of the service API. Its clones share connections and the retry budget.
#[derive(Clone, Debug)]
pub struct ServiceClient {
    client: RetryClient,
    url: String,
    authorization: Option<HeaderValue>,
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
    Execute(ClaimGuard),
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

/// Why a call of the service API failed.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum ServiceError {
    /// The service refused it.
    #[error(transparent)]
    Problem(#[from] ServiceProblem),
    /// There was no answer.
    #[error(transparent)]
    Call(#[from] CallError),
    /// The request cannot be written, or the answer not be read.
    #[error("not a call of the service API: {0}")]
    Format(Box<dyn std::error::Error + Send + Sync>),
}

/// A problem document of the service.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{status} {slug}: {detail}")]
pub struct ServiceProblem {
    /// The HTTP status.
    pub status: u16,
    /// The last part of its `type`, such as `key-reused`.
    pub slug: String,
    /// What to do about it.
    pub detail: String,
}

#[derive(Deserialize)]
struct Document {
    #[serde(rename = "type", default)]
    kind: String,
    #[serde(default)]
    detail: String,
}

#[derive(Deserialize)]
#[serde(tag = "outcome", rename_all = "snake_case")]
enum ClaimAnswer {
    Execute { claim: String, fence: u64, attempt: u32, lease_ms: u64 },
    Replay { result: Option<OperationResult> },
}

#[derive(Deserialize)]
struct RenewAnswer {
    lease_ms: u64,
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
        let authorization = token.map(|token| HeaderValue::from_str(&format!("Bearer {token}")));
        let mut authorization = authorization.transpose().map_err(format_error)?;
        if let Some(value) = &mut authorization {
            value.set_sensitive(true);
        }
        let client = client.without_keys().attempt_timeout(ATTEMPT_TIMEOUT);
        Ok(Self { client, url: url.trim_end_matches('/').to_owned(), authorization })
    }

    /// Claims a key. A claim that is granted is renewed in the background, on this runtime.
    ///
    /// # Errors
    ///
    /// If the service refuses it or does not answer. Both leave the operation not begun here.
    pub async fn claim(&self, request: &ClaimRequest) -> Result<ClaimedKey, ServiceError> {
        let asked_at = Instant::now();
        match self.call("claims", request, None).await? {
            ClaimAnswer::Replay { result } => Ok(ClaimedKey::Replay(result)),
            ClaimAnswer::Execute { claim, fence, attempt, lease_ms } => {
                let mut lease = Duration::from_millis(lease_ms);
                let mut asked_at = asked_at;
                if asked_at.elapsed() > lease / 3 {
                    // The claim waited: only the server knows how long its lease is.
                    asked_at = Instant::now();
                    let renewed = self.renew(&claim, lease.max(RENEWAL_TIMEOUT_MIN)).await;
                    if renewed.is_err() {
                        // Nothing was begun.
                        self.end("release", &json!({ "claim": claim, "counted": false })).await?;
                    }
                    lease = renewed?;
                }
                let guard = ClaimGuard::new(self.clone(), claim, fence, attempt, lease, asked_at);
                Ok(ClaimedKey::Execute(guard))
            }
        }
    }

    /// Renews a claim within a time; the length of the new lease, which counts from before this.
    pub(crate) async fn renew(
        &self,
        claim: &str,
        within: Duration,
    ) -> Result<Duration, ServiceError> {
        let body = json!({ "claim": claim });
        let answer: RenewAnswer = self.call("claims/renew", &body, Some(within)).await?;
        Ok(Duration::from_millis(answer.lease_ms))
    }

    /// Ends a claim.
    pub(crate) async fn end(&self, call: &str, body: &impl Serialize) -> Result<(), ServiceError> {
        self.call::<serde_json::Value>(&format!("claims/{call}"), body, None).await.map(drop)
    }

    async fn call<T: DeserializeOwned>(
        &self,
        path: &str,
        body: &impl Serialize,
        within: Option<Duration>,
    ) -> Result<T, ServiceError> {
        let body = serde_json::to_vec(body).map_err(format_error)?;
        let request = Request::post(format!("{}/v1/{path}", self.url))
            .header(header::CONTENT_TYPE, "application/json")
            .body(Bytes::from(body));
        let mut request = request.map_err(format_error)?;
        if let Some(authorization) = &self.authorization {
            request.headers_mut().insert(header::AUTHORIZATION, authorization.clone());
        }
        let client = match within {
            Some(within) => &self.client.clone().deadline(Some(within)),
            None => &self.client,
        };
        let answer = client.send(request).await?;
        let status = answer.status();
        if status.is_success() {
            return serde_json::from_slice(answer.body()).map_err(format_error);
        }
        let document: Option<Document> = serde_json::from_slice(answer.body()).ok();
        let (kind, detail) = document.map(|it| (it.kind, it.detail)).unwrap_or_default();
        let slug = kind.rsplit(':').next().unwrap_or_default().to_owned();
        Err(ServiceProblem { status: status.as_u16(), slug, detail }.into())
    }
}

fn duration_text(time: Duration) -> String {
    format!("{}ms", time.as_millis())
}

pub(crate) fn format_error(error: impl std::error::Error + Send + Sync + 'static) -> ServiceError {
    ServiceError::Format(Box::new(error))
}
