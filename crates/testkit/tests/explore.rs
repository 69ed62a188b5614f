//! The rules and the request machine, in every order of events; and each planted bug, found.
#![allow(
    clippy::panic,
    clippy::expect_used,
    clippy::print_stdout,
    reason = "a test panics, and the counts and stories are for its reader"
)]

use std::{env, fmt::Write, fs, path::Path};

use semel_core::OnUnknown;
use semel_testkit::explore::{
    Bug, ExplorationBounds, Explored, Invariant, Setup, Violation, explore,
};

// === the system as it is ===

/// Nothing goes wrong but time.
const CALM: ExplorationBounds =
    ExplorationBounds { ticks: 0, crashes: 0, losses: 0, slow: 0, late: 0, acts: 0 };

/// One kind of bad luck at a time, each for as long as a test may take.
const TWO_REQUESTS: [ExplorationBounds; 5] = [
    ExplorationBounds { ticks: 5, crashes: 1, ..CALM },
    ExplorationBounds { ticks: 3, losses: 1, ..CALM },
    ExplorationBounds { ticks: 3, slow: 1, ..CALM },
    ExplorationBounds { ticks: 3, late: 1, ..CALM },
    ExplorationBounds { ticks: 4, acts: 1, ..CALM },
];

/// Several kinds at once, for a moment.
const SHORT: [ExplorationBounds; 3] = [
    ExplorationBounds { ticks: 2, crashes: 1, slow: 1, ..CALM },
    ExplorationBounds { ticks: 2, crashes: 1, late: 1, ..CALM },
    ExplorationBounds { ticks: 2, losses: 1, acts: 1, ..CALM },
];

/// Several kinds at once, for longer.
const TORTURE: [ExplorationBounds; 5] = [
    ExplorationBounds { ticks: 4, crashes: 1, losses: 1, slow: 1, ..CALM },
    ExplorationBounds { ticks: 5, losses: 1, ..CALM },
    ExplorationBounds { ticks: 4, slow: 1, late: 1, ..CALM },
    ExplorationBounds { ticks: 4, crashes: 1, acts: 1, ..CALM },
    ExplorationBounds { ticks: 3, losses: 2, ..CALM },
];

fn sound(setup: &Setup) {
    let Explored { worlds, actions, depth, violation } = explore(setup);
    println!("{setup:?}: {worlds} worlds, {actions} actions, {depth} deep");
    if let Some(violation) = violation {
        panic!("{setup:?}\n{violation}");
    }
}

fn two_and_three_requests(on_unknown: OnUnknown) {
    let two = Setup::new(on_unknown);
    for bounds in TWO_REQUESTS {
        sound(&Setup { bounds, ..two });
    }
    let bounds = ExplorationBounds { ticks: 2, crashes: 1, losses: 1, ..CALM };
    sound(&Setup { bounds, joins: true, ..two });
    let three = Setup { requests: 3, bounds: ExplorationBounds { ticks: 3, ..CALM }, ..two };
    sound(&three);
    sound(&Setup {
        joins: true,
        bounds: ExplorationBounds { ticks: 1, crashes: 1, ..CALM },
        ..three
    });
}

/// What may run twice there is not counted; but no fence is ignored, no client left without a reply
/// and no claim abandoned.
#[test]
fn every_order_of_events_is_sound_where_the_route_passes_its_store_by() {
    for on_unknown in [OnUnknown::Hold, OnUnknown::Rerun, OnUnknown::Fail] {
        let passing = Setup { passes: true, ..Setup::new(on_unknown) };
        for bounds in [
            ExplorationBounds { ticks: 3, losses: 1, ..CALM },
            ExplorationBounds { ticks: 3, late: 1, ..CALM },
            ExplorationBounds { ticks: 2, crashes: 1, losses: 1, ..CALM },
        ] {
            sound(&Setup { bounds, ..passing });
        }
        let bounds = ExplorationBounds { ticks: 2, losses: 1, ..CALM };
        sound(&Setup { bounds, joins: true, ..passing });
    }
}

#[test]
fn every_order_of_events_is_sound_where_the_route_says_hold() {
    two_and_three_requests(OnUnknown::Hold);
}

#[test]
fn every_order_of_events_is_sound_where_the_route_says_rerun() {
    two_and_three_requests(OnUnknown::Rerun);
}

#[test]
fn every_order_of_events_is_sound_where_the_route_says_fail() {
    two_and_three_requests(OnUnknown::Fail);
}

/// Seconds; minutes and some gigabytes where `SEMEL_TORTURE` is set.
#[test]
fn torture_finds_every_order_of_events_sound() {
    let torture = semel_testkit::torture();
    let several: &[ExplorationBounds] = if torture { &TORTURE } else { &SHORT };
    for on_unknown in [OnUnknown::Hold, OnUnknown::Rerun, OnUnknown::Fail] {
        let two = Setup::new(on_unknown);
        for bounds in several {
            sound(&Setup { bounds: *bounds, ..two });
        }
        if !torture {
            continue;
        }
        let bounds = ExplorationBounds { ticks: 3, crashes: 1, losses: 1, ..CALM };
        sound(&Setup { bounds, joins: true, ..two });
        let three = Setup { requests: 3, bounds: ExplorationBounds { ticks: 4, ..CALM }, ..two };
        sound(&three);
        sound(&Setup { bounds: ExplorationBounds { ticks: 3, crashes: 1, ..CALM }, ..three });
        sound(&Setup { bounds: ExplorationBounds { ticks: 1, losses: 1, ..CALM }, ..three });
        sound(&Setup {
            joins: true,
            bounds: ExplorationBounds { ticks: 2, crashes: 1, ..CALM },
            ..three
        });
    }
}

