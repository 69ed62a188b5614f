//! The kit can fail: a store with a fault is caught, by the case that should catch it.
#![allow(clippy::unwrap_used, reason = "a test may panic")]

mod store;

use std::{
    panic::{AssertUnwindSafe, catch_unwind, set_hook},
    sync::{Arc, Mutex, Once},
    time::Duration,
};

use async_trait::async_trait;
use semel_core::{State, Store};
use semel_testkit::{
    clock::ManualClock,
    conform,
    differential::find_difference,
    fixture::{Durable, Fixture, Restorable},
    seed,
};
use store::{Fault, FaultyStore, Shared};

/// Which case catches which fault, and whether histories drawn at random find it too.
const TABLE: &[(Fault, &str, Histories)] = &[
    (Fault::AnswerTruncated, "answers::a_mebibyte_is_replayed", Blind),
    (Fault::AttemptForgotten, "cells::a_released_key_is_granted_as_the_next_attempt", Find),
    (Fault::BatchNeverSaysMore, "upkeep::a_sweep_keeps_its_limit", Blind),
    (Fault::CallerIgnored, "claim::callers_never_meet", Blind),
    (Fault::CompletedReplaced, "cells::a_completed_record_takes_no_other_answer", Find),
    (Fault::CompleteUnfenced, "fence::a_stale_fence_completes_nothing", Find),
    (Fault::DeletesBlindly, "operator::forgetting_loses_against_a_late_answer", Find),
    (Fault::DetailsLost, "details::the_longest_details_are_kept", Find),
    (
        Fault::DuplicateGranted,
        "forgotten::a_stale_duplicate_claim_after_a_forget_creates_no_ghost",
        Find,
    ),
    (Fault::EpochKept, "operator::an_act_raises_the_epoch_for_all_handles", Find),
    (Fault::EpochOfTheHandle, "operator::an_act_raises_the_epoch_for_all_handles", Blind),
    (Fault::FailedTooEarly, "upkeep::a_failed_record_never_looks_completed_before_it_is", Find),
    (Fault::EpochFallsAtRestore, "restore::the_epoch_rises_across_a_restore", Blind),
    (Fault::FenceFallsAtRestore, "restore::fences_rise_across_a_restore", Blind),
    (Fault::FenceFallsAtRestore, "restore::a_zombie_of_the_lost_time_writes_nothing", Blind),
    (Fault::FenceFallsInANewStore, "restore::fences_rise_in_the_place_of_a_lost_store", Blind),
    (Fault::FenceOfTheRecord, "fence::a_fence_does_not_fall_after_forgetting", Find),
    (Fault::FenceRestarts, "durable::fences_rise_across_a_restart_after_a_sweep", Blind),
    (Fault::ForgottenKeepsItsFingerprint, "cells::a_forgotten_key_takes_another_fingerprint", Find),
    (Fault::HeldForEver, "held::an_unresolved_hold_fails_after_hold_for", Find),
    (Fault::HeldExpires, "retention::a_held_record_never_expires", Find),
    (Fault::HoldUnfenced, "fence::a_stale_fence_holds_nothing", Find),
    (Fault::InFlightLostAtRestart, "durable::a_granted_claim_outlives_the_process", Blind),
    (Fault::InFlightSwept, "retention::a_running_record_never_expires", Find),
    (Fault::KeyFolded, "claim::keys_are_compared_byte_by_byte", Blind),
    (Fault::LeaseEndsEarly, "takeover::a_lease_lives_to_its_last_millisecond", Find),
    (Fault::LeaseIsRetention, "cells::a_lapsed_hold_answers_held", Find),
    (Fault::LimitIgnored, "upkeep::a_reaper_keeps_its_limit", Blind),
    (Fault::ListsExpired, "list::a_listing_has_what_counts_now", Find),
    (Fault::OwnerForgotten, "cells::an_owner_that_asks_again_has_the_same_fence", Find),
    (Fault::OwnerIgnored, "races::of_many_claims_one_is_granted", Find),
    (Fault::OwnerUnchecked, "forgotten::another_owner_with_the_same_fence_writes_nothing", Find),
    (Fault::PageSkipsOne, "list::every_record_is_on_one_page", Find),
    (Fault::ReapsRerun, "cells::a_reaper_leaves_a_lapsed_rerun", Find),
    (Fault::ReadThenSwap, "races::a_lapsed_lease_is_taken_over_once", Blind),
    (Fault::ReadThenSwap, "races::of_many_claims_one_is_granted", Blind),
    (Fault::ReadThenSwap, "races::no_two_owners_run_at_once", Blind),
    (Fault::ReasonLost, "details::a_record_tells_when_it_ended_and_why", Find),
    (Fault::ReleasedForADay, "forgotten::what_was_refused_or_forgotten_is_kept_for_an_hour", Find),
    (Fault::ReleaseUnfenced, "fence::a_stale_fence_releases_nothing", Find),
    (Fault::RenewShortens, "takeover::a_renewal_never_shortens_the_lease", Find),
    (Fault::RenewUnfenced, "fence::a_stale_fence_renews_nothing", Find),
    (Fault::RepeatLost, "cells::a_repeated_complete_is_applied", Find),
    (Fault::ResolveKeepsFence, "held::the_operator_beats_a_late_answer", Find),
    (Fault::RetentionFromTheEnd, "retention::retention_counts_from_the_claim", Find),
    (Fault::SeenIgnored, "operator::an_act_loses_against_a_newer_claim", Find),
    (
        Fault::TakeoverUnchecked,
        "cells::a_lapsed_lease_is_not_retaken_with_another_fingerprint",
        Find,
    ),
    (Fault::TwoClocks, "takeover::a_lease_shrinks_with_time", Find),
    (Fault::UntriedCounted, "cells::a_run_that_never_began_does_not_count", Find),
    (Fault::WakesHeld, "cells::a_held_key_is_not_granted", Find),
];

