//! The service that guards another.

use std::{
    future::ready,
    mem,
    sync::Arc,
    task::{Context, Poll},
};

use bytes::Bytes;
use http::{HeaderMap, Request, Response};
use semel::{EventKind, Lease};
use tower_service::Service;

use crate::{
    BoxError,
    body::Body,
    config::Config,
    future::ResponseFuture,
    grpc::is_grpc,
    guard::Guard,
    header::{IDEMPOTENCY_ATTEMPT, IDEMPOTENCY_FENCE},
    key::{Found, Need},
    observe,
    refusal::Refusal,
};

/// Runs each operation once and answers every repeat with its first answer.
///
/// Made by an [`IdempotencyLayer`](crate::IdempotencyLayer); see the [crate](crate) for what it
/// does.
#[derive(Clone, Debug)]
pub struct Idempotency<S> {
    inner: S,
    config: Arc<Config>,
}

impl<S> Idempotency<S> {
    pub(crate) const fn new(inner: S, config: Arc<Config>) -> Self {
        Self { inner, config }
    }

    /// The service that is guarded, to be changed.
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

    fn call(&mut self, mut request: Request<ReqB>) -> Self::Future {
        let observe = self.config.observes();
        if !observe {
            strip_forged(request.headers_mut());
        }
        let signature = self.config.signature.as_ref();
        // What is not signed at all need not be read.
        let checked = signature.map_or(Ok(()), |it| it.check_head(request.headers()));
        if let Err(refusal) = checked {
            return self.refuse(request.headers(), &refusal);
        }
        let signed = signature.is_some();
        let lease = request.extensions().get::<Lease>();
        let enclosed = lease.is_some();
        // The same layer is around this one already: it would wait for itself.
        let guarded = lease.is_some_and(|lease| lease.id().scope == self.config.scope);
        if guarded || !self.config.methods.contains(request.method()) {
            // Not guarded here is not trusted yet.
            if signed {
                let (parts, body) = request.into_parts();
                return ResponseFuture::guarded(Box::pin(self.guard().pass(parts, body)));
            }
            let future = self.inner.call(request.map(Body::passed));
            return ResponseFuture::passed(future, None, enclosed || observe);
        }
        if observe {
            let (request, witness) = observe::begin(&self.config, request);
            let future = self.inner.call(request);
            return match witness {
                None => ResponseFuture::passed(future, None, true),
                Some(witness) => ResponseFuture::guarded(Box::pin(observe::end(future, witness))),
            };
        }
        let found = match self.config.key.ask_headers(request.headers()) {
            Ok(Found::Nothing) if !signed => match self.config.key.need() {
                Need::Required => {
                    let missing = self.config.key.missing(is_grpc(request.headers()));
                    return self.refuse(request.headers(), &missing);
                }
                need @ (Need::Optional | Need::Warn) => {
                    let warn = (need == Need::Warn).then(|| Arc::clone(&self.config));
                    self.config.semel.report(&self.config.scope, EventKind::Keyless);
                    let future = self.inner.call(request.map(Body::passed));
                    return ResponseFuture::passed(future, warn, enclosed);
                }
            },
            Ok(found) => found,
            Err(refusal) => return self.refuse(request.headers(), &refusal),
        };
        let (parts, body) = request.into_parts();
        ResponseFuture::guarded(Box::pin(self.guard().run(parts, body, found)))
    }
}

impl<S: Clone> Idempotency<S> {
    /// Only the service that was polled is ready; a clone of it may not be. So that one goes with
    /// the request, and the clone takes its place.
    fn guard(&mut self) -> Guard<S> {
        let clone = self.inner.clone();
        let inner = mem::replace(&mut self.inner, clone);
        Guard { config: Arc::clone(&self.config), inner }
    }
}

impl<S> Idempotency<S> {
    fn refuse<F, B, E>(&self, headers: &HeaderMap, refusal: &Refusal) -> ResponseFuture<F, B, E>
    where
        B: Send + 'static,
        E: Send + 'static,
    {
        let voice = self.config.voice(headers);
        ResponseFuture::guarded(Box::pin(ready(Ok(self.config.refuse(voice, refusal)))))
    }
}

/// Only a gateway may say these, and to its upstream only.
fn strip_forged(headers: &mut HeaderMap) {
    headers.remove(IDEMPOTENCY_FENCE);
    headers.remove(IDEMPOTENCY_ATTEMPT);
}