// === the planted bugs ===

fn found(bug: Bug) -> Violation {
    explore(&bug.setup()).violation.expect("the bug is found")
}

/// The bug breaks this invariant first; without it, the same world is sound.
fn breaks(bug: Bug, invariant: Invariant) {
    let violation = found(bug);
    println!("{}\n{violation}", bug.sentence());
    assert_eq!(violation.invariant, invariant);
}

#[test]
fn an_unfenced_complete_lets_a_zombie_write() {
    breaks(Bug::CompleteUnfenced, Invariant::ZombiesAreSilent);
}

#[test]
fn an_unfenced_release_lets_a_zombie_free_the_record() {
    breaks(Bug::ReleaseUnfenced, Invariant::ZombiesAreSilent);
}

#[test]
fn a_takeover_in_two_steps_loses_a_renewal() {
    breaks(Bug::TakeoverInTwoSteps, Invariant::OneRunsAtATime);
}

#[test]
fn without_its_token_an_owner_waits_for_itself() {
    breaks(Bug::OwnerTokenIgnored, Invariant::GrantsAreNotAbandoned);
}

#[test]
fn a_lease_counted_from_the_reply_has_two_owners() {
    breaks(Bug::LeaseFromReply, Invariant::OneRunsAtATime);
}

#[test]
fn a_waiter_that_takes_over_is_noticed() {
    breaks(Bug::WaiterTakesOver, Invariant::WaitersWait);
}

#[test]
fn a_held_record_that_expires_is_noticed() {
    breaks(Bug::HeldExpires, Invariant::UnknownStays);
}

#[test]
fn an_operator_who_acts_blindly_undoes_a_newer_truth() {
    breaks(Bug::ActIsBlind, Invariant::ActsAreNotBlind);
}

#[test]
fn a_fence_counted_in_the_record_repeats() {
    breaks(Bug::FenceRestarts, Invariant::FencesRise);
}

#[test]
fn an_answer_acknowledged_early_is_not_in_the_record() {
    breaks(Bug::AcknowledgedEarly, Invariant::AcknowledgedStays);
}

#[test]
fn a_broken_execution_taken_for_an_unreached_one_charges_twice() {
    breaks(Bug::BrokenTakenForUnreached, Invariant::OneEffect);
}

#[test]
fn a_lease_that_never_lapses_blocks_its_key() {
    breaks(Bug::LeaseNeverLapses, Invariant::LapseIsSettled);
}

#[test]
fn a_swallowed_error_leaves_a_client_without_a_reply() {
    breaks(Bug::ErrorSwallowed, Invariant::EveryClientIsAnswered);
}

#[test]
fn every_invariant_is_broken_by_some_bug() {
    let mut broken: Vec<_> = Bug::ALL.iter().map(|bug| found(*bug).invariant).collect();
    broken.sort_unstable();
    broken.dedup();
    assert_eq!(broken, Invariant::ALL);
}

// === the stories, for readers ===

const PREFACE: &str = "\
# Failures that the laws prevent

The explorer in `crates/testkit` tries every order of events at one key: requests, network faults,
crashes, the passage of time, and an operator. For each bug that was planted on purpose, this page
shows the shortest sequence that breaks a promise of Semel. A lease is two ticks of time, retention
is three; A and B are two requests with the same key. This page is generated:
`SEMEL_BLESS=1 cargo test -p semel-testkit --test explore`.
";

fn stories() -> String {
    let mut page = PREFACE.to_owned();
    for bug in Bug::ALL {
        let Violation { invariant, story } = found(*bug);
        let on_unknown = match bug.setup().on_unknown {
            OnUnknown::Hold => "hold",
            OnUnknown::Rerun => "rerun",
            OnUnknown::Fail => "fail",
        };
        let (mistake, promise) = (bug.sentence(), invariant.sentence());
        write!(
            page,
            "\n## {mistake}\n\n{story}\nBroken with `on_unknown = \"{on_unknown}\"`: *{promise}*\n"
        )
        .expect("a string takes everything");
    }
    page
}

#[test]
fn the_page_of_stories_is_fresh() {
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../docs/stories.md");
    let stories = stories();
    if env::var_os("SEMEL_BLESS").is_some() {
        fs::create_dir_all(path.parent().expect("a folder")).expect("the folder is made");
        fs::write(&path, &stories).expect("the page is written");
    }
    let written = fs::read_to_string(&path).expect("the page is there");
    assert!(written == stories, "docs/stories.md is out of date: regenerate it with SEMEL_BLESS=1");
}
