//! Reaping and sweeping: in batches, and never what is not theirs (laws 9, 12 and 13).

use semel_core::{Answer, Fenced, OnUnknown, Standing};

use super::{
    bench::{Bench, LEASE, RETENTION, TICK, claim, rival, seconds},
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

pub(crate) async fn a_reaper_keeps_its_limit(bench: &Bench) {
    for number in 0..10 {
        bench.granted(&claim(&format!("lapsed-{number}"))).await;
    }
    bench.advance(LEASE + TICK).await;
    bench.granted(&claim("running")).await;
    assert_eq!(in_threes(|limit| bench.reap(limit)).await, 10);
}

pub(crate) async fn a_reaper_keeps_its_limit_over_leases_and_holds(bench: &Bench) {
    for number in 0..5 {
        let held = with(claim(&format!("held-{number}")), |it| it.hold_for = Some(seconds(2)));
        let fence = bench.granted(&held).await.fence;
        bench.hold(&held.id, fence).await;
        bench.granted(&claim(&format!("lapsed-{number}"))).await;
    }
    bench.advance(LEASE + TICK).await;
    assert_eq!(in_threes(|limit| bench.reap(limit)).await, 10);
}

pub(crate) async fn a_sweep_keeps_its_limit(bench: &Bench) {
    for number in 0..10 {
        let claim = claim(&format!("old-{number}"));
        let fence = bench.granted(&claim).await.fence;
        bench.complete(&claim.id, fence, &staged_answer()).await;
    }
    bench.advance(RETENTION + TICK).await;
    let staged = Stage::Completed.set(bench, "young").await;
    assert_eq!(in_threes(|limit| bench.sweep(limit)).await, 10);
    bench.seen(staged.id()).await;
}

pub(crate) async fn a_batch_of_none_does_nothing(bench: &Bench) {
    let old = Stage::CompletedPast.set(bench, "old").await;
    let lapsed = Stage::LapsedFail.set(bench, "lapsed").await;
    let before = bench.seen(lapsed.id()).await;
    assert_eq!(bench.reap(0).await.done, 0);
    assert_eq!(bench.sweep(0).await.done, 0);
    assert_eq!(bench.seen(lapsed.id()).await, before);
    assert_eq!((bench.reap_all().await, bench.sweep_all().await), (1, 1));
    assert_eq!(bench.get(old.id()).await, None);
}

pub(crate) async fn a_reaped_record_is_no_longer_renewed(bench: &Bench) {
    let staged = Stage::LapsedHold.set(bench, "reaped").await;
    assert_eq!(bench.another().await.reap_all().await, 1);
    assert_eq!(bench.renew(staged.id(), staged.fence(), LEASE).await, Fenced::Lost);
    assert_eq!(bench.seen(staged.id()).await.standing, Standing::Held);
}

pub(crate) async fn a_reaped_failure_takes_no_answer(bench: &Bench) {
    let staged = Stage::LapsedFail.set(bench, "failed").await;
    assert_eq!(bench.another().await.reap_all().await, 1);
    let before = bench.seen(staged.id()).await;
    let (id, fence) = (staged.id(), staged.fence());
    assert_eq!(bench.complete(id, fence, &staged_answer()).await, Fenced::Lost);
    // An owner that failed on its own says the same, and is told so.
    assert_eq!(bench.complete(id, fence, &Answer::failed()).await, Fenced::Applied);
    assert_eq!(bench.seen(id).await, before);
}

pub(crate) async fn what_was_reaped_is_not_reaped_again(bench: &Bench) {
    Stage::LapsedHold.set(bench, "hold").await;
    assert_eq!(bench.reap_all().await, 1);
    Stage::LapsedFail.set(bench, "fail").await;
    assert_eq!(bench.reap_all().await, 1);
    bench.advance(RETENTION).await;
    assert_eq!(bench.reap_all().await, 0);
}

pub(crate) async fn a_swept_key_begins_anew(bench: &Bench) {
    let staged = Stage::CompletedPast.set(bench, "swept").await;
    assert_eq!(bench.another().await.sweep_all().await, 1);
    let grant = bench.granted(&rival(&staged.claim)).await;
    assert_eq!(grant.attempt, 1);
    assert_eq!(bench.sweep_all().await, 0);
    bench.seen(staged.id()).await;
}

/// A sweep knows every retention, however many there are, and takes nothing before its time.
pub(crate) async fn records_of_many_retentions_are_all_swept(bench: &Bench) {
    for number in 0..100 {
        let retention = RETENTION + seconds(number * 7 % 100);
        let claim = with(claim(&format!("kept-{number}")), |it| it.retention = retention);
        let fence = bench.granted(&claim).await.fence;
        assert_eq!(bench.complete(&claim.id, fence, &staged_answer()).await, Fenced::Applied);
    }
    bench.advance(RETENTION + seconds(50)).await;
    let swept = bench.sweep_all().await;
    assert!(swept <= 50, "{swept} were swept, of which at most 50 were due");
    bench.advance(seconds(50)).await;
    assert_eq!(swept + bench.sweep_all().await, 100);
}

/// What ends after its time has come is swept all the same.
pub(crate) async fn a_record_without_retention_is_swept_however_late_it_ends(bench: &Bench) {
    let kept = claim("kept");
    bench.granted(&kept).await;
    let brief = with(claim("brief"), |it| it.retention = seconds(0));
    let fence = bench.granted(&brief).await.fence;
    bench.advance(TICK).await;
    assert_eq!(bench.sweep_all().await, 0);
    assert_eq!(bench.complete(&brief.id, fence, &staged_answer()).await, Fenced::Applied);
    bench.advance(TICK).await;
    assert_eq!(bench.sweep_all().await, 1);
}

/// Held records never expire, and one bad hour leaves many of them.
pub(crate) async fn a_sweep_is_not_stopped_by_records_that_never_finish(bench: &Bench) {
    for number in 0..200 {
        let claim = claim(&format!("held-{number}"));
        let fence = bench.granted(&claim).await.fence;
        assert_eq!(bench.hold(&claim.id, fence).await, Fenced::Applied);
    }
    for number in 0..20 {
        let claim = claim(&format!("done-{number}"));
        let fence = bench.granted(&claim).await.fence;
        assert_eq!(bench.complete(&claim.id, fence, &staged_answer()).await, Fenced::Applied);
    }
    // One that the sweep has passed before it was finished.
    let late = claim("late");
    let fence = bench.granted(&late).await.fence;
    bench.advance(RETENTION + RETENTION).await;
    let mut swept = 0;
    for _ in 0..200 {
        let batch = bench.sweep(3).await;
        swept += batch.done;
        if !batch.more {
            break;
        }
    }
    assert_eq!(swept, 20, "no more was said to be left");
    assert_eq!(bench.complete(&late.id, fence, &staged_answer()).await, Fenced::Applied);
    assert_eq!(bench.sweep_all().await, 0);
    bench.advance(RETENTION + TICK).await;
    assert_eq!(bench.sweep_all().await, 1);
    assert_eq!(bench.get(&late.id).await, None);
}

/// Whoever sees a completed record may cache it. So a lapsed `fail` that the owner can still
/// complete must not look completed.
pub(crate) async fn a_failed_record_never_looks_completed_before_it_is(bench: &Bench) {
    let claim = with(claim("cached"), |it| it.on_unknown = OnUnknown::Fail);
    let fence = bench.granted(&claim).await.fence;
    bench.advance(LEASE + seconds(5)).await;
    let looked = bench.seen(&claim.id).await.standing;
    let told = bench.complete(&claim.id, fence, &staged_answer()).await;
    let looks = bench.seen(&claim.id).await.standing;
    if matches!(looked, Standing::Completed { .. }) {
        assert_eq!(looks, looked, "a completed record has changed ({told:?})");
    }
}
