//! An operator's act is followed within a second, through any gateway.

use std::time::Duration;

use semel::core::{Resolution, Resolved, StateName, Store as _};
use semel_testkit::flaky_store::{StoreCall, StoreCondition};
use tokio::time::sleep;

use crate::harness::{TestFleet, assert_replays, claim, granted};

const FORGET: Resolution = Resolution::Deleted(StateName::Completed);

/// How long a gateway may take to follow an act. The tests wait for all of it: it is a promise.
const FOLLOWED_WITHIN: Duration = Duration::from_secs(1);

#[tokio::test]
async fn an_act_outside_all_gateways_is_followed_within_a_second() {
    let fleet = TestFleet::new(2).await;
    let grant = fleet.run(0, "k", "wrong").await;
    assert_replays(&fleet.until_hit(1, "k").await, "wrong");
    let result = fleet.store.resolve(&claim("k").id, grant.fence, &FORGET).await.unwrap();
    assert_eq!(result, Resolved::Applied);
    sleep(FOLLOWED_WITHIN).await;
    granted(fleet.fronts[1].claim(&claim("k")).await.unwrap());
}

#[tokio::test]
async fn an_act_through_a_gateway_is_followed_by_that_one_at_once() {
    let fleet = TestFleet::new(1).await;
    let grant = fleet.run(0, "k", "wrong").await;
    assert_replays(&fleet.until_hit(0, "k").await, "wrong");
    let result = fleet.fronts[0].resolve(&claim("k").id, grant.fence, &FORGET).await.unwrap();
    assert_eq!(result, Resolved::Applied);
    granted(fleet.fronts[0].claim(&claim("k")).await.unwrap());
}

#[tokio::test]
async fn an_act_through_a_gateway_is_followed_by_the_others_within_a_second() {
    let fleet = TestFleet::new(2).await;
    let grant = fleet.run(0, "k", "wrong").await;
    assert_replays(&fleet.until_hit(1, "k").await, "wrong");
    fleet.fronts[0].resolve(&claim("k").id, grant.fence, &FORGET).await.unwrap();
    sleep(FOLLOWED_WITHIN).await;
    granted(fleet.fronts[1].claim(&claim("k")).await.unwrap());
}

/// The entry is written under the epoch that its writer knew, which is lower than the store's.
#[tokio::test]
async fn an_entry_from_before_an_act_is_not_used_after_it() {
    let fleet = TestFleet::new(2).await;
    let grant = fleet.run(0, "k", "old").await;
    fleet.entries(1).await;
    let name = fleet.names().await.remove(0);
    let mut connection = fleet.connection().await;
    let old: Vec<u8> = redis::cmd("GET").arg(&name).query_async(&mut connection).await.unwrap();
    fleet.fronts[0].resolve(&claim("k").id, grant.fence, &FORGET).await.unwrap();
    for front in &fleet.fronts {
        front.epoch().await.unwrap();
    }
    let claim = claim("k");
    let fence = granted(fleet.fronts[0].claim(&claim).await.unwrap()).fence;
    fleet.complete(0, &claim, fence, "new").await;
    // Simulates a slow writer.
    let () = redis::cmd("SET").arg(&name).arg(&old).query_async(&mut connection).await.unwrap();
    assert_replays(&fleet.repeat_after_epoch(1, "k").await, "new");
}

#[tokio::test]
async fn a_gateway_without_a_recent_epoch_uses_no_entry() {
    let fleet = TestFleet::new(2).await;
    fleet.run(0, "k", "paid").await;
    assert_replays(&fleet.until_hit(1, "k").await, "paid");
    fleet.behind.set(StoreCall::Other, StoreCondition::Unavailable);
    sleep(FOLLOWED_WITHIN).await;
    let asked = fleet.asked();
    assert_replays(&fleet.repeat(1, "k").await, "paid");
    assert_eq!(fleet.asked(), asked + 1, "the store was asked");
}
