//! `semel inspect`. Shows everything about a key.

use std::{process::ExitCode, time::Duration};

use super::{
    command_error::{self, CommandError},
    lookup::KeyArgs,
    output::{Output, Style},
    table,
    target::{IncludeAnswer, TargetArgs},
};
use semel_admin::{
    responses::{AnswerView, RecordView},
    time_or_age,
};
use semel_telemetry::{escape, format_duration};

/// How much of a body is printed.
const BODY_CHARS_MAX: usize = 2000;
const BODY_LINES_MAX: usize = 40;

/// Arguments of `semel inspect`.
#[derive(Debug, clap::Args)]
pub(super) struct Args {
    #[command(flatten)]
    named: KeyArgs,
    #[command(flatten)]
    place: TargetArgs,
}

pub(super) fn run(args: Args) -> anyhow::Result<ExitCode> {
    command_error::run(args.place.json, inspect(args))
}

async fn inspect(args: Args) -> Result<ExitCode, CommandError> {
    let (target, output) = (args.place.open().await?, args.place.output());
    let records = args.named.records(&target, IncludeAnswer::Yes).await?;
    for (number, record) in records.iter().enumerate() {
        if output.json {
            output.json(record)?;
            continue;
        }
        if number > 0 {
            output.line("")?;
        }
        for line in lines(record, output, &args.place.words()) {
            output.line(&line)?;
        }
    }
    Ok(ExitCode::SUCCESS)
}

/// A record, for a person.
fn lines(record: &RecordView, output: Output, place: &str) -> Vec<String> {
    let line = &record.line;
    let [key, scope] = [&line.key, &line.scope].map(|text| escape::line(text));
    let title = format!("{key} of {} in {scope}", table::caller(&line.caller));
    let mut lines = vec![output.paint(Style::Strong, &title)];
    let mut add = |name: &str, value: &str| lines.push(format!("  {name:12} {value}"));
    let state = output.state(&escape::line(&line.state), 0);
    add("state", &format!("{state}: {}", meaning(record)));
    if let Some(reason) = &line.reason {
        add("reason", &escape::line(reason));
    }
    if !line.about.is_empty() {
        add("about", &escape::line(&line.about));
    }
    for (number, (name, value)) in record.captured.iter().enumerate() {
        let head = if number == 0 { "captured" } else { "" };
        add(head, &format!("{} = {}", escape::line(name), escape::line(value)));
    }
    let by = match line.node.as_str() {
        "" => String::new(),
        node => format!(", by {}", escape::line(node)),
    };
    add("claimed", &format!("{}{by}", when(&line.claimed_at, line.age_ms)));
    if let (Some(at), Some(age)) = (&line.ended_at, line.ended_ago_ms) {
        add(if line.state == "held" { "held since" } else { "ended" }, &when(at, age));
    }
    if let Some(note) = &record.reconcile {
        add("reconcile", &escape::line(note));
    }
    if let Some(hold_for) = record.hold_for_ms {
        add("hold for", &hold(record, hold_for));
    }
    add("attempt", &line.attempt.to_string());
    add("fence", &line.fence.to_string());
    add("on unknown", &escape::line(&record.on_unknown));
    let forgotten = "none: the record was forgotten".to_owned();
    add("fingerprint", &record.fingerprint.as_deref().map_or(forgotten, escape::line));
    if let Some(left) = record.lease_left_ms {
        add("lease left", &if left == 0 { "none, it has expired".to_owned() } else { span(left) });
    }
    if let Some(left) = record.expires_in_ms {
        add("expires in", &span(left));
    }
    if let Some(answer) = &record.answer {
        lines.extend(answered(answer, output));
    }
    if line.state == "held" {
        lines.extend(next(record, place));
    }
    lines
}

fn span(millis: u64) -> String {
    format_duration(Duration::from_millis(millis))
}

/// A time and how long ago it was.
fn when(at: &str, age_ms: u64) -> String {
    let age = format!("{} ago", span(age_ms));
    time_or_age::to_second(at).map_or_else(|| age.clone(), |at| format!("{at}, {age}"))
}

/// How long a record may be held, and when that ends.
fn hold(record: &RecordView, hold_for_ms: u64) -> String {
    let longest = Duration::from_millis(hold_for_ms);
    let held_at = record.line.ended_at.as_deref().filter(|_| record.line.state == "held");
    let end = held_at.and_then(|at| time_or_age::to_second(&time_or_age::after(at, longest)?));
    let fails = end.map(|end| format!(": fails at {end} unless resolved before"));
    format!("{}{}", span(hold_for_ms), fails.unwrap_or_default())
}

fn meaning(record: &RecordView) -> &'static str {
    match record.line.state.as_str() {
        "in_flight" if record.line.lapsed && record.on_unknown == "rerun" => {
            "lease expired; the next retry will run it"
        }
        "in_flight" if record.line.lapsed => "lease expired; it counts as failed",
        "in_flight" => "it is running",
        "completed" => "every retry gets its answer",
        "released" if record.line.is_forgotten() => "any request may take the key",
        "released" => "the next retry will run it again",
        "held" => "it is unknown whether it took effect; no retry will run it",
        _ => "unknown state",
    }
}

