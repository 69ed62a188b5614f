//! The eleven columns of the table of states: how a record gets there, and what it looks like.

use std::time::Duration;

use semel_core::{
    Answer, Claim, Fence, Fenced, Grant, OnUnknown, Reason, RecordId, Release, Resolution,
    Resolved, Snapshot, StateName, StateView,
};

use super::harness::{
    FORGOTTEN, HELD, LEASE, RELEASED, RETENTION, StoreHarness, TICK, answer, claim, claimed, rival,
    seconds,
};
use crate::with;

/// How old the newest claim of a staged record is, where the column does not ask for more.
pub(crate) const AGE: Duration = Duration::from_secs(4);

/// Where a record stands before something is done to it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Stage {
    /// It was there once, and an operator deleted it.
    Absent,
    Running,
    LapsedHold,
    LapsedRerun,
    LapsedFail,
    Completed,
    CompletedPast,
    Released,
    ReleasedPast,
    Forgotten,
    Held,
}

/// A record that was brought somewhere, by its second claim.
#[derive(Clone, Debug)]
pub(crate) struct Staged {
    pub(crate) claim: Claim,
    /// The newest grant: of attempt 2, since the first one ran and was released.
    pub(crate) grant: Grant,
    /// The fence of the first claim.
    pub(crate) stale: Fence,
}

impl Staged {
    pub(crate) const fn id(&self) -> &RecordId {
        &self.claim.id
    }

    pub(crate) const fn fence(&self) -> Fence {
        self.grant.fence
    }
}

impl Stage {
    pub(crate) const ALL: [Self; 11] = [
        Self::Absent,
        Self::Running,
        Self::LapsedHold,
        Self::LapsedRerun,
        Self::LapsedFail,
        Self::Completed,
        Self::CompletedPast,
        Self::Released,
        Self::ReleasedPast,
        Self::Forgotten,
        Self::Held,
    ];

    const fn on_unknown(self) -> OnUnknown {
        match self {
            Self::LapsedRerun => OnUnknown::Rerun,
            Self::LapsedFail => OnUnknown::Fail,
            Self::Absent
            | Self::Running
            | Self::LapsedHold
            | Self::Completed
            | Self::CompletedPast
            | Self::Released
            | Self::ReleasedPast
            | Self::Forgotten
            | Self::Held => OnUnknown::Hold,
        }
    }

    /// Brings a record of this key here, and checks that it looks like it.
    pub(crate) async fn set(self, harness: &StoreHarness, key: &str) -> Staged {
        let claim = with(claim(key), |it| it.on_unknown = self.on_unknown());
        let stale = harness.granted(&claim).await.fence;
        assert_eq!(harness.release(&claim.id, stale, Release::Rerun).await, Fenced::Applied);
        let claim = rival(&claim);
        let id = &claim.id;
        let grant = harness.granted(&claim).await;
        harness.advance(AGE).await;
        let ended = match self {
            Self::Running | Self::LapsedHold | Self::LapsedRerun | Self::LapsedFail => {
                Fenced::Applied
            }
            Self::Absent | Self::Completed | Self::CompletedPast => {
                harness.complete(id, grant.fence, &staged_answer()).await
            }
            Self::Released | Self::ReleasedPast => {
                harness.release(id, grant.fence, Release::Rerun).await
            }
            Self::Forgotten => harness.forget(id, grant.fence).await,
            Self::Held => harness.hold(id, grant.fence).await,
        };
        assert_eq!(ended, Fenced::Applied, "the way to {self:?}");
        if self == Self::Absent {
            const DELETE: Resolution = Resolution::Deleted(StateName::Completed);
            let deleted = harness.resolve(id, grant.fence, &DELETE).await;
            assert_eq!(deleted, Resolved::Applied, "the way to {self:?}");
        }
        harness.advance(self.age() - AGE).await;
        let staged = Staged { claim, grant, stale };
        assert_eq!(harness.get(staged.id()).await, self.looks(&staged), "on arrival at {self:?}");
        staged
    }

    /// How old the newest claim is on arrival.
    fn age(self) -> Duration {
        match self {
            Self::LapsedHold | Self::LapsedRerun | Self::LapsedFail => LEASE + TICK,
            Self::CompletedPast | Self::ReleasedPast => RETENTION + TICK,
            Self::Absent
            | Self::Running
            | Self::Completed
            | Self::Released
            | Self::Forgotten
            | Self::Held => AGE,
        }
    }

    fn looks(self, staged: &Staged) -> Option<Snapshot> {
        let expires_in = RETENTION.saturating_sub(self.age());
        let state = match self {
            Self::Absent | Self::CompletedPast | Self::ReleasedPast => return None,
            Self::Running => StateView::InFlight { lease_left: LEASE - AGE },
            // Not yet `operation-failed`: what looks completed must stay as it is (law 12), and the
            // owner's late answer is still welcome.
            Self::LapsedRerun | Self::LapsedFail => StateView::InFlight { lease_left: seconds(0) },
            Self::LapsedHold | Self::Held => StateView::Held,
            Self::Completed => StateView::Completed { answer: staged_answer(), expires_in },
            Self::Released | Self::Forgotten => StateView::Released { expires_in },
        };
        let (ended, reason) = match self {
            Self::LapsedHold => (Some(TICK), Some(Reason::LeaseExpired)),
            Self::Completed => (Some(Duration::ZERO), None),
            Self::Released => (Some(Duration::ZERO), Some(RELEASED)),
            Self::Forgotten => (Some(Duration::ZERO), Some(FORGOTTEN)),
            Self::Held => (Some(Duration::ZERO), Some(HELD)),
            Self::Absent
            | Self::Running
            | Self::LapsedRerun
            | Self::LapsedFail
            | Self::CompletedPast
            | Self::ReleasedPast => (None, None),
        };
        Some(with(claimed(&staged.claim, staged.fence(), state), |seen| {
            seen.attempt = 2;
            seen.age = self.age();
            seen.ended = ended;
            seen.reason = reason;
            if self == Self::Forgotten {
                seen.fingerprint = None;
                seen.attempt = 0;
            }
        }))
    }
}

/// What a completed record of the kit was completed with.
pub(crate) fn staged_answer() -> Answer {
    answer("the first answer")
}
