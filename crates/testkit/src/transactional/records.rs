//! The records of a transactional store, asked for by the trait of all stores.
#![allow(missing_docs, reason = "the name of a case is its sentence")]

use std::{sync::Arc, time::Duration};

use semel::{
    core::{
        Answer, Claim, Claimed, Fence, Fenced, Finish, Grant, Occupied, OwnerToken, Reason,
        Release, StateView, Store, StoreErrorKind, StoredResponse,
    },
    transactional::TransactionalStore,
};
use tokio::time::{sleep, timeout};

use super::{
    TransactionalFixture,
    process::{EVENT_TIMEOUT, eventually},
};
use crate::conform::{answer, fingerprint, id};
use crate::with;

const RETENTION: Duration = Duration::from_secs(3600);

/// A claim by the owner of this number.
fn claim(key: &str, owner: u8) -> Claim {
    let owner = OwnerToken::from_bytes([owner; 16]);
    with(Claim::new(id("orders", "shop-3", key), fingerprint(1), owner), |claim| {
        claim.lease = Duration::from_secs(10);
        claim.retention = RETENTION;
    })
}

async fn granted(store: &impl Store, claim: &Claim) -> Fence {
    let result = store.claim(claim).await.unwrap();
    let Claimed::Granted(Grant { fence, attempt: 1, .. }) = result else {
        panic!("{} is not granted: {result:?}", claim.id);
    };
    fence
}

async fn two<F: TransactionalFixture>(
    fixture: &Arc<F>,
) -> (TransactionalStore<F::Database>, TransactionalStore<F::Database>) {
    (fixture.store().await, fixture.store().await)
}

pub async fn a_claim_that_is_asked_again_gets_the_same_fence<F: TransactionalFixture>(
    fixture: &Arc<F>,
) {
    let store = fixture.store().await;
    let claim = claim("k", 1);
    let fence = granted(&store, &claim).await;
    assert_eq!(granted(&store, &claim).await, fence);
    assert_eq!(
        store.renew(&claim.id, claim.claimant(fence), RETENTION).await.unwrap(),
        Fenced::Applied
    );
    assert_eq!(
        store
            .finish(&claim.id, claim.claimant(fence), &Finish::complete(answer("a")))
            .await
            .unwrap(),
        Fenced::Applied
    );
    assert_eq!(
        store.renew(&claim.id, claim.claimant(fence), RETENTION).await.unwrap(),
        Fenced::Lost
    );
}

pub async fn an_answer_that_is_recorded_again_is_applied_once<F: TransactionalFixture>(
    fixture: &Arc<F>,
) {
    let (one, other) = two(fixture).await;
    let claim = claim("k", 1);
    let fence = granted(&one, &claim).await;
    let foreign = Fence::new(fence.get() + 1).unwrap();
    for store in [&one, &one, &other] {
        let result = store
            .finish(&claim.id, claim.claimant(fence), &Finish::complete(answer("a")))
            .await
            .unwrap();
        assert_eq!(result, Fenced::Applied);
    }
    for store in [&one, &other] {
        for (fence, answer) in [(fence, answer("b")), (foreign, answer("a"))] {
            let result = store
                .finish(&claim.id, claim.claimant(fence), &Finish::complete(answer.clone()))
                .await
                .unwrap();
            assert_eq!(result, Fenced::Lost);
        }
        let rival = with(claim.clone(), |it| it.owner = OwnerToken::from_bytes([2; 16]));
        let met = store.claim(&rival).await.unwrap();
        let Claimed::Occupied(Occupied::Completed { answer: kept, expires_in }) = met else {
            panic!("it is recorded");
        };
        assert_eq!(kept, answer("a"));
        assert!(expires_in <= RETENTION && expires_in > RETENTION / 2, "{expires_in:?}");
        let impostor = with(rival, |it| it.fingerprint = fingerprint(2));
        let met = store.claim(&impostor).await.unwrap();
        assert_eq!(met, Claimed::Occupied(Occupied::FingerprintMismatch));
    }
}