/// Whether histories can find a fault: some need many records, bytes or real concurrency.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Histories {
    Find,
    Blind,
}
use Histories::{Blind, Find};

/// How many histories are drawn to find a fault.
const HISTORIES: u32 = 2_000;

#[test]
fn a_sound_store_passes_every_case() -> Result<(), String> {
    let plain = conform::cases().into_iter().map(|case| case.name);
    let durable = conform::durable_cases().into_iter().map(|case| case.name);
    let restorable = conform::restorable_cases().into_iter().map(|case| case.name);
    let all = plain.chain(durable).chain(restorable);
    let failed: Vec<_> = all.filter(|case| fails(Fault::Nothing, case)).collect();
    none("fails although nothing is wrong", &failed)
}

#[test]
fn every_fault_is_caught_by_its_case() -> Result<(), String> {
    let missed: Vec<_> = TABLE
        .iter()
        .filter(|(fault, case, _)| !fails(*fault, case))
        .map(|(fault, case, _)| format!("{fault:?} by {case}"))
        .collect();
    none("is not caught", &missed)
}

#[test]
fn histories_find_what_they_can_see() -> Result<(), String> {
    silence();
    let visible = TABLE.iter().filter(|(_, _, histories)| *histories == Find);
    let missed: Vec<_> = visible
        .filter(|(fault, ..)| difference(*fault, seed()).is_none())
        .map(|(fault, ..)| format!("{fault:?}"))
        .collect();
    none("is not found", &missed)
}

#[test]
fn a_difference_is_shown_as_a_short_history() -> Result<(), String> {
    silence();
    // One seed, always the same: how far a history shrinks differs a little between seeds.
    let seed = 7;
    let shown = difference(Fault::CompletedReplaced, seed).ok_or("nothing was found")?;
    // A claim, its answer and another answer show the fault; there are ways with one step more.
    let short = (3..=5).any(|count| shown.contains(&format!("a history of {count} operations:")));
    let readable = short && shown.contains("store: Applied") && shown.contains("rules: Lost");
    let repeatable = shown.ends_with(&format!("SEMEL_SEED={seed}"));
    if readable && repeatable { Ok(()) } else { Err(shown) }
}

#[test]
fn a_difference_is_repeated_by_its_seed() -> Result<(), String> {
    silence();
    let [first, again] = [7, 7].map(|seed| difference(Fault::EpochKept, seed));
    let first = first.ok_or("nothing was found")?;
    if Some(&first) == again.as_ref() { Ok(()) } else { Err(format!("{first}\n{again:?}")) }
}

