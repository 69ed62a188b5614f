//! The routes of a configuration, ready to serve on one thread.

use std::{sync::Arc, time::Duration};

use anyhow::Context as _;
use bytes::Bytes;
use http::{HeaderMap, HeaderValue, Method, Request, Response, Uri, Version, header};
use http_body_util::{Either, Full};
use semel::core::{Problem, RetryContext, Scope};
use semel_tower::{
    Body, BoxError, Callers, Idempotency, IdempotencyLayer, KeyRule, Secret, Signature,
    header::IDEMPOTENCY_OUTCOME, is_grpc, refusal,
};
use tower_layer::Layer as _;
use tower_service::Service;

use super::{
    House,
    body::{Arriving, Inbound, Outbound},
    check,
    error::ForwardError,
    forward::Forward,
    peer::Peer,
    pools::Pools,
    refuse,
    unmatched::Unmatched,
    verify::Verifiers,
};
use crate::{
    config::{self, About, CallerRule, Config, KeySource, Match, Mode, Required, normal_path},
    ops::{
        log::PendingLine,
        metrics::{Metrics, Unguarded},
        seldom::Seldom,
    },
};

/// The body of an answer: an upstream's or a record's, or our own.
pub(crate) type Answer = Either<Body<Outbound>, Full<Bytes>>;

/// The routes of a configuration.
#[derive(Debug)]
pub(crate) struct Site {
    routes: Vec<Route>,
    fallback: Forward,
    unmatched: Unmatched,
    metrics: Arc<Metrics>,
    /// Speaks of requests that are not guarded and failed.
    failures: Arc<Seldom>,
    body_timeout: Duration,
    headers_max: usize,
}

#[derive(Debug)]
struct Route {
    matches: Match,
    way: Way,
}

#[derive(Debug)]
enum Way {
    Guarded {
        service: Idempotency<Forward>,
        keys: Vec<KeySource>,
        /// Whether every request is verified, and so read as a whole.
        signed: bool,
        scope: Scope,
        /// What the route guards; other methods pass.
        methods: Vec<Method>,
        mode: Mode,
    },
    Passing(Forward),
}

impl Site {
    pub(super) fn new(
        config: &Config,
        house: &House,
        verifiers: &Verifiers,
        pools: &Pools,
    ) -> anyhow::Result<Self> {
        let trust = config.gateway.trust_forwarded;
        let forward = |upstream: &Arc<config::Upstream>, guard: Option<&config::Guard>| {
            let (pool, metrics) = (pools.get(upstream)?, Arc::clone(&house.metrics));
            let scope = guard.map(|guard| guard.scope.clone());
            let keys = guard.map(config::Guard::key_headers).unwrap_or_default();
            anyhow::Ok(Forward::new(pool, metrics, scope, trust, keys))
        };
        let route = |(index, route): (usize, &config::Route)| -> anyhow::Result<Route> {
            let forward = forward(&route.upstream, route.guard.as_ref())?;
            let way = match &route.guard {
                None => Way::Passing(forward),
                Some(guard) => {
                    let methods = route.matches.guarded_methods();
                    let signature = verifiers.of(index);
                    let mut layer = layer(guard, signature, house)?
                        .methods(methods.clone())
                        .read_on(route.upstream.timeout);
                    if guard.about == About::Route {
                        layer = layer.about(&route.matches.to_string());
                    }
                    if route.upstream.own_host {
                        layer = layer.ignore_host();
                    }
                    if trust {
                        layer = layer.forwarded_host();
                    }
                    if let Some(url) = &config.gateway.docs {
                        layer = layer.docs(url);
                    }
                    let (service, keys) = (layer.layer(forward), guard.key.clone());
                    let (signed, scope, mode) =
                        (signature.is_some(), guard.scope.clone(), guard.mode);
                    Way::Guarded { service, keys, signed, scope, methods, mode }
                }
            };
            Ok(Route { matches: route.matches.clone(), way })
        };
        Ok(Self {
            routes: config.routes.iter().enumerate().map(route).collect::<anyhow::Result<_>>()?,
            fallback: forward(&config.gateway.upstream, None)?,
            unmatched: Unmatched::new(config, house),
            metrics: Arc::clone(&house.metrics),
            failures: Arc::new(Seldom::new()),
            body_timeout: config.limits.body_timeout,
            headers_max: config.limits.headers,
        })
    }

