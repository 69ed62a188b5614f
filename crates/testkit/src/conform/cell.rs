//! One cell of the table: something is done to a record somewhere; what is told, and what is there
//! afterwards?

use std::time::Duration;

use semel_core::{
    Answer, Claim, Claimed, Fence, Fenced, Grant, Occupied, Reason, Release, Resolution, Resolved,
    Snapshot, Standing, StateName,
};

use super::{
    bench::{Bench, FORGOTTEN, HELD, LEASE, RELEASED, RETENTION, TICK, answer, impostor, rival},
    stage::{AGE, Stage, Staged, staged_answer},
};
use crate::with;

/// What is done, with the current fence where one is asked for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Act {
    /// The same request by somebody else.
    Claim,
    /// Another request under the same key.
    ClaimOther,
    /// The same claim once more.
    ClaimAgain,
    Renew,
    Complete,
    /// The answer that a completed record has already.
    CompleteAgain,
    Release,
    ReleaseUntried,
    Hold,
    /// The owner says that nothing ran.
    Forget,
    ResolveCompleted,
    ResolveReleased,
    /// An operator deletes it.
    Delete,
    Reap,
    Sweep,
}

/// What the one who did it is told.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Told {
    /// Granted as attempt 1, with a higher fence.
    First,
    /// Granted as one attempt more, with a higher fence.
    Next,
    /// Granted as before.
    Again,
    Reused,
    InFlight,
    Replay,
    ReplayFailed,
    IsHeld,
    /// This very claim has ended.
    Ended,
    Applied,
    Lost,
    Stale,
    /// How many records a batch moved.
    Done(u32),
}

/// What is there afterwards.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum After {
    /// What was there before, to the millisecond.
    Same,
    Absent,
    /// In flight by a new claim.
    Begun,
    /// In flight as before, with a whole lease.
    Renewed,
    Completed,
    Failed,
    Released,
    /// Released, and the attempt does not count.
    Untried,
    Forgotten,
    Held,
}

/// What a cell completes with.
fn new_answer() -> Answer {
    answer("another answer")
}

/// Plays one cell and checks it, with a record beside it that must not notice, and the epoch.
pub(crate) async fn play(bench: &Bench, stage: Stage, act: Act, told: Told, after: After) {
    let bystander = Stage::Held.set(bench, "bystander").await;
    let staged = stage.set(bench, "cell").await;
    let before = bench.get(staged.id()).await;
    let beside = bench.get(bystander.id()).await;
    let epoch = bench.epoch().await;
    let rival = match act {
        Act::ClaimOther => impostor(&staged.claim),
        Act::ClaimAgain => staged.claim.clone(),
        Act::Claim
        | Act::Renew
        | Act::Complete
        | Act::CompleteAgain
        | Act::Release
        | Act::ReleaseUntried
        | Act::Hold
        | Act::ResolveCompleted
        | Act::ResolveReleased
        | Act::Forget
        | Act::Delete
        | Act::Reap
        | Act::Sweep => rival(&staged.claim),
    };

    assert_eq!(perform(bench, &staged, act, &rival).await, told, "{act:?} on {stage:?}");

    let found = bench.get(staged.id()).await;
    let wanted = expect(&staged, before.as_ref(), found.as_ref(), &rival, act, after);
    assert_eq!(found, wanted, "after {act:?} on {stage:?}");
    assert_eq!(bench.get(bystander.id()).await, beside, "the record beside it");
    let acts = matches!(act, Act::ResolveCompleted | Act::ResolveReleased | Act::Delete);
    let raised = u64::from(acts && told == Told::Applied);
    assert_eq!(bench.epoch().await.0, epoch.0 + raised, "the epoch");
}

async fn perform(bench: &Bench, staged: &Staged, act: Act, claim: &Claim) -> Told {
    let (id, fence) = (staged.id(), staged.fence());
    match act {
        Act::Claim | Act::ClaimOther | Act::ClaimAgain => {
            told_claim(bench.claim(claim).await, &staged.grant)
        }
        Act::Renew => told_fenced(bench.renew(id, fence, LEASE).await),
        Act::Complete => told_fenced(bench.complete(id, fence, &new_answer()).await),
        Act::CompleteAgain => told_fenced(bench.complete(id, fence, &staged_answer()).await),
        Act::Release => told_fenced(bench.release(id, fence, Release::Rerun).await),
        Act::ReleaseUntried => told_fenced(bench.release(id, fence, Release::NotSent).await),
        Act::Hold => told_fenced(bench.hold(id, fence).await),
        Act::ResolveCompleted => resolve(bench, staged, Resolution::Completed(new_answer())).await,
        Act::ResolveReleased => resolve(bench, staged, Resolution::Released).await,
        Act::Forget => told_fenced(bench.forget(id, fence).await),
        Act::Delete => {
            let seen = bench.get(id).await;
            let state = seen.map_or(StateName::Completed, |seen| seen.standing.name());
            resolve(bench, staged, Resolution::Deleted(state)).await
        }
        Act::Reap => Told::Done(bench.reap_all().await),
        Act::Sweep => Told::Done(bench.sweep_all().await),
    }
}

