//! `deadline`: the deadlines of clients.

use std::time::Duration;

use semel_tower::{DeadlineHeader, DeadlineRule};
use serde_json::{Value, json};

use super::{
    read::{FromText, FromToml, Located, TomlField, TomlValue, origin, refuse_repeats},
    report::DiagnosticReport,
    settings::{Setting, SettingsTable as _, default, settings},
    suggest,
    units::{AnyDuration, time_text},
};

settings! {
    /// The deadlines of clients.
    DeadlineTable {
        /// Headers that are read; the earliest deadline counts. `Request-Deadline` is a date,
        /// `Request-Timeout` seconds, `X-Request-Timeout-Ms` and `x-envoy-expected-rq-timeout-ms`
        /// milliseconds, `grpc-timeout` as gRPC defines it.
        headers: Vec<Located<DeadlineHeader>> = default(json!(names()));
        /// How far the clocks of clients may be behind. It applies to dates only.
        leeway: AnyDuration = default(time_text(DeadlineRule::LEEWAY_DEFAULT));
        /// Whether the upstream receives the time that the client has left. By default it receives
        /// the timeout of the upstream instead. Needs `on_unknown = "rerun"`: a service that
        /// cancels an operation leaves its outcome unknown.
        propagate: bool = default(false);
    }
}

fn names() -> Vec<&'static str> {
    DeadlineHeader::ALL.iter().map(|header| header.as_str()).collect()
}

impl FromText for DeadlineHeader {
    const EXPECTED: &'static str = "the name of a header that carries a deadline";

    fn parse(text: &str) -> Result<Self, String> {
        Self::from_name(text).ok_or_else(|| {
            let (known, hint) = (names().join(", "), suggest::hint(text, names()));
            format!("this header carries no deadline; known are {known}{hint}")
        })
    }

    fn schema() -> Value {
        json!({ "type": "string" })
    }
}

/// `deadline`.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct DeadlineSetting {
    /// The headers that are read.
    pub headers: Vec<DeadlineHeader>,
    /// How far the clocks of clients may be behind.
    pub leeway: Duration,
    /// Whether the upstream receives the time that is left.
    pub propagate: bool,
}

impl DeadlineSetting {
    /// The rule of the layer, in front of a service with this timeout.
    pub fn rule(&self, service_timeout: Duration) -> DeadlineRule {
        let rule = DeadlineRule::new(self.headers.iter().copied()).leeway(self.leeway);
        if self.propagate { rule.propagate() } else { rule.service_timeout(service_timeout) }
    }
}

impl FromToml for DeadlineSetting {
    fn read(found: &TomlValue<'_>, report: &mut DiagnosticReport<'_>) -> Option<Self> {
        let table = DeadlineTable::read(found, report)?;
        let headers = match &table.headers {
            TomlField::Bad => return None,
            TomlField::Absent => DeadlineHeader::ALL.to_vec(),
            TomlField::Good(list) if list.value.is_empty() => {
                report.add_error(&list.origin, "this list is empty, so no deadline would be read");
                return None;
            }
            TomlField::Good(list) => {
                refuse_repeats(&list.value, report);
                list.value.iter().map(|header| header.value).collect()
            }
        };
        if table.leeway.is_bad() || table.propagate.is_bad() {
            return None;
        }
        let leeway = table.leeway.value().map_or(DeadlineRule::LEEWAY_DEFAULT, |leeway| leeway.0);
        if leeway > LEEWAY_MAX {
            report.add_error(&origin(found), "`leeway` is at most 5m");
            return None;
        }
        let propagate = table.propagate.value().copied().unwrap_or_default();
        Some(Self { headers, leeway, propagate })
    }

    fn schema() -> Value {
        DeadlineTable::schema()
    }

    fn members() -> Vec<Setting> {
        DeadlineTable::all()
    }
}

/// A larger difference of clocks is a mistake.
const LEEWAY_MAX: Duration = Duration::from_secs(5 * 60);
