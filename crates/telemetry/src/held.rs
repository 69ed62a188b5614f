//! Counts held records: by scope and reason for the metrics, by caller for the quota.
//!
//! They are counted in the store, because a crashed process cannot report the records it leaves
//! held, and other servers share the store.

use std::{collections::HashSet, sync::Arc, time::Duration};

use semel::{
    Semel,
    core::{
        Caller, Fence, ListQuery, Reason, RecordId, Scope, StateName, Store, StoreError, Summary,
    },
};
use tokio::{
    task::JoinHandle,
    time::{MissedTickBehavior, interval, timeout},
};

use super::metrics::{Metrics, NO_REASON};

/// Time between two counts.
const COUNT_INTERVAL: Duration = Duration::from_secs(15);

/// Timeout of one count.
const COUNT_TIMEOUT: Duration = Duration::from_secs(10);

/// Maximum number of records and pages per count: a page may be short, even empty.
const HELD_MAX: usize = 10_000;
const PAGES_MAX: usize = 50;

/// Maximum number of new records in one log line.
const NAMED_MAX: usize = 5;

/// The background task that counts held records. Dropping it ends the task.
#[derive(Debug)]
pub struct HeldRecordCounter(JoinHandle<()>);

impl HeldRecordCounter {
    /// Starts counting. Must be called in a runtime.
    pub fn start(semel: Semel, metrics: Arc<Metrics>) -> Self {
        Self(tokio::spawn(async move {
            let mut reported = ReportedRecords::default();
            let mut period = interval(COUNT_INTERVAL);
            period.set_missed_tick_behavior(MissedTickBehavior::Delay);
            loop {
                period.tick().await;
                // The engine logs store failures; the last count stays until the store is back.
                if let Ok(Ok(held)) = timeout(COUNT_TIMEOUT, held(&**semel.store())).await {
                    metrics.held(held.labels(), held.complete);
                    semel.set_held(held.callers());
                    reported.log_new(&held);
                }
            }
        }))
    }
}

impl Drop for HeldRecordCounter {
    fn drop(&mut self) {
        self.0.abort();
    }
}

/// The records that are held.
struct HeldList {
    records: Vec<Summary>,
    /// Whether these are all.
    complete: bool,
}

impl HeldList {
    /// The scope and the label of the reason of each, and for how long it is held.
    fn labels(&self) -> impl Iterator<Item = (&str, &'static str, Duration)> {
        self.records.iter().map(|record| {
            let label = record.reason.as_ref().map_or(NO_REASON, Reason::label);
            (record.id.scope.as_str(), label, record.ended.unwrap_or(record.age))
        })
    }

    /// The scope and the caller of each.
    fn callers(&self) -> impl Iterator<Item = (Scope, Caller)> {
        self.records.iter().map(|record| (record.id.scope.clone(), record.id.caller.clone()))
    }
}

async fn held(store: &dyn Store) -> Result<HeldList, StoreError> {
    let mut query = ListQuery::new();
    query.state = Some(StateName::Held);
    let mut held = HeldList { records: Vec::new(), complete: false };
    for _ in 0..PAGES_MAX {
        let page = store.list(&query).await?;
        held.records.extend(page.items);
        query.after = page.next;
        held.complete = page.next.is_none() && held.records.len() <= HELD_MAX;
        if page.next.is_none() || held.records.len() >= HELD_MAX {
            break;
        }
    }
    held.records.truncate(HELD_MAX);
    Ok(held)
}

/// The records that have been logged.
#[derive(Default)]
struct ReportedRecords(HashSet<(RecordId, Fence)>);

