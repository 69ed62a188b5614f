//! Velocity limits, compared with a model that remembers everything.
#![allow(clippy::unwrap_used, reason = "a test may panic")]

use std::{collections::BTreeMap, time::Duration};

use proptest::prelude::*;
use semel_core::{
    Answer, ClaimLimits, Claimant, Fence, Finish, Limit, OwnerToken, Reason, Record, Release,
    State, StatusSet, StoreTime, StoredResponse, limit::*, rules::Change, settlement::Settlement,
};

const WINDOW: Duration = Duration::from_secs(10);

fn at(seconds: u64) -> StoreTime {
    StoreTime::from_millis(seconds * 1000)
}

fn key(number: u8) -> LimitKey {
    LimitKey::from_bytes([number; 16])
}

fn operation(number: u8) -> OperationId {
    OperationId::from_bytes([number; 16])
}

fn limits(max: u16, counted: Counted) -> ClaimLimits {
    let mut limit = Limit::new(key(1), max, WINDOW);
    limit.counted = counted;
    ClaimLimits::new([limit]).unwrap()
}

/// A record that reserved a unit when it was claimed.
fn reserved(claimed_at: StoreTime) -> Record {
    let by = Claimant::new(Fence::new(1).unwrap(), OwnerToken::from_bytes([1; 16]));
    let mut record = Record::new(by, claimed_at, State::InFlight { lease_until: claimed_at });
    record.limits = LimitKeys::new([key(1)]);
    record
}

fn answer(status: u16) -> Answer {
    Answer::response(&StoredResponse { status, ..StoredResponse::default() })
}

/// How an operation of the model ends.
#[derive(Clone, Copy, Debug)]
enum End {
    NotSent,
    Refused,
    Status(u16),
}

impl End {
    fn finish(self) -> Finish {
        match self {
            Self::NotSent => Finish::release(Release::NotSent, Reason::NotSent),
            Self::Refused => Finish::release(Release::Refused, Reason::Answered(429)),
            Self::Status(status) => Finish::complete(answer(status)),
        }
    }

    fn settlement(self, claimed_at: StoreTime) -> Settlement {
        let state = match self {
            Self::NotSent | Self::Refused => State::Released,
            Self::Status(status) => State::Completed(answer(status)),
        };
        let before = reserved(claimed_at);
        let mut after = before.clone();
        (after.state, after.limits) = (state, LimitKeys::NONE);
        Settlement::of(&before, &Change::Put(after), Some(&self.finish())).unwrap()
    }

    fn counts(self, counted: &Counted) -> bool {
        match (counted, self) {
            (Counted::Executions, Self::NotSent) => false,
            (Counted::Executions, _) => true,
            (Counted::Declined, Self::Status(status)) => (400..500).contains(&status),
            (Counted::Completed, Self::Status(status)) => status < 400,
            _ => false,
        }
    }
}

/// What remembers every operation.
#[derive(Debug, Default)]
struct Model {
    running: BTreeMap<u8, StoreTime>,
    counted: BTreeMap<u8, StoreTime>,
}

impl Model {
    fn units(&self, now: StoreTime) -> Vec<u8> {
        let recent = self.counted.iter().filter(|(_, at)| now < at.after(WINDOW));
        let mut units: Vec<u8> =
            recent.map(|(operation, _)| *operation).chain(self.running.keys().copied()).collect();
        units.sort_unstable();
        units.dedup();
        units
    }
}

#[derive(Clone, Debug)]
enum Step {
    Claim(u8),
    End(u8, End),
    Wait(u64),
}

fn steps() -> impl Strategy<Value = Vec<Step>> {
    let end = prop_oneof![
        Just(End::NotSent),
        Just(End::Refused),
        Just(End::Status(201)),
        Just(End::Status(402)),
        Just(End::Status(500)),
    ];
    let step = prop_oneof![
        3 => (0_u8..8).prop_map(Step::Claim),
        3 => (0_u8..8, end).prop_map(|(operation, end)| Step::End(operation, end)),
        1 => (1_u64..8).prop_map(Step::Wait),
    ];
    prop::collection::vec(step, 1..80)
}

fn counted() -> impl Strategy<Value = Counted> {
    prop_oneof![Just(Counted::Executions), Just(Counted::Declined), Just(Counted::Completed)]
}

