//! The queue in which commands wait for the writer or a reader thread.
//!
//! Back-pressure applies to claims and reads: when too many wait, the next one is refused at once.
//! Commands that end or prolong an execution are always accepted, because there are never more of
//! them than executions.

use std::{
    collections::VecDeque,
    mem,
    sync::{Condvar, Mutex, MutexGuard, PoisonError},
    time::Duration,
};

use semel_core::{StoreError, StoreErrorKind};
use tokio::sync::oneshot;

use crate::{
    command::{SqliteCommand, SqliteReply},
    reply_batching::{ReplyBatch, RuntimeMailbox},
};

/// A batch takes no further large command once its answers reach this many bytes.
const BATCH_BYTES_MAX: usize = 2 << 20;

/// A command with at least this many bytes is large. Small commands do not wait behind large ones:
/// otherwise one client with large answers delays every other by as long as they take to write.
const LARGE_BYTES_MIN: usize = 64 << 10;

/// A queued command, and where its caller waits for the reply.
#[derive(Debug)]
pub(crate) struct PendingCommand {
    pub(crate) command: SqliteCommand,
    reply_tx: oneshot::Sender<Result<SqliteReply, StoreError>>,
    mailbox: Option<RuntimeMailbox>,
}

impl PendingCommand {
    /// Sends the reply. The caller may be gone; the command was executed all the same.
    pub(crate) fn respond(self, reply: Result<SqliteReply, StoreError>) {
        let _ = self.reply_tx.send(reply);
    }

    /// Adds the reply to those of a batch.
    pub(crate) fn respond_in(self, batch: &mut ReplyBatch, reply: SqliteReply) {
        batch.push(self.mailbox, (self.reply_tx, Ok(reply)));
    }
}

#[derive(Debug)]
pub(crate) struct ThreadQueue {
    waiting: Mutex<WaitingCommands>,
    arrived: Condvar,
    limited_max: usize,
}

#[derive(Debug, Default)]
struct WaitingCommands {
    small: VecDeque<PendingCommand>,
    large: VecDeque<PendingCommand>,
    /// How many of them count towards the limit.
    limited: usize,
    /// How many threads sleep until a command arrives. Without one, no wake-up is needed.
    sleepers: usize,
    closed: bool,
}

impl WaitingCommands {
    fn are_none(&self) -> bool {
        self.small.is_empty() && self.large.is_empty()
    }

    fn push(&mut self, pending: PendingCommand) {
        let is_large = pending.command.bytes() >= LARGE_BYTES_MIN;
        if is_large { &mut self.large } else { &mut self.small }.push_back(pending);
    }

    /// Takes the next batch: at most `max` small commands, and large ones up to their limit in
    /// bytes. Commands that wait at the same time have no order, since none has been replied to.
    fn take(&mut self, max: usize) -> VecDeque<PendingCommand> {
        let rest = self.small.split_off(max.min(self.small.len()));
        let mut batch = mem::replace(&mut self.small, rest);
        let mut bytes = 0_usize;
        while bytes < BATCH_BYTES_MAX
            && let Some(pending) = self.large.pop_front()
        {
            bytes = bytes.saturating_add(pending.command.bytes());
            batch.push_back(pending);
        }
        batch
    }
}

impl ThreadQueue {
    /// A queue that refuses a claim or read while `limited_max` of them wait.
    pub(crate) fn new(limited_max: usize) -> Self {
        Self { waiting: Mutex::default(), arrived: Condvar::new(), limited_max }
    }

    pub(crate) fn push(
        &self,
        command: SqliteCommand,
    ) -> Result<oneshot::Receiver<Result<SqliteReply, StoreError>>, StoreError> {
        let mailbox = RuntimeMailbox::current();
        let mut waiting = self.lock();
        if waiting.closed {
            return Err(StoreError::new(StoreErrorKind::Unavailable, "the store has been closed"));
        }
        let limited = is_limited(&command);
        if limited && waiting.limited >= self.limited_max {
            let message = "too many requests are waiting for the store: try again later";
            return Err(StoreError::new(StoreErrorKind::Busy, message));
        }
        waiting.limited += usize::from(limited);
        let (reply_tx, receiver) = oneshot::channel();
        waiting.push(PendingCommand { command, reply_tx, mailbox });
        let wake = waiting.sleepers > 0;
        drop(waiting);
        if wake {
            self.arrived.notify_one();
        }
        Ok(receiver)
    }

    /// Takes up to `max` waiting commands as soon as there is one, or none after `idle`. Returns
    /// `None` when the queue is closed and empty.
    pub(crate) fn take(&self, max: usize, idle: Duration) -> Option<VecDeque<PendingCommand>> {
        let mut waiting = self.lock();
        if waiting.are_none() && !waiting.closed {
            waiting.sleepers += 1;
            let sleep = self
                .arrived
                .wait_timeout_while(waiting, idle, |waiting| waiting.are_none() && !waiting.closed);
            waiting = sleep.unwrap_or_else(PoisonError::into_inner).0;
            waiting.sleepers -= 1;
        }
        if waiting.are_none() && waiting.closed {
            return None;
        }
        let taken = waiting.take(max);
        waiting.limited -= taken.iter().filter(|pending| is_limited(&pending.command)).count();
        Some(taken)
    }

