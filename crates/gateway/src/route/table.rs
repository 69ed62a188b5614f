//! The routes of a configuration, built for one worker.

use std::{net::IpAddr, sync::Arc};

use anyhow::Context as _;
use bytes::Bytes;
use http::{
    HeaderMap, HeaderName, HeaderValue, Method, Request, Response, StatusCode, Uri, Version, header,
};
use http_body_util::{Either, Full};
use semel::core::{Dialect, Problem, RetryContext, Scope};
use semel_tower::{
    Body, BoxError, ClientContext, DeadlineRule, Idempotency, IdempotencyLayer, KeyLocation,
    KeyRule, ResponseCors, Signature, is_grpc_request, preflighted_method, refusal_in,
};
use tower_layer::Layer as _;
use tower_service::Service;
use tracing::Instrument as _;

use crate::body::pace::{BodyLimits, BodyPace, PaceRule};
use crate::body::{ClientBody, RequestBody};
use crate::connections::AwaitedBody;
use crate::error::ForwardError;
use crate::forward::Forward;
use crate::forward::response_body::GatewayBody;
use crate::headers;
use crate::peer::ClientPeer;
use crate::proxies::TrustedProxies;
use crate::reconcile::RouteHeldStatus;
use crate::route::caller_verifiers::{self, CallerVerifiers, callers};
use crate::route::context::GatewayContext;
use crate::route::pending_line::PendingLine;
use crate::route::request_trace::RequestTrace;
use crate::route::strict_routes::{SecondReading, StrictRoutes};
use crate::route::unmatched::Unmatched;
use crate::route::webhook_verifiers::WebhookVerifiers;
use crate::route::{bad_request, check};
use crate::upstream::pool_map::PoolMap;
use semel_config::{AboutSource, CallerRule, Config, Match, Mode, Required, normal_path};
use semel_telemetry::{
    log_throttle::LogThrottle,
    metrics::{Metrics, UnguardedReason},
};

/// The routes of a configuration.
#[derive(Debug)]
pub(crate) struct RouteTable {
    routes: Vec<RouteEntry>,
    /// Whether any route issues keys.
    issues_keys: bool,
    strict: StrictRoutes,
    /// Throttles the log line for requests refused for a second reading.
    second_readings: LogThrottle,
    fallback: Forward,
    unmatched: Unmatched,
    metrics: Arc<Metrics>,
    /// Throttles the log line for unguarded requests that failed.
    failures: Arc<LogThrottle>,
    body_limits: BodyLimits,
    headers_max: usize,
    proxies: TrustedProxies,
}

#[derive(Debug)]
struct RouteEntry {
    matches: Match,
    handler: RouteHandler,
}

#[derive(Debug)]
enum RouteHandler {
    Guarded {
        service: Idempotency<Forward>,
        keys: Vec<KeyLocation>,
        dialect: Dialect,
        /// The headers that the guard reads.
        read: Vec<HeaderName>,
        /// Whether the signature of every request is verified, which needs the whole body.
        signed: bool,
        scope: Scope,
        /// The methods that the route guards; others pass unguarded.
        methods: Vec<Method>,
        mode: Mode,
    },
    Unguarded(Forward),
}

impl RouteHandler {
    /// The headers that its guard reads.
    fn read(&self) -> &[HeaderName] {
        match self {
            Self::Guarded { read, .. } => read,
            Self::Unguarded(_) => &[],
        }
    }

    /// Whether a request looks an operation of the route up, or asks for a key of the route.
    fn answers_path(&self, method: &Method, path: &str) -> bool {
        match self {
            Self::Guarded { service, .. } => service.answers_path(method, path),
            Self::Unguarded(_) => false,
        }
    }
}

