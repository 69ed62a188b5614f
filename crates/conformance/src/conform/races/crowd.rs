//! Many owners, many keys, every ending: no two run one key at once, and the attempts add up.

use std::sync::{
    Arc,
    atomic::{AtomicU32, AtomicU64, Ordering},
};

use semel_core::{Claimed, Fenced, Grant, Release, Resolution, Resolved, StateName, StateView};

use super::{
    super::harness::{Handle, LEASE, StoreHarness, answer, claim, id},
    start::{handles, shuffled, together},
};

const KEYS: usize = 6;
const WORKERS: usize = 12;
const TRIES: usize = 40;

/// What happened to one key.
#[derive(Debug, Default)]
struct CrowdTally {
    running: AtomicU32,
    grants: AtomicU32,
    untried: AtomicU32,
    forgotten: AtomicU32,
    answers: AtomicU32,
}

pub(crate) async fn no_two_owners_run_at_once(harness: &StoreHarness) {
    let handles = handles(harness).await;
    let tallies: Arc<Vec<CrowdTally>> =
        Arc::new((0..KEYS).map(|_| CrowdTally::default()).collect());
    let workers = (0..WORKERS).map(|worker| {
        let (handle, tallies) = (handles[worker % handles.len()].clone(), Arc::clone(&tallies));
        async move {
            let numbers = AtomicU64::new(worker as u64 + 1);
            for _ in 0..TRIES {
                let key = usize::try_from(shuffled(&numbers)).unwrap() % KEYS;
                work(&handle, key, &tallies[key], shuffled(&numbers)).await;
            }
        }
    });
    together(workers.collect()).await;
    for (key, tally) in tallies.iter().enumerate() {
        check(harness, key, tally).await;
    }
}

/// Claims a key and ends it in one of the ways there are.
async fn work(handle: &Handle, key: usize, tally: &CrowdTally, ending: u64) {
    let claim = claim(&format!("key-{key}"));
    let Claimed::Granted(grant) = handle.claim(&claim).await else { return };
    tally.grants.fetch_add(1, Ordering::SeqCst);
    assert_eq!(tally.running.fetch_add(1, Ordering::SeqCst), 0, "two owners run {}", claim.id);
    tokio::task::yield_now().await;
    assert_eq!(handle.renew(&claim.id, grant.fence, LEASE).await, Fenced::Applied);
    // From here on another task may be granted the key, before this one hears that it has ended.
    assert_eq!(tally.running.fetch_sub(1, Ordering::SeqCst), 1, "two owners run {}", claim.id);
    end(handle, &claim.id, grant, tally, ending % 16).await;
}

async fn end(
    handle: &Handle,
    id: &semel_core::RecordId,
    grant: Grant,
    tally: &CrowdTally,
    ending: u64,
) {
    let fence = grant.fence;
    let result = match ending {
        0 => {
            // Before the write: once it holds, the record may be forgotten and the count read.
            tally.answers.fetch_add(1, Ordering::SeqCst);
            handle.complete(id, fence, &answer("done")).await
        }
        1..=5 => {
            tally.untried.fetch_add(1, Ordering::SeqCst);
            handle.release(id, fence, Release::NotSent).await
        }
        6 => {
            assert_eq!(handle.hold(id, fence).await, Fenced::Applied);
            let forget = Resolution::Deleted(StateName::Held);
            let act = handle.resolve(id, fence, &forget).await;
            assert_eq!(act, Resolved::Applied);
            tally.forgotten.fetch_add(1, Ordering::SeqCst);
            return;
        }
        7 => {
            assert_eq!(handle.hold(id, fence).await, Fenced::Applied);
            let act = handle.resolve(id, fence, &Resolution::Released).await;
            assert_eq!(act, Resolved::Applied);
            return;
        }
        _ => handle.release(id, fence, Release::Rerun).await,
    };
    assert_eq!(result, Fenced::Applied, "the ending of {id}");
}

async fn check(harness: &StoreHarness, key: usize, tally: &CrowdTally) {
    let id = id("conform", "caller", &format!("key-{key}"));
    let [grants, untried, forgotten, answers] =
        [&tally.grants, &tally.untried, &tally.forgotten, &tally.answers]
            .map(|count| count.load(Ordering::SeqCst));
    assert!(grants > 0 && answers <= 1, "{id}: {tally:?}");
    let Some(seen) = harness.get(&id).await else {
        assert!(forgotten > 0, "{id} is gone: {tally:?}");
        return;
    };
    let completed = matches!(seen.state, StateView::Completed { .. });
    assert_eq!(u32::from(completed), answers, "{id}: {seen:?}, {tally:?}");
    // Forgetting restarts the count, so then it is only a bound.
    if forgotten == 0 {
        assert_eq!(seen.attempt, grants - untried, "{id}: {tally:?}");
    } else {
        assert!(seen.attempt <= grants - untried, "{id}: {tally:?}");
    }
}
