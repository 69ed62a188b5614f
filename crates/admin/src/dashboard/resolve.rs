//! Resolving one held record: what the operator says, and what will follow.

use std::sync::Arc;

use axum::{
    extract::{Form, Query, State},
    response::Response,
};
use maud::{Markup, html};
use semel::core::Store;
use serde::Deserialize;

use super::{
    document::redirect,
    error_page::ErrorPage,
    layout,
    page_state::PageState,
    record::{RecordParams, find},
    records::{about, state as state_label},
    text::{age, safe},
    visitor::{OperatorVisitor, Visitor},
};
use crate::{
    action_error::ActionError,
    actions,
    api_error::ApiError,
    requests::{AnswerInput, AuditNote, RecordTarget, ResolveRequest, ResolvedState},
    responses::{AnswerVisibility, RecordView},
};

/// The form that resolves one record.
const RESOLVE_FORM: &str = "resolve";

/// What an operator says about one record, or about many.
#[derive(Clone, Debug, Default, Deserialize)]
#[serde(default)]
pub(super) struct ResolveForm {
    pub(super) to: String,
    pub(super) status: String,
    pub(super) content_type: String,
    pub(super) body: String,
    pub(super) why: String,
    pub(super) who: String,
    pub(super) form: String,
    pub(super) scope: String,
    pub(super) caller: String,
    pub(super) key: String,
    pub(super) fence: u64,
    /// The preview that many records were listed in.
    pub(super) preview: String,
}

/// The outcome that an operator states, and the answer that belongs to it.
pub(super) struct StatedOutcome {
    pub(super) to: ResolvedState,
    pub(super) answer: Option<AnswerInput>,
}

impl ResolveForm {
    /// The outcome, or what is missing.
    pub(super) fn outcome(&self) -> Result<StatedOutcome, String> {
        if self.why.trim().is_empty() {
            return Err("Say why: it is written to the audit log.".to_owned());
        }
        match &*self.to {
            "released" => Ok(StatedOutcome { to: ResolvedState::Released, answer: None }),
            "completed" => {
                let status = self.status.trim().parse();
                let Ok(status) = status else {
                    return Err("The answer needs a status, such as 201.".to_owned());
                };
                let content_type = self.content_type.trim();
                let headers = match content_type.is_empty() || self.body.is_empty() {
                    true => Vec::new(),
                    false => vec![("content-type".to_owned(), content_type.to_owned())],
                };
                // A browser sends every line end as two characters.
                let body = self.body.replace("\r\n", "\n");
                let body = Some(body).filter(|body| !body.is_empty());
                let answer = AnswerInput { status, headers, body, body_base64: None };
                answer.read().map_err(|error| error.to_string())?;
                Ok(StatedOutcome { to: ResolvedState::Completed, answer: Some(answer) })
            }
            _ => Err("Say what happened.".to_owned()),
        }
    }
}

pub(super) async fn page(
    State(state): State<Arc<PageState>>,
    OperatorVisitor(visitor): OperatorVisitor,
    Query(query): Query<RecordParams>,
) -> Result<Response, ErrorPage> {
    let form = ResolveForm { status: "201".to_owned(), ..ResolveForm::default() };
    show(&state, &visitor, &query, &form, None).await
}

pub(super) async fn submit(
    State(state): State<Arc<PageState>>,
    OperatorVisitor(visitor): OperatorVisitor,
    Form(form): Form<ResolveForm>,
) -> Result<Response, ErrorPage> {
    visitor.check_form(&state, RESOLVE_FORM, &form.form)?;
    let query = RecordParams {
        scope: form.scope.clone(),
        caller: form.caller.clone(),
        key: form.key.clone(),
        ..RecordParams::default()
    };
    let outcome = match form.outcome() {
        Ok(outcome) => outcome,
        Err(wrong) => return show(&state, &visitor, &query, &form, Some(&wrong)).await,
    };
    let target = RecordTarget {
        scope: form.scope,
        caller: form.caller,
        key: form.key,
        state: "held".to_owned(),
        fence: form.fence,
    };
    let note = AuditNote { why: form.why, who: String::new() };
    let (to, who) = (outcome.to, visitor.author(&form.who));
    let request = ResolveRequest::new(target, to, outcome.answer, note);
    // It continues if the browser disconnects.
    let act = tokio::spawn(async move {
        let store: &dyn Store = &**state.semel.store();
        actions::resolve(store, &state.audit, request, who).await
    });
    match act.await.map_err(|_| ApiError::action_failed())? {
        Ok(_) => {}
        Err(ActionError::Stale) => return Err(stale()),
        Err(error) => return Err(error.into()),
    }
    Ok(redirect(&format!("{}&done=resolved+as+{}", query.link("record"), to.as_str())))
}

fn stale() -> ErrorPage {
    ErrorPage::new(
        409,
        "The record has changed",
        "It is not what this page showed: it was completed, resolved or claimed in the meantime. \
         Nothing was changed. Look at the record again.",
    )
}

