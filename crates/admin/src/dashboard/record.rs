//! One record: what happened, in words and as a timeline, and what every repeat gets.

use std::sync::Arc;

use axum::{
    extract::{Form, Query, State},
    http::{HeaderMap, StatusCode, header},
    response::Response,
};
use jiff::Timestamp;
use maud::{Markup, html};
use semel::core::RecordId;
use semel_telemetry::escape;
use serde::Deserialize;

use super::{
    error_page::ErrorPage,
    layout,
    page_state::PageState,
    records::state as state_label,
    text::{self, age, counted, link, safe},
    timeline::timeline,
    visitor::{OperatorVisitor, Visitor},
};
use crate::{
    api_error::ApiError,
    audit::OperatorAction,
    audit_trail::AuditTrail,
    requests,
    responses::{AnswerView, AnswerVisibility, RecordView},
};

/// The form that shows the answer.
const ANSWER_FORM: &str = "answer";

/// Which record, and what was just done to it.
#[derive(Clone, Debug, Default, Deserialize)]
#[serde(default)]
pub(super) struct RecordParams {
    pub(super) scope: String,
    pub(super) caller: String,
    pub(super) key: String,
    pub(super) done: String,
}

#[derive(Debug, Default, Deserialize)]
#[serde(default)]
pub(super) struct AnswerForm {
    scope: String,
    caller: String,
    key: String,
    form: String,
}

impl RecordParams {
    pub(super) fn id(&self) -> Result<RecordId, ErrorPage> {
        Ok(requests::record_id(&self.scope, &self.caller, &self.key)?)
    }

    /// A link to a page about the same record.
    pub(super) fn link(&self, page: &str) -> String {
        let Self { scope, caller, key, .. } = self;
        link(page, [("scope", &**scope), ("caller", &**caller), ("key", &**key)])
    }
}

pub(super) async fn page(
    State(state): State<Arc<PageState>>,
    visitor: Visitor,
    headers: HeaderMap,
    Query(query): Query<RecordParams>,
) -> Result<Response, ErrorPage> {
    let view = find(&state, &query, AnswerVisibility::Withheld("")).await?;
    show(&state, &visitor, &headers, &query, view.as_ref()).await
}

/// Shows the recorded answer, and writes that to the audit log first.
pub(super) async fn answer(
    State(state): State<Arc<PageState>>,
    OperatorVisitor(visitor): OperatorVisitor,
    headers: HeaderMap,
    Form(form): Form<AnswerForm>,
) -> Result<Response, ErrorPage> {
    visitor.check_form(&state, ANSWER_FORM, &form.form)?;
    let AnswerForm { scope, caller, key, .. } = form;
    let query = RecordParams { scope, caller, key, done: String::new() };
    let view = find(&state, &query, AnswerVisibility::Shown).await?;
    if let Some(view) = &view {
        let target = requests::RecordTarget {
            scope: query.scope.clone(),
            caller: query.caller.clone(),
            key: query.key.clone(),
            state: view.line.state.clone(),
            fence: view.line.fence,
        };
        let act = OperatorAction {
            who: visitor.author(""),
            act: "read-answer",
            record: Some(target.read()?),
            to: None,
            answer: None,
            why: String::new(),
        };
        let noted = state.audit.note(act, "shown").await;
        noted.map_err(crate::action_error::ActionError::AuditLog)?;
    }
    show(&state, &visitor, &headers, &query, view.as_ref()).await
}

/// The record as it is now.
pub(super) async fn find(
    state: &PageState,
    query: &RecordParams,
    answers: AnswerVisibility,
) -> Result<Option<RecordView>, ErrorPage> {
    let id = query.id()?;
    let seen = state.semel.store().get(&id).await;
    let seen = seen.map_err(|error| ApiError::from_store_error(&error))?;
    let Some(seen) = seen else { return Ok(None) };
    let view = RecordView::new(&id, seen, answers, Timestamp::now());
    Ok(Some(view.with_reconcile_note(&**state.semel.store(), &id).await))
}