fn answered(answer: &AnswerView, output: Output) -> Vec<String> {
    let status = answer.status.map_or_else(String::new, |status| status.to_string());
    let what = match answer.kind.as_str() {
        "response" => format!("{status}, {} bytes", answer.body_bytes),
        "not_retained" => format!("{status}, not retained: too large, or a stream"),
        "failed" => "operation-failed, because the outcome was unknown".to_owned(),
        other => escape::line(other),
    };
    let mut lines = vec![format!("  {:12} {what}", "answer")];
    if let Some(why) = &answer.withheld {
        lines.push(format!("    {}", output.paint(Style::Faint, &escape::line(why))));
    }
    for (name, value) in &answer.headers {
        lines.push(format!("    {}: {}", escape::line(name), escape::line(value)));
    }
    let body = match (&answer.body, &answer.body_base64) {
        (Some(text), _) => escape::lines(text),
        (None, Some(base64)) => format!("(base64) {}", escape::line(base64)),
        (None, None) => String::new(),
    };
    if !body.is_empty() {
        lines.push(String::new());
        let cut: String = body.chars().take(BODY_CHARS_MAX).collect();
        lines.extend(cut.lines().take(BODY_LINES_MAX).map(|line| format!("    {line}")));
        if cut.len() < body.len() || cut.lines().nth(BODY_LINES_MAX).is_some() {
            let more = output.paint(Style::Faint, "… cut here; --json shows all of it");
            lines.push(format!("    {more}"));
        }
    }
    for (name, value) in &answer.trailers {
        lines.push(format!("    trailer {}: {}", escape::line(name), escape::line(value)));
    }
    lines
}

/// What to do about a held record, as commands.
fn next(record: &RecordView, place: &str) -> Vec<String> {
    let line = &record.line;
    let word = |text: &str| escape::line(&escape::shell(text));
    let [key, scope, caller] = [&line.key, &line.scope, &line.caller].map(|text| word(text));
    let resolve = format!("semel resolve{place} --scope {scope} --caller {caller}");
    let key = if line.key.starts_with('-') { format!("-- {key}") } else { key };
    vec![
        String::new(),
        "  Find out whether it happened, where the operation is carried out. Then:".to_owned(),
        "  it happened: give every retry the answer of the service, such as".to_owned(),
        format!(
            "    {resolve} --completed --status 201 --header 'Content-Type: application/json' \
             --body-file FILE --why TEXT {key}"
        ),
        "  it did not happen: let the next retry run it".to_owned(),
        format!("    {resolve} --released --why TEXT {key}"),
    ]
}

#[cfg(test)]
mod tests {
    use serde_json::{Value, json};

    use super::*;

    fn shown(more: Value) -> String {
        let mut record = json!({
            "scope": "s", "caller": "", "key": "k", "state": "in_flight", "fence": 7, "attempt": 1,
            "age_ms": 192_000, "claimed_at": "2026-11-18T13:56:48.250Z", "on_unknown": "hold",
        });
        let (Value::Object(fields), Value::Object(more)) = (&mut record, more) else { panic!() };
        fields.extend(more);
        lines(&serde_json::from_value(record).unwrap(), Output::plain(), "").join("\n")
    }

    #[track_caller]
    fn has(text: &str, line: &str) {
        assert!(text.lines().any(|found| found == line), "{line} is not in\n{text}");
    }

    #[test]
    fn a_record_with_an_expired_lease_says_what_follows() {
        let lapsed =
            |route| shown(json!({ "lapsed": true, "lease_left_ms": 0, "on_unknown": route }));
        has(
            &lapsed("rerun"),
            "  state        in_flight: lease expired; the next retry will run it",
        );
        has(&lapsed("fail"), "  state        in_flight: lease expired; it counts as failed");
        has(&lapsed("fail"), "  lease left   none, it has expired");
    }

    #[test]
    fn a_held_record_is_shown_with_all_details() {
        let text = shown(json!({
            "state": "held", "reason": "upstream answered 503", "node": "gateway-1",
            "about": "POST api.example.com/v1/charges", "fence": 1_763_474_602_123_456_u64,
            "ended_at": "2026-11-18T13:57:48.250Z", "ended_ago_ms": 132_000,
            "captured": { "order": "o-1", "amount": "12.50" }, "hold_for_ms": 604_800_000,
        }));
        has(&text, "  reason       upstream answered 503");
        has(&text, "  about        POST api.example.com/v1/charges");
        has(&text, "  captured     amount = 12.50");
        has(&text, "               order = o-1");
        has(&text, "  claimed      2026-11-18T13:56:48Z, 3m 12s ago, by gateway-1");
        has(&text, "  held since   2026-11-18T13:57:48Z, 2m 12s ago");
        has(&text, "  hold for     7d: fails at 2026-11-25T13:57:48Z unless resolved before");
        has(&text, "  fence        1763474602123456");
    }

    #[test]
    fn a_forgotten_record_takes_any_request() {
        let text = shown(json!({ "state": "released", "attempt": 0, "expires_in_ms": 60_000 }));
        has(&text, "  state        released: any request may take the key");
        has(&text, "  fingerprint  none: the record was forgotten");
        let text = shown(json!({ "state": "released", "fingerprint": "01" }));
        has(&text, "  state        released: the next retry will run it again");
    }

    #[test]
    fn server_text_is_escaped_for_the_terminal() {
        let escape = "\u{1b}[2J";
        for state in [escape, "held"] {
            let text = shown(json!({
                "key": escape, "scope": escape, "caller": escape, "state": state, "reason": escape,
                "about": escape, "node": escape, "claimed_at": escape, "on_unknown": escape,
                "fingerprint": escape, "captured": { escape: escape },
                "answer": { "kind": escape, "withheld": escape, "body_base64": escape },
            }));
            assert!(!text.contains('\u{1b}'), "{text:?}");
        }
    }
}
