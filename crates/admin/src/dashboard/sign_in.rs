//! Signing in with a token of the API, and out.

use std::{net::SocketAddr, sync::Arc};

use axum::{
    extract::{Extension, Form, Query, State},
    http::{HeaderMap, HeaderValue, StatusCode, header},
    response::{IntoResponse as _, Response},
};
use maud::{Markup, html};
use semel_config::ApiRole;
use serde::Deserialize;

use super::{
    document::{redirect, respond},
    error_page::ErrorPage,
    layout::SIGN_OUT_FORM,
    page_state::PageState,
    sessions::UserSession,
    visitor::{COOKIE, Visitor, cookie, is_cross_site},
};
use crate::{access::AccessCheck, change::AUTHOR_BYTES_MAX};

/// The pages that a sign-in may lead to.
const NEXT_PAGES: [&str; 8] =
    ["", "records", "record", "held", "resolve", "resolve-all", "routes", "store"];

#[derive(Debug, Default, Deserialize)]
#[serde(default)]
pub(super) struct SignInQuery {
    /// Where to go after the sign-in.
    next: String,
}

#[derive(Debug, Default, Deserialize)]
#[serde(default)]
pub(super) struct SignInForm {
    user: String,
    token: String,
    next: String,
}

#[derive(Debug, Default, Deserialize)]
#[serde(default)]
pub(super) struct SignOutForm {
    form: String,
}

pub(super) async fn page(
    State(state): State<Arc<PageState>>,
    Query(query): Query<SignInQuery>,
) -> Response {
    respond(StatusCode::OK, "Sign in", &content(&state, &query.next, "", None))
}

pub(super) async fn submit(
    State(state): State<Arc<PageState>>,
    Extension(peer): Extension<SocketAddr>,
    check: Option<Extension<AccessCheck>>,
    headers: HeaderMap,
    Form(form): Form<SignInForm>,
) -> Response {
    if is_cross_site(&headers) {
        return ErrorPage::cross_site().into_response();
    }
    let dashboard = state.dashboard();
    let SignInForm { user, token, next } = &form;
    let refuse =
        |status, why: &str| respond(status, "Sign in", &content(&state, next, user, Some(why)));
    if check.is_some_and(|Extension(check)| !check.shows_records()) {
        let error = crate::api_error::ApiError::token_required_for_remote();
        return ErrorPage::from(error).into_response();
    }
    // A valid token is never refused: it cannot be guessed, and behind a proxy all users have one
    // address.
    let Some(credential) = state.tokens.find(token.trim()) else {
        if let Some(wait) = dashboard.sign_in_throttle.wait(peer.ip()) {
            let seconds = wait.as_secs().saturating_add(1);
            let why = format!("Too many failed sign-ins. Try again in {seconds} seconds.");
            let mut response = refuse(StatusCode::TOO_MANY_REQUESTS, &why);
            response.headers_mut().insert(header::RETRY_AFTER, seconds.into());
            return response;
        }
        dashboard.sign_in_throttle.record_failure(peer.ip());
        state.record_auth_failure(peer, "/sign-in");
        return refuse(StatusCode::UNAUTHORIZED, "This is not a token of this server.");
    };
    if !matches!(credential.role, ApiRole::Viewer | ApiRole::Operator) {
        let why =
            "The role of this token does not allow the dashboard: it needs viewer or operator.";
        return refuse(StatusCode::FORBIDDEN, why);
    }
    let user = user.trim();
    let user = user.get(..user.floor_char_boundary(AUTHOR_BYTES_MAX)).unwrap_or_default();
    let session = UserSession {
        user: user.to_owned(),
        token: credential.name.clone(),
        role: credential.role,
    };
    let opened = dashboard.sessions.open(session).ok();
    let cookie = opened.and_then(|id| {
        let secure = if is_https(&headers) { "; Secure" } else { "" };
        let id = id.as_str();
        // Without `Path` the cookie is for the folder of this page, whatever prefix a proxy has.
        HeaderValue::from_str(&format!("{COOKIE}={id}; HttpOnly; SameSite=Strict{secure}")).ok()
    });
    let Some(cookie) = cookie else {
        return refuse(StatusCode::INTERNAL_SERVER_ERROR, "The system has no random numbers.");
    };
    let next = if is_page(next) { next } else { "" };
    let mut response = redirect(next);
    response.headers_mut().insert(header::SET_COOKIE, cookie);
    response
}

pub(super) async fn sign_out(
    State(state): State<Arc<PageState>>,
    visitor: Visitor,
    headers: HeaderMap,
    Form(form): Form<SignOutForm>,
) -> Result<Response, ErrorPage> {
    visitor.check_form(&state, SIGN_OUT_FORM, &form.form)?;
    if let Some(id) = cookie(&headers) {
        state.dashboard().sessions.close(id);
    }
    let mut response = redirect("sign-in");
    let expired = format!("{COOKIE}=; Max-Age=0; HttpOnly; SameSite=Strict");
    if let Ok(expired) = HeaderValue::from_str(&expired) {
        response.headers_mut().insert(header::SET_COOKIE, expired);
    }
    Ok(response)
}

/// Whether a browser reaches this listener through a proxy that speaks TLS. A wrong header would
/// only keep the cookie from the one who sent it.
fn is_https(headers: &HeaderMap) -> bool {
    headers.get("x-forwarded-proto").is_some_and(|scheme| scheme.as_bytes() == b"https")
}

/// Whether this is the relative path of a page, and so no address of another site.
fn is_page(next: &str) -> bool {
    let path = next.split('?').next().unwrap_or_default();
    NEXT_PAGES.contains(&path)
}

fn content(state: &PageState, next: &str, user: &str, wrong: Option<&str>) -> Markup {
    html! {
        main #main.narrow tabindex="-1" {
            h1 { "Sign in to Semel" }
            @if let Some(wrong) = wrong { p.wrong role="alert" { (wrong) } }
            @if state.tokens.has_dashboard_role() {
                form.stacked method="post" action="sign-in" {
                    input type="hidden" name="next" value=(next);
                    label for="user" { "Your name" }
                    input #user name="user" value=(user) autocomplete="username" maxlength="200"
                        aria-describedby="user-note";
                    p.note #user-note { "It is written to the audit log with what you change." }
                    label for="token" { "Token" }
                    input #token type="password" name="token" required
                        autocomplete="current-password" maxlength="4096"
                        aria-describedby="token-note";
                    p.note #token-note {
                        "A token of the role viewer or operator, from the section "
                        code { "[api]" } " of the configuration."
                    }
                    button { "Sign in" }
                }
            } @else {
                p {
                    "No token is configured. Add " code { "operator_token_env" } " or a "
                    code { "[[api.token]]" } " of the role viewer or operator to the configuration."
                }
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_sign_in_leads_to_pages_of_the_dashboard_only() {
        for good in ["", "?a=b", "records", "records?key=a%2F%2Fb", "record?scope=s&caller=&key=k"]
        {
            assert!(is_page(good), "{good}");
        }
        for bad in ["//evil.example", "https://evil.example", "/records", "records/..", "\\evil"] {
            assert!(!is_page(bad), "{bad}");
        }
    }
}
