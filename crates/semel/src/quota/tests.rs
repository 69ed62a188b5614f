//! What is counted, for how long, and within which bounds.

use std::time::Duration;

use semel_core::{Answer, Caller, DiskSpace, Fingerprint, Key, OwnerToken, RecordId, Scope};

use super::*;
use crate::per_caller::SHARDS;

const HOUR: u64 = 3600;

fn claim(caller: &str, retention: u64) -> Claim {
    let caller = Caller::new(caller).unwrap();
    let id = RecordId::new(Scope::new("s").unwrap(), caller, Key::new("k").unwrap());
    let fingerprint = Fingerprint::of_parts("test", &[]);
    let mut claim = Claim::new(id, fingerprint, OwnerToken::from_bytes([1; 16]));
    claim.retention = Duration::from_secs(retention);
    claim
}

fn at(seconds: u64) -> ProcessTime {
    ProcessTime::from_millis(seconds * 1000)
}

fn quota(records_per_caller: u64, held_per_caller: u64) -> QuotaTracker {
    QuotaTracker::new(Quotas { records_per_caller, held_per_caller, ..Quotas::default() })
}

fn held(claim: &Claim, number: u64) -> CallerMap<u64> {
    [((&ScopedCallerRef::of(&claim.id)).into(), number)].into_iter().collect()
}

const COMPLETE: fn() -> RecordAction = || RecordAction::Complete(Answer::failed());
const REFUSED: RecordAction = RecordAction::Release(Release::Refused);

#[test]
fn a_caller_has_as_many_records_as_it_may_until_they_expire() {
    let quota = quota(3, u64::MAX);
    let (ada, bob) = (claim("ada", 24 * HOUR), claim("bob", 24 * HOUR));
    for _ in 0..3 {
        assert_eq!(quota.refuses(ScopedCallerRef::of(&ada.id), None, at(0)), None);
        quota.count(&ada, None, &COMPLETE(), 1, at(0));
    }
    assert_eq!(
        quota.refuses(ScopedCallerRef::of(&ada.id), None, at(22 * HOUR)),
        Some(Problem::TooManyRecords)
    );
    assert_eq!(quota.refuses(ScopedCallerRef::of(&bob.id), None, at(0)), None);
    assert_eq!(quota.refuses(ScopedCallerRef::of(&ada.id), None, at(24 * HOUR)), None);
    quota.set_usage(Usage::default(), at(24 * HOUR));
    assert!(quota.callers.shards().all(|shard| shard.is_empty()));
}

#[test]
fn a_refused_record_counts_for_an_hour_and_repeated_attempts_once() {
    let quota = quota(2, u64::MAX);
    let ada = claim("ada", 24 * HOUR);
    for attempt in 1..10 {
        quota.count(&ada, None, &REFUSED, attempt, at(0));
    }
    assert_eq!(quota.refuses(ScopedCallerRef::of(&ada.id), None, at(0)), None);
    quota.count(&ada, None, &RecordAction::Forget, 1, at(0));
    assert_eq!(
        quota.refuses(ScopedCallerRef::of(&ada.id), None, at(HOUR / 2)),
        Some(Problem::TooManyRecords)
    );
    assert_eq!(quota.refuses(ScopedCallerRef::of(&ada.id), None, at(HOUR)), None);
}

#[test]
fn anonymous_callers_have_no_quota_in_common() {
    let quota = quota(1, 1);
    let mut anonymous = claim("ada", 24 * HOUR);
    anonymous.id.caller = Caller::anonymous();
    for _ in 0..3 {
        quota.count(&anonymous, None, &RecordAction::Hold, 1, at(0));
        assert_eq!(quota.refuses(ScopedCallerRef::of(&anonymous.id), None, at(0)), None);
    }
    quota.set_held(held(&anonymous, 9));
    assert_eq!(quota.refuses(ScopedCallerRef::of(&anonymous.id), None, at(0)), None);
}

/// Held records of anonymous requests, by the last byte of their address.
fn hold_anonymously(quota: &QuotaTracker, scope: &str, last: u8, number: u64) -> Claim {
    let mut anonymous = claim("ada", 24 * HOUR);
    (anonymous.id.caller, anonymous.id.scope) = (Caller::anonymous(), Scope::new(scope).unwrap());
    for _ in 0..number {
        quota.count(&anonymous, peer(last), &RecordAction::Hold, 1, at(0));
    }
    anonymous
}

fn peer(last: u8) -> Option<IpAddr> {
    Some([192, 0, 2, last].into())
}

#[test]
fn an_address_has_as_many_anonymous_held_records_as_a_caller() {
    let quota = quota(1, 2);
    let anonymous = hold_anonymously(&quota, "s", 1, 2);
    let refuses = |claim: &Claim, last| {
        quota.refuses(ScopedCallerRef::of(&claim.id), peer(last), at(HOUR)).is_some()
    };
    quota.set_usage(Usage::default(), at(HOUR));
    assert_eq!(quota.usage().caller_held, 2);
    assert!(refuses(&anonymous, 1) && !refuses(&anonymous, 2));
    let other_scope = hold_anonymously(&quota, "other", 1, 1);
    assert!(!refuses(&other_scope, 1));
    let mut named = claim("192.0.2.1", HOUR);
    assert!(!refuses(&named, 1), "a caller whose name is an address");
    named.id.caller = Caller::anonymous();
    assert!(refuses(&named, 1));
    for _ in 0..3 {
        quota.count(&anonymous, peer(2), &COMPLETE(), 1, at(HOUR));
    }
    assert!(!refuses(&anonymous, 2), "answers have the quotas of the store alone");
}