impl RouteTable {
    pub(crate) fn new(
        config: &Config,
        context: &GatewayContext,
        verifiers: &WebhookVerifiers,
        caller_verifiers: &CallerVerifiers,
        pools: &PoolMap,
    ) -> anyhow::Result<Self> {
        let trust = config.gateway.trust_forwarded;
        let upstream = config.gateway.upstream.as_ref().context("there is no upstream")?;
        let forward = |upstream: &Arc<semel_config::Upstream>, scope, read: &[HeaderName]| {
            let (pool, metrics) = (pools.get(upstream)?, Arc::clone(&context.metrics));
            anyhow::Ok(Forward::new(pool, metrics, scope, trust, read.to_vec()))
        };
        let route = |(index, route): (usize, &semel_config::Route)| -> anyhow::Result<RouteEntry> {
            let handler = match &route.guard {
                None => RouteHandler::Unguarded(forward(&route.upstream, None, &[])?),
                Some(guard) => {
                    let methods = route.matches.guarded_methods();
                    let signature = verifiers.for_route(index);
                    let signed = signature.map(Signature::headers).unwrap_or_default();
                    let read = [guard.read_headers(), signed].concat();
                    let scope = Some(guard.scope.clone());
                    let forward = forward(&route.upstream, scope, &read)?;
                    let mut layer = build_layer(guard, signature, context, caller_verifiers)?
                        .methods(methods.clone())
                        .read_on(route.upstream.timeout);
                    layer = layer.deadline(match &guard.deadline {
                        Some(deadline) => deadline.rule(route.upstream.timeout),
                        None => DeadlineRule::new([]).service_timeout(route.upstream.timeout),
                    });
                    if guard.about == AboutSource::Route {
                        layer = layer.about(&route.matches.to_string());
                    }
                    if route.upstream.sends_upstream_host {
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
                    RouteHandler::Guarded {
                        service,
                        keys,
                        dialect: guard.dialect.clone(),
                        read,
                        signed,
                        scope,
                        methods,
                        mode,
                    }
                }
            };
            Ok(RouteEntry { matches: route.matches.clone(), handler })
        };
        Ok(Self {
            routes: config.routes.iter().enumerate().map(route).collect::<anyhow::Result<_>>()?,
            issues_keys: config.routes.iter().any(semel_config::Route::issues_keys),
            strict: StrictRoutes::new(config, upstream),
            second_readings: LogThrottle::default(),
            fallback: forward(upstream, None, &[])?,
            unmatched: Unmatched::new(config, context),
            metrics: Arc::clone(&context.metrics),
            failures: Arc::new(LogThrottle::default()),
            body_limits: BodyLimits::new(&config.limits),
            headers_max: config.limits.headers,
            proxies: TrustedProxies::new(&config.gateway),
        })
    }

    /// Responds to a request. The synchronous part runs before this returns, so that the future
    /// does not hold the request.
    pub(crate) fn respond(
        &self,
        mut request: Request<ClientBody>,
        peer: &Arc<ClientPeer>,
    ) -> impl Future<Output = Response<GatewayBody>> + Send + use<> {
        let (client, address) = self.client(&mut request, peer);
        let trace = RequestTrace::start(&mut request);
        let kind = trace.span().in_scope(|| self.dispatch(request, peer, client, address));
        let span = trace.span().clone();
        let response = async move {
            match kind {
                ResponseKind::Refused(response) => trace.finish((*response).map(Either::Right)),
                ResponseKind::Guarded(future, failure, mut line) => {
                    let response = match future.await {
                        Ok(response) => trace.finish(response).map(Either::Left),
                        Err(error) => trace.finish(failure.response(&error)),
                    };
                    line.finish(&response);
                    response
                }
                ResponseKind::Unguarded(future, failure, unguarded) => match future.await {
                    Ok(response) => {
                        trace.finish(response).map(|body| Either::Left(Body::new(body)))
                    }
                    Err(error) => {
                        unguarded.log(&error);
                        trace.finish(failure.response(&error))
                    }
                },
            }
        };
        response.instrument(span)
    }

    /// Counts a malformed request.
    pub(crate) fn count_malformed(&self) {
        self.metrics.malformed();
    }

    /// The client that sent a request, with the shares of its address, and that address, be it
    /// behind a proxy. From a peer that is not trusted, the headers of a proxy are removed.
    fn client(
        &self,
        request: &mut Request<ClientBody>,
        peer: &ClientPeer,
    ) -> (ClientContext, IpAddr) {
        if self.proxies.excludes(peer.address) {
            headers::remove_forwarded(request.headers_mut());
        }
        let mut context = peer.context();
        let client = self.proxies.client(peer.address, request.headers());
        if let Some(client) = client {
            context.sender = context.sender.with_address(client);
            context.memory = Some(peer.memory.of_address(client));
        }
        (context, client.unwrap_or(peer.address))
    }

    fn dispatch(
        &self,
        request: Request<ClientBody>,
        peer: &Arc<ClientPeer>,
        client: ClientContext,
        address: IpAddr,
    ) -> ResponseKind {
        let allows_trace = *request.method() == Method::TRACE && self.allows_trace(&request);
        if let Err((status, detail)) = check::check(&request, self.headers_max, allows_trace) {
            return ResponseKind::Refused(Box::new(bad_request::response(status, detail)));
        }
        let handler = match self.find_route(&request) {
            Ok(handler) => handler,
            Err(reading) => {
                let response = bad_request::response(StatusCode::BAD_REQUEST, reading.detail());
                return ResponseKind::Refused(Box::new(response));
            }
        };
        let read = handler.map(RouteHandler::read).unwrap_or_default();
        if let Err(detail) = check::check_connection(request.headers(), read) {
            let response = bad_request::response(StatusCode::BAD_REQUEST, &detail);
            return ResponseKind::Refused(Box::new(response));
        }
        let forward = match handler {
            Some(RouteHandler::Guarded {
                service,
                keys,
                dialect,
                read: names,
                signed,
                scope,
                methods,
                mode,
            }) => {
                let is_answered = service.answers(&request);
                let is_guarded = !is_answered && methods.contains(request.method());
                if !is_guarded && !is_answered {
                    self.metrics.unguarded(UnguardedReason::Method);
                }
                let line = Box::new(PendingLine::new(&request, address, scope, keys));
                let guards = is_guarded && *mode == Mode::Guard;
                // A request that may have a key is read before it is handled.
                let may_have_key = || keys.iter().any(|key| key.may_be_in(request.headers()));
                let read = *signed || (guards && may_have_key());
                let mut failure = FailureResponse::of(&request, dialect.clone());
                failure.cors = service.response_cors(request.headers());
                let mut service = service.clone();
                let may_stall = may_stall(&request, service.get_mut());
                let mut request = self.with_pace(request, names, read, may_stall, peer);
                request.extensions_mut().insert(client);
                service.get_mut().set_peer(peer, request.body().frame_count());
                return ResponseKind::Guarded(service.call(request), failure, line);
            }
            Some(RouteHandler::Unguarded(forward)) => {
                self.metrics.unguarded(UnguardedReason::Route);
                forward
            }
            None => match self.unmatched.admit(&request) {
                Ok(()) => &self.fallback,
                Err(response) => return ResponseKind::Refused(response),
            },
        };
        let unguarded = UnguardedRequest::of(&request, &self.failures);
        let failure = FailureResponse::of(&request, Dialect::IETF);
        let may_stall = may_stall(&request, forward);
        let request = self.with_pace(request, &[], false, may_stall, peer);
        let mut forward = forward.clone();
        forward.set_peer(peer, request.body().frame_count());
        ResponseKind::Unguarded(forward.call(request.map(Body::new)), failure, unguarded)
    }

    /// Whether the route of a request names TRACE.
    fn allows_trace(&self, request: &Request<ClientBody>) -> bool {
        let route = self.matching_route(request).and_then(|number| self.routes.get(number));
        route.is_some_and(|route| route.matches.methods.contains(&Method::TRACE))
    }

    /// The route whose guard answers a request itself: a preflight of the request that it would
    /// take, a look-up, or a request for a key.
    fn find_answering(&self, request: &Request<ClientBody>) -> Option<&RouteHandler> {
        let preflighted = preflighted_method(request.method(), request.headers());
        let may_answer = match *request.method() {
            Method::GET => true,
            Method::POST => self.issues_keys,
            _ => preflighted.is_some(),
        };
        if !may_answer {
            return None;
        }
        let method = preflighted.as_ref().unwrap_or(request.method());
        let (host, path) = (host_of(request), request.uri().path());
        let answers_path = |route: &&RouteEntry| {
            route.matches.takes_host(host) && route.handler.answers_path(method, path)
        };
        let normal = normal_path(path);
        let taken = || self.routes.iter().find(|one| one.matches.takes(method, host, &normal));
        let route = self.routes.iter().find(answers_path).or_else(taken)?;
        let RouteHandler::Guarded { service, .. } = &route.handler else { return None };
        service.answers(request).then_some(&route.handler)
    }

    /// The route that matches a request, if any. Refuses a request that an upstream may read as one
    /// for a stricter route.
    fn find_route(
        &self,
        request: &Request<ClientBody>,
    ) -> Result<Option<&RouteHandler>, SecondReading> {
        if let Some(handler) = self.find_answering(request) {
            return Ok(Some(handler));
        }
        let (uri, host) = (request.uri(), host_of(request));
        let taken = self.matching_route(request);
        if let Some(reading) = self.strict.second_reading(request.method(), host, uri.path(), taken)
        {
            self.metrics.malformed();
            if let Some(unlogged) = self.second_readings.allow() {
                let (method, path) = (request.method().as_str(), uri.path());
                tracing::warn!(
                    method,
                    path,
                    host,
                    second_reading = ?reading,
                    unlogged,
                    "refused a request that may be read as one for a route with a signature or a \
                     required key"
                );
            }
            return Err(reading);
        }
        Ok(taken.and_then(|number| self.routes.get(number)).map(|route| &route.handler))
    }

    /// Index of the first route that matches a request as it is written.
    fn matching_route(&self, request: &Request<ClientBody>) -> Option<usize> {
        let (host, path) = (host_of(request), normal_path(request.uri().path()));
        self.routes.iter().position(|route| route.matches.takes(request.method(), host, &path))
    }

    /// Sets the limits of a body. A body that is read before the request is handled has a total
    /// timeout. A streamed body has an idle timeout, except over HTTP/2, where it blocks no other
    /// request; there it has a minimum rate, unless it is one side of a bidirectional stream.
    /// Trailers do not repeat the headers with these `names`.
    fn with_pace(
        &self,
        request: Request<ClientBody>,
        names: &[HeaderName],
        read: bool,
        may_stall: bool,
        peer: &ClientPeer,
    ) -> Request<RequestBody> {
        let by_http2 = request.version() == Version::HTTP_2;
        let rule = match (read, may_stall) {
            (true, _) => PaceRule::Buffered(AwaitedBody::new(Arc::clone(peer.connection()))),
            (false, true) => PaceRule::Unlimited,
            (false, false) if by_http2 => PaceRule::Paced,
            (false, false) => PaceRule::Streamed,
        };
        // Over HTTP/1.1 bodies come one at a time.
        let timer = (!by_http2).then(|| peer.timer.clone());
        let trailers = headers::passes_trailers(request.version(), request.headers());
        let pace = BodyPace::new(rule, self.body_limits, Arc::clone(peer.connection()), timer);
        request.map(|body| {
            let body = RequestBody::new(body, pace);
            if trailers { body.with_trailers(names.to_vec()) } else { body }
        })
    }
}

/// Whether a request is one side of a bidirectional stream, on which either side may be idle
/// without limit. It occupies no upstream connection: it is one of many streams there too.
fn may_stall(request: &Request<ClientBody>, forward: &Forward) -> bool {
    let (version, headers) = (request.version(), request.headers());
    let is_stream = is_grpc_request(version, headers)
        || (version == Version::HTTP_2 && is_connect_stream(headers));
    is_stream && forward.may_use_http2()
}

/// Whether a request is a stream of the Connect protocol, a variant of gRPC.
fn is_connect_stream(headers: &HeaderMap) -> bool {
    let kind = headers.get(header::CONTENT_TYPE).map(HeaderValue::as_bytes);
    kind.is_some_and(|kind| kind.starts_with(b"application/connect+"))
}

/// A response in progress.
enum ResponseKind {
    Refused(Box<Response<Full<Bytes>>>),
    Guarded(
        <Idempotency<Forward> as Service<Request<RequestBody>>>::Future,
        FailureResponse,
        Box<PendingLine>,
    ),
    Unguarded(
        <Forward as Service<Request<Body<RequestBody>>>>::Future,
        FailureResponse,
        UnguardedRequest,
    ),
}

/// Builds the response to an unguarded request that could not be forwarded. For a guarded one the
/// layer does that.
#[derive(Debug)]
struct FailureResponse {
    dialect: Dialect,
    grpc: bool,
    retry: RetryContext,
    /// The rule for pages of other origins, if the route has one.
    cors: Option<Box<ResponseCors>>,
}

impl FailureResponse {
    fn of<B>(request: &Request<B>, dialect: Dialect) -> Self {
        let grpc = is_grpc_request(request.version(), request.headers());
        let retry = RetryContext::unguarded(request.method().is_idempotent());
        Self { dialect, grpc, retry, cors: None }
    }

