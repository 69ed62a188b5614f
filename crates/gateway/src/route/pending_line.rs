//! The log line of a request in progress: written when the response is ready, or when the client
//! disconnects before that.

use http::{HeaderValue, Method, Request, Response, Uri};
use semel::core::Scope;
use semel_tower::{KeyLocation, RequestOutcome};
use tokio::time::Instant;

use semel_telemetry::log::RequestLine;

/// Data of a request for its log line.
#[derive(Debug)]
pub(crate) struct PendingLine {
    method: Method,
    uri: Uri,
    scope: Scope,
    /// As the client sent it.
    key: Option<HeaderValue>,
    begun: Instant,
    finished: bool,
}

impl PendingLine {
    pub(crate) fn new<B>(request: &Request<B>, scope: &Scope, keys: &[KeyLocation]) -> Self {
        let key = |source: &KeyLocation| match source {
            KeyLocation::Header(name) => request.headers().get(name).cloned(),
            KeyLocation::Json(_) | KeyLocation::CloudEvent => None,
        };
        Self {
            method: request.method().clone(),
            uri: request.uri().clone(),
            scope: scope.clone(),
            key: keys.iter().find_map(key),
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
        let mut line = RequestLine::of(method, path, self.scope.as_str(), served, status, took);
        // A request that was refused before it had a record is found by the key that the client
        // sent.
        if let (None, Some(key)) = (&served.id, &self.key) {
            line.key = key.to_str().unwrap_or_default();
        }
        line.log();
    }
}

impl Drop for PendingLine {
    fn drop(&mut self) {
        let key = self.key.as_ref().filter(|_| !self.finished);
        let Some(key) = key.and_then(|key| key.to_str().ok()) else { return };
        let (method, path) = (self.method.as_str(), self.uri.path());
        RequestLine::gone(method, path, self.scope.as_str(), key, self.begun.elapsed()).log();
    }
}