#[test]
fn an_address_is_free_again_when_held_records_are_resolved() {
    let quota = quota(u64::MAX, 3);
    let anonymous = hold_anonymously(&quota, "s", 1, 3);
    hold_anonymously(&quota, "s", 2, 1);
    let refuses = || quota.refuses(ScopedCallerRef::of(&anonymous.id), peer(1), at(0)).is_some();
    quota.set_held(held(&anonymous, 9));
    assert!(refuses(), "other processes hold records too");
    quota.set_held(held(&anonymous, 4));
    assert!(refuses());
    quota.set_held(held(&anonymous, 3));
    assert!(!refuses());
    hold_anonymously(&quota, "s", 1, 1);
    assert!(refuses());
    quota.set_held(CallerMap::new());
    assert!(!refuses());
    quota.set_usage(Usage::default(), at(0));
    assert!(quota.addresses.shards().all(|shard| shard.is_empty()));
}

#[test]
fn a_caller_has_as_many_bytes_as_it_may_until_they_expire() {
    let limits = Quotas { bytes_per_caller: 10_000, ..Quotas::default() };
    let quota = QuotaTracker::new(limits);
    let (ada, bob) = (claim("ada", HOUR), claim("bob", HOUR));
    let answer = || RecordAction::Complete(Answer::encode(200, &[], &[], &[b'x'; 4_500]));
    quota.count(&ada, None, &answer(), 1, at(0));
    quota.count(&bob, None, &answer(), 1, at(0));
    let refuses = |claim: &Claim, now| quota.refuses(ScopedCallerRef::of(&claim.id), None, now);
    assert_eq!(refuses(&ada, at(0)), None);
    quota.count(&ada, None, &REFUSED, 1, at(0));
    quota.count(&ada, None, &answer(), 1, at(0));
    quota.set_usage(Usage::default(), at(0));
    let bytes = quota.usage().caller_bytes;
    assert!((9_768..9_900).contains(&bytes), "{bytes}");
    assert_eq!(refuses(&ada, at(0)), None);
    quota.count(&ada, None, &REFUSED, 1, at(0));
    assert_eq!(refuses(&ada, at(0)), Some(Problem::TooManyRecords));
    assert_eq!(refuses(&bob, at(0)), None);
    assert_eq!(refuses(&ada, at(HOUR)), None);
}

#[test]
fn held_records_count_until_a_listing_says_otherwise() {
    let quota = quota(u64::MAX, 2);
    let ada = claim("ada", 1);
    quota.count(&ada, None, &RecordAction::Hold, 1, at(0));
    assert_eq!(quota.refuses(ScopedCallerRef::of(&ada.id), None, at(0)), None);
    quota.count(&ada, None, &RecordAction::Hold, 1, at(0));
    assert_eq!(
        quota.refuses(ScopedCallerRef::of(&ada.id), None, at(HOUR)),
        Some(Problem::TooManyRecords)
    );
    quota.set_usage(Usage::default(), at(HOUR));
    assert_eq!(quota.usage().caller_held, 2);
    let bob = claim("bob", 1);
    quota.set_held(held(&bob, 2));
    assert_eq!(quota.refuses(ScopedCallerRef::of(&ada.id), None, at(HOUR)), None);
    assert_eq!(
        quota.refuses(ScopedCallerRef::of(&bob.id), None, at(HOUR)),
        Some(Problem::TooManyRecords)
    );
}

#[test]
fn a_store_is_full_by_records_by_bytes_or_by_its_disk() {
    let limits = Quotas { records: 10, store_bytes: 1000, disk_free_min: 50, ..Quotas::default() };
    let quota = QuotaTracker::new(limits);
    let ada = claim("ada", HOUR);
    let disk = |total, available| Some(DiskSpace { total, available });
    let full = |records, bytes, disk| {
        let mut usage = Usage::default();
        (usage.records, usage.bytes, usage.disk) = (records, bytes, disk);
        quota.set_usage(usage, at(0));
        quota.refuses(ScopedCallerRef::of(&ada.id), None, at(0)) == Some(Problem::StoreFull)
    };
    assert!(!full(None, None, None));
    assert!(!full(Some(9), Some(999), disk(10_000, 50)));
    assert!(full(Some(10), None, None));
    assert!(full(None, Some(1000), None));
    assert!(full(None, None, disk(10_000, 49)));
    assert!(!full(None, None, disk(100, 5)), "a twentieth is enough on a small disk");
    assert!(full(None, None, disk(100, 4)));
}

#[test]
fn many_callers_take_bounded_memory_and_do_not_evict_a_heavy_one() {
    let quota = quota(100, u64::MAX);
    let heavy = claim("heavy", 24 * HOUR);
    for _ in 0..100 {
        quota.count(&heavy, None, &COMPLETE(), 1, at(0));
    }
    for number in 0..200_000 {
        quota.count(&claim(&format!("c{number}"), HOUR), None, &REFUSED, 1, at(0));
    }
    let counted: usize = quota.callers.shards().map(|shard| shard.len()).sum();
    assert!(counted <= SHARDS * CALLERS_MAX, "{counted}");
    assert_eq!(
        quota.refuses(ScopedCallerRef::of(&heavy.id), None, at(0)),
        Some(Problem::TooManyRecords)
    );
}

#[test]
fn one_caller_with_many_retentions_takes_bounded_memory() {
    let quota = quota(u64::MAX - 1, u64::MAX);
    for retention in 1..10_000 {
        quota.count(&claim("ada", retention), None, &COMPLETE(), 1, at(0));
    }
    let ada = claim("ada", 1);
    let ada = ScopedCallerRef::of(&ada.id);
    let counts = quota.callers.shard(ada);
    let count = counts.get(&ada).unwrap();
    assert!(count.expiring.len() <= STEPS_MAX);
    assert!(count.records > 9_000, "{}", count.records);
}
