//! What must hold in every world: one function for each, and the sentence it stands for.

use semel_core::{Claimed, Occupied, OnUnknown, State};

use super::{
    transition::StepFacts,
    world::{Exploration, World, token},
};

/// A step from one world to the next.
pub(super) struct WorldStep<'a> {
    pub(super) exploration: &'a Exploration,
    pub(super) before: &'a World,
    pub(super) facts: &'a StepFacts,
    pub(super) after: &'a World,
}

type Check = fn(&WorldStep<'_>) -> bool;

macro_rules! invariants {
    ($($(#[doc = $doc:literal])+ $name:ident => $check:ident,)+) => {
        /// What must hold in every world.
        #[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
        pub enum Invariant {
            $($(#[doc = $doc])+ $name,)+
        }

        impl Invariant {
            /// Every invariant there is.
            pub const ALL: &'static [Self] = &[$(Self::$name),+];

            /// What it says.
            #[must_use]
            pub const fn sentence(self) -> &'static str {
                match self {
                    $(Self::$name => concat!($($doc),+).trim_ascii(),)+
                }
            }

            const fn check(self) -> Check {
                match self {
                    $(Self::$name => $check,)+
                }
            }
        }
    };
}

invariants! {
    /// No execution begins while another runs with a lease that is valid by the store's clock.
    OneRunsAtATime => one_runs_at_a_time,
    /// Unless the route says `rerun`, there is one effect until an owner or operator denies it.
    OneEffect => one_effect,
    /// An acknowledged answer stays in the record until it expires or is deleted.
    AcknowledgedStays => acknowledged_stays,
    /// Every grant has a higher fence than all earlier grants.
    FencesRise => fences_rise,
    /// A write with a fence that is not current changes nothing.
    ZombiesAreSilent => zombies_are_silent,
    /// A request that waits, or joined, never runs.
    WaitersWait => waiters_wait,
    /// A record in flight or held never disappears by the passage of time.
    UnknownStays => unknown_stays,
    /// Every client gets one reply, and every live request has a pending event.
    EveryClientIsAnswered => every_client_is_answered,
    /// A record with an expired lease is held, claimable or failed, as its route configures.
    LapseIsSettled => lapse_is_settled,
    /// A grant is used or given back: no record is in flight for a request that is done, nor held
    /// for one that never ran.
    GrantsAreNotAbandoned => grants_are_not_abandoned,
    /// An operator's action changes only the state that the operator saw.
    ActsAreNotBlind => acts_are_not_blind,
}

/// The first invariant that this step breaks.
pub(super) fn broken(passage: &WorldStep<'_>) -> Option<Invariant> {
    Invariant::ALL.iter().copied().find(|invariant| !invariant.check()(passage))
}

fn one_runs_at_a_time(step: &WorldStep<'_>) -> bool {
    let Some(begun) = step.facts.begun else { return true };
    let now = step.after.store_time();
    step.after.actors.iter().enumerate().all(|(number, other)| {
        let leased = other.granted.is_some_and(|(_, until)| now <= until);
        number == begun || !(other.is_running() && leased)
    })
}

fn one_effect(step: &WorldStep<'_>) -> bool {
    step.exploration.setup.on_unknown == OnUnknown::Rerun || step.after.ghost.effects <= 1
}

fn acknowledged_stays(step: &WorldStep<'_>) -> bool {
    let ghost = &step.after.ghost;
    let differs = |answer| ghost.acknowledged.as_ref() != Some(answer);
    if step.facts.acknowledged.as_ref().is_some_and(differs) {
        return false;
    }
    let Some(answer) = &ghost.acknowledged else { return true };
    let record = step.after.store.record.as_ref();
    record.is_some_and(|record| matches!(&record.state, State::Completed(kept) if kept == answer))
}

fn fences_rise(step: &WorldStep<'_>) -> bool {
    step.facts.granted.is_none_or(|(fence, _)| fence.get() > step.before.ghost.fence)
}

fn zombies_are_silent(step: &WorldStep<'_>) -> bool {
    let found = step.before.store.record.as_ref();
    match (step.facts.wrote, found) {
        (Some(fence), Some(found)) if found.fence != fence => {
            step.after.store.record.as_ref() == Some(found)
        }
        (Some(_), None) => step.after.store.record.is_none(),
        _ => true,
    }
}

fn waiters_wait(step: &WorldStep<'_>) -> bool {
    step.facts.begun.is_none_or(|begun| !step.before.actors[begun].waits)
}

fn unknown_stays(step: &WorldStep<'_>) -> bool {
    let Some(found) = &step.before.store.record else { return true };
    let in_flight = match found.state {
        State::InFlight { .. } => true,
        State::Held => false,
        State::Completed(_) | State::Released => return true,
    };
    let vanished = step.after.store.record.is_none() && !step.facts.forgot;
    let taken_for_absent =
        step.facts.granted.is_some_and(|(_, attempt)| !in_flight || attempt <= found.attempt);
    !vanished && !taken_for_absent
}

fn every_client_is_answered(step: &WorldStep<'_>) -> bool {
    step.after.actors.iter().all(|actor| {
        let Some(flow) = &actor.flow else { return !actor.is_done() || actor.replies == 1 };
        let waits_for_something = actor.call.is_some()
            || actor.renewal.is_some()
            || actor.is_running()
            || flow.next_tick().is_some();
        actor.replies <= 1 && waits_for_something
    })
}

fn lapse_is_settled(step: &WorldStep<'_>) -> bool {
    let now = step.after.store_time();
    let world = step.after;
    if world.store.lease_until().is_none_or(|until| now <= until) {
        return true;
    }
    let mut claim = step.exploration.claims[0].clone();
    claim.owner = token(99);
    match (world.store.clone().claim(&claim, now, step.exploration.setup.bug), claim.on_unknown) {
        (Claimed::Granted(grant), OnUnknown::Rerun) => {
            let record = world.store.record.as_ref();
            record.is_some_and(|record| record.fence < grant.fence)
        }
        (Claimed::Occupied(Occupied::Held), OnUnknown::Hold) => true,
        (Claimed::Occupied(Occupied::Completed { answer, .. }), OnUnknown::Fail) => {
            answer == semel_core::Answer::failed()
        }
        _ => false,
    }
}

/// A claim that timed out and arrives when its request is done is no violation.
fn grants_are_not_abandoned(step: &WorldStep<'_>) -> bool {
    let Some(record) = &step.after.store.record else { return true };
    let (in_flight, held) = match record.state {
        State::InFlight { .. } => (true, false),
        State::Held => (false, true),
        State::Completed(_) | State::Released => return true,
    };
    step.after.actors.iter().all(|actor| {
        let holds = actor.granted.is_some_and(|(fence, _)| fence == record.fence);
        let abandoned = in_flight || held && !actor.ran;
        !holds || !actor.is_done() || actor.granted_late || !abandoned
    })
}

fn acts_are_not_blind(step: &WorldStep<'_>) -> bool {
    let found = step.before.store.view(step.before.store_time());
    let found = found.map(|found| (found.fence, found.state.name()));
    step.facts.acted.is_none_or(|seen| found == Some(seen))
}
