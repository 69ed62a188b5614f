//! What the caller of a run is told, for every reply that a run can get.

use semel_core::{Caller, Fence, Grant, Key, OwnerToken, ProcessTime, RecordId, Scope};

use super::*;
use crate::clock::Clock;

/// How a run ended that gave 7, by what the engine replied and whether the record was lost.
fn told(reply: Reply, lost: bool, on_unknown: OnUnknown) -> Outcome<u32> {
    let scope = Scope::new("tests").unwrap();
    let id = RecordId::new(scope, Caller::anonymous(), Key::new("k").unwrap());
    let grant = Grant::new(Fence::new(1).unwrap(), 1);
    let lease = Lease::new(id, Clock::new());
    lease.grant(grant, OwnerToken::from_bytes([1; 16]), ProcessTime::from_millis(1));
    if lost {
        lease.lose();
    }
    outcome(reply, Some(Run { lease, end: Some(Ok(7)) }), on_unknown).unwrap()
}

const PROBLEMS: [Problem; 3] =
    [Problem::OutcomeUnrecorded, Problem::OutcomeUnknown, Problem::InProgress];

#[test]
fn what_is_recorded_counts_even_if_it_once_seemed_lost() {
    for lost in [false, true] {
        let told = told(Reply::Ran(record::of_value(&7, 100)), lost, OnUnknown::Hold);
        assert!(matches!(told, Outcome::Ran(7)), "{told:?}");
    }
}

#[test]
fn a_run_that_could_not_be_recorded_is_unknown_and_keeps_what_it_said() {
    for problem in PROBLEMS {
        for on_unknown in [OnUnknown::Hold, OnUnknown::Rerun, OnUnknown::Fail] {
            let told = told(Reply::Problem(problem), false, on_unknown);
            let Outcome::Unknown(unknown) = told else { panic!("{problem:?}: {told:?}") };
            assert_eq!(unknown.said().and_then(Said::value), Some(&7));
            assert!(unknown.ran());
            let open = on_unknown == OnUnknown::Rerun && problem != Problem::OutcomeUnknown;
            assert_eq!(unknown.runs_again(), (!open).then_some(false), "{problem:?}");
        }
    }
}

#[test]
fn a_run_whose_record_went_to_somebody_else_is_lost() {
    for problem in PROBLEMS {
        let told = told(Reply::Problem(problem), true, OnUnknown::Hold);
        let Outcome::Lost(lost) = told else { panic!("{problem:?}: {told:?}") };
        assert_eq!(lost.mine().value(), Some(&7));
    }
}

#[test]
fn a_run_whose_record_was_settled_without_it_is_lost() {
    let told = told(Reply::Replayed(Answer::failed()), false, OnUnknown::Fail);
    let Outcome::Lost(lost) = told else { panic!("{told:?}") };
    assert_eq!(lost.mine().value(), Some(&7));
    assert_eq!(lost.now().unwrap_err().kind(), OnceErrorKind::Failed);
}
