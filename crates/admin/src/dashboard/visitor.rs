//! Who asks for a page, and what the role allows.

use std::{net::SocketAddr, sync::Arc};

use axum::{
    extract::{Extension, FromRequestParts},
    http::{HeaderMap, header, request::Parts},
    response::{IntoResponse as _, Response},
};
use data_encoding::HEXLOWER;
use semel_config::ApiRole;

use super::{document::redirect, error_page::ErrorPage, page_state::PageState, text::encode};
use crate::{
    access::AccessCheck, api_error::ApiError, change::AUTHOR_BYTES_MAX, tokens::Permission,
};

/// The cookie of a session.
pub(super) const COOKIE: &str = "semel_session";

/// A user of the dashboard who may read records.
#[derive(Clone, Debug)]
pub(super) struct Visitor {
    /// The name of the user; empty if unknown.
    pub(super) name: String,
    /// What proved the role; `None` if reading needs no proof.
    proof: Option<String>,
    role: ApiRole,
    /// What the tokens of forms are bound to.
    subject: String,
    peer: SocketAddr,
    /// Whether there is a session that can be ended.
    pub(super) has_session: bool,
}

/// A visitor who may change records and read answers.
#[derive(Clone, Debug)]
pub(super) struct OperatorVisitor(pub(super) Visitor);

impl Visitor {
    /// The visitor who sent this request; `None` if pages need a sign-in that is missing.
    pub(super) fn identify(
        state: &PageState,
        headers: &HeaderMap,
        peer: SocketAddr,
    ) -> Option<Self> {
        let dashboard = state.dashboard();
        if let Some(trusted) = &dashboard.trusted_header
            && trusted.is_from(peer.ip())
        {
            let mut values = headers.get_all(&trusted.header).iter();
            let name = values.next().and_then(|value| value.to_str().ok()).map(str::trim);
            if let (Some(name), None) = (name.filter(|name| !name.is_empty()), values.next()) {
                let is_operator = trusted.is_operator(name);
                return Some(Self {
                    name: shorten(name).to_owned(),
                    proof: Some(trusted.header.to_string()),
                    role: if is_operator { ApiRole::Operator } else { ApiRole::Viewer },
                    subject: format!("header {name}"),
                    peer,
                    has_session: false,
                });
            }
        }
        if let Some((id, session)) = cookie(headers).and_then(|id| dashboard.sessions.find(id)) {
            return Some(Self {
                name: session.user,
                proof: Some(format!("token {}", session.token)),
                role: session.role,
                subject: format!("session {}", HEXLOWER.encode(&id)),
                peer,
                has_session: true,
            });
        }
        state.tokens.check(&HeaderMap::new(), Permission::Records).ok()?;
        let (name, subject) = (String::new(), "anyone".to_owned());
        Some(Self { name, proof: None, role: ApiRole::Viewer, subject, peer, has_session: false })
    }

    pub(super) fn is_operator(&self) -> bool {
        self.role == ApiRole::Operator
    }

    /// Whether the visitor has proved a role.
    pub(super) const fn is_signed_in(&self) -> bool {
        self.proof.is_some()
    }

    /// The author of an act, for the audit log: `said` is the name that the form has.
    pub(super) fn author(&self, said: &str) -> String {
        let said = shorten(said.trim());
        let name = match (&*self.name, said) {
            // The name in a trusted header is known, and cannot be replaced.
            (known, _) if !self.has_session && !known.is_empty() => known,
            ("", "") => "unnamed",
            (known, "") => known,
            (_, said) => said,
        };
        let proof = self.proof.as_deref().unwrap_or("no proof");
        format!("{name} (dashboard, by {proof}, from {})", self.peer.ip())
    }

    /// The token of a form.
    pub(super) fn form_token(&self, state: &PageState, form: &str) -> String {
        state.dashboard().form_key.token(&self.subject, form)
    }

