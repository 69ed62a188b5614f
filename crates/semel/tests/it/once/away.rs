//! A store that goes away and comes back, and what `once` makes of that.

use std::{
    sync::{
        Arc,
        atomic::{AtomicBool, Ordering},
    },
    time::Duration,
};

use async_trait::async_trait;
use semel::{
    MemoryStore, OnceErrorKind, Outcome, Semel, Stop,
    core::{
        Answer, Batch, Claim, Claimed, Epoch, Fence, Fenced, ListQuery, OnStoreDown, OnUnknown,
        Page, RecordId, Resolution, Resolved, Snapshot, StateName, Store, StoreError,
        StoreErrorKind, Tried,
    },
};
use tokio::time::sleep;

use super::{Bench, once, seconds};

/// The way to a store, which can be cut.
#[derive(Clone, Debug)]
pub(super) struct Away {
    store: MemoryStore,
    gone: Arc<AtomicBool>,
}

impl Away {
    pub(super) fn over(store: &MemoryStore) -> Self {
        Self { store: store.clone(), gone: Arc::default() }
    }

    pub(super) fn go(&self) {
        self.gone.store(true, Ordering::SeqCst);
    }

    pub(super) fn come_back(&self) {
        self.gone.store(false, Ordering::SeqCst);
    }

    fn there(&self) -> Result<&MemoryStore, StoreError> {
        if self.gone.load(Ordering::SeqCst) {
            return Err(StoreError::new(StoreErrorKind::Unavailable, "the store is away"));
        }
        Ok(&self.store)
    }
}

#[async_trait]
impl Store for Away {
    async fn claim(&self, claim: &Claim) -> Result<Claimed, StoreError> {
        self.there()?.claim(claim).await
    }

    async fn renew(
        &self,
        id: &RecordId,
        fence: Fence,
        lease: Duration,
    ) -> Result<Fenced, StoreError> {
        self.there()?.renew(id, fence, lease).await
    }

    async fn complete(
        &self,
        id: &RecordId,
        fence: Fence,
        answer: &Answer,
    ) -> Result<Fenced, StoreError> {
        self.there()?.complete(id, fence, answer).await
    }

    async fn release(
        &self,
        id: &RecordId,
        fence: Fence,
        tried: Tried,
    ) -> Result<Fenced, StoreError> {
        self.there()?.release(id, fence, tried).await
    }

    async fn hold(&self, id: &RecordId, fence: Fence) -> Result<Fenced, StoreError> {
        self.there()?.hold(id, fence).await
    }

    async fn get(&self, id: &RecordId) -> Result<Option<Snapshot>, StoreError> {
        self.there()?.get(id).await
    }

    async fn list(&self, query: &ListQuery) -> Result<Page, StoreError> {
        self.there()?.list(query).await
    }

    async fn resolve(
        &self,
        id: &RecordId,
        seen: Fence,
        resolution: &Resolution,
    ) -> Result<Resolved, StoreError> {
        self.there()?.resolve(id, seen, resolution).await
    }

    async fn reap(&self, limit: u32) -> Result<Batch, StoreError> {
        self.there()?.reap(limit).await
    }

    async fn sweep(&self, limit: u32) -> Result<Batch, StoreError> {
        self.there()?.sweep(limit).await
    }

    async fn epoch(&self) -> Result<Epoch, StoreError> {
        self.there()?.epoch().await
    }
}

fn cut_off(bench: &Bench) -> (Away, Semel) {
    let away = Away::over(&bench.store);
    let semel = Semel::new(away.clone());
    (away, semel)
}

#[tokio::test(start_paused = true)]
async fn while_the_store_is_away_nothing_runs() {
    let bench = Bench::new();
    let (away, semel) = cut_off(&bench);
    let call = || {
        let runs = bench.runs.clone();
        once(&semel, "k").run(move |_| async move { Ok(runs.one_more()) })
    };
    away.go();
    let error = call().await.unwrap_err();
    assert_eq!(error.kind(), OnceErrorKind::StoreUnavailable);
    assert!(error.retry_later());
    assert_eq!(bench.runs.count(), 0);
    away.come_back();
    assert!(matches!(call().await, Ok(Outcome::Ran(1))));
}

#[tokio::test(start_paused = true)]
async fn a_call_that_may_pass_runs_unguarded_and_without_a_fence() {
    let bench = Bench::new();
    let (away, semel) = cut_off(&bench);
    away.go();
    for run in 1..=2 {
        let runs = bench.runs.clone();
        let call = once(&semel, "k").on_store_down(OnStoreDown::Pass);
        let outcome = call.run(move |lease| async move {
            assert!(lease.fence().is_none());
            Ok(runs.one_more())
        });
        let outcome = outcome.await;
        assert!(matches!(outcome, Ok(Outcome::Ran(value)) if value == run), "{outcome:?}");
    }
    assert!(bench.record("k").await.is_none());
}

#[tokio::test(start_paused = true)]
async fn what_ended_unguarded_is_recorded_nowhere_so_that_it_runs_again() {
    for rule in [OnUnknown::Hold, OnUnknown::Fail, OnUnknown::Rerun] {
        for panics in [false, true] {
            let bench = Bench::new();
            let (away, semel) = cut_off(&bench);
            away.go();
            let call = once(&semel, "k").on_store_down(OnStoreDown::Pass).on_unknown(rule);
            let outcome = call.run(move |_| async move {
                assert!(!panics, "on purpose");
                Err::<u32, _>(Stop::unknown("line dead"))
            });
            let outcome = outcome.await;
            let Ok(Outcome::Unknown(unknown)) = outcome else { panic!("{rule:?}: {outcome:?}") };
            assert!(unknown.ran() && unknown.runs_again(), "{rule:?}");
        }
    }
}

#[tokio::test(start_paused = true)]
async fn what_cannot_be_recorded_is_unknown_until_the_store_is_back() {
    let bench = Bench::new();
    let (away, semel) = cut_off(&bench);
    let (runs, cut) = (bench.runs.clone(), away.clone());
    let outcome = once(&semel, "k").run(move |_| async move {
        cut.go();
        Ok(runs.one_more())
    });
    let outcome = outcome.await;
    let Ok(Outcome::Unknown(unknown)) = outcome else { panic!("{outcome:?}") };
    assert_eq!(unknown.value(), Some(&1));
    assert!(unknown.ran() && !unknown.runs_again());
    assert_eq!(bench.record("k").await.unwrap().standing.name(), StateName::InFlight);

    away.come_back();
    sleep(seconds(30)).await;
    let outcome = once(&bench.elsewhere(), "k").run(|_| async { Ok(9_u32) }).await;
    assert!(matches!(outcome, Ok(Outcome::Replayed(1))), "{outcome:?}");
    assert_eq!(bench.runs.count(), 1);
}
