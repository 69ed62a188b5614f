//! Requests that match no route. One that carries a key was meant to be guarded.

use std::{sync::Arc, time::Duration};

use http::{HeaderName, Request};
use semel_tower::header::IDEMPOTENCY_KEY;

use super::House;
use crate::{
    config::{Config, Guard},
    ops::{
        metrics::{Metrics, Unguarded},
        seldom::Seldom,
    },
};

/// How often a process names a request that carries a key and matches no route.
pub(super) const LOG_EVERY: Duration = Duration::from_secs(3600);

/// Headers that proxies and libraries add to every request, so that one says nothing here, though a
/// route may take its key from it.
const ON_EVERY_REQUEST: [&str; 4] =
    ["x-request-id", "request-id", "x-correlation-id", "correlation-id"];

/// Counts requests that match no route, and names one that carries a key now and then.
#[derive(Debug)]
pub(super) struct Unmatched {
    /// The headers that may hold a key.
    key_headers: Vec<HeaderName>,
    metrics: Arc<Metrics>,
    log: Arc<Seldom>,
}

impl Unmatched {
    pub(super) fn new(config: &Config, house: &House) -> Self {
        let (metrics, log) = (Arc::clone(&house.metrics), Arc::clone(&house.unmatched));
        Self { key_headers: key_headers(config), metrics, log }
    }

    pub(super) fn count<B>(&self, request: &Request<B>) {
        let has_key = || self.key_headers.iter().any(|name| request.headers().contains_key(name));
        if request.method().is_safe() || !has_key() {
            return self.metrics.unguarded(Unguarded::Unmatched);
        }
        self.metrics.unguarded(Unguarded::UnmatchedKeyed);
        if let Some(unlogged) = self.log.say() {
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

/// The headers in which the routes expect keys.
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