async fn show(
    state: &PageState,
    visitor: &Visitor,
    query: &RecordParams,
    form: &ResolveForm,
    wrong: Option<&str>,
) -> Result<Response, ErrorPage> {
    let view = find(state, query, AnswerVisibility::Withheld("")).await?;
    let view = view.ok_or_else(ApiError::record_not_found)?;
    if view.line.state != "held" {
        return Err(stale());
    }
    let content = html! {
        h1 { "Resolve " span.key { (safe(&query.key)) } }
        (facts(&view))
        @if let Some(wrong) = wrong { p.wrong role="alert" { (wrong) } }
        form.card.stacked method="post" action="resolve" {
            input type="hidden" name="form" value=(visitor.form_token(state, RESOLVE_FORM));
            input type="hidden" name="scope" value=(query.scope);
            input type="hidden" name="caller" value=(query.caller);
            input type="hidden" name="key" value=(query.key);
            input type="hidden" name="fence" value=(view.line.fence);
            (outcome_fields(form, "it"))
            (note_fields(visitor, form))
            button { "Resolve" }
        }
        p { a href=(query.link("record")) { "Back to the record" } }
    };
    Ok(layout::page(state, visitor, ("Resolve", "held"), &content))
}

fn facts(view: &RecordView) -> Markup {
    let held_ms = view.line.ended_ago_ms.unwrap_or_default();
    html! {
        section.card {
            dl.facts {
                dt { "State" }
                dd { (state_label(&view.line.state)) " for " (age(held_ms)) }
                dt { "About" } dd { (about(&view.line)) }
                @for (name, value) in &view.captured {
                    dt { (safe(name)) } dd.mono { (safe(value)) }
                }
            }
        }
    }
}

/// The choice between the two outcomes, with what follows from each.
pub(super) fn outcome_fields(form: &ResolveForm, subject: &str) -> Markup {
    html! {
        fieldset {
            legend { "What happened?" }
            div.choice {
                input #to-released type="radio" name="to" value="released"
                    checked[form.to == "released"];
                div {
                    label for="to-released" { "It did not take effect: release " (subject) }
                    p.note {
                        "The next retry runs it again. If it did take effect, it happens twice."
                    }
                }
            }
            div.choice {
                input #to-completed type="radio" name="to" value="completed"
                    checked[form.to == "completed"];
                div {
                    label for="to-completed" { "It took effect: record this answer for " (subject) }
                    p.note { "Every retry gets this answer, and nothing runs." }
                }
            }
            label for="status" { "Status of the answer" }
            input #status name="status" value=(form.status) inputmode="numeric" maxlength="3";
            label for="content-type" { "Content-Type" }
            input #content-type name="content_type" value=(match &*form.content_type {
                "" => "application/json",
                given => given,
            }) maxlength="200";
            label for="body" { "Body" }
            textarea #body name="body" spellcheck="false" { (form.body) }
            p.note { "Status, type and body count only if it took effect." }
        }
    }
}

/// Who acts, and why.
pub(super) fn note_fields(visitor: &Visitor, form: &ResolveForm) -> Markup {
    let who = if form.who.is_empty() { &visitor.name } else { &form.who };
    html! {
        label for="why" { "Why" }
        input #why name="why" value=(form.why) required maxlength="1000"
            placeholder="the bank has no such charge, see #4711";
        label for="who" { "Your name" }
        @if visitor.has_session {
            input #who name="who" value=(who) maxlength="200";
        } @else {
            input #who name="who" value=(visitor.name) readonly;
        }
        p.note { "Both are written to the audit log." }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn form(to: &str) -> ResolveForm {
        ResolveForm {
            to: to.to_owned(),
            why: "the bank says so".to_owned(),
            ..ResolveForm::default()
        }
    }

    #[test]
    fn an_outcome_needs_a_choice_a_reason_and_a_status() {
        let wrong = |form: ResolveForm| form.outcome().err().unwrap();
        assert_eq!(wrong(form("")), "Say what happened.");
        let silent = ResolveForm { why: "  ".to_owned(), ..form("released") };
        assert!(wrong(silent).starts_with("Say why"));
        assert!(wrong(form("completed")).contains("needs a status"));
        let invalid = ResolveForm { status: "99".to_owned(), ..form("completed") };
        assert_eq!(wrong(invalid), "an answer has a status from 200 to 599");
        assert!(form("released").outcome().unwrap().answer.is_none());
    }

    #[test]
    fn the_body_of_an_answer_stays_as_it_was_typed() {
        let typed = ResolveForm {
            status: "201".to_owned(),
            content_type: "application/json".to_owned(),
            body: "{\r\n\"amount\": 9007199254740993}".to_owned(),
            ..form("completed")
        };
        let answer = typed.outcome().unwrap().answer.unwrap();
        assert_eq!(answer.body.as_deref(), Some("{\n\"amount\": 9007199254740993}"));
        assert_eq!(answer.headers, [("content-type".to_owned(), "application/json".to_owned())]);
    }
}
