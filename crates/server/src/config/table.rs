//! What a configuration guards, as a table for people.

use std::sync::Arc;

use super::{
    CallerRule, Config, Guard, KeySource, Mode, Required, Upstream, units::time_text,
    values::Words as _,
};

const HEAD: [&str; 7] =
    ["METHODS", "HOST AND PATH", "SCOPE", "KEY", "CALLER", "ON UNKNOWN", "UPSTREAM"];

type Row = [String; HEAD.len()];

impl Config {
    /// What is guarded and what is not, in the order in which routes are asked: aligned lines, the
    /// names of the columns first.
    pub(crate) fn guarded_lines(&self) -> Vec<String> {
        let mut rows = vec![HEAD.map(str::to_owned)];
        for route in &self.routes {
            let methods = route.matches.methods_text();
            let place = route.matches.place_text();
            rows.push(row(methods, place, route.guard.as_ref(), &route.upstream));
        }
        rows.push(row("*".to_owned(), "(all else)".to_owned(), None, &self.gateway.upstream));
        aligned(&rows)
    }

    /// What is no mistake, but perhaps not meant.
    pub(crate) fn notes(&self) -> Vec<String> {
        let drain = self.gateway.drain;
        let routes = self.routes.iter().map(|route| &route.upstream);
        let slow = routes.chain([&self.gateway.upstream]).find(|upstream| upstream.timeout > drain);
        let note = |upstream: &Arc<Upstream>| {
            let (drain, timeout) = (time_text(drain), time_text(upstream.timeout));
            format!(
                "`drain` is {drain}, and {} may take {timeout} to answer: what runs at the order \
                 to stop may be cut off, and its outcome is unknown",
                upstream.url()
            )
        };
        slow.map(note).into_iter().collect()
    }
}

impl Upstream {
    /// The URL that it was configured with.
    pub(crate) fn url(&self) -> String {
        let scheme = if self.tls { "https" } else { "http" };
        format!("{scheme}://{}{}", self.authority, self.prefix)
    }
}

fn row(methods: String, place: String, guard: Option<&Guard>, upstream: &Upstream) -> Row {
    let dash = || "-".to_owned();
    let [scope, key, caller, on_unknown] = match guard {
        None => ["(unguarded)".to_owned(), dash(), dash(), dash()],
        Some(guard) => [
            scope_text(guard),
            key_text(guard),
            guard.callers.iter().map(caller_text).collect::<Vec<_>>().join(", "),
            guard.policy.on_unknown.word().to_owned(),
        ],
    };
    [methods, place, scope, key, caller, on_unknown, upstream.url()]
}

fn scope_text(guard: &Guard) -> String {
    match guard.mode {
        Mode::Guard => guard.scope.to_string(),
        Mode::Observe => format!("{} (observed)", guard.scope),
    }
}

fn key_text(guard: &Guard) -> String {
    let places = guard.key.iter().map(|place| match place {
        KeySource::Header(name) => name.to_string(),
        KeySource::Json(pointer) => format!("json {}", pointer.as_str()),
        KeySource::CloudEvent => "cloudevents".to_owned(),
    });
    let places = places.collect::<Vec<_>>().join(", ");
    let signed = guard.signature.as_ref().map(|rule| format!("signed {}", rule.scheme.word()));
    let required = match guard.required {
        Required::No => None,
        Required::Warn => Some("warn".to_owned()),
        Required::Yes => Some("required".to_owned()),
    };
    let notes: Vec<String> = required.into_iter().chain(signed).collect();
    if notes.is_empty() { places } else { format!("{places} ({})", notes.join(", ")) }
}

fn caller_text(rule: &CallerRule) -> String {
    match rule {
        CallerRule::Authorization => "authorization".to_owned(),
        CallerRule::Header(name) => format!("header {name}"),
        CallerRule::CredentialHeader(name) => format!("credential {name}"),
        CallerRule::Cookie(name) => format!("cookie {name}"),
        CallerRule::Anonymous => "anonymous".to_owned(),
    }
}

fn aligned(rows: &[Row]) -> Vec<String> {
    let width = |column: usize| {
        let cells = rows.iter().filter_map(|row| row.get(column));
        cells.map(|cell| cell.chars().count()).max().unwrap_or_default()
    };
    let widths: Vec<usize> = (0..HEAD.len()).map(width).collect();
    let line = |row: &Row| {
        let cells = row.iter().zip(&widths).map(|(cell, width)| format!("{cell:width$}"));
        cells.collect::<Vec<_>>().join("  ").trim_end().to_owned()
    };
    rows.iter().map(line).collect()
}
