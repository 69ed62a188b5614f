//! Looks up the records of a key, in all scopes and of all callers.

use anyhow::anyhow;
use semel::core::{Caller, Key, Scope, store::PAGE_MAX};

use super::{
    command_error::CommandError,
    output::{self, Output},
    table,
    target::{IncludeAnswer, Target},
};
use semel_admin::{
    filter::{ReasonFilter, RecordFilter},
    requests::RecordTarget,
    responses::{RecordSummaryView, RecordView},
    time_or_age::TimeOrAge,
};

/// Maximum number of records of one key.
const RECORDS_MAX: usize = 100;

/// A key, and optionally its scope and caller.
#[derive(Clone, Debug, clap::Args)]
pub(super) struct KeyArgs {
    /// The key
    #[arg(value_parser = key)]
    key: Key,
    /// Its scope; otherwise all are searched
    #[arg(long, value_parser = scope)]
    scope: Option<Scope>,
    /// Its caller, '' for the anonymous one; otherwise all are searched
    #[arg(long, value_parser = caller)]
    caller: Option<Caller>,
}

/// A key argument: as in a header, or as in a body, where it may be any text.
pub(super) fn key(text: &str) -> Result<Key, String> {
    Key::new(text).or_else(|_| Key::from_members([Some(text)])).map_err(|error| error.to_string())
}

pub(super) fn scope(text: &str) -> Result<Scope, String> {
    Scope::new(text).map_err(|error| error.to_string())
}

/// A caller argument; the empty text is the anonymous caller.
pub(super) fn caller(text: &str) -> Result<Caller, String> {
    Caller::from_stored(text).map_err(|error| error.to_string())
}

/// Filters that several commands have.
#[derive(Clone, Debug, clap::Args)]
pub(super) struct FilterArgs {
    /// Only records of this scope
    #[arg(long, value_parser = scope)]
    scope: Option<Scope>,
    /// Only records of this caller, '' for the anonymous one
    #[arg(long, value_parser = caller)]
    caller: Option<Caller>,
    /// Only records with this reason: a kind, such as answered, timed-out, connection-lost or
    /// lease-expired; or the beginning of its text, such as 'upstream answered 503'
    #[arg(long, value_parser = ReasonFilter::parse)]
    reason: Option<ReasonFilter>,
    /// Only records claimed at this time or later: 2026-11-18T14:03:22Z, or an age such as 2h
    #[arg(long, value_name = "TIME", value_parser = TimeOrAge::parse)]
    since: Option<TimeOrAge>,
    /// Only records claimed at this time or earlier: 2026-11-18T14:03:22Z, or an age such as 2h
    #[arg(long, value_name = "TIME", value_parser = TimeOrAge::parse)]
    until: Option<TimeOrAge>,
}

impl FilterArgs {
    pub(super) fn filter(self) -> RecordFilter {
        let Self { scope, caller, reason, since, until } = self;
        RecordFilter { scope, caller, reason, since, until, ..RecordFilter::default() }
    }

    /// A key with the scope and caller of these filters.
    pub(super) fn named(self, key: Key) -> KeyArgs {
        KeyArgs { key, scope: self.scope, caller: self.caller }
    }
}

impl KeyArgs {
    /// Everything about each record that the key has.
    pub(super) async fn records(
        &self,
        target: &Target,
        wanted: IncludeAnswer,
    ) -> Result<Vec<RecordView>, CommandError> {
        let mut records = Vec::new();
        for line in self.lines(target).await? {
            match target.record(&line.scope, &line.caller, &line.key, wanted).await {
                Ok(record) => records.push(record),
                // It was deleted between the two requests.
                Err(CommandError::Absent) => {}
                Err(failure) => return Err(failure),
            }
        }
        if records.is_empty() { Err(CommandError::Absent) } else { Ok(records) }
    }

    /// The only record of the key. If there are several, the error lists them.
    pub(super) async fn record(&self, target: &Target) -> Result<RecordView, CommandError> {
        let lines = self.lines(target).await?;
        match &*lines {
            [] => Err(CommandError::Absent),
            [line] => target.record(&line.scope, &line.caller, &line.key, IncludeAnswer::No).await,
            lines => {
                let table = table::records(lines, Output::plain());
                let wrong = "several records have this key; add --scope and --caller:";
                Err(anyhow!("{wrong}\n{}", table.trim_end()).into())
            }
        }
    }

    async fn lines(&self, target: &Target) -> Result<Vec<RecordSummaryView>, CommandError> {
        if let (Some(scope), Some(caller)) = (&self.scope, &self.caller) {
            let (scope, caller, key) = (scope.as_str(), caller.as_str(), self.key.as_str());
            let record = target.record(scope, caller, key, IncludeAnswer::No).await?;
            return Ok(vec![record.line]);
        }
        let filter = RecordFilter {
            key: Some(self.key.clone()),
            scope: self.scope.clone(),
            caller: self.caller.clone(),
            ..RecordFilter::default()
        };
        let (mut found, mut after) = (Vec::new(), None);
        loop {
            let page = target.list(&filter, after.as_deref(), PAGE_MAX).await?;
            found.extend(page.records);
            after = page.next;
            if after.is_none() || found.len() > RECORDS_MAX {
                break;
            }
        }
        if found.len() > RECORDS_MAX {
            found.truncate(RECORDS_MAX);
            output::note(&format!(
                "more than {RECORDS_MAX} records have this key: add --scope or --caller"
            ));
        }
        Ok(found)
    }
}

/// A record as it was seen, for an act on it.
pub(super) fn target(record: &RecordView) -> RecordTarget {
    let RecordSummaryView { scope, caller, key, state, fence, .. } = record.line.clone();
    RecordTarget { scope, caller, key, state, fence }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_key_is_typed_as_it_is_stored_or_as_it_stands_in_a_body() {
        let stored = |text: &str| key(text).unwrap().as_str().to_owned();
        assert_eq!(stored("order-17"), "order-17");
        assert_eq!(stored("PO%204711"), "PO%204711");
        assert_eq!(stored("PO 4711"), "PO%204711");
        assert!(key("").is_err());
    }
}
