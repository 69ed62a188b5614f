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

pub(crate) use self::compare::Change;
use self::{
    compare::compare,
    entry::{Entry, PREFIX},
};
use crate::{
    config::{Config, Mode},
    ops::audit::{Act, Audit},
};

/// How long the store may take to say, or to note, what the routes were.
const STORE_TIMEOUT: Duration = Duration::from_secs(10);

/// A configuration that would lose records, and was refused for it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct IdentityChanged(Vec<Change>);

impl fmt::Display for IdentityChanged {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        writeln!(f, "keys that have run would run again, because routes have changed:")?;
        for change in &self.0 {
            writeln!(f, "  {change}")?;
            writeln!(f, "    {}", change.advice())?;
        }
        write!(
            f,
            "if retries of these requests may run again: semel serve --accept-identity-change, \
             or semel reload --accept-identity-change"
        )
    }
}

impl std::error::Error for IdentityChanged {}

/// Who accepts that records are lost, and why.
#[derive(Clone, Debug)]
pub(crate) struct Acceptor {
    pub(crate) who: String,
    pub(crate) why: String,
}

/// Approval of the change, and the audit log that records it.
#[derive(Clone, Debug)]
pub(crate) struct Acceptance {
    acceptor: Acceptor,
    audit: Audit,
}

impl Acceptor {
    /// Writes the acceptance down there.
    pub(crate) const fn on(self, audit: Audit) -> Acceptance {
        Acceptance { acceptor: self, audit }
    }
}

/// What is to be remembered once a configuration is in force.
#[derive(Debug)]
#[must_use]
pub(crate) struct ToRemember {
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
    accept: Option<&Acceptance>,
) -> anyhow::Result<ToRemember> {
    let stored = in_time(store.metadata(PREFIX)).await?;
    let now = u64::try_from(Timestamp::now().as_second()).unwrap_or_default();
    let old = entry::read(&stored);
    let found = compare(&old, &config.routes);
    for warning in &found.warnings {
        tracing::warn!("{warning}");
    }
    if !found.changes.is_empty() {
        let Some(accept) = accept else { return Err(IdentityChanged(found.changes).into()) };
        write_down(accept, &found.changes).await?;
    }
    let mut entries: Vec<(String, Option<Vec<u8>>)> = Vec::new();
    for (order, route) in config.routes.iter_mut().enumerate() {
        let before = found.before.get(order).copied().flatten().and_then(|index| old.get(index));
        let entry = Entry::next(order, route, before, now);
        if let Some(guard) = route.guard.as_mut() {
            guard.former_scopes = entry.former_scopes(guard, now);
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
    entries.extend(gone.into_iter().map(|name| (name, None)));
    Ok(ToRemember { entries })
}

impl ToRemember {
    /// Writes it to the store.
    pub(crate) async fn remember(self, store: &Arc<dyn Store>) -> anyhow::Result<()> {
        for (name, value) in &self.entries {
            in_time(store.set_metadata(name, value.as_deref())).await?;
        }
        Ok(())
    }
}

async fn in_time<T>(
    asked: impl Future<Output = Result<T, semel::core::StoreError>>,
) -> anyhow::Result<T> {
    use anyhow::Context as _;
    const ABOUT: &str = "cannot read the remembered routes from the store";
    timeout(STORE_TIMEOUT, asked).await.context(ABOUT)?.context(ABOUT)
}

async fn write_down(accept: &Acceptance, changes: &[Change]) -> anyhow::Result<()> {
    let changes: Vec<String> = changes.iter().map(ToString::to_string).collect();
    let act = Act {
        who: accept.acceptor.who.clone(),
        act: "accept-identity-change",
        record: None,
        to: Some(changes.join("; ")),
        answer: None,
        why: accept.acceptor.why.clone(),
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
