//! Resolving every held record that matches, after a preview that says what will follow.

use std::{collections::BTreeMap, sync::Arc};

use axum::{
    extract::{Form, Query, State},
    response::Response,
};
use maud::{Markup, html};
use semel::core::Store;

use super::{
    error_page::ErrorPage,
    layout,
    page_state::PageState,
    previews::PREVIEW_MAX,
    records::FilterForm,
    resolve::{ResolveForm, note_fields, outcome_fields},
    text::{counted, link, safe, time},
    visitor::{OperatorVisitor, Visitor},
};
use crate::{
    action_error::ActionError,
    actions,
    api_error::ApiError,
    filter,
    requests::{MANY_MAX, ResolveManyRequest, SeenRecord},
    responses::{RecordSummaryView, ResolveManyView},
};

/// The form that resolves all records of a preview.
const RESOLVE_ALL_FORM: &str = "resolve-all";

/// Records per look at the store.
const PAGE_SIZE: u32 = 1000;

/// Maximum number of looks for one preview.
const LOOKS_MAX: usize = 20;

/// How many records the preview names.
const NAMED_MAX: usize = 10;

/// How many skipped records the result names.
const SKIPPED_MAX: usize = 100;

pub(super) async fn page(
    State(state): State<Arc<PageState>>,
    OperatorVisitor(visitor): OperatorVisitor,
    Query(mut filter): Query<FilterForm>,
) -> Result<Response, ErrorPage> {
    filter.state = "held".to_owned();
    let (found, is_cut) = find(&state, &filter).await?;
    let form = ResolveForm { status: "201".to_owned(), ..ResolveForm::default() };
    let content = html! {
        h1 { "Resolve all that match" }
        (filter_words(&filter))
        @if found.is_empty() {
            p { "No held record matches." }
        } @else {
            (preview(&found, is_cut))
            (confirmation(&state, &visitor, &found, &form)?)
        }
        p { a href=(filter.link("held", None)) { "Back to the held records" } }
    };
    Ok(layout::page(&state, &visitor, ("Resolve all", "held"), &content))
}

/// The records that match, and whether there may be more.
async fn find(
    state: &PageState,
    form: &FilterForm,
) -> Result<(Vec<RecordSummaryView>, bool), ErrorPage> {
    let filter = form.filter().map_err(|wrong| ErrorPage::malformed(&wrong))?;
    let (mut found, mut after) = (Vec::new(), None);
    for _ in 0..LOOKS_MAX {
        let page = filter::list(&**state.semel.store(), &filter, after, PAGE_SIZE).await;
        let page = page.map_err(|error| ApiError::from_store_error(&error))?;
        found.extend(page.records);
        after = page.next.and_then(|next| next.parse().ok().map(semel::core::Cursor));
        if after.is_none() || found.len() >= PREVIEW_MAX {
            break;
        }
    }
    let is_cut = after.is_some() || found.len() > PREVIEW_MAX;
    found.truncate(PREVIEW_MAX);
    Ok((found, is_cut))
}

fn filter_words(filter: &FilterForm) -> Markup {
    let fields = [
        ("scope", &filter.scope),
        ("caller", &filter.caller),
        ("key", &filter.key),
        ("reason begins with", &filter.reason),
        ("claimed since", &filter.since),
        ("claimed until", &filter.until),
    ];
    let fields: Vec<_> = fields.into_iter().filter(|(_, value)| !value.trim().is_empty()).collect();
    html! {
        p {
            @if fields.is_empty() { "Without a filter: every held record of this store." }
            @for (name, value) in fields {
                span.state.in_flight { (name) " " (safe(value.trim())) } " "
            }
        }
    }
}

/// How many records of which kind, and some of them by name.
fn preview(found: &[RecordSummaryView], is_cut: bool) -> Markup {
    let mut kinds: BTreeMap<(&str, &str), Vec<&str>> = BTreeMap::new();
    for record in found {
        let reason = record.reason.as_deref().unwrap_or("no reason");
        kinds.entry((&record.scope, reason)).or_default().push(&record.claimed_at);
    }
    let number = u64::try_from(found.len()).unwrap_or(u64::MAX);
    html! {
        section.card {
            h2 { (counted(number, "held record")) @if is_cut { ", and there may be more" } }
            @if is_cut {
                p.note {
                    "One confirmation resolves at most " (PREVIEW_MAX) ". Repeat it for the rest."
                }
            }
            div.scroll tabindex="0" role="region" aria-label="Kinds" {
                table {
                    thead { tr {
                        th.number scope="col" { "Records" }
                        th scope="col" { "Scope" }
                        th scope="col" { "Reason" }
                        th scope="col" { "Oldest" }
                        th scope="col" { "Newest" }
                    } }
                    tbody { @for ((scope, reason), claimed) in &kinds { tr {
                        td.number { (claimed.len()) }
                        td { (safe(scope)) }
                        td { (safe(reason)) }
                        td { @if let Some(at) = claimed.iter().min() { (time(at)) } }
                        td { @if let Some(at) = claimed.iter().max() { (time(at)) } }
                    } } }
                }
            }
            p.note {
                "For example: "
                @for (place, record) in found.iter().take(NAMED_MAX).enumerate() {
                    @if place > 0 { ", " }
                    span.mono { (safe(&record.key)) }
                }
                @if found.len() > NAMED_MAX { ", …" }
            }
        }
    }
}

