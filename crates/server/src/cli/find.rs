//! Finds the records that a key has, in all scopes and of all callers.

use anyhow::anyhow;
use semel::core::{Key, Scope};

use super::{
    desk::{AnswerWanted, Desk, Wanted},
    failure::Failure,
    screen::{Progress, Screen},
    table,
};
use crate::api::{
    form::Target,
    view::{LineView, RecordView},
};

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
    #[arg(long)]
    caller: Option<String>,
}

/// A key as it is typed: as in a header, or as it stands in a body, which may be any text.
pub(super) fn key(text: &str) -> Result<Key, String> {
    Key::new(text).or_else(|_| Key::from_members([Some(text)])).map_err(|error| error.to_string())
}

pub(super) fn scope(text: &str) -> Result<Scope, String> {
    Scope::new(text).map_err(|error| error.to_string())
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
        let mut records = self.records(desk, AnswerWanted::No).await?;
        match (records.pop(), records.is_empty()) {
            (Some(record), true) => Ok(record),
            (None, _) => Err(Failure::Absent),
            (Some(last), false) => {
                records.push(last);
                let lines: Vec<LineView> = records.into_iter().map(|record| record.line).collect();
                let table = table::records(&lines, Screen::plain());
                let wrong = "several records have this key; say --scope and --caller:";
                Err(anyhow!("{wrong}\n{}", table.trim_end()).into())
            }
        }
    }

    async fn lines(&self, desk: &Desk) -> Result<Vec<LineView>, Failure> {
        if let (Some(scope), Some(caller)) = (&self.scope, &self.caller) {
            let record = desk.record(scope.as_str(), caller, self.key.as_str(), AnswerWanted::No);
            let record = record.await?;
            return Ok(vec![record.line]);
        }
        let wanted = Wanted {
            scope: self.scope.clone(),
            key: Some(self.key.clone()),
            limit: semel::core::store::PAGE_MAX,
            ..Wanted::default()
        };
        let (mut found, mut after, mut pages) = (Vec::new(), None, 0_u64);
        let mut progress = Progress::new();
        loop {
            let page = desk.list(&wanted, after.as_deref()).await?;
            found.extend(page.records);
            pages = pages.saturating_add(1);
            progress.say(&format!("searching… page {pages}, {} found", found.len()));
            match page.next {
                Some(next) => after = Some(next),
                None => break,
            }
        }
        if let Some(caller) = &self.caller {
            found.retain(|line| line.caller == *caller);
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
