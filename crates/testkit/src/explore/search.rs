//! The search itself: every world that can be reached, breadth first.

use std::{
    collections::HashSet,
    fmt,
    hash::{BuildHasherDefault, Hash, Hasher},
};

use super::{
    event::{ReplyDelivery, RunEnd, WorldEvent, actions},
    hash::Folding,
    invariant::{self, Invariant, WorldStep},
    setup::Setup,
    story::{EventTrace, TraceWriter},
    transition,
    world::{CallSlot, CallState, Exploration, World},
};

/// What an exploration found.
#[derive(Clone, Debug)]
pub struct Explored {
    /// How many different worlds were reached.
    pub worlds: usize,
    /// How many actions were taken.
    pub actions: usize,
    /// The longest way to a world, in actions.
    pub depth: usize,
    /// What went wrong, if anything did.
    pub violation: Option<Violation>,
}

/// An invariant that was broken, and how.
#[derive(Clone, Debug)]
pub struct Violation {
    /// The invariant.
    pub invariant: Invariant,
    /// The shortest way to break it.
    pub story: EventTrace,
}

impl fmt::Display for Violation {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        writeln!(f, "Broken: {}", self.invariant.sentence())?;
        self.story.fmt(f)
    }
}

/// Tries everything that `setup` allows, until an invariant breaks or nothing is left to try.
///
/// Worlds are remembered by a 64-bit hash. Two of a million worlds share one with a chance of 1 in
/// 30 million, and then a part of the search would be missed, but no false violation would be
/// reported.
#[must_use]
pub fn explore(setup: &Setup) -> Explored {
    let exploration = Exploration::new(*setup);
    let mut search = WorldSearch::new(&exploration);
    let mut layer = vec![(ROOT, World::new(setup))];
    let mut depth = 0;
    let broken = loop {
        match search.next_layer(layer) {
            Err(broken) => break Some(broken),
            Ok(next) if next.is_empty() => break None,
            Ok(next) => layer = next,
        }
        depth += 1;
    };
    let violation = broken.map(|BrokenInvariant { invariant, way }| Violation {
        invariant,
        story: tell(&exploration, &way),
    });
    Explored { worlds: search.worlds.len(), actions: search.actions, depth, violation }
}

/// The number of the first world; every other is one more than its place in `WorldSearch::came_by`.
const ROOT: usize = 0;

struct WorldSearch<'a> {
    exploration: &'a Exploration,
    worlds: HashSet<u64, BuildHasherDefault<Folding>>,
    /// How each world was reached first: from which, and by what.
    came_by: Vec<(usize, WorldEvent)>,
    /// Worlds from which a fair end is known to be reached.
    ends_well: HashSet<u64, BuildHasherDefault<Folding>>,
    actions: usize,
}

struct BrokenInvariant {
    invariant: Invariant,
    way: Vec<WorldEvent>,
}

impl<'a> WorldSearch<'a> {
    fn new(exploration: &'a Exploration) -> Self {
        let worlds = HashSet::from_iter([hash(&World::new(&exploration.setup))]);
        let ends_well = HashSet::default();
        Self { exploration, worlds, came_by: Vec::new(), ends_well, actions: 0 }
    }

    fn next_layer(
        &mut self,
        layer: Vec<(usize, World)>,
    ) -> Result<Vec<(usize, World)>, BrokenInvariant> {
        let mut next = Vec::new();
        for (number, world) in layer {
            for action in actions(&self.exploration.setup, &world) {
                let after = self.take(&world, action).map_err(|invariant| BrokenInvariant {
                    invariant,
                    way: self.way(number, [action]),
                })?;
                if self.worlds.insert(hash(&after)) {
                    self.came_by.push((number, action));
                    next.push((self.came_by.len(), after));
                }
            }
            if world.ticks == self.exploration.setup.bounds.ticks {
                self.end_fairly(world).map_err(|(invariant, rest)| BrokenInvariant {
                    invariant,
                    way: self.way(number, rest),
                })?;
            }
        }
        Ok(next)
    }

    fn take(&mut self, before: &World, action: WorldEvent) -> Result<World, Invariant> {
        self.actions += 1;
        let (after, facts) =
            transition::take(self.exploration, before, action, &mut TraceWriter::silent());
        let passage =
            WorldStep { exploration: self.exploration, before, facts: &facts, after: &after };
        invariant::broken(&passage).map_or(Ok(after), Err)
    }

    /// Where the bounds end, nothing more goes wrong: then every request must come to an end.
    fn end_fairly(&mut self, mut world: World) -> Result<(), (Invariant, Vec<WorldEvent>)> {
        let mut way = Vec::new();
        while self.ends_well.insert(hash(&world)) {
            let Some(action) = fair(&world) else { return Ok(()) };
            way.push(action);
            if way.len() > FAIR_STEPS_MAX {
                return Err((Invariant::EveryClientIsAnswered, way));
            }
            match self.take(&world, action) {
                Ok(after) => world = after,
                Err(invariant) => return Err((invariant, way)),
            }
        }
        Ok(())
    }

    fn way(
        &self,
        mut number: usize,
        rest: impl IntoIterator<Item = WorldEvent>,
    ) -> Vec<WorldEvent> {
        let mut way = Vec::new();
        while number != ROOT {
            let (from, action) = self.came_by[number - 1];
            way.push(action);
            number = from;
        }
        way.reverse();
        way.extend(rest);
        way
    }
}

/// More than any request needs once nothing goes wrong.
const FAIR_STEPS_MAX: usize = 100;

/// What happens next if nothing goes wrong; nothing when every request is done.
fn fair(world: &World) -> Option<WorldEvent> {
    let mut any_unfinished = false;
    for (number, actor) in world.actors.iter().enumerate() {
        let Some(flow) = &actor.flow else { continue };
        any_unfinished = true;
        for (slot, call) in [(CallSlot::Main, &actor.call), (CallSlot::Renewal, &actor.renewal)] {
            match call.as_ref().map(|call| &call.way) {
                Some(CallState::Coming(..)) => return Some(WorldEvent::Hear(number, slot)),
                Some(_) => return Some(WorldEvent::Serve(number, slot, ReplyDelivery::Prompt)),
                None => {}
            }
        }
        if let Some(run) = actor.run.filter(|_| actor.is_running()) {
            let kept = WorldEvent::End(number, RunEnd::Kept);
            return Some(if run.effect { kept } else { WorldEvent::TakeEffect(number) });
        }
        if flow.next_tick().is_some_and(|next_tick| next_tick <= world.process_time(number)) {
            return Some(WorldEvent::Ring(number));
        }
    }
    any_unfinished.then_some(WorldEvent::Tick)
}

fn hash(world: &World) -> u64 {
    let mut hasher = Folding::default();
    world.hash(&mut hasher);
    hasher.finish()
}

fn tell(exploration: &Exploration, way: &[WorldEvent]) -> EventTrace {
    let mut writer = TraceWriter::recording();
    let mut world = World::new(&exploration.setup);
    for action in way {
        world = transition::take(exploration, &world, *action, &mut writer).0;
    }
    writer.finish()
}
