//! When a lease ends, and who comes after (laws 2, 4, 5 and 8).

use semel_core::{Claim, Fenced, Occupied, OnUnknown, Release, StateView};

use super::harness::{LEASE, StoreHarness, TICK, answer, claim, rival, seconds};
use crate::with;

fn rerun(key: &str) -> Claim {
    with(claim(key), |it| it.on_unknown = OnUnknown::Rerun)
}

pub(crate) async fn a_lease_lives_to_its_last_millisecond(harness: &StoreHarness) {
    let claim = rerun("last");
    harness.granted(&claim).await;
    harness.advance(LEASE).await;
    let rival = rival(&claim);
    let last = Occupied::InFlight { lease_left: seconds(0) };
    assert_eq!(harness.occupied(&rival).await, last);
    harness.advance(TICK).await;
    assert_eq!(harness.granted(&rival).await.attempt, 2);
}

pub(crate) async fn a_renewed_lease_is_valid_after_its_first_expiry(harness: &StoreHarness) {
    let claim = rerun("renewed");
    let grant = harness.granted(&claim).await;
    for _ in 0..3 {
        harness.advance(seconds(6)).await;
        assert_eq!(harness.renew(&claim.id, grant.fence, LEASE).await, Fenced::Applied);
        let left = harness.occupied(&rival(&claim)).await;
        assert_eq!(left, Occupied::InFlight { lease_left: LEASE });
    }
    let seen = harness.seen(&claim.id).await;
    assert_eq!((seen.age, seen.attempt), (seconds(18), 1));
    harness.advance(LEASE + TICK).await;
    assert_eq!(harness.granted(&rival(&claim)).await.attempt, 2);
}

pub(crate) async fn a_renewal_never_shortens_the_lease(harness: &StoreHarness) {
    let claim = claim("short");
    let grant = harness.granted(&claim).await;
    harness.advance(seconds(1)).await;
    assert_eq!(harness.renew(&claim.id, grant.fence, seconds(2)).await, Fenced::Applied);
    let state = harness.seen(&claim.id).await.state;
    assert_eq!(state, StateView::InFlight { lease_left: LEASE - seconds(1) });
}

pub(crate) async fn lease_left_decreases_with_time(harness: &StoreHarness) {
    let claim = claim("shrinks");
    harness.granted(&claim).await;
    let other = harness.another().await;
    for passed in 1..=10 {
        harness.advance(seconds(1)).await;
        let lease_left = LEASE - seconds(passed);
        assert_eq!(other.seen(&claim.id).await.state, StateView::InFlight { lease_left });
        assert_eq!(harness.occupied(&rival(&claim)).await, Occupied::InFlight { lease_left });
    }
}

pub(crate) async fn a_takeover_fences_off_the_old_owner(harness: &StoreHarness) {
    let claim = rerun("zombie");
    let old = harness.granted(&claim).await;
    harness.advance(LEASE + TICK).await;
    let new = harness.another().await.granted(&rival(&claim)).await;
    assert!(new.fence > old.fence, "{new:?} after {old:?}");
    let id = &claim.id;
    let before = harness.seen(id).await;
    assert_eq!(harness.renew(id, old.fence, LEASE).await, Fenced::Lost);
    assert_eq!(harness.complete(id, old.fence, &answer("late")).await, Fenced::Lost);
    assert_eq!(harness.release(id, old.fence, Release::Rerun).await, Fenced::Lost);
    assert_eq!(harness.hold(id, old.fence).await, Fenced::Lost);
    assert_eq!(harness.seen(id).await, before);
    assert_eq!(harness.complete(id, new.fence, &answer("new")).await, Fenced::Applied);
    assert_eq!(harness.complete(id, old.fence, &answer("new")).await, Fenced::Lost);
}

pub(crate) async fn an_old_owner_that_claims_again_is_not_recognised(harness: &StoreHarness) {
    let claim = rerun("overtaken");
    harness.granted(&claim).await;
    harness.advance(LEASE + TICK).await;
    harness.granted(&rival(&claim)).await;
    let result = harness.occupied(&claim).await;
    assert_eq!(result, Occupied::InFlight { lease_left: LEASE });
}

pub(crate) async fn attempts_and_fences_rise_with_every_takeover(harness: &StoreHarness) {
    let claim = rerun("again");
    let mut last = harness.granted(&claim).await;
    for attempt in 2..=6 {
        harness.advance(LEASE + TICK).await;
        let grant = harness.another().await.granted(&rival(&claim)).await;
        assert_eq!(grant.attempt, attempt);
        assert!(grant.fence > last.fence, "{grant:?} after {last:?}");
        last = grant;
    }
}

pub(crate) async fn on_unknown_of_the_record_applies_not_that_of_the_claim(harness: &StoreHarness) {
    let held = claim("held");
    let fence = harness.granted(&held).await.fence;
    harness.advance(LEASE + TICK).await;
    let eager = with(rival(&held), |it| it.on_unknown = OnUnknown::Rerun);
    assert_eq!(harness.occupied(&eager).await, Occupied::Held);
    // The claim has written what it saw: the lease does not come back.
    assert_eq!(harness.renew(&held.id, fence, LEASE).await, Fenced::Lost);

    let again = rerun("rerun");
    harness.granted(&again).await;
    harness.advance(LEASE + TICK).await;
    let careful = with(rival(&again), |it| it.on_unknown = OnUnknown::Hold);
    assert_eq!(harness.granted(&careful).await.attempt, 2);
}
