//! How many keys are held now.
//!
//! It is counted in the store: a key becomes held by the crash of a process that can tell nobody,
//! and by another server as well as by this one.

use std::{collections::HashSet, sync::Arc, time::Duration};

use semel::{
    Semel,
    core::{Fence, ListQuery, RecordId, StateName, Store, StoreError},
};
use tokio::{
    task::JoinHandle,
    time::{MissedTickBehavior, interval, timeout},
};

use super::metrics::Metrics;

/// How often they are counted.
const EVERY: Duration = Duration::from_secs(15);

/// How long counting may take.
const PATIENCE: Duration = Duration::from_secs(10);

/// How many are counted at most, and in how many pages: where thousands run, a page may be empty.
const HELD_MAX: usize = 1000;
const PAGES_MAX: usize = 5;

/// How many of the new ones are named.
const NAMED_MAX: usize = 5;

/// Counts for as long as it is kept.
#[derive(Debug)]
pub(crate) struct HeldCount(JoinHandle<()>);

impl HeldCount {
    /// Begins to count. To be called in a runtime.
    pub(crate) fn start(semel: Semel, metrics: Arc<Metrics>) -> Self {
        Self(tokio::spawn(async move {
            let mut known = Known::default();
            let mut period = interval(EVERY);
            period.set_missed_tick_behavior(MissedTickBehavior::Delay);
            loop {
                period.tick().await;
                // A store that fails is told of elsewhere; the last count stands until it is back.
                if let Ok(Ok(held)) = timeout(PATIENCE, held(&**semel.store())).await {
                    metrics.held(held.len());
                    known.learn(held);
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

type Held = HashSet<(RecordId, Fence)>;

async fn held(store: &dyn Store) -> Result<Held, StoreError> {
    let (mut held, state) = (Held::new(), Some(StateName::Held));
    let mut query = ListQuery { state, ..ListQuery::default() };
    for _ in 0..PAGES_MAX {
        let page = store.list(&query).await?;
        let room = HELD_MAX.saturating_sub(held.len());
        held.extend(page.items.into_iter().take(room).map(|record| (record.id, record.fence)));
        query.after = page.next;
        if page.next.is_none() || held.len() >= HELD_MAX {
            break;
        }
    }
    Ok(held)
}

/// Those that were held when they were last counted.
#[derive(Debug, Default)]
struct Known(Held);

impl Known {
    /// Logs those that are new, and says which it named.
    fn learn(&mut self, held: Held) -> Vec<String> {
        let new: Vec<_> = held.iter().filter(|record| !self.0.contains(record)).collect();
        let named: Vec<String> = new.iter().take(NAMED_MAX).map(|(id, _)| id.to_string()).collect();
        if !new.is_empty() {
            tracing::warn!(
                held = held.len(),
                new = new.len(),
                records = named.join(", "),
                "keys are held: nobody knows whether they took effect; see them with \
                 `semel list --state held`",
            );
        }
        self.0 = held;
        named
    }
}

#[cfg(test)]
mod tests {
    use semel::{
        MemoryStore,
        core::{
            Caller, Claim, Claimed, Fingerprint, Key, OnUnknown, OwnerToken, Resolution, Scope,
        },
    };

    use super::*;

    fn id(key: &str) -> RecordId {
        RecordId::new(Scope::new("s").unwrap(), Caller::anonymous(), Key::new(key).unwrap())
    }

    async fn claim(store: &MemoryStore, key: &str, lease: Duration) -> Fence {
        let claim = Claim {
            id: id(key),
            fingerprint: Fingerprint::of_parts("test", &[]),
            owner: OwnerToken::from_bytes([1; 16]),
            lease,
            retention: Duration::from_secs(3600),
            on_unknown: OnUnknown::Hold,
        };
        let claimed = store.claim(&claim).await.unwrap();
        let Claimed::Granted(grant) = claimed else { panic!("{claimed:?}") };
        grant.fence
    }

    #[tokio::test]
    async fn what_is_held_is_counted_and_what_is_new_is_named_once() {
        let (store, mut known) = (MemoryStore::new(), Known::default());
        claim(&store, "runs", Duration::from_secs(3600)).await;
        let fence = claim(&store, "held", Duration::from_secs(3600)).await;
        store.hold(&id("held"), fence).await.unwrap();
        // Nobody has asked for this one since its owner was gone.
        claim(&store, "lapsed", Duration::ZERO).await;
        while held(&store).await.unwrap().len() < 2 {
            tokio::time::sleep(Duration::from_millis(5)).await;
        }
        let mut named = known.learn(held(&store).await.unwrap());
        named.sort_unstable();
        assert_eq!(named, [id("held").to_string(), id("lapsed").to_string()]);
        assert_eq!(known.learn(held(&store).await.unwrap()), [""; 0]);
        store.resolve(&id("held"), fence, &Resolution::Released).await.unwrap();
        assert_eq!(held(&store).await.unwrap().len(), 1);
    }

    #[tokio::test]
    async fn only_so_many_are_counted() {
        let store = MemoryStore::new();
        for number in 0..HELD_MAX + 7 {
            let key = format!("k{number}");
            let fence = claim(&store, &key, Duration::from_secs(3600)).await;
            store.hold(&id(&key), fence).await.unwrap();
        }
        assert_eq!(held(&store).await.unwrap().len(), HELD_MAX);
    }
}