    /// Refuses new commands. Waiting commands are still served.
    pub(crate) fn close(&self) {
        self.lock().closed = true;
        self.arrived.notify_all();
    }

    /// Refuses new commands and drops the waiting ones, so that their callers get an error.
    pub(crate) fn abandon(&self) {
        self.close();
        let mut waiting = self.lock();
        let abandoned = (mem::take(&mut waiting.small), mem::take(&mut waiting.large));
        drop(waiting);
        drop(abandoned);
    }

    fn lock(&self) -> MutexGuard<'_, WaitingCommands> {
        self.waiting.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

fn is_limited(command: &SqliteCommand) -> bool {
    match command {
        SqliteCommand::Claim(..)
        | SqliteCommand::Get(_)
        | SqliteCommand::List(_)
        | SqliteCommand::Epoch
        | SqliteCommand::Usage
        | SqliteCommand::Metadata(_) => true,
        SqliteCommand::Renew(..)
        | SqliteCommand::Finish(..)
        | SqliteCommand::Resolve(..)
        | SqliteCommand::Reap(_)
        | SqliteCommand::Sweep(_)
        | SqliteCommand::SetMetadata(..)
        | SqliteCommand::CatchUp => false,
    }
}

#[cfg(test)]
mod tests {
    use semel_core::{
        Answer, Caller, Claimant, Fence, Finish, Key, OwnerToken, Reason, RecordId, Scope,
        StoredResponse,
    };

    use super::*;

    fn id() -> RecordId {
        let key = Key::new("k").unwrap();
        RecordId::new(Scope::new("s").unwrap(), Caller::anonymous(), key)
    }

    fn by() -> Claimant {
        Claimant::new(Fence::new(1).unwrap(), OwnerToken::from_bytes([1; 16]))
    }

    #[test]
    fn only_claims_and_reads_are_limited() {
        let queue = ThreadQueue::new(2);
        let _first = queue.push(SqliteCommand::Get(id())).unwrap();
        let _second = queue.push(SqliteCommand::Epoch).unwrap();
        assert_eq!(queue.push(SqliteCommand::Get(id())).unwrap_err().kind(), StoreErrorKind::Busy);
        let _ending =
            queue.push(SqliteCommand::Finish(id(), by(), Finish::hold(Reason::Panicked))).unwrap();
        assert_eq!(queue.take(10, Duration::ZERO).unwrap().len(), 3);
        let _third = queue.push(SqliteCommand::Get(id())).unwrap();
    }

    fn large_answer() -> SqliteCommand {
        let response = StoredResponse { body: vec![7; 1 << 20].into(), ..Default::default() };
        SqliteCommand::Finish(id(), by(), Finish::complete(Answer::response(&response)))
    }

    #[test]
    fn a_batch_of_large_answers_is_split() {
        let queue = ThreadQueue::new(2);
        let _replies = [(); 5].map(|()| queue.push(large_answer()).unwrap());
        let lengths = [(); 3].map(|()| queue.take(10, Duration::ZERO).unwrap().len());
        assert_eq!(lengths, [2, 2, 1]);
    }

    #[test]
    fn a_claim_does_not_wait_behind_large_answers() {
        let queue = ThreadQueue::new(2);
        let _replies = [(); 5].map(|()| queue.push(large_answer()).unwrap());
        let _read = queue.push(SqliteCommand::Get(id())).unwrap();
        let batch = queue.take(10, Duration::ZERO).unwrap();
        let reads = batch.iter().filter(|pending| matches!(pending.command, SqliteCommand::Get(_)));
        assert_eq!((reads.count(), batch.len()), (1, 3));
    }

    #[test]
    fn small_commands_do_not_keep_a_large_one_waiting() {
        let queue = ThreadQueue::new(100);
        let _replies = [(); 20].map(|()| queue.push(SqliteCommand::Get(id())).unwrap());
        let _large = queue.push(large_answer()).unwrap();
        assert_eq!(queue.take(10, Duration::ZERO).unwrap().len(), 11);
    }

    #[test]
    fn a_closed_queue_drains_and_refuses_new_commands() {
        let queue = ThreadQueue::new(2);
        let _reply = queue.push(SqliteCommand::Epoch).unwrap();
        queue.close();
        assert_eq!(
            queue.push(SqliteCommand::Epoch).unwrap_err().kind(),
            StoreErrorKind::Unavailable
        );
        assert_eq!(queue.take(10, Duration::ZERO).unwrap().len(), 1);
        assert!(queue.take(10, Duration::ZERO).is_none());
    }
}
