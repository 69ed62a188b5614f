//! Route identity: detects configuration changes that would lose records.
//!
//! Scope, caller and key identify a record. If a changed route derives one of them differently, it
//! does not find the records of earlier requests, and their retries run again. So the store
//! remembers the identity of each route, and a configuration that would lose records is refused:
//! see [`compare`].

mod compare;
mod entry;
mod samples;

use std::{fmt, sync::Arc, time::Duration};

use jiff::Timestamp;
use semel::core::Store;
use tokio::time::timeout;

pub(crate) use self::compare::RouteChange;
use self::{
    compare::compare,
    entry::{PREFIX, RememberedRoute},
};
use semel_admin::audit::{Approver, AuditLog, OperatorAction};
use semel_config::{Config, Guard, Mode};

use crate::store::DroppedSecret;

/// Timeout for reading or writing the remembered routes.
const STORE_TIMEOUT: Duration = Duration::from_secs(10);

/// Error: the configuration would lose records.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct IdentityChanged(Vec<RecordLoss>);

/// One loss of records, and how to prevent it.
#[derive(Clone, Debug, PartialEq, Eq)]
struct RecordLoss {
    what: String,
    advice: String,
}

impl RecordLoss {
    fn of_route(change: &RouteChange) -> Self {
        Self { what: change.to_string(), advice: change.advice() }
    }

    /// `until` is the time until which records may be named with the secret.
    fn of_secret(dropped: &DroppedSecret, until: Timestamp) -> Self {
        let since = dropped.since;
        Self {
            what: format!(
                "the caller secret was changed at {since}, records from before are kept until \
                 {until:.0}, and the former secret is no longer configured"
            ),
            advice: "set `secret_before_env` or `secret_before_file` until then".to_owned(),
        }
    }
}

impl fmt::Display for IdentityChanged {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        writeln!(f, "keys that have run would run again, because the configuration has changed:")?;
        for RecordLoss { what, advice } in &self.0 {
            writeln!(f, "  {what}")?;
            writeln!(f, "    {advice}")?;
        }
        write!(
            f,
            "if retries of these requests may run again: semel serve --accept-identity-change, \
             or semel reload --accept-identity-change"
        )
    }
}

impl std::error::Error for IdentityChanged {}

/// Approval of the change, and the audit log that records it.
#[derive(Clone, Debug)]
pub(crate) struct Approval {
    approver: Approver,
    audit: AuditLog,
}

impl Approval {
    /// An approval that is recorded in this audit log.
    pub(crate) const fn new(approver: Approver, audit: AuditLog) -> Self {
        Self { approver, audit }
    }
}

/// Changes to the remembered routes, written once the configuration is applied.
#[derive(Debug)]
#[must_use]
pub(crate) struct RouteMemory {
    /// Names and new values; an entry without a value is deleted.
    entries: Vec<(String, Option<Vec<u8>>)>,
}

/// Compares a configuration with the remembered routes, and sets the former scopes in which its
/// routes also look up keys.
///
/// # Errors
///
/// [`IdentityChanged`] if records would be lost without an approval. Other errors: the remembered
/// routes cannot be read, or the approval cannot be written to the audit log.
pub(crate) async fn check(
    config: &mut Config,
    store: &Arc<dyn Store>,
    dropped_secrets: &[DroppedSecret],
    accept: Option<&Approval>,
) -> anyhow::Result<RouteMemory> {
    let stored = with_timeout(store.metadata(PREFIX)).await?;
    let now = Timestamp::now();
    let seconds = u64::try_from(now.as_second()).unwrap_or_default();
    let old = entry::read(&stored);
    let found = compare(&old, &config.routes);
    for warning in &found.warnings {
        tracing::warn!("{warning}");
    }
    let mut entries: Vec<(String, Option<Vec<u8>>)> = Vec::new();
    for (order, route) in config.routes.iter_mut().enumerate() {
        let before = found.before.get(order).copied().flatten().and_then(|index| old.get(index));
        let entry = RememberedRoute::next(order, route, before, seconds);
        if let Some(guard) = route.guard.as_mut() {
            guard.former_scopes = entry.former_scopes(guard, seconds);
            guard.former_retention_until = entry.former_retention_until();
            guard.warned_since = entry.warned_since();
        }
        if let Some((name, value)) = entry.write() {
            entries.push((name, Some(value)));
        }
    }
    let lost_secrets = lost_secrets(dropped_secrets, config, now);
    let losses = found.changes.iter().map(RecordLoss::of_route);
    let of_secret = |(dropped, until): &(&DroppedSecret, _)| RecordLoss::of_secret(dropped, *until);
    let losses: Vec<RecordLoss> = losses.chain(lost_secrets.iter().map(of_secret)).collect();
    if !losses.is_empty() {
        let Some(accept) = accept else { return Err(IdentityChanged(losses).into()) };
        record_approval(accept, &losses).await?;
    }
    let gone = stored.iter().map(|(name, _)| name.to_string());
    let gone: Vec<String> =
        gone.filter(|name| !entries.iter().any(|(kept, _)| kept == name)).collect();
    let is_new = |(name, value): &(String, Option<Vec<u8>>)| {
        !stored.iter().any(|(known, was)| **known == **name && Some(&was[..]) == value.as_deref())
    };
    entries.retain(is_new);
    let accepted = lost_secrets.iter().map(|(dropped, _)| dropped.name.to_string());
    // Removed last: a store that fails midway must not lose where records were.
    entries.extend(gone.into_iter().chain(accepted).map(|name| (name, None)));
    Ok(RouteMemory { entries })
}

