//! What a claim may choose: the settings of its scope, and the scopes that routes use.

use std::{
    collections::{BTreeMap, BTreeSet},
    sync::{Arc, PoisonError, RwLock},
    time::Duration,
};

use semel::core::{OnUnknown, Policy, Scope, flow::LEASE_MIN};
use semel_config::{Config, ScopeRule, duration};

use super::wire::{ClaimCall, OnUnknownWord};

/// The longest lease of a claim where its scope says nothing.
const LEASE_MAX: Duration = Duration::from_secs(60 * 60);

/// The longest retention of a claim where its scope says nothing.
const RETENTION_MAX: Duration = Duration::from_secs(365 * 24 * 60 * 60);

/// The longest wait of a claim for another owner.
pub(crate) const WAIT_MAX: Duration = Duration::from_secs(60);

/// The rules of a configuration for claims. A reload replaces them.
#[derive(Debug, Default)]
pub struct ClaimRules(RwLock<Arc<RuleTable>>);

#[derive(Debug, Default)]
pub(crate) struct RuleTable {
    scopes: BTreeMap<Scope, ScopeRule>,
    /// The scopes of routes that do not say `api = true`.
    closed: BTreeSet<Scope>,
}

/// Why the settings of a claim cannot be used.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum SettingError {
    /// A value that cannot be read.
    Malformed(String),
    /// A value beyond what the scope allows.
    Exceeds(String),
}

impl ClaimRules {
    /// The rules of this configuration.
    #[must_use]
    pub fn new(config: &Config) -> Self {
        let rules = Self::default();
        rules.set(config);
        rules
    }

    /// Replaces the rules by those of this configuration.
    pub fn set(&self, config: &Config) {
        let scopes = config.scopes.iter().map(|rule| (rule.name.clone(), rule.clone()));
        let guards = config.routes.iter().filter_map(|route| route.guard.as_ref());
        let closed = guards.filter(|guard| !guard.api).map(|guard| guard.scope.clone());
        let table = RuleTable { scopes: scopes.collect(), closed: closed.collect() };
        *self.0.write().unwrap_or_else(PoisonError::into_inner) = Arc::new(table);
    }

    pub(crate) fn get(&self) -> Arc<RuleTable> {
        Arc::clone(&self.0.read().unwrap_or_else(PoisonError::into_inner))
    }
}

impl RuleTable {
    /// Whether claims may name this scope.
    pub(crate) fn is_open(&self, scope: &Scope) -> bool {
        !scope.is_observed() && !self.closed.contains(scope)
    }

    /// The largest result that is stored in this scope.
    pub(crate) fn result_bytes_max(&self, scope: &Scope) -> usize {
        let rule = self.scopes.get(scope).and_then(|rule| rule.result_bytes_max);
        rule.unwrap_or(Policy::default().response_bytes_max)
    }

    /// The lease that a renewal may have.
    pub(crate) fn renewed_lease(
        &self,
        scope: &Scope,
        asked: Option<&str>,
        claimed: Duration,
    ) -> Result<Duration, SettingError> {
        let most = self.scopes.get(scope).and_then(|rule| rule.lease);
        let asked = asked.map(|text| lease(text, most)).transpose()?;
        Ok(asked.unwrap_or(claimed))
    }

    /// The policy of a claim.
    pub(crate) fn policy(
        &self,
        scope: &Scope,
        call: &ClaimCall<'_>,
    ) -> Result<Policy, SettingError> {
        let mut policy = Policy::default();
        let rule = self.scopes.get(scope);
        let most = rule.and_then(|rule| rule.lease);
        policy.lease = most.unwrap_or(policy.lease);
        if let Some(text) = &call.lease {
            policy.lease = lease(text, most)?;
        }
        let most = rule.and_then(|rule| rule.retention);
        policy.retention = most.unwrap_or(policy.retention);
        if let Some(text) = &call.retention {
            policy.retention = within("retention", text, most.unwrap_or(RETENTION_MAX))?;
            if policy.retention.is_zero() {
                return Err(SettingError::Malformed("`retention` must not be zero".to_owned()));
            }
        }
        if let Some(text) = &call.wait {
            policy.wait = within("wait", text, WAIT_MAX)?;
        }
        let set = rule.and_then(|rule| rule.on_unknown);
        policy.on_unknown = set.unwrap_or_default();
        if let Some(word) = call.on_unknown {
            let asked = word.into();
            if set.is_some_and(|set| asked != set && asked != OnUnknown::Hold) {
                let message = "the scope sets `on_unknown`; a claim may say the same or \"hold\"";
                return Err(SettingError::Exceeds(message.to_owned()));
            }
            policy.on_unknown = asked;
        }
        policy.hold_for = rule.and_then(|rule| rule.hold_for);
        Ok(policy)
    }
}

impl From<OnUnknownWord> for OnUnknown {
    fn from(word: OnUnknownWord) -> Self {
        match word {
            OnUnknownWord::Hold => Self::Hold,
            OnUnknownWord::Rerun => Self::Rerun,
            OnUnknownWord::Fail => Self::Fail,
        }
    }
}

fn lease(text: &str, most: Option<Duration>) -> Result<Duration, SettingError> {
    let lease = within("lease", text, most.unwrap_or(LEASE_MAX))?;
    if lease < LEASE_MIN {
        return Err(SettingError::Malformed("`lease` must be at least 100ms".to_owned()));
    }
    Ok(lease)
}

/// A duration of at most `most`.
fn within(name: &str, text: &str, most: Duration) -> Result<Duration, SettingError> {
    let time = duration(text)
        .map_err(|wrong| SettingError::Malformed(format!("`{name}` cannot be read: {wrong}")))?;
    if time > most {
        let most = semel_config::time_text(most);
        return Err(SettingError::Exceeds(format!("`{name}` may be at most {most} here")));
    }
    Ok(time)
}
