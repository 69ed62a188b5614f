//! Where an operator's command works: on a store, or on a running server.

use std::{mem, sync::Arc};

use anyhow::anyhow;
use clap::builder::NonEmptyStringValueParser;
use jiff::Timestamp;
use semel::core::{Cursor, Store};

use super::{
    client::Client,
    failure::Failure,
    screen::{self, Screen},
};
use crate::{
    api::{
        acts,
        filter::{self, RecordFilter},
        form::{self, Delete, MANY_MAX, Plain, Resolve, ResolveMany},
        view::{Answers, DoneView, ListView, ManyView, RecordView, SweepView},
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

/// Who acts.
#[derive(Clone, Debug, clap::Args)]
pub(super) struct Operator {
    /// Your name, for the audit log; by default the user name ($USER)
    #[arg(long, value_name = "NAME", value_parser = NonEmptyStringValueParser::new())]
    who: Option<String>,
}

impl Operator {
    /// The name that was given, or the one that the environment knows.
    pub(super) fn name(self) -> String {
        let user = || ["USER", "LOGNAME", "USERNAME"].into_iter().find_map(std::env::var_os);
        let named = self.who.or_else(|| user().map(|name| name.to_string_lossy().into_owned()));
        named.unwrap_or_else(|| "unnamed".to_owned())
    }
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
        filter: &RecordFilter,
        after: Option<&str>,
        limit: u32,
    ) -> Result<ListView, Failure> {
        match self {
            Self::Store { store, .. } => {
                let after = after.map(str::parse).transpose();
                let after = after.map_err(|_| anyhow!("--after takes a value from a listing"))?;
                Ok(filter::list(&**store, filter, after.map(Cursor), limit).await?)
            }
            Self::Server(client) => {
                let mut query = vec![("limit", limit.to_string())];
                query.extend(filter.to_query());
                query.extend(after.map(|after| ("after", after.to_owned())));
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
                Ok(RecordView::new(&id, seen, Answers::Shown, Timestamp::now()))
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

    /// Says what became of many held records. `progress` is called with how many are dealt with.
    ///
    /// # Errors
    ///
    /// With what was done before the failure.
    pub(super) async fn resolve_many(
        &self,
        mut form: ResolveMany,
        mut progress: impl FnMut(usize),
    ) -> Result<ManyView, (ManyView, Failure)> {
        let (records, mut all) = (mem::take(&mut form.records), ManyView::default());
        while let Some(rest) = records.get(all.processed..).filter(|rest| !rest.is_empty()) {
            let some = rest.iter().take(MANY_MAX).cloned().collect();
            let some = ResolveMany { records: some, ..form.clone() };
            match self.resolve_some(some, all.processed, &mut progress).await {
                Ok(done) if done.processed > 0 => all.add(done),
                Ok(_) => return Err((all, anyhow!("the server resolved nothing").into())),
                Err(failure) => return Err((all, failure)),
            }
            progress(all.processed);
        }
        Ok(all)
    }

    /// At most [`MANY_MAX`] of many records, after so many others.
    async fn resolve_some(
        &self,
        form: ResolveMany,
        before: usize,
        progress: &mut impl FnMut(usize),
    ) -> Result<ManyView, Failure> {
        match self {
            Self::Store { store, audit } => {
                let who = user(&form.who);
                let progress = |processed| progress(before.saturating_add(processed));
                Ok(acts::resolve_many(&**store, audit, form, who, None, progress).await?)
            }
            Self::Server(client) => client.post("/v1/resolve-many", &form).await,
        }
    }

    /// Says where acts on the store itself were written down.
    pub(super) fn note_audit(&self) {
        if let Self::Store { audit, .. } = self {
            note_audit(audit);
        }
    }

    /// Deletes a record.
    pub(super) async fn delete(&self, form: Delete) -> Result<DoneView, Failure> {
        match self {
            Self::Store { store, audit } => {
                let who = user(&form.who);
                Ok(noted(audit, acts::delete(&**store, audit, form, who).await?))
            }
            Self::Server(client) => client.post("/v1/delete", &form).await,
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
    note_audit(audit);
    done
}

fn note_audit(audit: &Audit) {
    screen::note(&format!("written to the audit log {}", audit.path().display()));
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
