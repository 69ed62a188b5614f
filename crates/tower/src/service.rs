//! The service that guards another one.

use std::{
    future::ready,
    mem,
    sync::Arc,
    task::{Context, Poll},
};

use bytes::Bytes;
use http::{HeaderMap, Method, Request, Response, Version};
use semel::{EventKind, Lease};
use tower_service::Service;

use crate::{
    BoxError, IssuedKeys, LookupPath, ResponseCors,
    body::Body,
    config::LayerConfig,
    future::ResponseFuture,
    grpc::is_grpc_request,
    guard::RequestGuard,
    header::{IDEMPOTENCY_ATTEMPT, IDEMPOTENCY_FENCE},
    key::{KeyLookup, KeyRequirement},
    key_issuer, lookup, observe, preflighted_method,
    refusal::RequestRefusal,
};

/// Runs each operation once and answers every repeat with its first answer.
///
/// Built by an [`IdempotencyLayer`](crate::IdempotencyLayer); the [crate](crate) documentation
/// describes it.
#[derive(Clone, Debug)]
pub struct Idempotency<S> {
    inner: S,
    config: Arc<LayerConfig>,
}

impl<S> Idempotency<S> {
    pub(crate) const fn new(inner: S, config: Arc<LayerConfig>) -> Self {
        Self { inner, config }
    }

    /// The rule for pages of other origins, if this layer has one, for the response to a request
    /// with these headers. For a failure of the service, whose error the layer passes on.
    pub fn response_cors(&self, headers: &HeaderMap) -> Option<Box<ResponseCors>> {
        self.config.response_cors(headers)
    }

    /// Whether a request [looks an operation up](crate::IdempotencyLayer::lookup) or asks for a
    /// [key](crate::IdempotencyLayer::issued_keys).
    #[must_use]
    pub fn answers_path(&self, method: &Method, path: &str) -> bool {
        self.lookup_path(method, path).is_some() || self.key_issuer(method, path).is_some()
    }

    /// Whether the layer answers a request without the service: a preflight, where it has a rule
    /// for pages of other origins, a look-up, or a request for a key.
    pub fn answers<B>(&self, request: &Request<B>) -> bool {
        let (method, headers) = (request.method(), request.headers());
        let is_preflight = || preflighted_method(method, headers).is_some();
        (self.config.cors().is_some() && is_preflight())
            || self.answers_path(method, request.uri().path())
    }

    /// The path of look-ups, if the request is one. An observing layer has none.
    fn lookup_path(&self, method: &Method, path: &str) -> Option<&LookupPath> {
        let lookup = self.config.lookup.as_ref().filter(|_| !self.config.observes());
        lookup.filter(|lookup| lookup.takes(method, path))
    }

    /// The issuer of keys, if a request asks for one.
    fn key_issuer(&self, method: &Method, path: &str) -> Option<&Arc<IssuedKeys>> {
        let keys = self.config.issued_keys.as_ref()?;
        (*method == Method::POST && keys.is_path(path)).then_some(keys)
    }

    /// The guarded service, mutable.
    pub const fn get_mut(&mut self) -> &mut S {
        &mut self.inner
    }
}

impl<S, ReqB, ResB> Service<Request<ReqB>> for Idempotency<S>
where
    S: Service<Request<Body<ReqB>>, Response = Response<ResB>> + Clone + Send + 'static,
    S::Future: Send + 'static,
    S::Error: Into<BoxError> + Send + 'static,
    ReqB: http_body::Body<Data = Bytes> + Send + 'static,
    ReqB::Error: Into<BoxError>,
    ResB: http_body::Body<Data = Bytes> + Send + 'static,
    ResB::Error: Into<BoxError>,
{
    type Response = Response<Body<ResB>>;
    type Error = S::Error;
    type Future = ResponseFuture<S::Future, ResB, S::Error>;

    fn poll_ready(&mut self, context: &mut Context<'_>) -> Poll<Result<(), S::Error>> {
        self.inner.poll_ready(context)
    }

    fn call(&mut self, request: Request<ReqB>) -> Self::Future {
        if let Some(response) = self.config.preflight(request.method(), request.headers()) {
            return ResponseFuture::guarded(Box::pin(ready(Ok(response))));
        }
        let cors = self.response_cors(request.headers());
        self.handle(request).with_cors(cors)
    }
}

