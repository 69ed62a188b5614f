//! What callers ask of the lanes, and where it waits for them.
//!
//! They wait in two lines. What ends or prolongs an execution is always taken; there is never more
//! of it than there are executions. Back-pressure falls on the other line, of claims and readings.
//!
//! A batch is of one line, and each lane has a line that it looks at first. So a batch is nearly
//! always one statement, which commits by itself: two kinds in one transaction would take half as
//! many commits, but those are shared anyway, and a transaction is four statements.

use std::{
    collections::VecDeque,
    mem,
    sync::{Mutex, MutexGuard, PoisonError},
    time::Duration,
};

use semel_core::{
    Answer, Claim, Claimed, Fence, Fenced, RecordId, Snapshot, StoreError, StoreErrorKind, Tried,
};
use tokio::sync::{Notify, oneshot};

use crate::{digest::Digest, error::closed};

/// A batch is cut once its answers have this many bytes together.
const BATCH_BYTES_MAX: usize = 8 << 20;

/// How many questions one transaction takes.
const BATCH_MAX: usize = 512;

/// Two connections take whatever there is; the others would only make batches smaller, and come
/// when this many wait.
const EAGER_LANES: usize = 2;
const CROWD: usize = 64;

/// A line is passed over this often at most, while the lanes that look at it first are busy.
const PASSES_MAX: u8 = 4;

/// How often a question may meet a race before the store gives up.
const TRIES_MAX: u8 = 50;

/// What is asked.
#[derive(Debug)]
pub(crate) enum Ask {
    Claim(Box<Claim>),
    Renew(Fence, Duration),
    Complete(Fence, Answer),
    Release(Fence, Tried),
    Hold(Fence),
    Get,
    Watch,
}

impl Ask {
    fn bytes(&self) -> usize {
        if let Self::Complete(_, answer) = self { answer.as_bytes().len() } else { 0 }
    }

    const fn line(&self) -> Line {
        match self {
            Self::Claim(_) | Self::Get | Self::Watch => Line::Claims,
            Self::Renew(..) | Self::Complete(..) | Self::Release(..) | Self::Hold(_) => {
                Line::Endings
            }
        }
    }
}

/// Where a question waits.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
enum Line {
    #[default]
    Endings,
    /// Also those who only read. It meets back-pressure.
    Claims,
}

impl Line {
    /// The one that a lane looks at first.
    const fn of(lane: usize) -> Self {
        if lane.is_multiple_of(2) { Self::Endings } else { Self::Claims }
    }

    const fn other(self) -> Self {
        match self {
            Self::Endings => Self::Claims,
            Self::Claims => Self::Endings,
        }
    }
}

/// What was found or done.
#[derive(Debug)]
pub(crate) enum Told {
    Claimed(Claimed),
    Fenced(Fenced),
    Got(Option<Box<Snapshot>>),
    Watched,
}

/// How far a question has come: most end with their first statement.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Step {
    /// The statement of its own verb.
    First,
    /// A claim that is there already, by the same owner.
    Again,
    /// A claim of a record that may run again.
    Take,
    /// A claim of a record whose lease has lapsed and that may not run again.
    Settle,
    /// A write with a fence that changed nothing.
    Check,
}

/// What becomes of a question after a statement.
#[derive(Debug)]
pub(crate) enum Outcome {
    Told(Result<Told, StoreError>),
    /// Another statement has to be sent.
    Next(Step),
}

/// Where the answer to a question is waited for, and where it is given.
pub(crate) type Awaited = oneshot::Receiver<Result<Told, StoreError>>;
type Reply = oneshot::Sender<Result<Told, StoreError>>;

/// A question on its way.
#[derive(Debug)]
pub(crate) struct Question {
    pub(crate) digest: Digest,
    pub(crate) ask: Ask,
    pub(crate) step: Step,
    tries: u8,
    reply: Reply,
}

impl Question {
    /// A question, and where its answer will be.
    pub(crate) fn new(id: &RecordId, ask: Ask) -> (Self, Awaited) {
        let (reply, awaited) = oneshot::channel();
        let question = Self { digest: Digest::of(id), ask, step: Step::First, tries: 0, reply };
        (question, awaited)
    }

    /// An asker that has gone away is no reason to stop: what was asked is done all the same.
    pub(crate) fn answer(self, told: Result<Told, StoreError>) {
        let _ = self.reply.send(told);
    }

    /// Whether it may have changed something, if nobody knows what became of its batch.
    pub(crate) const fn writes(&self) -> bool {
        !matches!(self.ask, Ask::Get)
    }