impl ReportedRecords {
    /// Logs the new records, and returns their descriptions.
    fn log_new(&mut self, held: &HeldList) -> Vec<String> {
        let name = |record: &Summary| (record.id.clone(), record.fence);
        let is_new = |record: &&Summary| !self.0.contains(&name(record));
        let new: Vec<&Summary> = held.records.iter().filter(is_new).collect();
        let named: Vec<String> =
            new.iter().take(NAMED_MAX).map(|record| describe(record)).collect();
        if !new.is_empty() {
            tracing::warn!(
                held = held.records.len(),
                complete = held.complete,
                new = new.len(),
                records = named.join(", "),
                "the outcome of these records is unknown: they are held until an operator \
                 resolves them; list them with `semel list --state held`",
            );
        }
        self.0 = held.records.iter().map(name).collect();
        named
    }
}

/// Which record, what it is about and why it is held.
fn describe(record: &Summary) -> String {
    let reason = record.reason.as_ref().map_or_else(|| NO_REASON.to_owned(), Reason::to_string);
    match record.about.as_str() {
        "" => format!("{} ({reason})", record.id),
        about => format!("{} ({about}: {reason})", record.id),
    }
}

#[cfg(test)]
mod tests {
    use semel::{
        MemoryStore,
        core::{
            About, Caller, Claim, Claimant, Claimed, Fingerprint, Finish, Key, OwnerToken,
            Resolution, Scope,
        },
    };

    use super::*;

    fn id(key: &str) -> RecordId {
        RecordId::new(Scope::new("s").unwrap(), Caller::anonymous(), Key::new(key).unwrap())
    }

    async fn claim(store: &MemoryStore, key: &str, lease: Duration) -> Claimant {
        let fingerprint = Fingerprint::of_parts("test", &[]);
        let mut claim = Claim::new(id(key), fingerprint, OwnerToken::from_bytes([1; 16]));
        (claim.lease, claim.about) = (lease, About::new("POST /charges"));
        let claimed = store.claim(&claim).await.unwrap();
        let Claimed::Granted(grant) = claimed else { panic!("{claimed:?}") };
        claim.claimant(grant.fence)
    }

    async fn hold(store: &MemoryStore, key: &str) -> Fence {
        let by = claim(store, key, Duration::from_secs(3600)).await;
        store.finish(&id(key), by, &Finish::hold(Reason::Answered(503))).await.unwrap();
        by.fence
    }

    #[tokio::test]
    async fn held_records_are_counted_and_new_ones_logged_once() {
        let (store, mut reported) = (MemoryStore::new(), ReportedRecords::default());
        claim(&store, "runs", Duration::from_secs(3600)).await;
        let fence = hold(&store, "held").await;
        // No request has used this key since its owner crashed.
        claim(&store, "lapsed", Duration::ZERO).await;
        while held(&store).await.unwrap().records.len() < 2 {
            tokio::time::sleep(Duration::from_millis(5)).await;
        }
        let counted = held(&store).await.unwrap();
        assert!(counted.complete);
        let mut labels: Vec<_> = counted.labels().map(|(scope, label, _)| (scope, label)).collect();
        labels.sort_unstable();
        assert_eq!(labels, [("s", "answered"), ("s", "lease-expired")]);
        let mut named = reported.log_new(&counted);
        named.sort_unstable();
        let expected = [
            format!("{} (POST /charges: upstream answered 503)", id("held")),
            format!("{} (POST /charges: lease expired)", id("lapsed")),
        ];
        assert_eq!(named, expected);
        assert_eq!(reported.log_new(&held(&store).await.unwrap()), [""; 0]);
        store.resolve(&id("held"), fence, &Resolution::Released).await.unwrap();
        assert_eq!(held(&store).await.unwrap().records.len(), 1);
    }

    #[tokio::test]
    async fn a_truncated_count_is_marked_incomplete() {
        let store = MemoryStore::new();
        for number in 0..HELD_MAX {
            hold(&store, &format!("k{number}")).await;
        }
        assert!(held(&store).await.unwrap().complete);
        hold(&store, "one-more").await;
        let counted = held(&store).await.unwrap();
        assert_eq!((counted.records.len(), counted.complete), (HELD_MAX, false));
    }
}