pub async fn a_release_after_the_answer_changes_nothing<F: TransactionalFixture>(fixture: &Arc<F>) {
    let (one, other) = two(fixture).await;
    let claim = claim("k", 1);
    let fence = granted(&one, &claim).await;
    one.finish(&claim.id, claim.claimant(fence), &Finish::complete(answer("a"))).await.unwrap();
    for store in [&one, &other] {
        let _ = store
            .finish(
                &claim.id,
                claim.claimant(fence),
                &Finish::release(Release::Rerun, Reason::Answered(429)),
            )
            .await
            .unwrap();
        let _ = store
            .finish(&claim.id, claim.claimant(fence), &Finish::hold(Reason::OperationError))
            .await
            .unwrap();
        let seen = store.get(&claim.id).await.unwrap().expect("a record");
        assert_eq!((seen.fence, seen.fingerprint), (fence, Some(claim.fingerprint)));
        let StateView::Completed { answer: kept, .. } = seen.state else { panic!("{seen:?}") };
        assert_eq!(kept, answer("a"));
    }
}

pub async fn a_release_frees_the_key_with_a_higher_fence<F: TransactionalFixture>(
    fixture: &Arc<F>,
) {
    let (one, other) = two(fixture).await;
    let mut last = None;
    for (owner, store) in [(1, &one), (2, &other), (3, &one), (4, &one)] {
        let claim = claim("k", owner);
        let fence = granted(store, &claim).await;
        assert!(last < Some(fence), "{last:?}, then {fence:?}");
        last = Some(fence);
        assert_eq!(
            store
                .finish(
                    &claim.id,
                    claim.claimant(fence),
                    &Finish::release(Release::Rerun, Reason::Answered(429))
                )
                .await
                .unwrap(),
            Fenced::Applied
        );
        // A released owner that returns finds no record of its own.
        assert_eq!(
            store
                .finish(&claim.id, claim.claimant(fence), &Finish::complete(answer("a")))
                .await
                .unwrap(),
            Fenced::Lost
        );
        assert_eq!(store.get(&claim.id).await.unwrap(), None);
    }
}

pub async fn a_record_tells_its_age_and_what_is_left_of_it<F: TransactionalFixture>(
    fixture: &Arc<F>,
) {
    let (one, other) = two(fixture).await;
    let claim = claim("k", 1);
    let fence = granted(&one, &claim).await;
    let seen = one.get(&claim.id).await.unwrap().expect("a record");
    assert!(matches!(seen.state, StateView::InFlight { .. }), "{seen:?}");
    one.finish(&claim.id, claim.claimant(fence), &Finish::complete(answer("a"))).await.unwrap();
    sleep(Duration::from_millis(30)).await;
    let seen = other.get(&claim.id).await.unwrap().expect("a record");
    let StateView::Completed { expires_in, .. } = seen.state else { panic!("{seen:?}") };
    assert!(seen.age >= Duration::from_millis(20), "{:?}", seen.age);
    let all = seen.age + expires_in;
    assert!(all.abs_diff(RETENTION) < Duration::from_secs(1), "{all:?}");
}

/// Whatever a database makes of bytes on their way to it.
pub async fn every_byte_of_an_answer_comes_back<F: TransactionalFixture>(fixture: &Arc<F>) {
    let (one, other) = two(fixture).await;
    let every = (0..=u8::MAX).collect::<Vec<_>>();
    let amid_text =
        [&vec![b'a'; 2000][..], &every, r"it's \x41, \\101 and '' --".as_bytes()].concat();
    let bodies =
        [vec![], every.repeat(4), amid_text, vec![b'\\'; 300], vec![b'\''; 300], vec![0; 9000]];
    for (number, body) in (0..).zip(bodies) {
        let claim = claim(&format!("k-{number}"), number);
        let fence = granted(&one, &claim).await;
        let response = StoredResponse { status: 200, body: body.into(), ..Default::default() };
        let answer = Answer::response(&response);
        let result = one
            .finish(&claim.id, claim.claimant(fence), &Finish::complete(answer.clone()))
            .await
            .unwrap();
        assert_eq!(result, Fenced::Applied);
        let seen = other.get(&claim.id).await.unwrap().expect("a record");
        let StateView::Completed { answer: kept, .. } = seen.state else { panic!("{seen:?}") };
        assert_eq!(kept, answer);
    }
}