fn told_claim(claimed: Claimed, before: &Grant) -> Told {
    match claimed {
        Claimed::Granted(grant) if grant == *before => Told::Again,
        Claimed::Granted(grant) => {
            assert!(grant.fence > before.fence, "a new grant has a higher fence: {grant:?}");
            match grant.attempt {
                1 => Told::First,
                attempt => {
                    assert_eq!(attempt, before.attempt + 1, "attempts are counted one by one");
                    Told::Next
                }
            }
        }
        Claimed::Occupied(Occupied::FingerprintMismatch) => Told::Reused,
        Claimed::Occupied(Occupied::Held) => Told::IsHeld,
        Claimed::Occupied(Occupied::Ended) => Told::Ended,
        Claimed::Occupied(Occupied::InFlight { lease_left }) => {
            assert_eq!(lease_left, LEASE - AGE, "what is left of the lease");
            Told::InFlight
        }
        Claimed::Occupied(Occupied::Completed { answer, expires_in }) => {
            if answer == Answer::failed() {
                assert_eq!(expires_in, RETENTION - LEASE - TICK, "how long it is kept");
                return Told::ReplayFailed;
            }
            assert_eq!(answer, staged_answer(), "the answer byte for byte");
            assert_eq!(expires_in, RETENTION - AGE, "how long it is kept");
            Told::Replay
        }
    }
}

const fn told_fenced(fenced: Fenced) -> Told {
    match fenced {
        Fenced::Applied => Told::Applied,
        Fenced::Lost => Told::Lost,
    }
}

async fn resolve(bench: &Bench, staged: &Staged, resolution: Resolution) -> Told {
    match bench.resolve(staged.id(), staged.fence(), &resolution).await {
        Resolved::Applied => Told::Applied,
        Resolved::Stale => Told::Stale,
    }
}

/// The whole record as it must look now. Only the number of a new fence is taken from what was
/// found; that it has risen is checked.
fn expect(
    staged: &Staged,
    before: Option<&Snapshot>,
    found: Option<&Snapshot>,
    rival: &Claim,
    act: Act,
    after: After,
) -> Option<Snapshot> {
    let risen = || -> Fence {
        let fence = found.expect("there is no record").fence;
        assert!(fence > staged.fence(), "the fence has not risen from {}: {fence}", staged.fence());
        fence
    };
    let age = before.map_or(Duration::ZERO, |before| before.age);
    let expires_in = RETENTION.saturating_sub(age);
    let by_operator = matches!(act, Act::ResolveCompleted | Act::ResolveReleased);
    let changed = |standing, reason: Option<Reason>| {
        let fence = if by_operator { risen() } else { staged.fence() };
        with(before.expect("there was no record").clone(), |seen| {
            seen.fence = fence;
            seen.ended = Some(Duration::ZERO);
            seen.reason = if by_operator { Some(Reason::Resolved) } else { reason };
            seen.standing = standing;
        })
    };
    Some(match after {
        After::Same => return before.cloned(),
        After::Absent => return None,
        After::Begun => {
            let standing = Standing::InFlight { lease_left: LEASE };
            let attempt = before.map_or(1, |before| before.attempt + 1);
            with(claimed(rival, risen(), standing), |seen| seen.attempt = attempt)
        }
        After::Renewed => with(changed(Standing::InFlight { lease_left: LEASE }, None), |seen| {
            seen.ended = None;
        }),
        After::Completed => changed(Standing::Completed { answer: new_answer(), expires_in }, None),
        After::Failed => changed(
            Standing::Completed { answer: Answer::failed(), expires_in },
            Some(Reason::LeaseExpired),
        ),
        After::Released => changed(Standing::Released { expires_in }, Some(RELEASED)),
        After::Untried => {
            with(changed(Standing::Released { expires_in }, Some(RELEASED)), |seen| {
                seen.attempt -= 1;
            })
        }
        After::Forgotten => {
            with(changed(Standing::Released { expires_in }, Some(FORGOTTEN)), |seen| {
                seen.fingerprint = None;
                seen.attempt = 0;
            })
        }
        After::Held => changed(Standing::Held, Some(HELD)),
    })
}

/// The record of a claim that was granted just now.
pub(crate) fn claimed(claim: &Claim, fence: Fence, standing: Standing) -> Snapshot {
    with(Snapshot::new(claim.fingerprint, fence, standing), |seen| {
        seen.on_unknown = claim.on_unknown;
        seen.hold_for = claim.hold_for;
        seen.about = claim.about.clone();
        seen.node = claim.node.clone();
        seen.captured = claim.captured.clone();
    })
}
