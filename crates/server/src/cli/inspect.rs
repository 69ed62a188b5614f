//! `semel inspect`. Shows everything about a key.

use std::{process::ExitCode, time::Duration};

use super::{
    desk::{AnswerWanted, Place},
    failure::{self, Failure},
    find::Named,
    screen::{Screen, Tone},
    table,
};
use crate::{
    api::view::{AnswerView, RecordView},
    ops::{escape, span},
};

/// How much of a body fits a screen.
const BODY_CHARS_MAX: usize = 2000;
const BODY_LINES_MAX: usize = 40;

/// What can be typed after `semel inspect`.
#[derive(Debug, clap::Args)]
pub(super) struct Args {
    #[command(flatten)]
    named: Named,
    #[command(flatten)]
    place: Place,
}

pub(super) fn run(args: Args) -> anyhow::Result<ExitCode> {
    failure::run(args.place.json, inspect(args))
}

async fn inspect(args: Args) -> Result<ExitCode, Failure> {
    let (desk, screen) = (args.place.open().await?, args.place.screen());
    let records = args.named.records(&desk, AnswerWanted::Yes).await?;
    for (number, record) in records.iter().enumerate() {
        if screen.json {
            screen.json(record)?;
            continue;
        }
        if number > 0 {
            screen.line("")?;
        }
        for line in lines(record, screen, &args.place.words()) {
            screen.line(&line)?;
        }
    }
    Ok(ExitCode::SUCCESS)
}

/// A record, for a person.
fn lines(record: &RecordView, screen: Screen, place: &str) -> Vec<String> {
    let line = &record.line;
    let title = format!("{} of {} in {}", line.key, table::caller(&line.caller), line.scope);
    let span = |millis: u64| span::show(Duration::from_millis(millis));
    let mut lines = vec![screen.tint(Tone::Strong, &title)];
    let mut add = |name: &str, value: &str| lines.push(format!("  {name:12} {value}"));
    add("state", &format!("{}: {}", screen.state(&line.state, 0), meaning(record)));
    add("age", &span(line.age_ms));
    add("fence", &line.fence.to_string());
    add("attempt", &line.attempt.to_string());
    add("on unknown", &record.on_unknown);
    add("fingerprint", &record.fingerprint);
    if let Some(left) = record.lease_left_ms {
        add("lease left", &if left == 0 { "none, it has lapsed".to_owned() } else { span(left) });
    }
    if let Some(left) = record.expires_in_ms {
        add("expires in", &span(left));
    }
    if let Some(answer) = &record.answer {
        lines.extend(answered(answer, screen));
    }
    if line.state == "held" {
        lines.extend(next(record, place));
    }
    lines
}

fn meaning(record: &RecordView) -> &'static str {
    match record.line.state.as_str() {
        "in_flight" if record.has_lapsed() && record.on_unknown == "rerun" => {
            "its owner was not heard of again; the next retry runs it"
        }
        "in_flight" if record.has_lapsed() => "its owner was not heard of again, so it has failed",
        "in_flight" => "somebody runs it",
        "completed" => "every retry gets its answer",
        "released" => "the next retry runs it again",
        "held" => "nobody knows whether it took effect, and no retry will run it",
        _ => "a state that this program does not know",
    }
}

fn answered(answer: &AnswerView, screen: Screen) -> Vec<String> {
    let status = answer.status.map_or_else(String::new, |status| status.to_string());
    let what = match answer.kind.as_str() {
        "response" => format!("{status}, {} bytes", answer.body_bytes),
        "not_retained" => format!("{status}, but too large or a stream: not kept"),
        "failed" => "operation-failed, since its outcome was unknown".to_owned(),
        other => other.to_owned(),
    };
    let mut lines = vec![format!("  {:12} {what}", "answer")];
    if let Some(why) = &answer.withheld {
        lines.push(format!("    {}", screen.tint(Tone::Faint, why)));
    }
    for (name, value) in &answer.headers {
        lines.push(format!("    {}: {}", escape::line(name), escape::line(value)));
    }
    let body = match (&answer.body, &answer.body_base64) {
        (Some(text), _) => escape::lines(text),
        (None, Some(base64)) => format!("(base64) {base64}"),
        (None, None) => String::new(),
    };
    if !body.is_empty() {
        lines.push(String::new());
        let cut: String = body.chars().take(BODY_CHARS_MAX).collect();
        lines.extend(cut.lines().take(BODY_LINES_MAX).map(|line| format!("    {line}")));
        if cut.len() < body.len() || cut.lines().nth(BODY_LINES_MAX).is_some() {
            let more = screen.tint(Tone::Faint, "… cut here; --json shows all of it");
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
    let [key, scope, caller] = [&line.key, &line.scope, &line.caller].map(|w| escape::shell(w));
    let resolve = format!("semel resolve{place} --scope {scope} --caller {caller}");
    let key = if line.key.starts_with('-') { format!("-- {key}") } else { key };
    vec![
        String::new(),
        "  Find out, where the operation is carried out, whether it happened. Then:".to_owned(),
        "  it happened: every retry is to get what the service would have answered, such as:"
            .to_owned(),
        format!(
            "    {resolve} --completed --status 201 --header 'Content-Type: application/json' \
             --body-file FILE --why TEXT {key}"
        ),
        "  it did not happen, and the next retry may run it:".to_owned(),
        format!("    {resolve} --released --why TEXT {key}"),
    ]
}

#[cfg(test)]
mod tests {
    use super::*;

    fn lapsed(on_unknown: &str) -> String {
        let record = format!(
            r#"{{"scope":"s","caller":"","key":"k","state":"in_flight","fence":7,"attempt":1,
                "age_ms":5,"fingerprint":"01","on_unknown":"{on_unknown}","lease_left_ms":0}}"#
        );
        lines(&serde_json::from_str(&record).unwrap(), Screen::plain(), "").join("\n")
    }

    #[test]
    fn what_became_of_a_lapsed_record_is_said() {
        assert!(lapsed("rerun").contains("the next retry runs it"), "{}", lapsed("rerun"));
        assert!(lapsed("fail").contains("so it has failed"), "{}", lapsed("fail"));
    }
}
