//! What the store remembers of a route.

use std::time::{Duration, SystemTime};

use bytes::Bytes;
use data_encoding::HEXLOWER;
use semel::core::{
    Scope,
    store::{METADATA_NAME_BYTES_MAX, METADATA_VALUE_BYTES_MAX},
};
use serde::{Deserialize, Serialize};
use sha2::{Digest as _, Sha256};

use super::mode_word;
use semel_config::{Guard, Match, Mode, Required, Route};

/// What the names of all entries begin with.
pub(super) const PREFIX: &str = "route:";

/// How much of a rule is kept to be read. Digests are of all of it.
const WORDS_BYTES_MAX: usize = 500;

/// Seconds since 1970.
pub(super) type Seconds = u64;

/// One route as it was.
#[derive(Clone, Debug, PartialEq, Eq, Deserialize, Serialize)]
pub(super) struct RememberedRoute {
    /// Its match pattern, methods included.
    pub(super) pattern: String,
    /// Its place among the routes.
    pub(super) order: usize,
    /// Its guard settings; `None` if it was unguarded.
    pub(super) guard: Option<GuardedRoute>,
}

/// How a route guarded.
#[derive(Clone, Debug, PartialEq, Eq, Deserialize, Serialize)]
pub(super) struct GuardedRoute {
    pub(super) identity: RouteIdentity,
    pub(super) fingerprint: RouteRule,
    pub(super) mode: String,
    /// Whether it ever was in guard mode with this identity.
    pub(super) guarded: bool,
    /// Since when it has this identity.
    pub(super) since: Seconds,
    /// Scopes in which its records may be as well, and until when. They stay here until then,
    /// whether or not the configuration still names them.
    pub(super) former: Vec<(String, Seconds)>,
    /// Since when it warns of requests without a key, if it does.
    #[serde(default)]
    pub(super) warned_since: Option<Seconds>,
    /// Until when there may be observed records, if it observed before it guarded.
    pub(super) observed_until: Option<Seconds>,
    /// In seconds.
    pub(super) retention_s: u64,
    /// Until when there may be records that were made before `retention_s` was in force, if that
    /// was longer.
    pub(super) former_retention_until: Seconds,
}

/// What a record of the route is found by.
#[derive(Clone, Debug, PartialEq, Eq, Deserialize, Serialize)]
pub(super) struct RouteIdentity {
    pub(super) scope: String,
    pub(super) caller: RouteRule,
    pub(super) key: RouteRule,
}

/// A rule, to be compared by its digest and read by its words.
#[derive(Clone, Debug, Eq, Deserialize, Serialize)]
pub(super) struct RouteRule {
    pub(super) words: String,
    pub(super) sha256: String,
}

impl PartialEq for RouteRule {
    fn eq(&self, other: &Self) -> bool {
        self.sha256 == other.sha256
    }
}

impl RouteRule {
    fn new(text: &str) -> Self {
        let sha256 = HEXLOWER.encode(&Sha256::digest(text));
        let fits = |(at, _): &(usize, char)| *at >= WORDS_BYTES_MAX;
        let words = match text.char_indices().find(fits) {
            Some((end, _)) => format!("{}…", text.get(..end).unwrap_or_default()),
            None => text.to_owned(),
        };
        Self { words, sha256 }
    }
}

impl RouteIdentity {
    pub(super) fn of(guard: &Guard) -> Self {
        Self {
            scope: guard.scope.as_str().to_owned(),
            caller: RouteRule::new(&guard.caller_text()),
            key: RouteRule::new(&guard.key_text()),
        }
    }

    /// The identity that a route says it had before.
    pub(super) fn before(guard: &Guard) -> Option<Self> {
        let scope = guard.was.as_ref()?.as_str().to_owned();
        Some(Self { scope, ..Self::of(guard) })
    }
}

/// What a route says of its fingerprints.
pub(super) fn fingerprint(guard: &Guard) -> RouteRule {
    RouteRule::new(&guard.fingerprint_text())
}

impl RememberedRoute {
    /// The next remembered state of a route. `before` is the route that matched its requests so
    /// far.
    pub(super) fn next(order: usize, route: &Route, before: Option<&Self>, now: Seconds) -> Self {
        let before = before.and_then(|entry| entry.guard.as_ref());
        let guard = route.guard.as_ref().map(|guard| GuardedRoute::next(guard, before, now));
        Self { pattern: route.matches.to_string(), order, guard }
    }

    pub(super) fn matches(&self) -> Option<Match> {
        Match::parse(&self.pattern).ok()
    }

