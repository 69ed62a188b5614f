//! Nothing falls at a restore (laws 5, 11 and 12): fences and the epoch rise above all that the
//! store reached after the backup was taken, and in a store that takes the place of a lost one.

use std::fmt;

use semel_core::{
    Claimant, Fence, Fenced, Finish, Occupied, Release, Resolution, Resolved, StateName,
};

use super::harness::{Handle, LEASE, OwnerTokens, RETENTION, TICK, answer, claim, owner, rival};
use crate::fixture::Restorable;

/// A store under test that can be backed up and restored. It keeps no handle itself.
pub struct RestorableHarness {
    fixture: Box<dyn Restorable>,
    owners: OwnerTokens,
}

impl RestorableHarness {
    /// Sets a case up.
    pub fn new(fixture: impl Restorable) -> Self {
        Self { fixture: Box::new(fixture), owners: OwnerTokens::default() }
    }

    fn open(&self) -> Handle {
        Handle::with_owners(self.fixture.store(), &self.owners)
    }

    async fn back_up(&self) {
        self.fixture.back_up().await;
    }

    /// Puts the backup in the place of the store. Time passes meanwhile, and the handle goes first.
    async fn restore(&self, handle: Handle) -> Handle {
        drop(handle);
        self.fixture.advance(TICK).await;
        self.fixture.restore().await;
        self.open()
    }

    /// Loses the store and makes another, likewise.
    async fn lose(&self, handle: Handle) -> Handle {
        drop(handle);
        self.fixture.advance(TICK).await;
        self.fixture.replace_with_empty().await;
        self.open()
    }
}

impl fmt::Debug for RestorableHarness {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("RestorableBench")
    }
}

/// Claims and releases a key some times, and gives the greatest fence.
async fn greatest_fence(store: &Handle, key: &str) -> Fence {
    let claim = claim(key);
    let mut greatest = None;
    for _ in 0..5 {
        let fence = store.granted(&rival(&claim)).await.fence;
        assert!(Some(fence) > greatest, "{fence} after {greatest:?}");
        greatest = Some(fence);
        store.release(&claim.id, fence, Release::Rerun).await;
    }
    greatest.expect("a fence")
}

pub(crate) async fn what_was_backed_up_is_there(harness: &RestorableHarness) {
    let store = harness.open();
    let (done, running) = (claim("done"), claim("running"));
    let fence = store.granted(&done).await.fence;
    store.complete(&done.id, fence, &answer("done")).await;
    store.granted(&running).await;
    harness.back_up().await;
    let lost = claim("lost");
    let fence = store.granted(&lost).await.fence;
    store.complete(&lost.id, fence, &answer("lost")).await;
    let store = harness.restore(store).await;
    let replay = Occupied::Completed { answer: answer("done"), expires_in: RETENTION - TICK };
    assert_eq!(store.occupied(&rival(&done)).await, replay);
    let result = store.occupied(&rival(&running)).await;
    assert_eq!(result, Occupied::InFlight { lease_left: LEASE - TICK });
    assert_eq!(store.get(&lost.id).await, None);
}

pub(crate) async fn fences_rise_across_a_restore(harness: &RestorableHarness) {
    let mut store = harness.open();
    let mut greatest = greatest_fence(&store, "kept").await;
    harness.back_up().await;
    for round in 0..3 {
        let lost = greatest_fence(&store, "kept").await.max(greatest_fence(&store, "new").await);
        assert!(lost > greatest, "round {round}: {lost} after {greatest}");
        greatest = lost;
        store = harness.restore(store).await;
        for key in ["kept", "new", "other"] {
            let fence = store.granted(&claim(key)).await.fence;
            assert!(fence > greatest, "round {round}, {key}: {fence} after {greatest}");
            greatest = fence;
            store.release(&claim(key).id, fence, Release::Rerun).await;
        }
    }
}

pub(crate) async fn fences_rise_in_the_place_of_a_lost_store(harness: &RestorableHarness) {
    let mut store = harness.open();
    let mut greatest = None;
    for round in 0..3 {
        let fence = store.granted(&claim("key")).await.fence;
        assert!(Some(fence) > greatest, "round {round}: {fence} after {greatest:?}");
        greatest = Some(greatest_fence(&store, "other").await);
        store = harness.lose(store).await;
        assert_eq!(store.get(&claim("key").id).await, None);
    }
}

