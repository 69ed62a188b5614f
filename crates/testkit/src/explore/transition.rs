//! One action in one world: the driver of the request machine, the network, and operators.

mod network;
mod operator;

use semel_core::{
    Action, Answer, Claimed, ExecutionResult, Fence, Fenced, Finish, Flow, Occupied, Reason,
    RecordAction, Reply, StateName, StateView, StoreError, Verdict,
};

use super::{
    event::{RunEnd, WorldEvent},
    setup::Bug,
    story::{self, TraceWriter, name},
    world::{
        Call, CallSlot, CallState, Exploration, ExploredRun, RequestPhase, RunState, StoreReply,
        StoreRequest, World, answer_of,
    },
};

/// What an action did, as far as an invariant asks and the worlds before and after do not tell.
#[derive(Default)]
pub(super) struct StepFacts {
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
    /// A client got this acknowledged answer, from a reply of this generation.
    pub(super) acknowledged: Option<Answer>,
}

/// The world after `action`.
pub(super) fn take(
    exploration: &Exploration,
    before: &World,
    action: WorldEvent,
    writer: &mut TraceWriter,
) -> (World, StepFacts) {
    let world = before.clone();
    let mut transition =
        Transition { exploration, world, facts: StepFacts::default(), current: true, writer };
    transition.writer.begin();
    transition.take(action);
    transition.count_expiry();
    transition.clear_the_past();
    (transition.world, transition.facts)
}

struct Transition<'a> {
    exploration: &'a Exploration,
    world: World,
    facts: StepFacts,
    /// Whether what is heard now was said in this generation of the record.
    current: bool,
    writer: &'a mut TraceWriter,
}

