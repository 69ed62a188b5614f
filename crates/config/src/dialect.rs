//! `dialect` and `statuses`: how the errors of a route look to its clients.

use semel::core::{Dialect, Problem, RetryContext};
use serde_json::{Value, json};

use super::{
    Guard,
    read::{FromText, FromToml, TomlValue, integer, origin, wrong_type},
    report::{DiagnosticReport, ValueOrigin},
    suggest,
};

impl FromText for Dialect {
    const EXPECTED: &'static str = "the name of a dialect: \"stripe\"";

    fn parse(text: &str) -> Result<Self, String> {
        Self::from_name(text).ok_or_else(|| {
            let names = Self::ALL.map(|dialect| dialect.name());
            let hint = suggest::hint(text, names);
            format!("this must be {}{hint}", suggest::listed(&names))
        })
    }

    fn schema() -> Value {
        json!({ "enum": Self::ALL.map(|dialect| dialect.name()) })
    }
}

/// `statuses`: the statuses of single problems.
#[derive(Clone, Debug)]
pub(super) struct ProblemStatuses(Vec<(Problem, u16)>);

impl ProblemStatuses {
    /// A dialect with these statuses. They were checked when they were read.
    pub(super) fn apply(&self, dialect: Dialect) -> Dialect {
        self.0.iter().fold(dialect, |dialect, (problem, status)| {
            dialect.clone().with_status(*problem, *status).unwrap_or(dialect)
        })
    }
}

impl FromToml for ProblemStatuses {
    fn read(found: &TomlValue<'_>, report: &mut DiagnosticReport<'_>) -> Option<Self> {
        let Some(table) = found.get_ref().as_table() else {
            wrong_type(found, "a table of problems: { key-reused = 409 }", report);
            return None;
        };
        let mut statuses = Vec::new();
        let mut good = true;
        for (slug, value) in table {
            let problems: Vec<Problem> = problems(slug.get_ref()).collect();
            if problems.is_empty() {
                let hint = suggest::hint(slug.get_ref(), slugs());
                let message = format!("unknown problem `{}`{hint}", slug.get_ref());
                report.add_error(&ValueOrigin::File(slug.span()), message);
                good = false;
                continue;
            }
            let status = integer(value, "a status from 400 to 599", report);
            let Some(status) = status.map(|status| u16::try_from(status).unwrap_or(u16::MAX))
            else {
                good = false;
                continue;
            };
            for problem in problems {
                match Dialect::IETF.with_status(problem, status) {
                    Ok(_) => statuses.push((problem, status)),
                    Err(error) => {
                        report.add_error(&origin(value), error.to_string());
                        good = false;
                    }
                }
            }
        }
        good.then_some(Self(statuses))
    }

    fn schema() -> Value {
        let status = |slug| {
            let description = format!("The status of the problem `{slug}`.");
            json!({
                "description": description, "type": "integer", "minimum": 400, "maximum": 599
            })
        };
        let properties: serde_json::Map<String, Value> =
            slugs().map(|slug| (slug.to_owned(), status(slug))).collect();
        json!({ "type": "object", "properties": properties, "additionalProperties": false })
    }
}

/// The problems with a slug whose status can be set. The 504 of an `outcome-unknown` that is not
/// recorded yet stays: a retry gets the answer.
fn problems(slug: &str) -> impl Iterator<Item = Problem> {
    let settable = Problem::ALL.iter().filter(|problem| **problem != Problem::OutcomeUnrecorded);
    settable.filter(move |problem| problem.slug() == slug).copied()
}

fn slugs() -> impl Iterator<Item = &'static str> {
    let settable = |problem: &&Problem| Dialect::IETF.with_status(**problem, 400).is_ok();
    let mut slugs: Vec<_> = Problem::ALL.iter().filter(settable).map(|it| it.slug()).collect();
    slugs.dedup();
    slugs.into_iter()
}