/// The second claim gets `InFlight` at once and does not wait for the first one's locks.
pub async fn an_old_record_that_runs_again_is_running_to_others<F: TransactionalFixture>(
    fixture: &Arc<F>,
) {
    let (one, other) = two(fixture).await;
    let old = with(claim("k", 1), |it| it.retention = Duration::from_millis(1));
    let fence = granted(&one, &old).await;
    one.finish(&old.id, old.claimant(fence), &Finish::complete(answer("a"))).await.unwrap();
    sleep(Duration::from_millis(50)).await;
    let again = claim("k", 2);
    let fence = granted(&one, &again).await;
    match timeout(EVENT_TIMEOUT, other.claim(&claim("k", 3))).await.expect("an answer") {
        Ok(met) => assert!(matches!(met, Claimed::Occupied(Occupied::InFlight { .. })), "{met:?}"),
        // A database file with an open write transaction cannot tell.
        Err(error) => assert_eq!(error.kind(), StoreErrorKind::Busy, "{error}"),
    }
    let complete = Finish::complete(answer("b"));
    let result = one.finish(&again.id, again.claimant(fence), &complete).await.unwrap();
    assert_eq!(result, Fenced::Applied);
}

pub async fn an_unrenewed_transaction_is_rolled_back<F: TransactionalFixture>(fixture: &Arc<F>) {
    let (one, other) = two(fixture).await;
    let left = with(claim("k", 1), |it| it.lease = Duration::from_secs(1));
    let fence = granted(&one, &left).await;
    assert_eq!(one.reap(10).await.unwrap().done, 0);
    sleep(Duration::from_millis(1100)).await;
    assert_eq!(one.reap(10).await.unwrap().done, 1);
    assert_eq!(
        one.finish(&left.id, left.claimant(fence), &Finish::complete(answer("a"))).await.unwrap(),
        Fenced::Lost
    );
    granted(&other, &claim("k", 2)).await;
}

pub async fn what_is_only_observed_opens_no_transaction<F: TransactionalFixture>(fixture: &Arc<F>) {
    let store = fixture.store().await;
    let mut observed = claim("k", 1);
    observed.id.scope = observed.id.scope.observed();
    let error = store.claim(&observed).await.unwrap_err();
    assert_eq!(error.kind(), StoreErrorKind::ReadOnly);
    granted(&store, &claim("k", 1)).await;
}

pub async fn sweeping_goes_in_batches_and_spares_what_is_kept<F: TransactionalFixture>(
    fixture: &Arc<F>,
) {
    let (one, other) = two(fixture).await;
    for number in 0..8 {
        let mut claim = claim(&format!("k-{number}"), number);
        // The last one is kept.
        if number < 7 {
            claim.retention = Duration::from_millis(1);
        }
        let fence = granted(&one, &claim).await;
        let result = one
            .finish(&claim.id, claim.claimant(fence), &Finish::complete(answer("a")))
            .await
            .unwrap();
        assert_eq!(result, Fenced::Applied);
    }
    sleep(Duration::from_millis(50)).await;
    let mut swept = Vec::new();
    eventually("all are swept", async || {
        let batch = other.sweep(3).await.unwrap();
        swept.push((batch.done, batch.more));
        swept.iter().map(|(done, _)| done).sum::<u32>() == 7
    })
    .await;
    assert_eq!(swept, [(3, true), (3, true), (1, false)]);
    assert_eq!(other.sweep(3).await.unwrap().done, 0);
    assert_eq!(one.get(&claim("k-0", 0).id).await.unwrap(), None);
    assert!(one.get(&claim("k-7", 0).id).await.unwrap().is_some());
}
