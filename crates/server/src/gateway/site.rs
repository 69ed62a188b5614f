//! The routes of a configuration, ready to serve on one thread.

use std::{sync::Arc, time::Duration};

use anyhow::Context as _;
use bytes::Bytes;
use http::{HeaderMap, Method, Request, Response, StatusCode, Version, header};
use http_body_util::{Either, Full};
use hyper::body::Incoming;
use semel::core::Scope;
use semel_tower::{
    Body, Callers, Idempotency, IdempotencyLayer, KeyRule, Secret, Served,
    header::IDEMPOTENCY_OUTCOME, is_grpc, refusal,
};
use tokio::time::Instant;
use tower_layer::Layer as _;
use tower_service::Service as _;

use super::{
    House,
    body::{Inbound, Outbound},
    error::ForwardError,
    forward::Forward,
    peer::Peer,
    pools::Pools,
    refuse,
};
use crate::{
    config::{self, CallerRule, Config, KeySource, Match, Required, normal_path},
    ops::{log::RequestLine, metrics::Metrics},
};

/// The body of an answer: an upstream's or a record's, or our own.
pub(crate) type Answer = Either<Body<Outbound>, Full<Bytes>>;

/// The routes of a configuration.
#[derive(Debug)]
pub(crate) struct Site {
    routes: Vec<Route>,
    fallback: Forward,
    metrics: Arc<Metrics>,
    body_timeout: Duration,
}

#[derive(Debug)]
struct Route {
    matches: Match,
    way: Way,
}

#[derive(Debug)]
enum Way {
    Guarded { service: Idempotency<Forward>, keys: Vec<KeySource>, scope: Scope },
    Passing(Forward),
}

impl Site {
    pub(crate) fn new(config: &Config, house: &House, pools: &Pools) -> anyhow::Result<Self> {
        let trust = config.gateway.trust_forwarded;
        let forward = |upstream: &Arc<config::Upstream>, scope: Option<&Scope>| {
            let (pool, metrics) = (pools.get(upstream)?, Arc::clone(&house.metrics));
            anyhow::Ok(Forward::new(pool, metrics, scope.cloned(), trust))
        };
        let route = |route: &config::Route| -> anyhow::Result<Route> {
            let scope = route.guard.as_ref().map(|guard| &guard.scope);
            let forward = forward(&route.upstream, scope)?;
            let way = match &route.guard {
                None => Way::Passing(forward),
                Some(guard) => {
                    let docs = config.gateway.docs.as_deref();
                    let layer = layer(guard, &route.matches, house, docs)?;
                    let (service, keys) = (layer.layer(forward), guard.key.clone());
                    Way::Guarded { service, keys, scope: guard.scope.clone() }
                }
            };
            Ok(Route { matches: route.matches.clone(), way })
        };
        Ok(Self {
            routes: config.routes.iter().map(route).collect::<anyhow::Result<_>>()?,
            fallback: forward(&config.gateway.upstream, None)?,
            metrics: Arc::clone(&house.metrics),
            body_timeout: config.limits.body_timeout,
        })
    }

    /// Answers a request.
    pub(crate) async fn answer(
        &self,
        mut request: Request<Incoming>,
        peer: &Arc<Peer>,
    ) -> Response<Answer> {
        if let Err((status, detail)) = check(&request) {
            return refuse::wrong(status, detail).map(Either::Right);
        }
        request.extensions_mut().insert(Arc::clone(peer));
        match self.route(&request) {
            Some(Way::Guarded { service, keys, scope }) => {
                let read = has_key(keys, request.headers());
                let grpc = is_grpc(request.headers());
                let request = self.inbound(request, read);
                let (method, uri) = (request.method().clone(), request.uri().clone());
                let begun = Instant::now();
                let response = match service.clone().call(request).await {
                    Ok(response) => response.map(Either::Left),
                    Err(error) => failed(&error, grpc),
                };
                if let Some(served) = response.extensions().get::<Served>() {
                    let (status, took) = (response.status().as_u16(), begun.elapsed());
                    let (method, path) = (method.as_str(), uri.path());
                    RequestLine::of(method, path, scope.as_str(), served, status, took).log();
                } else {
                    self.metrics.unguarded();
                }
                response
            }
            Some(Way::Passing(forward)) => self.pass(forward, request).await,
            None => self.pass(&self.fallback, request).await,
        }
    }

