//! What follows from a read.

use std::time::Duration;

use semel_core::{
    ProcessTime, StoredResponse,
    canonical::Pointer,
    reconcile::{ReadFinding, ReconcilePlan, ReconcileProgress, ReconcileStep},
};

const EVERY: Duration = Duration::from_secs(30);
const WINDOW: Duration = Duration::from_secs(600);

const PLAN: ReconcilePlan = ReconcilePlan {
    every: EVERY,
    give_up: Duration::from_secs(3600),
    settles_within: None,
    fenced: false,
};

fn at(seconds: u64) -> ProcessTime {
    ProcessTime::from_millis(seconds * 1000)
}

fn found() -> ReadFinding {
    let (headers, trailers) = (Vec::new(), Vec::new());
    ReadFinding::Found(StoredResponse { status: 201, headers, body: "{}".into(), trailers })
}

fn differs() -> ReadFinding {
    ReadFinding::Differs(Pointer::parse("/amount").unwrap())
}

fn findings() -> [ReadFinding; 5] {
    [found(), ReadFinding::TwoFound, ReadFinding::Absent, differs(), ReadFinding::Unclear]
}

fn read(
    progress: &mut ReconcileProgress,
    plan: &ReconcilePlan,
    finding: &ReadFinding,
    seconds: u64,
    is_fenced: bool,
) -> ReconcileStep {
    let held_for = Duration::from_secs(seconds);
    progress.on_read(plan, finding, (at(seconds), at(seconds)), held_for, is_fenced)
}

#[test]
fn absence_alone_never_releases() {
    let mut progress = ReconcileProgress::default();
    for seconds in (0..3600).step_by(30) {
        let step = read(&mut progress, &PLAN, &ReadFinding::Absent, seconds, seconds % 60 == 0);
        assert_eq!(step, ReconcileStep::ReadAgain(EVERY), "after {seconds} s");
    }
    let step = read(&mut progress, &PLAN, &ReadFinding::Absent, 3600, true);
    assert_eq!(step, ReconcileStep::GiveUp);
}

#[test]
fn absence_at_both_ends_of_the_window_releases() {
    let plan = ReconcilePlan { settles_within: Some(WINDOW), ..PLAN };
    let mut progress = ReconcileProgress::default();
    assert_eq!(
        read(&mut progress, &plan, &ReadFinding::Absent, 10, false),
        ReconcileStep::ReadAgain(EVERY)
    );
    // The last read before the end is followed by one right behind it.
    let near = read(&mut progress, &plan, &ReadFinding::Absent, 600, false);
    assert_eq!(near, ReconcileStep::ReadAgain(Duration::from_millis(10_002)));
    let held_for = Duration::from_secs(610);
    let on_the_end = (at(610), at(611));
    let step = progress.on_read(&plan, &ReadFinding::Absent, on_the_end, held_for, false);
    assert!(matches!(step, ReconcileStep::ReadAgain(_)), "{step:?}");
    assert_eq!(
        read(&mut progress, &plan, &ReadFinding::Absent, 611, false),
        ReconcileStep::Release
    );
}

#[test]
fn the_window_begins_with_the_answer_and_ends_before_the_read() {
    let plan = ReconcilePlan { settles_within: Some(WINDOW), ..PLAN };
    let mut progress = ReconcileProgress::default();
    let slow = (at(0), at(100));
    let _ = progress.on_read(&plan, &ReadFinding::Absent, slow, Duration::ZERO, false);
    // Sent within the window, answered after it: the effect may have come between the two.
    let (sent, held_for) = ((at(699), at(800)), Duration::from_secs(700));
    let step = progress.on_read(&plan, &ReadFinding::Absent, sent, held_for, false);
    assert!(matches!(step, ReconcileStep::ReadAgain(_)), "{step:?}");
}

#[test]
fn a_window_restarts_after_an_operation_was_seen_and_not_after_an_unclear_answer() {
    let plan = ReconcilePlan { settles_within: Some(WINDOW), ..PLAN };
    for (between, released) in [(ReadFinding::Unclear, true), (differs(), false)] {
        let mut progress = ReconcileProgress::default();
        let _ = read(&mut progress, &plan, &ReadFinding::Absent, 0, false);
        let _ = read(&mut progress, &plan, &between, 300, false);
        let step = read(&mut progress, &plan, &ReadFinding::Absent, 601, false);
        assert_eq!(step == ReconcileStep::Release, released, "{between:?}: {step:?}");
    }
}

#[test]
fn a_fenced_read_releases_at_once_and_an_unfenced_one_does_not() {
    let plan = ReconcilePlan { fenced: true, ..PLAN };
    let fresh = ReconcileProgress::default;
    assert_eq!(read(&mut fresh(), &plan, &ReadFinding::Absent, 0, true), ReconcileStep::Release);
    let step = read(&mut fresh(), &plan, &ReadFinding::Absent, 0, false);
    assert_eq!(step, ReconcileStep::ReadAgain(EVERY));
}

/// Every sequence of four findings under every plan: a release needs its proof, a completion its
/// finding, and nothing else changes a record.
#[test]
fn in_every_sequence_a_release_has_a_proof() {
    let plans = [None, Some(Duration::from_secs(50))].into_iter().flat_map(|settles_within| {
        [false, true].map(|fenced| ReconcilePlan { settles_within, fenced, ..PLAN })
    });
    let mut releases = 0;
    for plan in plans {
        for sequence in 0..10_u32.pow(4) {
            let mut progress = ReconcileProgress::default();
            let mut absent_since = None;
            for step in 0..4 {
                let choice = usize::try_from(sequence / 10_u32.pow(step) % 10).unwrap();
                let (finding, is_fenced) = (&findings()[choice % 5], choice >= 5);
                let seconds = u64::from(step) * 30;
                let decided = read(&mut progress, &plan, finding, seconds, is_fenced);
                match finding {
                    ReadFinding::Absent => absent_since = absent_since.or(Some(seconds)),
                    ReadFinding::Differs(_) => absent_since = None,
                    ReadFinding::Found(_) | ReadFinding::TwoFound | ReadFinding::Unclear => {}
                }
                match decided {
                    ReconcileStep::Complete(_) => assert_eq!(*finding, found()),
                    ReconcileStep::StopAtTwo => assert_eq!(*finding, ReadFinding::TwoFound),
                    ReconcileStep::Release => {
                        releases += 1;
                        assert_eq!(*finding, ReadFinding::Absent);
                        let by_fence = plan.fenced && is_fenced;
                        let by_time = plan.settles_within.is_some_and(|window| {
                            seconds - absent_since.unwrap() > window.as_secs()
                        });
                        assert!(by_fence || by_time, "{plan:?} {sequence}");
                    }
                    ReconcileStep::ReadAgain(wait) => {
                        assert!(wait <= EVERY && !wait.is_zero());
                        continue;
                    }
                    ReconcileStep::GiveUp => panic!("it was held for 90 s"),
                }
                break;
            }
        }
    }
    assert!(releases > 0);
}
