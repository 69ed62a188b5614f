//! Delivers messages as webhooks over HTTP.

use std::{fmt, time::Duration};

use async_trait::async_trait;
use data_encoding::BASE64;
use hmac::{Hmac, KeyInit as _, Mac as _};
use reqwest::{
    Client, Response, StatusCode, Url,
    header::{CONTENT_TYPE, HeaderMap, HeaderName, HeaderValue},
    redirect,
};
use semel_core::retry::ResponseSignals;
use sha2::Sha256;

use super::InvalidSink;
use crate::{Delivery, OutboxMessage, Sink};

/// How long one attempt may take.
const ATTEMPT_TIMEOUT: Duration = Duration::from_secs(30);

/// How much of a response body is read.
const BODY_BYTES_MAX: usize = 64 * 1024;

/// How much of a response body a reason quotes.
const REASON_BYTES_MAX: usize = 200;

/// Posts each message to a URL, with `Idempotency-Key: <message id>`, so that a receiver behind
/// Semel runs it once.
///
/// | response | the message |
/// |---|---|
/// | 2xx | is delivered |
/// | 410, 423 | is parked: the receiver does not want it, or does not know what happened |
/// | 429, 503, no response | is tried again; other messages wait, unless they get through |
/// | anything else | moves aside and is tried again |
///
/// `Retry-After` is obeyed. Redirects are not followed.
pub struct HttpSink {
    client: Client,
    url: String,
    headers: HeaderMap,
    secret: Option<Vec<u8>>,
    concurrency: usize,
}

impl HttpSink {
    /// Posts to this URL. `{topic}` in it is replaced by the topic of each message.
    ///
    /// # Errors
    ///
    /// If the URL is not one of HTTP.
    pub fn new(url: &str) -> Result<Self, InvalidSink> {
        let probe = Url::parse(&url.replace("{topic}", "topic"))
            .map_err(|error| InvalidSink::Url(error.to_string()))?;
        if !matches!(probe.scheme(), "http" | "https") {
            return Err(InvalidSink::Url(format!("`{}` is not http or https", probe.scheme())));
        }
        let client = Client::builder()
            .timeout(ATTEMPT_TIMEOUT)
            .redirect(redirect::Policy::none())
            .build()
            .map_err(|error| InvalidSink::Client(error.to_string()))?;
        Ok(Self {
            client,
            url: url.to_owned(),
            headers: HeaderMap::from_iter([(
                CONTENT_TYPE,
                HeaderValue::from_static("application/json"),
            )]),
            secret: None,
            concurrency: 32,
        })
    }

    /// Signs each request as Standard Webhooks say, with a secret of the form `whsec_…`.
    ///
    /// # Errors
    ///
    /// If the secret has another form.
    pub fn secret(mut self, secret: &str) -> Result<Self, InvalidSink> {
        let bytes = secret.strip_prefix("whsec_").unwrap_or(secret);
        let bytes = BASE64.decode(bytes.as_bytes()).map_err(|_| InvalidSink::Secret)?;
        if !(24..=64).contains(&bytes.len()) {
            return Err(InvalidSink::Secret);
        }
        self.secret = Some(bytes);
        Ok(self)
    }

    /// Adds a header to each request, such as `Authorization`; `Content-Type` is
    /// `application/json` otherwise.
    ///
    /// # Errors
    ///
    /// If name or value cannot be in a header.
    pub fn header(mut self, name: &str, value: &str) -> Result<Self, InvalidSink> {
        let invalid = || InvalidSink::Header(name.to_owned());
        let name = HeaderName::from_bytes(name.as_bytes()).map_err(|_| invalid())?;
        let mut value = HeaderValue::from_str(value).map_err(|_| invalid())?;
        value.set_sensitive(true);
        self.headers.insert(name, value);
        Ok(self)
    }

    /// Maximum number of concurrent requests, instead of 32.
    #[must_use]
    pub const fn with_concurrency(mut self, requests: usize) -> Self {
        self.concurrency = requests;
        self
    }

    fn url(&self, topic: &str) -> String {
        let is_plain = |byte: u8| byte.is_ascii_alphanumeric() || b"-._~".contains(&byte);
        let mut encoded = String::with_capacity(topic.len());
        for byte in topic.bytes() {
            if is_plain(byte) {
                encoded.push(char::from(byte));
            } else {
                encoded.push_str(&format!("%{byte:02X}"));
            }
        }
        self.url.replace("{topic}", &encoded)
    }

