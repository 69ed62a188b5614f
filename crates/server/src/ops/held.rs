//! How many records are held now, by scope and reason.
//!
//! They are counted in the store: a record becomes held by the crash of a process that can report
//! nothing, and by another server as well as by this one.

use std::{collections::HashSet, sync::Arc, time::Duration};

use semel::{
    Semel,
    core::{Fence, ListQuery, Reason, RecordId, StateName, Store, StoreError, Summary},
};
use tokio::{
    task::JoinHandle,
    time::{MissedTickBehavior, interval, timeout},
};

use super::metrics::Metrics;

/// How often they are counted.
const COUNT_INTERVAL: Duration = Duration::from_secs(15);

/// How long counting may take.
const COUNT_TIMEOUT: Duration = Duration::from_secs(10);

/// How many are counted at most, and in how many pages: a page may be short, even empty.
const HELD_MAX: usize = 10_000;
const PAGES_MAX: usize = 50;

/// How many of the new ones are named.
const NAMED_MAX: usize = 5;

/// The label of a record that was held without a reason.
pub(super) const NO_REASON: &str = "none";

/// Counts for as long as it is kept.
#[derive(Debug)]
pub(crate) struct HeldCount(JoinHandle<()>);

impl HeldCount {
    /// Begins to count. To be called in a runtime.
    pub(crate) fn start(semel: Semel, metrics: Arc<Metrics>) -> Self {
        Self(tokio::spawn(async move {
            let mut known = Known::default();
            let mut period = interval(COUNT_INTERVAL);
            period.set_missed_tick_behavior(MissedTickBehavior::Delay);
            loop {
                period.tick().await;
                // A store that fails is logged elsewhere; the last count stands until it is back.
                if let Ok(Ok(held)) = timeout(COUNT_TIMEOUT, held(&**semel.store())).await {
                    metrics.held(held.labels(), held.complete);
                    known.learn(&held);
                }
            }
        }))
    }
}

impl Drop for HeldCount {
    fn drop(&mut self) {
        self.0.abort();
    }
}

/// The records that are held.
struct Held {
    records: Vec<Summary>,
    /// Whether these are all.
    complete: bool,
}

impl Held {
    /// The scope and the label of the reason of each.
    fn labels(&self) -> impl Iterator<Item = (&str, &'static str)> {
        self.records.iter().map(|record| {
            let label = record.reason.as_ref().map_or(NO_REASON, Reason::label);
            (record.id.scope.as_str(), label)
        })
    }
}

async fn held(store: &dyn Store) -> Result<Held, StoreError> {
    let mut query = ListQuery::new();
    query.state = Some(StateName::Held);
    let mut held = Held { records: Vec::new(), complete: false };
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

/// The records that were logged.
#[derive(Default)]
struct Known(HashSet<(RecordId, Fence)>);

impl Known {
    /// Logs those that are new, and returns how it named them.
    fn learn(&mut self, held: &Held) -> Vec<String> {
        let name = |record: &Summary| (record.id.clone(), record.fence);
        let is_new = |record: &&Summary| !self.0.contains(&name(record));
        let new: Vec<&Summary> = held.records.iter().filter(is_new).collect();
        let named: Vec<String> =
            new.iter().take(NAMED_MAX).map(|record| described(record)).collect();
        if !new.is_empty() {
            tracing::warn!(
                held = held.records.len(),
                complete = held.complete,
                new = new.len(),
                records = named.join(", "),
                "the outcome of these records is unknown: they are held until an operator \
                 resolves them; see them with `semel list --state held`",
            );
        }
        self.0 = held.records.iter().map(name).collect();
        named
    }
}

/// Which record, what it is about and why it is held.
fn described(record: &Summary) -> String {
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
    async fn what_is_held_is_counted_and_what_is_new_is_named_once() {
        let (store, mut known) = (MemoryStore::new(), Known::default());
        claim(&store, "runs", Duration::from_secs(3600)).await;
        let fence = hold(&store, "held").await;
        // Nobody has asked for this one since its owner was gone.
        claim(&store, "lapsed", Duration::ZERO).await;
        while held(&store).await.unwrap().records.len() < 2 {
            tokio::time::sleep(Duration::from_millis(5)).await;
        }
        let counted = held(&store).await.unwrap();
        assert!(counted.complete);
        let mut labels: Vec<_> = counted.labels().collect();
        labels.sort_unstable();
        assert_eq!(labels, [("s", "answered"), ("s", "lease-expired")]);
        let mut named = known.learn(&counted);
        named.sort_unstable();
        let expected = [
            format!("{} (POST /charges: upstream answered 503)", id("held")),
            format!("{} (POST /charges: lease expired)", id("lapsed")),
        ];
        assert_eq!(named, expected);
        assert_eq!(known.learn(&held(&store).await.unwrap()), [""; 0]);
        store.resolve(&id("held"), fence, &Resolution::Released).await.unwrap();
        assert_eq!(held(&store).await.unwrap().records.len(), 1);
    }

    #[tokio::test]
    async fn a_count_that_was_cut_short_says_so() {
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
