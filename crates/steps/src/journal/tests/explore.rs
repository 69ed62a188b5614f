//! Every order of events of one operation: effects, writes, lost replies, crashes, zombies, an
//! operator.
//!
//! A world is a value: the rows, what the callees know, and the owners, of which all but the latest
//! are zombies. From each reachable world every possible move is taken, breadth first. The owners
//! call the journal as the driver does.

use std::collections::{BTreeMap, HashSet, VecDeque};

use super::super::*;

/// A step of a script. Its callee answers a key for ever as it did at first.
#[derive(Clone, Copy, Debug)]
struct ScriptStep {
    name: &'static str,
    kind: StepKind,
    undo: Option<UndoKind>,
    may_refuse: bool,
}

/// How a stage waits for its steps.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Waits {
    /// For all of them.
    Join,
    /// For all, or for the first refusal; the others are dropped.
    TryJoin,
    /// For the first; the others are dropped.
    Select,
}

type Script = [(Waits, Vec<ScriptStep>)];

/// What a callee has made of a step, by its key.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
struct CalleeState {
    effects: u8,
    is_refused: bool,
    undos: u8,
    is_cancelled: bool,
}

#[derive(Clone, Debug, PartialEq, Eq, Hash)]
enum RunningStep {
    /// The first write of a step without a key.
    Begins,
    /// Its body has not reached the callee.
    Calls,
    /// Its row is to be written.
    Writes(StepState),
    /// It has ended, with a refusal or not.
    Ended { is_refused: bool },
    /// It never returns, or was dropped.
    Halted,
}

#[derive(Clone, Debug, PartialEq, Eq, Hash)]
enum OwnerPhase {
    /// Before a try.
    Idle,
    /// In this stage of the function.
    Stage(usize, BTreeMap<&'static str, RunningStep>),
    /// About to do this.
    Next(JournalAction),
    /// The undo of this step has had its effect.
    Undone(String),
    /// It has ended or noticed that it lost.
    Over,
}

#[derive(Clone, Debug, PartialEq, Eq, Hash)]
struct Owner {
    fence: u8,
    journal: StepJournal,
    phase: OwnerPhase,
}

/// A mistake in the store, which the explorer has to find.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
enum PlantedBug {
    /// A write does not look at the fence.
    UnfencedWrites,
    /// A write notes no other step.
    NoNotes,
}

#[derive(Clone, Debug, PartialEq, Eq, Hash)]
enum RecordedState {
    Running,
    Done,
    Undone,
    Parked(String),
}

#[derive(Clone, Debug, PartialEq, Eq, Hash)]
struct OperationWorld {
    bug: Option<PlantedBug>,
    fence: u8,
    direction: Direction,
    state: RecordedState,
    rows: BTreeMap<(String, bool), StepRow>,
    callees: BTreeMap<&'static str, CalleeState>,
    owners: Vec<Owner>,
    takeovers: u8,
    lost_replies: u8,
    failures: u8,
    acts: u8,
}

fn step_of(script: &Script, name: &str) -> ScriptStep {
    let mut steps = script.iter().flat_map(|(_, steps)| steps.iter());
    *steps.find(|step| step.name == name).unwrap()
}

impl OperationWorld {
    fn new(bug: Option<PlantedBug>) -> Self {
        let mut world = Self {
            bug,
            fence: 0,
            direction: Direction::Forward,
            state: RecordedState::Running,
            rows: BTreeMap::new(),
            callees: BTreeMap::new(),
            owners: Vec::new(),
            takeovers: if semel_testkit::torture() { 2 } else { 1 },
            lost_replies: 1,
            failures: 1,
            acts: 1,
        };
        world.take();
        world
    }

    fn rows(&self) -> Vec<StepRow> {
        self.rows.values().cloned().collect()
    }

    fn take(&mut self) {
        self.fence += 1;
        let journal = StepJournal::new(self.direction, self.rows());
        self.owners.push(Owner { fence: self.fence, journal, phase: OwnerPhase::Idle });
    }

