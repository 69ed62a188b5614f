//! A connection that writes, and the loop that drives it.
//!
//! It takes whatever has queued up in a line while its last batch was on its way, sends all of it
//! as one transaction, and answers nobody before the commit. There is no delay to collect more: the
//! time of a commit collects enough.

use std::{sync::Arc, time::Duration};

use semel_core::{StoreError, StoreErrorKind};
use tokio::time::{Instant, sleep_until, timeout};
use tracing::debug;

use crate::{
    batch,
    digest::Digest,
    error::{Verdict, said, store_error},
    house::House,
    question::{Outcome, Question, Told, Unfit},
    session::Session,
    single::{self, Lone},
};

/// A server that has not answered by now counts as lost.
pub(crate) const PATIENCE: Duration = Duration::from_secs(15);

/// How often a single question is sent again after a deadlock or the like.
const RETRIES: u32 = 5;

const PAUSE_MIN: Duration = Duration::from_millis(20);
const PAUSE_MAX: Duration = Duration::from_secs(2);

/// How long nobody notices that the store closes.
const NAP: Duration = Duration::from_millis(100);

pub(crate) struct Lane {
    number: usize,
    house: Arc<House>,
    session: Option<Session>,
    /// How long it rests after a connection that did not last: longer each time, until one does.
    pause: Duration,
}

impl Lane {
    /// A lane that may already have its connection.
    pub(crate) fn new(number: usize, house: Arc<House>, session: Option<Session>) -> Self {
        if session.is_some() {
            house.connected();
        }
        Self { number, house, session, pause: PAUSE_MIN }
    }

    /// Serves the queue until it is closed and empty.
    pub(crate) async fn run(mut self) {
        let house = Arc::clone(&self.house);
        while house.queue.wait(self.number).await {
            if !self.session.as_ref().is_some_and(|session| house.trusts(session)) {
                // Others may have a connection.
                house.queue.rouse();
            }
            let Some(session) = self.connect().await else { return };
            let questions = house.queue.take(self.number);
            if questions.is_empty() || serve(&house, &session, questions).await {
                self.session = Some(session);
                continue;
            }
            house.disconnected();
            let lasted = session.opened.elapsed();
            drop(session);
            if lasted > PAUSE_MAX {
                self.pause = PAUSE_MIN;
            } else {
                // Others may have a connection that is of use.
                house.queue.rouse();
                rest(&house, &mut self.pause).await;
            }
        }
    }

    /// The connection, made again if need be for as long as it takes; `None` when the store is
    /// closed meanwhile.
    async fn connect(&mut self) -> Option<Session> {
        if let Some(session) = self.session.take() {
            if self.house.trusts(&session) {
                return Some(session);
            }
            self.house.disconnected();
        }
        let mut pause = PAUSE_MIN;
        loop {
            match self.house.open(|_| {}).await {
                Ok(session) => {
                    self.house.connected();
                    return Some(session);
                }
                Err(error) => {
                    debug!(lane = self.number, %error, "cannot connect to the database");
                    self.house.note(&error);
                    if self.house.queue.is_closed() {
                        return None;
                    }
                    rest(&self.house, &mut pause).await;
                }
            }
        }
    }
}

/// Rests, longer the next time; but not while the store closes.
async fn rest(house: &House, pause: &mut Duration) {
    let end = Instant::now() + *pause + jitter(*pause);
    *pause = (*pause * 2).min(PAUSE_MAX);
    while Instant::now() < end && !house.queue.is_closed() {
        sleep_until(end.min(Instant::now() + NAP)).await;
    }
}

/// Up to as much again, so that a fleet does not come back as one.
fn jitter(pause: Duration) -> Duration {
    let mut byte = [0];
    let _ = getrandom::fill(&mut byte);
    let [byte] = byte;
    pause * u32::from(byte) / 256
}

/// Why there are no outcomes.
enum Trouble {
    /// The server refused, and nothing happened. It may be different the next time.
    Refused { refusal: StoreError, again: bool },
    /// Nothing happened, and on this connection nothing will.
    Unfit(StoreError),
    /// Nobody knows what happened; the connection is gone.
    Lost(String),
    /// It was committed, but the server said that this may not last.
    Doubt,
}

impl From<batch::Failure> for Trouble {
    fn from(failure: batch::Failure) -> Self {
        let error = failure.error;
        debug!(error = said(&error), "a batch failed");
        match failure.verdict {
            Verdict::Refused => Self::Refused { refusal: store_error(error), again: false },
            Verdict::TryAgain => Self::Refused { refusal: store_error(error), again: true },
            Verdict::Unfit => Self::Unfit(store_error(error)),
            Verdict::Lost => Self::Lost(said(&error)),
        }
    }
}