    const fn watches(&self) -> bool {
        matches!(self.ask, Ask::Watch)
    }

    /// Goes on with the next step; whoever meets race after race is told so.
    fn on_to(mut self, step: Step) -> Option<Self> {
        self.step = step;
        self.tries += 1;
        if self.tries < TRIES_MAX {
            return Some(self);
        }
        let message = "the record changes faster than it can be claimed: try again later";
        self.answer(Err(StoreError::new(StoreErrorKind::Unavailable, message)));
        None
    }
}

/// Where questions wait, and which lanes are free to take them.
#[derive(Debug)]
pub(crate) struct Queue {
    waiting: Mutex<Waiting>,
    bells: Vec<Notify>,
    limited_max: usize,
}

#[derive(Debug, Default)]
struct Waiting {
    endings: VecDeque<Question>,
    claims: VecDeque<Question>,
    idle: Vec<bool>,
    /// The line of the last batch, and how many of it there were while others waited in the other.
    last: Line,
    passes: u8,
    /// How many batches were taken: whether anything moves.
    taken: u64,
    closed: bool,
}

impl Waiting {
    fn len(&self) -> usize {
        self.endings.len() + self.claims.len()
    }

    /// Whether there is enough for this lane.
    fn is_worth(&self, lane: usize) -> bool {
        // At the end nobody rings any more, so each lane helps to empty the queue.
        self.len() >= if lane < EAGER_LANES || self.closed { 1 } else { CROWD }
    }

    const fn line(&mut self, line: Line) -> &mut VecDeque<Question> {
        match line {
            Line::Endings => &mut self.endings,
            Line::Claims => &mut self.claims,
        }
    }

    /// The line that a lane serves now: its own, unless nobody waits there, or others have been
    /// passed over for too long.
    fn choose(&mut self, lane: usize) -> Line {
        let own = Line::of(lane);
        let line = if self.passes >= PASSES_MAX { self.last.other() } else { own };
        let line = if self.line(line).is_empty() { line.other() } else { line };
        let passes = if line == self.last { self.passes.saturating_add(1) } else { 1 };
        self.passes = if self.line(line.other()).is_empty() { 0 } else { passes };
        self.last = line;
        line
    }

    /// At most [`BATCH_MAX`] questions of different records, in the order of their digests: so two
    /// batches hardly ever wait for each other. A second question of one record waits for the next
    /// batch. Those who want to be told of a record that another gateway is about to end are asked
    /// for by themselves: with anything that we write in one transaction, each gateway would keep
    /// what the other one waits for.
    fn take(&mut self, lane: usize) -> Vec<Question> {
        let line = self.choose(lane);
        let mut batch: Vec<Question> = Vec::with_capacity(self.line(line).len().min(BATCH_MAX));
        let mut others = Vec::new();
        let mut bytes = 0_usize;
        while batch.len() < BATCH_MAX && bytes < BATCH_BYTES_MAX {
            let Some(question) = self.line(line).pop_front() else { break };
            if batch.first().is_some_and(|first| first.watches() != question.watches()) {
                others.push(question);
                continue;
            }
            bytes = bytes.saturating_add(question.ask.bytes());
            batch.push(question);
        }
        for question in others.into_iter().rev() {
            self.line(line).push_front(question);
        }
        batch.sort_by_key(|question| question.digest);
        let mut unique: Vec<Question> = Vec::with_capacity(batch.len());
        for question in batch {
            match unique.last() {
                Some(last) if last.digest == question.digest => {
                    self.line(line).push_front(question);
                }
                _ => unique.push(question),
            }
        }
        self.taken += 1;
        unique
    }
}

impl Queue {
    /// A queue for some lanes that refuses the next claim while `limited_max` of them wait.
    pub(crate) fn new(lanes: usize, limited_max: usize) -> Self {
        let idle = vec![false; lanes];
        let waiting = Mutex::new(Waiting { idle, ..Waiting::default() });
        Self { waiting, bells: (0..lanes).map(|_| Notify::new()).collect(), limited_max }
    }

    /// Whether nothing waits and no lane has anything to do.
    pub(crate) fn is_idle(&self) -> bool {
        let waiting = self.lock();
        waiting.len() == 0 && !waiting.closed && waiting.idle.iter().all(|idle| *idle)
    }