fn confirmation(
    state: &PageState,
    visitor: &Visitor,
    found: &[RecordSummaryView],
    form: &ResolveForm,
) -> Result<Markup, ErrorPage> {
    let seen = |record: &RecordSummaryView| SeenRecord {
        scope: record.scope.clone(),
        caller: record.caller.clone(),
        key: record.key.clone(),
        fence: record.fence,
    };
    let records = found.iter().map(seen).collect();
    let id = state.dashboard().previews.keep(visitor.subject(), records);
    let id = id.ok_or_else(|| ErrorPage::new(500, "No random numbers", "Try again."))?;
    Ok(confirmation_form(state, visitor, form, &id, found.len()))
}

fn confirmation_form(
    state: &PageState,
    visitor: &Visitor,
    form: &ResolveForm,
    preview: &str,
    number: usize,
) -> Markup {
    let number = u64::try_from(number).unwrap_or(u64::MAX);
    html! {
        form.card.stacked method="post" action="resolve-all" {
            input type="hidden" name="form" value=(visitor.form_token(state, RESOLVE_ALL_FORM));
            input type="hidden" name="preview" value=(preview);
            (outcome_fields(form, &format!("each of the {}", counted(number, "record"))))
            p.warning {
                "This is done to " (counted(number, "record")) ", one after the other. A record "
                "that has changed since this page was loaded is left alone, and so is one that is "
                "held later."
            }
            (note_fields(visitor, form))
            button.danger { "Resolve " (counted(number, "record")) }
        }
    }
}

pub(super) async fn submit(
    State(state): State<Arc<PageState>>,
    OperatorVisitor(visitor): OperatorVisitor,
    Form(form): Form<ResolveForm>,
) -> Result<Response, ErrorPage> {
    visitor.check_form(&state, RESOLVE_ALL_FORM, &form.form)?;
    let records = state.dashboard().previews.find(visitor.subject(), &form.preview);
    let records = records.ok_or_else(|| {
        let detail = "Its records were resolved, or it is older than 15 minutes. Nothing was \
                      changed: start again from the held records.";
        ErrorPage::new(409, "The preview has ended", detail)
    })?;
    let outcome = match form.outcome() {
        Ok(outcome) => outcome,
        Err(wrong) => {
            let content = html! {
                h1 { "Resolve all that match" }
                p.wrong role="alert" { (wrong) }
                (confirmation_form(&state, &visitor, &form, &form.preview, records.len()))
            };
            return Ok(layout::page(&state, &visitor, ("Resolve all", "held"), &content));
        }
    };
    state.dashboard().previews.remove(&form.preview);
    let (number, who) = (records.len(), visitor.author(&form.who));
    let requests: Vec<ResolveManyRequest> = records
        .chunks(MANY_MAX)
        .map(|records| ResolveManyRequest {
            records: records.to_vec(),
            to: outcome.to,
            answer: outcome.answer.clone(),
            why: form.why.clone(),
            who: String::new(),
        })
        .collect();
    let shared = Arc::clone(&state);
    // It continues if the browser disconnects.
    let acts = tokio::spawn(async move { resolve(&shared, requests, &who).await });
    let (done, failure) = acts.await.map_err(|_| ApiError::action_failed())?;
    let content = result(number, &done, failure.as_ref());
    Ok(layout::page(&state, &visitor, ("Resolved", "held"), &content))
}

/// Resolves all records, until something fails.
async fn resolve(
    state: &PageState,
    requests: Vec<ResolveManyRequest>,
    who: &str,
) -> (ResolveManyView, Option<ActionError>) {
    let store: &dyn Store = &**state.semel.store();
    let mut done = ResolveManyView::default();
    for request in requests {
        let number = request.records.len();
        let author = who.to_owned();
        match actions::resolve_many(store, &state.audit, request, author, None, |_| {}).await {
            Ok(part) => {
                let is_whole = part.processed == number;
                done.merge(part);
                if !is_whole {
                    break;
                }
            }
            Err(error) => return (done, Some(error)),
        }
    }
    (done, None)
}

fn result(number: usize, done: &ResolveManyView, failure: Option<&ActionError>) -> Markup {
    let left = number.saturating_sub(done.processed);
    let skipped = u64::try_from(done.stale.len()).unwrap_or(u64::MAX);
    html! {
        h1 { "Resolved" }
        p.done role="status" { (counted(done.applied, "record")) " resolved." }
        @if skipped > 0 {
            section.card {
                h2 { (counted(skipped, "record")) " left alone" }
                p { "They had changed since the preview:" }
                ul { @for id in done.stale.iter().take(SKIPPED_MAX) {
                    li.mono {
                        a href=(link("record", [
                            ("scope", &*id.scope), ("caller", &*id.caller), ("key", &*id.key),
                        ])) { (safe(&id.key)) }
                    }
                } }
            }
        }
        @if left > 0 {
            p.wrong role="alert" {
                (counted(u64::try_from(left).unwrap_or(u64::MAX), "record")) " not processed"
                @match failure {
                    Some(error) => { ": " (safe(&error.to_string())) }
                    None => ": the store failed",
                }
                ". They are still held."
            }
        }
        p { a.button href="held" { "To the held records" } }
    }
}
