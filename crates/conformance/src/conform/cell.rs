//! One cell of the table: an act on a record in some state, the store's result, and what is there
//! afterwards?

use std::time::Duration;

use semel_core::{
    Answer, Claim, Claimed, Fence, Fenced, Grant, Occupied, Reason, Release, Resolution, Resolved,
    Snapshot, StateName, StateView,
};

use super::{
    harness::{
        FORGOTTEN, HELD, LEASE, RELEASED, RETENTION, StoreHarness, TICK, answer, claimed, impostor,
        rival,
    },
    stage::{AGE, Stage, Staged, staged_answer},
};
use crate::with;

/// What is done, with the current fence where one is asked for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum CellAct {
    /// The same request by another owner.
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

/// What the store returns.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum CellResult {
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
pub(crate) enum RecordAfter {
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
pub(crate) async fn play(
    harness: &StoreHarness,
    stage: Stage,
    act: CellAct,
    result: CellResult,
    after: RecordAfter,
) {
    let bystander = Stage::Held.set(harness, "bystander").await;
    let staged = stage.set(harness, "cell").await;
    let before = harness.get(staged.id()).await;
    let beside = harness.get(bystander.id()).await;
    let epoch = harness.epoch().await;
    let rival = match act {
        CellAct::ClaimOther => impostor(&staged.claim),
        CellAct::ClaimAgain => staged.claim.clone(),
        CellAct::Claim
        | CellAct::Renew
        | CellAct::Complete
        | CellAct::CompleteAgain
        | CellAct::Release
        | CellAct::ReleaseUntried
        | CellAct::Hold
        | CellAct::ResolveCompleted
        | CellAct::ResolveReleased
        | CellAct::Forget
        | CellAct::Delete
        | CellAct::Reap
        | CellAct::Sweep => rival(&staged.claim),
    };

    assert_eq!(perform(harness, &staged, act, &rival).await, result, "{act:?} on {stage:?}");

    let found = harness.get(staged.id()).await;
    let wanted = expect(&staged, before.as_ref(), found.as_ref(), &rival, act, after);
    assert_eq!(found, wanted, "after {act:?} on {stage:?}");
    assert_eq!(harness.get(bystander.id()).await, beside, "the record beside it");
    let acts =
        matches!(act, CellAct::ResolveCompleted | CellAct::ResolveReleased | CellAct::Delete);
    let raised = u64::from(acts && result == CellResult::Applied);
    assert_eq!(harness.epoch().await.0, epoch.0 + raised, "the epoch");
}

async fn perform(
    harness: &StoreHarness,
    staged: &Staged,
    act: CellAct,
    claim: &Claim,
) -> CellResult {
    let (id, fence) = (staged.id(), staged.fence());
    match act {
        CellAct::Claim | CellAct::ClaimOther | CellAct::ClaimAgain => {
            claim_result(harness.claim(claim).await, &staged.grant)
        }
        CellAct::Renew => fenced_result(harness.renew(id, fence, LEASE).await),
        CellAct::Complete => fenced_result(harness.complete(id, fence, &new_answer()).await),
        CellAct::CompleteAgain => {
            fenced_result(harness.complete(id, fence, &staged_answer()).await)
        }
        CellAct::Release => fenced_result(harness.release(id, fence, Release::Rerun).await),
        CellAct::ReleaseUntried => {
            fenced_result(harness.release(id, fence, Release::NotSent).await)
        }
        CellAct::Hold => fenced_result(harness.hold(id, fence).await),
        CellAct::ResolveCompleted => {
            resolve(harness, staged, Resolution::Completed(new_answer())).await
        }
        CellAct::ResolveReleased => resolve(harness, staged, Resolution::Released).await,
        CellAct::Forget => fenced_result(harness.forget(id, fence).await),
        CellAct::Delete => {
            let seen = harness.get(id).await;
            let state = seen.map_or(StateName::Completed, |seen| seen.state.name());
            resolve(harness, staged, Resolution::Deleted(state)).await
        }
        CellAct::Reap => CellResult::Done(harness.reap_all().await),
        CellAct::Sweep => CellResult::Done(harness.sweep_all().await),
    }
}

fn claim_result(claimed: Claimed, before: &Grant) -> CellResult {
    match claimed {
        Claimed::Granted(grant) if grant == *before => CellResult::Again,
        Claimed::Granted(grant) => {
            assert!(grant.fence > before.fence, "a new grant has a higher fence: {grant:?}");
            match grant.attempt {
                1 => CellResult::First,
                attempt => {
                    assert_eq!(attempt, before.attempt + 1, "attempts are counted one by one");
                    CellResult::Next
                }
            }
        }
        Claimed::Occupied(Occupied::FingerprintMismatch) => CellResult::Reused,
        Claimed::Occupied(Occupied::Held) => CellResult::IsHeld,
        Claimed::Occupied(Occupied::Ended) => CellResult::Ended,
        Claimed::Occupied(Occupied::Limited(refusal)) => {
            panic!("a claim without limits: {refusal:?}")
        }
        Claimed::Occupied(Occupied::InFlight { lease_left }) => {
            assert_eq!(lease_left, LEASE - AGE, "what is left of the lease");
            CellResult::InFlight
        }
        Claimed::Occupied(Occupied::Completed { answer, expires_in }) => {
            if answer == Answer::failed() {
                assert_eq!(expires_in, RETENTION - LEASE - TICK, "how long it is kept");
                return CellResult::ReplayFailed;
            }
            assert_eq!(answer, staged_answer(), "the answer byte for byte");
            assert_eq!(expires_in, RETENTION - AGE, "how long it is kept");
            CellResult::Replay
        }
    }
}

const fn fenced_result(fenced: Fenced) -> CellResult {
    match fenced {
        Fenced::Applied => CellResult::Applied,
        Fenced::Lost => CellResult::Lost,
    }
}

async fn resolve(harness: &StoreHarness, staged: &Staged, resolution: Resolution) -> CellResult {
    match harness.resolve(staged.id(), staged.fence(), &resolution).await {
        Resolved::Applied => CellResult::Applied,
        Resolved::Stale => CellResult::Stale,
    }
}

/// The whole record as it must look now. Only the number of a new fence is taken from what was
/// found; that it has risen is checked.
fn expect(
    staged: &Staged,
    before: Option<&Snapshot>,
    found: Option<&Snapshot>,
    rival: &Claim,
    act: CellAct,
    after: RecordAfter,
) -> Option<Snapshot> {
    let risen = || -> Fence {
        let fence = found.expect("there is no record").fence;
        assert!(fence > staged.fence(), "the fence has not risen from {}: {fence}", staged.fence());
        fence
    };
    let age = before.map_or(Duration::ZERO, |before| before.age);
    let expires_in = RETENTION.saturating_sub(age);
    let by_operator = matches!(act, CellAct::ResolveCompleted | CellAct::ResolveReleased);
    let changed = |state, reason: Option<Reason>| {
        let fence = if by_operator { risen() } else { staged.fence() };
        with(before.expect("there was no record").clone(), |seen| {
            seen.fence = fence;
            seen.ended = Some(Duration::ZERO);
            seen.reason = if by_operator { Some(Reason::Resolved) } else { reason };
            seen.state = state;
        })
    };
    Some(match after {
        RecordAfter::Same => return before.cloned(),
        RecordAfter::Absent => return None,
        RecordAfter::Begun => {
            let state = StateView::InFlight { lease_left: LEASE };
            let attempt = before.map_or(1, |before| before.attempt + 1);
            with(claimed(rival, risen(), state), |seen| seen.attempt = attempt)
        }
        RecordAfter::Renewed => {
            with(changed(StateView::InFlight { lease_left: LEASE }, None), |seen| {
                seen.ended = None;
            })
        }
        RecordAfter::Completed => {
            changed(StateView::Completed { answer: new_answer(), expires_in }, None)
        }
        RecordAfter::Failed => changed(
            StateView::Completed { answer: Answer::failed(), expires_in },
            Some(Reason::LeaseExpired),
        ),
        RecordAfter::Released => changed(StateView::Released { expires_in }, Some(RELEASED)),
        RecordAfter::Untried => {
            with(changed(StateView::Released { expires_in }, Some(RELEASED)), |seen| {
                seen.attempt -= 1;
            })
        }
        RecordAfter::Forgotten => {
            with(changed(StateView::Released { expires_in }, Some(FORGOTTEN)), |seen| {
                seen.fingerprint = None;
                seen.attempt = 0;
            })
        }
        RecordAfter::Held => changed(StateView::Held, Some(HELD)),
    })
}
