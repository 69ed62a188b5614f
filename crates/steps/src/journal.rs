//! What an operation does next, given its rows: a pure state machine.
//!
//! A [`StepJournal`] is the memory of one owner: the rows of the operation's steps, and what its
//! function has called in the present try. The function is run from its beginning in every try; a
//! step that has a row is replayed from it.
//!
//! - Forward, [`on_poll`](StepJournal::on_poll) says what a step does, and
//!   [`on_return`](StepJournal::on_return) what follows from the end of the function.
//! - Backward, the function is replayed until every recorded step was reached, so that its undos
//!   are known. Then [`next_undo`](StepJournal::next_undo) names one after the other.
//!
//! Steps may run concurrently. A write of one step also notes the others that run at that moment as
//! *begun*, so that no later owner takes them for steps that never ran.

use std::collections::BTreeMap;

use crate::store::{Direction, StepPart, StepRow, StepState, StepWrite};

/// The maximum number of steps of one operation.
pub(crate) const STEPS_MAX: usize = 1_000;
/// The maximum length of the name of a step.
pub(crate) const STEP_NAME_BYTES_MAX: usize = 128;

/// How a step protects its effect.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(crate) enum StepKind {
    /// The callee takes a key: after a crash the step runs again with the same key.
    Keyed,
    /// The callee takes no key: the step is recorded as begun before it runs, and never runs again
    /// while its outcome is unknown.
    Once,
    /// The step writes to the database of the operation, in one transaction with its row.
    Transaction,
}

/// What an undo needs.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(crate) enum UndoKind {
    /// The result of its step.
    Result,
    /// The key of its step: it can also cancel a step whose outcome is unknown.
    ByKey,
}

/// What a step does when it is first polled.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum StepAction {
    /// It runs.
    Run,
    /// It returns this recorded result.
    Replay(String),
    /// It returns this recorded refusal.
    Refuse(String),
    /// It never returns: the function is dropped.
    Halt,
}

/// How a function ended.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum FunctionEnd {
    /// With a result.
    Value(String),
    /// With a refusal: everything is to be undone.
    Refused(String),
    /// With an error that proves nothing.
    Failed(String),
}

/// Why a try ends before its function does; the greatest of several counts.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub(crate) enum StopReason {
    /// Try again later.
    Retry(String),
    /// Read the rows again: the effect of a write is unknown.
    Reload,
    /// The process shuts down.
    Release,
    /// Only an operator can go on.
    Park(String),
    /// Another process owns the operation.
    Lost,
}

/// What the owner does next.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub(crate) enum JournalAction {
    /// Record the result.
    Finish(String),
    /// Note these dropped steps as begun, then turn backward for this reason.
    Turn {
        /// The steps that ran and were dropped.
        dropped: Vec<String>,
        /// The refusal.
        reason: String,
    },
    /// Run the function, so that it declares its undos.
    Replay,
    /// Undo this step. Its result is `None` if its outcome is unknown.
    Undo {
        /// The step.
        name: String,
        /// Its result.
        result: Option<String>,
    },
    /// Record that everything is undone.
    Undone,
    /// End this try for this reason.
    Stop(StopReason),
}

/// The state of a call in the present try.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
enum CallProgress {
    Declared,
    Running,
    /// It never ran in this try.
    Halted,
    /// It ran, and what became of it is not recorded.
    Failed,
    Ended,
    Dropped,
}

/// The rows of an operation, and the calls of the present try.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub(crate) struct StepJournal {
    direction: Direction,
    steps: BTreeMap<String, StepRow>,
    undos: BTreeMap<String, StepRow>,
    calls: BTreeMap<String, CallProgress>,
    declared: BTreeMap<String, UndoKind>,
    stop: Option<StopReason>,
    is_replayed: bool,
}

impl StepJournal {
    /// The journal of an operation that was started or taken over.
    #[must_use]
    pub(crate) fn new(direction: Direction, rows: Vec<StepRow>) -> Self {
        let (mut steps, mut undos) = (BTreeMap::new(), BTreeMap::new());
        for row in rows {
            let rows = if row.part == StepPart::Do { &mut steps } else { &mut undos };
            rows.insert(row.name.clone(), row);
        }
        Self {
            direction,
            steps,
            undos,
            calls: BTreeMap::new(),
            declared: BTreeMap::new(),
            stop: None,
            is_replayed: false,
        }
    }

    /// Begins another try: the function will be run from its beginning.
    pub(crate) fn begin_try(&mut self) {
        self.calls.clear();
        self.declared.clear();
        self.stop = None;
        self.is_replayed = false;
    }

    /// The direction.
    #[must_use]
    pub(crate) const fn direction(&self) -> Direction {
        self.direction
    }

