//! The frame of every page: navigation, search, and who is signed in.

use axum::{http::StatusCode, response::Response};
use maud::{Markup, html};

use super::{document::respond, page_state::PageState, text, visitor::Visitor};

/// The pages of the navigation: path and title.
const PAGES: [(&str, &str); 5] = [
    ("./", "Now"),
    ("records", "Records"),
    ("held", "Held"),
    ("routes", "Routes"),
    ("store", "Store"),
];

/// The form that ends a session.
pub(super) const SIGN_OUT_FORM: &str = "sign-out";

/// A page: its title, and its path in the navigation or "".
pub(super) fn page(
    state: &PageState,
    visitor: &Visitor,
    (title, path): (&str, &str),
    content: &Markup,
) -> Response {
    let held: u64 = state.metrics.held_records().0.iter().map(|(_, _, count)| count).sum();
    let header = html! {
        header {
            a.brand href="./" { "Semel" }
            nav aria-label="Pages" {
                @for (href, name) in PAGES {
                    a href=(href) aria-current=[(href == path).then_some("page")] {
                        (name)
                        @if href == "held" && held > 0 {
                            " " span.badge { (text::count(held)) }
                        }
                    }
                }
            }
            form.find action="records" role="search" {
                label.hidden for="find" { "Find a key" }
                input #find type="search" name="key" placeholder="Find a key  ( / )"
                    autocomplete="off" spellcheck="false" maxlength="1024";
                button { "Find" }
            }
            (session(state, visitor))
        }
    };
    let content = html! {
        (header)
        main #main tabindex="-1" { (content) }
    };
    respond(StatusCode::OK, title, &content)
}

/// Who is signed in, and the way out.
fn session(state: &PageState, visitor: &Visitor) -> Markup {
    let role = if visitor.is_operator() { "operator" } else { "viewer" };
    html! {
        div.session {
            @if visitor.is_signed_in() {
                span { (text::safe(&visitor.name)) " (" (role) ")" }
                @if visitor.has_session {
                    form method="post" action="sign-out" {
                        input type="hidden" name="form"
                            value=(visitor.form_token(state, SIGN_OUT_FORM));
                        button.plain { "Sign out" }
                    }
                }
            } @else {
                span { "Read-only" }
                @if state.tokens.can_change() { a href="sign-in" { "Sign in" } }
            }
        }
    }
}
