//! Where questions wait for the lanes.
//!
//! They wait in two lines. What ends or prolongs an execution is always taken; there is never more
//! of it than there are executions. Back-pressure falls on the other line, of claims and readings.
//!
//! A batch is of one line, and each lane has a line that it looks at first. So a batch is nearly
//! always one statement, which commits by itself: two kinds in one transaction would take half as
//! many commits, but those are shared anyway, and a transaction is four statements. (Through a
//! pooler, where everything that writes is a transaction, there is nothing to gain by it.)

use std::{
    collections::VecDeque,
    mem,
    sync::{Mutex, MutexGuard, PoisonError},
};

use semel_core::{StoreError, StoreErrorKind};
use tokio::sync::Notify;

use crate::{
    error::closed,
    question::{Line, Question, Step},
};

/// A batch is cut once its answers have this many bytes together.
const BATCH_BYTES_MAX: usize = 8 << 20;

/// How many questions one transaction takes.
const BATCH_MAX: usize = 512;

/// Two connections take whatever there is, each a line of its own first; the others would only make
/// batches smaller. They come when this many wait in a line, and help where more do.
const EAGER_LANES: usize = 2;
const CROWD: usize = 64;

/// A line is passed over this often at most, while the lane that looks at it first is busy.
const PASSES_MAX: u8 = 4;

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
        if lane < EAGER_LANES || self.closed {
            self.len() > 0
        } else {
            self.endings.len().max(self.claims.len()) >= CROWD
        }
    }

    /// The line that a lane looks at first.
    fn own(&self, lane: usize) -> Line {
        match lane {
            0 => Line::Endings,
            1 => Line::Claims,
            _ if self.endings.len() < self.claims.len() => Line::Claims,
            _ => Line::Endings,
        }
    }

    /// The lane to wake for a line, of those that have nothing to do and are asked for.
    fn free(&self, line: Line, is_asked: impl Fn(usize) -> bool) -> Option<usize> {
        let idle = self.idle.iter().enumerate().filter(|(_, idle)| **idle);
        let lanes = idle.map(|(lane, _)| lane).filter(|lane| is_asked(*lane));
        lanes.min_by_key(|lane| (*lane >= EAGER_LANES, self.own(*lane) != line))
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
        // One lane alone takes turns.
        let passes_max = if self.idle.len() == 1 { 1 } else { PASSES_MAX };
        let line = if self.passes >= passes_max { self.last.other() } else { self.own(lane) };
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
        batch.sort_by_key(|question| question.digest);
        let mut unique: Vec<Question> = Vec::with_capacity(batch.len());
        for question in batch {
            match unique.last() {
                Some(last) if last.digest == question.digest => others.push(question),
                _ => unique.push(question),
            }
        }
        for question in others.into_iter().rev() {
            self.line(line).push_front(question);
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
        let free = waiting.free(line, |lane| waiting.is_worth(lane));
        self.ring(&mut waiting, free);
        Ok(())
    }

    fn ring(&self, waiting: &mut Waiting, lane: Option<usize>) {
        let Some(lane) = lane else { return };
        if let Some(idle) = waiting.idle.get_mut(lane) {
            *idle = false;
        }
        if let Some(bell) = self.bells.get(lane) {
            bell.notify_one();
        }
    }

    /// Wakes a lane for each line in which somebody waits, whatever it is worth.
    pub(crate) fn rouse(&self) {
        self.rouse_in(&mut self.lock());
    }

    fn rouse_in(&self, waiting: &mut Waiting) {
        for line in Line::ALL {
            if !waiting.line(line).is_empty() {
                let free = waiting.free(line, |_| true);
                self.ring(waiting, free);
            }
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
        self.rouse_in(&mut waiting);
    }

    /// Wakes lanes if something waits and nothing was taken since the last time this was asked:
    /// those that take everything may all be waiting for one lock.
    pub(crate) fn nudge(&self, taken_before: u64) -> u64 {
        let mut waiting = self.lock();
        if waiting.taken == taken_before {
            self.rouse_in(&mut waiting);
        }
        waiting.taken
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
    use std::time::Duration;

    use semel_core::{
        Answer, Caller, Claim, Claimant, Fence, Fingerprint, Finish, Key, OwnerToken, Reason,
        RecordId, Scope, StoredResponse,
    };

    use super::*;
    use crate::{
        digest::Digest,
        question::{Ask, Awaited, TRIES_MAX},
    };

    fn id(key: &str) -> RecordId {
        let key = Key::new(key).unwrap();
        RecordId::new(Scope::new("s").unwrap(), Caller::anonymous(), key)
    }

    fn claim(key: &str) -> Claim {
        let fingerprint = Fingerprint::try_from(&[1; 33][..]).unwrap();
        Claim::new(id(key), fingerprint, OwnerToken::from_bytes([1; 16]))
    }

    fn asked(queue: &Queue, key: &str, ask: Ask) -> Result<Awaited, StoreError> {
        let (question, awaited) = Question::new(Digest::of(&id(key)), ask, Step::First);
        queue.push(question).map(|()| awaited)
    }

    fn by() -> Claimant {
        Claimant { fence: Fence::new(1).unwrap(), owner: OwnerToken::from_bytes([1; 16]) }
    }

    fn hold() -> Ask {
        Ask::Finish(by(), Finish::hold(Reason::Panicked))
    }

    fn ask(line: Line) -> Ask {
        if line == Line::Claims { Ask::Get } else { hold() }
    }

    /// A queue whose lanes are all free.
    fn idle(lanes: usize) -> Queue {
        let queue = Queue::new(lanes, 1000);
        queue.lock().idle.fill(true);
        queue
    }

    /// The lanes that have been woken.
    fn woken(queue: &Queue) -> Vec<usize> {
        let waiting = queue.lock();
        (0..waiting.idle.len()).filter(|lane| !waiting.idle[*lane]).collect()
    }

    #[test]
    fn back_pressure_falls_on_claims_and_readings_only() {
        let queue = Queue::new(1, 2);
        let _first = asked(&queue, "a", Ask::Get).unwrap();
        let _second = asked(&queue, "b", Ask::Get).unwrap();
        let refused = asked(&queue, "c", Ask::Get).unwrap_err();
        assert_eq!(refused.kind(), StoreErrorKind::Busy);
        let _ending = asked(&queue, "d", hold()).unwrap();
        assert_eq!((queue.take(0).len(), queue.take(0).len()), (1, 2));
        let _third = asked(&queue, "c", Ask::Get).unwrap();
    }

    #[test]
    fn those_who_watch_share_no_batch_with_those_who_write() {
        let queue = Queue::new(1, 100);
        let mut replies = Vec::new();
        for (key, watches) in [("a", true), ("b", false), ("c", true), ("d", false)] {
            let ask = if watches { Ask::Watch } else { Ask::Claim(Box::new(claim(key))) };
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
    fn whoever_comes_wakes_the_lane_of_their_line_or_another() {
        let queue = idle(4);
        let mut replies = Vec::new();
        let mut come = |key: usize, line| {
            replies.push(asked(&queue, &key.to_string(), ask(line)).unwrap());
            woken(&queue)
        };
        assert_eq!(come(0, Line::Claims), [1]);
        assert_eq!(come(1, Line::Claims), [0, 1], "a lane that helps is better than none");
        assert_eq!(come(2, Line::Endings), [0, 1], "few are not worth a third");
        for key in 3..CROWD {
            assert_eq!(come(key, Line::Claims), [0, 1]);
        }
        assert_eq!(come(CROWD, Line::Claims), [0, 1, 2]);
        assert_eq!(queue.take(2).len(), CROWD, "it helps where more wait");
    }

    #[test]
    fn whoever_waits_for_stuck_lanes_gets_others_for_both_lines() {
        let queue = idle(4);
        queue.lock().idle[..2].fill(false);
        let mut replies = Vec::new();
        for (key, line) in [("a", Line::Endings), ("b", Line::Claims), ("c", Line::Claims)] {
            replies.push(asked(&queue, key, ask(line)).unwrap());
        }
        assert_eq!(woken(&queue), [0, 1]);
        assert_eq!(queue.nudge(7), 0);
        assert_eq!(woken(&queue), [0, 1], "something has been taken since");
        queue.nudge(0);
        assert_eq!(woken(&queue), [0, 1, 2, 3]);
        assert_eq!((queue.take(2).len(), queue.take(3).len()), (2, 1));
    }

    #[test]
    fn a_lane_that_has_to_connect_first_wakes_one_that_need_not() {
        let queue = idle(4);
        let _reply = asked(&queue, "a", Ask::Get).unwrap();
        assert_eq!(woken(&queue), [1]);
        queue.rouse();
        assert_eq!(woken(&queue), [0, 1]);
        let again = queue.take(0).into_iter().map(|question| (question, Step::First)).collect();
        queue.put_back(again);
        assert_eq!(woken(&queue), [0, 1, 2]);
    }

    #[test]
    fn a_lane_alone_takes_turns() {
        let queue = Queue::new(1, 100);
        let mut replies = Vec::new();
        let served = (0..6).map(|round| {
            for line in Line::ALL {
                replies.push(asked(&queue, &format!("{line:?}-{round}"), ask(line)).unwrap());
            }
            queue.take(0)[0].ask.line()
        });
        let [endings, claims] = Line::ALL;
        assert_eq!(served.collect::<Vec<_>>(), [endings, claims].repeat(3));
    }

    #[test]
    fn a_claim_goes_no_further_than_whoever_waits_for_it() {
        let queue = Queue::new(1, 100);
        for (gone, left) in [(true, 0), (false, 1)] {
            let reply = asked(&queue, "a", Ask::Claim(Box::new(claim("a")))).unwrap();
            let reply = (!gone).then_some(reply);
            let again = queue.take(0).into_iter().map(|question| (question, Step::Take)).collect();
            queue.put_back(again);
            assert_eq!(queue.take(0).len(), left);
            drop(reply);
        }
        drop(asked(&queue, "a", hold()).unwrap());
        let again = queue.take(0).into_iter().map(|question| (question, Step::Check)).collect();
        queue.put_back(again);
        assert_eq!(queue.take(0).len(), 1, "an ending is gone on with");
    }

    #[test]
    fn each_lane_has_a_line_and_helps_with_the_other() {
        let queue = Queue::new(2, 100);
        let mut replies = Vec::new();
        for key in ["a", "b", "c"] {
            replies.push(asked(&queue, key, Ask::Get).unwrap());
        }
        replies.push(asked(&queue, "d", hold()).unwrap());
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
    fn the_questions_of_one_record_keep_their_order() {
        let queue = Queue::new(1, 100);
        let renew = || Ask::Renew(by(), Duration::from_secs(1));
        let asks = [renew(), renew(), hold()];
        let _replies = asks.map(|ask| asked(&queue, "a", ask).unwrap());
        let taken =
            [(); 3].map(|()| matches!(queue.take(0)[..], [Question { ask: Ask::Finish(..), .. }]));
        assert_eq!(taken, [false, false, true]);
    }

    #[test]
    fn a_batch_of_large_answers_is_cut() {
        let queue = Queue::new(1, 2);
        let response = StoredResponse { body: vec![7; 3 << 20].into(), ..Default::default() };
        let answer = Answer::response(&response);
        let mut replies = Vec::new();
        for key in ["a", "b", "c", "d", "e"] {
            let ask = Ask::Finish(by(), Finish::complete(answer.clone()));
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