    /// Takes a question, and wakes a lane if one is free.
    pub(crate) fn push(&self, question: Question) -> Result<(), StoreError> {
        let line = question.ask.line();
        let mut waiting = self.lock();
        if waiting.closed {
            return Err(closed());
        }
        if line == Line::Claims && waiting.claims.len() >= self.limited_max {
            let message = "too many requests are waiting for the database: try again later";
            return Err(StoreError::new(StoreErrorKind::Busy, message));
        }
        waiting.line(line).push_back(question);
        let lanes = waiting.idle.iter().enumerate();
        let free = lanes.filter(|(lane, idle)| **idle && waiting.is_worth(*lane));
        let free = free.map(|(lane, _)| lane).min_by_key(|lane| Line::of(*lane) != line);
        self.ring(waiting, free);
        Ok(())
    }

    fn ring(&self, mut waiting: MutexGuard<'_, Waiting>, lane: Option<usize>) {
        let Some(lane) = lane else { return };
        if let Some(idle) = waiting.idle.get_mut(lane) {
            *idle = false;
        }
        drop(waiting);
        if let Some(bell) = self.bells.get(lane) {
            bell.notify_one();
        }
    }

    /// Waits until there is something for this lane; `false` when the queue is closed and empty.
    pub(crate) async fn wait(&self, lane: usize) -> bool {
        loop {
            {
                let mut waiting = self.lock();
                if waiting.is_worth(lane) {
                    return true;
                }
                if waiting.closed && waiting.len() == 0 {
                    return false;
                }
                if let Some(idle) = waiting.idle.get_mut(lane) {
                    *idle = true;
                }
            }
            let Some(bell) = self.bells.get(lane) else { return false };
            bell.notified().await;
            if self.lock().len() > 0 {
                return true;
            }
        }
    }

    /// Takes a batch; it may be empty when another lane was faster.
    pub(crate) fn take(&self, lane: usize) -> Vec<Question> {
        self.lock().take(lane)
    }

    /// Puts questions that need another statement back to the head of their lines.
    pub(crate) fn put_back(&self, questions: Vec<(Question, Step)>) {
        if questions.is_empty() {
            return;
        }
        let mut waiting = self.lock();
        for (question, step) in questions {
            if let Some(question) = question.on_to(step) {
                waiting.line(question.ask.line()).push_front(question);
            }
        }
        let free = waiting.idle.iter().position(|idle| *idle);
        self.ring(waiting, free);
    }

    /// Wakes a lane if something waits and nothing was taken since the last time this was asked:
    /// those that take everything may all be waiting for one lock.
    pub(crate) fn nudge(&self, taken_before: u64) -> u64 {
        let waiting = self.lock();
        let taken = waiting.taken;
        if taken == taken_before && waiting.len() > 0 {
            let free = waiting.idle.iter().position(|idle| *idle);
            self.ring(waiting, free);
        }
        taken
    }

    /// Takes nothing more; what waits is still served.
    pub(crate) fn close(&self) {
        self.lock().closed = true;
        self.bells.iter().for_each(Notify::notify_one);
    }

    pub(crate) fn is_closed(&self) -> bool {
        self.lock().closed
    }

    /// Tells everyone who waits that nothing was done.
    pub(crate) fn refuse(&self, why: impl Fn() -> StoreError) {
        let mut waiting = self.lock();
        let (endings, claims) = (mem::take(&mut waiting.endings), mem::take(&mut waiting.claims));
        drop(waiting);
        for question in endings.into_iter().chain(claims) {
            question.answer(Err(why()));
        }
    }

    fn lock(&self) -> MutexGuard<'_, Waiting> {
        self.waiting.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

#[cfg(test)]
mod tests {
    use semel_core::{Caller, Key, Scope, StoredResponse};

    use super::*;

    fn id(key: &str) -> RecordId {
        let key = Key::new(key).unwrap();
        RecordId::new(Scope::new("s").unwrap(), Caller::anonymous(), key)
    }

    fn asked(queue: &Queue, key: &str, ask: Ask) -> Result<Awaited, StoreError> {
        let (question, awaited) = Question::new(&id(key), ask);
        queue.push(question).map(|()| awaited)
    }

    fn fence() -> Fence {
        Fence::new(1).unwrap()
    }

    #[test]
    fn back_pressure_falls_on_claims_and_readings_only() {
        let queue = Queue::new(1, 2);
        let _first = asked(&queue, "a", Ask::Get).unwrap();
        let _second = asked(&queue, "b", Ask::Get).unwrap();
        let refused = asked(&queue, "c", Ask::Get).unwrap_err();
        assert_eq!(refused.kind(), StoreErrorKind::Busy);
        let _ending = asked(&queue, "d", Ask::Hold(fence())).unwrap();
        assert_eq!((queue.take(0).len(), queue.take(0).len()), (1, 2));
        let _third = asked(&queue, "c", Ask::Get).unwrap();
    }