    /// Answers a request. What can be done at once is done before this returns, so that the
    /// request is not part of the future.
    pub(crate) fn answer(
        &self,
        request: Request<Arriving>,
        peer: &Arc<Peer>,
    ) -> impl Future<Output = Response<Answer>> + Send + use<> {
        let answering = self.begin(request, peer);
        async move {
            match answering {
                Answering::Refused(response) => (*response).map(Either::Right),
                Answering::Guarded(answer, failure, mut line) => {
                    let response = match answer.await {
                        Ok(response) => private(response).map(Either::Left),
                        Err(error) => failure.response(&error),
                    };
                    line.finish(&response);
                    response
                }
                Answering::Passing(answer, failure, passing) => match answer.await {
                    Ok(response) => private(response).map(|body| Either::Left(Body::new(body))),
                    Err(error) => {
                        passing.log(&error);
                        failure.response(&error)
                    }
                },
            }
        }
    }

    /// Counts a request that was refused before it was one.
    pub(crate) fn malformed(&self) {
        self.metrics.malformed();
    }

    fn begin(&self, request: Request<Arriving>, peer: &Arc<Peer>) -> Answering {
        if let Err((status, detail)) = check::check(&request, self.headers_max) {
            return Answering::Refused(Box::new(refuse::wrong(status, detail)));
        }
        let forward = match self.route(&request) {
            Some(Way::Guarded { service, keys, signed, scope, methods, mode }) => {
                if !methods.contains(request.method()) {
                    self.metrics.unguarded(Unguarded::Method);
                }
                let line = Box::new(PendingLine::new(&request, scope, keys));
                let guards = *mode == Mode::Guard;
                let read = *signed || (guards && has_key(keys, request.headers()));
                let failure = UnguardedFailure::of(&request);
                let request = self.inbound(request, read, peer);
                let mut service = service.clone();
                service.get_mut().expect(peer, request.body().progress());
                return Answering::Guarded(service.call(request), failure, line);
            }
            Some(Way::Passing(forward)) => {
                self.metrics.unguarded(Unguarded::Route);
                forward
            }
            None => {
                self.unmatched.count(&request);
                &self.fallback
            }
        };
        let passing = Passing {
            method: request.method().clone(),
            uri: request.uri().clone(),
            failures: Arc::clone(&self.failures),
        };
        let failure = UnguardedFailure::of(&request);
        let request = self.inbound(request, false, peer);
        let mut forward = forward.clone();
        forward.expect(peer, request.body().progress());
        Answering::Passing(forward.call(request.map(Body::new)), failure, passing)
    }

    fn route(&self, request: &Request<Arriving>) -> Option<&Way> {
        let uri = request.uri();
        let host = uri.authority().map(http::uri::Authority::as_str);
        let host = host.or_else(|| request.headers().get(header::HOST)?.to_str().ok());
        let path = normal_path(uri.path());
        let takes = |route: &&Route| route.matches.takes(request.method(), host, &path);
        self.routes.iter().find(takes).map(|route| &route.way)
    }

    /// A body that is read before anything is done must come soon. One that streams must not stall,
    /// unless it comes by HTTP/2, where it holds up nobody and a call may be silent for long.
    fn inbound(&self, request: Request<Arriving>, read: bool, peer: &Peer) -> Request<Inbound> {
        let version = request.version();
        let may_stall = version == Version::HTTP_2;
        let max = self.body_timeout;
        // There they come one at a time.
        let alarm = (version != Version::HTTP_2).then(|| peer.alarm.clone());
        request.map(|body| match read {
            true => Inbound::whole(body, max, alarm),
            false => Inbound::streamed(body, (!may_stall).then_some(max), alarm),
        })
    }
}

/// An answer that is awaited.
enum Answering {
    Refused(Box<Response<Full<Bytes>>>),
    Guarded(
        <Idempotency<Forward> as Service<Request<Inbound>>>::Future,
        UnguardedFailure,
        Box<PendingLine>,
    ),
    Passing(<Forward as Service<Request<Body<Inbound>>>>::Future, UnguardedFailure, Passing),
}

/// What is remembered of a request for the answer if it is not guarded and cannot be forwarded. A
/// guarded one is answered by its layer.
#[derive(Clone, Copy, Debug)]
struct UnguardedFailure {
    grpc: bool,
    retry: RetryContext,
}

impl UnguardedFailure {
    fn of<B>(request: &Request<B>) -> Self {
        let grpc = is_grpc(request.headers());
        Self { grpc, retry: RetryContext::unguarded(request.method().is_idempotent()) }
    }

    fn response(self, error: &BoxError) -> Response<Answer> {
        let problem = error.downcast_ref().map_or(Problem::UpstreamTimeout, ForwardError::problem);
        refusal(problem, self.grpc, self.retry).map(Either::Left)
    }
}

/// What is remembered of a request that is not guarded: for its line, if it fails.
struct Passing {
    method: Method,
    uri: Uri,
    failures: Arc<Seldom>,
}

