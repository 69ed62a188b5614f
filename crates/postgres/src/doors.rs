//! The short way: a question that comes while nothing else goes on is asked on a connection that
//! lives on the runtime of whoever asks.
//!
//! Otherwise it would have to wake the store's thread, and be woken by it: with nobody else to
//! share them, two turns of the scheduler are as long as a good part of what the database does.
//!
//! A runtime gets its connection after its first question, and the connection ends with it.

use std::{
    mem,
    sync::{Arc, Mutex, MutexGuard, PoisonError, Weak},
    time::Duration,
};

use semel_core::StoreError;
use tokio::{
    runtime::{Handle, Id},
    time::{Instant, sleep},
};
use tracing::debug;

use crate::{
    digest::Digest,
    house::House,
    lane::{serve, serve_alone},
    question::{Question, Step, Told},
    session::Session,
    single::Lone,
};

/// After how long a connection that could not be made, or was of no use, is tried again.
const PAUSE: Duration = Duration::from_secs(5);

/// Shorter than any question may take.
const TICK: Duration = Duration::from_secs(1);

/// The connections of the runtimes that ask.
#[derive(Default)]
pub(crate) struct Doors(Mutex<Vec<Door>>);

struct Door {
    runtime: Id,
    state: State,
    #[expect(dead_code, reason = "as long as it is there, so is the door")]
    sign: Arc<()>,
}

enum State {
    Free(Box<Session>),
    /// Somebody uses it, or it is being made.
    Taken,
    /// It could not be made, or was of no use.
    Stuck(Instant),
}

impl State {
    fn after(session: Box<Session>, is_of_use: bool) -> Self {
        if is_of_use { Self::Free(session) } else { Self::Stuck(Instant::now()) }
    }
}

impl Doors {
    fn lock(&self) -> MutexGuard<'_, Vec<Door>> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// The connection of this runtime, if it is free. If there is none, and not too many others
    /// have one, it is made, for the next question.
    fn take(house: &Arc<House>) -> Option<(Turn, Box<Session>)> {
        let runtime = Handle::try_current().ok()?;
        let turn = || Turn { house: Arc::clone(house), runtime: runtime.id(), after: None };
        let mut doors = house.doors.lock();
        if let Some(door) = doors.iter_mut().find(|door| door.runtime == runtime.id()) {
            match mem::replace(&mut door.state, State::Taken) {
                State::Free(session) if house.trusts(&session) => {
                    return Some((turn(), session));
                }
                State::Stuck(since) if since.elapsed() < PAUSE => {
                    door.state = State::Stuck(since);
                    return None;
                }
                State::Taken => return None,
                State::Free(_) | State::Stuck(_) => {}
            }
        } else {
            doors.retain(|door| door.is_of_use(house));
            if doors.len() >= house.connector.options.lanes {
                return None;
            }
            let sign = Arc::new(());
            runtime.spawn(tick(Arc::downgrade(&sign)));
            doors.push(Door { runtime: runtime.id(), state: State::Taken, sign });
        }
        drop(doors);
        runtime.spawn(make(turn()));
        None
    }
}

impl Door {
    fn is_of_use(&self, house: &House) -> bool {
        match &self.state {
            State::Free(session) => house.trusts(session),
            State::Taken => true,
            // Whose runtime still is makes another.
            State::Stuck(since) => since.elapsed() < PAUSE,
        }
    }
}

/// Whoever has taken a door. If it comes to nothing, because its runtime ended or it was dropped,
/// there is no door any more.
struct Turn {
    house: Arc<House>,
    runtime: Id,
    after: Option<State>,
}

impl Drop for Turn {
    fn drop(&mut self) {
        let mut doors = self.house.doors.lock();
        match self.after.take() {
            Some(state) => {
                if let Some(door) = doors.iter_mut().find(|door| door.runtime == self.runtime) {
                    door.state = state;
                }
            }
            None => doors.retain(|door| door.runtime != self.runtime),
        }
    }
}

async fn make(mut turn: Turn) {
    turn.after = Some(match turn.house.open(|_| {}).await {
        Ok(session) => State::Free(Box::new(session)),
        Err(error) => {
            debug!(%error, "cannot connect to the database");
            State::Stuck(Instant::now())
        }
    });
}

/// Keeps a timer pending on a runtime for as long as it has a door. A question has a deadline, and
/// the first deadline of a runtime that has none wakes whichever of its threads sleeps longest.
async fn tick(door: Weak<()>) {
    while door.strong_count() > 0 {
        sleep(TICK).await;
    }
}

/// Asks a lone question the short way, or says from which step it has to go on.
pub(crate) async fn ask_alone(
    house: &Arc<House>,
    digest: Digest,
    lone: Lone<'_>,
) -> Result<Result<Told, StoreError>, Step> {
    if !house.queue.is_idle() {
        return Err(Step::Alone);
    }
    let Some((mut turn, session)) = Doors::take(house) else { return Err(Step::Alone) };
    let (told, is_of_use) = serve_alone(&session, digest, lone).await;
    turn.after = Some(State::after(session, is_of_use));
    told.ok_or(Step::First)
}

/// Asks a question the short way, or gives it back.
pub(crate) async fn ask(house: &Arc<House>, question: Question) -> Result<(), Question> {
    if !house.queue.is_idle() {
        return Err(question);
    }
    let Some((mut turn, session)) = Doors::take(house) else { return Err(question) };
    let is_of_use = serve(house, &session, vec![question]).await;
    turn.after = Some(State::after(session, is_of_use));
    Ok(())
}
