//! One attempt of a call: sends the request and reads the whole answer.

use std::time::Duration;

use bytes::{Bytes, BytesMut};
use http::{HeaderValue, Request, Response};
use semel_core::retry::{AttemptOutcome, ResponseSignals};

use crate::clock;

/// How much of an answer is read at most.
const ANSWER_BYTES_MAX: usize = 64 * 1024 * 1024;

/// How an attempt ended, in full.
#[derive(Debug)]
pub(crate) enum AttemptEnd {
    Answered(Response<Bytes>),
    Failed(reqwest::Error),
    /// The answer is larger than [`ANSWER_BYTES_MAX`].
    TooLarge,
}

impl AttemptEnd {
    /// What the rule of retries sees of it; `None` if a retry cannot help.
    pub(crate) fn outcome(&self) -> Option<AttemptOutcome> {
        match self {
            Self::Answered(response) => {
                let headers = response.headers();
                let header = |name: &str| headers.get(name).and_then(|value| value.to_str().ok());
                let status = response.status().as_u16();
                let signals = ResponseSignals::read(status, header, clock::since_1970().as_secs());
                Some(AttemptOutcome::Answered(signals))
            }
            Self::Failed(error) if error.is_builder() || error.is_redirect() => None,
            Self::Failed(error) if error.is_connect() => Some(AttemptOutcome::NotSent),
            Self::Failed(error) if error.is_timeout() => Some(AttemptOutcome::TimedOut),
            Self::Failed(_) => Some(AttemptOutcome::Broken),
            Self::TooLarge => None,
        }
    }
}

/// Sends the request once.
pub(crate) async fn send(
    http: &reqwest::Client,
    request: Request<Bytes>,
    timeout: Duration,
) -> AttemptEnd {
    let sent = async {
        let mut request = reqwest::Request::try_from(request)?;
        *request.timeout_mut() = Some(timeout);
        read(http.execute(request).await?).await
    };
    sent.await.unwrap_or_else(AttemptEnd::Failed)
}

async fn read(mut response: reqwest::Response) -> Result<AttemptEnd, reqwest::Error> {
    let mut body = BytesMut::new();
    while let Some(chunk) = response.chunk().await? {
        if body.len() + chunk.len() > ANSWER_BYTES_MAX {
            return Ok(AttemptEnd::TooLarge);
        }
        body.extend_from_slice(&chunk);
    }
    let mut answer = Response::new(body.freeze());
    *answer.status_mut() = response.status();
    *answer.version_mut() = response.version();
    *answer.headers_mut() = std::mem::take(response.headers_mut());
    Ok(AttemptEnd::Answered(answer))
}

/// At least 0 and below 1.
pub(crate) fn random() -> f64 {
    let random = getrandom::u32().unwrap_or(u32::MAX);
    f64::from(random) / (f64::from(u32::MAX) + 1.0)
}

/// A random key, as a header.
pub(crate) fn random_key() -> HeaderValue {
    let key = uuid::Uuid::new_v4().hyphenated().to_string();
    // A UUID is visible ASCII.
    HeaderValue::from_str(&key).unwrap_or_else(|_| HeaderValue::from_static(""))
}
