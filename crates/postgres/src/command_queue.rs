//! The queue from which the writers take commands.
//!
//! It has two parts. Updates (renewals and finishes) are always accepted; there are never more than
//! executions. Back-pressure applies to the other part, claims and reads.
//!
//! A batch comes from one part, and each writer prefers one. So a batch is nearly always one
//! statement, which commits by itself. Both parts in one transaction would halve the number of
//! commits, but batches share those anyway, and a transaction is four statements. (Through a
//! pooler, where every write is a transaction, this saves nothing.)

use std::{
    collections::VecDeque,
    mem,
    sync::{Mutex, MutexGuard, PoisonError},
};

use semel_core::{StoreError, StoreErrorKind};
use tokio::sync::Notify;

use crate::{
    command::{QueueKind, QueuedCommand, StatementStage},
    error::closed,
};

/// A batch ends once its answers have this many bytes together.
const BATCH_BYTES_MAX: usize = 8 << 20;

/// How many commands one batch takes.
const BATCH_MAX: usize = 512;

/// The first two writers take any command, each from its preferred part. Further ones would only
/// make batches smaller.
const EAGER_WRITERS: usize = 2;

/// The other writers help when a part has this many commands.
const HELP_THRESHOLD: usize = 64;

/// How many batches may skip one part of the queue, while the writer that prefers it is busy.
const SKIPPED_MAX: u8 = 4;

/// The waiting commands, and which writers are idle.
#[derive(Debug)]
pub(crate) struct CommandQueue {
    state: Mutex<QueueState>,
    notifiers: Vec<Notify>,
    claims_max: usize,
}

#[derive(Debug, Default)]
struct QueueState {
    updates: VecDeque<QueuedCommand>,
    claims: VecDeque<QueuedCommand>,
    idle: Vec<bool>,
    last: QueueKind,
    /// How many batches in a row came from the same part while commands waited in the other.
    skipped: u8,
    /// How many batches were taken, which shows whether the queue is stalled.
    taken: u64,
    closed: bool,
}

impl QueueState {
    fn len(&self) -> usize {
        self.updates.len() + self.claims.len()
    }

    /// Whether enough commands wait for this writer.
    fn has_enough_work(&self, writer: usize) -> bool {
        // A closed queue wakes no writer, so each of them helps to empty it.
        if writer < EAGER_WRITERS || self.closed {
            self.len() > 0
        } else {
            self.updates.len().max(self.claims.len()) >= HELP_THRESHOLD
        }
    }

    /// The part that a writer prefers.
    fn preferred_queue(&self, writer: usize) -> QueueKind {
        match writer {
            0 => QueueKind::Updates,
            1 => QueueKind::Claims,
            _ if self.updates.len() < self.claims.len() => QueueKind::Claims,
            _ => QueueKind::Updates,
        }
    }

    /// The writer to wake for a command, of the idle ones that are eligible.
    fn idle_writer(&self, kind: QueueKind, is_eligible: impl Fn(usize) -> bool) -> Option<usize> {
        let idle = self.idle.iter().enumerate().filter(|(_, idle)| **idle);
        let writers = idle.map(|(writer, _)| writer).filter(|writer| is_eligible(*writer));
        writers
            .min_by_key(|writer| (*writer >= EAGER_WRITERS, self.preferred_queue(*writer) != kind))
    }

    const fn queue_mut(&mut self, kind: QueueKind) -> &mut VecDeque<QueuedCommand> {
        match kind {
            QueueKind::Updates => &mut self.updates,
            QueueKind::Claims => &mut self.claims,
        }
    }

    /// The part that a writer serves now: its preferred one, unless that is empty, or the other one
    /// was skipped too often.
    fn choose_queue(&mut self, writer: usize) -> QueueKind {
        // A single writer alternates.
        let skipped_max = if self.idle.len() == 1 { 1 } else { SKIPPED_MAX };
        let kind = if self.skipped >= skipped_max {
            self.last.other()
        } else {
            self.preferred_queue(writer)
        };
        let kind = if self.queue_mut(kind).is_empty() { kind.other() } else { kind };
        let skipped = if kind == self.last { self.skipped.saturating_add(1) } else { 1 };
        self.skipped = if self.queue_mut(kind.other()).is_empty() { 0 } else { skipped };
        self.last = kind;
        kind
    }