    fn response(self, error: &BoxError) -> Response<GatewayBody> {
        let problem = error.downcast_ref().map_or(Problem::UpstreamTimeout, ForwardError::problem);
        let mut response = refusal_in(&self.dialect, problem, self.grpc, self.retry);
        if let Some(cors) = self.cors {
            cors.apply(response.headers_mut());
        }
        response.map(Either::Left)
    }
}

/// Data of an unguarded request for the log line, if it fails.
struct UnguardedRequest {
    method: Method,
    uri: Uri,
    failures: Arc<LogThrottle>,
}

impl UnguardedRequest {
    fn of<B>(request: &Request<B>, failures: &Arc<LogThrottle>) -> Self {
        let (method, uri) = (request.method().clone(), request.uri().clone());
        Self { method, uri, failures: Arc::clone(failures) }
    }

    /// Throttled, because an unreachable upstream fails every request.
    fn log(&self, error: &BoxError) {
        if let Some(unlogged) = self.failures.allow() {
            let (method, path) = (self.method.as_str(), self.uri.path());
            tracing::warn!(method, path, %error, unlogged, "a request that is not guarded failed");
        }
    }
}

fn build_layer(
    guard: &semel_config::Guard,
    signature: Option<&Signature>,
    context: &GatewayContext,
    verifiers: &CallerVerifiers,
) -> anyhow::Result<IdempotencyLayer> {
    let callers = callers(guard, &context.secrets.current, verifiers)?;
    let key = KeyRule::any(guard.key.iter().cloned());
    let key = match guard.required {
        Required::No => key.optional(),
        Required::Warn => key.warn(),
        Required::Yes => key.required(),
    };
    let scope = guard.scope.clone();
    let mut layer = match signature.cloned() {
        Some(signature) => {
            IdempotencyLayer::inbox(&context.semel, scope, signature).callers(callers)
        }
        None => IdempotencyLayer::new(&context.semel, scope, callers),
    };
    layer = guard.fingerprint.iter().cloned().fold(layer, IdempotencyLayer::fingerprint);
    layer = layer
        .dialect(guard.dialect.clone())
        .key(key)
        .policy(guard.policy.clone())
        .keep_headers(guard.keep_headers.iter().cloned())
        .record(guard.record.clone())
        .record_outcome(true);
    for (name, source) in &guard.capture {
        layer = layer.capture(name, source.clone());
    }
    if let Some(cors) = &guard.cors {
        layer = layer.cors(cors.rule());
    }
    let limits = guard.velocity_rules();
    if !limits.is_empty() {
        layer = layer.velocity(limits, &context.secrets.current)?;
    }
    if let Some(path) = &guard.lookup {
        layer = layer.lookup(path.clone());
    }
    if let Some(keys) = &guard.issued_keys {
        let mut rule = keys.rule(&context.secrets.current);
        if let Some(former) = &context.secrets.former {
            rule = rule.former_secret(&former.secret, guard.records_until(former.since));
        }
        layer = layer.issued_keys(rule);
    }
    if let Some(rule) = &guard.reconcile {
        let (reads, every) = (Arc::clone(&context.held_reads), rule.plan.every);
        layer = layer.held_status(Arc::new(RouteHeldStatus { reads, every }));
    }
    if guard.keep_under_body_keys {
        layer = layer.keep_under_body_keys();
    }
    if guard.mode == Mode::Observe {
        layer = layer.observe();
    }
    if let Some(since) = guard.warned_since {
        layer = layer.warned_since(since);
    }
    for (scope, until) in &guard.former_scopes {
        layer = layer.formerly_until(scope.clone(), *until);
    }
    if let Some(former) = &context.secrets.former
        && guard.callers.iter().any(CallerRule::hashes)
    {
        let callers = caller_verifiers::callers(guard, &former.secret, verifiers)?;
        layer = match guard.records_until(former.since) {
            Some(until) => layer.former_callers_until(callers, until),
            None => layer.former_callers(callers),
        };
    }
    Ok(layer)
}

/// The host that a request names in its target or its header.
fn host_of<B>(request: &Request<B>) -> Option<&str> {
    let host = request.uri().authority().map(http::uri::Authority::as_str);
    host.or_else(|| request.headers().get(header::HOST)?.to_str().ok())
}
