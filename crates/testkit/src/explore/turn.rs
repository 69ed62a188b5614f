//! One action in one world: the driver of the request machine, the network, and the house.

mod house;
mod network;

use semel_core::{
    Answer, Claimed, ExecutionResult, Fence, Fenced, Finish, Flow, Occupied, Reason, RecordAction,
    Reply, Standing, StateName, Step, StoreError, Verdict,
};

use super::{
    action::{Action, How},
    setup::Bug,
    story::{self, Scribe, name},
    world::{Asked, Call, Life, Run, RunStanding, Said, Slot, Stage, Way, World, answer_of},
};

/// What an action did, as far as an invariant asks and the worlds before and after do not tell.
#[derive(Default)]
pub(super) struct Facts {
    /// Whose run began.
    pub(super) begun: Option<usize>,
    /// A new fence was granted, as this attempt.
    pub(super) granted: Option<(Fence, u32)>,
    /// The fence that a write carried.
    pub(super) wrote: Option<Fence>,
    /// An operator's act that was applied: the fence and the state that were seen.
    pub(super) acted: Option<(Fence, StateName)>,
    /// The act was to forget.
    pub(super) forgot: bool,
    /// A client was given this answer for good, on what the store said in this generation.
    pub(super) acknowledged: Option<Answer>,
}

/// The world after `action`.
pub(super) fn take(
    stage: &Stage,
    before: &World,
    action: Action,
    scribe: &mut Scribe,
) -> (World, Facts) {
    let world = before.clone();
    let mut turn = Turn { stage, world, facts: Facts::default(), current: true, scribe };
    turn.scribe.begin();
    turn.take(action);
    turn.count_expiry();
    turn.clear_the_past();
    (turn.world, turn.facts)
}

struct Turn<'a> {
    stage: &'a Stage,
    world: World,
    facts: Facts,
    /// Whether what is heard now was said in this generation of the record.
    current: bool,
    scribe: &'a mut Scribe,
}

