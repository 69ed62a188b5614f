//! The routes and what their policy means, in plain words.

use std::sync::Arc;

use axum::{extract::State, response::Response};
use maud::{Markup, html};
use semel_config::RouteDescription;

use super::{layout, page_state::PageState, text::safe, visitor::Visitor};

pub(super) async fn page(State(state): State<Arc<PageState>>, visitor: Visitor) -> Response {
    let config = state.dashboard().config.get();
    let content = html! {
        h1 { "Routes" }
        p { "The first route that matches a request applies. This is the configuration in force." }
        @if !config.notes.is_empty() {
            section.card {
                h2 { "Notes" }
                ul { @for note in &config.notes { li { (safe(note)) } } }
            }
        }
        @if config.routes.is_empty() { p { "There is no route: this server has no upstream." } }
        @for route in &config.routes { (card(route)) }
    };
    layout::page(&state, &visitor, ("Routes", "routes"), &content)
}

fn card(route: &RouteDescription) -> Markup {
    html! {
        section.card {
            h2 {
                span.mono { (safe(&route.matches)) } " "
                @match &route.scope {
                    None => span.state.released { "unguarded" },
                    Some(_) if route.is_observed => span.state.in_flight { "observed" },
                    Some(_) => span.state.completed { "guarded" },
                }
            }
            div.columns {
                dl.facts {
                    @for (name, value) in &route.facts { dt { (name) } dd { (safe(value)) } }
                }
                @if !route.effects.is_empty() {
                    dl.facts {
                        @for (answers, effect) in &route.effects {
                            dt { (answers) } dd { (safe(effect)) }
                        }
                    }
                }
            }
        }
    }
}
