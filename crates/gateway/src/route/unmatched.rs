//! Passes or refuses requests that match no route. One that carries a key was probably meant to be
//! guarded.

use std::sync::Arc;

use bytes::Bytes;
use http::{HeaderName, Request, Response, StatusCode, header};
use http_body_util::Full;
use semel_tower::header::IDEMPOTENCY_KEY;

use crate::route::bad_request;
use crate::route::context::GatewayContext;
use semel_config::{Config, Guard, OnUnmatched};
use semel_telemetry::{
    log_throttle::LogThrottle,
    metrics::{Metrics, UnguardedReason},
};

/// Headers that proxies and libraries add to every request. A route may use one as its key, but
/// here it does not mean that a guard was expected.
const ON_EVERY_REQUEST: [&str; 4] =
    ["x-request-id", "request-id", "x-correlation-id", "correlation-id"];

/// Refuses requests that match no route, or counts them and logs those that carry a key.
#[derive(Debug)]
pub(crate) struct Unmatched {
    /// The headers that may hold a key.
    key_headers: Vec<HeaderName>,
    policy: OnUnmatched,
    metrics: Arc<Metrics>,
    log: Arc<LogThrottle>,
}

impl Unmatched {
    pub(crate) fn new(config: &Config, context: &GatewayContext) -> Self {
        let (metrics, log) = (Arc::clone(&context.metrics), Arc::clone(&context.unmatched));
        Self { key_headers: key_headers(config), policy: config.gateway.unmatched, metrics, log }
    }

    /// Whether a request may pass; otherwise the response.
    pub(crate) fn admit<B>(&self, request: &Request<B>) -> Result<(), Box<Response<Full<Bytes>>>> {
        match self.policy {
            OnUnmatched::Pass => {
                self.count(request);
                Ok(())
            }
            OnUnmatched::Refuse => {
                self.metrics.unmatched_refused();
                let detail = "No route of this gateway matches the request.";
                let mut response = bad_request::response(StatusCode::NOT_FOUND, detail);
                // The request is valid, so the connection can be kept.
                response.headers_mut().remove(header::CONNECTION);
                Err(Box::new(response))
            }
        }
    }

    fn count<B>(&self, request: &Request<B>) {
        let has_key = || self.key_headers.iter().any(|name| request.headers().contains_key(name));
        if request.method().is_safe() || !has_key() {
            return self.metrics.unguarded(UnguardedReason::Unmatched);
        }
        self.metrics.unguarded(UnguardedReason::UnmatchedKeyed);
        if let Some(unlogged) = self.log.allow() {
            let (method, path) = (request.method().as_str(), request.uri().path());
            tracing::warn!(
                method,
                path,
                unlogged,
                "a request carries an idempotency key and matches no route, so it is not guarded"
            );
        }
    }
}

/// The headers from which the routes take keys.
fn key_headers(config: &Config) -> Vec<HeaderName> {
    let mut names = vec![IDEMPOTENCY_KEY, HeaderName::from_static("x-idempotency-key")];
    let guards = config.routes.iter().filter_map(|route| route.guard.as_ref());
    for name in guards.flat_map(Guard::key_headers) {
        if !ON_EVERY_REQUEST.contains(&name.as_str()) && !names.contains(&name) {
            names.push(name);
        }
    }
    names
}