    /// `v1,` and the base64 of the HMAC over id, time and payload.
    fn signature(secret: &[u8], id: &str, time: i64, payload: &[u8]) -> Option<String> {
        let mut mac = Hmac::<Sha256>::new_from_slice(secret).ok()?;
        mac.update(format!("{id}.{time}.").as_bytes());
        mac.update(payload);
        Some(format!("v1,{}", BASE64.encode(&mac.finalize().into_bytes())))
    }
}

#[async_trait]
impl Sink for HttpSink {
    async fn deliver(&self, message: &OutboxMessage) -> Delivery {
        let (id, time) = (message.id.to_string(), jiff::Timestamp::now().as_second());
        let mut request = self
            .client
            .post(self.url(&message.topic))
            .headers(self.headers.clone())
            .header("idempotency-key", &id)
            .header("webhook-id", &id)
            .header("webhook-timestamp", time);
        if let Some(secret) = &self.secret {
            let signature = Self::signature(secret, &id, time, &message.payload);
            request = request.header("webhook-signature", signature.unwrap_or_default());
        }
        let response = match request.body(message.payload.clone()).send().await {
            Ok(response) => response,
            Err(error) => {
                let reason = error_chain(&error.without_url());
                return Delivery::Unavailable { reason, after: None };
            }
        };
        let status = response.status();
        let headers = response.headers().clone();
        let header = |name: &str| headers.get(name).and_then(|value| value.to_str().ok());
        let now = u64::try_from(time).unwrap_or(0);
        let after = ResponseSignals::read(status.as_u16(), header, now).retry_after;
        let body = read_body(response).await;
        let quoted = body.get(..REASON_BYTES_MAX).unwrap_or(&body);
        let reason = format!("{status}: {}", String::from_utf8_lossy(quoted).escape_debug());
        match status {
            _ if status.is_success() => Delivery::Delivered,
            StatusCode::GONE | StatusCode::LOCKED => Delivery::Refused { reason },
            StatusCode::TOO_MANY_REQUESTS | StatusCode::SERVICE_UNAVAILABLE => {
                Delivery::Unavailable { reason, after }
            }
            _ => Delivery::Failed { reason, after },
        }
    }

    fn concurrency(&self) -> usize {
        self.concurrency
    }
}

/// Reads a short body to its end, so that the connection can be used again. A longer one is cut,
/// and its connection is closed.
async fn read_body(mut response: Response) -> Vec<u8> {
    let mut body = Vec::new();
    while let Ok(Some(chunk)) = response.chunk().await {
        body.extend_from_slice(&chunk);
        if body.len() > BODY_BYTES_MAX {
            break;
        }
    }
    body
}

fn error_chain(error: &dyn std::error::Error) -> String {
    let mut text = error.to_string();
    let mut source = error.source();
    while let Some(error) = source {
        text = format!("{text}: {error}");
        source = error.source();
    }
    text
}

impl fmt::Debug for HttpSink {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("HttpSink").field("url", &self.url).finish_non_exhaustive()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_signature_is_that_of_the_specification() {
        // The example of the Standard Webhooks specification and its libraries.
        let secret = BASE64.decode(b"MfKQ9r8GKYqrTwjUPD8ILPZIo2LaLaSw").unwrap();
        let id = "msg_p5jXN8AQM9LWM0D4loKWxJek";
        let signed =
            HttpSink::signature(&secret, id, 1_614_265_330, br#"{"test": 2432232314}"#).unwrap();
        assert_eq!(signed, "v1,g0hM9SsE+OTPJTGt/tmIKtSyZlE3uFJELVlNIOLJ1OE=");
    }

    #[test]
    fn a_topic_cannot_leave_its_path_segment() {
        let sink = HttpSink::new("http://localhost/hooks/{topic}").unwrap();
        assert_eq!(sink.url("a/../b?c"), "http://localhost/hooks/a%2F..%2Fb%3Fc");
    }

    #[test]
    fn urls_and_secrets_of_another_form_are_refused() {
        assert!(matches!(HttpSink::new("ftp://host/"), Err(InvalidSink::Url(_))));
        assert!(matches!(HttpSink::new("host"), Err(InvalidSink::Url(_))));
        let sink = HttpSink::new("http://host/").unwrap();
        assert!(matches!(sink.secret("whsec_c2hvcnQ="), Err(InvalidSink::Secret)));
    }
}