    /// The statement of a step, as both databases have it.
    fn write(&mut self, fence: u8, write: &StepWrite, in_transaction: bool) -> bool {
        let is_owner = fence == self.fence || self.bug == Some(PlantedBug::UnfencedWrites);
        if !is_owner || self.state != RecordedState::Running {
            return false;
        }
        let notes = if self.bug == Some(PlantedBug::NoNotes) { &[][..] } else { &write.noted };
        let mut is_own = false;
        for row in notes.iter().chain([&write.own]) {
            if row.part == StepPart::Do && self.direction == Direction::Backward {
                continue;
            }
            let key = (row.name.clone(), row.part == StepPart::Undo);
            let is_free = self.rows.get(&key).is_none_or(|found| {
                matches!(found.state, StepState::Begun | StepState::Released)
                    || (!in_transaction && found.state == row.state)
            });
            if is_free {
                self.rows.insert(key, row.clone());
                is_own |= row == &write.own;
            }
        }
        is_own
    }

    /// Every world that one move leads to.
    fn moves(&self, script: &Script) -> Vec<Self> {
        let mut found = Vec::new();
        let mut add = |change: &dyn Fn(&mut Self)| {
            let mut next = self.clone();
            change(&mut next);
            found.push(next);
        };
        let (is_running, takeovers) = (self.state == RecordedState::Running, self.takeovers);
        let has_owner = self.owners.iter().any(|owner| owner.fence == self.fence);
        if is_running && takeovers > 0 {
            add(&|next| {
                next.takeovers -= 1;
                next.take();
            });
        }
        // Without an owner, a takeover is always possible in the end.
        if is_running && takeovers == 0 && !has_owner {
            add(&|next| next.take());
        }
        if let RecordedState::Parked(why) = &self.state
            && self.owners.is_empty()
            && self.acts > 0
        {
            let why = why.clone();
            add(&|next| next.operate(script, &why));
        }
        let owners = 0..self.owners.len();
        found.extend(owners.flat_map(|at| self.owner_moves(at, script)));
        found
    }

    /// The operator looks at the callee, says what became of the step, and resumes.
    fn operate(&mut self, script: &Script, why: &str) {
        self.acts -= 1;
        for row in self.rows.values_mut().filter(|row| row.state == StepState::Begun) {
            let step = step_of(script, &row.name);
            let callee = self.callees.entry(step.name).or_default();
            row.state = if callee.effects > 0 { StepState::Done } else { StepState::Released };
            row.result = (callee.effects > 0).then(|| "1".to_owned());
        }
        if why.contains("dropped") {
            self.direction = Direction::Backward;
        }
        self.state = RecordedState::Running;
        self.take();
    }

    fn owner_moves(&self, at: usize, script: &Script) -> Vec<Self> {
        let owner = &self.owners[at];
        match &owner.phase {
            OwnerPhase::Over => vec![self.with(at, |world| drop(world.owners.remove(at)))],
            OwnerPhase::Idle => vec![self.with(at, |world| world.begin_try(at, script))],
            OwnerPhase::Next(action) => self.next_moves(at, action.clone(), script),
            OwnerPhase::Undone(name) => self.record_moves(at, script, name, StepPart::Undo),
            OwnerPhase::Stage(_, running) => {
                let mut found = Vec::new();
                for (name, state) in running {
                    found.extend(self.step_moves(at, name, state, script));
                }
                found
            }
        }
    }

    fn with(&self, _at: usize, change: impl FnOnce(&mut Self)) -> Self {
        let mut next = self.clone();
        change(&mut next);
        next
    }

    fn begin_try(&mut self, at: usize, script: &Script) {
        let owner = &mut self.owners[at];
        owner.journal.begin_try();
        if owner.journal.direction() == Direction::Forward {
            self.enter(at, 0, script);
        } else {
            owner.phase = OwnerPhase::Next(owner.journal.next_undo());
        }
    }