async fn show(
    state: &PageState,
    visitor: &Visitor,
    headers: &HeaderMap,
    query: &RecordParams,
    view: Option<&RecordView>,
) -> Result<Response, ErrorPage> {
    let trail = state.audit.trail(&query.id()?).await.ok();
    let Some(view) = view else { return Ok(missing(state, visitor, query)) };
    let is_held = view.line.state == "held";
    let content = html! {
        h1 { "Record " span.key { (safe(&query.key)) } }
        @if !query.done.is_empty() { p.done role="status" { "Done: " (safe(&query.done)) "." } }
        section.card aria-label="In short" {
            p.lead { (state_label(&view.line.state)) " " (verdict(view, trail.as_ref())) }
            @if is_held && visitor.is_operator() {
                p.buttons { a.button href=(query.link("resolve")) { "Resolve…" } }
            }
            p.note {
                a href=(link("records", [("key", &*query.key)])) {
                    "All records with this key, of any scope and caller"
                }
            }
        }
        div.columns {
            section.card {
                h2 { "What happened" }
                @match &trail {
                    Some(trail) => (timeline(view, trail)),
                    None => {
                        (timeline(view, &AuditTrail::default()))
                        p.warning { "The audit log cannot be read: acts of operators are missing." }
                    }
                }
            }
            section.card { h2 { "Facts" } (facts(view)) }
        }
        @if let Some(answer) = &view.answer { (answer_section(state, visitor, query, answer)) }
        (copies(headers, query, view))
    };
    Ok(layout::page(state, visitor, ("Record", "records"), &content))
}

fn missing(state: &PageState, visitor: &Visitor, query: &RecordParams) -> Response {
    let content = html! {
        h1 { "There is no such record" }
        p {
            "No guarded request ran under this scope, caller and key, or its retention has passed, "
            "or it was deleted."
        }
        p { a href=(link("records", [("key", &*query.key)])) { "Search for the key" } }
    };
    let mut response = layout::page(state, visitor, ("No such record", "records"), &content);
    *response.status_mut() = StatusCode::NOT_FOUND;
    response
}

/// What happened under the key, in words: the first thing that is asked. Without the whole audit
/// log it is not known whether an earlier record was deleted.
fn verdict(view: &RecordView, trail: Option<&AuditTrail>) -> Markup {
    let line = &view.line;
    let applied = |act: &str| {
        let acts = trail.iter().flat_map(|trail| &trail.acts);
        acts.filter(|past| past.result == "applied").any(|past| past.act == act)
    };
    let attempts = match line.attempt {
        0 | 1 if applied("delete") => html! {
            strong { "It ran once since an operator deleted its record" }
            "; what ran before may have taken effect as well. It ran"
        },
        0 | 1 if trail.is_none_or(|trail| trail.is_cut) => html! {
            strong { "This record has one attempt" }
            "; whether an earlier one was deleted is not known. It ran"
        },
        0 | 1 => html! { strong { "It ran once" } },
        many => html! {
            strong { "It was started " (many) " times" }
            ", and earlier attempts were refused, or ran again by on_unknown = \"rerun\" or by an "
            "operator; an earlier one may have taken effect. The last one ran"
        },
    };
    let answer = view.answer.as_ref();
    match (&*line.state, answer.map(|answer| &*answer.kind)) {
        ("completed", Some("failed")) => html! {
            strong { "Its outcome was never known" } ", and every repeat gets operation-failed."
        },
        ("completed", _)
            if line.reason_label.as_deref() == Some("resolved") && applied("reconcile") =>
        {
            html! {
                strong { "A read of the upstream showed that it took effect" }
                ", and its answer was recorded. Every repeat gets it, and nothing runs."
            }
        }
        ("completed", _) if line.reason_label.as_deref() == Some("resolved") => html! {
            strong { "An operator said that it took effect" } " and recorded its answer. Every "
            "repeat gets it, and nothing runs."
        },
        ("completed", Some("not_retained")) => html! {
            (attempts) " and completed. Its answer was not kept: repeats get 410, and nothing runs."
        },
        ("completed", _) => html! {
            (attempts) " and completed. Every repeat gets its recorded answer, and nothing runs."
        },
        ("held", _) => html! {
            strong { "It is unknown whether it took effect" }
            @if let Some(reason) = &line.reason { ": " (safe(reason)) }
            @if let Some(note) = &view.reconcile { ". The upstream was asked: " (safe(note)) }
            ". It does not run again until an operator says what happened; clients get 423."
        },
        ("in_flight", _) if line.lapsed => html! {
            strong { "Its owner is silent" } " and its lease has expired: "
            (on_unknown(&view.on_unknown))
        },
        ("in_flight", _) => html! { strong { "It is running" } ", as attempt " (line.attempt) "." },
        _ if line.is_forgotten() => html! {
            strong { "Nothing ran" } " that counts. The key is free for any request."
        },
        _ => html! {
            strong { "It may run again" } ": the next request with this key and the same content "
            "runs, as attempt " (line.attempt.saturating_add(1)) "."
            @if let Some(reason) = &line.reason { " Released because: " (safe(reason)) "." }
            @if view.on_unknown == "rerun" { " An earlier attempt may have taken effect." }
        },
    }
}