impl Transition<'_> {
    fn take(&mut self, action: WorldEvent) {
        match action {
            WorldEvent::Arrive(actor) => self.arrive(actor),
            WorldEvent::Serve(actor, slot, delivery) => self.serve(actor, slot, delivery),
            WorldEvent::Hear(actor, slot) => self.hear_slow(actor, slot),
            WorldEvent::Fail(actor, slot, failure) => self.lose(actor, slot, failure),
            WorldEvent::GiveUp(actor, slot) => self.give_up(actor, slot),
            WorldEvent::ComeLate(actor, at) => self.come_late(actor, at),
            WorldEvent::Ring(actor) => self.ring(actor),
            WorldEvent::HearOwner(actor) => self.hear_owner(actor),
            WorldEvent::TakeEffect(actor) => self.take_effect(actor),
            WorldEvent::End(actor, how) => self.end(actor, how),
            WorldEvent::Crash(actor) => self.crash(actor),
            WorldEvent::Tick => {
                self.world.ticks += 1;
                self.writer.say(|| "time passes".to_owned());
            }
            WorldEvent::Reap => {
                self.world.store.reap(self.world.store_time());
                self.writer.say(|| "the reaper runs".to_owned());
            }
            WorldEvent::Sweep => {
                self.world.store.sweep(self.world.store_time(), self.exploration.setup.bug);
                self.writer.say(|| "the record is swept".to_owned());
            }
            WorldEvent::Look => self.operator_looks(),
            WorldEvent::OperatorAct(act) => self.operator_acts(act),
        }
    }

    fn has(&self, bug: Bug) -> bool {
        self.exploration.setup.bug == Some(bug)
    }

    // === the driver ===

    fn arrive(&mut self, actor: usize) {
        let now = self.world.process_time(actor);
        let other = 1_usize.wrapping_sub(actor);
        let owner = self.world.actors.get(other).filter(|_| self.exploration.setup.joins);
        let joins = owner.is_some_and(|owner| {
            owner.life == RequestPhase::Active && owner.reply.is_none() && !owner.waits
        });
        let (flow, step) = if joins {
            self.writer.say(|| format!("{} arrives and joins {}", name(actor), name(other)));
            self.world.actors[actor].joined = Some(other);
            self.world.actors[actor].waits = true;
            Flow::join(self.exploration.plan, self.exploration.claims[other].fingerprint, now)
        } else {
            self.writer.say(|| format!("{} arrives", name(actor)));
            Flow::begin(self.exploration.plan, now)
        };
        self.world.actors[actor].flow = Some(flow);
        self.world.actors[actor].life = RequestPhase::Active;
        self.follow(actor, step);
    }

    /// Does what the machine says.
    fn follow(&mut self, actor: usize, step: Action) {
        match step {
            Action::Claim => self.ask(actor, CallSlot::Main, StoreRequest::Claim),
            Action::Renew(fence) => self.ask(actor, CallSlot::Renewal, StoreRequest::Renew(fence)),
            Action::Record(fence, ending) => {
                self.ask(actor, CallSlot::Main, StoreRequest::Record(fence, ending));
            }
            Action::Look => self.ask(actor, CallSlot::Main, StoreRequest::Look),
            Action::Execute(_) => {
                self.writer.say(|| format!("{} begins to run", name(actor)));
                self.begin(actor, true);
                self.facts.begun = Some(actor);
            }
            Action::Pass => {
                self.writer.say(|| format!("{} begins to run unguarded", name(actor)));
                self.begin(actor, false);
            }
            Action::Reply(reply) => self.reply(actor, reply),
            Action::Guard(_) | Action::Sleep | Action::Done => {}
        }
    }

    fn begin(&mut self, actor: usize, counts: bool) {
        let run = ExploredRun { state: RunState::Going, effect: false, counts };
        self.world.actors[actor].run = Some(run);
        self.world.actors[actor].ran = true;
    }

    fn ask(&mut self, actor: usize, slot: CallSlot, request: StoreRequest) {
        self.writer.say(|| format!("{} sends its {}", name(actor), story::store_request(&request)));
        *self.world.actors[actor].slot(slot) = Some(Call { request, way: CallState::Going });
    }

    fn reply(&mut self, actor: usize, reply: Reply) {
        self.writer.say(|| format!("{}'s client gets {}", name(actor), story::reply(&reply)));
        let kept = match &reply {
            Reply::Ran(answer) if *answer == answer_of(actor) => Some(answer),
            Reply::Replayed(answer) => Some(answer),
            Reply::Ran(_)
            | Reply::Joined(_)
            | Reply::Unguarded(_)
            | Reply::Limited(_)
            | Reply::Problem(_) => None,
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

    fn with_flow(&mut self, actor: usize, event: impl FnOnce(&mut Flow) -> Action) {
        let Some(flow) = &mut self.world.actors[actor].flow else { return };
        let step = event(flow);
        self.follow(actor, step);
    }

    fn hear(&mut self, actor: usize, request: &StoreRequest, reply: StoreReply) {
        let now = self.world.process_time(actor);
        match reply {
            StoreReply::Claimed(claimed) => {
                match &claimed {
                    Claimed::Occupied(Occupied::InFlight { .. }) => {
                        self.world.actors[actor].waits = true;
                    }
                    Claimed::Granted(_)
                        if self.has(Bug::LeaseFromReply)
                            && self.world.actors[actor].replies == 0 =>
                    {
                        self.world.actors[actor].flow =
                            Some(Flow::begin(self.exploration.plan, now).0);
                    }
                    Claimed::Granted(_) | Claimed::Occupied(_) => {}
                }
                self.with_flow(actor, |flow| flow.on_claimed(claimed, now));
            }
            StoreReply::Fenced(fenced) if matches!(request, StoreRequest::Renew(_)) => {
                self.with_flow(actor, |flow| flow.on_renewed(Some(fenced), now));
            }
            StoreReply::Fenced(fenced) => {
                self.with_flow(actor, |flow| flow.on_recorded(fenced, now))
            }
            StoreReply::Seen(Some(seen))
                if self.has(Bug::WaiterTakesOver)
                    && matches!(seen.state, StateView::Released { .. }) =>
            {
                let (flow, step) = Flow::begin(self.exploration.plan, now);
                self.world.actors[actor].flow = Some(flow);
                self.follow(actor, step);
            }
            StoreReply::Seen(seen) => {
                self.with_flow(actor, |flow| flow.on_seen(seen.as_ref(), now))
            }
        }
    }

    fn fail(&mut self, actor: usize, request: &StoreRequest, error: &StoreError) {
        let now = self.world.process_time(actor);
        match request {
            StoreRequest::Claim if self.has(Bug::ErrorSwallowed) => {}
            StoreRequest::Claim => self.with_flow(actor, |flow| flow.on_claim_failed(error, now)),
            StoreRequest::Renew(_) => self.with_flow(actor, |flow| flow.on_renewed(None, now)),
            StoreRequest::Record(_, Finish { action: RecordAction::Complete(_), .. })
                if self.has(Bug::AcknowledgedEarly) =>
            {
                self.with_flow(actor, |flow| flow.on_recorded(Fenced::Applied, now));
            }
            StoreRequest::Record(..) => {
                self.with_flow(actor, |flow| flow.on_record_failed(error, now))
            }
            StoreRequest::Look => self.with_flow(actor, |flow| flow.on_look_failed(now)),
        }
    }

    fn ring(&mut self, actor: usize) {
        let now = self.world.process_time(actor);
        self.writer.say(|| format!("{}'s timer fires", name(actor)));
        self.with_flow(actor, |flow| flow.on_tick(now));
    }

    fn hear_owner(&mut self, actor: usize) {
        let joined = self.world.actors[actor].joined;
        let reply = joined.and_then(|owner| self.world.actors[owner].reply.clone());
        if let Some(reply) = reply {
            self.writer.say(|| format!("{} hears from the owner", name(actor)));
            return self.with_flow(actor, |flow| flow.on_joined(reply));
        }
        // The joined request waits for another process: from now on, both do.
        self.writer.say(|| format!("{} hears that it runs elsewhere", name(actor)));
        self.world.actors[actor].joined = None;
        let now = self.world.process_time(actor);
        self.with_flow(actor, |flow| flow.on_elsewhere(now));
    }

    fn crash(&mut self, actor: usize) {
        self.world.left.crashes -= 1;
        self.writer.say(|| format!("{}'s process crashes", name(actor)));
        let process =
            if self.exploration.setup.joins && actor < 2 { 0..2 } else { actor..actor + 1 };
        for actor in &mut self.world.actors[process] {
            // A request that has not arrived yet, or is done, loses nothing.
            if actor.life != RequestPhase::Active {
                continue;
            }
            actor.life = RequestPhase::Crashed;
            actor.flow = None;
            for call in [actor.call.take(), actor.renewal.take()].into_iter().flatten() {
                if !matches!(call.way, CallState::Coming(..)) && call.request != StoreRequest::Look
                {
                    actor.late.push(call.request);
                }
            }
        }
    }

    // === the execution ===

    fn take_effect(&mut self, actor: usize) {
        self.writer.say(|| format!("{}'s run takes effect", name(actor)));
        let run = self.world.actors[actor].run.as_mut().expect("a run");
        run.effect = true;
        let ghost = &mut self.world.ghost;
        ghost.effects += u8::from(run.counts);
    }

    fn end(&mut self, actor: usize, how: RunEnd) {
        let now = self.world.process_time(actor);
        let run = self.world.actors[actor].run.as_mut().expect("a run");
        run.state = if how == RunEnd::Broken { RunState::Broken } else { RunState::Over };
        let answered = |verdict, answer| {
            let reason = Reason::Answered(429);
            ExecutionResult::Answered { verdict, answer, reason }
        };
        let (ended, words) = match how {
            RunEnd::Kept => {
                (answered(Verdict::Completed, answer_of(actor)), "ends with its answer")
            }
            RunEnd::Retry => {
                (answered(Verdict::Retry, Answer::not_retained(429)), "ends: 429, try again")
            }
            RunEnd::Forgotten => {
                (answered(Verdict::Forget, Answer::not_retained(307)), "ends: 307, elsewhere")
            }
            RunEnd::NeverReached => (ExecutionResult::NeverReached, "never reaches the upstream"),
            RunEnd::Broken if self.has(Bug::BrokenTakenForUnreached) => {
                (ExecutionResult::NeverReached, "breaks off")
            }
            RunEnd::Broken => (ExecutionResult::Broken(Reason::Panicked), "breaks off"),
        };
        self.writer.say(|| format!("{}'s run {words}", name(actor)));
        self.with_flow(actor, |flow| flow.on_ended(ended, now));
    }
}
