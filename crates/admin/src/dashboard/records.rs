//! The search for records. Its filter is the query of the URL.

use std::sync::Arc;

use axum::{
    extract::{Query, State},
    http::StatusCode,
    response::{IntoResponse as _, Response},
};
use maud::{Markup, html};
use semel::core::Cursor;
use serde::Deserialize;

use super::{
    error_page::ErrorPage,
    layout,
    page_state::PageState,
    text::{self, age, count, counted, link, safe, time},
    visitor::Visitor,
};
use crate::{
    api_error::ApiError,
    filter::{self, FilterQuery, RecordFilter},
    requests::STATES,
    responses::{RecordPageView, RecordSummaryView},
};

/// Records per page.
const PAGE_SIZE: u32 = 50;

/// What the search shows if no filter is set: records of this age.
const DEFAULT_SINCE: &str = "1h";

/// How pages write the anonymous caller, and filters read it.
const ANONYMOUS: &str = "(anonymous)";

/// The fields of a filter; an empty one does not filter.
#[derive(Clone, Debug, Default, Deserialize, PartialEq, Eq)]
#[serde(default)]
pub(super) struct FilterForm {
    pub(super) key: String,
    pub(super) state: String,
    pub(super) scope: String,
    pub(super) caller: String,
    pub(super) reason: String,
    pub(super) since: String,
    pub(super) until: String,
    pub(super) after: String,
}

impl FilterForm {
    /// The filter, or which field cannot be used and why.
    pub(super) fn filter(&self) -> Result<RecordFilter, String> {
        let set = |text: &str| Some(text.trim()).filter(|text| !text.is_empty()).map(str::to_owned);
        let caller = match self.caller.trim() {
            ANONYMOUS => Some(String::new()),
            caller => set(caller),
        };
        let query = FilterQuery {
            key: set(unquoted(&self.key)),
            state: set(&self.state),
            scope: set(&self.scope),
            caller,
            reason: set(&self.reason),
            since: set(&self.since),
            until: set(&self.until),
            ..FilterQuery::default()
        };
        query.to_filter()
    }

    /// Where the page begins.
    pub(super) fn cursor(&self) -> Option<Cursor> {
        self.after.trim().parse().ok().map(Cursor)
    }

    /// A link to a page with this filter.
    pub(super) fn link(&self, page: &str, after: Option<&str>) -> String {
        let fields = [
            ("key", self.key.trim()),
            ("state", self.state.trim()),
            ("scope", self.scope.trim()),
            ("caller", self.caller.trim()),
            ("reason", self.reason.trim()),
            ("since", self.since.trim()),
            ("until", self.until.trim()),
            ("after", after.unwrap_or_default()),
        ];
        link(page, fields.into_iter().filter(|(_, value)| !value.is_empty()))
    }

    pub(super) fn is_empty(&self) -> bool {
        self.link("", None).is_empty()
    }
}

/// A key as a client sends it may be quoted.
fn unquoted(key: &str) -> &str {
    let key = key.trim();
    key.strip_prefix('"').and_then(|key| key.strip_suffix('"')).unwrap_or(key)
}

pub(super) async fn page(
    State(state): State<Arc<PageState>>,
    visitor: Visitor,
    Query(mut form): Query<FilterForm>,
) -> Response {
    if form.is_empty() {
        DEFAULT_SINCE.clone_into(&mut form.since);
    }
    let filter = match form.filter() {
        Ok(filter) => filter,
        Err(wrong) => {
            let content =
                html! { h1 { "Records" } (fields(&form)) p.wrong role="alert" { (wrong) } };
            let mut response = layout::page(&state, &visitor, ("Records", "records"), &content);
            *response.status_mut() = StatusCode::BAD_REQUEST;
            return response;
        }
    };
    let found = filter::list(&**state.semel.store(), &filter, form.cursor(), PAGE_SIZE).await;
    let found = match found {
        Ok(found) => found,
        Err(error) => {
            let error = ApiError::from_store_error(&error);
            return ErrorPage::from(error).into_response();
        }
    };
    let content = html! { h1 { "Records" } (fields(&form)) (results(&form, &found)) };
    layout::page(&state, &visitor, ("Records", "records"), &content)
}

