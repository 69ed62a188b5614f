//! Whoever waits for somebody elsewhere is told of the end, by a store that can tell.
//!
//! One that cannot says so, and passes: it is asked again and again instead. A watch that never
//! ends is caught by the patience of the case.

use semel_core::{Fenced, Release, Resolution, Resolved, StateName};

use super::bench::{Bench, answer, claim};

pub(crate) async fn whoever_waits_is_told_of_an_answer(bench: &Bench) {
    let claim = claim("watched");
    let grant = bench.granted(&claim).await;
    let waiter = bench.another().await;
    let Some(changed) = waiter.watch(&claim.id).await else { return };
    let told = bench.complete(&claim.id, grant.fence, &answer("done")).await;
    assert_eq!(told, Fenced::Applied);
    changed.await;
    assert_eq!(waiter.seen(&claim.id).await.standing.name(), StateName::Completed);
}

pub(crate) async fn whoever_waits_is_told_of_a_release(bench: &Bench) {
    let claim = claim("watched");
    let grant = bench.granted(&claim).await;
    let waiter = bench.another().await;
    let Some(changed) = waiter.watch(&claim.id).await else { return };
    let told = bench.release(&claim.id, grant.fence, Release::Rerun).await;
    assert_eq!(told, Fenced::Applied);
    changed.await;
}

pub(crate) async fn whoever_waits_is_told_of_a_hold_and_of_the_operators_act(bench: &Bench) {
    let claim = claim("watched");
    let grant = bench.granted(&claim).await;
    let waiter = bench.another().await;
    let Some(changed) = waiter.watch(&claim.id).await else { return };
    assert_eq!(bench.hold(&claim.id, grant.fence).await, Fenced::Applied);
    changed.await;
    let Some(changed) = waiter.watch(&claim.id).await else { return };
    let told = bench.resolve(&claim.id, grant.fence, &Resolution::Released).await;
    assert_eq!(told, Resolved::Applied);
    changed.await;
}

pub(crate) async fn all_who_watch_are_told(bench: &Bench) {
    let claim = claim("watched");
    let grant = bench.granted(&claim).await;
    let (one, other) = (bench.another().await, bench.another().await);
    let Some(left) = one.watch(&claim.id).await else { return };
    drop(left);
    let Some(first) = one.watch(&claim.id).await else { return };
    let Some(second) = one.watch(&claim.id).await else { return };
    let Some(third) = other.watch(&claim.id).await else { return };
    bench.complete(&claim.id, grant.fence, &answer("done")).await;
    for changed in [first, second, third] {
        changed.await;
    }
}
