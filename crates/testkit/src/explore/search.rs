//! The search itself: every world that can be reached, breadth first.

use std::{
    collections::HashSet,
    fmt,
    hash::{BuildHasherDefault, Hash, Hasher},
};

use super::{
    action::{Action, Fate, How, actions},
    hash::Folding,
    invariant::{self, Invariant, Passage},
    setup::Setup,
    story::{Scribe, Story},
    turn,
    world::{Slot, Stage, Way, World},
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
    pub story: Story,
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
/// 30 million, and then a part of the search would be missed, never a false alarm raised.
#[must_use]
pub fn explore(setup: &Setup) -> Explored {
    let stage = Stage::new(*setup);
    let mut search = Search::new(&stage);
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
    let violation =
        broken.map(|Broken { invariant, way }| Violation { invariant, story: tell(&stage, &way) });
    Explored { worlds: search.worlds.len(), actions: search.actions, depth, violation }
}

/// The number of the first world; every other is one more than its place in `Search::came_by`.
const ROOT: usize = 0;

struct Search<'a> {
    stage: &'a Stage,
    worlds: HashSet<u64, BuildHasherDefault<Folding>>,
    /// How each world was reached first: from which, and by what.
    came_by: Vec<(usize, Action)>,
    /// Worlds from which a fair end is known to be reached.
    ends_well: HashSet<u64, BuildHasherDefault<Folding>>,
    actions: usize,
}

struct Broken {
    invariant: Invariant,
    way: Vec<Action>,
}

impl<'a> Search<'a> {
    fn new(stage: &'a Stage) -> Self {
        let worlds = HashSet::from_iter([hash(&World::new(&stage.setup))]);
        let ends_well = HashSet::default();
        Self { stage, worlds, came_by: Vec::new(), ends_well, actions: 0 }
    }

    fn next_layer(&mut self, layer: Vec<(usize, World)>) -> Result<Vec<(usize, World)>, Broken> {
        let mut next = Vec::new();
        for (number, world) in layer {
            for action in actions(&self.stage.setup, &world) {
                let after = self
                    .take(&world, action)
                    .map_err(|invariant| Broken { invariant, way: self.way(number, [action]) })?;
                if self.worlds.insert(hash(&after)) {
                    self.came_by.push((number, action));
                    next.push((self.came_by.len(), after));
                }
            }
            if world.ticks == self.stage.setup.bounds.ticks {
                self.end_fairly(world).map_err(|(invariant, rest)| Broken {
                    invariant,
                    way: self.way(number, rest),
                })?;
            }
        }
        Ok(next)
    }

    fn take(&mut self, before: &World, action: Action) -> Result<World, Invariant> {
        self.actions += 1;
        let (after, facts) = turn::take(self.stage, before, action, &mut Scribe::deaf());
        let passage = Passage { stage: self.stage, before, facts: &facts, after: &after };
        invariant::broken(&passage).map_or(Ok(after), Err)
    }

    /// Where the bounds end, nothing more goes wrong: then every request must come to an end.
    fn end_fairly(&mut self, mut world: World) -> Result<(), (Invariant, Vec<Action>)> {
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

    fn way(&self, mut number: usize, rest: impl IntoIterator<Item = Action>) -> Vec<Action> {
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
fn fair(world: &World) -> Option<Action> {
    let mut somebody_waits = false;
    for (number, actor) in world.actors.iter().enumerate() {
        let Some(flow) = &actor.flow else { continue };
        somebody_waits = true;
        for (slot, call) in [(Slot::Main, &actor.call), (Slot::Renewal, &actor.renewal)] {
            match call.as_ref().map(|call| &call.way) {
                Some(Way::Coming(..)) => return Some(Action::Hear(number, slot)),
                Some(_) => return Some(Action::Serve(number, slot, Fate::Prompt)),
                None => {}
            }
        }
        if let Some(run) = actor.run.filter(|_| actor.is_running()) {
            let kept = Action::End(number, How::Kept);
            return Some(if run.effect { kept } else { Action::TakeEffect(number) });
        }
        if flow.alarm().is_some_and(|alarm| alarm <= world.process_time(number)) {
            return Some(Action::Ring(number));
        }
    }
    somebody_waits.then_some(Action::Tick)
}

fn hash(world: &World) -> u64 {
    let mut hasher = Folding::default();
    world.hash(&mut hasher);
    hasher.finish()
}

fn tell(stage: &Stage, way: &[Action]) -> Story {
    let mut scribe = Scribe::listening();
    let mut world = World::new(&stage.setup);
    for action in way {
        world = turn::take(stage, &world, *action, &mut scribe).0;
    }
    scribe.finish()
}
