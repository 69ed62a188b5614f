//! The identity of routes, remembered by the store.
//!
//! A record is found by its scope, its caller and its key. A route that names one of them in
//! another way than before does not find the records of its own requests, and their retries run
//! again. So the store remembers what each route was, and a configuration that would lose records
//! is refused: see [`compare`].

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
use semel_config::{Config, Mode, time_text};

use crate::store::DroppedSecret;

/// How long the store may take to say, or to note, what the routes were.
const STORE_TIMEOUT: Duration = Duration::from_secs(10);

/// A configuration that would lose records, and was refused for it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct IdentityChanged(Vec<RecordLoss>);

/// What would be lost, and what to do about it.
#[derive(Clone, Debug, PartialEq, Eq)]
struct RecordLoss {
    what: String,
    advice: String,
}

impl RecordLoss {
    fn of_route(change: &RouteChange) -> Self {
        Self { what: change.to_string(), advice: change.advice() }
    }

    fn of_secret(dropped: &DroppedSecret) -> Self {
        let (since, retention) = (dropped.since, time_text(dropped.retention));
        Self {
            what: format!(
                "the caller secret was changed at {since}, records are kept for {retention}, and \
                 the former secret is not configured any more"
            ),
            advice:
                "set `secret_before_env` or `secret_before_file` until the retention has passed"
                    .to_owned(),
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
    /// Acceptance that is written down in this audit log.
    pub(crate) const fn new(approver: Approver, audit: AuditLog) -> Self {
        Self { approver, audit }
    }
}

/// What is to be remembered once a configuration is in force.
#[derive(Debug)]
#[must_use]
pub(crate) struct RouteMemory {
    /// Names and values; without a value, what is to be forgotten.
    entries: Vec<(String, Option<Vec<u8>>)>,
}

/// Compares a configuration with what the store remembers, and sets the former scopes in which its
/// routes look up their keys.
///
/// # Errors
///
/// [`IdentityChanged`] if records would be lost and that is not accepted; or if the store cannot
/// say, or the acceptance cannot be written down.
pub(crate) async fn check(
    config: &mut Config,
    store: &Arc<dyn Store>,
    dropped_secrets: &[DroppedSecret],
    accept: Option<&Approval>,
) -> anyhow::Result<RouteMemory> {
    let stored = with_timeout(store.metadata(PREFIX)).await?;
    let now = u64::try_from(Timestamp::now().as_second()).unwrap_or_default();
    let old = entry::read(&stored);
    let found = compare(&old, &config.routes);
    for warning in &found.warnings {
        tracing::warn!("{warning}");
    }
    let losses = found.changes.iter().map(RecordLoss::of_route);
    let losses: Vec<RecordLoss> =
        losses.chain(dropped_secrets.iter().map(RecordLoss::of_secret)).collect();
    if !losses.is_empty() {
        let Some(accept) = accept else { return Err(IdentityChanged(losses).into()) };
        record_approval(accept, &losses).await?;
    }
    let mut entries: Vec<(String, Option<Vec<u8>>)> = Vec::new();
    for (order, route) in config.routes.iter_mut().enumerate() {
        let before = found.before.get(order).copied().flatten().and_then(|index| old.get(index));
        let entry = RememberedRoute::next(order, route, before, now);
        if let Some(guard) = route.guard.as_mut() {
            guard.former_scopes = entry.former_scopes(guard, now);
            guard.warned_since = entry.warned_since();
        }
        if let Some((name, value)) = entry.write() {
            entries.push((name, Some(value)));
        }
    }
    let gone = stored.iter().map(|(name, _)| name.to_string());
    let gone: Vec<String> =
        gone.filter(|name| !entries.iter().any(|(kept, _)| kept == name)).collect();
    let is_new = |(name, value): &(String, Option<Vec<u8>>)| {
        !stored.iter().any(|(known, was)| **known == **name && Some(&was[..]) == value.as_deref())
    };
    entries.retain(is_new);
    let accepted = dropped_secrets.iter().map(|dropped| dropped.name.to_string());
    // Removed last: a store that fails midway must not lose where records were.
    entries.extend(gone.into_iter().chain(accepted).map(|name| (name, None)));
    Ok(RouteMemory { entries })
}

impl RouteMemory {
    /// Writes it to the store.
    pub(crate) async fn remember(self, store: &Arc<dyn Store>) -> anyhow::Result<()> {
        for (name, value) in &self.entries {
            with_timeout(store.set_metadata(name, value.as_deref())).await?;
        }
        Ok(())
    }
}

async fn with_timeout<T>(
    asked: impl Future<Output = Result<T, semel::core::StoreError>>,
) -> anyhow::Result<T> {
    use anyhow::Context as _;
    const ABOUT: &str = "cannot read the remembered routes from the store";
    timeout(STORE_TIMEOUT, asked).await.context(ABOUT)?.context(ABOUT)
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

/// The word for a mode in what is remembered.
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

    /// A store that fails midway keeps what it knew.
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
