//! How a race is set up: who takes part, and that all start at once.

use std::{
    future::Future,
    sync::{
        Arc,
        atomic::{AtomicU64, Ordering},
    },
};

use semel_core::{Claim, Claimed, Grant, Occupied, OnUnknown};
use tokio::sync::Barrier;

use super::{
    super::harness::{Handle, LEASE, StoreHarness, TICK, claim, rival},
    CONCURRENT_CLAIMS,
};
use crate::with;

/// Runs all at once, each in a task of its own, and gives their results in order.
pub(in super::super) async fn together<T, F>(acts: Vec<F>) -> Vec<T>
where
    F: Future<Output = T> + Send + 'static,
    T: Send + 'static,
{
    let barrier = Arc::new(Barrier::new(acts.len()));
    let start = |act: F| {
        let barrier = Arc::clone(&barrier);
        tokio::spawn(async move {
            barrier.wait().await;
            act.await
        })
    };
    let tasks: Vec<_> = acts.into_iter().map(start).collect();
    let mut results = Vec::new();
    for task in tasks {
        results.push(task.await.expect("one of the race"));
    }
    results
}

/// Two at once.
pub(super) async fn both<A, B>(
    one: impl Future<Output = A> + Send + 'static,
    two: impl Future<Output = B> + Send + 'static,
) -> (A, B)
where
    A: Send + 'static,
    B: Send + 'static,
{
    let barrier = Arc::new(Barrier::new(2));
    let other = Arc::clone(&barrier);
    let one = tokio::spawn(async move {
        barrier.wait().await;
        one.await
    });
    let two = tokio::spawn(async move {
        other.wait().await;
        two.await
    });
    (one.await.expect("one of the race"), two.await.expect("one of the race"))
}

/// Several processes' handles.
pub(in super::super) async fn handles(harness: &StoreHarness) -> Vec<Handle> {
    let mut handles = vec![Handle::clone(harness)];
    for _ in 0..3 {
        handles.push(harness.another().await);
    }
    handles
}

/// The one grant among these; every other claim must have found the key in flight.
pub(super) fn only_grant(claimed: Vec<Claimed>) -> Grant {
    let mut grants = Vec::new();
    for claimed in claimed {
        match claimed {
            Claimed::Granted(grant) => grants.push(grant),
            Claimed::Occupied(result) => {
                assert_eq!(result, Occupied::InFlight { lease_left: LEASE })
            }
        }
    }
    assert_eq!(grants.len(), 1, "{grants:?}");
    grants[0]
}

pub(super) async fn claimed_by_a_crowd(handles: &[Handle], claim: &Claim) -> Grant {
    let acts = (0..CONCURRENT_CLAIMS).map(|at| {
        let (handle, rival) = (handles[at % handles.len()].clone(), rival(claim));
        async move { handle.claim(&rival).await }
    });
    only_grant(together(acts.collect()).await)
}

/// A claim whose lease has lapsed.
pub(super) async fn lapsed(
    harness: &StoreHarness,
    key: String,
    on_unknown: OnUnknown,
) -> (Claim, Grant) {
    let claim = with(claim(&key), |it| it.on_unknown = on_unknown);
    let grant = harness.granted(&claim).await;
    harness.advance(LEASE + TICK).await;
    (claim, grant)
}

/// A number that is different at each call and the same in each run.
pub(in super::super) fn shuffled(state: &AtomicU64) -> u64 {
    const STEP: u64 = 0x9e37_79b9_7f4a_7c15;
    let number = state.fetch_add(STEP, Ordering::Relaxed);
    let number = (number ^ (number >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    (number ^ (number >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb) >> 32
}
