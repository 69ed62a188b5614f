//! Which records to list: the same filters for the API and the command line.

use jiff::Timestamp;
use semel::core::{
    Caller, Cursor, Key, ListQuery, Reason, Scope, StateName, Store, StoreError, Summary,
};
use serde::Deserialize;

use super::{
    requests,
    responses::{RecordPageView, RecordSummaryView},
};
use crate::time_or_age::TimeOrAge;

/// Maximum number of records examined and of store calls made for one page. A page that reaches one
/// of them is short.
const EXAMINED_RECORDS_MAX: u64 = 5000;
const STORE_CALLS_MAX: usize = 64;

/// Which records to list. A record must pass all filters that are set.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct RecordFilter {
    /// Only records with this key.
    pub key: Option<Key>,
    /// Only records in this state.
    pub state: Option<StateName>,
    /// Only records of this scope.
    pub scope: Option<Scope>,
    /// Only records of this caller.
    pub caller: Option<Caller>,
    /// Only records with this reason.
    pub reason: Option<ReasonFilter>,
    /// Claimed at this time or later.
    pub since: Option<TimeOrAge>,
    /// Claimed at this time or earlier.
    pub until: Option<TimeOrAge>,
    /// In flight with an expired lease.
    pub lapsed: bool,
}

/// The beginning of a reason's text, or a [label](Reason::label).
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ReasonFilter(Box<str>);

/// The filters in the query of a URL.
#[derive(Debug, Default, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct FilterQuery {
    pub(super) state: Option<String>,
    pub(super) scope: Option<String>,
    /// Empty for the anonymous caller.
    pub(super) caller: Option<String>,
    pub(super) key: Option<String>,
    pub(super) reason: Option<String>,
    pub(super) since: Option<String>,
    pub(super) until: Option<String>,
    pub(super) lapsed: bool,
    /// How many records the page has at most.
    pub(super) limit: Option<u32>,
    /// The cursor of the previous page.
    pub(super) after: Option<u64>,
}

impl FilterQuery {
    /// Parses the filters; the error names the malformed one.
    pub(super) fn to_filter(&self) -> Result<RecordFilter, String> {
        fn read<T, E: std::fmt::Display>(
            name: &str,
            text: Option<&String>,
            parse: impl Fn(&str) -> Result<T, E>,
        ) -> Result<Option<T>, String> {
            let parsed = text.map(|text| parse(text)).transpose();
            parsed.map_err(|error| format!("`{name}`: {error}"))
        }
        let filter = RecordFilter {
            key: read("key", self.key.as_ref(), Key::new)?,
            state: read("state", self.state.as_ref(), requests::state)?,
            scope: read("scope", self.scope.as_ref(), Scope::new)?,
            caller: read("caller", self.caller.as_ref(), Caller::from_stored)?,
            reason: read("reason", self.reason.as_ref(), ReasonFilter::parse)?,
            since: read("since", self.since.as_ref(), TimeOrAge::parse)?,
            until: read("until", self.until.as_ref(), TimeOrAge::parse)?,
            lapsed: self.lapsed,
        };
        filter.validate()
    }
}

impl RecordFilter {
    /// Checks that the filters do not contradict each other.
    pub fn validate(self) -> Result<Self, String> {
        let now = Timestamp::now();
        let [since, until] = [self.since, self.until].map(|moment| moment.map(|it| it.age(now)));
        match (since, until) {
            (Some(since), Some(until)) if since < until => {
                Err("`since` is later than `until`: no record can match".to_owned())
            }
            _ => Ok(self),
        }
    }

    /// The filters for the query of a URL: what [`FilterQuery`] reads.
    pub fn to_query(&self) -> Vec<(&'static str, String)> {
        let values = [
            ("state", self.state.map(|state| state.to_string())),
            ("scope", self.scope.as_ref().map(|scope| scope.as_str().to_owned())),
            ("caller", self.caller.as_ref().map(|caller| caller.as_str().to_owned())),
            ("key", self.key.as_ref().map(|key| key.as_str().to_owned())),
            ("reason", self.reason.as_ref().map(|reason| reason.0.to_string())),
            ("since", self.since.map(|since| since.to_string())),
            ("until", self.until.map(|until| until.to_string())),
            ("lapsed", self.lapsed.then(|| "true".to_owned())),
        ];
        values.into_iter().filter_map(|(name, value)| Some((name, value?))).collect()
    }

