//! What callers ask of the writer and the readers, and where it waits for them.
//!
//! Back-pressure falls on new claims: when too many wait, the next one is refused at once. What
//! ends or prolongs an execution is always taken; there is never more of it than there are
//! executions.

use std::{
    collections::VecDeque,
    mem,
    sync::{Condvar, Mutex, MutexGuard, PoisonError},
    time::Duration,
};

use bytes::Bytes;
use semel_core::{
    Answer, Batch, Claim, Claimant, Claimed, Epoch, Fence, Fenced, Finish, ListQuery, Page,
    RecordAction, RecordId, Resolution, Resolved, Snapshot, StoreError, StoreErrorKind,
};
use tokio::sync::oneshot;

use crate::desk::{Desk, Outbox};

/// A batch is cut once its answers have this many bytes together.
const BATCH_BYTES_MAX: usize = 8 << 20;

/// What is asked.
#[derive(Debug)]
pub(crate) enum Ask {
    /// With the claim, the place of its record in the index: hashing is work for the many who ask,
    /// not for the one who writes.
    Claim(Box<Claim>, u64),
    Renew(RecordId, Claimant, Duration),
    Finish(RecordId, Claimant, Finish),
    Resolve(RecordId, Fence, Resolution),
    Reap(u32),
    Sweep(u32),
    SetMetadata(Box<str>, Option<Vec<u8>>),
    /// Learn of the claims that other processes have made.
    CatchUp,
    Get(RecordId),
    List(Box<ListQuery>),
    Epoch,
    /// What is remembered below this prefix.
    Metadata(Box<str>),
}

impl Ask {
    fn bytes(&self) -> usize {
        self.completion().map_or(0, |(_, answer)| answer.as_bytes().len())
    }

    /// The number of the record that this completes; everything else comes after all of those.
    pub(crate) fn completes(&self) -> u64 {
        self.completion().map_or(u64::MAX, |(by, _)| by.fence.get())
    }

    const fn completion(&self) -> Option<(&Claimant, &Answer)> {
        if let Self::Finish(_, by, Finish { action: RecordAction::Complete(answer), .. }) = self {
            Some((by, answer))
        } else {
            None
        }
    }
}

/// What was found or done.
#[derive(Debug)]
pub(crate) enum Told {
    Claimed(Claimed),
    Fenced(Fenced),
    Resolved(Resolved),
    Batch(Batch),
    Done,
    Got(Option<Box<Snapshot>>),
    Page(Page),
    Epoch(Epoch),
    Metadata(Vec<(Box<str>, Bytes)>),
}

/// A question on its way, with the place where its asker waits.
#[derive(Debug)]
pub(crate) struct Question {
    pub(crate) ask: Ask,
    reply: oneshot::Sender<Result<Told, StoreError>>,
    desk: Option<Desk>,
}

impl Question {
    /// An asker that has gone away is no reason to stop: what was asked is done all the same.
    pub(crate) fn answer(self, told: Result<Told, StoreError>) {
        let _ = self.reply.send(told);
    }

    /// The same, together with the other answers of a batch.
    pub(crate) fn answer_by(self, outbox: &mut Outbox, told: Told) {
        outbox.put(self.desk, (self.reply, Ok(told)));
    }
}

#[derive(Debug)]
pub(crate) struct Queue {
    waiting: Mutex<Waiting>,
    arrived: Condvar,
    limited_max: usize,
}

#[derive(Debug, Default)]
struct Waiting {
    questions: VecDeque<Question>,
    /// How many of them count towards the limit.
    limited: usize,
    /// How many threads sleep until something arrives; nobody else needs waking.
    sleepers: usize,
    closed: bool,
}

impl Waiting {
    /// How many questions go into one batch: at most `max`, and no more once their answers are
    /// large.
    fn batch_length(&self, max: usize) -> usize {
        let mut bytes = 0_usize;
        let fits = |question: &&Question| {
            let room = bytes < BATCH_BYTES_MAX;
            bytes = bytes.saturating_add(question.ask.bytes());
            room
        };
        self.questions.iter().take(max).take_while(fits).count()
    }
}

impl Queue {
    /// A queue that refuses the next claim or reading while `limited_max` of them wait.
    pub(crate) fn new(limited_max: usize) -> Self {
        Self { waiting: Mutex::default(), arrived: Condvar::new(), limited_max }
    }

