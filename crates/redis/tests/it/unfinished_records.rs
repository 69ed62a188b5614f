//! Only a completed record is answered from Redis. The store answers for released, forgotten and
//! held records, and for metadata.

use bytes::Bytes;
use semel::core::{Claim, Fence, Finish, Occupied, Reason, Release, Store as _};
use semel_testkit::{
    flaky_store::{StoreCall, StoreCondition},
    with,
};

use crate::harness::{TestFleet, assert_replays, claim, fingerprint, granted, occupied, until};

const REFUSED: Reason = Reason::Answered(429);

/// Claims a key on the first front, and returns once Redis hints to the second that it runs.
///
/// A front sends its writes before its lookups, so no other hint comes after the one it found.
async fn claimed_and_hinted(fleet: &TestFleet, key: &str) -> (Claim, Fence) {
    let claim = claim(key);
    let fence = granted(fleet.fronts[0].claim(&claim).await.unwrap()).fence;
    let hints = fleet.fronts[1].counts().hints;
    until("Redis hints that the key is in flight", async || {
        let met = fleet.repeat_after_epoch(1, key).await;
        assert!(matches!(met, Occupied::InFlight { .. }), "{met:?}");
        fleet.fronts[1].counts().hints > hints
    })
    .await;
    (claim, fence)
}

/// Ends such a claim, and returns once its hint is gone.
async fn ended(fleet: &TestFleet, key: &str, end: &Finish) -> Claim {
    let (claim, fence) = claimed_and_hinted(fleet, key).await;
    fleet.finish(0, &claim, fence, end).await;
    fleet.entries(0).await;
    claim
}

#[tokio::test]
async fn a_released_record_is_claimed_from_the_store() {
    let fleet = TestFleet::new(2).await;
    let ends = [
        ("not-sent", Finish::release(Release::NotSent, Reason::NotSent), 1),
        ("refused", Finish::release(Release::Refused, REFUSED), 2),
        ("rerun", Finish::release(Release::Rerun, Reason::TimedOut(1000)), 2),
        ("forgotten", Finish::forget(REFUSED), 1),
    ];
    for (key, finish, attempt) in ends {
        let first = ended(&fleet, key, &finish).await;
        let before = (fleet.asked(), fleet.fronts[1].counts().hits);
        fleet.fronts[1].epoch().await.unwrap();
        let stale = fleet.fronts[1].claim(&first).await.unwrap();
        assert_eq!(occupied(stale), Occupied::Ended, "{key}: a duplicate of the ended claim");
        let next = granted(fleet.fronts[1].claim(&claim(key)).await.unwrap());
        assert_eq!(next.attempt, attempt, "{key}");
        let after = (fleet.asked(), fleet.fronts[1].counts().hits);
        assert_eq!(after, (before.0 + 2, before.1), "{key}: the store decides");
    }
}

#[tokio::test]
async fn a_held_record_is_read_from_the_store() {
    let fleet = TestFleet::new(2).await;
    ended(&fleet, "k", &Finish::hold(Reason::OperationError)).await;
    for _ in 0..3 {
        let asked = fleet.asked();
        assert_eq!(fleet.repeat_after_epoch(1, "k").await, Occupied::Held);
        assert_eq!(fleet.asked(), asked + 1);
    }
    assert_eq!(fleet.names().await, [""; 0], "nothing is kept of it");
}

/// The second request has another fingerprint, and Redis has that one.
#[tokio::test]
async fn a_forgotten_key_is_free_for_another_request_at_once() {
    let fleet = TestFleet::new(2).await;
    let (first, fence) = claimed_and_hinted(&fleet, "k").await;
    fleet.finish(0, &first, fence, &Finish::forget(REFUSED)).await;

    let of_second = || with(claim("k"), |it| it.fingerprint = fingerprint(2));
    let second = of_second();
    fleet.fronts[1].epoch().await.unwrap();
    let grant = granted(fleet.fronts[1].claim(&second).await.unwrap());
    assert_eq!(grant.attempt, 1);
    fleet.complete(1, &second, grant.fence, "paid").await;

    until("Redis replays the second request", async || {
        let asked = fleet.asked();
        fleet.fronts[0].epoch().await.unwrap();
        let met = occupied(fleet.fronts[0].claim(&of_second()).await.unwrap());
        assert_replays(&met, "paid");
        fleet.asked() == asked
    })
    .await;
    assert_eq!(fleet.until_hit(0, "k").await, Occupied::FingerprintMismatch);
}

#[tokio::test]
async fn metadata_goes_to_the_store_and_not_to_redis() {
    let mut fleet = TestFleet::new(2).await;
    fleet.fronts[0].set_metadata("route/a", Some(b"one")).await.unwrap();
    fleet.fronts[0].set_metadata("route/b", Some(b"two")).await.unwrap();
    let both = [
        ("route/a".into(), Bytes::from_static(b"one")),
        ("route/b".into(), Bytes::from_static(b"two")),
    ];
    assert_eq!(fleet.fronts[1].metadata("route/").await.unwrap(), both);
    assert_eq!(fleet.store.metadata("route/").await.unwrap(), both);
    assert_eq!(fleet.names().await, [""; 0]);

    // A change outside the front shows at once, and so does one without Redis.
    fleet.store.set_metadata("route/a", None).await.unwrap();
    assert_eq!(fleet.fronts[1].metadata("route/").await.unwrap(), both[1..]);
    fleet.redis.kill();
    fleet.fronts[1].set_metadata("route/b", None).await.unwrap();
    assert_eq!(fleet.fronts[0].metadata("route/").await.unwrap(), []);

    fleet.behind.set(StoreCall::Other, StoreCondition::Unavailable);
    fleet.fronts[0].metadata("route/").await.unwrap_err();
    fleet.fronts[0].set_metadata("route/c", Some(b"three")).await.unwrap_err();
}
