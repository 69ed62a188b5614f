//! The future of a response.

use std::{
    fmt,
    future::Future,
    pin::Pin,
    sync::Arc,
    task::{Context, Poll, ready},
};

use http::{Response, header};
use pin_project_lite::pin_project;

use crate::{
    body::Body,
    config::LayerConfig,
    cors::ResponseCors,
    header::{DEPRECATION, IDEMPOTENCY_OUTCOME},
};

/// A guarded request, boxed: it awaits the body, the engine and the execution.
type GuardedFuture<B, E> = Pin<Box<dyn Future<Output = Result<Response<Body<B>>, E>> + Send>>;

pin_project! {
    /// The future of a response: the inner service's own for unguarded requests, so that the layer
    /// allocates nothing there.
    pub struct ResponseFuture<F, B, E> {
        #[pin]
        kind: FutureState<F, B, E>,
        // Boxed because few routes have it.
        cors: Option<Box<ResponseCors>>,
    }
}

pin_project! {
    #[project = KindProjection]
    enum FutureState<F, B, E> {
        Passed { #[pin] future: F, warn: Option<Arc<LayerConfig>>, enclosed: bool },
        GuardedFuture { future: GuardedFuture<B, E> },
    }
}

impl<F, B, E> ResponseFuture<F, B, E> {
    /// `enclosed` is whether an outer layer guards the request.
    pub(crate) const fn passed(future: F, warn: Option<Arc<LayerConfig>>, enclosed: bool) -> Self {
        Self { kind: FutureState::Passed { future, warn, enclosed }, cors: None }
    }

    pub(crate) fn guarded(future: GuardedFuture<B, E>) -> Self {
        Self { kind: FutureState::GuardedFuture { future }, cors: None }
    }

    /// Applies the rule for pages of other origins to the response.
    pub(crate) fn with_cors(self, cors: Option<Box<ResponseCors>>) -> Self {
        Self { cors, ..self }
    }
}

impl<F, B, E> Future for ResponseFuture<F, B, E>
where
    F: Future<Output = Result<Response<B>, E>>,
{
    type Output = Result<Response<Body<B>>, E>;

    fn poll(self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<Self::Output> {
        let this = self.project();
        let mut response = match this.kind.project() {
            KindProjection::Passed { future, warn, enclosed } => {
                let response = ready!(future.poll(context));
                response.map(|response| passed(response, warn.as_deref(), *enclosed))
            }
            KindProjection::GuardedFuture { future } => ready!(future.as_mut().poll(context)),
        };
        if let (Some(cors), Ok(response)) = (this.cors, &mut response) {
            cors.apply(response.headers_mut());
        }
        Poll::Ready(response)
    }
}

/// The answer to a request that was not guarded here; `warn` if it should have had a key. A
/// declared outcome is left for an outer layer, if there is one.
pub(crate) fn passed<B>(
    mut response: Response<B>,
    warn: Option<&LayerConfig>,
    enclosed: bool,
) -> Response<Body<B>> {
    let headers = response.headers_mut();
    if !enclosed {
        headers.remove(IDEMPOTENCY_OUTCOME);
    }
    if let Some(config) = warn {
        headers.entry(DEPRECATION).or_insert_with(|| config.since.clone());
        if let Some(docs) = &config.docs {
            headers.append(header::LINK, docs.deprecation.clone());
        }
    }
    response.map(Body::passed)
}

impl<F, B, E> fmt::Debug for ResponseFuture<F, B, E> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match &self.kind {
            FutureState::Passed { .. } => "ResponseFuture(passed)",
            FutureState::GuardedFuture { .. } => "ResponseFuture(guarded)",
        })
    }
}