    /// Takes at most [`BATCH_MAX`] commands on different records, in the order of their digests, so
    /// that two batches hardly ever wait for each other's locks. A second command on one record
    /// waits for the next batch. Watches go in batches of their own: together with other writes in
    /// one transaction, two gateways could deadlock on records that the other one is about to
    /// finish.
    fn take(&mut self, writer: usize) -> Vec<QueuedCommand> {
        let kind = self.choose_queue(writer);
        let mut batch: Vec<QueuedCommand> =
            Vec::with_capacity(self.queue_mut(kind).len().min(BATCH_MAX));
        let mut others = Vec::new();
        let mut bytes = 0_usize;
        while batch.len() < BATCH_MAX && bytes < BATCH_BYTES_MAX {
            let Some(command) = self.queue_mut(kind).pop_front() else { break };
            if batch.first().is_some_and(|first| first.is_watch() != command.is_watch()) {
                others.push(command);
                continue;
            }
            bytes = bytes.saturating_add(command.command.answer_bytes());
            batch.push(command);
        }
        batch.sort_by_key(|command| command.digest);
        let mut unique: Vec<QueuedCommand> = Vec::with_capacity(batch.len());
        for command in batch {
            match unique.last() {
                Some(last) if last.digest == command.digest => others.push(command),
                _ => unique.push(command),
            }
        }
        for command in others.into_iter().rev() {
            self.queue_mut(kind).push_front(command);
        }
        self.taken += 1;
        unique
    }
}

impl CommandQueue {
    /// Creates a queue for some writers that rejects a claim while `claims_max` of them wait.
    pub(crate) fn new(writers: usize, claims_max: usize) -> Self {
        let idle = vec![false; writers];
        let state = Mutex::new(QueueState { idle, ..QueueState::default() });
        Self { state, notifiers: (0..writers).map(|_| Notify::new()).collect(), claims_max }
    }

    /// Whether no command waits and all writers are idle.
    pub(crate) fn is_idle(&self) -> bool {
        let state = self.lock();
        state.len() == 0 && !state.closed && state.idle.iter().all(|idle| *idle)
    }

    /// Adds a command, and wakes a writer if one is idle.
    pub(crate) fn push(&self, command: QueuedCommand) -> Result<(), StoreError> {
        let kind = command.command.queue_kind();
        let mut state = self.lock();
        if state.closed {
            return Err(closed());
        }
        if kind == QueueKind::Claims && state.claims.len() >= self.claims_max {
            let message = "too many requests are waiting for the database: try again later";
            return Err(StoreError::new(StoreErrorKind::Busy, message));
        }
        state.queue_mut(kind).push_back(command);
        let idle_writer = state.idle_writer(kind, |writer| state.has_enough_work(writer));
        self.wake(&mut state, idle_writer);
        Ok(())
    }

    fn wake(&self, state: &mut QueueState, writer: Option<usize>) {
        let Some(writer) = writer else { return };
        if let Some(idle) = state.idle.get_mut(writer) {
            *idle = false;
        }
        if let Some(notifier) = self.notifiers.get(writer) {
            notifier.notify_one();
        }
    }

    /// Wakes a writer for each part that is not empty, whether or not it has enough work.
    pub(crate) fn wake_idle(&self) {
        self.wake_idle_locked(&mut self.lock());
    }

    fn wake_idle_locked(&self, state: &mut QueueState) {
        for kind in QueueKind::ALL {
            if !state.queue_mut(kind).is_empty() {
                let idle_writer = state.idle_writer(kind, |_| true);
                self.wake(state, idle_writer);
            }
        }
    }

    /// Waits until there is work for this writer; `false` when the queue is closed and empty.
    pub(crate) async fn wait(&self, writer: usize) -> bool {
        loop {
            {
                let mut state = self.lock();
                if state.has_enough_work(writer) {
                    return true;
                }
                if state.closed && state.len() == 0 {
                    return false;
                }
                if let Some(idle) = state.idle.get_mut(writer) {
                    *idle = true;
                }
            }
            let Some(notifier) = self.notifiers.get(writer) else { return false };
            notifier.notified().await;
            if self.lock().len() > 0 {
                return true;
            }
        }
    }

    /// Takes a batch; it may be empty when another writer was faster.
    pub(crate) fn take(&self, writer: usize) -> Vec<QueuedCommand> {
        self.lock().take(writer)
    }

