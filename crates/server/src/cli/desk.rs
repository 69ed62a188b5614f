//! Where an operator's command works: on a store, or on a running server.

use std::{sync::Arc, time::Duration};

use anyhow::anyhow;
use semel::core::{Cursor, Key, ListQuery, Scope, StateName, Store};

use super::{
    client::Client,
    failure::Failure,
    screen::{self, Screen},
};
use crate::{
    api::{
        acts,
        form::{self, Forget, Plain, Resolve},
        view::{Answers, DoneView, ListView, RecordView, SweepView},
    },
    config,
    ops::{audit::Audit, escape},
    store,
};

/// Which store or server, and how to print.
#[derive(Clone, Debug, clap::Args)]
pub(super) struct Place {
    /// The store to work on: sqlite:PATH, `postgres://USER@HOST/DATABASE`, or env:NAME for the
    /// variable that holds its URL
    #[arg(long, value_name = "URL", default_value = DEFAULT_STORE, conflicts_with = "server")]
    store: String,
    /// Work on a running server instead, through its API listener; the operator's token comes from
    /// `SEMEL_OPERATOR_TOKEN`
    #[arg(long, value_name = "URL")]
    server: Option<String>,
    /// Print JSON
    #[arg(long)]
    pub(super) json: bool,
}

pub(super) const DEFAULT_STORE: &str = "sqlite:semel.db";

/// Where the work is done.
pub(super) enum Desk {
    /// On the store itself. Whoever can write its files is an operator.
    Store { store: Arc<dyn Store>, audit: Audit },
    /// On a server, which asks for a token.
    Server(Client),
}

/// Whether a recorded answer is to be shown, for which a server asks for the token.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum AnswerWanted {
    Yes,
    No,
}

/// Which records to list.
#[derive(Clone, Debug, Default)]
pub(super) struct Wanted {
    pub(super) state: Option<StateName>,
    pub(super) scope: Option<Scope>,
    pub(super) key: Option<Key>,
    pub(super) age_min: Option<Duration>,
    pub(super) limit: u32,
}

impl Place {
    /// Opens the store, which must be there, or prepares to talk to the server.
    pub(super) async fn open(&self) -> anyhow::Result<Desk> {
        if let Some(server) = &self.server {
            return Ok(Desk::Server(Client::new(server)?));
        }
        let url = config::store_url(&self.store, &super::config::env);
        let url = url.map_err(|wrong| anyhow!("--store: {wrong}"))?;
        let (store, audit) = (store::open_existing(&url).await?, config::audit_beside(&url));
        let audit = Audit::at(audit);
        Ok(Desk::Store { store, audit })
    }

    /// The words that lead another command to the same place.
    pub(super) fn words(&self) -> String {
        match &self.server {
            Some(server) => format!(" --server {}", escape::shell(server)),
            None if self.store == DEFAULT_STORE => String::new(),
            None => format!(" --store {}", escape::shell(&self.store)),
        }
    }

    pub(super) fn screen(&self) -> Screen {
        Screen::new(self.json)
    }
}

impl Desk {
    /// One page of records, from where the last one ended.
    pub(super) async fn list(
        &self,
        wanted: &Wanted,
        after: Option<&str>,
    ) -> Result<ListView, Failure> {
        match self {
            Self::Store { store, .. } => {
                let query = ListQuery {
                    state: wanted.state,
                    scope: wanted.scope.clone(),
                    age_min: wanted.age_min.unwrap_or_default(),
                    after: after.and_then(|after| after.parse().ok()).map(Cursor),
                    limit: wanted.limit,
                };
                Ok(ListView::of(&store.list(&query).await?, wanted.key.as_ref()))
            }
            Self::Server(client) => {
                let mut query = vec![("limit", wanted.limit.to_string())];
                let mut add = |name, value: Option<String>| {
                    query.extend(value.map(|value| (name, value)));
                };
                add("state", wanted.state.map(|state| state.to_string()));
                add("scope", wanted.scope.as_ref().map(ToString::to_string));
                add("key", wanted.key.as_ref().map(|key| key.as_str().to_owned()));
                add("age_min", wanted.age_min.map(|age| format!("{}ms", age.as_millis())));
                add("after", after.map(str::to_owned));
                client.get("/v1/records", &query).await
            }
        }
    }

    /// Everything about a record; with its answer only if that is `wanted`.
    pub(super) async fn record(
        &self,
        scope: &str,
        caller: &str,
        key: &str,
        wanted: AnswerWanted,
    ) -> Result<RecordView, Failure> {
        match self {
            Self::Store { store, .. } => {
                let id = form::record_id(scope, caller, key)?;
                let seen = store.get(&id).await?.ok_or(Failure::Absent)?;
                Ok(RecordView::of(&id, &seen, Answers::Shown))
            }
            Self::Server(client) => {
                let query = [("scope", scope), ("caller", caller), ("key", key)];
                let query = query.map(|(name, value)| (name, value.to_owned()));
                match wanted {
                    AnswerWanted::Yes => client.get_as_operator("/v1/record", &query).await,
                    AnswerWanted::No => client.get("/v1/record", &query).await,
                }
            }
        }
    }

    /// Says what became of a held record.
    pub(super) async fn resolve(&self, form: Resolve) -> Result<DoneView, Failure> {
        match self {
            Self::Store { store, audit } => {
                let who = user(&form.who);
                Ok(noted(audit, acts::resolve(&**store, audit, form, who).await?))
            }
            Self::Server(client) => client.post("/v1/resolve", &form).await,
        }
    }

    /// Forgets a record.
    pub(super) async fn forget(&self, form: Forget) -> Result<DoneView, Failure> {
        match self {
            Self::Store { store, audit } => {
                let who = user(&form.who);
                Ok(noted(audit, acts::forget(&**store, audit, form, who).await?))
            }
            Self::Server(client) => client.post("/v1/forget", &form).await,
        }
    }

    /// Deletes what retention has passed. `progress` hears how much.
    pub(super) async fn sweep(
        &self,
        form: Plain,
        mut progress: impl FnMut(u64),
    ) -> Result<SweepView, Failure> {
        let client = match self {
            Self::Store { store, audit } => {
                let who = user(&form.who);
                let swept = acts::sweep(&**store, audit, form, who, None, progress).await?;
                return Ok(noted(audit, swept));
            }
            Self::Server(client) => client,
        };
        let mut all = SweepView { deleted: 0, more: true };
        while all.more {
            let some: SweepView = client.post("/v1/sweep", &form).await?;
            all = SweepView { deleted: all.deleted.saturating_add(some.deleted), ..some };
            progress(all.deleted);
        }
        Ok(all)
    }
}

/// Says where an act on the store itself was written down: its server may have been told to write
/// its own elsewhere.
fn noted<T>(audit: &Audit, done: T) -> T {
    screen::note(&format!("written to the audit log {}", audit.path().display()));
    done
}

/// Who works on the store itself: the operating system knows a number, and the rest is said.
pub(super) fn user(name: &str) -> String {
    #[cfg(unix)]
    let number = std::os::unix::fs::MetadataExt::uid;
    #[cfg(unix)]
    if let Ok(about) = std::fs::metadata("/proc/self") {
        return format!("{name} (on the store, uid {})", number(&about));
    }
    format!("{name} (on the store)")
}

/// The name of whoever runs this program, as their environment says.
pub(super) fn user_name() -> String {
    let name = ["USER", "LOGNAME", "USERNAME"].into_iter().find_map(std::env::var_os);
    name.map_or_else(|| "unnamed".to_owned(), |name| name.to_string_lossy().into_owned())
}
