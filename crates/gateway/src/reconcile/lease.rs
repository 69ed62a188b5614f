//! The right to read the held records of a scope: a record of its own in the store.
//!
//! A claim is atomic and has a lease in every store, so a reader needs no other lock. Its fence is
//! a number that the store issued after those of all records that were held before.

use std::time::Duration;

use semel::core::{
    About, Caller, Claim, Claimed, Fence, Fenced, Fingerprint, Finish, Key, OnUnknown, OwnerToken,
    Reason, RecordId, Scope, Store,
};
use tokio::time::Instant;

/// The scope and the caller of these records. No route can produce the caller.
const SCOPE: &str = "semel.reconcile";
const CALLER: &str = "semel:reconcile";

/// The right to read the held records of a scope.
#[derive(Debug)]
pub(super) struct ReaderLease {
    id: RecordId,
    duration: Duration,
    held: Option<HeldLease>,
}

#[derive(Debug)]
struct HeldLease {
    claim: Claim,
    fence: Fence,
    renewed_at: Instant,
}

impl ReaderLease {
    /// `None` only if the scope cannot be a key, which every scope can.
    pub(super) fn new(scope: &Scope, duration: Duration) -> Option<Self> {
        let (own, caller) = (Scope::new(SCOPE).ok()?, Caller::from_stored(CALLER).ok()?);
        let id = RecordId::new(own, caller, Key::new(scope.as_str()).ok()?);
        Some(Self { id, duration, held: None })
    }

    /// Claims the lease or renews it. `None` if another process has it, or the store fails.
    pub(super) async fn hold(&mut self, store: &dyn Store) -> Option<Fence> {
        if let Some(held) = &mut self.held {
            let begun = Instant::now();
            if begun.duration_since(held.renewed_at) < self.duration / 3 {
                return Some(held.fence);
            }
            let renewed = store.renew(&self.id, held.claim.claimant(held.fence), self.duration);
            if matches!(renewed.await, Ok(Fenced::Applied)) {
                held.renewed_at = begun;
                return Some(held.fence);
            }
            self.held = None;
        }
        let (begun, claim) = (Instant::now(), self.claim()?);
        let Ok(Claimed::Granted(grant)) = store.claim(&claim).await else { return None };
        self.held = Some(HeldLease { claim, fence: grant.fence, renewed_at: begun });
        Some(grant.fence)
    }

    /// Gives the lease back.
    pub(super) async fn release(&mut self, store: &dyn Store) {
        if let Some(HeldLease { claim, fence, .. }) = self.held.take() {
            let finish = Finish::forget(Reason::NotSent);
            let _ = store.finish(&self.id, claim.claimant(fence), &finish).await;
        }
    }

    /// A lease with a fence above this one.
    pub(super) async fn hold_above(&mut self, store: &dyn Store, fence: Fence) -> Option<Fence> {
        let held = self.hold(store).await?;
        if held > fence {
            return Some(held);
        }
        self.release(store).await;
        self.hold(store).await.filter(|renewed| *renewed > fence)
    }

    fn claim(&self) -> Option<Claim> {
        let mut owner = [0; 16];
        getrandom::fill(&mut owner).ok()?;
        let fingerprint = Fingerprint::of_parts("reconcile lease", &[]);
        let mut claim = Claim::new(self.id.clone(), fingerprint, OwnerToken::from_bytes(owner));
        claim.lease = self.duration;
        claim.on_unknown = OnUnknown::Rerun;
        claim.about = About::new("the lease of the process that reads held records");
        Some(claim)
    }
}
