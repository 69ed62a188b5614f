//! What can happen next.

use semel_core::{Flow, OnUnknown, StateName};

use super::{
    setup::Setup,
    world::{Actor, CallSlot, CallState, RequestPhase, RunState, StoreRequest, World},
};

/// One step of a story. Actors are named by their number.
#[derive(Clone, Copy, Debug)]
pub(super) enum WorldEvent {
    Arrive(usize),
    /// The store serves a call.
    Serve(usize, CallSlot, ReplyDelivery),
    /// A slow reply arrives.
    Hear(usize, CallSlot),
    /// A call does not reach the store, and its actor gets an error.
    Fail(usize, CallSlot, CallFailure),
    /// The actor waits no longer; what it asked may still arrive.
    GiveUp(usize, CallSlot),
    /// What was given up on reaches the store.
    ComeLate(usize, usize),
    Ring(usize),
    /// A joiner gets the reply of the owner's client, or learns that another process runs it.
    HearOwner(usize),
    TakeEffect(usize),
    End(usize, RunEnd),
    Crash(usize),
    Tick,
    Reap,
    Sweep,
    Look,
    OperatorAct(OperatorAct),
}

/// What becomes of the reply.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum ReplyDelivery {
    Prompt,
    Slow,
    Lost,
}

/// The error that the actor of a lost request gets.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum CallFailure {
    NothingHappened,
    Unknown,
    Busy,
}

/// How a run ends.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum RunEnd {
    Kept,
    Retry,
    Forgotten,
    NeverReached,
    Broken,
}

/// What an operator does.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum OperatorAct {
    Complete,
    Release,
    Forget,
}

/// Everything that can happen in this world. The order is fixed, so that stories are.
pub(super) fn actions(setup: &Setup, world: &World) -> Vec<WorldEvent> {
    let mut actions = Vec::with_capacity(32);
    for (number, actor) in world.actors.iter().enumerate() {
        arrivals(setup, world, number, &mut actions);
        for slot in [CallSlot::Main, CallSlot::Renewal] {
            calls(world, number, slot, &mut actions);
        }
        actions.extend((0..actor.late.len()).map(|at| WorldEvent::ComeLate(number, at)));
        due_ticks(world, number, &mut actions);
        runs(setup, actor, number, &mut actions);
        if actor.life == RequestPhase::Active && world.left.crashes > 0 {
            actions.push(WorldEvent::Crash(number));
        }
    }
    operator(setup, world, &mut actions);
    actions
}

/// Requests that may not meet in one process are alike, so they arrive in the order of numbers.
fn arrivals(setup: &Setup, world: &World, number: usize, actions: &mut Vec<WorldEvent>) {
    let actor = &world.actors[number];
    let arrived = |actor: &Actor| actor.life != RequestPhase::NotArrived;
    if !arrived(actor) && (setup.joins || world.actors[..number].iter().all(arrived)) {
        actions.push(WorldEvent::Arrive(number));
    }
}

fn calls(world: &World, number: usize, slot: CallSlot, actions: &mut Vec<WorldEvent>) {
    let actor = &world.actors[number];
    let call = match slot {
        CallSlot::Main => &actor.call,
        CallSlot::Renewal => &actor.renewal,
    };
    let Some(call) = call else { return };
    if matches!(call.way, CallState::Coming(..)) {
        actions.push(WorldEvent::Hear(number, slot));
        if world.left.losses > 0 {
            actions.push(WorldEvent::GiveUp(number, slot));
        }
        return;
    }
    actions.push(WorldEvent::Serve(number, slot, ReplyDelivery::Prompt));
    if world.left.slow > 0 && slot == CallSlot::Main {
        actions.push(WorldEvent::Serve(number, slot, ReplyDelivery::Slow));
    }
    if world.left.late > 0 && call.request != StoreRequest::Look {
        actions.push(WorldEvent::GiveUp(number, slot));
    }
    if world.left.losses == 0 {
        return;
    }
    if call.request != StoreRequest::Look {
        actions.push(WorldEvent::Serve(number, slot, ReplyDelivery::Lost));
    }
    actions.push(WorldEvent::Fail(number, slot, CallFailure::NothingHappened));
    if call.request == StoreRequest::Claim {
        actions.push(WorldEvent::Fail(number, slot, CallFailure::Unknown));
        actions.push(WorldEvent::Fail(number, slot, CallFailure::Busy));
    }
}

fn due_ticks(world: &World, number: usize, actions: &mut Vec<WorldEvent>) {
    let actor = &world.actors[number];
    let Some(flow) = &actor.flow else { return };
    if flow.next_tick().is_some_and(|next_tick| next_tick <= world.process_time(number)) {
        actions.push(WorldEvent::Ring(number));
    }
    let owner = actor.joined.map(|owner| &world.actors[owner]);
    let waits = |owner: &Actor| owner.flow.as_ref().is_some_and(Flow::is_waiting);
    if owner.is_some_and(|owner| owner.reply.is_some() || waits(owner)) {
        actions.push(WorldEvent::HearOwner(number));
    }
}

fn runs(setup: &Setup, actor: &Actor, number: usize, actions: &mut Vec<WorldEvent>) {
    let Some(run) = actor.run else { return };
    // Where the route says `rerun`, effects are not counted and need not be distinguished.
    let counts = run.counts && setup.on_unknown != OnUnknown::Rerun;
    if counts && !run.effect && run.state != RunState::Over {
        actions.push(WorldEvent::TakeEffect(number));
    }
    if run.state != RunState::Going || actor.has_crashed() {
        return;
    }
    let ends: &[RunEnd] = match (counts, run.effect) {
        (false, _) => {
            &[RunEnd::Kept, RunEnd::Retry, RunEnd::Forgotten, RunEnd::NeverReached, RunEnd::Broken]
        }
        (true, false) => &[RunEnd::Retry, RunEnd::Forgotten, RunEnd::NeverReached, RunEnd::Broken],
        (true, true) => &[RunEnd::Kept, RunEnd::Broken],
    };
    actions.extend(ends.iter().map(|how| WorldEvent::End(number, *how)));
}

fn operator(setup: &Setup, world: &World, actions: &mut Vec<WorldEvent>) {
    let now = world.store_time();
    if world.ticks < setup.bounds.ticks && world.store.record.is_some() {
        actions.push(WorldEvent::Tick);
    } else if world.ticks < setup.bounds.ticks {
        // With an empty store only a pending call or a timer depends on the time.
        let notices = |actor: &Actor| actor.life == RequestPhase::Active;
        if world.actors.iter().any(notices) {
            actions.push(WorldEvent::Tick);
        }
    }
    if world.store.clone().reap(now) {
        actions.push(WorldEvent::Reap);
    }
    if world.store.clone().sweep(now, setup.bug) {
        actions.push(WorldEvent::Sweep);
    }
    if world.left.acts > 0
        && let Some(seen) = world.store.view(now)
        && world.seen != Some((seen.fence, seen.state.name()))
        && seen.state.name() != StateName::InFlight
    {
        actions.push(WorldEvent::Look);
    }
    match world.seen {
        Some((_, StateName::Held)) => {
            actions.extend(
                [OperatorAct::Complete, OperatorAct::Release, OperatorAct::Forget]
                    .map(WorldEvent::OperatorAct),
            );
        }
        Some(_) => actions.push(WorldEvent::OperatorAct(OperatorAct::Forget)),
        None => {}
    }
}
