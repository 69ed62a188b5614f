//! What each end of an operation makes of its units.

use semel_core::{
    Answer, Claim, ClaimLimits, Finish, OnUnknown, Reason, Release, Resolution, Resolved,
    StateName, StatusSet, StoredResponse,
    limit::{AnswerTag, Counted},
};

use super::{
    super::harness::{FORGOTTEN, Handle, RELEASED, StoreHarness, TICK, seconds},
    WINDOW, applied, counting, delete, granted, has_room, limit, limited,
};
use crate::with;

fn answered(status: u16) -> Finish {
    let response = StoredResponse { status, ..StoredResponse::default() };
    Finish::complete(Answer::response(&response))
}

/// Ends the operation of a claim under a limit of one unit. Returns whether the unit is free.
async fn frees(
    handle: &Handle,
    key: &str,
    counted: Counted,
    finish: &Finish,
    is_marked: bool,
) -> bool {
    let limit = with(counting(counted, 1), |limit| {
        let mut counter = [0; 16];
        counter.iter_mut().zip(key.bytes()).for_each(|(to, byte)| *to = byte);
        limit.key = semel_core::limit::LimitKey::from_bytes(counter);
    });
    let claim = granted(handle, key, &limit).await;
    let fence = handle.seen(&claim.id).await.fence;
    let marked = finish.clone().with_limits(&claim.limits, finish.tag.clone());
    let finish = if is_marked { &marked } else { finish };
    applied(handle.finish(&claim.id, fence, finish).await);
    has_room(handle, &format!("{key}-next"), &limit).await
}

pub(crate) async fn only_what_was_never_sent_returns_an_execution(harness: &StoreHarness) {
    if !harness.has_limits() {
        return;
    }
    let not_sent = Finish::release(Release::NotSent, Reason::NotSent);
    for (at, (finish, is_free)) in [
        (not_sent, true),
        (Finish::release(Release::Refused, RELEASED), false),
        (Finish::release(Release::Rerun, RELEASED), false),
        (Finish::forget(FORGOTTEN), false),
        (Finish::hold(RELEASED), false),
        (Finish::unknown(OnUnknown::Fail, RELEASED), false),
        (answered(201), false),
        (answered(402), false),
    ]
    .into_iter()
    .enumerate()
    {
        for is_marked in [false, true] {
            let key = format!("{at}-{is_marked}");
            let freed = frees(harness, &key, Counted::Executions, &finish, is_marked).await;
            assert_eq!(freed, is_free, "{finish:?}");
        }
    }
}

pub(crate) async fn an_outcome_counts_only_if_it_is_the_one(harness: &StoreHarness) {
    if !harness.has_limits() {
        return;
    }
    let statuses = Counted::Statuses(StatusSet::new([402, 503]));
    let tag = AnswerTag::new("fraud").unwrap();
    let tagged =
        |tag: &str| answered(200).with_limits(&ClaimLimits::default(), AnswerTag::new(tag));
    let released = |status| Finish::release(Release::Refused, Reason::Answered(status));
    for (at, (counted, finish, counts)) in [
        (Counted::Completed, answered(201), true),
        (Counted::Completed, answered(302), true),
        (Counted::Completed, answered(402), false),
        (Counted::Completed, released(201), false),
        (Counted::Completed, Finish::unknown(OnUnknown::Fail, RELEASED), false),
        (Counted::Declined, answered(402), true),
        (Counted::Declined, answered(201), false),
        (Counted::Declined, answered(500), false),
        (Counted::Declined, released(429), false),
        (statuses.clone(), answered(402), true),
        (statuses.clone(), released(503), true),
        (statuses, answered(404), false),
        (Counted::Tag(tag.clone()), tagged("fraud"), true),
        (Counted::Tag(tag.clone()), tagged("other"), false),
        (Counted::Tag(tag), answered(200), false),
    ]
    .into_iter()
    .enumerate()
    {
        let freed = frees(harness, &at.to_string(), counted.clone(), &finish, at % 2 == 0).await;
        assert_eq!(freed, !counts, "{counted}: {finish:?}");
    }
}

pub(crate) async fn an_outcome_counts_from_its_end(harness: &StoreHarness) {
    if !harness.has_limits() {
        return;
    }
    let limit = counting(Counted::Declined, 1);
    let claim = granted(harness, "declined", &limit).await;
    let fence = harness.seen(&claim.id).await.fence;
    harness.renew(&claim.id, fence, WINDOW * 2).await;
    harness.advance(seconds(50)).await;
    applied(harness.finish(&claim.id, fence, &answered(402)).await);
    harness.advance(WINDOW - TICK).await;
    assert!(!has_room(harness, "next", &limit).await);
    harness.advance(TICK).await;
    assert!(has_room(harness, "next", &limit).await);
}

