//! Pages that say why something cannot be shown, or was not done.

use axum::{
    http::StatusCode,
    response::{IntoResponse, Response},
};
use maud::html;

use super::{document::respond, text};
use crate::{action_error::ActionError, api_error::ApiError};

/// Why a page cannot be shown, or an act was not done.
#[derive(Clone, Debug)]
pub(super) struct ErrorPage {
    status: u16,
    title: String,
    detail: String,
}

impl ErrorPage {
    pub(super) fn new(status: u16, title: &str, detail: &str) -> Self {
        Self { status, title: title.to_owned(), detail: detail.to_owned() }
    }

    /// A value of a query or a form that cannot be used.
    pub(super) fn malformed(detail: &str) -> Self {
        Self::new(400, "The request cannot be used", detail)
    }

    pub(super) fn cross_site() -> Self {
        let detail = "A page of another site sent this form. Nothing was changed.";
        Self::new(403, "The form was sent by another site", detail)
    }

    pub(super) fn operator_required(is_signed_in: bool) -> Self {
        let detail = match is_signed_in {
            true => "Your role is viewer. Ask for the role operator, or sign in with its token.",
            false => "Sign in with a token of the role operator.",
        };
        Self::new(403, "This needs the role operator", detail)
    }
}

impl From<ApiError> for ErrorPage {
    fn from(error: ApiError) -> Self {
        Self::new(error.status(), error.title(), error.detail())
    }
}

impl From<ActionError> for ErrorPage {
    fn from(error: ActionError) -> Self {
        ApiError::from(error).into()
    }
}

impl IntoResponse for ErrorPage {
    fn into_response(self) -> Response {
        let status = StatusCode::from_u16(self.status).unwrap_or(StatusCode::BAD_REQUEST);
        let content = html! {
            main #main.narrow tabindex="-1" {
                h1 { (self.title) }
                p { (text::safe(&self.detail)) }
                p { a href="./" { "To the dashboard" } }
            }
        };
        respond(status, &self.title, &content)
    }
}
