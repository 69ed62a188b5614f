//! Concurrent claims: a limit admits exactly its units, whatever the order.

use std::sync::{
    Arc,
    atomic::{AtomicU32, AtomicU64, Ordering},
};

use semel_core::{
    Answer, Claimed, Fenced, Finish, Limit, Occupied, Reason, Release, StoredResponse,
    limit::Counted,
};

use super::{
    super::{
        harness::{Handle, StoreHarness},
        races::{handles, shuffled, together},
    },
    counting, limit, limited,
};

pub(crate) async fn of_many_claims_as_many_as_the_limit_are_granted(harness: &StoreHarness) {
    if !harness.has_limits() {
        return;
    }
    let handles = handles(harness).await;
    let claims = (0..60).map(|number| {
        let handle = handles[number % handles.len()].clone();
        // In both orders: what locks the counters in the order of the claim has a deadlock here.
        let limits = if number % 2 == 0 { [1, 2] } else { [2, 1] }.map(|key| limit(key, 7));
        async move {
            match handle.claim(&limited(&format!("key-{number}"), limits)).await {
                Claimed::Granted(_) => 1,
                Claimed::Occupied(Occupied::Limited(_)) => 0,
                Claimed::Occupied(other) => panic!("{other:?}"),
            }
        }
    });
    let granted: u32 = together(claims.collect()).await.into_iter().sum();
    assert_eq!(granted, 7);
}

pub(crate) async fn there_is_never_one_decline_too_many(harness: &StoreHarness) {
    if !harness.has_limits() {
        return;
    }
    let handles = handles(harness).await;
    let (declines, limit) = (Arc::new(AtomicU32::new(0)), counting(Counted::Declined, 3));
    let payments = (0..100).map(|number| {
        let handle = handles[number % handles.len()].clone();
        let (declines, limit) = (Arc::clone(&declines), limit.clone());
        async move { pay(&handle, number, limit, &declines).await }
    });
    together(payments.collect()).await;
    assert_eq!(declines.load(Ordering::SeqCst), 3);
}

/// Tries a card until the limit is reached: every third is declined, every third is not sent.
async fn pay(handle: &Handle, number: usize, limit: Limit, declines: &AtomicU32) {
    let numbers = AtomicU64::new(u64::try_from(number).unwrap() + 1);
    for attempt in 0..8 {
        let claim = limited(&format!("card-{number}-{attempt}"), [limit.clone()]);
        let Claimed::Granted(grant) = handle.claim(&claim).await else { continue };
        let status = |status| {
            let response = StoredResponse { status, ..StoredResponse::default() };
            Finish::complete(Answer::response(&response))
        };
        let finish = match shuffled(&numbers) % 3 {
            0 => {
                declines.fetch_add(1, Ordering::SeqCst);
                status(402)
            }
            1 => Finish::release(Release::NotSent, Reason::NotSent),
            _ => status(201),
        };
        let finish = finish.with_limits(&claim.limits, None);
        assert_eq!(handle.finish(&claim.id, grant.fence, &finish).await, Fenced::Applied);
    }
    // A card that is declined for certain, so that the limit is reached.
    let claim = limited(&format!("last-{number}"), [limit]);
    if let Claimed::Granted(grant) = handle.claim(&claim).await {
        declines.fetch_add(1, Ordering::SeqCst);
        let response = StoredResponse { status: 402, ..StoredResponse::default() };
        let finish = Finish::complete(Answer::response(&response)).with_limits(&claim.limits, None);
        assert_eq!(handle.finish(&claim.id, grant.fence, &finish).await, Fenced::Applied);
    }
}
