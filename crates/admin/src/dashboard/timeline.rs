//! The timeline of one record: claim, end, the acts of operators, and what comes next.

use maud::{Markup, html};

use super::text::{age, safe, time};
use crate::{
    audit_trail::{AuditTrail, PastAct},
    responses::RecordView,
    time_or_age,
};

/// One event of the timeline.
struct TimelineEvent {
    at: String,
    class: &'static str,
    title: Markup,
    detail: Markup,
}

/// The events in the order of their times.
pub(super) fn timeline(view: &RecordView, trail: &AuditTrail) -> Markup {
    let mut events: Vec<TimelineEvent> = trail.acts.iter().map(act).collect();
    events.push(claim(view));
    events.extend(end(view));
    // Times are written alike, in UTC, and so compare as texts to the second.
    events.sort_by(|one, two| one.at.get(..19).cmp(&two.at.get(..19)));
    html! {
        @if trail.is_cut {
            p.note { "Only the end of the audit log was read; older acts may be missing." }
        }
        ol.timeline {
            @for event in &events {
                li.(event.class) {
                    (time(&event.at))
                    p { strong { (event.title) } }
                    p { (event.detail) }
                }
            }
            (next(view))
        }
    }
}

fn claim(view: &RecordView) -> TimelineEvent {
    let line = &view.line;
    let attempt =
        if line.attempt > 1 { format!("attempt {}, ", line.attempt) } else { String::new() };
    TimelineEvent {
        at: line.claimed_at.clone(),
        class: "",
        title: html! { "Claimed" },
        detail: html! {
            (attempt) "fence " (line.fence)
            @if !line.node.is_empty() { ", by " (safe(&line.node)) }
        },
    }
}

fn end(view: &RecordView) -> Option<TimelineEvent> {
    let line = &view.line;
    let (at, ended) = (line.ended_at.clone()?, line.ended_ago_ms?);
    let took = age(line.age_ms.saturating_sub(ended));
    let title = match &*line.state {
        "completed" => match view.answer.as_ref().and_then(|answer| answer.status) {
            Some(status) => html! { "Completed with status " (status) },
            None => html! { "Ended with operation-failed" },
        },
        "released" => html! { "Released" },
        "held" => html! { "Held: the outcome is unknown" },
        _ => html! { "Ended" },
    };
    let reason = line.reason.as_deref();
    let detail = html! {
        (took) " after the claim"
        @if let Some(reason) = reason { ": " (safe(reason)) }
    };
    Some(TimelineEvent { at, class: "", title, detail })
}

fn act(act: &PastAct) -> TimelineEvent {
    let title = match (&*act.act, &act.to) {
        ("resolve", Some(to)) => html! { "Resolved as " (safe(to)) },
        ("delete", _) => html! { "Deleted" },
        ("reconcile", Some(to)) => html! { "Read from the upstream: " (safe(to)) },
        ("read-answer", _) => html! { "Answer read" },
        (other, Some(to)) => html! { (safe(other)) ": " (safe(to)) },
        (other, None) => html! { (safe(other)) },
    };
    TimelineEvent {
        at: act.at.clone(),
        class: "act",
        title,
        detail: html! {
            "by " (safe(&act.who))
            @if !act.why.is_empty() { ": “" (safe(&act.why)) "”" }
            @if !matches!(&*act.result, "applied" | "shown") { " (" (safe(&act.result)) ")" }
        },
    }
}

/// What the record waits for.
fn next(view: &RecordView) -> Markup {
    let line = &view.line;
    let (ended_at, kept) = (line.ended_at.as_deref(), view.expires_in_ms);
    let held_until = view.hold_for_ms.zip(ended_at).and_then(|(limit, from)| {
        time_or_age::after(from, std::time::Duration::from_millis(limit))
    });
    let text = match &*line.state {
        "held" => match held_until {
            Some(until) => html! { "Held until an operator resolves it, or until " (time(&until)) },
            None => html! { "Held until an operator resolves it" },
        },
        "in_flight" if line.lapsed => html! { "The lease has expired: the next request decides" },
        "in_flight" => html! {
            "Running; the lease ends in " (age(view.lease_left_ms.unwrap_or_default()))
            " unless it is renewed"
        },
        _ => html! { "Kept for another " (age(kept.unwrap_or_default())) },
    };
    html! { li.open { p { (text) } } }
}