impl Guard {
    /// The statuses that are not those of the dialect, by slug.
    pub(super) fn statuses(&self) -> Vec<(&'static str, u16)> {
        let statuses = self.dialect.statuses().iter();
        let mut statuses: Vec<_> =
            statuses.map(|(problem, status)| (problem.slug(), *status)).collect();
        // Two problems may share a slug.
        statuses.dedup();
        statuses
    }

    /// A warning for each final problem with a status that SDKs retry.
    pub(super) fn status_warnings(&self) -> Vec<String> {
        let context = RetryContext::guarded(self.policy.on_unknown);
        let misleads = |(problem, status): &&(Problem, u16)| {
            matches!(status, 408 | 409 | 429 | 500..) && !problem.should_retry(context)
        };
        let misleading = self.dialect.statuses().iter().filter(misleads);
        let warning = |(problem, status): &(Problem, u16)| {
            format!(
                "`{}` is final, and many SDKs retry its status {status}, unless they obey \
                 `x-should-retry`",
                problem.slug()
            )
        };
        misleading.map(warning).collect()
    }
}

#[cfg(test)]
mod tests {
    use std::path::Path;

    use super::*;
    use semel_tower::KeyLocation;

    use crate::{Config, Overrides};

    fn guard(defaults: &str, lines: &str) -> Guard {
        let source = format!(
            "gateway.upstream = \"http://a\"\n[defaults]\n{defaults}\n[[route]]\n\
             match = \"POST /\"\nscope = \"s\"\ncaller = \"anonymous\"\n{lines}"
        );
        let config =
            Config::read(Some(Path::new("a")), &source, &Overrides::default(), &|_| None).unwrap();
        config.routes.into_iter().next().unwrap().guard.unwrap()
    }

    #[test]
    fn a_dialect_moves_the_key_and_with_it_the_identity_of_the_route() {
        let ietf = guard("", "");
        let paypal = guard("dialect = \"paypal\"", "");
        assert_eq!(paypal.key_text(), r#"[{ header = "paypal-request-id" }]"#);
        assert_ne!(paypal.key_text(), ietf.key_text());
        let square = guard("dialect = \"paypal\"", "dialect = \"square\"");
        let pointer = "/idempotency_key".parse().unwrap();
        assert_eq!(square.key, [KeyLocation::Json(vec![pointer])]);
        for (defaults, lines) in [
            ("dialect = \"paypal\"", "key = \"Idempotency-Key\""),
            ("key = \"Idempotency-Key\"", "dialect = \"paypal\""),
            ("", "dialect = \"stripe\""),
        ] {
            assert_eq!(guard(defaults, lines).key_text(), ietf.key_text());
        }
    }

    #[test]
    fn only_a_final_error_with_a_status_that_sdks_retry_is_warned_of() {
        for (lines, warnings) in [
            ("statuses = { key-reused = 409 }", 1),
            ("statuses = { key-reused = 500, outcome-unknown = 429, key-missing = 408 }", 3),
            ("statuses = { key-reused = 400, in-progress = 503, store-unavailable = 500 }", 0),
            ("statuses = { upstream-timeout = 500 }", 1),
            ("statuses = { upstream-timeout = 500 }\non_unknown = \"rerun\"", 0),
            // One of the two problems of this name is final.
            ("statuses = { deadline-exceeded = 503 }", 1),
        ] {
            assert_eq!(guard("", lines).status_warnings().len(), warnings, "{lines}");
        }
    }

    #[test]
    fn the_error_of_an_outcome_that_is_not_recorded_yet_keeps_its_status() {
        let guard = guard("", "statuses = { outcome-unknown = 400 }");
        assert_eq!(guard.dialect.status(Problem::OutcomeUnknown), 400);
        assert_eq!(guard.dialect.status(Problem::OutcomeUnrecorded), 504);
        assert_eq!(guard.statuses(), [("outcome-unknown", 400)]);
    }
}