pub(crate) async fn a_held_record_keeps_its_reservation(harness: &StoreHarness) {
    if !harness.has_limits() {
        return;
    }
    let resolutions = [
        (Resolution::Completed(Answer::not_retained(201)), false),
        (Resolution::Completed(Answer::not_retained(402)), true),
        (Resolution::Released, true),
        (Resolution::Deleted(StateName::Held), true),
    ];
    for (at, (resolution, is_free)) in (1_u8..).zip(resolutions) {
        let limit = with(counting(Counted::Completed, 1), |limit| {
            limit.key = semel_core::limit::LimitKey::from_bytes([at; 16]);
        });
        let claim = granted(harness, &format!("held-{at}"), &limit).await;
        let fence = harness.seen(&claim.id).await.fence;
        applied(harness.finish(&claim.id, fence, &Finish::hold(RELEASED)).await);
        harness.advance(WINDOW * 10).await;
        harness.sweep_all().await;
        let next = format!("next-{at}");
        assert!(!has_room(harness, &next, &limit).await, "its outcome is unknown");
        assert_eq!(harness.resolve(&claim.id, fence, &resolution).await, Resolved::Applied);
        assert_eq!(has_room(harness, &next, &limit).await, is_free, "{resolution:?}");
    }
}

pub(crate) async fn a_lease_that_expires_settles_by_its_policy(harness: &StoreHarness) {
    if !harness.has_limits() {
        return;
    }
    let lapse = |key: &str, on_unknown| {
        with(limited(key, [counting(Counted::Completed, 1)]), |it: &mut Claim| {
            it.on_unknown = on_unknown;
        })
    };
    let limit = counting(Counted::Completed, 1);
    let failing = lapse("reaped", OnUnknown::Fail);
    harness.granted(&failing).await;
    harness.advance(failing.lease + TICK).await;
    assert!(!has_room(harness, "next", &limit).await, "its end is not written yet");
    assert_eq!(harness.reap_all().await, 1);
    assert!(has_room(harness, "next", &limit).await, "it failed");
    delete_running(harness, "next").await;

    let failing = lapse("met", OnUnknown::Fail);
    harness.granted(&failing).await;
    harness.advance(failing.lease + TICK).await;
    harness.occupied(&super::rival(&failing)).await;
    assert!(has_room(harness, "after", &limit).await, "a claim has settled it");
    delete_running(harness, "after").await;

    let held = lapse("held", OnUnknown::Hold);
    harness.granted(&held).await;
    harness.advance(held.lease + TICK).await;
    assert_eq!(harness.reap_all().await, 1);
    assert!(!has_room(harness, "last", &limit).await, "it may have completed");
    delete(harness, &held, StateName::Held).await;
    assert!(has_room(harness, "last", &limit).await);
}

/// Ends what only tested whether there is room.
async fn delete_running(harness: &StoreHarness, key: &str) {
    let claim = limited(key, [limit(1, 1)]);
    let fence = harness.seen(&claim.id).await.fence;
    let not_sent = Finish::release(Release::NotSent, Reason::NotSent);
    applied(harness.finish(&claim.id, fence, &not_sent).await);
}

pub(crate) async fn a_repeated_or_late_finish_settles_nothing(harness: &StoreHarness) {
    if !harness.has_limits() {
        return;
    }
    let limit = counting(Counted::Declined, 1);
    let claim = with(limited("zombie", [limit.clone()]), |it| it.on_unknown = OnUnknown::Rerun);
    let old = harness.granted(&claim).await.fence;
    harness.advance(claim.lease + TICK).await;
    let new = harness.granted(&super::rival(&claim)).await.fence;
    let approved = answered(201).with_limits(&claim.limits, None);
    assert_eq!(harness.finish(&claim.id, old, &approved).await, super::Fenced::Lost);
    assert!(!has_room(harness, "next", &limit).await, "the new owner has the reservation");
    let declined = answered(402).with_limits(&claim.limits, None);
    applied(harness.finish(&claim.id, new, &declined).await);
    harness.advance(WINDOW / 2).await;
    applied(harness.finish(&claim.id, new, &declined).await);
    harness.advance(WINDOW / 2).await;
    assert!(has_room(harness, "next", &limit).await, "it counts from its first finish");
}
