//! What can happen next.

use semel_core::{Flow, OnUnknown, StateName};

use super::{
    setup::Setup,
    world::{Actor, Asked, Life, RunStanding, Slot, Way, World},
};

/// One step of a story. Actors are named by their number.
#[derive(Clone, Copy, Debug)]
pub(super) enum Action {
    Arrive(usize),
    /// The store serves a call.
    Serve(usize, Slot, Fate),
    /// A slow reply arrives.
    Hear(usize, Slot),
    /// A call does not reach the store, and its actor is told.
    Fail(usize, Slot, Failure),
    /// The actor waits no longer; what it asked may still arrive.
    GiveUp(usize, Slot),
    /// What was given up on reaches the store.
    ComeLate(usize, usize),
    Ring(usize),
    /// A joiner hears what the owner's client got, or that somebody elsewhere runs it.
    HearOwner(usize),
    TakeEffect(usize),
    End(usize, How),
    Crash(usize),
    Tick,
    Reap,
    Sweep,
    Look,
    Act(Act),
}

/// What becomes of the reply.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Fate {
    Prompt,
    Slow,
    Lost,
}

/// What the actor of a lost request is told.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Failure {
    NothingHappened,
    Unknown,
    Busy,
}

/// How a run ends.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum How {
    Kept,
    Retry,
    Forgotten,
    NeverReached,
    Broken,
}

/// What an operator does.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Act {
    Complete,
    Release,
    Forget,
}

/// Everything that can happen in this world. The order is fixed, so that stories are.
pub(super) fn actions(setup: &Setup, world: &World) -> Vec<Action> {
    let mut actions = Vec::with_capacity(32);
    for (number, actor) in world.actors.iter().enumerate() {
        arrivals(setup, world, number, &mut actions);
        for slot in [Slot::Main, Slot::Renewal] {
            calls(world, number, slot, &mut actions);
        }
        actions.extend((0..actor.late.len()).map(|at| Action::ComeLate(number, at)));
        alarms(world, number, &mut actions);
        runs(setup, actor, number, &mut actions);
        if actor.life == Life::Here && world.left.crashes > 0 {
            actions.push(Action::Crash(number));
        }
    }
    house(setup, world, &mut actions);
    actions
}

/// Requests that may not meet in one process are alike, so they arrive in the order of numbers.
fn arrivals(setup: &Setup, world: &World, number: usize, actions: &mut Vec<Action>) {
    let actor = &world.actors[number];
    let arrived = |actor: &Actor| actor.life != Life::ToCome;
    if !arrived(actor) && (setup.joins || world.actors[..number].iter().all(arrived)) {
        actions.push(Action::Arrive(number));
    }
}

fn calls(world: &World, number: usize, slot: Slot, actions: &mut Vec<Action>) {
    let actor = &world.actors[number];
    let call = match slot {
        Slot::Main => &actor.call,
        Slot::Renewal => &actor.renewal,
    };
    let Some(call) = call else { return };
    if matches!(call.way, Way::Coming(..)) {
        actions.push(Action::Hear(number, slot));
        if world.left.losses > 0 {
            actions.push(Action::GiveUp(number, slot));
        }
        return;
    }
    actions.push(Action::Serve(number, slot, Fate::Prompt));
    if world.left.slow > 0 && slot == Slot::Main {
        actions.push(Action::Serve(number, slot, Fate::Slow));
    }
    if world.left.late > 0 && call.asked != Asked::Look {
        actions.push(Action::GiveUp(number, slot));
    }
    if world.left.losses == 0 {
        return;
    }
    if call.asked != Asked::Look {
        actions.push(Action::Serve(number, slot, Fate::Lost));
    }
    actions.push(Action::Fail(number, slot, Failure::NothingHappened));
    if call.asked == Asked::Claim {
        actions.push(Action::Fail(number, slot, Failure::Unknown));
        actions.push(Action::Fail(number, slot, Failure::Busy));
    }
}

fn alarms(world: &World, number: usize, actions: &mut Vec<Action>) {
    let actor = &world.actors[number];
    let Some(flow) = &actor.flow else { return };
    if flow.alarm().is_some_and(|alarm| alarm <= world.process_time(number)) {
        actions.push(Action::Ring(number));
    }
    let owner = actor.joined.map(|owner| &world.actors[owner]);
    let waits = |owner: &Actor| owner.flow.as_ref().is_some_and(Flow::is_waiting);
    if owner.is_some_and(|owner| owner.reply.is_some() || waits(owner)) {
        actions.push(Action::HearOwner(number));
    }
}

fn runs(setup: &Setup, actor: &Actor, number: usize, actions: &mut Vec<Action>) {
    let Some(run) = actor.run else { return };
    // Where the route says `rerun` nobody counts effects, so they need not be told apart.
    let counts = run.counts && setup.on_unknown != OnUnknown::Rerun;
    if counts && !run.effect && run.standing != RunStanding::Over {
        actions.push(Action::TakeEffect(number));
    }
    if run.standing != RunStanding::Going || actor.has_crashed() {
        return;
    }
    let ends: &[How] = match (counts, run.effect) {
        (false, _) => &[How::Kept, How::Retry, How::Forgotten, How::NeverReached, How::Broken],
        (true, false) => &[How::Retry, How::Forgotten, How::NeverReached, How::Broken],
        (true, true) => &[How::Kept, How::Broken],
    };
    actions.extend(ends.iter().map(|how| Action::End(number, *how)));
}

fn house(setup: &Setup, world: &World, actions: &mut Vec<Action>) {
    let now = world.store_time();
    if world.ticks < setup.bounds.ticks && world.shelf.record.is_some() {
        actions.push(Action::Tick);
    } else if world.ticks < setup.bounds.ticks {
        // With nothing in the store only a call under way or an alarm notices that time passes.
        let notices = |actor: &Actor| actor.life == Life::Here;
        if world.actors.iter().any(notices) {
            actions.push(Action::Tick);
        }
    }
    if world.shelf.clone().reap(now) {
        actions.push(Action::Reap);
    }
    if world.shelf.clone().sweep(now, setup.bug) {
        actions.push(Action::Sweep);
    }
    if world.left.acts > 0
        && let Some(seen) = world.shelf.view(now)
        && world.seen != Some((seen.fence, seen.standing.name()))
        && seen.standing.name() != StateName::InFlight
    {
        actions.push(Action::Look);
    }
    match world.seen {
        Some((_, StateName::Held)) => {
            actions.extend([Act::Complete, Act::Release, Act::Forget].map(Action::Act));
        }
        Some(_) => actions.push(Action::Act(Act::Forget)),
        None => {}
    }
}
