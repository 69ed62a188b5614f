//! The target of an operator's command: a store, or a running server.

use std::{mem, sync::Arc};

use anyhow::anyhow;
use clap::builder::NonEmptyStringValueParser;
use jiff::Timestamp;
use semel::core::{Cursor, Store};

use super::{
    client::ApiClient,
    command_error::CommandError,
    output::{self, Output},
};
use crate::store;
use semel_admin::{
    actions,
    audit::AuditLog,
    filter::{self, RecordFilter},
    requests::{self, AuditNote, DeleteRequest, MANY_MAX, ResolveManyRequest, ResolveRequest},
    responses::{
        ActionResultView, AnswerVisibility, RecordPageView, RecordView, ResolveManyView, SweepView,
    },
};
use semel_telemetry::escape;

/// Which store or server, and how to print.
#[derive(Clone, Debug, clap::Args)]
pub(super) struct TargetArgs {
    /// The store to work on: sqlite:PATH, `postgres://USER@HOST/DATABASE`, or env:NAME for the
    /// variable that holds its URL
    #[arg(long, value_name = "URL", default_value = DEFAULT_STORE, conflicts_with = "server")]
    store: String,
    /// Work on a running server instead, through its API listener; the operator token comes from
    /// `SEMEL_OPERATOR_TOKEN`
    #[arg(long, value_name = "URL")]
    server: Option<String>,
    /// Print JSON
    #[arg(long)]
    pub(super) json: bool,
}

pub(super) const DEFAULT_STORE: &str = "sqlite:semel.db";

/// A store or a server.
pub(super) enum Target {
    /// The store itself. A user who can write its files is an operator.
    Store { store: Arc<dyn Store>, audit: AuditLog },
    /// A server, which requires a token.
    Server(ApiClient),
}

/// Whether to read the recorded answer, which needs the token on a server.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum IncludeAnswer {
    Yes,
    No,
}

/// The author of an action.
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

impl TargetArgs {
    /// Opens the store, which must be there, or prepares to talk to the server.
    pub(super) async fn open(&self) -> anyhow::Result<Target> {
        if let Some(server) = &self.server {
            return Ok(Target::Server(ApiClient::new(server)?));
        }
        let url = semel_config::store_url(&self.store, &super::config::env);
        let url = url.map_err(|wrong| anyhow!("--store: {wrong}"))?;
        let (store, audit) =
            (store::open_existing(&url).await?, semel_config::default_audit_path(&url));
        let audit = AuditLog::at(audit);
        Ok(Target::Store { store, audit })
    }

    /// The arguments that give another command the same target.
    pub(super) fn words(&self) -> String {
        match &self.server {
            Some(server) => format!(" --server {}", escape::shell(server)),
            None if self.store == DEFAULT_STORE => String::new(),
            None => format!(" --store {}", escape::shell(&self.store)),
        }
    }

    pub(super) fn output(&self) -> Output {
        Output::new(self.json)
    }
}

impl Target {
    /// One page of records, from where the last one ended.
    pub(super) async fn list(
        &self,
        filter: &RecordFilter,
        after: Option<&str>,
        limit: u32,
    ) -> Result<RecordPageView, CommandError> {
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
        wanted: IncludeAnswer,
    ) -> Result<RecordView, CommandError> {
        match self {
            Self::Store { store, .. } => {
                let id = requests::record_id(scope, caller, key)?;
                let seen = store.get(&id).await?.ok_or(CommandError::Absent)?;
                let view = RecordView::new(&id, seen, AnswerVisibility::Shown, Timestamp::now());
                Ok(view.with_reconcile_note(&**store, &id).await)
            }
            Self::Server(client) => {
                let query = [("scope", scope), ("caller", caller), ("key", key)];
                let query = query.map(|(name, value)| (name, value.to_owned()));
                match wanted {
                    IncludeAnswer::Yes => client.get_as_operator("/v1/record", &query).await,
                    IncludeAnswer::No => client.get("/v1/record", &query).await,
                }
            }
        }
    }

