//! The ends of the ranges: no duration makes a store overflow (law 13).

use std::time::Duration;

use semel_core::{Fenced, Occupied, OnUnknown, StateView};

use super::{
    harness::{StoreHarness, TICK, claim, rival, seconds},
    stage::staged_answer,
};
use crate::with;

const TEN_YEARS: Duration = Duration::from_secs(10 * 365 * 24 * 60 * 60);

pub(crate) async fn an_endless_lease_does_not_lapse(harness: &StoreHarness) {
    for (at, lease) in
        [Duration::MAX, Duration::from_millis(u64::MAX), TEN_YEARS * 100].into_iter().enumerate()
    {
        let on_unknown = OnUnknown::Rerun;
        let claim = with(claim(&format!("endless-{at}")), |it| {
            it.lease = lease;
            it.on_unknown = on_unknown;
        });
        let fence = harness.granted(&claim).await.fence;
        harness.advance(TEN_YEARS).await;
        match harness.occupied(&rival(&claim)).await {
            Occupied::InFlight { lease_left } => assert!(lease_left > TEN_YEARS, "{lease_left:?}"),
            other @ (Occupied::FingerprintMismatch
            | Occupied::Completed { .. }
            | Occupied::Ended
            | Occupied::Limited(_)
            | Occupied::Held) => {
                panic!("{other:?}")
            }
        }
        assert_eq!(harness.renew(&claim.id, fence, Duration::MAX).await, Fenced::Applied);
    }
}

pub(crate) async fn an_endless_retention_does_not_pass(harness: &StoreHarness) {
    let claim = with(claim("endless"), |it| it.retention = Duration::MAX);
    let fence = harness.granted(&claim).await.fence;
    harness.complete(&claim.id, fence, &staged_answer()).await;
    harness.advance(TEN_YEARS).await;
    assert_eq!(harness.sweep_all().await, 0);
    match harness.seen(&claim.id).await.state {
        StateView::Completed { expires_in, .. } => assert!(expires_in > TEN_YEARS),
        other @ (StateView::InFlight { .. } | StateView::Released { .. } | StateView::Held) => {
            panic!("{other:?}")
        }
    }
}

pub(crate) async fn a_lease_with_a_fraction_of_a_millisecond_expires_on_time(
    harness: &StoreHarness,
) {
    let nano = Duration::from_nanos(1);
    let claim = with(claim("nano"), |it| {
        it.lease = seconds(1) + nano;
        it.on_unknown = OnUnknown::Rerun;
    });
    harness.granted(&claim).await;
    harness.advance(seconds(1)).await;
    harness.occupied(&rival(&claim)).await;
    harness.advance(TICK * 2).await;
    assert_eq!(harness.granted(&rival(&claim)).await.attempt, 2);
}