    /// Puts commands that need another statement back to the head of the queue.
    pub(crate) fn requeue(&self, commands: Vec<(QueuedCommand, StatementStage)>) {
        if commands.is_empty() {
            return;
        }
        let mut state = self.lock();
        for (command, stage) in commands {
            if let Some(command) = command.advance(stage) {
                state.queue_mut(command.command.queue_kind()).push_front(command);
            }
        }
        self.wake_idle_locked(&mut state);
    }

    /// Wakes writers if commands wait and no batch was taken since the last call: the eager writers
    /// may all be waiting for one lock.
    pub(crate) fn wake_if_stalled(&self, taken_before: u64) -> u64 {
        let mut state = self.lock();
        if state.taken == taken_before {
            self.wake_idle_locked(&mut state);
        }
        state.taken
    }

    /// Accepts no more commands; waiting ones are still served.
    pub(crate) fn close(&self) {
        self.lock().closed = true;
        self.notifiers.iter().for_each(Notify::notify_one);
    }

    pub(crate) fn is_closed(&self) -> bool {
        self.lock().closed
    }

    /// Fails all waiting commands, which had no effect.
    pub(crate) fn reject_all(&self, why: impl Fn() -> StoreError) {
        let mut state = self.lock();
        let (updates, claims) = (mem::take(&mut state.updates), mem::take(&mut state.claims));
        drop(state);
        for command in updates.into_iter().chain(claims) {
            command.reply(Err(why()));
        }
    }

