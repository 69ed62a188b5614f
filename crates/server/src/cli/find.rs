//! Finds the records that a key has, in all scopes and of all callers.

use anyhow::anyhow;
use semel::core::{Caller, Key, Scope, store::PAGE_MAX};

use super::{
    desk::{AnswerWanted, Desk},
    failure::Failure,
    screen::{self, Screen},
    table,
};
use crate::{
    api::{
        filter::{ReasonFilter, RecordFilter},
        form::Target,
        view::{LineView, RecordView},
    },
    ops::moment::Moment,
};

/// How many records of one key are shown at most.
const RECORDS_MAX: usize = 100;

/// A key, and as much as is known of whose it is.
#[derive(Clone, Debug, clap::Args)]
pub(super) struct Named {
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

/// A key as it is typed: as in a header, or as it stands in a body, which may be any text.
pub(super) fn key(text: &str) -> Result<Key, String> {
    Key::new(text).or_else(|_| Key::from_members([Some(text)])).map_err(|error| error.to_string())
}

pub(super) fn scope(text: &str) -> Result<Scope, String> {
    Scope::new(text).map_err(|error| error.to_string())
}

/// A caller as it is typed; the empty text is the anonymous one.
pub(super) fn caller(text: &str) -> Result<Caller, String> {
    Caller::from_stored(text).map_err(|error| error.to_string())
}

/// Filters that several commands have.
#[derive(Clone, Debug, clap::Args)]
pub(super) struct Matching {
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
    #[arg(long, value_name = "TIME", value_parser = Moment::parse)]
    since: Option<Moment>,
    /// Only records claimed at this time or earlier: 2026-11-18T14:03:22Z, or an age such as 2h
    #[arg(long, value_name = "TIME", value_parser = Moment::parse)]
    until: Option<Moment>,
}

impl Matching {
    pub(super) fn filter(self) -> RecordFilter {
        let Self { scope, caller, reason, since, until } = self;
        RecordFilter { scope, caller, reason, since, until, ..RecordFilter::default() }
    }

    /// A key with the scope and caller of these filters.
    pub(super) fn named(self, key: Key) -> Named {
        Named { key, scope: self.scope, caller: self.caller }
    }
}

impl Named {
    /// Everything about each record that the key has.
    pub(super) async fn records(
        &self,
        desk: &Desk,
        wanted: AnswerWanted,
    ) -> Result<Vec<RecordView>, Failure> {
        let mut records = Vec::new();
        for line in self.lines(desk).await? {
            match desk.record(&line.scope, &line.caller, &line.key, wanted).await {
                Ok(record) => records.push(record),
                // It went between the two questions.
                Err(Failure::Absent) => {}
                Err(failure) => return Err(failure),
            }
        }
        if records.is_empty() { Err(Failure::Absent) } else { Ok(records) }
    }

    /// The one record that is meant. If there are several, they are listed.
    pub(super) async fn record(&self, desk: &Desk) -> Result<RecordView, Failure> {
        let lines = self.lines(desk).await?;
        match &*lines {
            [] => Err(Failure::Absent),
            [line] => desk.record(&line.scope, &line.caller, &line.key, AnswerWanted::No).await,
            lines => {
                let table = table::records(lines, Screen::plain());
                let wrong = "several records have this key; say --scope and --caller:";
                Err(anyhow!("{wrong}\n{}", table.trim_end()).into())
            }
        }
    }

    async fn lines(&self, desk: &Desk) -> Result<Vec<LineView>, Failure> {
        if let (Some(scope), Some(caller)) = (&self.scope, &self.caller) {
            let (scope, caller, key) = (scope.as_str(), caller.as_str(), self.key.as_str());
            let record = desk.record(scope, caller, key, AnswerWanted::No).await?;
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
            let page = desk.list(&filter, after.as_deref(), PAGE_MAX).await?;
            found.extend(page.records);
            after = page.next;
            if after.is_none() || found.len() > RECORDS_MAX {
                break;
            }
        }
        if found.len() > RECORDS_MAX {
            found.truncate(RECORDS_MAX);
            screen::note(&format!(
                "more than {RECORDS_MAX} records have this key: say --scope or --caller"
            ));
        }
        Ok(found)
    }
}

/// A record as it was seen, for an act on it.
pub(super) fn target(record: &RecordView) -> Target {
    let LineView { scope, caller, key, state, fence, .. } = record.line.clone();
    Target { scope, caller, key, state, fence }
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
