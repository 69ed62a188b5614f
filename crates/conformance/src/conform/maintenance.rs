//! Reaping and sweeping: in batches, and never what is not theirs (laws 9, 12 and 13).

use semel_core::{Answer, Fenced, OnUnknown, StateView, Usage};

use super::{
    harness::{LEASE, RETENTION, StoreHarness, TICK, answer, claim, rival, seconds},
    stage::{Stage, staged_answer},
};
use crate::with;

/// Runs batches of three until there is no more to do, and says how many records they moved.
async fn in_threes(batch: impl AsyncFn(u32) -> semel_core::Batch) -> u32 {
    let mut done = 0;
    for _ in 0..100 {
        let batch = batch(3).await;
        assert!(batch.done <= 3, "{batch:?}");
        done += batch.done;
        if !batch.more {
            return done;
        }
    }
    panic!("the batches do not end");
}

pub(crate) async fn a_reaper_keeps_its_limit(harness: &StoreHarness) {
    for number in 0..10 {
        harness.granted(&claim(&format!("lapsed-{number}"))).await;
    }
    harness.advance(LEASE + TICK).await;
    harness.granted(&claim("running")).await;
    assert_eq!(in_threes(|limit| harness.reap(limit)).await, 10);
}

pub(crate) async fn a_reaper_keeps_its_limit_over_leases_and_holds(harness: &StoreHarness) {
    for number in 0..5 {
        let held = with(claim(&format!("held-{number}")), |it| it.hold_for = Some(seconds(2)));
        let fence = harness.granted(&held).await.fence;
        harness.hold(&held.id, fence).await;
        harness.granted(&claim(&format!("lapsed-{number}"))).await;
    }
    harness.advance(LEASE + TICK).await;
    assert_eq!(in_threes(|limit| harness.reap(limit)).await, 10);
}

pub(crate) async fn a_sweep_keeps_its_limit(harness: &StoreHarness) {
    for number in 0..10 {
        let claim = claim(&format!("old-{number}"));
        let fence = harness.granted(&claim).await.fence;
        harness.complete(&claim.id, fence, &staged_answer()).await;
    }
    harness.advance(RETENTION + TICK).await;
    let staged = Stage::Completed.set(harness, "young").await;
    assert_eq!(in_threes(|limit| harness.sweep(limit)).await, 10);
    harness.seen(staged.id()).await;
}

pub(crate) async fn a_batch_with_limit_zero_does_nothing(harness: &StoreHarness) {
    let old = Stage::CompletedPast.set(harness, "old").await;
    let lapsed = Stage::LapsedFail.set(harness, "lapsed").await;
    let before = harness.seen(lapsed.id()).await;
    assert_eq!(harness.reap(0).await.done, 0);
    assert_eq!(harness.sweep(0).await.done, 0);
    assert_eq!(harness.seen(lapsed.id()).await, before);
    assert_eq!((harness.reap_all().await, harness.sweep_all().await), (1, 1));
    assert_eq!(harness.get(old.id()).await, None);
}

pub(crate) async fn a_reaped_record_is_no_longer_renewed(harness: &StoreHarness) {
    let staged = Stage::LapsedHold.set(harness, "reaped").await;
    assert_eq!(harness.another().await.reap_all().await, 1);
    assert_eq!(harness.renew(staged.id(), staged.fence(), LEASE).await, Fenced::Lost);
    assert_eq!(harness.seen(staged.id()).await.state, StateView::Held);
}

pub(crate) async fn a_record_reaped_as_failed_refuses_a_late_answer(harness: &StoreHarness) {
    let staged = Stage::LapsedFail.set(harness, "failed").await;
    assert_eq!(harness.another().await.reap_all().await, 1);
    let before = harness.seen(staged.id()).await;
    let (id, fence) = (staged.id(), staged.fence());
    assert_eq!(harness.complete(id, fence, &staged_answer()).await, Fenced::Lost);
    // An owner that failed on its own writes the same, and gets the same result.
    assert_eq!(harness.complete(id, fence, &Answer::failed()).await, Fenced::Applied);
    assert_eq!(harness.seen(id).await, before);
}

pub(crate) async fn what_was_reaped_is_not_reaped_again(harness: &StoreHarness) {
    Stage::LapsedHold.set(harness, "hold").await;
    assert_eq!(harness.reap_all().await, 1);
    Stage::LapsedFail.set(harness, "fail").await;
    assert_eq!(harness.reap_all().await, 1);
    harness.advance(RETENTION).await;
    assert_eq!(harness.reap_all().await, 0);
}

pub(crate) async fn a_swept_key_starts_over(harness: &StoreHarness) {
    let staged = Stage::CompletedPast.set(harness, "swept").await;
    assert_eq!(harness.another().await.sweep_all().await, 1);
    let grant = harness.granted(&rival(&staged.claim)).await;
    assert_eq!(grant.attempt, 1);
    assert_eq!(harness.sweep_all().await, 0);
    harness.seen(staged.id()).await;
}