impl Trouble {
    /// What somebody is told who asked.
    fn told(&self, writes: bool) -> StoreError {
        let message = match self {
            Self::Refused { refusal, .. } | Self::Unfit(refusal) => {
                return StoreError::new(refusal.kind(), refusal.to_string());
            }
            Self::Lost(why) => format!("the connection to the database was lost: {why}"),
            Self::Doubt => "the database committed, but did not wait for its standby".to_owned(),
        };
        let error = StoreError::new(StoreErrorKind::Unavailable, message);
        if writes { error.effect_unknown() } else { error }
    }

    /// Whether the connection is still of use.
    const fn spares_connection(&self) -> bool {
        matches!(self, Self::Refused { .. } | Self::Doubt)
    }
}

/// What was sent, if it was answered in time and will last.
async fn answered<T>(
    session: &Session,
    sending: impl Future<Output = Result<T, batch::Failure>>,
) -> Result<T, Trouble> {
    let doubts = session.doubts();
    let silence = |_| Trouble::Lost(format!("no answer within {} s", PATIENCE.as_secs()));
    let told = timeout(PATIENCE, sending).await.map_err(silence)??;
    if session.doubts() == doubts { Ok(told) } else { Err(Trouble::Doubt) }
}

async fn attempt(session: &Session, questions: &[Question]) -> Result<Vec<Outcome>, Trouble> {
    answered(session, batch::send(session, questions)).await
}

/// Asks a lone question: what is to be told, if this was the end of it, and whether the connection
/// is still of use.
pub(crate) async fn serve_alone(
    session: &Session,
    digest: Digest,
    lone: Lone<'_>,
) -> (Option<Result<Told, StoreError>>, bool) {
    match answered(session, single::send(session, digest, lone)).await {
        Ok(told) => (told, true),
        Err(Trouble::Refused { again: true, .. }) => (None, true),
        Err(Trouble::Unfit(_)) => (None, false),
        Err(trouble) => (Some(Err(trouble.told(true))), trouble.spares_connection()),
    }
}

/// Sends and answers a batch; `false` when the connection is of no more use.
pub(crate) async fn serve(house: &House, session: &Session, questions: Vec<Question>) -> bool {
    match attempt(session, &questions).await {
        Ok(outcomes) => {
            answer(house, questions, outcomes);
            true
        }
        // One bad question must not spoil the others.
        Err(Trouble::Refused { .. }) if questions.len() > 1 => {
            Box::pin(serve_each(house, session, questions)).await
        }
        Err(Trouble::Refused { again: true, .. }) => {
            Box::pin(serve_each(house, session, questions)).await
        }
        Err(trouble) => give_up(house, session, questions, &trouble),
    }
}

/// Sends questions one by one, each in a transaction of its own.
async fn serve_each(house: &House, session: &Session, questions: Vec<Question>) -> bool {
    let mut rest = questions.into_iter();
    while let Some(question) = rest.next() {
        let question = vec![question];
        let mut retries = 0;
        let told = loop {
            match attempt(session, &question).await {
                Err(Trouble::Refused { again: true, .. }) if retries < RETRIES => retries += 1,
                told => break told,
            }
        };
        match told {
            Ok(outcomes) => answer(house, question, outcomes),
            Err(trouble) => {
                if !give_up(house, session, question, &trouble) {
                    // The others were not sent.
                    put_back(house, rest.collect());
                    return false;
                }
            }
        }
    }
    true
}

/// Tells everyone what became of the batch; `false` when the connection is of no more use.
fn give_up(house: &House, session: &Session, questions: Vec<Question>, trouble: &Trouble) -> bool {
    if !trouble.spares_connection() {
        // For those who wait until there is no connection to be had.
        house.note(&trouble.told(false));
    }
    let is_last = !matches!(trouble, Trouble::Unfit(_)) || house.queue.is_closed();
    let mut again = Vec::new();
    for mut question in questions {
        let unfit = Unfit::met(question.unfit, session.opened);
        if is_last || unfit.is_enough() {
            let error = trouble.told(question.writes());
            question.answer(Err(error));
        } else {
            question.unfit = Some(unfit);
            again.push(question);
        }
    }
    put_back(house, again);
    trouble.spares_connection()
}

/// Lets questions wait for another connection.
fn put_back(house: &House, questions: Vec<Question>) {
    let with_step = |question: Question| {
        let step = question.step;
        (question, step)
    };
    house.queue.put_back(questions.into_iter().map(with_step).collect());
}

/// Answers whoever has an answer; the others go on.
fn answer(house: &House, questions: Vec<Question>, outcomes: Vec<Outcome>) {
    let mut unfinished = Vec::new();
    for (question, outcome) in questions.into_iter().zip(outcomes) {
        match outcome {
            Outcome::Told(told) => question.answer(told),
            Outcome::Next(step) => unfinished.push((question, step)),
        }
    }
    house.queue.put_back(unfinished);
}
