//! The network between the actors and the store, and what the store does with what arrives.

use semel_core::{
    Claimant, Claimed, Fence, Fenced, Finish, RecordAction, State, StoreError, StoreErrorKind,
};

use super::{
    super::{
        event::{CallFailure, ReplyDelivery},
        setup::{Bug, LEASE},
        story::{self, name},
        world::{
            Call, CallSlot, CallState, ExploredRun, RunState, StoreReply, StoreRequest, World,
            token,
        },
    },
    Transition,
};

impl Transition<'_> {
    pub(super) fn serve(&mut self, actor: usize, slot: CallSlot, delivery: ReplyDelivery) {
        let call = self.world.actors[actor].slot(slot).take().expect("a call");
        if let (CallState::Going, Some(read)) = (&call.way, self.reads_lapsed(&call.request)) {
            self.writer
                .say(|| format!("the store reads for {} that fence {read} lapsed", name(actor)));
            let way = CallState::ReadLapsed(read);
            *self.world.actors[actor].slot(slot) = Some(Call { request: call.request, way });
            return;
        }
        let reply = self.at_store(actor, &call);
        match delivery {
            ReplyDelivery::Prompt => self.hear(actor, &call.request, reply),
            ReplyDelivery::Slow => {
                self.world.left.slow -= 1;
                self.writer.say(|| "the reply is slow".to_owned());
                let way = CallState::Coming(reply, true);
                *self.world.actors[actor].slot(slot) = Some(Call { request: call.request, way });
            }
            ReplyDelivery::Lost => {
                self.world.left.losses -= 1;
                self.writer.say(|| "the reply is lost".to_owned());
                self.fail(actor, &call.request, &unavailable().effect_unknown());
            }
        }
    }

    pub(super) fn hear_slow(&mut self, actor: usize, slot: CallSlot) {
        let call = self.world.actors[actor].slot(slot).take().expect("a call");
        let CallState::Coming(reply, current) = call.way else { panic!("nothing comes") };
        self.writer.say(|| format!("the slow reply reaches {}", name(actor)));
        self.current = current;
        self.hear(actor, &call.request, reply);
    }

    pub(super) fn lose(&mut self, actor: usize, slot: CallSlot, failure: CallFailure) {
        self.world.left.losses -= 1;
        let call = self.world.actors[actor].slot(slot).take().expect("a call");
        let (error, words) = match failure {
            CallFailure::NothingHappened => (unavailable(), "fails without an effect"),
            CallFailure::Unknown => {
                (unavailable().effect_unknown(), "fails, and perhaps did something")
            }
            CallFailure::Busy => {
                (StoreError::new(StoreErrorKind::Busy, "busy"), "is refused: the store is busy")
            }
        };
        self.writer
            .say(|| format!("{}'s {} {words}", name(actor), story::store_request(&call.request)));
        self.fail(actor, &call.request, &error);
    }

    pub(super) fn give_up(&mut self, actor: usize, slot: CallSlot) {
        let call = self.world.actors[actor].slot(slot).take().expect("a call");
        self.writer.say(|| {
            format!("{} gives up on its {}", name(actor), story::store_request(&call.request))
        });
        if matches!(call.way, CallState::Coming(..)) {
            self.world.left.losses -= 1;
        } else {
            self.world.left.late -= 1;
            self.world.actors[actor].late.push(call.request.clone());
        }
        self.fail(actor, &call.request, &unavailable().effect_unknown());
    }

    pub(super) fn come_late(&mut self, actor: usize, at: usize) {
        let request = self.world.actors[actor].late.remove(at);
        self.writer.say(|| "much later".to_owned());
        let claims = request == StoreRequest::Claim;
        let _ = self.at_store(actor, &Call { request, way: CallState::Going });
        if claims && self.facts.granted.is_some() {
            self.world.actors[actor].granted_late = true;
        }
    }

    // === the store ===

    fn reads_lapsed(&self, request: &StoreRequest) -> Option<Fence> {
        let record = self.world.store.record.as_ref()?;
        let lapsed = self.world.store.lease_until()? < self.world.store_time();
        let two_steps = self.has(Bug::TakeoverInTwoSteps) && *request == StoreRequest::Claim;
        (two_steps && lapsed).then_some(record.fence)
    }

    fn at_store(&mut self, actor: usize, call: &Call) -> StoreReply {
        let now = self.world.store_time();
        let reply = match &call.request {
            StoreRequest::Claim => self.claim(actor, &call.way),
            StoreRequest::Renew(fence) => {
                self.facts.wrote = Some(*fence);
                let fenced = self.world.store.renew(self.claimant(actor, *fence), LEASE, now);
                self.promise(actor, *fence);
                StoreReply::Fenced(fenced)
            }
            StoreRequest::Record(fence, finish) => self.record(actor, *fence, finish),
            StoreRequest::Look => StoreReply::Seen(self.world.store.view(now)),
        };
        let request = &call.request;
        self.writer.say(|| {
            let (who, what) = (name(actor), story::store_request(request));
            format!("{who}'s {what} reaches the store: {}", story::store_reply(&reply))
        });
        reply
    }

    fn claim(&mut self, actor: usize, way: &CallState) -> StoreReply {
        let now = self.world.store_time();
        let mut claim = self.exploration.claims[actor].clone();
        if self.has(Bug::OwnerTokenIgnored) {
            self.world.ghost.claims += 1;
            claim.owner = token(100 + self.world.ghost.claims);
        }
        let found = self.world.store.record.as_ref().map(|record| record.fence);
        let claimed = match way {
            CallState::ReadLapsed(read) => self.world.store.swap(*read, &claim, now),
            CallState::Going | CallState::Coming(..) => {
                self.world.store.claim(&claim, now, self.exploration.setup.bug)
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
        StoreReply::Claimed(claimed)
    }

    /// Where owner tokens are ignored, every claim had another one, and the fence is all there is.
    fn claimant(&self, actor: usize, fence: Fence) -> Claimant {
        let record = self.world.store.record.as_ref().filter(|record| record.fence == fence);
        let ignored = record.filter(|_| self.has(Bug::OwnerTokenIgnored));
        let owner = ignored.map_or(self.exploration.claims[actor].owner, |record| record.owner);
        Claimant::new(fence, owner)
    }

    /// Remembers until when the store keeps others away from the holder of this fence.
    fn promise(&mut self, actor: usize, fence: Fence) {
        let current = self.world.store.record.as_ref().is_some_and(|r| r.fence == fence);
        if let Some(until) = self.world.store.lease_until().filter(|_| current) {
            self.world.actors[actor].granted = Some((fence, until));
        }
    }

    fn record(&mut self, actor: usize, fence: Fence, finish: &Finish) -> StoreReply {
        let now = self.world.store_time();
        self.facts.wrote = Some(fence);
        let unfinished = |world: &World| {
            let record = world.store.record.as_ref();
            record.is_some_and(|r| matches!(r.state, State::InFlight { .. } | State::Held))
        };
        let was_open = unfinished(&self.world);
        let by = self.claimant(actor, fence);
        let fenced = self.world.store.end(by, finish, now, self.exploration.setup.bug);
        let freed = matches!(finish.action, RecordAction::Release(_) | RecordAction::Forget);
        let released = freed && fenced == Fenced::Applied;
        let broken = |run: ExploredRun| run.state == RunState::Broken;
        if released && was_open && !self.world.actors[actor].run.is_some_and(broken) {
            self.next_round();
        }
        StoreReply::Fenced(fenced)
    }
}

fn unavailable() -> StoreError {
    StoreError::new(StoreErrorKind::Unavailable, "unavailable")
}
