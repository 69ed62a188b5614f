//! Cross-origin requests (CORS): answers preflights, and computes `Access-Control-*` for the origin
//! of each request.
//!
//! A recorded answer may be replayed to another origin than the first, so these headers are never
//! recorded: those of the service are removed before the answer is recorded, and every response
//! gets new ones on its way out, refusals included.

mod origin;

use std::{sync::Arc, time::Duration};

use http::{HeaderMap, HeaderName, HeaderValue, Method, Response, StatusCode, header};
use semel::core::Dialect;

pub use self::origin::{AllowedOrigin, AllowedOriginError};
use crate::{
    body::Body,
    buffered_body::BufferedBody,
    header::{
        IDEMPOTENCY_EXPIRES, IDEMPOTENCY_GUARDED, IDEMPOTENCY_PROBLEM, IDEMPOTENT_REPLAYED,
        RETRY_AFTER_MS, SHOULD_RETRY, STRIPE_SHOULD_RETRY,
    },
};

/// How long a browser may remember a preflight, unless the rule says otherwise.
const MAX_AGE_DEFAULT: Duration = Duration::from_secs(10 * 60);

/// The headers of this layer that a page may read.
const EXPOSED: [HeaderName; 11] = [
    IDEMPOTENT_REPLAYED,
    IDEMPOTENCY_PROBLEM,
    IDEMPOTENCY_GUARDED,
    IDEMPOTENCY_EXPIRES,
    header::RETRY_AFTER,
    RETRY_AFTER_MS,
    SHOULD_RETRY,
    STRIPE_SHOULD_RETRY,
    header::LINK,
    header::WWW_AUTHENTICATE,
    crate::header::DEPRECATION,
];

/// What pages of other origins may do on a route.
///
/// A preflight is answered here, before any other check. `Access-Control-*` headers of the service
/// are replaced on every response. A page can read the headers of this layer and the problem
/// documents.
///
/// ```
/// use semel_tower::Cors;
///
/// let shop = Cors::new(["https://shop.example".parse()?]);
/// # let _ = shop;
/// # Ok::<(), semel_tower::AllowedOriginError>(())
/// ```
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Cors {
    /// The allowed origins; `None` for all.
    origins: Option<Vec<AllowedOrigin>>,
    credentials: bool,
    headers: Vec<HeaderName>,
    exposed: HeaderValue,
    max_age: Duration,
}

impl Cors {
    /// Allows the pages of these origins.
    #[must_use]
    pub fn new(origins: impl IntoIterator<Item = AllowedOrigin>) -> Self {
        Self::of(Some(origins.into_iter().collect()))
    }

    /// Allows the pages of every origin, without cookies and client certificates of the browser.
    #[must_use]
    pub fn any_origin() -> Self {
        Self::of(None)
    }

    /// Allows the pages of these origins, with the cookies and client certificates of the browser:
    /// **a page of one of them can act for each user who visits it.**
    #[must_use]
    pub fn with_credentials(origins: impl IntoIterator<Item = AllowedOrigin>) -> Self {
        Self { credentials: true, ..Self::new(origins) }
    }

    fn of(origins: Option<Vec<AllowedOrigin>>) -> Self {
        let (credentials, headers) = (false, Vec::new());
        Self { origins, credentials, headers, exposed: list(&EXPOSED), max_age: MAX_AGE_DEFAULT }
    }

    /// Request headers that a page may set besides `Content-Type`, `Authorization` and those that
    /// the layer reads for its key, its callers, its fingerprint and its deadlines.
    #[must_use]
    pub fn allow_headers(mut self, names: impl IntoIterator<Item = HeaderName>) -> Self {
        self.headers.extend(names);
        self
    }

    /// Headers of a response that a page may read besides those of the layer.
    #[must_use]
    pub fn expose_headers(mut self, names: impl IntoIterator<Item = HeaderName>) -> Self {
        let names: Vec<HeaderName> = EXPOSED.into_iter().chain(names).collect();
        self.exposed = list(&names);
        self
    }

    /// How long a browser may remember a preflight. By default 10 minutes.
    #[must_use]
    pub const fn max_age(mut self, time: Duration) -> Self {
        self.max_age = time;
        self
    }

