//! The network between the actors and the store, and what the store does with what arrives.

use semel_core::{
    Claimant, Claimed, Fence, Fenced, Finish, RecordAction, State, StoreError, StoreErrorKind,
};

use super::{
    super::{
        action::{Failure, Fate},
        setup::{Bug, LEASE},
        story::{self, name},
        world::{Asked, Call, Run, RunStanding, Said, Slot, Way, World, token},
    },
    Turn,
};

impl Turn<'_> {
    pub(super) fn serve(&mut self, actor: usize, slot: Slot, fate: Fate) {
        let call = self.world.actors[actor].slot(slot).take().expect("a call");
        if let (Way::Going, Some(read)) = (&call.way, self.reads_lapsed(&call.asked)) {
            self.scribe
                .say(|| format!("the store reads for {} that fence {read} lapsed", name(actor)));
            let way = Way::ReadLapsed(read);
            *self.world.actors[actor].slot(slot) = Some(Call { asked: call.asked, way });
            return;
        }
        let said = self.at_store(actor, &call);
        match fate {
            Fate::Prompt => self.hear(actor, &call.asked, said),
            Fate::Slow => {
                self.world.left.slow -= 1;
                self.scribe.say(|| "the reply is slow".to_owned());
                let way = Way::Coming(said, true);
                *self.world.actors[actor].slot(slot) = Some(Call { asked: call.asked, way });
            }
            Fate::Lost => {
                self.world.left.losses -= 1;
                self.scribe.say(|| "the reply is lost".to_owned());
                self.fail(actor, &call.asked, &unavailable().effect_unknown());
            }
        }
    }

    pub(super) fn hear_slow(&mut self, actor: usize, slot: Slot) {
        let call = self.world.actors[actor].slot(slot).take().expect("a call");
        let Way::Coming(said, current) = call.way else { panic!("nothing comes") };
        self.scribe.say(|| format!("the slow reply reaches {}", name(actor)));
        self.current = current;
        self.hear(actor, &call.asked, said);
    }

    pub(super) fn lose(&mut self, actor: usize, slot: Slot, failure: Failure) {
        self.world.left.losses -= 1;
        let call = self.world.actors[actor].slot(slot).take().expect("a call");
        let (error, words) = match failure {
            Failure::NothingHappened => (unavailable(), "fails, and surely did nothing"),
            Failure::Unknown => {
                (unavailable().effect_unknown(), "fails, and perhaps did something")
            }
            Failure::Busy => {
                (StoreError::new(StoreErrorKind::Busy, "busy"), "is refused: the store is busy")
            }
        };
        self.scribe.say(|| format!("{}'s {} {words}", name(actor), story::asked(&call.asked)));
        self.fail(actor, &call.asked, &error);
    }

    pub(super) fn give_up(&mut self, actor: usize, slot: Slot) {
        let call = self.world.actors[actor].slot(slot).take().expect("a call");
        self.scribe
            .say(|| format!("{} gives up on its {}", name(actor), story::asked(&call.asked)));
        if matches!(call.way, Way::Coming(..)) {
            self.world.left.losses -= 1;
        } else {
            self.world.left.late -= 1;
            self.world.actors[actor].late.push(call.asked.clone());
        }
        self.fail(actor, &call.asked, &unavailable().effect_unknown());
    }

    pub(super) fn come_late(&mut self, actor: usize, at: usize) {
        let asked = self.world.actors[actor].late.remove(at);
        self.scribe.say(|| "much later".to_owned());
        let claims = asked == Asked::Claim;
        let _ = self.at_store(actor, &Call { asked, way: Way::Going });
        if claims && self.facts.granted.is_some() {
            self.world.actors[actor].granted_late = true;
        }
    }

    // === the store ===

    fn reads_lapsed(&self, asked: &Asked) -> Option<Fence> {
        let record = self.world.shelf.record.as_ref()?;
        let lapsed = self.world.shelf.lease_until()? < self.world.store_time();
        let two_steps = self.has(Bug::TakeoverInTwoSteps) && *asked == Asked::Claim;
        (two_steps && lapsed).then_some(record.fence)
    }

    fn at_store(&mut self, actor: usize, call: &Call) -> Said {
        let now = self.world.store_time();
        let said = match &call.asked {
            Asked::Claim => self.claim(actor, &call.way),
            Asked::Renew(fence) => {
                self.facts.wrote = Some(*fence);
                let fenced = self.world.shelf.renew(self.claimant(actor, *fence), LEASE, now);
                self.promise(actor, *fence);
                Said::Fenced(fenced)
            }
            Asked::Record(fence, finish) => self.record(actor, *fence, finish),
            Asked::Look => Said::Seen(self.world.shelf.view(now)),
        };
        let asked = &call.asked;
        self.scribe.say(|| {
            let (who, what) = (name(actor), story::asked(asked));
            format!("{who}'s {what} reaches the store: {}", story::said(&said))
        });
        said
    }

    fn claim(&mut self, actor: usize, way: &Way) -> Said {
        let now = self.world.store_time();
        let mut claim = self.stage.claims[actor].clone();
        if self.has(Bug::OwnerTokenIgnored) {
            self.world.ghost.claims += 1;
            claim.owner = token(100 + self.world.ghost.claims);
        }
        let found = self.world.shelf.record.as_ref().map(|record| record.fence);
        let claimed = match way {
            Way::ReadLapsed(read) => self.world.shelf.swap(*read, &claim, now),
            Way::Going | Way::Coming(..) => {
                self.world.shelf.claim(&claim, now, self.stage.setup.bug)
            }
        };
        if let Claimed::Granted(grant) = &claimed {
            if found != Some(grant.fence) {
                self.facts.granted = Some((grant.fence, grant.attempt));
                self.world.ghost.expired = false;
                self.world.actors[actor].granted_late = false;
            }
            self.world.ghost.fence = self.world.ghost.fence.max(grant.fence.get());
            self.promise(actor, grant.fence);
        }
        Said::Claimed(claimed)
    }

    /// Where owner tokens are ignored, every claim had another one, and the fence is all there is.
    fn claimant(&self, actor: usize, fence: Fence) -> Claimant {
        let record = self.world.shelf.record.as_ref().filter(|record| record.fence == fence);
        let ignored = record.filter(|_| self.has(Bug::OwnerTokenIgnored));
        let owner = ignored.map_or(self.stage.claims[actor].owner, |record| record.owner);
        Claimant { fence, owner }
    }

    /// Remembers until when the store keeps others away from the holder of this fence.
    fn promise(&mut self, actor: usize, fence: Fence) {
        let current = self.world.shelf.record.as_ref().is_some_and(|r| r.fence == fence);
        if let Some(until) = self.world.shelf.lease_until().filter(|_| current) {
            self.world.actors[actor].granted = Some((fence, until));
        }
    }

    fn record(&mut self, actor: usize, fence: Fence, finish: &Finish) -> Said {
        let now = self.world.store_time();
        self.facts.wrote = Some(fence);
        let unfinished = |world: &World| {
            let record = world.shelf.record.as_ref();
            record.is_some_and(|r| matches!(r.state, State::InFlight { .. } | State::Held))
        };
        let was_open = unfinished(&self.world);
        let by = self.claimant(actor, fence);
        let fenced = self.world.shelf.end(by, finish, now, self.stage.setup.bug);
        let freed = matches!(finish.action, RecordAction::Release(_) | RecordAction::Forget);
        let released = freed && fenced == Fenced::Applied;
        let broken = |run: Run| run.standing == RunStanding::Broken;
        if released && was_open && !self.world.actors[actor].run.is_some_and(broken) {
            self.next_round();
        }
        Said::Fenced(fenced)
    }
}

fn unavailable() -> StoreError {
    StoreError::new(StoreErrorKind::Unavailable, "unavailable")
}
