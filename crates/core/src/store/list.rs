//! Listings: what to list, and a page of records.

use std::time::Duration;

use crate::{
    About, Caller, Fence, Key, NodeName, Reason, RecordId, Scope, Snapshot, StateName, StateView,
};

/// The largest page of [`Store::list`](crate::Store::list).
pub const PAGE_MAX: u32 = 1000;

/// Which records to list. A store finds records by key, by state and by time without a scan; every
/// other filter looks at a bounded number of rows for each page.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub struct ListQuery {
    /// Only records with this key, of any scope and caller.
    pub key: Option<Key>,
    /// Only records in this state.
    pub state: Option<StateName>,
    /// Only records of this scope.
    pub scope: Option<Scope>,
    /// Only records of this caller.
    pub caller: Option<Caller>,
    /// Only records claimed at least this long ago.
    pub age_min: Duration,
    /// Only records claimed at most this long ago.
    pub age_max: Option<Duration>,
    /// Only records whose lease has expired and whose next request decides.
    pub lapsed: bool,
    /// Only records whose reason begins with this text.
    pub reason: Option<Box<str>>,
    /// Where the last page ended.
    pub after: Option<Cursor>,
    /// How many; 0 means [`PAGE_MAX`], and more is cut to it.
    pub limit: u32,
}

impl ListQuery {
    /// All records.
    #[must_use]
    pub fn new() -> Self {
        Self::default()
    }

    /// Whether a record belongs on a page of this query.
    #[must_use]
    pub fn takes(&self, record: &Summary) -> bool {
        let begins = |reason: &str| {
            record.reason.as_ref().is_some_and(|given| given.to_string().starts_with(reason))
        };
        self.key.as_ref().is_none_or(|key| *key == record.id.key)
            && self.state.is_none_or(|state| state == record.state)
            && self.scope.as_ref().is_none_or(|scope| *scope == record.id.scope)
            && self.caller.as_ref().is_none_or(|caller| *caller == record.id.caller)
            && self.age_min <= record.age
            && self.age_max.is_none_or(|max| record.age <= max)
            && (!self.lapsed || record.lapsed)
            && self.reason.as_deref().is_none_or(begins)
    }

    /// How many records a page has at most.
    #[must_use]
    pub const fn page_size(&self) -> u32 {
        if self.limit == 0 || self.limit > PAGE_MAX { PAGE_MAX } else { self.limit }
    }
}

/// Where a page ended. Only the store that made it can read it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Cursor(pub u64);

/// One page of a listing.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub struct Page {
    /// The records.
    pub items: Vec<Summary>,
    /// Where to go on; `None` after the last page.
    pub next: Option<Cursor>,
    /// How many records the store looked at to make this page.
    pub examined: u64,
}

impl Page {
    /// A page of these records.
    #[must_use]
    pub const fn new(items: Vec<Summary>, next: Option<Cursor>, examined: u64) -> Self {
        Self { items, next, examined }
    }
}

/// A line of a listing.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct Summary {
    /// The record.
    pub id: RecordId,
    /// Its state as it counts now.
    pub state: StateName,
    /// Its fence, to name it in an operator's act.
    pub fence: Fence,
    /// How many executions were begun that count.
    pub attempt: u32,
    /// How long ago the newest claim was granted.
    pub age: Duration,
    /// How long ago it ended; `None` while it is in flight.
    pub ended: Option<Duration>,
    /// Whether its lease has expired and the next request decides.
    pub lapsed: bool,
    /// What the newest claim was about.
    pub about: About,
    /// The process that made the newest claim.
    pub node: NodeName,
    /// Why the newest execution did not complete.
    pub reason: Option<Reason>,
}

impl Summary {
    /// What a listing shows of a record.
    #[must_use]
    pub fn new(id: RecordId, seen: Snapshot) -> Self {
        let lapsed = matches!(
            seen.state,
            StateView::InFlight { lease_left } if lease_left.is_zero()
        );
        Self {
            id,
            state: seen.state.name(),
            fence: seen.fence,
            attempt: seen.attempt,
            age: seen.age,
            ended: seen.ended,
            lapsed,
            about: seen.about,
            node: seen.node,
            reason: seen.reason,
        }
    }
}
