//! The outcome of a run, for every reply of the engine.

use semel_core::{Caller, Fence, Grant, Key, OwnerToken, ProcessTime, RecordId, Scope};

use super::*;
use crate::{Lease, clock::EngineClock};

/// How a run ended that gave 7, by what the engine replied and whether the record was lost.
fn outcome_of(reply: Reply, lost: bool, on_unknown: OnUnknown) -> Outcome<u32> {
    let scope = Scope::new("tests").unwrap();
    let id = RecordId::new(scope, Caller::anonymous(), Key::new("k").unwrap());
    let grant = Grant::new(Fence::new(1).unwrap(), 1);
    let lease = Lease::new(id, EngineClock::new(), None);
    lease.grant(grant, OwnerToken::from_bytes([1; 16]), ProcessTime::from_millis(1));
    if lost {
        lease.mark_lost();
    }
    outcome(reply, Some(OwnExecution { lease, value: Some(Ok(7)) }), on_unknown).unwrap()
}

const PROBLEMS: [Problem; 3] =
    [Problem::OutcomeUnrecorded, Problem::OutcomeUnknown, Problem::InProgress];

#[test]
fn a_recorded_run_counts_even_if_its_lease_seemed_lost() {
    for lost in [false, true] {
        let outcome = outcome_of(Reply::Ran(record::of_value(&7, 100)), lost, OnUnknown::Hold);
        assert!(matches!(outcome, Outcome::Ran(7)), "{outcome:?}");
    }
}

#[test]
fn a_run_that_could_not_be_recorded_is_unknown_and_keeps_what_it_said() {
    for problem in PROBLEMS {
        for on_unknown in [OnUnknown::Hold, OnUnknown::Rerun, OnUnknown::Fail] {
            let outcome = outcome_of(Reply::Problem(problem), false, on_unknown);
            let Outcome::Unknown(unknown) = outcome else { panic!("{problem:?}: {outcome:?}") };
            assert_eq!(unknown.report().and_then(RunReport::value), Some(&7));
            assert!(unknown.ran());
            let open = on_unknown == OnUnknown::Rerun && problem != Problem::OutcomeUnknown;
            assert_eq!(unknown.runs_again(), (!open).then_some(false), "{problem:?}");
        }
    }
}

#[test]
fn a_run_whose_record_was_taken_over_is_lost() {
    for problem in PROBLEMS {
        let outcome = outcome_of(Reply::Problem(problem), true, OnUnknown::Hold);
        let Outcome::Overtaken(lost) = outcome else { panic!("{problem:?}: {outcome:?}") };
        assert_eq!(lost.mine().value(), Some(&7));
    }
}

#[test]
fn a_run_whose_record_was_settled_without_it_is_lost() {
    let outcome = outcome_of(Reply::Replayed(Answer::failed()), false, OnUnknown::Fail);
    let Outcome::Overtaken(lost) = outcome else { panic!("{outcome:?}") };
    assert_eq!(lost.mine().value(), Some(&7));
    assert_eq!(lost.now().unwrap_err().kind(), OnceErrorKind::Failed);
}
