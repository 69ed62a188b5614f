//! The connection to the service API: its calls with retries, and its errors.

use std::time::Duration;

use bytes::Bytes;
use http::{HeaderValue, Request, header};
use semel_core::retry::{BudgetRule, RetryPolicy};
use serde::{Deserialize, Serialize, de::DeserializeOwned};
use serde_json::json;

use crate::retry_client::{CallError, RetryClient};

/// A claim may wait a minute for another owner's result.
const ATTEMPT_TIMEOUT: Duration = Duration::from_secs(90);

/// Beside the deadline of a call.
const ATTEMPTS_MAX: u32 = 30;

/// An address, a token, and a client that retries.
#[derive(Clone, Debug)]
pub(crate) struct ServiceConnection {
    client: RetryClient,
    url: String,
    authorization: Option<HeaderValue>,
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
struct RenewAnswer {
    lease_ms: u64,
}

impl ServiceConnection {
    pub(crate) fn new(
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
        // Without a budget, until the deadline: a claim that is given up may have been granted, and
        // what was done has to be recorded. Meanwhile the caller begins nothing else.
        let (attempts_max, budget) = (ATTEMPTS_MAX, BudgetRule::Unlimited);
        let policy = RetryPolicy { attempts_max, budget, ..client.retry_policy() };
        let client = client.policy(policy);
        Ok(Self { client, url: url.trim_end_matches('/').to_owned(), authorization })
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

    pub(crate) async fn call<T: DeserializeOwned>(
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

pub(crate) fn format_error(error: impl std::error::Error + Send + Sync + 'static) -> ServiceError {
    ServiceError::Format(Box::new(error))
}
