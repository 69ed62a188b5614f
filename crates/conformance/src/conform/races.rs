//! Races on separate handles: one wins, and all see the same record (laws 1, 3, 4, 5 and 12).
//!
//! All who take part wait at a barrier first, and each race is run on many keys.

mod crowd;
mod start;

use std::{
    future::Future,
    sync::Arc,
    task::{Context, Poll, Waker},
};

use semel_core::{
    Answer, Claimed, Fenced, Occupied, OnUnknown, Release, Resolution, Resolved, StateName,
    StateView,
};
use tokio::{runtime, task};

use super::harness::{LEASE, RETENTION, StoreHarness, TICK, answer, claim, rival};
use start::{both, claimed_by_a_crowd, lapsed, only_grant};
pub(super) use start::{handles, shuffled, together};

pub(crate) use crowd::no_two_owners_run_at_once;

/// How many take part where all do the same.
const CONCURRENT_CLAIMS: usize = 32;
/// How often each race is run.
const ROUNDS: usize = 24;

pub(crate) async fn of_many_claims_one_is_granted(harness: &StoreHarness) {
    let handles = handles(harness).await;
    for round in 0..ROUNDS {
        let claim = claim(&format!("crowd-{round}"));
        let grant = claimed_by_a_crowd(&handles, &claim).await;
        assert_eq!(grant.attempt, 1);
        let done = harness.complete(&claim.id, grant.fence, &answer("done")).await;
        assert_eq!(done, Fenced::Applied);
    }
}

pub(crate) async fn of_many_threads_one_is_granted(harness: &StoreHarness) {
    let handles = handles(harness).await;
    let runtime = runtime::Handle::current();
    for round in 0..4 {
        let claim = claim(&format!("threads-{round}"));
        let barrier = Arc::new(std::sync::Barrier::new(CONCURRENT_CLAIMS));
        let threads: Vec<_> = (0..CONCURRENT_CLAIMS)
            .map(|at| {
                let (handle, rival) = (handles[at % handles.len()].clone(), rival(&claim));
                let (barrier, runtime) = (Arc::clone(&barrier), runtime.clone());
                std::thread::spawn(move || {
                    barrier.wait();
                    runtime.block_on(handle.claim(&rival))
                })
            })
            .collect();
        let join = move || threads.into_iter().map(|thread| thread.join().unwrap()).collect();
        let claimed: Vec<Claimed> = task::spawn_blocking(join).await.unwrap();
        assert_eq!(only_grant(claimed).attempt, 1);
    }
}

pub(crate) async fn a_lapsed_lease_is_taken_over_once(harness: &StoreHarness) {
    let handles = handles(harness).await;
    for round in 0..ROUNDS {
        let (claim, old) = lapsed(harness, format!("lapsed-{round}"), OnUnknown::Rerun).await;
        let new = claimed_by_a_crowd(&handles, &claim).await;
        assert_eq!(new.attempt, 2);
        assert!(new.fence > old.fence, "{new:?} after {old:?}");
        let late = harness.complete(&claim.id, old.fence, &answer("late")).await;
        assert_eq!(late, Fenced::Lost);
        assert_eq!(harness.seen(&claim.id).await.fence, new.fence);
    }
}

pub(crate) async fn an_answer_or_a_takeover_wins(harness: &StoreHarness) {
    let (owner, other) = (harness.another().await, harness.another().await);
    for round in 0..ROUNDS {
        let (claim, old) = lapsed(harness, format!("answer-{round}"), OnUnknown::Rerun).await;
        let (owner, other) = (owner.clone(), other.clone());
        let (id, rival) = (claim.id.clone(), rival(&claim));
        let (fenced, claimed) =
            both(async move { owner.complete(&id, old.fence, &answer("old")).await }, async move {
                other.claim(&rival).await
            })
            .await;
        let seen = harness.seen(&claim.id).await;
        match (fenced, claimed) {
            (Fenced::Lost, Claimed::Granted(new)) => {
                assert_eq!((seen.fence, seen.attempt), (new.fence, 2));
                assert_eq!(seen.state, StateView::InFlight { lease_left: LEASE });
            }
            (Fenced::Applied, Claimed::Occupied(Occupied::Completed { answer: result, .. })) => {
                assert_eq!(result, answer("old"));
                assert_eq!(seen.fence, old.fence);
            }
            two_truths => panic!("{two_truths:?}, and the record is {seen:?}"),
        }
    }
}

