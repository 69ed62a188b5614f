//! Held records: how old, why, about what; and the way to resolve them, one or all that match.

use std::sync::Arc;

use axum::{
    extract::{Query, State},
    response::{IntoResponse as _, Response},
};
use maud::{Markup, html};

use super::{
    error_page::ErrorPage,
    layout,
    page_state::PageState,
    records::{FilterForm, about, record_link},
    text::{self, age, count, counted, safe, time},
    visitor::Visitor,
};
use crate::{
    api_error::ApiError,
    filter,
    responses::{RecordPageView, RecordSummaryView},
};

/// Records per page.
const PAGE_SIZE: u32 = 50;

pub(super) async fn page(
    State(state): State<Arc<PageState>>,
    visitor: Visitor,
    Query(mut form): Query<FilterForm>,
) -> Response {
    form.state = "held".to_owned();
    let filter = match form.filter() {
        Ok(filter) => filter,
        Err(wrong) => return ErrorPage::malformed(&wrong).into_response(),
    };
    let found = filter::list(&**state.semel.store(), &filter, form.cursor(), PAGE_SIZE).await;
    let found = match found {
        Ok(found) => found,
        Err(error) => {
            let error = ApiError::from_store_error(&error);
            return ErrorPage::from(error).into_response();
        }
    };
    let content = html! {
        h1 { "Held records" }
        p {
            "It is unknown whether these operations took effect. Nothing runs under their keys "
            "until an operator says what happened. Find out first, where the operation is carried "
            "out."
        }
        (counts(&state))
        (fields(&form))
        (results(&visitor, &form, &found))
    };
    layout::page(&state, &visitor, ("Held", "held"), &content)
}

/// How many are held, by scope and reason; each is a filter.
fn counts(state: &PageState) -> Markup {
    let (held, is_complete) = state.metrics.held_records();
    html! {
        @if !held.is_empty() {
            section.card {
                h2 { "By scope and reason" }
                ul {
                    @for (scope, reason, number) in &held {
                        li {
                            a href=(filter_of(scope, reason).link("held", None)) {
                                (safe(scope)) ", " (reason)
                            }
                            ": " (counted(*number, "record"))
                        }
                    }
                }
                p.note {
                    "Counted in the store every 15 seconds"
                    @if !is_complete { "; there are more than were counted" }
                    "."
                }
            }
        }
    }
}

fn filter_of(scope: &str, reason: &str) -> FilterForm {
    let (scope, reason) = (scope.to_owned(), reason.to_owned());
    FilterForm { scope, reason, ..FilterForm::default() }
}

fn fields(form: &FilterForm) -> Markup {
    let fields = [
        ("scope", "Scope", &form.scope, "payments"),
        ("reason", "Reason begins with", &form.reason, "upstream answered 5"),
        ("since", "Claimed since", &form.since, "2h, or 2026-11-18T14:03:22Z"),
        ("until", "Claimed until", &form.until, "1h, or 2026-11-18T15:00:00Z"),
        ("caller", "Caller", &form.caller, "header:x-merchant-id:shop-7"),
    ];
    html! {
        form.card.filters action="held" {
            @for (name, label, value, hint) in fields {
                div {
                    label for={ "f-" (name) } { (label) }
                    input id={ "f-" (name) } name=(name) value=(value) placeholder=(hint)
                        autocomplete="off" spellcheck="false" maxlength="1024";
                }
            }
            div.end { button { "Filter" } }
        }
    }
}

fn results(visitor: &Visitor, form: &FilterForm, found: &RecordPageView) -> Markup {
    let next = found.next.as_deref().map(|next| form.link("held", Some(next)));
    let number = u64::try_from(found.records.len()).unwrap_or(u64::MAX);
    html! {
        section.card aria-label="Held records" {
            @if found.records.is_empty() && next.is_none() {
                p { "No record is held" @if !only_state(form) { " that matches" } "." }
            } @else {
                (table(visitor, &found.records))
                p.note {
                    (counted(number, "record")) " shown, " (count(found.examined)) " examined. "
                    @if let Some(next) = &next {
                        a.button.plain href=(next) rel="next" { "Continue" }
                    }
                }
                @if visitor.is_operator() {
                    p.buttons {
                        a.button href=(form.link("resolve-all", None)) {
                            "Resolve all that match…"
                        }
                    }
                } @else {
                    p.note { "Operators can resolve them." }
                }
            }
        }
    }
}

/// Whether the filter has nothing but the state.
fn only_state(form: &FilterForm) -> bool {
    FilterForm { state: String::new(), ..form.clone() }.is_empty()
}

fn table(visitor: &Visitor, records: &[RecordSummaryView]) -> Markup {
    html! {
        table.cards {
            thead {
                tr {
                    th scope="col" { "Held for" }
                    th scope="col" { "Key" }
                    th scope="col" { "Scope" }
                    th scope="col" { "Caller" }
                    th scope="col" { "About and reason" }
                    th scope="col" { "Claimed" }
                    @if visitor.is_operator() { th scope="col" { span.hidden { "Act" } } }
                }
            }
            tbody {
                @for record in records {
                    tr {
                        td.age data-name="Held for" {
                            (age(record.ended_ago_ms.unwrap_or_default()))
                        }
                        td.mono data-name="Key" {
                            a href=(record_link(record)) { (safe(&record.key)) }
                        }
                        td data-name="Scope" { (safe(&record.scope)) }
                        td data-name="Caller" { (text::caller(&record.caller)) }
                        td data-name="About" { (about(record)) }
                        td data-name="Claimed" { (time(&record.claimed_at)) }
                        @if visitor.is_operator() {
                            td data-name="" {
                                a href=(record_link(record).replacen("record", "resolve", 1))
                                    aria-label={ "Resolve " (safe(&record.key)) } { "Resolve…" }
                            }
                        }
                    }
                }
            }
        }
    }
}
