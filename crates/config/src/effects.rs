//! The effect of a service's answers on a key, as text for `semel config check`.

use semel::core::{
    AnswerFacts, Dialect, GrpcStatus, OnUnknown, Problem, Verdict, canonical::Pointer,
};
use semel_tower::RecordContent;

use super::{CallerRule, Config, Guard, KeyLocation, Mode, units::time_text};

/// The statuses that are shown: one of each kind, and the two that look like a refusal.
const STATUSES: [u16; 6] = [200, 307, 402, 429, 500, 503];

const CUT: &str = "cut connection";

/// A request of which nothing proves who sent it.
const UNPROVEN: &str = "(key from the body, caller not proven)";

impl Config {
    /// What answers do, for each guarded route: its name, then a line for each effect.
    pub fn effect_lines(&self) -> Vec<String> {
        let mut lines = Vec::new();
        for route in &self.routes {
            let Some(guard) = &route.guard else { continue };
            lines.push(String::new());
            lines.push(format!("{} ({}):", route.matches, guard.scope));
            match guard.mode {
                Mode::Observe => lines
                    .push("  every request runs; the effect of a guard is only counted".to_owned()),
                Mode::Guard => lines.extend(guard.effects()),
            }
            lines.extend(guard.callers.iter().filter(|rule| rule.hashes()).map(credential_line));
        }
        lines
    }
}

impl Guard {
    /// A line for each effect, with the answers that have it, and one for the dialect.
    fn effects(&self) -> Vec<String> {
        let rows = self.effect_rows();
        let width = rows.iter().map(|(answers, _)| answers.len()).max().unwrap_or_default();
        let rows =
            rows.into_iter().map(|(answers, effect)| format!("  {answers:width$}  {effect}"));
        rows.chain(self.dialect_line()).collect()
    }

    /// The answers of the service, and what they do to the key.
    pub(super) fn effect_rows(&self) -> Vec<(String, String)> {
        let unproven = self.unproven_policy();
        let in_body = |source: &KeyLocation| matches!(source, KeyLocation::Json(_));
        let always = self.key.iter().all(in_body) && !self.callers.iter().any(CallerRule::proves);
        let status = |status: u16| {
            let facts =
                AnswerFacts { status, grpc: GrpcStatus::No, said: None, asks_for_retry: false };
            let usual = self.policy.verdict(&facts);
            let unproven = unproven.as_ref().map(|policy| policy.verdict(&facts));
            match unproven.filter(|unproven| *unproven != usual) {
                None => vec![(status.to_string(), usual)],
                Some(unproven) if always => vec![(status.to_string(), unproven)],
                Some(unproven) => {
                    vec![(status.to_string(), usual), (format!("{status} {UNPROVEN}"), unproven)]
                }
            }
        };
        let answers = STATUSES.into_iter().flat_map(status);
        let answers = answers.chain([(CUT.to_owned(), Verdict::Unknown)]);
        let mut effects: Vec<(Verdict, Vec<String>)> = Vec::new();
        for (answer, verdict) in answers {
            match effects.iter_mut().find(|(known, _)| *known == verdict) {
                Some((_, same)) => same.push(answer),
                None => effects.push((verdict, vec![answer])),
            }
        }
        let row =
            |(verdict, answers): (Verdict, Vec<String>)| (answers.join(", "), self.effect(verdict));
        effects.into_iter().map(row).collect()
    }

    /// How the errors of Semel differ from the default.
    fn dialect_line(&self) -> Option<String> {
        if self.dialect == Dialect::IETF {
            return None;
        }
        let changed = Problem::ALL.iter().filter(|it| self.dialect.status(**it) != it.status());
        let changed = changed.map(|it| format!(", {} is {}", it.slug(), self.dialect.status(*it)));
        Some(format!("  errors of Semel: {}{}", self.dialect.name(), changed.collect::<String>()))
    }

    fn effect(&self, verdict: Verdict) -> String {
        match verdict {
            Verdict::Completed => self.recorded(),
            Verdict::Retry => "nothing is recorded; a retry of the same request runs".to_owned(),
            Verdict::Forget => "nothing is recorded; the key is free for any request".to_owned(),
            Verdict::Unknown => self.unknown(),
        }
    }

    fn recorded(&self) -> String {
        match &self.record {
            RecordContent::Full => "the response is recorded; retries get it".to_owned(),
            RecordContent::Status => {
                let status = self.dialect.status(Problem::ResponseNotRetained);
                format!("the status is recorded; retries get {status} response-not-retained")
            }
            RecordContent::Redacted(pointers) => {
                let pointers: Vec<&str> = pointers.iter().map(Pointer::as_str).collect();
                let pointers = pointers.join(", ");
                format!("the response is recorded without {pointers}; retries get that")
            }
            _ => "the response is recorded".to_owned(),
        }
    }

    fn unknown(&self) -> String {
        match (self.policy.on_unknown, self.policy.hold_for) {
            (OnUnknown::Hold, None) => {
                "the outcome is unknown; the key is held until an operator resolves it".to_owned()
            }
            (OnUnknown::Hold, Some(time)) => format!(
                "the outcome is unknown; the key is held until an operator resolves it, and fails \
                 after {}",
                time_text(time)
            ),
            (OnUnknown::Rerun, _) => {
                "the outcome is unknown; the next request with the key runs".to_owned()
            }
            (OnUnknown::Fail, _) => {
                let status = self.dialect.status(Problem::OperationFailed);
                format!("the outcome is unknown; retries get {status} operation-failed")
            }
        }
    }
}

/// Retries of one client must have one caller.
fn credential_line(rule: &CallerRule) -> String {
    format!(
        "  {} names a caller by the credential: a retry with another credential runs again",
        rule.text()
    )
}