/// A sweep knows every retention, however many there are, and takes nothing before its time.
pub(crate) async fn records_of_many_retentions_are_all_swept(harness: &StoreHarness) {
    for number in 0..100 {
        let retention = RETENTION + seconds(number * 7 % 100);
        let claim = with(claim(&format!("kept-{number}")), |it| it.retention = retention);
        let fence = harness.granted(&claim).await.fence;
        assert_eq!(harness.complete(&claim.id, fence, &staged_answer()).await, Fenced::Applied);
    }
    harness.advance(RETENTION + seconds(50)).await;
    let swept = harness.sweep_all().await;
    assert!(swept <= 50, "{swept} were swept, of which at most 50 were due");
    harness.advance(seconds(50)).await;
    assert_eq!(swept + harness.sweep_all().await, 100);
}

/// What ends after its time has come is swept all the same.
pub(crate) async fn a_record_with_zero_retention_is_swept_however_late_it_ends(
    harness: &StoreHarness,
) {
    let kept = claim("kept");
    harness.granted(&kept).await;
    let brief = with(claim("brief"), |it| it.retention = seconds(0));
    let fence = harness.granted(&brief).await.fence;
    harness.advance(TICK).await;
    assert_eq!(harness.sweep_all().await, 0);
    assert_eq!(harness.complete(&brief.id, fence, &staged_answer()).await, Fenced::Applied);
    harness.advance(TICK).await;
    assert_eq!(harness.sweep_all().await, 1);
}

/// Held records never expire, and one bad hour leaves many of them.
pub(crate) async fn a_sweep_is_not_stopped_by_records_that_never_finish(harness: &StoreHarness) {
    for number in 0..200 {
        let claim = claim(&format!("held-{number}"));
        let fence = harness.granted(&claim).await.fence;
        assert_eq!(harness.hold(&claim.id, fence).await, Fenced::Applied);
    }
    for number in 0..20 {
        let claim = claim(&format!("done-{number}"));
        let fence = harness.granted(&claim).await.fence;
        assert_eq!(harness.complete(&claim.id, fence, &staged_answer()).await, Fenced::Applied);
    }
    // One that the sweep has passed before it was finished.
    let late = claim("late");
    let fence = harness.granted(&late).await.fence;
    harness.advance(RETENTION + RETENTION).await;
    let mut swept = 0;
    for _ in 0..200 {
        let batch = harness.sweep(3).await;
        swept += batch.done;
        if !batch.more {
            break;
        }
    }
    assert_eq!(swept, 20, "no more was said to be left");
    assert_eq!(harness.complete(&late.id, fence, &staged_answer()).await, Fenced::Applied);
    assert_eq!(harness.sweep_all().await, 0);
    harness.advance(RETENTION + TICK).await;
    assert_eq!(harness.sweep_all().await, 1);
    assert_eq!(harness.get(&late.id).await, None);
}

/// A reader of a completed record may cache it. So a lapsed `fail` that the owner can still
/// complete must not look completed.
pub(crate) async fn a_failed_record_never_looks_completed_before_it_is(harness: &StoreHarness) {
    let claim = with(claim("cached"), |it| it.on_unknown = OnUnknown::Fail);
    let fence = harness.granted(&claim).await.fence;
    harness.advance(LEASE + seconds(5)).await;
    let looked = harness.seen(&claim.id).await.state;
    let result = harness.complete(&claim.id, fence, &staged_answer()).await;
    let looks = harness.seen(&claim.id).await.state;
    if matches!(looked, StateView::Completed { .. }) {
        assert_eq!(looks, looked, "a completed record has changed ({result:?})");
    }
}

pub(crate) async fn usage_rises_with_records_and_falls_with_a_sweep(harness: &StoreHarness) {
    const RECORDS: u64 = 40;
    let body = "0123456789abcdef".repeat(2048);
    let before = harness.usage().await;
    for number in 0..RECORDS {
        let claim = claim(&format!("k{number}"));
        let fence = harness.granted(&claim).await.fence;
        // Different in each, and not to be compressed to nothing.
        harness.complete(&claim.id, fence, &answer(&format!("{number}{body}"))).await;
    }
    let full = harness.usage().await;
    let more = |of: fn(&Usage) -> Option<u64>| Some(of(&full)?.saturating_sub(of(&before)?));
    let records = more(|usage| usage.records);
    assert!(records.is_none_or(|records| records == RECORDS), "{before:?} {full:?}");
    assert!(more(|usage| usage.bytes).is_none_or(|bytes| bytes >= 100 * RECORDS), "{full:?}");
    assert!(full.disk.is_none_or(|disk| 0 < disk.available && disk.available <= disk.total));
    harness.advance(RETENTION + TICK).await;
    // One stays, because a store may keep its newest row.
    harness.granted(&claim("young")).await;
    assert_eq!(u64::from(harness.sweep_all().await), RECORDS);
    let swept = harness.usage().await;
    let falls = |of: fn(&Usage) -> Option<u64>| Some(of(&swept)? < of(&full)?);
    assert!(falls(|usage| usage.records) != Some(false), "{full:?} {swept:?}");
    assert!(falls(|usage| usage.bytes) != Some(false), "{full:?} {swept:?}");
}