    pub(crate) fn push(
        &self,
        ask: Ask,
    ) -> Result<oneshot::Receiver<Result<Told, StoreError>>, StoreError> {
        let desk = Desk::here();
        let mut waiting = self.lock();
        if waiting.closed {
            return Err(StoreError::new(StoreErrorKind::Unavailable, "the store has been closed"));
        }
        let limited = is_limited(&ask);
        if limited && waiting.limited >= self.limited_max {
            let message = "too many requests are waiting for the store: try again later";
            return Err(StoreError::new(StoreErrorKind::Busy, message));
        }
        waiting.limited += usize::from(limited);
        let (reply, receiver) = oneshot::channel();
        waiting.questions.push_back(Question { ask, reply, desk });
        let wake = waiting.sleepers > 0;
        drop(waiting);
        if wake {
            self.arrived.notify_one();
        }
        Ok(receiver)
    }

    /// Takes what waits, at most `max`, as soon as there is something; nothing after `idle`. `None`
    /// when the queue is closed and empty.
    pub(crate) fn take(&self, max: usize, idle: Duration) -> Option<VecDeque<Question>> {
        let mut waiting = self.lock();
        if waiting.questions.is_empty() && !waiting.closed {
            waiting.sleepers += 1;
            let sleep = self.arrived.wait_timeout_while(waiting, idle, |waiting| {
                waiting.questions.is_empty() && !waiting.closed
            });
            waiting = sleep.unwrap_or_else(PoisonError::into_inner).0;
            waiting.sleepers -= 1;
        }
        if waiting.questions.is_empty() && waiting.closed {
            return None;
        }
        let count = waiting.batch_length(max);
        let rest = waiting.questions.split_off(count);
        let taken = mem::replace(&mut waiting.questions, rest);
        waiting.limited -= taken.iter().filter(|question| is_limited(&question.ask)).count();
        Some(taken)
    }

    /// Takes nothing more; what waits is still served.
    pub(crate) fn close(&self) {
        self.lock().closed = true;
        self.arrived.notify_all();
    }

    /// Takes nothing more and lets go of what waits: each asker learns that it will not be
    /// answered.
    pub(crate) fn abandon(&self) {
        self.close();
        let abandoned = mem::take(&mut self.lock().questions);
        drop(abandoned);
    }

    fn lock(&self) -> MutexGuard<'_, Waiting> {
        self.waiting.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

fn is_limited(ask: &Ask) -> bool {
    match ask {
        Ask::Claim(..) | Ask::Get(_) | Ask::List(_) | Ask::Epoch | Ask::Metadata(_) => true,
        Ask::Renew(..)
        | Ask::Finish(..)
        | Ask::Resolve(..)
        | Ask::Reap(_)
        | Ask::Sweep(_)
        | Ask::SetMetadata(..)
        | Ask::CatchUp => false,
    }
}

#[cfg(test)]
mod tests {
    use semel_core::{Caller, Fence, Key, OwnerToken, Reason, Scope, StoredResponse};

    use super::*;

    fn id() -> RecordId {
        let key = Key::new("k").unwrap();
        RecordId::new(Scope::new("s").unwrap(), Caller::anonymous(), key)
    }

    fn by() -> Claimant {
        Claimant { fence: Fence::new(1).unwrap(), owner: OwnerToken::from_bytes([1; 16]) }
    }

    #[test]
    fn back_pressure_falls_on_claims_and_readings_only() {
        let queue = Queue::new(2);
        let _first = queue.push(Ask::Get(id())).unwrap();
        let _second = queue.push(Ask::Epoch).unwrap();
        assert_eq!(queue.push(Ask::Get(id())).unwrap_err().kind(), StoreErrorKind::Busy);
        let _ending = queue.push(Ask::Finish(id(), by(), Finish::hold(Reason::Panicked))).unwrap();
        assert_eq!(queue.take(10, Duration::ZERO).unwrap().len(), 3);
        let _third = queue.push(Ask::Get(id())).unwrap();
    }

    #[test]
    fn a_batch_of_large_answers_is_cut() {
        let queue = Queue::new(2);
        let response = StoredResponse { body: vec![7; 3 << 20].into(), ..Default::default() };
        let answer = Answer::response(&response);
        for _ in 0..5 {
            let ask = Ask::Finish(id(), by(), Finish::complete(answer.clone()));
            let _reply = queue.push(ask).unwrap();
        }
        let lengths = [(); 2].map(|()| queue.take(10, Duration::ZERO).unwrap().len());
        assert_eq!(lengths, [3, 2]);
    }

    #[test]
    fn a_closed_queue_serves_what_waits_and_takes_no_more() {
        let queue = Queue::new(2);
        let _reply = queue.push(Ask::Epoch).unwrap();
        queue.close();
        assert_eq!(queue.push(Ask::Epoch).unwrap_err().kind(), StoreErrorKind::Unavailable);
        assert_eq!(queue.take(10, Duration::ZERO).unwrap().len(), 1);
        assert!(queue.take(10, Duration::ZERO).is_none());
    }
}
