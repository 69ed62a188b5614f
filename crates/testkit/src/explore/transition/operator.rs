//! An operator, and what the invariants remember of the past.

use semel_core::{Answer, Flow, Resolution, Resolved};

use super::{
    super::{
        event::OperatorAct,
        story,
        world::{CallState, ExploredRun, RequestPhase, RunState},
    },
    Transition,
};

impl Transition<'_> {
    pub(super) fn operator_looks(&mut self) {
        self.world.left.acts -= 1;
        let seen = self.world.store.view(self.world.store_time()).expect("a record");
        self.writer
            .say(|| format!("an operator looks: {}, fence {}", seen.state.name(), seen.fence));
        self.world.seen = Some((seen.fence, seen.state.name()));
    }

    pub(super) fn operator_acts(&mut self, act: OperatorAct) {
        let (seen, state) = self.world.seen.take().expect("something was seen");
        let (resolution, words) = match act {
            OperatorAct::Complete => {
                (Resolution::Completed(Answer::not_retained(299)), "says what the answer is")
            }
            OperatorAct::Release => (Resolution::Released, "says that it did not happen"),
            OperatorAct::Forget => (Resolution::Deleted(state), "deletes it"),
        };
        let now = self.world.store_time();
        let resolved = self.world.store.resolve(seen, &resolution, now, self.exploration.setup.bug);
        self.writer.say(|| format!("the operator {words}: {}", story::resolved(resolved)));
        if resolved == Resolved::Stale {
            return;
        }
        self.facts.acted = Some((seen, state));
        self.facts.forgot = act == OperatorAct::Forget;
        if let Some(record) = &self.world.store.record {
            self.world.ghost.fence = self.world.ghost.fence.max(record.fence.get());
        }
        match act {
            OperatorAct::Complete => {}
            OperatorAct::Release => self.next_round(),
            OperatorAct::Forget => self.next_generation(),
        }
    }

    // === what the invariants remember ===

    pub(super) fn count_expiry(&mut self) {
        let past = self.world.store.is_past_retention(self.world.store_time());
        if past && !self.world.ghost.expired {
            self.world.ghost.expired = true;
            self.next_generation();
        }
    }

    pub(super) fn next_generation(&mut self) {
        self.world.ghost.acknowledged = None;
        for call in self.world.actors.iter_mut().filter_map(|actor| actor.call.as_mut()) {
            if let CallState::Coming(_, current) = &mut call.way {
                *current = false;
            }
        }
        self.next_round();
    }

    pub(super) fn next_round(&mut self) {
        self.world.ghost.effects = 0;
        for run in self.world.actors.iter_mut().filter_map(|actor| actor.run.as_mut()) {
            run.counts = false;
        }
    }

    /// Forgets what no invariant reads any more.
    pub(super) fn clear_the_past(&mut self) {
        let current = self.world.store.record.as_ref().map(|record| record.fence);
        for actor in &mut self.world.actors {
            if actor.flow.as_ref().is_some_and(Flow::is_done) {
                actor.life = RequestPhase::Done;
                actor.flow = None;
            }
            if !matches!(actor.life, RequestPhase::Done | RequestPhase::Crashed) {
                continue;
            }
            actor.waits = false;
            if !self.exploration.setup.joins {
                actor.reply = None;
            }
            // Whether a run was broken is asked until its release has come.
            let settled =
                |run: &ExploredRun| run.effect || !run.counts || run.state == RunState::Over;
            let quiet = actor.late.is_empty() && !actor.is_running();
            if quiet && actor.run.as_ref().is_none_or(settled) {
                actor.run = None;
            }
            if quiet && actor.granted.is_some_and(|(fence, _)| Some(fence) != current) {
                actor.granted = None;
            }
        }
    }
}
