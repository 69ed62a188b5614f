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
    header::{DEPRECATION, IDEMPOTENCY_OUTCOME, IDEMPOTENCY_TAG},
};

/// A guarded request, boxed: it awaits the body, the engine and the execution.
type GuardedFuture<B, E> = Pin<Box<dyn Future<Output = Result<Response<Body<B>>, E>> + Send>>;

pin_project! {
    /// The future of a response: the inner service's own for unguarded requests, so that the layer
    /// allocates nothing there.
    pub struct ResponseFuture<F, B, E> {
        #[pin]
        state: FutureState<F, B, E>,
        // Boxed because few routes have it.
        cors: Option<Box<ResponseCors>>,
    }
}

pin_project! {
    #[project = FutureStateProjection]
    enum FutureState<F, B, E> {
        PassedThrough {
            #[pin]
            future: F,
            missing_key_warning: Option<Arc<LayerConfig>>,
            has_outer_guard: bool,
        },
        Guarded { future: GuardedFuture<B, E> },
    }
}

impl<F, B, E> ResponseFuture<F, B, E> {
    /// `has_outer_guard` is whether an outer layer guards the request.
    pub(crate) const fn pass_through(
        future: F,
        missing_key_warning: Option<Arc<LayerConfig>>,
        has_outer_guard: bool,
    ) -> Self {
        Self {
            state: FutureState::PassedThrough { future, missing_key_warning, has_outer_guard },
            cors: None,
        }
    }

    pub(crate) fn guarded(future: GuardedFuture<B, E>) -> Self {
        Self { state: FutureState::Guarded { future }, cors: None }
    }

    /// Adds the CORS headers to the response.
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
        let mut response = match this.state.project() {
            FutureStateProjection::PassedThrough {
                future,
                missing_key_warning,
                has_outer_guard,
            } => {
                let response = ready!(future.poll(context));
                response.map(|response| {
                    pass_through(response, missing_key_warning.as_deref(), *has_outer_guard)
                })
            }
            FutureStateProjection::Guarded { future } => ready!(future.as_mut().poll(context)),
        };
        if let (Some(cors), Ok(response)) = (this.cors, &mut response) {
            cors.apply(response.headers_mut());
        }
        Poll::Ready(response)
    }
}

/// Converts the response to an unguarded request. With `missing_key_warning` it adds the
/// deprecation headers for a missing key. It keeps `Idempotency-Outcome` only for an outer layer.
pub(crate) fn pass_through<B>(
    mut response: Response<B>,
    missing_key_warning: Option<&LayerConfig>,
    has_outer_guard: bool,
) -> Response<Body<B>> {
    let headers = response.headers_mut();
    if !has_outer_guard {
        headers.remove(IDEMPOTENCY_OUTCOME);
        headers.remove(IDEMPOTENCY_TAG);
    }
    if let Some(config) = missing_key_warning {
        headers.entry(DEPRECATION).or_insert_with(|| config.since.clone());
        if let Some(docs) = &config.docs {
            headers.append(header::LINK, docs.deprecation.clone());
        }
    }
    response.map(Body::passed)
}

impl<F, B, E> fmt::Debug for ResponseFuture<F, B, E> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match &self.state {
            FutureState::PassedThrough { .. } => "ResponseFuture(passed)",
            FutureState::Guarded { .. } => "ResponseFuture(guarded)",
        })
    }
}