    #[test]
    fn those_who_watch_share_no_batch_with_those_who_write() {
        let queue = Queue::new(1, 100);
        let mut replies = Vec::new();
        for (key, watches) in [("a", true), ("b", false), ("c", true), ("d", false)] {
            let ask = if watches { Ask::Watch } else { Ask::Get };
            replies.push(asked(&queue, key, ask).unwrap());
        }
        for _ in 0..2 {
            let batch = queue.take(0);
            assert_eq!(batch.len(), 2);
            assert_eq!(batch[0].watches(), batch[1].watches());
        }
        assert!(queue.take(0).is_empty());
    }

    #[test]
    fn each_lane_has_a_line_and_helps_with_the_other() {
        let queue = Queue::new(2, 100);
        let mut replies = Vec::new();
        for key in ["a", "b", "c"] {
            replies.push(asked(&queue, key, Ask::Get).unwrap());
        }
        replies.push(asked(&queue, "d", Ask::Hold(fence())).unwrap());
        assert_eq!(queue.take(1).len(), 3);
        assert_eq!(queue.take(1).len(), 1, "nothing else waits");
        replies.push(asked(&queue, "e", Ask::Get).unwrap());
        assert_eq!(queue.take(0).len(), 1);
    }

    #[test]
    fn no_line_is_passed_over_while_its_lane_is_stuck() {
        for (lane, own, other) in
            [(1, Line::Claims, Line::Endings), (0, Line::Endings, Line::Claims)]
        {
            let queue = Queue::new(2, 100);
            let mut replies = Vec::new();
            let ask = |line| if line == Line::Claims { Ask::Get } else { Ask::Hold(fence()) };
            replies.push(asked(&queue, "late", ask(other)).unwrap());
            let served = (0..10).map(|key| {
                replies.push(asked(&queue, &key.to_string(), ask(own)).unwrap());
                queue.take(lane)[0].ask.line()
            });
            let served: Vec<Line> = served.collect();
            let place = served.iter().position(|line| *line == other);
            assert_eq!(place, Some(usize::from(PASSES_MAX)), "{served:?}");
            assert_eq!(served.iter().filter(|line| **line == other).count(), 1);
        }
    }

    #[test]
    fn every_lane_helps_to_empty_a_queue_that_is_closed() {
        let queue = Queue::new(4, 100);
        let _reply = asked(&queue, "a", Ask::Get).unwrap();
        assert!(!queue.lock().is_worth(3), "one question is not worth the last lane's while");
        queue.close();
        assert!(queue.lock().is_worth(3));
    }

    #[test]
    fn a_batch_is_sorted_and_has_each_record_once() {
        let queue = Queue::new(1, 100);
        let mut replies = Vec::new();
        for key in ["a", "b", "c", "a", "b", "a"] {
            replies.push(asked(&queue, key, Ask::Get).unwrap());
        }
        let batch = queue.take(0);
        assert!(batch.is_sorted_by_key(|question| question.digest));
        assert_eq!((batch.len(), queue.take(0).len(), queue.take(0).len()), (3, 2, 1));
        assert!(queue.take(0).is_empty());
    }

    #[test]
    fn a_batch_of_large_answers_is_cut() {
        let queue = Queue::new(1, 2);
        let response = StoredResponse { body: vec![7; 3 << 20].into(), ..Default::default() };
        let answer = Answer::response(&response);
        let mut replies = Vec::new();
        for key in ["a", "b", "c", "d", "e"] {
            let ask = Ask::Complete(fence(), answer.clone());
            replies.push(asked(&queue, key, ask).unwrap());
        }
        assert_eq!([(); 2].map(|()| queue.take(0).len()), [3, 2]);
    }

    #[test]
    fn a_closed_queue_serves_what_waits_and_takes_no_more() {
        let queue = Queue::new(1, 2);
        let _reply = asked(&queue, "a", Ask::Get).unwrap();
        queue.close();
        assert!(asked(&queue, "b", Ask::Get).is_err());
        assert_eq!(queue.take(0).len(), 1);
    }

    #[test]
    fn whoever_meets_race_after_race_is_told() {
        let queue = Queue::new(1, 2);
        let mut reply = asked(&queue, "a", Ask::Get).unwrap();
        for _ in 0..TRIES_MAX {
            let again = queue.take(0).into_iter().map(|question| (question, Step::First)).collect();
            queue.put_back(again);
        }
        assert!(queue.take(0).is_empty());
        assert!(reply.try_recv().unwrap().is_err());
    }
}