    /// The function enters a stage, or returns after the last.
    fn enter(&mut self, at: usize, stage: usize, script: &Script) {
        let owner = &mut self.owners[at];
        let Some((_, steps)) = script.get(stage) else {
            let end = Some(FunctionEnd::Value("1".to_owned()));
            owner.phase = OwnerPhase::Next(owner.journal.on_return(end));
            return;
        };
        for step in steps {
            assert!(owner.journal.on_call(step.name));
            step.undo.into_iter().for_each(|undo| owner.journal.on_undo_declared(step.name, undo));
        }
        let mut running = BTreeMap::new();
        for step in steps {
            let state = match owner.journal.on_poll(step.name, step.kind) {
                StepAction::Run if step.kind == StepKind::Once => RunningStep::Begins,
                StepAction::Run => RunningStep::Calls,
                StepAction::Replay(_) => RunningStep::Ended { is_refused: false },
                StepAction::Refuse(_) => RunningStep::Ended { is_refused: true },
                StepAction::Halt => RunningStep::Halted,
            };
            let is_ended = matches!(state, RunningStep::Ended { .. });
            let is_refused = state == RunningStep::Ended { is_refused: true };
            running.insert(step.name, state);
            // As `select!` and `try_join!` do, which do not poll what no longer counts.
            let waits = script[stage].0;
            if (waits == Waits::Select && is_ended) || (waits == Waits::TryJoin && is_refused) {
                break;
            }
        }
        owner.phase = OwnerPhase::Stage(stage, running);
        self.polled(at, script);
    }

    /// After each poll of the function: it may go on, return, or be dropped.
    fn polled(&mut self, at: usize, script: &Script) {
        let owner = &mut self.owners[at];
        let OwnerPhase::Stage(stage, running) = &owner.phase else { return };
        let (stage, (waits, steps)) = (*stage, &script[*stage]);
        let ended = |refused: bool| {
            move |state: &&RunningStep| **state == RunningStep::Ended { is_refused: refused }
        };
        let refusal = running.values().any(|state| ended(true)(&state));
        let first = running.values().any(|state| ended(false)(&state));
        let all = running.len() == steps.len()
            && running.values().all(|state| matches!(state, RunningStep::Ended { .. }));
        let returns = match waits {
            Waits::Join => all,
            Waits::TryJoin => all || refusal,
            Waits::Select => first || refusal,
        };
        if !returns {
            if owner.journal.is_stopped() {
                owner.phase = OwnerPhase::Next(owner.journal.on_return(None));
            }
            return;
        }
        steps.iter().for_each(|step| owner.journal.on_drop(step.name));
        if refusal {
            let end = Some(FunctionEnd::Refused("\"no\"".to_owned()));
            owner.phase = OwnerPhase::Next(owner.journal.on_return(end));
        } else {
            self.enter(at, stage + 1, script);
        }
    }

    fn set(&mut self, at: usize, name: &'static str, state: RunningStep) {
        if let OwnerPhase::Stage(_, running) = &mut self.owners[at].phase {
            running.insert(name, state);
        }
    }

    fn halt(&mut self, at: usize, name: &'static str, reason: StopReason, script: &Script) {
        self.owners[at].journal.on_halted(name, reason);
        self.set(at, name, RunningStep::Halted);
        self.polled(at, script);
    }

    fn step_moves(
        &self,
        at: usize,
        name: &'static str,
        state: &RunningStep,
        script: &Script,
    ) -> Vec<Self> {
        let step = step_of(script, name);
        match state {
            RunningStep::Ended { .. } | RunningStep::Halted => Vec::new(),
            RunningStep::Begins | RunningStep::Writes(_) => {
                self.record_moves(at, script, name, StepPart::Do)
            }
            // A transaction has its effect with its row.
            RunningStep::Calls if step.kind == StepKind::Transaction => {
                let write = RunningStep::Writes(StepState::Done);
                vec![self.with(at, |world| world.set(at, name, write))]
            }
            RunningStep::Calls => self.call_moves(at, step, script),
        }
    }