    /// Checks the token of a submitted form.
    pub(super) fn check_form(
        &self,
        state: &PageState,
        form: &str,
        token: &str,
    ) -> Result<(), ErrorPage> {
        if state.dashboard().form_key.verify(&self.subject, form, token) {
            return Ok(());
        }
        Err(ErrorPage::new(
            403,
            "The form has expired",
            "Your session has ended, or the server was restarted. Nothing was changed: go back, \
             load the page again and repeat it.",
        ))
    }

    /// Whether this visitor made something that is bound to `subject`.
    pub(super) fn subject(&self) -> &str {
        &self.subject
    }
}

/// The value of the session cookie.
pub(super) fn cookie(headers: &HeaderMap) -> Option<&str> {
    let lines = headers.get_all(header::COOKIE).iter().filter_map(|line| line.to_str().ok());
    let mut pairs = lines.flat_map(|line| line.split(';')).filter_map(|pair| pair.split_once('='));
    pairs.find(|(name, _)| name.trim() == COOKIE).map(|(_, value)| value.trim())
}

/// Whether a browser says that a page of another origin caused this request. Session cookies are
/// not sent then, but a sign-in needs none.
pub(super) fn is_cross_site(headers: &HeaderMap) -> bool {
    let site = headers.get("sec-fetch-site").map(|value| value.as_bytes());
    site.is_some_and(|site| site != b"same-origin" && site != b"none")
}

fn shorten(name: &str) -> &str {
    name.get(..name.floor_char_boundary(AUTHOR_BYTES_MAX)).unwrap_or_default()
}

impl FromRequestParts<Arc<PageState>> for Visitor {
    type Rejection = Response;

    async fn from_request_parts(
        parts: &mut Parts,
        state: &Arc<PageState>,
    ) -> Result<Self, Self::Rejection> {
        if let Some(check) = parts.extensions.get::<AccessCheck>()
            && !check.shows_records()
        {
            return Err(ErrorPage::from(ApiError::token_required_for_remote()).into_response());
        }
        let Extension(peer) = Extension::<SocketAddr>::from_request_parts(parts, state)
            .await
            .map_err(|rejection| rejection.into_response())?;
        let visitor = Self::identify(state, &parts.headers, peer);
        if parts.method == http::Method::POST && is_cross_site(&parts.headers) {
            return Err(ErrorPage::cross_site().into_response());
        }
        visitor.ok_or_else(|| {
            let path = parts.uri.path().trim_start_matches('/');
            let query = parts.uri.query().map(|query| format!("?{query}")).unwrap_or_default();
            match parts.method == http::Method::GET {
                true => redirect(&format!("sign-in?next={}", encode(&format!("{path}{query}")))),
                false => redirect("sign-in"),
            }
        })
    }
}

impl FromRequestParts<Arc<PageState>> for OperatorVisitor {
    type Rejection = Response;

    async fn from_request_parts(
        parts: &mut Parts,
        state: &Arc<PageState>,
    ) -> Result<Self, Self::Rejection> {
        let visitor = Visitor::from_request_parts(parts, state).await?;
        if visitor.is_operator() {
            return Ok(Self(visitor));
        }
        state.record_auth_failure(visitor.peer, parts.uri.path());
        Err(ErrorPage::operator_required(visitor.is_signed_in()).into_response())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_session_cookie_is_found_among_others() {
        let mut headers = HeaderMap::new();
        assert_eq!(cookie(&headers), None);
        headers.append("cookie", "theme=dark; other_semel_session=no".parse().unwrap());
        assert_eq!(cookie(&headers), None);
        headers.append("cookie", "a=b;  semel_session=abc ;c".parse().unwrap());
        assert_eq!(cookie(&headers), Some("abc"));
    }

    #[test]
    fn requests_that_other_origins_cause_are_recognised() {
        let from = |site: &str| {
            let mut headers = HeaderMap::new();
            headers.insert("sec-fetch-site", site.parse().unwrap());
            is_cross_site(&headers)
        };
        assert!(from("cross-site") && from("same-site"));
        assert!(!from("same-origin") && !from("none") && !is_cross_site(&HeaderMap::new()));
    }
}