    fn lock(&self) -> MutexGuard<'_, QueueState> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
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
        command::{CommandReceiver, RACES_MAX, RecordCommand},
        digest::Digest,
    };

    fn id(key: &str) -> RecordId {
        let key = Key::new(key).unwrap();
        RecordId::new(Scope::new("s").unwrap(), Caller::anonymous(), key)
    }

    fn claim(key: &str) -> Claim {
        let fingerprint = Fingerprint::try_from(&[1; 33][..]).unwrap();
        Claim::new(id(key), fingerprint, OwnerToken::from_bytes([1; 16]))
    }

    fn push(
        queue: &CommandQueue,
        key: &str,
        command: RecordCommand,
    ) -> Result<CommandReceiver, StoreError> {
        let (queued, receiver) =
            QueuedCommand::new(Digest::of(&id(key)), command, StatementStage::First);
        queue.push(queued).map(|()| receiver)
    }

    fn by() -> Claimant {
        Claimant::new(Fence::new(1).unwrap(), OwnerToken::from_bytes([1; 16]))
    }

    fn hold() -> RecordCommand {
        RecordCommand::Finish(by(), Finish::hold(Reason::Panicked))
    }

    fn command(kind: QueueKind) -> RecordCommand {
        if kind == QueueKind::Claims { RecordCommand::Get } else { hold() }
    }

    /// A queue whose writers are all idle.
    fn idle(writers: usize) -> CommandQueue {
        let queue = CommandQueue::new(writers, 1000);
        queue.lock().idle.fill(true);
        queue
    }

    /// The writers that have been woken.
    fn woken(queue: &CommandQueue) -> Vec<usize> {
        let state = queue.lock();
        (0..state.idle.len()).filter(|writer| !state.idle[*writer]).collect()
    }

    #[test]
    fn back_pressure_applies_to_claims_and_reads_only() {
        let queue = CommandQueue::new(1, 2);
        let _first = push(&queue, "a", RecordCommand::Get).unwrap();
        let _second = push(&queue, "b", RecordCommand::Get).unwrap();
        let refused = push(&queue, "c", RecordCommand::Get).unwrap_err();
        assert_eq!(refused.kind(), StoreErrorKind::Busy);
        let _ending = push(&queue, "d", hold()).unwrap();
        assert_eq!((queue.take(0).len(), queue.take(0).len()), (1, 2));
        let _third = push(&queue, "c", RecordCommand::Get).unwrap();
    }

    #[test]
    fn watches_and_writes_go_in_different_batches() {
        let queue = CommandQueue::new(1, 100);
        let mut replies = Vec::new();
        for (key, watches) in [("a", true), ("b", false), ("c", true), ("d", false)] {
            let command = if watches {
                RecordCommand::Watch
            } else {
                RecordCommand::Claim(Box::new(claim(key)))
            };
            replies.push(push(&queue, key, command).unwrap());
        }
        for _ in 0..2 {
            let batch = queue.take(0);
            assert_eq!(batch.len(), 2);
            assert_eq!(batch[0].is_watch(), batch[1].is_watch());
        }
        assert!(queue.take(0).is_empty());
    }

    #[test]
    fn a_command_wakes_the_writer_that_prefers_it_or_another() {
        let queue = idle(4);
        let mut replies = Vec::new();
        let mut push_woken = |key: usize, kind| {
            replies.push(push(&queue, &key.to_string(), command(kind)).unwrap());
            woken(&queue)
        };
        assert_eq!(push_woken(0, QueueKind::Claims), [1]);
        assert_eq!(push_woken(1, QueueKind::Claims), [0, 1], "another idle writer helps");
        assert_eq!(push_woken(2, QueueKind::Updates), [0, 1], "few commands wake no third writer");
        for key in 3..HELP_THRESHOLD {
            assert_eq!(push_woken(key, QueueKind::Claims), [0, 1]);
        }
        assert_eq!(push_woken(HELP_THRESHOLD, QueueKind::Claims), [0, 1, 2]);
        assert_eq!(queue.take(2).len(), HELP_THRESHOLD, "it serves the longer part");
    }

    #[test]
    fn stuck_writers_are_replaced_by_others_for_both_parts() {
        let queue = idle(4);
        queue.lock().idle[..2].fill(false);
        let mut replies = Vec::new();
        for (key, kind) in
            [("a", QueueKind::Updates), ("b", QueueKind::Claims), ("c", QueueKind::Claims)]
        {
            replies.push(push(&queue, key, command(kind)).unwrap());
        }
        assert_eq!(woken(&queue), [0, 1]);
        assert_eq!(queue.wake_if_stalled(7), 0);
        assert_eq!(woken(&queue), [0, 1], "a batch was taken since");
        queue.wake_if_stalled(0);
        assert_eq!(woken(&queue), [0, 1, 2, 3]);
        assert_eq!((queue.take(2).len(), queue.take(3).len()), (2, 1));
    }

    #[test]
    fn a_writer_that_has_to_connect_wakes_another() {
        let queue = idle(4);
        let _reply = push(&queue, "a", RecordCommand::Get).unwrap();
        assert_eq!(woken(&queue), [1]);
        queue.wake_idle();
        assert_eq!(woken(&queue), [0, 1]);
        let again =
            queue.take(0).into_iter().map(|command| (command, StatementStage::First)).collect();
        queue.requeue(again);
        assert_eq!(woken(&queue), [0, 1, 2]);
    }

    #[test]
    fn a_single_writer_alternates_between_the_parts() {
        let queue = CommandQueue::new(1, 100);
        let mut replies = Vec::new();
        let served = (0..6).map(|round| {
            for kind in QueueKind::ALL {
                replies.push(push(&queue, &format!("{kind:?}-{round}"), command(kind)).unwrap());
            }
            queue.take(0)[0].command.queue_kind()
        });
        let [updates, claims] = QueueKind::ALL;
        assert_eq!(served.collect::<Vec<_>>(), [updates, claims].repeat(3));
    }

    #[test]
    fn a_claim_whose_caller_is_gone_is_not_requeued() {
        let queue = CommandQueue::new(1, 100);
        for (gone, left) in [(true, 0), (false, 1)] {
            let reply = push(&queue, "a", RecordCommand::Claim(Box::new(claim("a")))).unwrap();
            let reply = (!gone).then_some(reply);
            let again = queue
                .take(0)
                .into_iter()
                .map(|command| (command, StatementStage::TakeOver))
                .collect();
            queue.requeue(again);
            assert_eq!(queue.take(0).len(), left);
            drop(reply);
        }
        drop(push(&queue, "a", hold()).unwrap());
        let again =
            queue.take(0).into_iter().map(|command| (command, StatementStage::Check)).collect();
        queue.requeue(again);
        assert_eq!(queue.take(0).len(), 1, "an update is requeued all the same");
    }

    #[test]
    fn each_writer_prefers_one_part_and_helps_with_the_other() {
        let queue = CommandQueue::new(2, 100);
        let mut replies = Vec::new();
        for key in ["a", "b", "c"] {
            replies.push(push(&queue, key, RecordCommand::Get).unwrap());
        }
        replies.push(push(&queue, "d", hold()).unwrap());
        assert_eq!(queue.take(1).len(), 3);
        assert_eq!(queue.take(1).len(), 1, "nothing else waits");
        replies.push(push(&queue, "e", RecordCommand::Get).unwrap());
        assert_eq!(queue.take(0).len(), 1);
    }

    #[test]
    fn no_part_starves_while_the_writer_that_prefers_it_is_stuck() {
        for (writer, preferred, other) in
            [(1, QueueKind::Claims, QueueKind::Updates), (0, QueueKind::Updates, QueueKind::Claims)]
        {
            let queue = CommandQueue::new(2, 100);
            let mut replies = Vec::new();
            replies.push(push(&queue, "late", command(other)).unwrap());
            let served = (0..10).map(|key| {
                replies.push(push(&queue, &key.to_string(), command(preferred)).unwrap());
                queue.take(writer)[0].command.queue_kind()
            });
            let served: Vec<QueueKind> = served.collect();
            let place = served.iter().position(|kind| *kind == other);
            assert_eq!(place, Some(usize::from(SKIPPED_MAX)), "{served:?}");
            assert_eq!(served.iter().filter(|kind| **kind == other).count(), 1);
        }
    }

    #[test]
    fn every_writer_helps_to_empty_a_closed_queue() {
        let queue = CommandQueue::new(4, 100);
        let _reply = push(&queue, "a", RecordCommand::Get).unwrap();
        assert!(!queue.lock().has_enough_work(3), "one command wakes no fourth writer");
        queue.close();
        assert!(queue.lock().has_enough_work(3));
    }

    #[test]
    fn a_batch_is_sorted_and_has_each_record_once() {
        let queue = CommandQueue::new(1, 100);
        let mut replies = Vec::new();
        for key in ["a", "b", "c", "a", "b", "a"] {
            replies.push(push(&queue, key, RecordCommand::Get).unwrap());
        }
        let batch = queue.take(0);
        assert!(batch.is_sorted_by_key(|command| command.digest));
        assert_eq!((batch.len(), queue.take(0).len(), queue.take(0).len()), (3, 2, 1));
        assert!(queue.take(0).is_empty());
    }

    #[test]
    fn commands_on_one_record_keep_their_order() {
        let queue = CommandQueue::new(1, 100);
        let renew = || RecordCommand::Renew(by(), Duration::from_secs(1));
        let commands = [renew(), renew(), hold()];
        let _replies = commands.map(|command| push(&queue, "a", command).unwrap());
        let taken = [(); 3].map(|()| {
            matches!(queue.take(0)[..], [QueuedCommand { command: RecordCommand::Finish(..), .. }])
        });
        assert_eq!(taken, [false, false, true]);
    }

    #[test]
    fn a_batch_of_large_answers_is_split() {
        let queue = CommandQueue::new(1, 2);
        let response = StoredResponse { body: vec![7; 3 << 20].into(), ..Default::default() };
        let answer = Answer::response(&response);
        let mut replies = Vec::new();
        for key in ["a", "b", "c", "d", "e"] {
            let command = RecordCommand::Finish(by(), Finish::complete(answer.clone()));
            replies.push(push(&queue, key, command).unwrap());
        }
        assert_eq!([(); 2].map(|()| queue.take(0).len()), [3, 2]);
    }

    #[test]
    fn a_closed_queue_serves_waiting_commands_and_accepts_no_more() {
        let queue = CommandQueue::new(1, 2);
        let _reply = push(&queue, "a", RecordCommand::Get).unwrap();
        queue.close();
        assert!(push(&queue, "b", RecordCommand::Get).is_err());
        assert_eq!(queue.take(0).len(), 1);
    }

    #[test]
    fn a_command_that_loses_too_many_races_fails() {
        let queue = CommandQueue::new(1, 2);
        let mut reply = push(&queue, "a", RecordCommand::Get).unwrap();
        for _ in 0..RACES_MAX {
            let again =
                queue.take(0).into_iter().map(|command| (command, StatementStage::First)).collect();
            queue.requeue(again);
        }
        assert!(queue.take(0).is_empty());
        assert!(reply.try_recv().unwrap().is_err());
    }
}