    /// The body reaches the callee, and its reply arrives or is lost.
    fn call_moves(&self, at: usize, step: ScriptStep, script: &Script) -> Vec<Self> {
        let mut found = Vec::new();
        let callee = self.callees.get(step.name).copied().unwrap_or_default();
        for refuses in [false, true] {
            let is_known = callee.effects > 0 || callee.is_refused || callee.is_cancelled;
            let is_keyed = step.kind == StepKind::Keyed;
            let refuses = match (is_keyed && is_known, refuses) {
                (true, true) => continue,
                (true, false) => callee.is_refused || callee.is_cancelled,
                (false, refuses) => refuses,
            };
            if refuses && !(step.may_refuse || is_known) {
                continue;
            }
            let mut next = self.clone();
            let known = next.callees.entry(step.name).or_default();
            if refuses {
                known.is_refused = true;
            } else if !(is_keyed && known.effects > 0) {
                known.effects += 1;
            }
            if self.failures > 0 {
                let mut failed = next.clone();
                failed.failures -= 1;
                let stop = if is_keyed {
                    StopReason::Retry("failed".to_owned())
                } else {
                    StopReason::Park(format!("{} is unknown", step.name))
                };
                failed.halt(at, step.name, stop, script);
                found.push(failed);
            }
            let state = if refuses { StepState::Refused } else { StepState::Done };
            next.set(at, step.name, RunningStep::Writes(state));
            found.push(next);
        }
        found
    }

    /// A row is written, and the reply arrives or is lost.
    fn record_moves(&self, at: usize, script: &Script, name: &str, part: StepPart) -> Vec<Self> {
        let step = step_of(script, name);
        let running = match &self.owners[at].phase {
            OwnerPhase::Stage(_, running) => running.get(step.name),
            OwnerPhase::Idle | OwnerPhase::Next(_) | OwnerPhase::Undone(_) | OwnerPhase::Over => {
                None
            }
        };
        let state = match running {
            None => StepState::Done,
            Some(RunningStep::Writes(state)) => *state,
            Some(_) => StepState::Begun,
        };
        let result = (state == StepState::Done).then(|| "1".to_owned());
        let in_transaction = step.kind == StepKind::Transaction;
        let mut next = self.clone();
        let owner = &next.owners[at];
        let write = owner.journal.write(name, part, state, result);
        let is_written = next.write(owner.fence, &write, in_transaction);
        if is_written && in_transaction {
            let callee = next.callees.entry(step.name).or_default();
            let count = if part == StepPart::Do { &mut callee.effects } else { &mut callee.undos };
            *count += 1;
        }
        let mut found = Vec::new();
        if !is_written || self.lost_replies > 0 {
            let mut lost = next.clone();
            if is_written {
                lost.lost_replies -= 1;
            }
            match part {
                StepPart::Do => lost.halt(at, step.name, StopReason::Reload, script),
                StepPart::Undo => {
                    let stop = JournalAction::Stop(StopReason::Reload);
                    lost.owners[at].phase = OwnerPhase::Next(stop);
                }
            }
            found.push(lost);
        }
        if is_written {
            next.owners[at].journal.on_written(write);
            match (part, state) {
                (StepPart::Undo, _) => {
                    let owner = &mut next.owners[at];
                    owner.phase = OwnerPhase::Next(owner.journal.next_undo());
                }
                (StepPart::Do, StepState::Begun) => next.set(at, step.name, RunningStep::Calls),
                (StepPart::Do, state) => {
                    next.owners[at].journal.on_ended(name);
                    let is_refused = state == StepState::Refused;
                    next.set(at, step.name, RunningStep::Ended { is_refused });
                    next.polled(at, script);
                }
            }
            found.push(next);
        }
        found
    }

