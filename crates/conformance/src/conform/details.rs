//! What a record says about itself, and what is remembered beside the records.

use semel_core::{
    About, Captured, Finish, NodeName, Reason, Release, Resolution,
    store::{METADATA_NAME_BYTES_MAX, METADATA_VALUE_BYTES_MAX},
};

use super::harness::{LEASE, StoreHarness, TICK, claim, rival, seconds};
use crate::with;

pub(crate) async fn the_longest_details_are_kept(harness: &StoreHarness) {
    let claim = with(claim("details"), |claim| {
        claim.about = About::new(&"ü".repeat(200));
        claim.node = NodeName::new(&"n".repeat(100));
        claim.captured = Captured::new([("a", "'\"\\ü&=%"), ("b", &*"9".repeat(230))]);
    });
    let fence = harness.granted(&claim).await.fence;
    let reason = Reason::text(&"ö".repeat(60));
    harness.finish(&claim.id, fence, &Finish::hold(reason.clone())).await;
    let seen = harness.another().await.seen(&claim.id).await;
    assert_eq!(seen.about, claim.about);
    assert_eq!(seen.node, claim.node);
    assert_eq!(seen.captured, claim.captured);
    assert_eq!(seen.reason, Some(reason));
}

pub(crate) async fn a_new_claim_brings_its_own_details(harness: &StoreHarness) {
    let first = claim("details");
    let fence = harness.granted(&first).await.fence;
    harness.release(&first.id, fence, Release::Rerun).await;
    let next = with(rival(&first), |claim| {
        claim.about = About::new("PUT /other");
        claim.node = NodeName::new("node-2");
        claim.captured = Captured::default();
        claim.hold_for = Some(seconds(7));
    });
    harness.granted(&next).await;
    let seen = harness.seen(&first.id).await;
    assert_eq!((seen.about, seen.node), (next.about, next.node));
    assert_eq!((seen.captured, seen.hold_for), (next.captured, next.hold_for));
    assert_eq!((seen.reason, seen.ended), (None, None), "the new execution has not ended");
}

pub(crate) async fn a_refused_claim_changes_no_details(harness: &StoreHarness) {
    let first = claim("details");
    harness.granted(&first).await;
    let before = harness.seen(&first.id).await;
    let refused = with(rival(&first), |claim| claim.about = About::new("something else"));
    harness.occupied(&refused).await;
    assert_eq!(harness.seen(&first.id).await, before);
}

pub(crate) async fn a_record_has_the_time_and_the_reason_of_its_end(harness: &StoreHarness) {
    let held = claim("held");
    let fence = harness.granted(&held).await.fence;
    harness.advance(seconds(2)).await;
    harness.finish(&held.id, fence, &Finish::hold(Reason::Answered(503))).await;
    harness.advance(seconds(3)).await;
    let seen = harness.seen(&held.id).await;
    assert_eq!((seen.age, seen.ended), (seconds(5), Some(seconds(3))));
    assert_eq!(seen.reason, Some(Reason::Answered(503)));
    harness.resolve(&held.id, fence, &Resolution::Released).await;
    let seen = harness.seen(&held.id).await;
    assert_eq!((seen.reason, seen.ended), (Some(Reason::Resolved), Some(seconds(0))));
}

pub(crate) async fn a_record_has_the_time_of_its_lease_expiry(harness: &StoreHarness) {
    let lapsed = claim("lapsed");
    harness.granted(&lapsed).await;
    harness.advance(LEASE + TICK).await;
    let seen = harness.seen(&lapsed.id).await;
    assert_eq!((seen.reason, seen.ended), (Some(Reason::LeaseExpired), Some(TICK)));
    harness.advance(seconds(5)).await;
    assert_eq!(harness.reap_all().await, 1);
    let seen = harness.seen(&lapsed.id).await;
    let ended = Some(seconds(5) + TICK);
    assert_eq!((seen.reason, seen.ended), (Some(Reason::LeaseExpired), ended));
}

pub(crate) async fn metadata_is_visible_to_all_handles(harness: &StoreHarness) {
    let other = harness.another().await;
    assert_eq!(harness.metadata("route:").await, []);
    harness.set_metadata("route:b", Some(b"two")).await;
    other.set_metadata("route:a", Some(b"\x00\xff'")).await;
    harness.set_metadata("routes", Some(b"not below route:")).await;
    let both = [("route:a", &b"\x00\xff'"[..]), ("route:b", b"two")];
    let both = both.map(|(name, value)| (name.to_owned(), value.to_vec()));
    assert_eq!(harness.metadata("route:").await, both);
    assert_eq!(other.metadata("route:").await, both);
    other.set_metadata("route:b", Some(b"three")).await;
    harness.set_metadata("route:a", None).await;
    assert_eq!(harness.metadata("route:").await, [("route:b".to_owned(), b"three".to_vec())]);
}

pub(crate) async fn metadata_that_is_too_large_is_refused(harness: &StoreHarness) {
    let name = "n".repeat(METADATA_NAME_BYTES_MAX);
    let value = vec![7; METADATA_VALUE_BYTES_MAX];
    harness.set_metadata(&name, Some(&value)).await;
    assert_eq!(harness.metadata("n").await, [(name.clone(), value.clone())]);
    let long_name = format!("{name}n");
    let long_value = vec![7; METADATA_VALUE_BYTES_MAX + 1];
    for (name, value) in [(&*long_name, &value[..]), ("x", &long_value), ("", &[])] {
        harness.metadata_refused(name, value).await;
    }
}