pub(crate) async fn a_renewal_or_a_takeover_wins(harness: &StoreHarness) {
    let (owner, other) = (harness.another().await, harness.another().await);
    for round in 0..ROUNDS {
        let (claim, old) = lapsed(harness, format!("renewal-{round}"), OnUnknown::Rerun).await;
        let (owner, other) = (owner.clone(), other.clone());
        let (id, rival) = (claim.id.clone(), rival(&claim));
        let (fenced, claimed) =
            both(async move { owner.renew(&id, old.fence, LEASE).await }, async move {
                other.claim(&rival).await
            })
            .await;
        let seen = harness.seen(&claim.id).await;
        assert_eq!(seen.state, StateView::InFlight { lease_left: LEASE });
        match (fenced, claimed) {
            (Fenced::Lost, Claimed::Granted(new)) => assert_eq!(seen.fence, new.fence),
            (Fenced::Applied, Claimed::Occupied(Occupied::InFlight { .. })) => {
                assert_eq!(seen.fence, old.fence);
            }
            two_truths => panic!("{two_truths:?}, and the record is {seen:?}"),
        }
    }
}

pub(crate) async fn an_answer_or_a_release_wins(harness: &StoreHarness) {
    let (one, two) = (harness.another().await, harness.another().await);
    for round in 0..ROUNDS {
        let claim = claim(&format!("release-{round}"));
        let fence = harness.granted(&claim).await.fence;
        let (one, two, id, same) = (one.clone(), two.clone(), claim.id.clone(), claim.id.clone());
        let result =
            both(async move { one.complete(&id, fence, &answer("done")).await }, async move {
                two.release(&same, fence, Release::Rerun).await
            })
            .await;
        let seen = harness.seen(&claim.id).await;
        let completed = matches!(seen.state, StateView::Completed { .. });
        let wanted = if completed {
            (Fenced::Applied, Fenced::Lost)
        } else {
            (Fenced::Lost, Fenced::Applied)
        };
        assert_eq!(result, wanted, "{seen:?}");
    }
}

pub(crate) async fn a_late_answer_or_an_operator_wins(harness: &StoreHarness) {
    let (owner, operator) = (harness.another().await, harness.another().await);
    for round in 0..ROUNDS {
        let claim = claim(&format!("operator-{round}"));
        let fence = harness.granted(&claim).await.fence;
        harness.hold(&claim.id, fence).await;
        let epoch = harness.epoch().await.0;
        let act = if round % 2 == 0 {
            Resolution::Released
        } else {
            Resolution::Completed(answer("operator"))
        };
        let (owner, operator, id, same) =
            (owner.clone(), operator.clone(), claim.id.clone(), claim.id.clone());
        let result =
            both(async move { owner.complete(&id, fence, &answer("owner")).await }, async move {
                operator.resolve(&same, fence, &act).await
            })
            .await;
        let seen = harness.seen(&claim.id).await;
        let raised = harness.epoch().await.0 - epoch;
        match result {
            (Fenced::Applied, Resolved::Stale) => assert_eq!((seen.fence, raised), (fence, 0)),
            (Fenced::Lost, Resolved::Applied) => {
                assert!(seen.fence > fence && raised == 1, "{seen:?}, raised by {raised}");
            }
            two_truths => panic!("{two_truths:?}, and the record is {seen:?}"),
        }
    }
}

pub(crate) async fn a_late_answer_or_a_deletion_wins(harness: &StoreHarness) {
    let (owner, operator) = (harness.another().await, harness.another().await);
    for round in 0..ROUNDS {
        let claim = claim(&format!("forgetting-{round}"));
        let fence = harness.granted(&claim).await.fence;
        harness.hold(&claim.id, fence).await;
        let (owner, operator, id, same) =
            (owner.clone(), operator.clone(), claim.id.clone(), claim.id.clone());
        let result =
            both(async move { owner.complete(&id, fence, &answer("owner")).await }, async move {
                operator.resolve(&same, fence, &Resolution::Deleted(StateName::Held)).await
            })
            .await;
        let seen = harness.get(&claim.id).await;
        match result {
            (Fenced::Applied, Resolved::Stale) => assert!(seen.is_some(), "the answer is gone"),
            (Fenced::Lost, Resolved::Applied) => assert_eq!(seen, None),
            two_truths => panic!("{two_truths:?}, and the record is {seen:?}"),
        }
    }
}

