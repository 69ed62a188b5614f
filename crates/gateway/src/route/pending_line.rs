//! The log line of a request in progress: written when the response is ready, or when the client
//! disconnects before that.

use std::net::IpAddr;

use http::{HeaderName, HeaderValue, Method, Request, Response, Uri};
use semel::core::Scope;
use semel_tower::{KeyLocation, RequestOutcome};
use tokio::time::Instant;

use semel_telemetry::log::{RequestLine, RequestOrigin, trace_id_of};

const X_REQUEST_ID: HeaderName = HeaderName::from_static("x-request-id");
const TRACEPARENT: HeaderName = HeaderName::from_static("traceparent");

/// Data of a request for its log line.
#[derive(Debug)]
pub(crate) struct PendingLine {
    method: Method,
    uri: Uri,
    scope: Scope,
    /// As the client sent it.
    key: Option<HeaderValue>,
    client: IpAddr,
    request_id: Option<HeaderValue>,
    traceparent: Option<HeaderValue>,
    begun: Instant,
    finished: bool,
}

impl PendingLine {
    pub(crate) fn new<B>(
        request: &Request<B>,
        client: IpAddr,
        scope: &Scope,
        keys: &[KeyLocation],
    ) -> Self {
        let key = |source: &KeyLocation| match source {
            KeyLocation::Header(name) => request.headers().get(name).cloned(),
            KeyLocation::Json(_) | KeyLocation::CloudEvent => None,
        };
        Self {
            method: request.method().clone(),
            uri: request.uri().clone(),
            scope: scope.clone(),
            key: keys.iter().find_map(key),
            client,
            request_id: request.headers().get(X_REQUEST_ID).cloned(),
            traceparent: request.headers().get(TRACEPARENT).cloned(),
            begun: Instant::now(),
            finished: false,
        }
    }

    /// Writes the log line of a response. A request without a key has none.
    pub(crate) fn finish<B>(&mut self, response: &Response<B>) {
        self.finished = true;
        let Some(served) = response.extensions().get::<RequestOutcome>() else { return };
        let (method, path, took) = (self.method.as_str(), self.uri.path(), self.begun.elapsed());
        let status = response.status().as_u16();
        let scope = self.scope.as_str();
        let mut line = RequestLine::of(method, path, scope, served, status, took, self.origin());
        // A request that was refused before it had a record is found by the key that the client
        // sent.
        if let (None, Some(key)) = (&served.id, &self.key) {
            line.key = key.to_str().unwrap_or_default();
        }
        line.log();
    }

    fn origin(&self) -> RequestOrigin<'_> {
        RequestOrigin {
            client: Some(self.client),
            request_id: as_text(self.request_id.as_ref()),
            trace_id: as_text(self.traceparent.as_ref()).and_then(trace_id_of),
        }
    }
}

fn as_text(value: Option<&HeaderValue>) -> Option<&str> {
    value?.to_str().ok()
}

impl Drop for PendingLine {
    fn drop(&mut self) {
        let key = self.key.as_ref().filter(|_| !self.finished);
        let Some(key) = key.and_then(|key| key.to_str().ok()) else { return };
        let (method, path) = (self.method.as_str(), self.uri.path());
        let (scope, took) = (self.scope.as_str(), self.begun.elapsed());
        RequestLine::gone(method, path, scope, key, took, self.origin()).log();
    }
}