    /// The function calls a step. `false` if the call is wrong: it never returns.
    #[must_use]
    pub(crate) fn on_call(&mut self, name: &str) -> bool {
        let wrong = if name.is_empty() || name.len() > STEP_NAME_BYTES_MAX {
            format!("the name of a step has 1 to {STEP_NAME_BYTES_MAX} bytes: {name:?}")
        } else if self.calls.len() >= STEPS_MAX {
            format!("an operation has at most {STEPS_MAX} steps")
        } else if self.calls.contains_key(name) {
            format!("two steps have the name `{name}`")
        } else {
            self.calls.insert(name.to_owned(), CallProgress::Declared);
            return true;
        };
        self.stop(StopReason::Park(wrong));
        false
    }

    /// The function declares how to undo a step.
    pub(crate) fn on_undo_declared(&mut self, name: &str, undo: UndoKind) {
        self.declared.insert(name.to_owned(), undo);
    }

    /// A step is polled for the first time.
    pub(crate) fn on_poll(&mut self, name: &str, kind: StepKind) -> StepAction {
        let action = self.action(name, kind);
        let state = match action {
            StepAction::Run => CallProgress::Running,
            StepAction::Replay(_) | StepAction::Refuse(_) => CallProgress::Ended,
            StepAction::Halt => CallProgress::Halted,
        };
        self.calls.insert(name.to_owned(), state);
        action
    }

    fn action(&mut self, name: &str, kind: StepKind) -> StepAction {
        if self.stop.is_some() {
            return StepAction::Halt;
        }
        let row = self.steps.get(name);
        match row.map(|row| (row.state, row.result.clone().unwrap_or_default())) {
            Some((StepState::Done, result)) => return StepAction::Replay(result),
            Some((StepState::Refused, reason)) => return StepAction::Refuse(reason),
            _ if self.direction == Direction::Backward => return StepAction::Halt,
            Some((StepState::Begun, _)) if kind == StepKind::Once => {
                self.stop(StopReason::Park(unknown(name)));
                return StepAction::Halt;
            }
            Some((StepState::Begun | StepState::Released, _)) | None => {}
        }
        // What runs after a dropped step might depend on which of two steps was faster.
        let dropped = self.dropped().next().map(dropped_reason);
        if let Some(why) = dropped {
            self.stop(StopReason::Park(why));
            return StepAction::Halt;
        }
        StepAction::Run
    }

    /// A running step has its result, and it is recorded.
    pub(crate) fn on_ended(&mut self, name: &str) {
        self.calls.insert(name.to_owned(), CallProgress::Ended);
    }

    /// A running step cannot go on; it never returns.
    pub(crate) fn on_halted(&mut self, name: &str, reason: StopReason) {
        self.calls.insert(name.to_owned(), CallProgress::Failed);
        self.stop(reason);
    }

    /// The future of a step is dropped.
    pub(crate) fn on_drop(&mut self, name: &str) {
        if let Some(state @ (CallProgress::Running | CallProgress::Declared)) =
            self.calls.get_mut(name)
        {
            // What was never polled has not begun.
            let ran = *state == CallProgress::Running;
            *state = if ran { CallProgress::Dropped } else { CallProgress::Ended };
        }
    }

    /// Ends the try for this reason as soon as no step is running.
    pub(crate) fn stop(&mut self, reason: StopReason) {
        if self.stop.as_ref().is_none_or(|stop| *stop < reason) {
            self.stop = Some(reason);
        }
    }

    /// Whether the function is to be dropped: nothing that it awaits can change what follows.
    #[must_use]
    pub(crate) fn is_stopped(&self) -> bool {
        let is_reached = || self.direction == Direction::Backward && self.unreached().is_none();
        !self.is_running() && (self.stop.is_some() || is_reached())
    }

    fn is_running(&self) -> bool {
        self.calls.values().any(|state| *state == CallProgress::Running)
    }

    /// The rows to write for a step: its own, and a note for each other that has run in this try
    /// without a row.
    #[must_use]
    pub(crate) fn write(
        &self,
        name: &str,
        part: StepPart,
        state: StepState,
        result: Option<String>,
    ) -> StepWrite {
        let mut position = self.last_position();
        let mut row = |name: &str, part, state, result| {
            position += 1;
            StepRow { name: name.to_owned(), part, state, result, position }
        };
        let own = row(name, part, state, result);
        let is_unnoted =
            |other: &str| self.steps.get(other).is_none_or(|row| row.state == StepState::Released);
        let has_run = |state: CallProgress| {
            matches!(state, CallProgress::Running | CallProgress::Failed | CallProgress::Dropped)
        };
        let noted = self.calls.iter().filter(|(other, state)| {
            part == StepPart::Do && has_run(**state) && *other != name && is_unnoted(other)
        });
        let noted = noted.map(|(other, _)| row(other, StepPart::Do, StepState::Begun, None));
        StepWrite { noted: noted.collect(), own }
    }

