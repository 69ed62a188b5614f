//! Without repeats Redis is not queried, with repeats it is.

use std::time::Duration;

use semel::core::Store as _;

use crate::harness::{TestFleet, assert_replays, claim, granted, until};

#[tokio::test]
async fn lookups_stop_for_keys_that_never_repeat() {
    let fleet = TestFleet::new(2).await;
    for number in 0..3000 {
        let claim = claim(&format!("k-{number}"));
        fleet.fronts[0].epoch().await.unwrap();
        granted(fleet.fronts[0].claim(&claim).await.unwrap());
    }
    let lookups = fleet.fronts[0].counts().lookups;
    assert!((1..=1024).contains(&lookups), "{lookups} lookups");
    fleet.run(0, "k", "paid").await;
    assert_eq!(fleet.fronts[0].counts().lookups, lookups, "it looks no more");
    assert_eq!(fleet.fronts[0].counts().writes, 0, "nor is an answer written");
    // The store answers the first repeat, and all that follow are looked up.
    assert_replays(&fleet.repeat_after_epoch(0, "k").await, "paid");
    assert_eq!(fleet.fronts[0].counts().lookups, lookups);
    let asked = fleet.asked();
    assert_replays(&fleet.repeat_after_epoch(0, "k").await, "paid");
    assert_eq!((fleet.fronts[0].counts().lookups, fleet.asked()), (lookups + 1, asked));
}

/// Only the front itself reads the store's epoch here, and only while it has a budget.
#[tokio::test]
async fn a_single_front_resumes_lookups_after_a_quiet_time() {
    let fleet = TestFleet::new(1).await;
    for number in 0..2000 {
        granted(fleet.fronts[0].claim(&claim(&format!("k-{number}"))).await.unwrap());
    }
    fleet.run(0, "k", "paid").await;
    // Real time must pass: the epoch that the front knows is too old by then.
    tokio::time::sleep(Duration::from_millis(1200)).await;
    until("Redis answers", async || {
        let asked = fleet.asked();
        assert_replays(&fleet.repeat(0, "k").await, "paid");
        fleet.asked() == asked
    })
    .await;
}
