//! The routes in plain words, for the dashboard.

use semel::core::OnStoreDown;

use super::{
    CallerRule, Config, Guard, Mode, Route,
    table::key_text,
    units::{size_text, time_text},
};

/// What a route guards, and how.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct RouteDescription {
    /// The requests that it takes: `POST /v1/payments/**`.
    pub matches: String,
    /// Its scope; `None` if it lets requests pass unguarded.
    pub scope: Option<String>,
    /// Whether it only counts what it would do.
    pub is_observed: bool,
    /// Its settings in words, by name.
    pub facts: Vec<(&'static str, String)>,
    /// Answers of the service, and what they do to the key.
    pub effects: Vec<(String, String)>,
}

impl Config {
    /// The routes in matching order, and what happens to all other requests.
    pub fn route_descriptions(&self) -> Vec<RouteDescription> {
        let mut routes: Vec<_> = self.routes.iter().map(Route::describe).collect();
        if let Some(all_else) = &self.gateway.upstream {
            routes.push(RouteDescription {
                matches: "all other requests".to_owned(),
                scope: None,
                is_observed: false,
                facts: vec![("Upstream", all_else.url())],
                effects: Vec::new(),
            });
        }
        routes
    }
}

impl Route {
    fn describe(&self) -> RouteDescription {
        let guard = self.guard.as_ref();
        let upstream = ("Upstream", self.upstream.url());
        RouteDescription {
            matches: self.matches.to_string(),
            scope: guard.map(|guard| guard.scope.to_string()),
            is_observed: guard.is_some_and(|guard| guard.mode == Mode::Observe),
            facts: guard.map(Guard::facts).into_iter().flatten().chain([upstream]).collect(),
            effects: match guard {
                Some(guard) if guard.mode == Mode::Guard => guard.effect_rows(),
                Some(_) | None => Vec::new(),
            },
        }
    }
}

impl Guard {
    fn facts(&self) -> Vec<(&'static str, String)> {
        let policy = &self.policy;
        let callers: Vec<String> = self.callers.iter().map(CallerRule::text).collect();
        let wait = match policy.wait.is_zero() {
            true => "a repeat of a running request gets 409 at once".to_owned(),
            false => format!(
                "a repeat of a running request waits up to {} for its answer, then gets 409",
                time_text(policy.wait)
            ),
        };
        let store = match policy.on_store_down {
            OnStoreDown::Reject => "a new request gets 503",
            OnStoreDown::Pass => "a new request runs unguarded",
        };
        let lease = format!("{}, renewed while the request runs", time_text(policy.lease));
        vec![
            ("Scope", self.scope.to_string()),
            ("Key", key_text(self)),
            ("Caller", callers.join(", ")),
            ("Repeats", wait),
            ("Kept for", time_text(policy.retention)),
            ("Lease", lease),
            ("Store unavailable", format!("{store}, after {}", time_text(policy.store_timeout))),
            ("Largest request", size_text(policy.request_bytes_max as u64)),
            ("Largest recorded answer", size_text(policy.response_bytes_max as u64)),
        ]
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::Overrides;

    #[test]
    fn routes_are_described_in_words() {
        let text = "[gateway]\nupstream = \"http://127.0.0.1:1\"\n\
            [[route]]\nmatch = \"POST /v1/payments/**\"\nscope = \"payments\"\nwait = \"0s\"\n\
            [[route]]\nmatch = \"POST /trial\"\nscope = \"trial\"\nmode = \"observe\"\n\
            [[route]]\nmatch = \"* /static/**\"\nguard = false\n";
        let config = Config::read(None, text, &Overrides::default(), &|_| None).unwrap();
        let routes = config.route_descriptions();
        let names: Vec<_> = routes.iter().map(|it| (&*it.matches, it.scope.as_deref())).collect();
        let expected = [
            ("POST /v1/payments/**", Some("payments")),
            ("POST /trial", Some("trial")),
            ("* /static/**", None),
            ("all other requests", None),
        ];
        assert_eq!(names, expected);
        let [payments, trial, ..] = &routes[..] else { unreachable!() };
        let fact =
            |name| payments.facts.iter().find(|(known, _)| *known == name).unwrap().1.clone();
        assert_eq!(fact("Repeats"), "a repeat of a running request gets 409 at once");
        assert_eq!(fact("Kept for"), "24h");
        let held = payments.effects.iter().find(|(answers, _)| answers.contains("503")).unwrap();
        assert!(held.1.contains("held until an operator resolves it"), "{held:?}");
        assert!(trial.is_observed && trial.effects.is_empty());
    }
}