impl<S> Idempotency<S> {
    /// Handles a request that is no preflight.
    fn handle<ReqB, ResB>(
        &mut self,
        mut request: Request<ReqB>,
    ) -> ResponseFuture<S::Future, ResB, S::Error>
    where
        S: Service<Request<Body<ReqB>>, Response = Response<ResB>> + Clone + Send + 'static,
        S::Future: Send + 'static,
        S::Error: Into<BoxError> + Send + 'static,
        ReqB: http_body::Body<Data = Bytes> + Send + 'static,
        ReqB::Error: Into<BoxError>,
        ResB: http_body::Body<Data = Bytes> + Send + 'static,
        ResB::Error: Into<BoxError>,
    {
        let observe = self.config.observes();
        if !observe {
            strip_forged(request.headers_mut());
        }
        if let Some(path) = self.lookup_path(request.method(), request.uri().path()) {
            let (config, path) = (Arc::clone(&self.config), path.clone());
            let (parts, _) = request.into_parts();
            let answer = async move { Ok(lookup::respond(config, path, parts).await) };
            return ResponseFuture::guarded(Box::pin(answer));
        }
        if let Some(keys) = self.key_issuer(request.method(), request.uri().path()) {
            let (config, keys) = (Arc::clone(&self.config), Arc::clone(keys));
            let (parts, _) = request.into_parts();
            let answer = async move { Ok(key_issuer::respond(config, keys, parts).await) };
            return ResponseFuture::guarded(Box::pin(answer));
        }
        let version = request.version();
        let signature = self.config.signature.as_ref();
        // A request without any signature need not be read.
        let checked = signature.map_or(Ok(()), |it| it.check_head(request.headers()));
        if let Err(refusal) = checked {
            return self.refuse(version, request.headers(), &refusal);
        }
        let signed = signature.is_some();
        let lease = request.extensions().get::<Lease>();
        let has_outer_guard = lease.is_some();
        // The same layer already guards this request: it would wait for itself.
        let guarded = lease.is_some_and(|lease| lease.id().scope == self.config.scope);
        if guarded || !self.config.methods.contains(request.method()) {
            // A request that is not guarded here is still verified.
            if signed {
                let (parts, body) = request.into_parts();
                return ResponseFuture::guarded(Box::pin(self.guard().pass(parts, body)));
            }
            let future = self.inner.call(request.map(Body::passed));
            return ResponseFuture::pass_through(future, None, has_outer_guard || observe);
        }
        if observe {
            let (request, tee) = observe::observe_request(&self.config, request);
            let future = self.inner.call(request);
            return match tee {
                None => ResponseFuture::pass_through(future, None, true),
                Some(tee) => {
                    ResponseFuture::guarded(Box::pin(observe::observe_response(future, tee)))
                }
            };
        }
        let found = match self.config.key.find_in_headers(request.headers()) {
            Ok(KeyLookup::Nothing) if !signed => match self.config.key.requirement() {
                KeyRequirement::Required => {
                    let grpc = is_grpc_request(version, request.headers());
                    let missing = self.config.key.missing(grpc);
                    return self.refuse(version, request.headers(), &missing);
                }
                requirement @ (KeyRequirement::Optional | KeyRequirement::Warn) => {
                    let warn =
                        (requirement == KeyRequirement::Warn).then(|| Arc::clone(&self.config));
                    self.config.semel.report(&self.config.scope, EventKind::Keyless);
                    let future = self.inner.call(request.map(Body::passed));
                    return ResponseFuture::pass_through(future, warn, has_outer_guard);
                }
            },
            Ok(found) => found,
            Err(refusal) => return self.refuse(version, request.headers(), &refusal),
        };
        let (parts, body) = request.into_parts();
        ResponseFuture::guarded(Box::pin(self.guard().run(parts, body, found)))
    }
}

impl<S: Clone> Idempotency<S> {
    /// Only the service that was polled is ready; a clone may not be. So the polled one handles the
    /// request, and the clone replaces it.
    fn guard(&mut self) -> RequestGuard<S> {
        let clone = self.inner.clone();
        let inner = mem::replace(&mut self.inner, clone);
        RequestGuard { config: Arc::clone(&self.config), inner }
    }
}

impl<S> Idempotency<S> {
    fn refuse<F, B, E>(
        &self,
        version: Version,
        headers: &HeaderMap,
        refusal: &RequestRefusal,
    ) -> ResponseFuture<F, B, E>
    where
        B: Send + 'static,
        E: Send + 'static,
    {
        let responder = self.config.responder(version, headers);
        ResponseFuture::guarded(Box::pin(ready(Ok(self.config.refuse(responder, refusal)))))
    }
}

/// Headers that only a gateway may send to its upstream.
fn strip_forged(headers: &mut HeaderMap) {
    // One pass is cheaper than two lookups, and most requests have neither.
    if headers.keys().any(|name| *name == IDEMPOTENCY_FENCE || *name == IDEMPOTENCY_ATTEMPT) {
        headers.remove(IDEMPOTENCY_FENCE);
        headers.remove(IDEMPOTENCY_ATTEMPT);
    }
}