fn difference(fault: Fault, seed: u64) -> Option<String> {
    find_difference(async || Faulty::new(fault), HISTORIES, seed)
}

fn none<T: std::fmt::Debug>(what: &str, names: &[T]) -> Result<(), String> {
    if names.is_empty() { Ok(()) } else { Err(format!("{what}: {names:#?}")) }
}

fn fails(fault: Fault, case: &str) -> bool {
    silence();
    let make = async || Faulty::new(fault);
    catch_unwind(AssertUnwindSafe(|| {
        if case.starts_with("durable::") {
            conform::run_durable(case, make);
        } else if case.starts_with("restore::") {
            conform::run_restorable(case, make);
        } else {
            conform::run(case, make);
        }
    }))
    .is_err()
}

/// Failures are what these tests are after, so their stories are not printed. The tests themselves
/// report by what they return.
fn silence() {
    static SILENCE: Once = Once::new();
    SILENCE.call_once(|| set_hook(Box::new(|_| {})));
}

/// Where fences begin: a day of 2027, in microseconds.
const FIRST_FENCE: u64 = 1_800_000_000_000_000;

/// A store with a fault, whose records outlive the handle.
struct Faulty {
    fault: Fault,
    shared: Arc<Mutex<Shared>>,
    clock: ManualClock,
    store: Mutex<Arc<FaultyStore>>,
    backup: Mutex<Shared>,
}

impl Faulty {
    fn new(fault: Fault) -> Self {
        let shared = Shared { fence: FIRST_FENCE, ..Shared::default() };
        let (shared, clock) = (Arc::new(Mutex::new(shared)), ManualClock::new());
        let store = Mutex::new(open(fault, &shared, &clock, Duration::ZERO));
        Self { fault, shared, clock, store, backup: Mutex::default() }
    }
}

fn open(
    fault: Fault,
    shared: &Arc<Mutex<Shared>>,
    clock: &ManualClock,
    skew: Duration,
) -> Arc<FaultyStore> {
    let (shared, clock) = (Arc::clone(shared), clock.clone());
    Arc::new(FaultyStore { fault, shared, clock, skew, epoch: Mutex::default() })
}

#[async_trait]
impl Fixture for Faulty {
    fn store(&self) -> Arc<dyn Store> {
        Arc::<FaultyStore>::clone(&self.store.lock().unwrap()) as Arc<dyn Store>
    }

    async fn another(&self) -> Arc<dyn Store> {
        open(self.fault, &self.shared, &self.clock, Duration::from_millis(3))
    }

    async fn advance(&self, by: Duration) {
        self.clock.advance(by);
    }
}

#[async_trait]
impl Durable for Faulty {
    async fn reopen(&self) {
        let mut shared = self.shared.lock().unwrap();
        if self.fault == Fault::FenceRestarts {
            let highest = shared.records.values().map(|record| record.fence.get()).max();
            shared.fence = highest.unwrap_or_default();
        }
        if self.fault == Fault::InFlightLostAtRestart {
            shared.records.retain(|_, record| !matches!(record.state, State::InFlight { .. }));
        }
        *self.store.lock().unwrap() = open(self.fault, &self.shared, &self.clock, Duration::ZERO);
    }
}

#[async_trait]
impl Restorable for Faulty {
    async fn back_up(&self) {
        *self.backup.lock().unwrap() = self.shared.lock().unwrap().clone();
    }

    async fn restore(&self) {
        let mut shared = self.shared.lock().unwrap();
        let lost = std::mem::replace(&mut *shared, self.backup.lock().unwrap().clone());
        if self.fault != Fault::FenceFallsAtRestore {
            shared.fence = lost.fence;
        }
        if self.fault != Fault::EpochFallsAtRestore {
            shared.epoch = lost.epoch + 1;
        }
        *self.store.lock().unwrap() = open(self.fault, &self.shared, &self.clock, Duration::ZERO);
    }

    async fn replace_with_empty(&self) {
        let mut shared = self.shared.lock().unwrap();
        let lost = std::mem::take(&mut *shared);
        if self.fault != Fault::FenceFallsInANewStore {
            shared.fence = lost.fence;
        }
        *self.store.lock().unwrap() = open(self.fault, &self.shared, &self.clock, Duration::ZERO);
    }
}