proptest! {
    #[test]
    fn a_counter_admits_as_a_model_that_forgets_nothing(
        steps in steps(), max in 1_u16..5, counted in counted(),
    ) {
        let limits = limits(max, counted.clone());
        let (mut counters, mut model, mut now) = (CounterSet::default(), Model::default(), at(100));
        for step in steps {
            match step {
                Step::Wait(seconds) => now = now.after(Duration::from_secs(seconds)),
                Step::Claim(number) if !model.running.contains_key(&number) => {
                    let units = model.units(now);
                    let has_room = units.contains(&number) || units.len() < usize::from(max);
                    let admitted = admit(&limits, operation(number), &mut counters, now);
                    prop_assert_eq!(admitted.is_ok(), has_room);
                    if let Err(LimitRefusal { frees_in: Some(frees_in), .. }) = admitted {
                        let earlier = frees_in - Duration::from_millis(1);
                        prop_assert_eq!(model.units(now.after(earlier)).len(), units.len());
                        prop_assert!(model.units(now.after(frees_in)).len() < units.len());
                    }
                    if has_room {
                        model.running.insert(number, now);
                    }
                }
                Step::End(number, end) => {
                    let claimed_at = model.running.remove(&number);
                    end.settlement(claimed_at.unwrap_or(now))
                        .apply(operation(number), &mut counters, now);
                    if let Some(claimed_at) = claimed_at
                        && end.counts(&counted)
                    {
                        let at = if counted == Counted::Executions { claimed_at } else { now };
                        model.counted.insert(number, at);
                    }
                }
                Step::Claim(_) => {}
            }
            if let Some((_, counter)) = counters.changed().next() {
                let stored = LimitCounter::decode(&counter.encode());
                prop_assert_eq!(stored.as_ref(), Ok(counter));
                prop_assert!(counter.len() <= usize::from(max), "{:?}", counter);
                let full = model.units(now).len() >= usize::from(max);
                prop_assert_eq!(counter.full_until(now).is_some_and(|until| now < until), full);
            }
        }
    }

    #[test]
    fn no_bytes_make_a_counter_panic(bytes in prop::collection::vec(any::<u8>(), 0..200)) {
        if let Ok(counter) = LimitCounter::decode(&bytes) {
            prop_assert_eq!(LimitCounter::decode(&counter.encode()), Ok(counter));
        }
    }
}

#[test]
fn every_kind_of_count_is_stored() {
    let tag = AnswerTag::new("fraud").unwrap();
    for counted in [
        Counted::Executions,
        Counted::Completed,
        Counted::Declined,
        Counted::Statuses(StatusSet::new([402, 409])),
        Counted::Tag(tag),
    ] {
        let mut counters = CounterSet::default();
        admit(&limits(3, counted), operation(1), &mut counters, at(1)).unwrap();
        let (_, counter) = counters.changed().next().unwrap();
        assert_eq!(LimitCounter::decode(&counter.encode()).as_ref(), Ok(counter));
        assert!(LimitCounter::decode(&counter.encode()[1..]).is_err());
        assert!(LimitCounter::decode(&[]).is_err());
    }
}

#[test]
fn a_counter_of_the_largest_limit_has_a_bounded_size() {
    let limits = limits(LIMIT_MAX, Counted::Executions);
    let mut counters = CounterSet::default();
    for number in 0..u32::from(LIMIT_MAX) {
        let mut bytes = [0; 16];
        bytes[..4].copy_from_slice(&number.to_be_bytes());
        admit(&limits, OperationId::from_bytes(bytes), &mut counters, at(1)).unwrap();
    }
    assert!(admit(&limits, operation(255), &mut counters, at(1)).is_err());
    let (_, counter) = counters.changed().next().unwrap();
    assert_eq!(counter.len(), usize::from(LIMIT_MAX));
    assert!(counter.encode().len() < 24 * 1024 + 100);
}

#[test]
fn a_record_that_stays_owned_settles_nothing() {
    let record = reserved(at(1));
    let mut held = record.clone();
    held.state = State::Held;
    assert_eq!(Settlement::of(&record, &Change::Put(held), None), None);
    assert_eq!(Settlement::of(&record, &Change::Put(record.clone()), None), None);
    assert_eq!(Settlement::of(&record, &Change::Keep, None), None);
    assert!(Settlement::of(&record, &Change::Delete, None).is_some());
}

#[test]
fn a_counter_expires_once_its_last_unit_has_passed() {
    let mut counters = CounterSet::default();
    admit(&limits(3, Counted::Executions), operation(1), &mut counters, at(1)).unwrap();
    let expires_at =
        |counters: &CounterSet| counters.changed().next().unwrap().1.expires_at().as_millis();
    assert_eq!(expires_at(&counters), u64::MAX, "it is reserved");
    End::Status(201).settlement(at(1)).apply(operation(1), &mut counters, at(5));
    assert_eq!(expires_at(&counters), 11_000);
}

#[test]
fn limits_of_one_claim_are_few_and_distinct() {
    let limit = |number| Limit::new(key(number), 1, WINDOW);
    assert_eq!(ClaimLimits::new([limit(1), limit(1)]), Err(ClaimLimitsError::Repeated));
    let many = (0..=u8::try_from(LIMITS_MAX).unwrap()).map(limit);
    assert_eq!(ClaimLimits::new(many), Err(ClaimLimitsError::TooMany));
    assert!(ClaimLimits::new([]).unwrap().is_empty());
    let keys = ClaimLimits::new([limit(2), limit(1)]).unwrap().keys();
    assert_eq!(keys.iter().collect::<Vec<_>>(), [key(1), key(2)], "in the order of locks");
    assert_eq!(LimitKeys::from_bytes(&keys.to_bytes().unwrap()), Some(keys));
    assert_eq!(LimitKeys::from_bytes(&[1; 15]), None);
}

#[test]
fn a_tag_is_short_and_visible() {
    assert!(AnswerTag::new("declined-by-bank").is_some());
    for tag in ["", "two words", "tab\t", "ü", &"x".repeat(TAG_BYTES_MAX + 1)] {
        assert_eq!(AnswerTag::new(tag), None, "{tag}");
    }
}
