//! What the requests of a configuration were before: which records would no longer be found.

use std::fmt;

use super::{
    entry::{GuardedRoute, RememberedRoute, RouteIdentity, fingerprint},
    mode_word,
    samples::{Sample, samples},
};
use semel_config::{Match, Mode, Route};

/// Requests whose records would be lost.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct RouteChange {
    /// The pattern that took them.
    was: String,
    was_scope: String,
    /// The pattern that takes them now, if any guards them.
    now: Option<String>,
    /// Description of the difference.
    differences: Vec<String>,
    /// Whether only the scope differs.
    only_scope: bool,
    /// One of the requests.
    sample: String,
}

/// What a comparison has found.
#[derive(Debug, Default)]
pub(super) struct Comparison {
    pub(super) changes: Vec<RouteChange>,
    pub(super) warnings: Vec<String>,
    /// For each route, the index of what took its requests before.
    pub(super) before: Vec<Option<usize>>,
}

/// Compares routes with what is remembered: each sample of a pattern, old or new, is matched with
/// both, and must be known by the same scope, caller and key.
pub(super) fn compare(old: &[RememberedRoute], routes: &[Route]) -> Comparison {
    let patterns: Vec<Option<Match>> = old.iter().map(RememberedRoute::matches).collect();
    let takes = |matches: &Match, Sample { method, host, path }: &Sample| {
        matches.takes(method, host.as_deref(), path)
    };
    let old_of = |sample: &Sample| {
        let takes = |matches: &Option<Match>| matches.as_ref().is_some_and(|m| takes(m, sample));
        patterns.iter().position(takes)
    };
    let new_of = |sample: &Sample| routes.iter().position(|route| takes(&route.matches, sample));
    let mut found = Comparison::default();
    let mut seen: Vec<(usize, Option<usize>)> = Vec::new();
    let matches = patterns.iter().flatten().chain(routes.iter().map(|route| &route.matches));
    for sample in matches.flat_map(samples) {
        let Some(index) = old_of(&sample) else { continue };
        let pair = (index, new_of(&sample));
        if seen.contains(&pair) {
            continue;
        }
        seen.push(pair);
        let route = pair.1.and_then(|index| routes.get(index));
        if let Some(entry) = old.get(index) {
            found.check(entry, route, &sample);
        }
    }
    let same = |route: &Route| {
        let pattern = route.matches.to_string();
        old.iter().position(|entry| entry.pattern == pattern)
    };
    let before =
        |route: &Route| same(route).or_else(|| samples(&route.matches).iter().find_map(old_of));
    found.before = routes.iter().map(before).collect();
    found
}

impl Comparison {
    /// Checks requests that `entry` took and that `route` takes now.
    fn check(&mut self, entry: &RememberedRoute, route: Option<&Route>, sample: &Sample) {
        let Some(old) = &entry.guard else { return };
        let guard = route.and_then(|route| route.guard.as_ref());
        let differences = match guard {
            None => vec!["no route guards them now".to_owned()],
            Some(guard) => {
                let new = RouteIdentity::of(guard);
                if old.identity == new
                    || Some(&old.identity) == RouteIdentity::before(guard).as_ref()
                {
                    self.compare_fingerprints(entry, old, guard);
                    return;
                }
                differences(&old.identity, &new)
            }
        };
        let only_scope = guard.is_some_and(|guard| {
            let new = RouteIdentity::of(guard);
            (&new.caller, &new.key) == (&old.identity.caller, &old.identity.key)
        });
        let change = RouteChange {
            was: entry.pattern.clone(),
            was_scope: old.identity.scope.clone(),
            now: guard.and(route).map(|route| route.matches.to_string()),
            differences,
            only_scope,
            sample: sample.to_string(),
        };
        // What was only observed ran at every request.
        if old.guarded {
            self.changes.push(change);
        } else if guard.is_some_and(|guard| guard.mode == Mode::Guard) {
            self.warnings.push(format!("observed records are not looked up: {change}"));
        }
    }

    fn compare_fingerprints(
        &mut self,
        entry: &RememberedRoute,
        old: &GuardedRoute,
        guard: &semel_config::Guard,
    ) {
        let new = fingerprint(guard);
        if old.fingerprint != new && mode_word(guard.mode) == mode_word(Mode::Guard) {
            let (pattern, before) = (&entry.pattern, &old.fingerprint.words);
            let warning = format!(
                "the fingerprint rule of {pattern} was {before} and is {}: a retry of what ran \
                 before may be refused as another request under the same key",
                new.words
            );
            if !self.warnings.contains(&warning) {
                self.warnings.push(warning);
            }
        }
    }
}

fn differences(old: &RouteIdentity, new: &RouteIdentity) -> Vec<String> {
    let mut differences = Vec::new();
    if old.scope != new.scope {
        differences.push(format!("the scope was \"{}\" and is \"{}\"", old.scope, new.scope));
    }
    for (name, old, new) in [("caller", &old.caller, &new.caller), ("key", &old.key, &new.key)] {
        if old != new {
            differences.push(format!("`{name}` was {} and is {}", old.words, new.words));
        }
    }
    differences
}

impl RouteChange {
    /// Advice for the operator.
    pub(super) fn advice(&self) -> String {
        let (pattern, scope) = (&self.was, &self.was_scope);
        match &self.now {
            Some(route) if self.only_scope => format!(
                "add `was = {{ scope = \"{scope}\" }}` to the route {route}: it looks there too"
            ),
            Some(_) => "keep it as it was, or wait until the records are past retention".to_owned(),
            None => format!(
                "keep a route that guards them: match = \"{pattern}\" with scope = \"{scope}\""
            ),
        }
    }
}

impl fmt::Display for RouteChange {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match &self.now {
            Some(now) if *now == self.was => write!(f, "{now}: ")?,
            Some(now) => {
                write!(f, "{now} takes what {} took, such as {}: ", self.was, self.sample)?
            }
            None => write!(f, "{} took requests such as {}: ", self.was, self.sample)?,
        }
        f.write_str(&self.differences.join(", "))
    }
}

impl fmt::Display for Sample {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} {}{}", self.method, self.host.as_deref().unwrap_or_default(), self.path)
    }
}

#[cfg(test)]
mod tests;