impl Turn<'_> {
    fn take(&mut self, action: Action) {
        match action {
            Action::Arrive(actor) => self.arrive(actor),
            Action::Serve(actor, slot, fate) => self.serve(actor, slot, fate),
            Action::Hear(actor, slot) => self.hear_slow(actor, slot),
            Action::Fail(actor, slot, failure) => self.lose(actor, slot, failure),
            Action::GiveUp(actor, slot) => self.give_up(actor, slot),
            Action::ComeLate(actor, at) => self.come_late(actor, at),
            Action::Ring(actor) => self.ring(actor),
            Action::HearOwner(actor) => self.hear_owner(actor),
            Action::TakeEffect(actor) => self.take_effect(actor),
            Action::End(actor, how) => self.end(actor, how),
            Action::Crash(actor) => self.crash(actor),
            Action::Tick => {
                self.world.ticks += 1;
                self.scribe.say(|| "time passes".to_owned());
            }
            Action::Reap => {
                self.world.shelf.reap(self.world.store_time());
                self.scribe.say(|| "the reaper comes by".to_owned());
            }
            Action::Sweep => {
                self.world.shelf.sweep(self.world.store_time(), self.stage.setup.bug);
                self.scribe.say(|| "the record is swept".to_owned());
            }
            Action::Look => self.operator_looks(),
            Action::Act(act) => self.operator_acts(act),
        }
    }

    fn has(&self, bug: Bug) -> bool {
        self.stage.setup.bug == Some(bug)
    }

    // === the driver ===

    fn arrive(&mut self, actor: usize) {
        let now = self.world.process_time(actor);
        let other = 1_usize.wrapping_sub(actor);
        let owner = self.world.actors.get(other).filter(|_| self.stage.setup.joins);
        let joins = owner
            .is_some_and(|owner| owner.life == Life::Here && owner.reply.is_none() && !owner.waits);
        let (flow, step) = if joins {
            self.scribe.say(|| format!("{} arrives and joins {}", name(actor), name(other)));
            self.world.actors[actor].joined = Some(other);
            self.world.actors[actor].waits = true;
            Flow::join(self.stage.plan, self.stage.claims[other].fingerprint, now)
        } else {
            self.scribe.say(|| format!("{} arrives", name(actor)));
            Flow::begin(self.stage.plan, now)
        };
        self.world.actors[actor].flow = Some(flow);
        self.world.actors[actor].life = Life::Here;
        self.follow(actor, step);
    }

    /// Does what the machine says.
    fn follow(&mut self, actor: usize, step: Step) {
        match step {
            Step::Claim => self.ask(actor, Slot::Main, Asked::Claim),
            Step::Renew(fence) => self.ask(actor, Slot::Renewal, Asked::Renew(fence)),
            Step::Record(fence, ending) => {
                self.ask(actor, Slot::Main, Asked::Record(fence, ending));
            }
            Step::Look => self.ask(actor, Slot::Main, Asked::Look),
            Step::Execute(_) => {
                self.scribe.say(|| format!("{} begins to run", name(actor)));
                self.begin(actor, true);
                self.facts.begun = Some(actor);
            }
            Step::Pass => {
                self.scribe.say(|| format!("{} begins to run unguarded", name(actor)));
                self.begin(actor, false);
            }
            Step::Reply(reply) => self.reply(actor, reply),
            Step::Guard(_) | Step::Sleep | Step::Done => {}
        }
    }

    fn begin(&mut self, actor: usize, counts: bool) {
        let run = Run { standing: RunStanding::Going, effect: false, counts };
        self.world.actors[actor].run = Some(run);
        self.world.actors[actor].ran = true;
    }

    fn ask(&mut self, actor: usize, slot: Slot, asked: Asked) {
        self.scribe.say(|| format!("{} sends its {}", name(actor), story::asked(&asked)));
        *self.world.actors[actor].slot(slot) = Some(Call { asked, way: Way::Going });
    }

    fn reply(&mut self, actor: usize, reply: Reply) {
        self.scribe.say(|| format!("{}'s client gets {}", name(actor), story::reply(&reply)));
        let kept = match &reply {
            Reply::Ran(answer) if *answer == answer_of(actor) => Some(answer),
            Reply::Replayed(answer) => Some(answer),
            Reply::Ran(_) | Reply::Joined(_) | Reply::Unguarded(_) | Reply::Problem(_) => None,
        };
        // What a joiner gets was acknowledged when its owner's client got it.
        let joined = self.world.actors[actor].joined.is_some();
        if let Some(answer) = kept.filter(|_| !joined && self.current) {
            self.world.ghost.acknowledged.get_or_insert_with(|| answer.clone());
            self.facts.acknowledged = Some(answer.clone());
        }
        let actor = &mut self.world.actors[actor];
        actor.reply = Some(reply);
        actor.replies += 1;
    }

    fn with_flow(&mut self, actor: usize, event: impl FnOnce(&mut Flow) -> Step) {
        let Some(flow) = &mut self.world.actors[actor].flow else { return };
        let step = event(flow);
        self.follow(actor, step);
    }

    fn hear(&mut self, actor: usize, asked: &Asked, said: Said) {
        let now = self.world.process_time(actor);
        match said {
            Said::Claimed(claimed) => {
                match &claimed {
                    Claimed::Occupied(Occupied::InFlight { .. }) => {
                        self.world.actors[actor].waits = true;
                    }
                    Claimed::Granted(_)
                        if self.has(Bug::LeaseFromReply)
                            && self.world.actors[actor].replies == 0 =>
                    {
                        self.world.actors[actor].flow = Some(Flow::begin(self.stage.plan, now).0);
                    }
                    Claimed::Granted(_) | Claimed::Occupied(_) => {}
                }
                self.with_flow(actor, |flow| flow.on_claimed(claimed, now));
            }
            Said::Fenced(fenced) if matches!(asked, Asked::Renew(_)) => {
                self.with_flow(actor, |flow| flow.on_renewed(Some(fenced), now));
            }
            Said::Fenced(fenced) => self.with_flow(actor, |flow| flow.on_recorded(fenced, now)),
            Said::Seen(Some(seen))
                if self.has(Bug::WaiterTakesOver)
                    && matches!(seen.standing, Standing::Released { .. }) =>
            {
                let (flow, step) = Flow::begin(self.stage.plan, now);
                self.world.actors[actor].flow = Some(flow);
                self.follow(actor, step);
            }
            Said::Seen(seen) => self.with_flow(actor, |flow| flow.on_seen(seen.as_ref(), now)),
        }
    }

    fn fail(&mut self, actor: usize, asked: &Asked, error: &StoreError) {
        let now = self.world.process_time(actor);
        match asked {
            Asked::Claim if self.has(Bug::ErrorSwallowed) => {}
            Asked::Claim => self.with_flow(actor, |flow| flow.on_claim_failed(error, now)),
            Asked::Renew(_) => self.with_flow(actor, |flow| flow.on_renewed(None, now)),
            Asked::Record(_, Finish { action: RecordAction::Complete(_), .. })
                if self.has(Bug::AcknowledgedEarly) =>
            {
                self.with_flow(actor, |flow| flow.on_recorded(Fenced::Applied, now));
            }
            Asked::Record(..) => self.with_flow(actor, |flow| flow.on_record_failed(error, now)),
            Asked::Look => self.with_flow(actor, |flow| flow.on_look_failed(now)),
        }
    }

    fn ring(&mut self, actor: usize) {
        let now = self.world.process_time(actor);
        self.scribe.say(|| format!("{}'s alarm rings", name(actor)));
        self.with_flow(actor, |flow| flow.on_tick(now));
    }

    fn hear_owner(&mut self, actor: usize) {
        let joined = self.world.actors[actor].joined;
        let reply = joined.and_then(|owner| self.world.actors[owner].reply.clone());
        if let Some(reply) = reply {
            self.scribe.say(|| format!("{} hears from the owner", name(actor)));
            return self.with_flow(actor, |flow| flow.on_joined(reply));
        }
        // Who was joined waits for somebody elsewhere: from now on, both do.
        self.scribe.say(|| format!("{} hears that it runs elsewhere", name(actor)));
        self.world.actors[actor].joined = None;
        let now = self.world.process_time(actor);
        self.with_flow(actor, |flow| flow.on_elsewhere(now));
    }

    fn crash(&mut self, actor: usize) {
        self.world.left.crashes -= 1;
        self.scribe.say(|| format!("{}'s process crashes", name(actor)));
        let process = if self.stage.setup.joins && actor < 2 { 0..2 } else { actor..actor + 1 };
        for actor in &mut self.world.actors[process] {
            // Who has not arrived yet, or is done, loses nothing.
            if actor.life != Life::Here {
                continue;
            }
            actor.life = Life::Crashed;
            actor.flow = None;
            for call in [actor.call.take(), actor.renewal.take()].into_iter().flatten() {
                if !matches!(call.way, Way::Coming(..)) && call.asked != Asked::Look {
                    actor.late.push(call.asked);
                }
            }
        }
    }

    // === the execution ===

    fn take_effect(&mut self, actor: usize) {
        self.scribe.say(|| format!("{}'s run takes effect", name(actor)));
        let run = self.world.actors[actor].run.as_mut().expect("a run");
        run.effect = true;
        let ghost = &mut self.world.ghost;
        ghost.effects += u8::from(run.counts);
    }

    fn end(&mut self, actor: usize, how: How) {
        let now = self.world.process_time(actor);
        let run = self.world.actors[actor].run.as_mut().expect("a run");
        run.standing = if how == How::Broken { RunStanding::Broken } else { RunStanding::Over };
        let answered = |verdict, answer| {
            let reason = Reason::Answered(429);
            ExecutionResult::Answered { verdict, answer, reason }
        };
        let (ended, words) = match how {
            How::Kept => (answered(Verdict::Completed, answer_of(actor)), "ends with its answer"),
            How::Retry => {
                (answered(Verdict::Retry, Answer::not_retained(429)), "ends: 429, try again")
            }
            How::Forgotten => {
                (answered(Verdict::Forget, Answer::not_retained(307)), "ends: 307, elsewhere")
            }
            How::NeverReached => (ExecutionResult::NeverReached, "never reaches the upstream"),
            How::Broken if self.has(Bug::BrokenTakenForUnreached) => {
                (ExecutionResult::NeverReached, "breaks off")
            }
            How::Broken => (ExecutionResult::Broken(Reason::Panicked), "breaks off"),
        };
        self.scribe.say(|| format!("{}'s run {words}", name(actor)));
        self.with_flow(actor, |flow| flow.on_ended(ended, now));
    }
}
