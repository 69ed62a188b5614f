//! The dashboard: pages for operators, rendered on the server.
//!
//! Every page works without JavaScript. The script adds live numbers, copying and the `/` shortcut.
//! All links are relative and all pages are on one level, so a proxy may serve them under any path
//! prefix that it strips.
//!
//! | file | what lives there |
//! |---|---|
//! | `visitor`, `sessions`, `sign_in` | who asks: sign-in by token or trusted header, form tokens |
//! | `document`, `error_page`, `layout`, `text`, `assets` | the frame of a page, formatting |
//! | `page_state`, `feed` | what the pages share |
//! | `live`, `history`, `chart`, `now` | the numbers of the last hour, and their page |
//! | `records`, `record`, `timeline` | the search, and one record |
//! | `held`, `resolve`, `resolve_all`, `previews` | held records, and how they are resolved |
//! | `routes`, `store_page`, `summary` | the policy in force, and the store |

mod assets;
mod chart;
mod document;
mod error_page;
mod feed;
mod held;
mod history;
mod layout;
mod live;
mod now;
mod page_state;
mod previews;
mod record;
mod records;
mod resolve;
mod resolve_all;
mod routes;
mod sessions;
mod sign_in;
mod store_page;
mod summary;
mod text;
mod timeline;
mod visitor;

use std::sync::Arc;

use axum::{
    Router,
    extract::DefaultBodyLimit,
    routing::{get, post},
};

pub(super) use self::{live::run as run_live_updates, page_state::PageState};
pub use self::{page_state::Dashboard, summary::ConfigSummary};

/// Maximum size of a form: an answer of 1 MiB fits, percent-encoded.
const FORM_BYTES_MAX: usize = 4 << 20;

/// The pages, their assets, and the live updates.
pub(super) fn pages(state: Arc<PageState>) -> Router {
    Router::new()
        .route("/", get(now::page))
        .route("/events", get(live::events))
        .route("/records", get(records::page))
        .route("/record", get(record::page))
        .route("/answer", post(record::answer))
        .route("/held", get(held::page))
        .route("/resolve", get(resolve::page).post(resolve::submit))
        .route("/resolve-all", get(resolve_all::page).post(resolve_all::submit))
        .route("/routes", get(routes::page))
        .route("/store", get(store_page::page))
        .route("/sign-in", get(sign_in::page).post(sign_in::submit))
        .route("/sign-out", post(sign_in::sign_out))
        .route("/dashboard.css", get(assets::style))
        .route("/dashboard.js", get(assets::script))
        .route("/icon.svg", get(assets::icon))
        .layer(DefaultBodyLimit::max(FORM_BYTES_MAX))
        .with_state(state)
}