    fn next_moves(&self, at: usize, action: JournalAction, script: &Script) -> Vec<Self> {
        let mut next = self.clone();
        let fence = next.owners[at].fence;
        let owns = fence == next.fence && next.state == RecordedState::Running;
        let mut end = |state: RecordedState| {
            if owns {
                next.state = state;
            }
            next.owners[at].phase = OwnerPhase::Over;
        };
        match action {
            JournalAction::Finish(_) => end(RecordedState::Done),
            JournalAction::Undone => end(RecordedState::Undone),
            JournalAction::Stop(StopReason::Park(why)) => end(RecordedState::Parked(why)),
            JournalAction::Stop(StopReason::Lost | StopReason::Release) => {
                next.owners[at].phase = OwnerPhase::Over;
            }
            JournalAction::Stop(StopReason::Retry(_)) => next.owners[at].phase = OwnerPhase::Idle,
            JournalAction::Stop(StopReason::Reload) => {
                if owns {
                    let journal = StepJournal::new(next.direction, next.rows());
                    next.owners[at] = Owner { fence, journal, phase: OwnerPhase::Idle };
                } else {
                    next.owners[at].phase = OwnerPhase::Over;
                }
            }
            JournalAction::Replay => next.enter(at, 0, script),
            JournalAction::Turn { mut dropped, reason } => {
                // One note after the other, each a write of its own.
                if let Some(name) = dropped.pop() {
                    let owner = &next.owners[at];
                    let write = owner.journal.write(&name, StepPart::Do, StepState::Begun, None);
                    if !next.write(fence, &write, false) {
                        let stop = JournalAction::Stop(StopReason::Reload);
                        next.owners[at].phase = OwnerPhase::Next(stop);
                        return vec![next];
                    }
                    next.owners[at].journal.on_written(write);
                    let turn = JournalAction::Turn { dropped, reason };
                    next.owners[at].phase = OwnerPhase::Next(turn);
                } else if owns {
                    next.direction = Direction::Backward;
                    let owner = &mut next.owners[at];
                    owner.journal.on_turned();
                    owner.phase = OwnerPhase::Next(owner.journal.next_undo());
                } else {
                    next.owners[at].phase = OwnerPhase::Over;
                }
            }
            JournalAction::Undo { name, result } => {
                let step = step_of(script, &name);
                if step.kind != StepKind::Transaction {
                    let callee = next.callees.entry(step.name).or_default();
                    // The undo has a key of its own.
                    callee.undos = 1;
                    callee.is_cancelled = result.is_none();
                }
                next.owners[at].phase = OwnerPhase::Undone(name);
            }
        }
        vec![next]
    }