    fn route(&self, request: &Request<Incoming>) -> Option<&Way> {
        let uri = request.uri();
        let host = uri.authority().map(http::uri::Authority::as_str);
        let host = host.or_else(|| request.headers().get(header::HOST)?.to_str().ok());
        let path = normal_path(uri.path());
        let takes = |route: &&Route| route.matches.takes(request.method(), host, &path);
        self.routes.iter().find(takes).map(|route| &route.way)
    }

    async fn pass(&self, forward: &Forward, request: Request<Incoming>) -> Response<Answer> {
        self.metrics.unguarded();
        let grpc = is_grpc(request.headers());
        let request = self.inbound(request, false).map(Body::new);
        match forward.clone().call(request).await {
            Ok(mut response) => {
                response.headers_mut().remove(IDEMPOTENCY_OUTCOME);
                response.map(|body| Either::Left(Body::new(body)))
            }
            Err(error) => {
                tracing::warn!(%error, "a request that is not guarded failed");
                failed(&error, grpc)
            }
        }
    }

    /// A body that is read before anything is done must come soon. One that streams must not stall,
    /// unless it comes by HTTP/2, where it holds up nobody and a call may be silent for long.
    fn inbound(&self, request: Request<Incoming>, read: bool) -> Request<Inbound> {
        let may_stall = request.version() == Version::HTTP_2;
        let max = self.body_timeout;
        request.map(|body| match read {
            true => Inbound::whole(body, max),
            false => Inbound::streamed(body, (!may_stall).then_some(max)),
        })
    }
}

fn failed(error: &ForwardError, grpc: bool) -> Response<Answer> {
    refusal(error.problem(), grpc).map(Either::Left)
}

/// Whether a request may have a key, and so is read as a whole.
fn has_key(keys: &[KeySource], headers: &HeaderMap) -> bool {
    keys.iter().any(|source| match source {
        KeySource::Header(name) => headers.contains_key(name),
        KeySource::Json(_) => true,
    })
}

/// What hyper lets pass, and no upstream should see.
fn check(request: &Request<Incoming>) -> Result<(), (StatusCode, &'static str)> {
    if request.method() == Method::CONNECT {
        let detail = "this is a gateway in front of an API, not a proxy to elsewhere";
        return Err((StatusCode::METHOD_NOT_ALLOWED, detail));
    }
    let hosts = request.headers().get_all(header::HOST).iter().count();
    if hosts > 1 {
        return Err((StatusCode::BAD_REQUEST, "the request names its host more than once"));
    }
    if hosts == 0 && request.version() == Version::HTTP_11 {
        return Err((StatusCode::BAD_REQUEST, "the request does not name its host"));
    }
    Ok(())
}

fn layer(
    guard: &config::Guard,
    matches: &Match,
    house: &House,
    docs: Option<&str>,
) -> anyhow::Result<IdempotencyLayer> {
    let callers = guard.callers.iter().map(|rule| callers(rule, &house.secret));
    let callers = callers.reduce(|all, next| Ok(all?.or(next?)));
    let callers = callers.context("a guarded route needs a rule for who its callers are")??;
    let keys = guard.key.iter().map(|source| match source {
        KeySource::Header(name) => KeyRule::header(name.clone()),
        KeySource::Json(pointer) => KeyRule::json(pointer.clone()),
    });
    let key = keys.reduce(KeyRule::or).unwrap_or_default();
    let key = match guard.required {
        Required::No => key.optional(),
        Required::Warn => key.warn(),
        Required::Yes => key.required(),
    };
    let mut layer = IdempotencyLayer::new(&house.semel, guard.scope.clone(), callers)
        .key(key)
        .policy(guard.policy.clone())
        .fingerprint(guard.fingerprint.clone())
        .keep_headers(guard.keep_headers.iter().cloned())
        .served();
    // A safe method has nothing to guard, not even on a route for all methods.
    let unsafe_methods = [Method::POST, Method::PATCH, Method::PUT, Method::DELETE];
    layer = match &matches.methods[..] {
        [] => layer.methods(unsafe_methods),
        methods => layer.methods(methods.iter().cloned()),
    };
    Ok(match docs {
        Some(url) => layer.docs(url),
        None => layer,
    })
}

fn callers(rule: &CallerRule, secret: &Secret) -> anyhow::Result<Callers> {
    Ok(match rule {
        CallerRule::Authorization => Callers::authorization(secret),
        CallerRule::Header(name) => Callers::header(name.clone())?,
        CallerRule::CredentialHeader(name) => Callers::credential_header(name.clone(), secret),
        CallerRule::Cookie(name) => Callers::cookie(name, secret),
        CallerRule::Anonymous => Callers::anonymous(),
    })
}
