//! Who may write: the claimant that owns the record, named by fence and owner token.

use semel_core::{
    Claimant, Fenced, Finish, OnUnknown, Reason, Record, Release,
    rules::{self, Change},
};

use super::*;

fn lost() -> (Fenced, Change) {
    (Fenced::Lost, Change::Keep)
}

/// Every end that an owner can write.
fn finishes() -> [Finish; 7] {
    [
        Finish::complete(answer("new")),
        Finish::complete(answer("recorded")),
        Finish::release(Release::NotSent, Reason::NotSent),
        Finish::release(Release::Refused, Reason::Answered(429)),
        Finish::release(Release::Rerun, Reason::Answered(503)),
        Finish::hold(Reason::TimedOut(60_000)),
        Finish::forget(Reason::Answered(307)),
    ]
}

#[test]
fn a_renewal_extends_what_is_in_flight() {
    let renewed = |record: Record| {
        let leased = changed(record, |record| record.state = in_flight(LEASE));
        (Fenced::Applied, Change::Put(leased))
    };
    check(
        |found| rules::renew(found, by(), LEASE, NOW),
        [
            lost(),
            renewed(running()),
            renewed(lapsed(OnUnknown::Hold)),
            renewed(lapsed(OnUnknown::Rerun)),
            renewed(lapsed(OnUnknown::Fail)),
            lost(),
            lost(),
            lost(),
            lost(),
            lost(),
            lost(),
            lost(),
        ],
    );
}

#[test]
fn a_renewal_never_shortens_the_lease() {
    let (result, change) = rules::renew(Some(&running()), by(), TICK, NOW);
    assert_eq!((result, change), (Fenced::Applied, Change::Put(running())));
}

#[test]
fn another_fence_or_another_owner_writes_nothing_in_any_state() {
    let others = [
        Claimant::new(fence(1), by().owner),
        Claimant::new(fence(6), by().owner),
        Claimant::new(fence(8), by().owner),
        Claimant::new(fence(u64::MAX), by().owner),
        Claimant::new(by().fence, owner(2)),
        Claimant::new(by().fence, owner(0)),
        Claimant::new(fence(8), owner(2)),
    ];
    for (name, found) in columns() {
        let found = found.as_ref();
        for other in others {
            let result = rules::renew(found, other, LEASE, NOW);
            assert_eq!(result, lost(), "renew, {name}, {other:?}");
            for finish in finishes() {
                let result = rules::finish(found, other, &finish, NOW);
                assert_eq!(result, lost(), "{finish:?}, {name}, {other:?}");
            }
        }
    }
}