fn on_unknown(word: &str) -> &'static str {
    match word {
        "rerun" => "the next request with this key runs it again.",
        "fail" => "it ends with operation-failed.",
        _ => "it will be held until an operator says what happened.",
    }
}

fn facts(view: &RecordView) -> Markup {
    let line = &view.line;
    html! {
        dl.facts {
            dt { "Scope" } dd { (safe(&line.scope)) }
            dt { "Caller" } dd { (text::caller(&line.caller)) }
            dt { "Key" } dd.mono { (safe(&line.key)) }
            @if !line.about.is_empty() { dt { "About" } dd { (safe(&line.about)) } }
            @for (name, value) in &view.captured { dt { (safe(name)) } dd.mono { (safe(value)) } }
            dt { "Attempts" } dd { (line.attempt) }
            dt { "Fence" } dd.mono { (line.fence) }
            @if !line.node.is_empty() { dt { "Node" } dd { (safe(&line.node)) } }
            dt { "If unknown" } dd { code { (view.on_unknown) } }
            @if let Some(limit) = view.hold_for_ms {
                dt { "Held for" } dd { "at most " (age(limit)) }
            }
            dt { "Fingerprint" }
            dd.mono {
                @match &view.fingerprint {
                    Some(fingerprint) => (fingerprint),
                    None => "none: it was forgotten",
                }
            }
        }
    }
}

fn answer_section(
    state: &PageState,
    visitor: &Visitor,
    query: &RecordParams,
    answer: &AnswerView,
) -> Markup {
    let size = u64::try_from(answer.body_bytes).unwrap_or(u64::MAX);
    html! {
        section.card #answer {
            h2 { "The answer that every repeat gets" }
            p {
                @if let Some(status) = answer.status { "Status " strong { (status) } ", " }
                @match &*answer.kind {
                    "not_retained" => "without a body: it was too large, or a stream.",
                    "failed" => "operation-failed, as the outcome is unknown.",
                    "damaged" => "which cannot be read.",
                    _ => { (counted(size, "byte")) "." },
                }
            }
            @if answer.kind == "response" {
                @if answer.withheld.is_some() {
                    @if visitor.is_operator() {
                        form method="post" action="answer#answer" {
                            input type="hidden" name="scope" value=(query.scope);
                            input type="hidden" name="caller" value=(query.caller);
                            input type="hidden" name="key" value=(query.key);
                            input type="hidden" name="form"
                                value=(visitor.form_token(state, ANSWER_FORM));
                            button.plain { "Show the answer" }
                        }
                        p.note {
                            "It may contain personal data, so the audit log notes who read it."
                        }
                    } @else {
                        p.note { "Operators can show it." }
                    }
                } @else { (content_of(answer)) }
            }
        }
    }
}

fn content_of(answer: &AnswerView) -> Markup {
    let lines = |fields: &[(String, String)]| -> String {
        fields.iter().map(|(name, value)| format!("{}: {}\n", safe(name), safe(value))).collect()
    };
    html! {
        h3 { "Headers" }
        pre tabindex="0" { (lines(&answer.headers)) }
        h3 { "Body" }
        @match (&answer.body, &answer.body_base64) {
            (Some(body), _) => {
                pre #body tabindex="0" { (text::body(body)) }
                button.plain data-copy="body" hidden { "Copy the body" }
            }
            (None, Some(base64)) => {
                p.note { "It is not text; in base64:" }
                pre tabindex="0" { (base64) }
            }
            (None, None) => p.note { "It is empty." },
        }
        @if !answer.trailers.is_empty() {
            h3 { "Trailers" }
            pre tabindex="0" { (lines(&answer.trailers)) }
        }
    }
}

/// The record for other tools.
fn copies(headers: &HeaderMap, query: &RecordParams, view: &RecordView) -> Markup {
    // The answer is left out: copying it would not be in the audit log.
    let shown = RecordView { answer: None, ..view.clone() };
    let json = serde_json::to_string_pretty(&shown).unwrap_or_default();
    let host = headers.get(header::HOST).and_then(|host| host.to_str().ok()).unwrap_or("localhost");
    let url = format!("http://{host}/{}", query.link("v1/record"));
    let curl =
        format!("curl -H \"Authorization: Bearer $SEMEL_OPERATOR_TOKEN\" {}", escape::shell(&url));
    html! {
        section.card {
            h2 { "Copy" }
            details {
                summary { "As JSON" }
                pre #as-json tabindex="0" { (escape::lines(&json)) }
                button.plain data-copy="as-json" hidden { "Copy" }
            }
            details {
                summary { "As curl" }
                pre #as-curl tabindex="0" { (safe(&curl)) }
                button.plain data-copy="as-curl" hidden { "Copy" }
            }
        }
    }
}