    /// The part of the filter that the store applies.
    fn to_list_query(&self, now: Timestamp) -> ListQuery {
        let mut query = ListQuery::new();
        query.key.clone_from(&self.key);
        query.state = self.state;
        query.scope.clone_from(&self.scope);
        query.caller.clone_from(&self.caller);
        query.reason = self.reason.as_ref().and_then(ReasonFilter::prefix);
        query.age_min = self.until.map(|until| until.age(now)).unwrap_or_default();
        query.age_max = self.since.map(|since| since.age(now));
        query.lapsed = self.lapsed;
        query
    }

    /// Whether a record passes the part of the filter that the store does not apply.
    fn matches(&self, record: &Summary) -> bool {
        self.reason.as_ref().is_none_or(|reason| reason.matches(record.reason.as_ref()))
    }
}

impl ReasonFilter {
    /// Reads a filter as it is written on the command line and in a query.
    pub fn parse(text: &str) -> Result<Self, String> {
        if text.is_empty() {
            return Err("the reason filter must not be empty".to_owned());
        }
        Ok(Self(text.into()))
    }

    /// The prefix of the reason that the store filters by; `None` for a label, which stands for
    /// several texts.
    fn prefix(&self) -> Option<Box<str>> {
        (!Reason::LABELS.contains(&&*self.0)).then(|| self.0.clone())
    }

    fn matches(&self, reason: Option<&Reason>) -> bool {
        reason.is_some_and(|reason| {
            reason.label() == &*self.0 || reason.to_string().starts_with(&*self.0)
        })
    }
}

/// One page of a store's records: at most `limit`, fewer if `EXAMINED_RECORDS_MAX` or
/// `STORE_CALLS_MAX` is reached first.
pub async fn list(
    store: &dyn Store,
    filter: &RecordFilter,
    after: Option<Cursor>,
    limit: u32,
) -> Result<RecordPageView, StoreError> {
    let mut query = filter.to_list_query(Timestamp::now());
    (query.after, query.limit) = (after, limit);
    let limit = query.page_size();
    let mut view = RecordPageView::default();
    for _ in 0..STORE_CALLS_MAX {
        query.limit = limit.saturating_sub(u32::try_from(view.records.len()).unwrap_or(limit));
        if query.limit == 0 || view.examined >= EXAMINED_RECORDS_MAX {
            break;
        }
        let page = store.list(&query).await?;
        let now = Timestamp::now();
        let listed = page.items.iter().filter(|record| filter.matches(record));
        view.records.extend(listed.map(|record| RecordSummaryView::new(record, now)));
        view.examined = view.examined.saturating_add(page.examined);
        query.after = page.next;
        if query.after.is_none() {
            break;
        }
    }
    view.next = query.after.map(|cursor| cursor.0.to_string());
    Ok(view)
}

#[cfg(test)]
mod tests {
    use semel::{
        MemoryStore,
        core::{Claim, Claimed, Fingerprint, Finish, OwnerToken, RecordId},
    };

    use super::*;

    async fn held(store: &MemoryStore, scope: &str, key: &str, reason: Reason) {
        let id =
            RecordId::new(Scope::new(scope).unwrap(), Caller::anonymous(), Key::new(key).unwrap());
        let fingerprint = Fingerprint::of_parts("test", &[]);
        let claim = Claim::new(id, fingerprint, OwnerToken::from_bytes([1; 16]));
        let claimed = store.claim(&claim).await.unwrap();
        let Claimed::Granted(grant) = claimed else { panic!("{claimed:?}") };
        let by = claim.claimant(grant.fence);
        store.finish(&claim.id, by, &Finish::hold(reason)).await.unwrap();
    }

    fn reason(text: &str) -> RecordFilter {
        let reason = Some(ReasonFilter::parse(text).unwrap());
        RecordFilter { reason, ..RecordFilter::default() }
    }

