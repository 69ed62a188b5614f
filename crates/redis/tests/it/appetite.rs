//! Where nothing repeats Redis is not asked, and where something does it is.

use std::time::Duration;

use semel::core::Store as _;

use crate::fleet::{Fleet, assert_replays, claim, granted, until};

#[tokio::test]
async fn keys_that_are_never_repeated_are_soon_not_looked_for() {
    let fleet = Fleet::new(2).await;
    for number in 0..3000 {
        let claim = claim(&format!("k-{number}"));
        fleet.fronts[0].epoch().await.unwrap();
        granted(fleet.fronts[0].claim(&claim).await.unwrap());
    }
    let looks = fleet.fronts[0].counts().looks;
    assert!((1..=1024).contains(&looks), "{looks} looks");
    fleet.run(0, "k", "paid").await;
    assert_eq!(fleet.fronts[0].counts().looks, looks, "it looks no more");
    assert_eq!(fleet.fronts[0].counts().writes, 0, "nor is an answer written");
    // The store meets the first repeat, and all that follow are looked for.
    assert_replays(&fleet.repeat_attentively(0, "k").await, "paid");
    assert_eq!(fleet.fronts[0].counts().looks, looks);
    let asked = fleet.asked();
    assert_replays(&fleet.repeat_attentively(0, "k").await, "paid");
    assert_eq!((fleet.fronts[0].counts().looks, fleet.asked()), (looks + 1, asked));
}

/// Nobody asks for the store's epoch here but the front itself, and only while it looks.
#[tokio::test]
async fn a_front_on_its_own_comes_back_from_a_quiet_time() {
    let fleet = Fleet::new(1).await;
    for number in 0..2000 {
        granted(fleet.fronts[0].claim(&claim(&format!("k-{number}"))).await.unwrap());
    }
    fleet.run(0, "k", "paid").await;
    tokio::time::sleep(Duration::from_millis(1200)).await;
    until("Redis answers", async || {
        let asked = fleet.asked();
        assert_replays(&fleet.repeat(0, "k").await, "paid");
        fleet.asked() == asked
    })
    .await;
}