impl Passing {
    /// An upstream that is away fails as many as come.
    fn log(&self, error: &BoxError) {
        if let Some(unlogged) = self.failures.say() {
            let (method, path) = (self.method.as_str(), self.uri.path());
            tracing::warn!(method, path, %error, unlogged, "a request that is not guarded failed");
        }
    }
}

/// What an upstream says to a layer around it is not for the client.
fn private<B>(mut response: Response<B>) -> Response<B> {
    response.headers_mut().remove(IDEMPOTENCY_OUTCOME);
    response
}

/// Whether a request may have a key, and so is read as a whole.
fn has_key(keys: &[KeySource], headers: &HeaderMap) -> bool {
    keys.iter().any(|source| match source {
        KeySource::Header(name) => headers.contains_key(name),
        KeySource::Json(_) => true,
        KeySource::CloudEvent => has_cloud_event(headers),
    })
}

/// Whether a request may be a CloudEvent, by its headers.
fn has_cloud_event(headers: &HeaderMap) -> bool {
    const TYPE: &[u8] = b"application/cloudevents";

    let is_event = |value: &HeaderValue| {
        let kind = value.as_bytes().trim_ascii_start().get(..TYPE.len());
        kind.is_some_and(|kind| kind.eq_ignore_ascii_case(TYPE))
    };
    ["ce-id", "ce-source"].iter().any(|name| headers.contains_key(*name))
        || headers.get_all(header::CONTENT_TYPE).iter().any(is_event)
}

fn layer(
    guard: &config::Guard,
    signature: Option<&Signature>,
    house: &House,
) -> anyhow::Result<IdempotencyLayer> {
    let callers = callers(guard, &house.secrets.current)?;
    let keys = guard.key.iter().map(|source| match source {
        KeySource::Header(name) => KeyRule::header(name.clone()),
        KeySource::Json(pointers) => KeyRule::json_members(pointers.iter().cloned()),
        KeySource::CloudEvent => KeyRule::cloud_event(),
    });
    let key = keys.reduce(KeyRule::or).unwrap_or_default();
    let key = match guard.required {
        Required::No => key.optional(),
        Required::Warn => key.warn(),
        Required::Yes => key.required(),
    };
    let scope = guard.scope.clone();
    let mut layer = match signature.cloned() {
        Some(signature) => IdempotencyLayer::inbox(&house.semel, scope, signature).callers(callers),
        None => IdempotencyLayer::new(&house.semel, scope, callers),
    };
    layer = guard.fingerprint.iter().cloned().fold(layer, IdempotencyLayer::fingerprint);
    layer = layer
        .key(key)
        .policy(guard.policy.clone())
        .keep_headers(guard.keep_headers.iter().cloned())
        .record(guard.record.clone())
        .served();
    for (name, source) in &guard.capture {
        layer = layer.capture(name, source.clone());
    }
    if guard.keep_under_body_keys {
        layer = layer.keep_under_body_keys();
    }
    if guard.mode == Mode::Observe {
        layer = layer.observe();
    }
    for (scope, until) in &guard.former_scopes {
        layer = layer.formerly_until(scope.clone(), *until);
    }
    if let Some(former) = &house.secrets.former
        && guard.callers.iter().any(CallerRule::hashes)
        && let Some(until) = former.since.checked_add(guard.policy.retention)
    {
        layer = layer.former_callers_until(self::callers(guard, &former.secret)?, until);
    }
    Ok(layer)
}

/// The rules of a route for who its callers are, with this secret.
fn callers(guard: &config::Guard, secret: &Secret) -> anyhow::Result<Callers> {
    let rules = guard.callers.iter().map(|rule| caller_rule(rule, secret));
    let callers = rules.reduce(|all, next| Ok(all?.or(next?)));
    callers.context("a guarded route needs a rule for who its callers are")?
}

fn caller_rule(rule: &CallerRule, secret: &Secret) -> anyhow::Result<Callers> {
    Ok(match rule {
        CallerRule::Authorization => Callers::authorization(secret),
        CallerRule::Header(name) => Callers::header(name.clone())?,
        CallerRule::CredentialHeader(name) => Callers::credential_header(name.clone(), secret),
        CallerRule::Cookie(name) => Callers::cookie(name, secret),
        CallerRule::Host => Callers::host(),
        CallerRule::Anonymous => Callers::anonymous(),
        CallerRule::All(parts) => {
            let (optional, required): (Vec<_>, Vec<_>) =
                parts.iter().partition(|part| part.optional);
            let required = required.iter().map(|part| caller_rule(&part.rule, secret));
            let all = required.reduce(|all, next| Ok(all?.and(next?)));
            let mut all = all.context("a caller needs a part that is not optional")??;
            for part in optional {
                all = all.and_optional(caller_rule(&part.rule, secret)?);
            }
            all
        }
    })
}