    /// Resolves a held record.
    pub(super) async fn resolve(
        &self,
        request: ResolveRequest,
    ) -> Result<ActionResultView, CommandError> {
        match self {
            Self::Store { store, audit } => {
                let who = user(&request.who);
                Ok(with_audit_note(audit, actions::resolve(&**store, audit, request, who).await?))
            }
            Self::Server(client) => client.post("/v1/resolve", &request).await,
        }
    }

    /// Resolves many held records. `progress` is called with the number of processed records.
    ///
    /// # Errors
    ///
    /// With what was done before the failure.
    pub(super) async fn resolve_many(
        &self,
        mut request: ResolveManyRequest,
        mut progress: impl FnMut(usize),
    ) -> Result<ResolveManyView, (ResolveManyView, CommandError)> {
        let (records, mut all) = (mem::take(&mut request.records), ResolveManyView::default());
        while let Some(rest) = records.get(all.processed..).filter(|rest| !rest.is_empty()) {
            let some = rest.iter().take(MANY_MAX).cloned().collect();
            let some = ResolveManyRequest { records: some, ..request.clone() };
            match self.resolve_some(some, all.processed, &mut progress).await {
                Ok(done) if done.processed > 0 => all.merge(done),
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
        request: ResolveManyRequest,
        before: usize,
        progress: &mut impl FnMut(usize),
    ) -> Result<ResolveManyView, CommandError> {
        match self {
            Self::Store { store, audit } => {
                let who = user(&request.who);
                let progress = |processed| progress(before.saturating_add(processed));
                Ok(actions::resolve_many(&**store, audit, request, who, None, progress).await?)
            }
            Self::Server(client) => client.post("/v1/resolve-many", &request).await,
        }
    }

    /// Prints the path of the audit log after actions on the store itself.
    pub(super) fn print_audit_path(&self) {
        if let Self::Store { audit, .. } = self {
            print_audit_path(audit);
        }
    }

    /// Deletes a record.
    pub(super) async fn delete(
        &self,
        request: DeleteRequest,
    ) -> Result<ActionResultView, CommandError> {
        match self {
            Self::Store { store, audit } => {
                let who = user(&request.who);
                Ok(with_audit_note(audit, actions::delete(&**store, audit, request, who).await?))
            }
            Self::Server(client) => client.post("/v1/delete", &request).await,
        }
    }

    /// Deletes records past their retention. `progress` is called with the number deleted.
    pub(super) async fn sweep(
        &self,
        request: AuditNote,
        mut progress: impl FnMut(u64),
    ) -> Result<SweepView, CommandError> {
        let client = match self {
            Self::Store { store, audit } => {
                let who = user(&request.who);
                let swept = actions::sweep(&**store, audit, request, who, None, progress).await?;
                return Ok(with_audit_note(audit, swept));
            }
            Self::Server(client) => client,
        };
        let mut all = SweepView { deleted: 0, more: true };
        while all.more {
            let some: SweepView = client.post("/v1/sweep", &request).await?;
            all = SweepView { deleted: all.deleted.saturating_add(some.deleted), ..some };
            progress(all.deleted);
        }
        Ok(all)
    }
}

/// Prints the path of the audit log after an action on the store itself: the server may be
/// configured to use another file.
fn with_audit_note<T>(audit: &AuditLog, done: T) -> T {
    print_audit_path(audit);
    done
}

fn print_audit_path(audit: &AuditLog) {
    output::note(&format!("written to the audit log {}", audit.path().display()));
}

/// The author of an action on the store itself: the given name and the uid of the process.
pub(super) fn user(name: &str) -> String {
    #[cfg(unix)]
    let number = std::os::unix::fs::MetadataExt::uid;
    #[cfg(unix)]
    if let Ok(about) = std::fs::metadata("/proc/self") {
        return format!("{name} (on the store, uid {})", number(&about));
    }
    format!("{name} (on the store)")
}
