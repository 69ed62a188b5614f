//! Authentication of merchants, outside the idempotency layer.

use std::{collections::BTreeMap, sync::Arc};

use axum::{
    extract::{Request, State},
    http::{HeaderMap, StatusCode, header},
    middleware::Next,
    response::{IntoResponse, Response},
};
use semel::core::Caller;
use semel_tower::Callers;

/// The owner of a request's token. It stays the same when the token is renewed, which makes it a
/// good name for a caller.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Merchant(pub(super) String);

/// The merchants and their tokens.
#[derive(Clone, Debug)]
pub struct Merchants(Arc<BTreeMap<String, Merchant>>);

impl Merchants {
    /// From pairs of a token and a name.
    pub fn new<'a>(tokens: impl IntoIterator<Item = (&'a str, &'a str)>) -> Self {
        let named = |(token, name): (&str, &str)| (token.to_owned(), Merchant(name.to_owned()));
        Self(Arc::new(tokens.into_iter().map(named).collect()))
    }
}

/// Refuses a request without a known token. The refusal is never recorded: the right token may
/// follow.
pub(super) async fn authenticate(
    State(merchants): State<Merchants>,
    mut request: Request,
    next: Next,
) -> Response {
    match bearer(request.headers()).and_then(|token| merchants.0.get(token)) {
        Some(merchant) => {
            request.extensions_mut().insert(merchant.clone());
            next.run(request).await
        }
        None => (StatusCode::UNAUTHORIZED, [(header::WWW_AUTHENTICATE, "Bearer")]).into_response(),
    }
}

fn bearer(headers: &HeaderMap) -> Option<&str> {
    headers.get(header::AUTHORIZATION)?.to_str().ok()?.strip_prefix("Bearer ")
}

/// The caller is the merchant that was let in. Two merchants may choose the same key.
pub(super) fn callers() -> Callers {
    Callers::from_fn(|request| {
        let merchant = request.extensions.get::<Merchant>();
        merchant.map(|merchant| Caller::new(&merchant.0)).transpose()
    })
}