    #[tokio::test]
    async fn a_reason_is_found_by_its_label_or_by_the_beginning_of_its_text() {
        let store = MemoryStore::new();
        held(&store, "s", "500", Reason::Answered(500)).await;
        held(&store, "s", "503", Reason::Answered(503)).await;
        held(&store, "s", "grpc", Reason::GrpcStatus(14)).await;
        held(&store, "s", "text", Reason::text("ledger closed")).await;
        let keys = async |filter: RecordFilter| -> Vec<String> {
            let page = list(&store, &filter, None, 0).await.unwrap();
            page.records.into_iter().map(|line| line.key).collect()
        };
        assert_eq!(keys(reason("answered")).await, ["500", "503"]);
        assert_eq!(keys(reason("upstream answered 5")).await, ["500", "503"]);
        assert_eq!(keys(reason("upstream answered 503")).await, ["503"]);
        assert_eq!(keys(reason("upstream answered")).await, ["500", "503", "grpc"]);
        assert_eq!(keys(reason("grpc-status")).await, ["grpc"]);
        assert_eq!(keys(reason("ledger")).await, ["text"]);
        assert_eq!(keys(reason("text")).await, ["text"]);
        assert_eq!(keys(reason("lease-expired")).await, [""; 0]);
    }

    #[tokio::test]
    async fn one_page_combines_several_pages_of_the_store() {
        let store = MemoryStore::new();
        for number in 0..30 {
            let reason =
                if number % 10 == 0 { Reason::LeaseExpired } else { Reason::Answered(503) };
            held(&store, "s", &format!("k{number}"), reason).await;
        }
        let filter = reason("lease-expired");
        let first = list(&store, &filter, None, 2).await.unwrap();
        let keys = |view: &RecordPageView| -> Vec<String> {
            view.records.iter().map(|line| line.key.clone()).collect()
        };
        assert_eq!(keys(&first), ["k0", "k10"]);
        let after = first.next.as_deref().map(|next| Cursor(next.parse().unwrap()));
        let second = list(&store, &filter, after, 2).await.unwrap();
        assert_eq!((keys(&second), second.next), (vec!["k20".to_owned()], None));
    }

    #[tokio::test]
    async fn a_page_ends_after_the_maximum_of_examined_records() {
        let store = MemoryStore::new();
        let more = usize::try_from(EXAMINED_RECORDS_MAX).unwrap() + 1500;
        for number in 0..more {
            held(&store, "s", &format!("k{number}"), Reason::Answered(503)).await;
        }
        held(&store, "s", "last", Reason::LeaseExpired).await;
        let filter = reason("lease-expired");
        let first = list(&store, &filter, None, 0).await.unwrap();
        assert_eq!(first.records, []);
        assert!(
            (EXAMINED_RECORDS_MAX..EXAMINED_RECORDS_MAX + 1100).contains(&first.examined),
            "{first:?}"
        );
        let after = first.next.as_deref().map(|next| Cursor(next.parse().unwrap()));
        assert!(after.is_some(), "there is more");
        let second = list(&store, &filter, after, 0).await.unwrap();
        assert_eq!((second.records.len(), second.next), (1, None));
    }

    #[test]
    fn filters_round_trip_through_a_url_query() {
        let filter = RecordFilter {
            key: Some(Key::new("k").unwrap()),
            state: Some(StateName::Held),
            scope: Some(Scope::new("payments").unwrap()),
            caller: Some(Caller::anonymous()),
            reason: Some(ReasonFilter::parse("upstream answered 503").unwrap()),
            since: Some(TimeOrAge::parse("2020-11-18T12:00:00+01:00").unwrap()),
            until: Some(TimeOrAge::parse("2h").unwrap()),
            lapsed: true,
        };
        let mut read = FilterQuery::default();
        for (name, value) in filter.to_query() {
            let value = Some(value);
            match name {
                "key" => read.key = value,
                "state" => read.state = value,
                "scope" => read.scope = value,
                "caller" => read.caller = value,
                "reason" => read.reason = value,
                "since" => read.since = value,
                "until" => read.until = value,
                "lapsed" => read.lapsed = value.is_some_and(|value| value == "true"),
                other => panic!("{other}"),
            }
        }
        assert_eq!(read.to_filter(), Ok(filter));
        assert_eq!(RecordFilter::default().to_query(), []);
    }
}
