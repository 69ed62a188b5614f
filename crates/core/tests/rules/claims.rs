//! What a claim meets.

use semel_core::{
    Answer, Claim, Claimed, Grant, Occupied, OnUnknown, Reason, Record, State,
    rules::{self, Change},
};

use super::*;

/// Granted to the claim as this attempt, with the fence offered.
fn granted(claim: &Claim, attempt: u32) -> (Claimed, Change) {
    // Every field is set, so that nothing of the record that was there remains.
    let record = changed(held(), |record| {
        record.fingerprint = Some(claim.fingerprint);
        record.fence = fence(9);
        record.owner = claim.owner;
        record.attempt = attempt;
        record.on_unknown = claim.on_unknown;
        record.hold_for = claim.hold_for;
        record.retention = claim.retention;
        record.claimed_at = NOW;
        record.ended_at = None;
        record.expires_at = NOW.after(claim.retention);
        record.about = claim.about.clone();
        record.node = claim.node.clone();
        record.captured = claim.captured.clone();
        record.reason = None;
        record.state = State::InFlight { lease_until: NOW.after(claim.lease) };
    });
    (Claimed::Granted(Grant::new(fence(9), attempt)), Change::Put(record))
}

fn occupied(occupied: Occupied) -> (Claimed, Change) {
    (Claimed::Occupied(occupied), Change::Keep)
}

fn replay() -> (Claimed, Change) {
    let expires_in = RETENTION - AGE;
    occupied(Occupied::Completed { answer: answer("recorded"), expires_in })
}

/// The claim settles the record first: it ends with `operation-failed`.
fn settled_as_failed(record: Record, reason: Reason) -> (Claimed, Change) {
    let expires_in = record.expires_at.since(NOW);
    let result = Occupied::Completed { answer: Answer::failed(), expires_in };
    (Claimed::Occupied(result), Change::Put(failed(record, reason)))
}

#[test]
fn a_claim_with_an_equal_fingerprint_meets_each_state() {
    let claim = claim();
    let held_by_the_claim = Change::Put(lease_expired(lapsed(OnUnknown::Hold)));
    check(
        |found| rules::claim(found, &claim, fence(9), NOW),
        [
            granted(&claim, 1),
            occupied(Occupied::InFlight { lease_left: LEASE - AGE }),
            (Claimed::Occupied(Occupied::Held), held_by_the_claim),
            granted(&claim, 3),
            settled_as_failed(lapsed(OnUnknown::Fail), Reason::LeaseExpired),
            replay(),
            granted(&claim, 1),
            granted(&claim, 3),
            granted(&claim, 1),
            granted(&claim, 1),
            occupied(Occupied::Held),
            settled_as_failed(held_too_long(), Reason::HoldExpired),
        ],
    );
}

#[test]
fn a_claim_with_another_fingerprint_changes_nothing_that_counts() {
    let mut claim = claim();
    claim.fingerprint = fingerprint(2);
    let mismatch = || occupied(Occupied::FingerprintMismatch);
    check(
        |found| rules::claim(found, &claim, fence(9), NOW),
        [
            granted(&claim, 1),
            mismatch(),
            mismatch(),
            mismatch(),
            mismatch(),
            mismatch(),
            granted(&claim, 1),
            mismatch(),
            granted(&claim, 1),
            granted(&claim, 1),
            mismatch(),
            mismatch(),
        ],
    );
}

#[test]
fn an_owner_that_claims_again_has_its_fence_and_a_whole_lease_until_its_execution_ends() {
    let mut claim = claim();
    claim.owner = owner(1);
    let again = |record: Record| {
        let leased = changed(record, |record| record.state = in_flight(LEASE));
        (Claimed::Granted(Grant::new(fence(7), 2)), Change::Put(leased))
    };
    check(
        |found| rules::claim(found, &claim, fence(9), NOW),
        [
            granted(&claim, 1),
            again(running()),
            again(lapsed(OnUnknown::Hold)),
            again(lapsed(OnUnknown::Rerun)),
            again(lapsed(OnUnknown::Fail)),
            replay(),
            granted(&claim, 1),
            occupied(Occupied::Ended),
            granted(&claim, 1),
            occupied(Occupied::Ended),
            occupied(Occupied::Held),
            settled_as_failed(held_too_long(), Reason::HoldExpired),
        ],
    );
}

#[test]
fn an_owner_token_does_not_grant_another_fingerprint() {
    let mut claim = claim();
    claim.owner = owner(1);
    claim.fingerprint = fingerprint(2);
    let result = rules::claim(Some(&running()), &claim, fence(9), NOW);
    assert_eq!(result, occupied(Occupied::FingerprintMismatch));
}

#[test]
fn claiming_again_never_shortens_the_lease() {
    let mut claim = claim();
    claim.owner = owner(1);
    claim.lease = TICK;
    let (_, change) = rules::claim(Some(&running()), &claim, fence(9), NOW);
    assert_eq!(change, Change::Put(running()));
}

#[test]
fn a_lease_lives_to_its_last_millisecond() {
    let claim = claim();
    let last = changed(record(in_flight(Duration::ZERO), LEASE), |record| {
        record.on_unknown = OnUnknown::Rerun;
    });
    let result = rules::claim(Some(&last), &claim, fence(9), NOW);
    assert_eq!(result, occupied(Occupied::InFlight { lease_left: Duration::ZERO }));
    let result = rules::claim(Some(&last), &claim, fence(9), NOW.after(TICK)).0;
    assert_eq!(result, Claimed::Granted(Grant::new(fence(9), 3)));
}

#[test]
fn an_attempt_never_overflows() {
    let most = changed(released(), |record| record.attempt = u32::MAX);
    let result = rules::claim(Some(&most), &claim(), fence(9), NOW).0;
    assert_eq!(result, Claimed::Granted(Grant::new(fence(9), u32::MAX)));
}

#[test]
fn a_record_that_was_released_again_recognises_its_newest_claim_only() {
    // Fence 7 was released, and the claim of owner 2 took the record with fence 9.
    let (_, Change::Put(taken)) = rules::claim(Some(&released()), &claim(), fence(9), NOW) else {
        unreachable!("a released record is granted")
    };
    let mut stale = claim();
    stale.owner = owner(1);
    let result = rules::claim(Some(&taken), &stale, fence(10), NOW);
    assert_eq!(result, occupied(Occupied::InFlight { lease_left: LEASE }));
}