    /// A write is durable.
    pub(crate) fn on_written(&mut self, write: StepWrite) {
        for row in write.noted.into_iter().chain([write.own]) {
            let rows = if row.part == StepPart::Do { &mut self.steps } else { &mut self.undos };
            rows.insert(row.name.clone(), row);
        }
    }

    /// The operation is turned backward, durably.
    pub(crate) fn on_turned(&mut self) {
        self.direction = Direction::Backward;
    }

    /// The function ended, or was dropped because the try was stopped.
    pub(crate) fn on_return(&mut self, end: Option<FunctionEnd>) -> JournalAction {
        self.is_replayed = true;
        if let Some(stop) = &self.stop {
            return JournalAction::Stop(stop.clone());
        }
        let end = match end {
            Some(FunctionEnd::Failed(why)) => return JournalAction::Stop(StopReason::Retry(why)),
            _ if self.direction == Direction::Backward => return self.next_undo(),
            None => return JournalAction::Stop(StopReason::Reload),
            Some(end) => end,
        };
        if let Some(name) = self.unreached() {
            return JournalAction::Stop(StopReason::Park(unreached(name)));
        }
        match end {
            FunctionEnd::Refused(reason) => {
                let dropped = self.dropped().map(str::to_owned).collect();
                JournalAction::Turn { dropped, reason }
            }
            FunctionEnd::Value(_) | FunctionEnd::Failed(_) if self.dropped().next().is_some() => {
                let dropped = self.dropped().map(dropped_reason).next();
                JournalAction::Stop(StopReason::Park(dropped.unwrap_or_default()))
            }
            FunctionEnd::Value(value) | FunctionEnd::Failed(value) => {
                let mut rows = self.steps.values();
                match rows.find(|row| row.state == StepState::Begun) {
                    Some(row) => JournalAction::Stop(StopReason::Park(unknown(&row.name))),
                    None => JournalAction::Finish(value),
                }
            }
        }
    }

    /// What an operation that is turned backward does next. Undos run one after the other, the step
    /// that was completed last is undone first.
    #[must_use]
    pub(crate) fn next_undo(&self) -> JournalAction {
        if let Some(stop) = &self.stop {
            return JournalAction::Stop(stop.clone());
        }
        let is_pending = |row: &&StepRow| {
            matches!(row.state, StepState::Done | StepState::Begun)
                && !self.undos.get(&row.name).is_some_and(|undo| undo.state == StepState::Done)
        };
        let mut pending: Vec<_> = self.steps.values().filter(is_pending).collect();
        pending.sort_by_key(|row| std::cmp::Reverse(row.position));
        if pending.is_empty() {
            return JournalAction::Undone;
        }
        if !self.is_replayed {
            return JournalAction::Replay;
        }
        if let Some(name) = self.unreached() {
            return JournalAction::Stop(StopReason::Park(unreached(name)));
        }
        for row in pending {
            match (row.state, self.declared.get(&row.name)) {
                // Nothing was declared: there is nothing to undo.
                (_, None) => {}
                (StepState::Done, Some(_)) => {
                    return JournalAction::Undo {
                        name: row.name.clone(),
                        result: row.result.clone(),
                    };
                }
                (_, Some(UndoKind::ByKey)) => {
                    return JournalAction::Undo { name: row.name.clone(), result: None };
                }
                (_, Some(UndoKind::Result)) => {
                    return JournalAction::Stop(StopReason::Park(unknown(&row.name)));
                }
            }
        }
        JournalAction::Undone
    }

    /// A recorded step that the function has not reached in this try.
    fn unreached(&self) -> Option<&str> {
        let mut rows = self.steps.values().filter(|row| row.state != StepState::Released);
        let is_unreached = |row: &&StepRow| {
            self.calls.get(&row.name).is_none_or(|state| *state == CallProgress::Declared)
        };
        rows.find(is_unreached).map(|row| row.name.as_str())
    }

    fn dropped(&self) -> impl Iterator<Item = &str> {
        let dropped = self.calls.iter().filter(|(_, state)| **state == CallProgress::Dropped);
        dropped.map(|(name, _)| name.as_str())
    }

    fn last_position(&self) -> i64 {
        let rows = self.steps.values().chain(self.undos.values());
        rows.map(|row| row.position).max().unwrap_or_default()
    }
}

fn unknown(name: &str) -> String {
    format!("the step `{name}` began, and its outcome is unknown")
}

fn unreached(name: &str) -> String {
    format!(
        "the step `{name}` is recorded, and the code does not call it: was the code changed \
         without another version?"
    )
}

fn dropped_reason(name: &str) -> String {
    format!("the code dropped the step `{name}` while it ran: await every step, with `join!`")
}

#[cfg(test)]
mod tests;