/// An owner whose claim the backup does not know, beside the one that was granted the key again.
pub(crate) async fn a_zombie_of_the_lost_time_writes_nothing(harness: &RestorableHarness) {
    let store = harness.open();
    harness.back_up().await;
    let zombie = claim("key");
    let old = store.granted(&zombie).await.fence;
    let store = harness.restore(store).await;
    let owner = rival(&zombie);
    let new = store.granted(&owner).await.fence;
    assert!(new > old, "{new} after {old}");
    assert_eq!(store.complete(&zombie.id, old, &answer("late")).await, Fenced::Lost);
    assert_eq!(store.renew(&zombie.id, old, LEASE).await, Fenced::Lost);
    assert_eq!(store.release(&zombie.id, old, Release::Rerun).await, Fenced::Lost);
    assert_eq!(store.hold(&zombie.id, old).await, Fenced::Lost);
    assert_eq!(store.forget(&zombie.id, old).await, Fenced::Lost);
    assert_eq!(store.complete(&owner.id, new, &answer("new")).await, Fenced::Applied);
}

/// The backup knows this owner: its claim stands, and the fence alone is not enough.
pub(crate) async fn an_owner_from_before_the_backup_finishes_after_a_restore(
    harness: &RestorableHarness,
) {
    let store = harness.open();
    let claim = claim("key");
    let fence = store.granted(&claim).await.fence;
    harness.back_up().await;
    let store = harness.restore(store).await;
    let before = store.seen(&claim.id).await;
    let impostor = Claimant::new(fence, owner());
    assert_eq!(store.renew_by(&claim.id, impostor, LEASE).await, Fenced::Lost);
    let forged = Finish::complete(answer("forged"));
    assert_eq!(store.finish_by(&claim.id, impostor, &forged).await, Fenced::Lost);
    assert_eq!(store.seen(&claim.id).await, before);
    assert_eq!(store.granted(&claim).await.fence, fence);
    assert_eq!(store.renew(&claim.id, fence, LEASE).await, Fenced::Applied);
    assert_eq!(store.complete(&claim.id, fence, &answer("late")).await, Fenced::Applied);
}

/// The backup knows the record under its former owner, and this one took it over afterwards.
pub(crate) async fn an_owner_of_the_lost_time_writes_nothing_to_the_backup(
    harness: &RestorableHarness,
) {
    let store = harness.open();
    let claim = claim("key");
    let former = store.granted(&claim).await.fence;
    harness.back_up().await;
    store.release(&claim.id, former, Release::Rerun).await;
    let lost = store.granted(&rival(&claim)).await.fence;
    let store = harness.restore(store).await;
    let before = store.seen(&claim.id).await;
    assert_eq!(before.fence, former);
    assert_eq!(store.renew(&claim.id, lost, LEASE).await, Fenced::Lost);
    assert_eq!(store.complete(&claim.id, lost, &answer("lost")).await, Fenced::Lost);
    assert_eq!(store.release(&claim.id, lost, Release::Rerun).await, Fenced::Lost);
    assert_eq!(store.hold(&claim.id, lost).await, Fenced::Lost);
    assert_eq!(store.forget(&claim.id, lost).await, Fenced::Lost);
    assert_eq!(store.seen(&claim.id).await, before);
}

pub(crate) async fn the_epoch_rises_across_a_restore(harness: &RestorableHarness) {
    let store = harness.open();
    harness.back_up().await;
    for _ in 0..3 {
        let claim = claim("key");
        let fence = store.granted(&claim).await.fence;
        store.complete(&claim.id, fence, &answer("done")).await;
        let delete = Resolution::Deleted(StateName::Completed);
        assert_eq!(store.resolve(&claim.id, fence, &delete).await, Resolved::Applied);
    }
    let before = store.epoch().await;
    let store = harness.restore(store).await;
    let after = store.epoch().await;
    assert!(after > before, "{after:?} after {before:?}");
}