/// The form of the filter.
fn fields(form: &FilterForm) -> Markup {
    let text = |name: &str, label: &str, value: &str, hint: &str| {
        html! {
            div.wide[name == "key"] {
                label for={ "f-" (name) } { (label) }
                input id={ "f-" (name) } name=(name) value=(value) placeholder=(hint)
                    autocomplete="off" spellcheck="false" maxlength="1024";
            }
        }
    };
    html! {
        form.card.filters action="records" {
            (text("key", "Key", &form.key, "order-7"))
            (text("since", "Claimed since", &form.since, "2h, or 2026-11-18T14:03:22Z"))
            (text("until", "Claimed until", &form.until, "1h, or 2026-11-18T15:00:00Z"))
            div {
                label for="f-state" { "State" }
                select #f-state name="state" {
                    option value="" { "any" }
                    @for state in STATES {
                        option value=(state.as_str()) selected[form.state == state.as_str()] {
                            (state_words(state.as_str()))
                        }
                    }
                }
            }
            (text("scope", "Scope", &form.scope, "payments"))
            (text("caller", "Caller", &form.caller, "header:x-merchant-id:shop-7"))
            (text("reason", "Reason begins with", &form.reason, "upstream answered 5"))
            div.end { button { "Search" } }
        }
    }
}

fn results(form: &FilterForm, found: &RecordPageView) -> Markup {
    let number = u64::try_from(found.records.len()).unwrap_or(u64::MAX);
    let next = found.next.as_deref().map(|next| form.link("records", Some(next)));
    html! {
        section.card aria-label="Results" {
            @if found.records.is_empty() && next.is_none() && !form.key.trim().is_empty() {
                p.lead { "There is no record with this key." }
                p {
                    "No guarded request with this key ran here, or it was never claimed, or its "
                    "record was deleted after its retention. The key must be written exactly as "
                    "the client sent it."
                }
            } @else if found.records.is_empty() && next.is_none() {
                p { "No record matches." }
            } @else {
                (table(&found.records))
            }
            p.note {
                @match &next {
                    Some(next) => {
                        (counted(number, "record")) " shown, " (count(found.examined))
                        " examined. There may be more. "
                        a.button.plain href=(next) rel="next" { "Continue" }
                    }
                    None if number > 0 => {
                        (counted(number, "record")) " shown: all that match"
                        @if form.cursor().is_some() { " after the previous page" }
                        "."
                    }
                    None => {}
                }
            }
        }
    }
}

/// A table of records, each with a link to its page.
pub(super) fn table(records: &[RecordSummaryView]) -> Markup {
    html! {
        table.cards {
            thead {
                tr {
                    th scope="col" { "State" }
                    th scope="col" { "Key" }
                    th scope="col" { "Scope" }
                    th scope="col" { "Caller" }
                    th scope="col" { "Claimed" }
                    th.number scope="col" { "Attempt" }
                    th scope="col" { "About" }
                }
            }
            tbody {
                @for record in records {
                    tr {
                        td data-name="State" { (state(&record.state)) }
                        td.mono data-name="Key" {
                            a href=(record_link(record)) { (safe(&record.key)) }
                        }
                        td data-name="Scope" { (safe(&record.scope)) }
                        td data-name="Caller" { (text::caller(&record.caller)) }
                        td data-name="Claimed" {
                            (time(&record.claimed_at)) " "
                            span.quiet { (age(record.age_ms)) " ago" }
                        }
                        td.number data-name="Attempt" { (record.attempt) }
                        td data-name="About" { (about(record)) }
                    }
                }
            }
        }
    }
}

/// What a record is about, and why it did not complete.
pub(super) fn about(record: &RecordSummaryView) -> Markup {
    html! {
        div {
            @if record.about.is_empty() { span.quiet { "–" } } @else { (safe(&record.about)) }
            @if let Some(reason) = &record.reason { br; span.quiet { (safe(reason)) } }
        }
    }
}

/// A state as a label.
pub(super) fn state(name: &str) -> Markup {
    html! { span.state.(name) { (state_words(name)) } }
}

fn state_words(name: &str) -> String {
    name.replace('_', " ")
}

/// The link to the page of a record.
pub(super) fn record_link(record: &RecordSummaryView) -> String {
    let RecordSummaryView { scope, caller, key, .. } = record;
    link("record", [("scope", &**scope), ("caller", &**caller), ("key", &**key)])
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_filter_is_read_from_the_fields_of_its_form() {
        let form = FilterForm {
            key: " \"order-7\" ".to_owned(),
            caller: ANONYMOUS.to_owned(),
            ..FilterForm::default()
        };
        let filter = form.filter().unwrap();
        assert_eq!(filter.key.unwrap().as_str(), "order-7");
        assert!(filter.caller.unwrap().is_anonymous());
        assert_eq!((filter.state, filter.scope), (None, None));
        let wrong = FilterForm { since: "yesterday".to_owned(), ..FilterForm::default() };
        assert!(wrong.filter().unwrap_err().starts_with("`since`: "));
        assert!(FilterForm::default().is_empty());
        assert_eq!(
            form.link("records", Some("9")),
            "records?key=%22order-7%22&caller=%28anonymous%29&after=9"
        );
    }
}