pub(crate) async fn of_many_operators_one_acts(harness: &StoreHarness) {
    let handles = handles(harness).await;
    for round in 0..4 {
        let claim = claim(&format!("operators-{round}"));
        let fence = harness.granted(&claim).await.fence;
        harness.hold(&claim.id, fence).await;
        let epoch = harness.epoch().await.0;
        let acts = (0..CONCURRENT_CLAIMS).map(|at| {
            let (handle, id) = (handles[at % handles.len()].clone(), claim.id.clone());
            async move { handle.resolve(&id, fence, &Resolution::Released).await }
        });
        let result = together(acts.collect()).await;
        assert_eq!(result.iter().filter(|result| **result == Resolved::Applied).count(), 1);
        assert_eq!(harness.epoch().await.0, epoch + 1);
    }
}

pub(crate) async fn an_expired_key_is_swept_or_claimed(harness: &StoreHarness) {
    let (sweeper, other) = (harness.another().await, harness.another().await);
    for round in 0..ROUNDS {
        let claim = claim(&format!("expired-{round}"));
        let old = harness.granted(&claim).await.fence;
        harness.complete(&claim.id, old, &answer("old")).await;
        harness.advance(RETENTION + TICK).await;
        let (sweeper, other, rival) = (sweeper.clone(), other.clone(), rival(&claim));
        let (swept, new) =
            both(
                async move { sweeper.sweep(100).await },
                async move { other.granted(&rival).await },
            )
            .await;
        assert!(swept.done <= 1, "{swept:?}");
        assert_eq!(new.attempt, 1);
        assert!(new.fence > old, "{new:?} after {old}");
        let seen = harness.seen(&claim.id).await;
        assert_eq!(seen.fence, new.fence, "the sweep took a record that was claimed again");
        // The new one must not be swept in its turn.
        harness.complete(&claim.id, new.fence, &answer("new")).await;
        assert_eq!(harness.sweep_all().await, 0);
        harness.seen(&claim.id).await;
        harness.advance(RETENTION + TICK).await;
        harness.sweep_all().await;
    }
}

pub(crate) async fn a_lapsed_key_is_failed_or_completed(harness: &StoreHarness) {
    let (owner, reaper) = (harness.another().await, harness.another().await);
    for round in 0..ROUNDS {
        let (claim, old) = lapsed(harness, format!("failed-{round}"), OnUnknown::Fail).await;
        let (owner, reaper, id) = (owner.clone(), reaper.clone(), claim.id.clone());
        let (fenced, reaped) = both(
            async move { owner.complete(&id, old.fence, &answer("late")).await },
            async move { reaper.reap(100).await },
        )
        .await;
        let StateView::Completed { answer: kept, .. } = harness.seen(&claim.id).await.state else {
            panic!("neither failed nor completed");
        };
        match fenced {
            Fenced::Applied => assert_eq!((kept, reaped.done), (answer("late"), 0)),
            Fenced::Lost => assert_eq!((kept, reaped.done), (Answer::failed(), 1)),
        }
    }
}

pub(crate) async fn an_answer_is_recorded_once(harness: &StoreHarness) {
    let handles = handles(harness).await;
    for round in 0..4 {
        let claim = claim(&format!("once-{round}"));
        let fence = harness.granted(&claim).await.fence;
        let acts = (0..CONCURRENT_CLAIMS).map(|at| {
            let (handle, id) = (handles[at % handles.len()].clone(), claim.id.clone());
            async move { handle.complete(&id, fence, &answer(&format!("{}", at % 8))).await }
        });
        let result = together(acts.collect()).await;
        let StateView::Completed { answer: kept, .. } = harness.seen(&claim.id).await.state else {
            panic!("not completed");
        };
        for (at, result) in result.into_iter().enumerate() {
            let same = kept == answer(&format!("{}", at % 8));
            assert_eq!(result, if same { Fenced::Applied } else { Fenced::Lost });
        }
    }
}

pub(crate) async fn a_claim_whose_future_was_dropped_can_be_repeated(harness: &StoreHarness) {
    for round in 0..ROUNDS {
        let claim = claim(&format!("dropped-{round}"));
        let mut begun = None;
        {
            let mut asking = Box::pin(harness.claim(&claim));
            if let Poll::Ready(Claimed::Granted(grant)) =
                asking.as_mut().poll(&mut Context::from_waker(Waker::noop()))
            {
                begun = Some(grant);
            }
        }
        let grant = harness.granted(&claim).await;
        assert!(begun.is_none_or(|begun| begun == grant), "{begun:?}, then {grant:?}");
        assert_eq!(grant.attempt, 1);
        // What was dropped must not come into force later, over what came after it.
        assert_eq!(harness.complete(&claim.id, grant.fence, &answer("x")).await, Fenced::Applied);
        assert_eq!(harness.seen(&claim.id).await.fence, grant.fence);
    }
}