    /// What must hold in every world.
    fn check(&self, script: &Script) {
        for step in script.iter().flat_map(|(_, steps)| steps.iter()) {
            let callee = self.callees.get(step.name).copied().unwrap_or_default();
            let name = step.name;
            assert!(callee.effects <= 1, "{name} took effect twice: {self:#?}");
            assert!(callee.undos <= 1, "{name} was undone twice: {self:#?}");
            let cancels = step.undo == Some(UndoKind::ByKey);
            let is_undone = callee.undos == 1 && callee.effects == 0;
            assert!(!is_undone || cancels, "{name} was undone and never done: {self:#?}");
            match &self.state {
                RecordedState::Done => {
                    assert_eq!(callee.undos, 0, "{name} was undone: {self:#?}");
                    let row = self.rows.get(&(name.to_owned(), false));
                    let is_done = row.is_some_and(|row| row.state == StepState::Done);
                    assert_eq!(is_done, callee.effects == 1, "{name}: {self:#?}");
                }
                RecordedState::Undone if step.undo.is_some() => {
                    assert!(callee.effects == 0 || callee.undos == 1, "{name} stays: {self:#?}");
                }
                RecordedState::Undone | RecordedState::Running | RecordedState::Parked(_) => {}
            }
        }
    }
}

/// How operations ended, and how many worlds there are.
#[derive(Debug, Default)]
struct Explored {
    worlds: usize,
    done: usize,
    undone: usize,
    parked: usize,
}

fn explore(script: &Script) -> Explored {
    explore_with(script, None)
}

fn explore_with(script: &Script, bug: Option<PlantedBug>) -> Explored {
    let first = OperationWorld::new(bug);
    let mut seen = HashSet::from([first.clone()]);
    let mut queue = VecDeque::from([first]);
    let mut explored = Explored::default();
    while let Some(world) = queue.pop_front() {
        world.check(script);
        explored.worlds += 1;
        let next = world.moves(script);
        if next.is_empty() {
            match &world.state {
                RecordedState::Running => panic!("stranded: {world:#?}"),
                RecordedState::Done => explored.done += 1,
                RecordedState::Undone => explored.undone += 1,
                RecordedState::Parked(_) => {}
            }
        }
        explored.parked += usize::from(matches!(world.state, RecordedState::Parked(_)));
        for world in next {
            if seen.insert(world.clone()) {
                queue.push_back(world);
            }
        }
    }
    explored
}

const fn keyed(name: &'static str, undo: Option<UndoKind>, may_refuse: bool) -> ScriptStep {
    ScriptStep { name, kind: StepKind::Keyed, undo, may_refuse }
}

const fn other(name: &'static str, kind: StepKind) -> ScriptStep {
    ScriptStep { name, kind, undo: Some(UndoKind::Result), may_refuse: false }
}

const BY_RESULT: Option<UndoKind> = Some(UndoKind::Result);
const BY_KEY: Option<UndoKind> = Some(UndoKind::ByKey);

#[test]
fn steps_of_every_kind_in_sequence_end_done_or_undone() {
    let script = [
        (Waits::Join, vec![keyed("charge", BY_RESULT, false)]),
        (Waits::Join, vec![other("mail", StepKind::Once)]),
        (Waits::Join, vec![other("reserve", StepKind::Transaction)]),
        (Waits::Join, vec![keyed("ship", BY_RESULT, true)]),
    ];
    let explored = explore(&script);
    assert!(explored.done > 0 && explored.undone > 0 && explored.worlds > 5_000, "{explored:?}");
}

#[test]
fn joined_steps_end_done_or_undone_without_an_operator() {
    let script = [
        (Waits::Join, vec![keyed("a", BY_RESULT, true), keyed("b", BY_RESULT, false)]),
        (Waits::Join, vec![keyed("c", None, true)]),
    ];
    let explored = explore(&script);
    assert!(explored.done > 0 && explored.undone > 0 && explored.parked == 0, "{explored:?}");
}

#[test]
fn steps_that_are_dropped_after_a_refusal_are_cancelled_by_their_keys() {
    let steps = vec![keyed("a", BY_KEY, true), keyed("b", BY_KEY, false)];
    let explored = explore(&[(Waits::TryJoin, steps)]);
    assert!(explored.done > 0 && explored.undone > 0 && explored.parked == 0, "{explored:?}");
    let steps = vec![keyed("a", BY_RESULT, true), keyed("b", BY_RESULT, false)];
    let explored = explore(&[(Waits::TryJoin, steps)]);
    assert!(explored.parked > 0, "an undo that needs a result: {explored:?}");
}

#[test]
fn steps_that_race_are_never_finished_with_an_effect_that_is_not_recorded() {
    let script = [
        (Waits::Select, vec![keyed("a", BY_KEY, false), keyed("b", BY_KEY, false)]),
        (Waits::Join, vec![keyed("after", BY_RESULT, false)]),
    ];
    let explored = explore(&script);
    assert!(explored.undone > 0, "{explored:?}");
}

#[test]
fn planted_mistakes_are_found() {
    let race = vec![keyed("a", BY_KEY, false), keyed("b", BY_KEY, false)];
    for (bug, script) in [
        (PlantedBug::UnfencedWrites, [(Waits::Join, vec![other("mail", StepKind::Once)])]),
        (PlantedBug::NoNotes, [(Waits::Select, race)]),
    ] {
        assert!(std::panic::catch_unwind(|| explore(&script)).is_ok(), "{bug:?} is not planted");
        let found = std::panic::catch_unwind(|| explore_with(&script, Some(bug)));
        assert!(found.is_err(), "{bug:?} was not found");
    }
}
