//! What the journal decides, case by case.

mod explore;

use super::*;

fn row(name: &str, part: StepPart, state: StepState, position: i64) -> StepRow {
    let result = (state == StepState::Done).then(|| format!("\"{name}\""));
    StepRow { name: name.to_owned(), part, state, result, position }
}

fn forward(rows: &[StepRow]) -> StepJournal {
    StepJournal::new(Direction::Forward, rows.to_vec())
}

fn value() -> Option<FunctionEnd> {
    Some(FunctionEnd::Value("1".to_owned()))
}

fn refused() -> Option<FunctionEnd> {
    Some(FunctionEnd::Refused("\"no\"".to_owned()))
}

fn parks(action: &JournalAction, why: &str) {
    let JournalAction::Stop(StopReason::Park(reason)) = action else { panic!("{action:?}") };
    assert!(reason.contains(why), "{reason}");
}

#[test]
fn a_name_used_twice_parks_and_leaves_the_first_step_running() {
    let mut journal = forward(&[]);
    assert!(journal.on_call("a"));
    assert_eq!(journal.on_poll("a", StepKind::Keyed), StepAction::Run);
    assert!(!journal.on_call("a"));
    assert!(!journal.is_stopped(), "the first is still running");
    journal.on_ended("a");
    assert!(journal.is_stopped());
    parks(&journal.on_return(None), "two steps have the name `a`");
}

#[test]
fn only_a_step_without_a_key_is_not_run_again_after_it_began() {
    for (kind, runs) in
        [(StepKind::Keyed, true), (StepKind::Transaction, true), (StepKind::Once, false)]
    {
        let mut journal = forward(&[row("a", StepPart::Do, StepState::Begun, 1)]);
        assert!(journal.on_call("a"));
        assert_eq!(journal.on_poll("a", kind) == StepAction::Run, runs, "{kind:?}");
    }
}

#[test]
fn a_write_notes_the_other_running_steps() {
    let mut journal = forward(&[row("c", StepPart::Do, StepState::Begun, 1)]);
    for name in ["a", "b", "c", "unpolled"] {
        assert!(journal.on_call(name));
    }
    for name in ["a", "b", "c"] {
        assert_eq!(journal.on_poll(name, StepKind::Keyed), StepAction::Run);
    }
    let write = journal.write("a", StepPart::Do, StepState::Done, Some("1".to_owned()));
    assert_eq!(write.own.position, 2);
    let noted: Vec<_> = write.noted.iter().map(|row| (&*row.name, row.state)).collect();
    assert_eq!(noted, [("b", StepState::Begun)]);
    journal.on_written(write);
    let write = journal.write("b", StepPart::Do, StepState::Done, Some("1".to_owned()));
    assert_eq!((write.own.position, write.noted.len()), (4, 0), "all have rows: {write:?}");
}

#[test]
fn nothing_runs_after_a_dropped_step_and_the_operation_is_not_finished() {
    let mut journal = forward(&[]);
    assert!(journal.on_call("a") && journal.on_call("b"));
    assert_eq!(journal.on_poll("a", StepKind::Keyed), StepAction::Run);
    journal.on_drop("a");
    parks(&journal.clone().on_return(value()), "dropped the step `a`");
    assert_eq!(journal.on_poll("b", StepKind::Keyed), StepAction::Halt);
    parks(&journal.on_return(None), "dropped the step `a`");
}

#[test]
fn a_refusal_notes_dropped_steps_before_it_turns() {
    let mut journal = forward(&[]);
    assert!(journal.on_call("a"));
    assert_eq!(journal.on_poll("a", StepKind::Keyed), StepAction::Run);
    journal.on_drop("a");
    let turn = journal.on_return(refused());
    let (dropped, reason) = (vec!["a".to_owned()], "\"no\"".to_owned());
    assert_eq!(turn, JournalAction::Turn { dropped, reason });
}

#[test]
fn a_recorded_step_that_the_code_does_not_call_parks() {
    let rows = [row("a", StepPart::Do, StepState::Done, 1)];
    for end in [value(), refused()] {
        parks(&forward(&rows).on_return(end.clone()), "does not call it");
        let mut backward = StepJournal::new(Direction::Backward, rows.to_vec());
        assert_eq!(backward.next_undo(), JournalAction::Replay);
        parks(&backward.on_return(end), "does not call it");
    }
}

#[test]
fn undos_run_in_reverse_order_of_completion_and_once() {
    let mut rows = vec![
        row("a", StepPart::Do, StepState::Done, 2),
        row("b", StepPart::Do, StepState::Done, 1),
    ];
    let undone = |rows: &[StepRow]| {
        let mut journal = StepJournal::new(Direction::Backward, rows.to_vec());
        for name in ["a", "b"] {
            assert!(journal.on_call(name));
            journal.on_undo_declared(name, UndoKind::Result);
            assert!(matches!(journal.on_poll(name, StepKind::Keyed), StepAction::Replay(_)));
        }
        assert!(journal.is_stopped(), "every recorded step is reached");
        journal.on_return(None)
    };
    let undo = |name: &str| {
        let result = Some(format!("\"{name}\""));
        JournalAction::Undo { name: name.to_owned(), result }
    };
    assert_eq!(undone(&rows), undo("a"));
    rows.push(row("a", StepPart::Undo, StepState::Done, 3));
    assert_eq!(undone(&rows), undo("b"));
    rows.push(row("b", StepPart::Undo, StepState::Done, 4));
    assert_eq!(StepJournal::new(Direction::Backward, rows).next_undo(), JournalAction::Undone);
}

#[test]
fn an_unknown_step_is_undone_only_by_its_key() {
    for (undo, expected) in [
        (Some(UndoKind::ByKey), JournalAction::Undo { name: "a".to_owned(), result: None }),
        (None, JournalAction::Undone),
    ] {
        assert_eq!(undo_unknown(undo), expected);
    }
    parks(&undo_unknown(Some(UndoKind::Result)), "its outcome is unknown");
}

fn undo_unknown(undo: Option<UndoKind>) -> JournalAction {
    let rows = vec![row("a", StepPart::Do, StepState::Begun, 1)];
    let mut journal = StepJournal::new(Direction::Backward, rows);
    assert!(journal.on_call("a"));
    undo.into_iter().for_each(|undo| journal.on_undo_declared("a", undo));
    assert_eq!(journal.on_poll("a", StepKind::Keyed), StepAction::Halt);
    journal.on_return(None)
}

#[test]
fn the_gravest_stop_counts() {
    let mut journal = forward(&[]);
    journal.stop(StopReason::Retry("slow".to_owned()));
    journal.stop(StopReason::Park("wrong".to_owned()));
    journal.stop(StopReason::Release);
    assert_eq!(journal.on_return(None), JournalAction::Stop(StopReason::Park("wrong".to_owned())));
    journal.stop(StopReason::Lost);
    assert_eq!(journal.on_return(value()), JournalAction::Stop(StopReason::Lost));
}