    /// The answer to a preflight for a layer with these `methods`, which reads these headers. A
    /// preflight from an origin that is not allowed gets no permission.
    pub(crate) fn preflight<B>(
        &self,
        request: &HeaderMap,
        methods: &[Method],
        read: impl IntoIterator<Item = HeaderName>,
    ) -> Response<Body<B>> {
        let mut response = Response::new(Body::buffered(BufferedBody::default()));
        *response.status_mut() = StatusCode::NO_CONTENT;
        let headers = response.headers_mut();
        self.allow_origin(request.get(header::ORIGIN), headers);
        if !headers.contains_key(header::ACCESS_CONTROL_ALLOW_ORIGIN) {
            return response;
        }
        let mut allowed = vec![header::CONTENT_TYPE, header::AUTHORIZATION];
        for name in read.into_iter().chain(self.headers.iter().cloned()) {
            if !allowed.contains(&name) {
                allowed.push(name);
            }
        }
        let mut methods: Vec<&str> = methods.iter().map(Method::as_str).collect();
        for safe in ["GET", "HEAD"] {
            if !methods.contains(&safe) {
                methods.push(safe);
            }
        }
        headers.insert(header::ACCESS_CONTROL_ALLOW_METHODS, joined(&methods));
        headers.insert(header::ACCESS_CONTROL_ALLOW_HEADERS, list(&allowed));
        headers.insert(header::ACCESS_CONTROL_MAX_AGE, HeaderValue::from(self.max_age.as_secs()));
        response
    }

    /// Replaces the `Access-Control-*` headers of a response.
    fn apply(&self, origin: Option<&HeaderValue>, headers: &mut HeaderMap) {
        strip(headers);
        self.allow_origin(origin, headers);
        if headers.contains_key(header::ACCESS_CONTROL_ALLOW_ORIGIN) {
            headers.insert(header::ACCESS_CONTROL_EXPOSE_HEADERS, self.exposed.clone());
        }
    }

    /// Permits the origin of a request, if it may be.
    fn allow_origin(&self, origin: Option<&HeaderValue>, headers: &mut HeaderMap) {
        let Some(origins) = &self.origins else {
            let any = HeaderValue::from_static("*");
            headers.insert(header::ACCESS_CONTROL_ALLOW_ORIGIN, any);
            return;
        };
        // A cache must not give the response for one origin, or for none, to another.
        if !varies_by_origin(headers) {
            headers.append(header::VARY, HeaderValue::from_static("origin"));
        }
        let Some(origin) = origin.filter(|origin| origins.iter().any(|one| one == *origin)) else {
            return;
        };
        headers.insert(header::ACCESS_CONTROL_ALLOW_ORIGIN, origin.clone());
        if self.credentials {
            let allowed = HeaderValue::from_static("true");
            headers.insert(header::ACCESS_CONTROL_ALLOW_CREDENTIALS, allowed);
        }
    }
}

/// The rule for a request, to apply to its response.
#[derive(Clone, Debug)]
pub struct ResponseCors {
    cors: Arc<Cors>,
    origin: Option<HeaderValue>,
    /// The header in which the dialect says whether to retry.
    retry_header: Option<&'static str>,
}

impl ResponseCors {
    pub(crate) fn new(cors: &Arc<Cors>, dialect: &Dialect, request: &HeaderMap) -> Self {
        let origin = request.get(header::ORIGIN).cloned();
        Self { cors: Arc::clone(cors), origin, retry_header: dialect.retry_header() }
    }

    /// Replaces the `Access-Control-*` headers of the response. For responses that are made outside
    /// the layer; those of the layer have the headers.
    pub fn apply(&self, headers: &mut HeaderMap) {
        self.cors.apply(self.origin.as_ref(), headers);
        let exposed = headers.contains_key(header::ACCESS_CONTROL_EXPOSE_HEADERS);
        if let Some(name) = self.retry_header.filter(|_| exposed) {
            let name = HeaderValue::from_static(name);
            headers.append(header::ACCESS_CONTROL_EXPOSE_HEADERS, name);
        }
    }
}

/// The method that a preflight is about; `None` if the request is no preflight.
#[must_use]
pub fn preflighted_method(method: &Method, headers: &HeaderMap) -> Option<Method> {
    if *method != Method::OPTIONS || !headers.contains_key(header::ORIGIN) {
        return None;
    }
    let wanted = headers.get(header::ACCESS_CONTROL_REQUEST_METHOD)?;
    Method::from_bytes(wanted.as_bytes()).ok()
}

/// Removes the `Access-Control-*` headers of a response.
pub(crate) fn strip(headers: &mut HeaderMap) {
    let is_cors = |name: &&HeaderName| name.as_str().starts_with("access-control-");
    let names: Vec<HeaderName> = headers.keys().filter(is_cors).cloned().collect();
    for name in names {
        headers.remove(name);
    }
}

fn varies_by_origin(headers: &HeaderMap) -> bool {
    let lines = headers.get_all(header::VARY).iter().filter_map(|line| line.to_str().ok());
    let mut names = lines.flat_map(|line| line.split(',')).map(str::trim);
    names.any(|name| name == "*" || name.eq_ignore_ascii_case("origin"))
}

fn list(names: &[HeaderName]) -> HeaderValue {
    joined(&names.iter().map(HeaderName::as_str).collect::<Vec<_>>())
}

/// Names of headers and methods are valid in a header, so nothing is lost.
fn joined(names: &[&str]) -> HeaderValue {
    HeaderValue::try_from(names.join(", ")).unwrap_or_else(|_| HeaderValue::from_static(""))
}

#[cfg(test)]
mod tests;
