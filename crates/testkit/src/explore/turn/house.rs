//! An operator, and what the invariants remember of the past.

use semel_core::{Answer, Flow, Resolution, Resolved};

use super::{
    super::{
        action::Act,
        story,
        world::{Life, Run, RunStanding, Way},
    },
    Turn,
};

impl Turn<'_> {
    pub(super) fn operator_looks(&mut self) {
        self.world.left.acts -= 1;
        let seen = self.world.shelf.view(self.world.store_time()).expect("a record");
        self.scribe
            .say(|| format!("an operator looks: {}, fence {}", seen.standing.name(), seen.fence));
        self.world.seen = Some((seen.fence, seen.standing.name()));
    }

    pub(super) fn operator_acts(&mut self, act: Act) {
        let (seen, state) = self.world.seen.take().expect("something was seen");
        let (resolution, words) = match act {
            Act::Complete => {
                (Resolution::Completed(Answer::not_retained(299)), "says what the answer is")
            }
            Act::Release => (Resolution::Released, "says that it did not happen"),
            Act::Forget => (Resolution::Deleted(state), "has it forgotten"),
        };
        let now = self.world.store_time();
        let resolved = self.world.shelf.resolve(seen, &resolution, now, self.stage.setup.bug);
        self.scribe.say(|| format!("the operator {words}: {}", story::resolved(resolved)));
        if resolved == Resolved::Stale {
            return;
        }
        self.facts.acted = Some((seen, state));
        self.facts.forgot = act == Act::Forget;
        if let Some(record) = &self.world.shelf.record {
            self.world.ghost.fence = self.world.ghost.fence.max(record.fence.get());
        }
        match act {
            Act::Complete => {}
            Act::Release => self.next_round(),
            Act::Forget => self.next_generation(),
        }
    }

    // === what the invariants remember ===

    pub(super) fn count_expiry(&mut self) {
        let past = self.world.shelf.is_past_retention(self.world.store_time());
        if past && !self.world.ghost.expired {
            self.world.ghost.expired = true;
            self.next_generation();
        }
    }

    pub(super) fn next_generation(&mut self) {
        self.world.ghost.acknowledged = None;
        for call in self.world.actors.iter_mut().filter_map(|actor| actor.call.as_mut()) {
            if let Way::Coming(_, current) = &mut call.way {
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

    /// Forgets what nobody will ask about again.
    pub(super) fn clear_the_past(&mut self) {
        let current = self.world.shelf.record.as_ref().map(|record| record.fence);
        for actor in &mut self.world.actors {
            if actor.flow.as_ref().is_some_and(Flow::is_done) {
                actor.life = Life::Done;
                actor.flow = None;
            }
            if !matches!(actor.life, Life::Done | Life::Crashed) {
                continue;
            }
            actor.waits = false;
            if !self.stage.setup.joins {
                actor.reply = None;
            }
            // Whether a run was broken is asked until its release has come.
            let settled =
                |run: &Run| run.effect || !run.counts || run.standing == RunStanding::Over;
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