    /// The former scopes in which keys are also looked up, each with its end.
    pub(super) fn former_scopes(&self, guard: &Guard, now: Seconds) -> Vec<(Scope, SystemTime)> {
        let Some(entry) = &self.guard else { return Vec::new() };
        let mut scopes = Vec::new();
        let mut add = |scope: Scope, until: Seconds| {
            if now < until {
                scopes.push((scope, SystemTime::UNIX_EPOCH + Duration::from_secs(until)));
            }
        };
        for (scope, until) in &entry.former {
            let Ok(scope) = Scope::new(scope) else { continue };
            if let Some(observed_until) = entry.observed_until {
                add(scope.observed(), observed_until.min(*until));
            }
            add(scope, *until);
        }
        if let Some(until) = entry.observed_until {
            add(guard.scope.observed(), until);
        }
        scopes
    }

    /// Until when there may be records of a former, longer retention.
    pub(super) fn former_retention_until(&self) -> Option<SystemTime> {
        let until = self.guard.as_ref()?.former_retention_until;
        SystemTime::UNIX_EPOCH.checked_add(Duration::from_secs(until))
    }

    /// Since when requests without a key are warned.
    pub(super) fn warned_since(&self) -> Option<SystemTime> {
        let since = self.guard.as_ref()?.warned_since?;
        SystemTime::UNIX_EPOCH.checked_add(Duration::from_secs(since))
    }

    /// Name and value, or nothing if it is too long to be remembered.
    pub(super) fn write(&self) -> Option<(String, Vec<u8>)> {
        let mut name = format!("{PREFIX}{}", self.pattern);
        if name.len() > METADATA_NAME_BYTES_MAX {
            name = format!("{PREFIX}sha256:{}", HEXLOWER.encode(&Sha256::digest(&self.pattern)));
        }
        let value = serde_json::to_vec(self).ok();
        let value = value.filter(|value| value.len() <= METADATA_VALUE_BYTES_MAX);
        if value.is_none() {
            tracing::warn!(route = self.pattern, "the pattern of a route is too long to remember");
        }
        Some((name, value?))
    }
}

impl GuardedRoute {
    fn next(guard: &Guard, before: Option<&Self>, now: Seconds) -> Self {
        let identity = RouteIdentity::of(guard);
        let guards = guard.mode == Mode::Guard;
        // A part of a second is one.
        let retention = guard.policy.retention.as_secs().saturating_add(1);
        let longest = before.map_or(0, |before| before.retention_s).max(retention);
        let known = before.map_or(0, |before| before.former_retention_until);
        let until = now.saturating_add(longest).max(known);
        let same = before.filter(|before| before.identity == identity);
        let observed = before.filter(|before| before.mode == mode_word(Mode::Observe));
        let observed_until = match (guards, observed) {
            (false, _) => None,
            (true, Some(_)) => Some(until),
            (true, None) => before.and_then(|before| before.observed_until),
        };
        Self {
            fingerprint: fingerprint(guard),
            mode: mode_word(guard.mode).to_owned(),
            guarded: guards || same.is_some_and(|same| same.guarded),
            since: same.map_or(now, |same| same.since),
            former: former(guard, before, until, now),
            warned_since: (guard.required == Required::Warn)
                .then(|| before.and_then(|before| before.warned_since).unwrap_or(now)),
            observed_until: observed_until.filter(|until| now < *until),
            retention_s: retention,
            former_retention_until: if longest > retention { until } else { known },
            identity,
        }
    }
}

/// The scopes in which records may be, besides the route's own: those that were known and are not
/// past their time, and the one that the route says it had.
fn former(
    guard: &Guard,
    before: Option<&GuardedRoute>,
    until: Seconds,
    now: Seconds,
) -> Vec<(String, Seconds)> {
    let known = before.map(|before| before.former.as_slice()).unwrap_or_default();
    let mut former: Vec<_> = known.iter().filter(|(_, until)| now < *until).cloned().collect();
    // Going back to a former scope leaves nothing to look for there.
    former.retain(|(scope, _)| scope != guard.scope.as_str());
    if let Some(was) = &guard.was
        && !former.iter().any(|(scope, _)| scope == was.as_str())
    {
        let left = before.is_some_and(|before| before.identity.scope == was.as_str());
        let first_said = before.is_none_or(|before| before.identity != RouteIdentity::of(guard));
        if left || first_said {
            former.push((was.as_str().to_owned(), until));
        }
    }
    former
}

/// What a store remembers, in the order of the routes. What cannot be read is left out.
pub(super) fn read(stored: &[(Box<str>, Bytes)]) -> Vec<RememberedRoute> {
    let read = |(name, value): &(Box<str>, Bytes)| {
        let entry = serde_json::from_slice(value);
        entry.map_err(|error| tracing::warn!(%name, %error, "a remembered route is unreadable"))
    };
    let mut entries: Vec<RememberedRoute> =
        stored.iter().filter_map(|entry| read(entry).ok()).collect();
    entries.sort_by_key(|entry| entry.order);
    entries
}