/// The dropped secrets that records may still be named with, and until when. Keys that callers used
/// before would run again.
fn lost_secrets<'a>(
    dropped: &'a [DroppedSecret],
    config: &Config,
    now: Timestamp,
) -> Vec<(&'a DroppedSecret, Timestamp)> {
    let lost = |dropped: &'a DroppedSecret| {
        let hashing = config.routes.iter().filter(|route| route.hashes_callers());
        let guards = hashing.filter_map(|route| route.guard.as_ref());
        let until = |guard: &Guard| {
            let until = guard.records_until(dropped.since.into());
            until.and_then(|until| Timestamp::try_from(until).ok()).unwrap_or(Timestamp::MAX)
        };
        let until = guards.map(until).max()?;
        (now < until).then_some((dropped, until))
    };
    dropped.iter().filter_map(lost).collect()
}

impl RouteMemory {
    /// Writes the changes to the store.
    pub(crate) async fn save(self, store: &Arc<dyn Store>) -> anyhow::Result<()> {
        for (name, value) in &self.entries {
            with_timeout(store.set_metadata(name, value.as_deref())).await?;
        }
        Ok(())
    }
}

async fn with_timeout<T>(
    request: impl Future<Output = Result<T, semel::core::StoreError>>,
) -> anyhow::Result<T> {
    use anyhow::Context as _;
    const ERROR: &str = "cannot read the remembered routes from the store";
    timeout(STORE_TIMEOUT, request).await.context(ERROR)?.context(ERROR)
}

async fn record_approval(accept: &Approval, losses: &[RecordLoss]) -> anyhow::Result<()> {
    let changes: Vec<&str> = losses.iter().map(|loss| &*loss.what).collect();
    let act = OperatorAction {
        who: accept.approver.who.clone(),
        act: "accept-identity-change",
        record: None,
        to: Some(changes.join("; ")),
        answer: None,
        why: accept.approver.why.clone(),
    };
    accept.audit.note(act, "accepted").await
}

/// The stored name of a mode.
const fn mode_word(mode: Mode) -> &'static str {
    match mode {
        Mode::Guard => "guard",
        Mode::Observe => "observe",
    }
}

#[cfg(test)]
mod tests {
    use semel::MemoryStore;
    use semel_config::Overrides;

    use super::*;

    /// A failure in between must not lose a former identity.
    #[tokio::test]
    async fn entries_are_written_before_others_are_removed() {
        let store: Arc<dyn Store> = Arc::new(MemoryStore::new());
        for name in ["gone-1", "gone-2"] {
            store.set_metadata(&format!("{PREFIX}{name}"), Some(b"{}")).await.unwrap();
        }
        let text = "[gateway]\nupstream = \"http://127.0.0.1:1\"\n";
        let mut config = Config::read(None, text, &Overrides::default(), &|_| None).unwrap();
        let to_remember = check(&mut config, &store, &[], None).await.unwrap();
        let writes: Vec<bool> =
            to_remember.entries.iter().map(|(_, value)| value.is_some()).collect();
        assert_eq!(writes, [true, false, false]);
    }
}
