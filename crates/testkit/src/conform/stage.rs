//! The ten columns of the table of states: how a record gets there, and what it looks like.

use std::time::Duration;

use semel_core::{
    Answer, Claim, Fence, Fenced, Grant, OnUnknown, RecordId, Resolution, Resolved, Snapshot,
    Standing, StateName, Tried,
};

use super::bench::{Bench, LEASE, RETENTION, TICK, answer, claim, seconds};

/// How old the newest claim of a staged record is, where the column does not ask for more.
pub(crate) const AGE: Duration = Duration::from_secs(4);

/// Where a record stands before something is done to it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Stage {
    /// It was there once, and an operator had it forgotten.
    Absent,
    Running,
    LapsedHold,
    LapsedRerun,
    LapsedFail,
    Completed,
    CompletedPast,
    Released,
    ReleasedPast,
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
    pub(crate) const ALL: [Self; 10] = [
        Self::Absent,
        Self::Running,
        Self::LapsedHold,
        Self::LapsedRerun,
        Self::LapsedFail,
        Self::Completed,
        Self::CompletedPast,
        Self::Released,
        Self::ReleasedPast,
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
            | Self::Held => OnUnknown::Hold,
        }
    }

    /// Brings a record of this key here, and checks that it looks like it.
    pub(crate) async fn set(self, bench: &Bench, key: &str) -> Staged {
        let claim = Claim { on_unknown: self.on_unknown(), ..claim(key) };
        let stale = bench.granted(&claim).await.fence;
        let id = &claim.id;
        assert_eq!(bench.release(id, stale, Tried::Counted).await, Fenced::Applied);
        let grant = bench.granted(&claim).await;
        bench.advance(AGE).await;
        let ended = match self {
            Self::Running | Self::LapsedHold | Self::LapsedRerun | Self::LapsedFail => {
                Fenced::Applied
            }
            Self::Absent | Self::Completed | Self::CompletedPast => {
                bench.complete(id, grant.fence, &staged_answer()).await
            }
            Self::Released | Self::ReleasedPast => {
                bench.release(id, grant.fence, Tried::Counted).await
            }
            Self::Held => bench.hold(id, grant.fence).await,
        };
        assert_eq!(ended, Fenced::Applied, "the way to {self:?}");
        if self == Self::Absent {
            const FORGET: Resolution = Resolution::Forgotten(StateName::Completed);
            let forgotten = bench.resolve(id, grant.fence, &FORGET).await;
            assert_eq!(forgotten, Resolved::Applied, "the way to {self:?}");
        }
        bench.advance(self.age() - AGE).await;
        let staged = Staged { claim, grant, stale };
        assert_eq!(bench.get(staged.id()).await, self.looks(&staged), "on arrival at {self:?}");
        staged
    }

    /// How old the newest claim is on arrival.
    fn age(self) -> Duration {
        match self {
            Self::LapsedHold | Self::LapsedRerun | Self::LapsedFail => LEASE + TICK,
            Self::CompletedPast | Self::ReleasedPast => RETENTION + TICK,
            Self::Absent | Self::Running | Self::Completed | Self::Released | Self::Held => AGE,
        }
    }

    fn looks(self, staged: &Staged) -> Option<Snapshot> {
        let expires_in = RETENTION.saturating_sub(self.age());
        let standing = match self {
            Self::Absent | Self::CompletedPast | Self::ReleasedPast => return None,
            Self::Running => Standing::InFlight { lease_left: LEASE - AGE },
            // Not yet `operation-failed`: what looks completed must stay as it is (law 12), and the
            // owner's late answer is still welcome.
            Self::LapsedRerun | Self::LapsedFail => Standing::InFlight { lease_left: seconds(0) },
            Self::LapsedHold | Self::Held => Standing::Held,
            Self::Completed => Standing::Completed { answer: staged_answer(), expires_in },
            Self::Released => Standing::Released { expires_in },
        };
        Some(Snapshot {
            fingerprint: staged.claim.fingerprint,
            fence: staged.fence(),
            attempt: 2,
            on_unknown: staged.claim.on_unknown,
            age: self.age(),
            standing,
        })
    }
}

/// What a completed record of the kit was completed with.
pub(crate) fn staged_answer() -> Answer {
    answer("the first answer")
}
