//! What a claim meets.

use semel_core::{
    Answer, Claim, Claimed, Grant, Occupied, OnUnknown, Record, State,
    rules::{self, Change},
};

use super::*;

/// Granted to the claim as this attempt, with the fence offered.
fn granted(claim: &Claim, attempt: u32) -> (Claimed, Change) {
    let record = Record {
        fingerprint: claim.fingerprint,
        fence: fence(9),
        attempt,
        on_unknown: claim.on_unknown,
        retention: claim.retention,
        claimed_at: NOW,
        expires_at: NOW.after(claim.retention),
        state: State::InFlight { owner: claim.owner, lease_until: NOW.after(claim.lease) },
    };
    (Claimed::Granted(Grant { fence: fence(9), attempt }), Change::Put(record))
}

fn occupied(occupied: Occupied) -> (Claimed, Change) {
    (Claimed::Occupied(occupied), Change::Keep)
}

fn replay() -> (Claimed, Change) {
    let expires_in = RETENTION - AGE;
    occupied(Occupied::Completed { answer: answer("recorded"), expires_in })
}

#[test]
fn a_claim_with_an_equal_fingerprint_meets_each_state() {
    let claim = claim();
    let failed = State::Completed(Answer::failed());
    let told_failed =
        Occupied::Completed { answer: Answer::failed(), expires_in: RETENTION - LEASE - TICK };
    check(
        |found| rules::claim(found, &claim, fence(9), NOW),
        [
            granted(&claim, 1),
            occupied(Occupied::InFlight { lease_left: LEASE - AGE }),
            (Claimed::Occupied(Occupied::Held), put(lapsed(OnUnknown::Hold), State::Held)),
            granted(&claim, 3),
            (Claimed::Occupied(told_failed), put(lapsed(OnUnknown::Fail), failed)),
            replay(),
            granted(&claim, 1),
            granted(&claim, 3),
            granted(&claim, 1),
            occupied(Occupied::Held),
        ],
    );
}

#[test]
fn a_claim_with_another_fingerprint_changes_nothing_that_counts() {
    let claim = Claim { fingerprint: fingerprint(2), ..claim() };
    let reused = || occupied(Occupied::Reused);
    check(
        |found| rules::claim(found, &claim, fence(9), NOW),
        [
            granted(&claim, 1),
            reused(),
            reused(),
            reused(),
            reused(),
            reused(),
            granted(&claim, 1),
            reused(),
            granted(&claim, 1),
            reused(),
        ],
    );
}

#[test]
fn an_owner_that_claims_again_has_its_fence_and_a_whole_lease() {
    let claim = Claim { owner: owner(1), ..claim() };
    let again = |record: Record| {
        let grant = Grant { fence: fence(7), attempt: 2 };
        (Claimed::Granted(grant), put(record, in_flight(LEASE)))
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
            granted(&claim, 3),
            granted(&claim, 1),
            occupied(Occupied::Held),
        ],
    );
}

#[test]
fn an_owner_token_does_not_open_another_fingerprint() {
    let claim = Claim { owner: owner(1), fingerprint: fingerprint(2), ..claim() };
    assert_eq!(rules::claim(Some(&running()), &claim, fence(9), NOW), occupied(Occupied::Reused));
}

#[test]
fn claiming_again_never_shortens_the_lease() {
    let claim = Claim { owner: owner(1), lease: TICK, ..claim() };
    let (_, change) = rules::claim(Some(&running()), &claim, fence(9), NOW);
    assert_eq!(change, Change::Put(running()));
}

#[test]
fn a_lease_lives_to_its_last_millisecond() {
    let claim = claim();
    let last = Record { on_unknown: OnUnknown::Rerun, ..record(in_flight(Duration::ZERO), LEASE) };
    let told = rules::claim(Some(&last), &claim, fence(9), NOW);
    assert_eq!(told, occupied(Occupied::InFlight { lease_left: Duration::ZERO }));
    let told = rules::claim(Some(&last), &claim, fence(9), NOW.after(TICK)).0;
    assert_eq!(told, Claimed::Granted(Grant { fence: fence(9), attempt: 3 }));
}

#[test]
fn an_attempt_never_overflows() {
    let most = Record { attempt: u32::MAX, ..released() };
    let told = rules::claim(Some(&most), &claim(), fence(9), NOW).0;
    assert_eq!(told, Claimed::Granted(Grant { fence: fence(9), attempt: u32::MAX }));
}
