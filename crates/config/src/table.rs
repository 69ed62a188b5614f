//! The table of routes that `semel config check` prints.

use std::sync::Arc;

use semel::core::{Keep, Policy, canonical::Pointer};

use super::{
    CallerRule, Config, Guard, KeyLocation, Mode, Required, Route, Upstream, units::time_text,
    values::Keyword as _,
};

const HEAD: [&str; 7] =
    ["METHODS", "HOST AND PATH", "SCOPE", "KEY", "CALLER", "ON UNKNOWN", "UPSTREAM"];

type TableRow = [String; HEAD.len()];

impl Config {
    /// The routes in matching order, guarded and unguarded, as aligned lines with column titles.
    pub fn guarded_lines(&self) -> Vec<String> {
        let mut rows = vec![HEAD.map(str::to_owned)];
        for route in &self.routes {
            let methods = route.matches.methods_text();
            let place = route.matches.place_text();
            rows.push(row(methods, place, route.guard.as_ref(), &route.upstream));
        }
        let Some(all_else) = &self.gateway.upstream else { return Vec::new() };
        rows.push(row("*".to_owned(), "(all else)".to_owned(), None, all_else));
        aligned(&rows)
    }

    /// Notes about settings that are valid but may be unintended.
    pub fn notes(&self) -> Vec<String> {
        let drain = self.gateway.drain;
        let routes = self.routes.iter().map(|route| &route.upstream);
        let slow = routes.chain(&self.gateway.upstream).find(|upstream| upstream.timeout > drain);
        let note = |upstream: &Arc<Upstream>| {
            let (drain, timeout) = (time_text(drain), time_text(upstream.timeout));
            format!(
                "`drain` is {drain}, and {} may take {timeout} to answer: requests in flight at \
                 shutdown may be cut off, and their outcome is then unknown",
                upstream.url()
            )
        };
        let guards = self.routes.iter().filter_map(|route| {
            let guard = route.guard.as_ref()?;
            Some((route.matches.to_string(), guard))
        });
        let guards = guards.flat_map(|(place, guard)| {
            let notes = guard.keep_note().into_iter().chain(guard.caller_note());
            let notes = notes.chain(guard.status_warnings());
            notes.map(move |note| format!("{place}: {note}")).collect::<Vec<_>>()
        });
        slow.map(note).into_iter().chain(guards).collect()
    }

    /// Warnings about settings that are likely to do harm, for the log. The notes contain them.
    pub fn warnings(&self) -> Vec<String> {
        let warnings = |route: &Route| {
            let warnings = route.guard.iter().flat_map(Guard::status_warnings);
            let warnings = warnings.chain(route.guard.iter().filter_map(Guard::reconcile_warning));
            warnings.map(|it| format!("{}: {it}", route.matches)).collect::<Vec<_>>()
        };
        self.routes.iter().flat_map(warnings).collect()
    }
}

impl Guard {
    /// Where a client that names the operation of another client would get its answer.
    fn reconcile_warning(&self) -> Option<String> {
        let rule = self.reconcile.as_ref()?;
        let may_meet = !rule.names_caller() && !rule.keys_are_global;
        may_meet.then(|| {
            "`reconcile` finds an operation by what the client sent, without {caller}: a client \
             that names the operation of another client gets its answer; put {caller}, or what \
             names the caller in the answer, into `get` or `match`"
                .to_owned()
        })
    }

    /// The policy under a key from the body of a caller whom nothing proves, if there can be one.
    pub(super) fn unproven_policy(&self) -> Option<Policy> {
        let in_body = self.key.iter().any(KeyLocation::may_be_in_body);
        let narrows = in_body && self.signature.is_none() && !self.keep_under_body_keys;
        let unproven = self.callers.iter().any(|rule| !rule.proves());
        (narrows && unproven).then(|| self.policy.keeping_successes())
    }

    /// Where less is kept under a key from the body than `keep` says.
    fn keep_note(&self) -> Option<String> {
        if self.unproven_policy().is_none() || self.policy.keep == Keep::Success {
            return None;
        }
        let unproven = self.callers.iter().filter(|rule| !rule.proves());
        let unproven: Vec<String> = unproven.map(CallerRule::text).collect();
        Some(format!(
            "with a key from the body, only a success is kept for callers that are not proven \
             ({}), because a forged request could come first; set `keep` to keep more",
            unproven.join(", ")
        ))
    }

    /// Where a rule may be taken for a part of the one before it: what a client says beside its
    /// credential counts only if it sends no credential.
    fn caller_note(&self) -> Option<String> {
        let first = self.callers.iter().position(CallerRule::proves)?;
        let mut later = self.callers.iter().skip(first).filter(|rule| !rule.proves());
        let said = later.find(|rule| **rule != CallerRule::Anonymous)?.text();
        let proven = self.callers.get(first)?.text();
        Some(format!(
            "`{said}` is tried only if `{proven}` finds no caller; to combine both, write \
             {{ all = [ … ] }}"
        ))
    }
}

impl Upstream {
    /// The URL that it was configured with.
    pub fn url(&self) -> String {
        let scheme = if self.tls { "https" } else { "http" };
        format!("{scheme}://{}{}", self.authority, self.prefix)
    }
}

fn row(methods: String, place: String, guard: Option<&Guard>, upstream: &Upstream) -> TableRow {
    let dash = || "-".to_owned();
    let [scope, key, caller, on_unknown] = match guard {
        None => ["(unguarded)".to_owned(), dash(), dash(), dash()],
        Some(guard) => [
            scope_text(guard),
            key_text(guard),
            guard.callers.iter().map(CallerRule::text).collect::<Vec<_>>().join(", "),
            guard.policy.on_unknown.keyword().to_owned(),
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

pub(super) fn key_text(guard: &Guard) -> String {
    let places = guard.key.iter().map(|place| match place {
        KeyLocation::Header(name) => name.to_string(),
        KeyLocation::Json(pointers) => {
            let pointers: Vec<&str> = pointers.iter().map(Pointer::as_str).collect();
            format!("json {}", pointers.join(" + "))
        }
        KeyLocation::CloudEvent => "cloudevents".to_owned(),
    });
    let places = places.collect::<Vec<_>>().join(", ");
    let signed = guard.signature.as_ref().map(|rule| format!("signed {}", rule.scheme.keyword()));
    let required = match guard.required {
        Required::No => None,
        Required::Warn => Some("warn".to_owned()),
        Required::Yes => Some("required".to_owned()),
    };
    let notes: Vec<String> = required.into_iter().chain(signed).collect();
    if notes.is_empty() { places } else { format!("{places} ({})", notes.join(", ")) }
}

fn aligned(rows: &[TableRow]) -> Vec<String> {
    let width = |column: usize| {
        let cells = rows.iter().filter_map(|row| row.get(column));
        cells.map(|cell| cell.chars().count()).max().unwrap_or_default()
    };
    let widths: Vec<usize> = (0..HEAD.len()).map(width).collect();
    let line = |row: &TableRow| {
        let cells = row.iter().zip(&widths).map(|(cell, width)| format!("{cell:width$}"));
        cells.collect::<Vec<_>>().join("  ").trim_end().to_owned()
    };
    rows.iter().map(line).collect()
}
