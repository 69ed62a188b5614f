//! Sends the replies of a batch with one wake-up per waiting thread instead of one per reply.
//!
//! Waking a task of a single-threaded runtime from another thread is a system call. The replies to
//! a batch of sixty commands would cost sixty of them on the writer thread, which every caller
//! waits for. So the writer puts the replies into a mailbox of that runtime, and a task on the
//! runtime sends them.

use std::{
    cell::RefCell,
    future::poll_fn,
    mem,
    sync::{Arc, Mutex, MutexGuard, PoisonError},
    task::{Context, Poll, Waker},
};

use semel_core::StoreError;
use tokio::{
    runtime::{Handle, Id, RuntimeFlavor},
    sync::oneshot,
};

use crate::command::SqliteReply;

/// The sender that a waiter listens to, and the reply for it.
type PendingReply =
    (oneshot::Sender<Result<SqliteReply, StoreError>>, Result<SqliteReply, StoreError>);

/// The replies for the waiters of one runtime.
#[derive(Clone, Debug)]
pub(crate) struct RuntimeMailbox(Arc<Mutex<MailboxState>>);

#[derive(Debug, Default)]
struct MailboxState {
    replies: Vec<PendingReply>,
    waker: Option<Waker>,
    dispatcher: DispatcherState,
}

/// Whether the dispatcher of a mailbox runs.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
enum DispatcherState {
    /// The runtime has not polled the dispatcher so far, and may never do so.
    #[default]
    NotStarted,
    Running,
    /// The runtime has ended.
    Stopped,
}

thread_local! {
    /// The mailbox of the runtime that this thread last used.
    static CURRENT: RefCell<Option<(Id, RuntimeMailbox)>> = const { RefCell::new(None) };
}

/// The mailboxes of all runtimes. A runtime has one mailbox, whatever the number of its threads.
static MAILBOXES: Mutex<Vec<(Id, RuntimeMailbox)>> = Mutex::new(Vec::new());

impl RuntimeMailbox {
    /// The mailbox of the current runtime, if that is single-threaded.
    pub(crate) fn current() -> Option<Self> {
        let runtime = Handle::try_current().ok()?;
        if runtime.runtime_flavor() != RuntimeFlavor::CurrentThread {
            return None;
        }
        CURRENT.with_borrow_mut(|current| {
            if let Some((id, mailbox)) = current
                && *id == runtime.id()
                && mailbox.is_open()
            {
                return Some(mailbox.clone());
            }
            let mailbox = Self::for_runtime(&runtime);
            *current = Some((runtime.id(), mailbox.clone()));
            Some(mailbox)
        })
    }

    /// Finds the mailbox of a runtime, or creates one and starts its dispatcher.
    fn for_runtime(runtime: &Handle) -> Self {
        let mut mailboxes = MAILBOXES.lock().unwrap_or_else(PoisonError::into_inner);
        mailboxes.retain(|(_, mailbox)| mailbox.is_open());
        if let Some((_, mailbox)) = mailboxes.iter().find(|(id, _)| *id == runtime.id()) {
            return mailbox.clone();
        }
        let mailbox = Self(Arc::default());
        mailboxes.push((runtime.id(), mailbox.clone()));
        drop(mailboxes);
        runtime.spawn(ReplyDispatcher(mailbox.clone()).run());
        mailbox
    }

    fn is_open(&self) -> bool {
        self.lock().dispatcher != DispatcherState::Stopped
    }

    fn lock(&self) -> MutexGuard<'_, MailboxState> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn deliver(&self, replies: &mut Vec<PendingReply>) {
        let mut state = self.lock();
        if state.dispatcher != DispatcherState::Running {
            drop(state);
            return send_all(replies.drain(..));
        }
        state.replies.append(replies);
        let waker = state.waker.take();
        drop(state);
        if let Some(waker) = waker {
            waker.wake();
        }
    }
}

/// Sends the replies of a mailbox, on the runtime of that mailbox.
struct ReplyDispatcher(RuntimeMailbox);

impl ReplyDispatcher {
    async fn run(self) {
        let mut taken = Vec::new();
        loop {
            poll_fn(|context| self.take(&mut taken, context)).await;
            send_all(taken.drain(..));
        }
    }

    fn take(&self, taken: &mut Vec<PendingReply>, context: &Context<'_>) -> Poll<()> {
        let mut state = self.0.lock();
        state.dispatcher = DispatcherState::Running;
        if state.replies.is_empty() {
            state.waker = Some(context.waker().clone());
            return Poll::Pending;
        }
        mem::swap(taken, &mut state.replies);
        Poll::Ready(())
    }
}

impl Drop for ReplyDispatcher {
    fn drop(&mut self) {
        let mut state = self.0.lock();
        state.dispatcher = DispatcherState::Stopped;
        let left = mem::take(&mut state.replies);
        drop(state);
        send_all(left);
    }
}

fn send_all(replies: impl IntoIterator<Item = PendingReply>) {
    for (sender, result) in replies {
        // The waiter may be gone.
        let _ = sender.send(result);
    }
}

/// The replies of one batch, grouped by mailbox.
#[derive(Debug, Default)]
pub(crate) struct ReplyBatch(Vec<(RuntimeMailbox, Vec<PendingReply>)>);

impl ReplyBatch {
    /// Adds a reply. A reply without a mailbox is sent at once.
    pub(crate) fn push(&mut self, mailbox: Option<RuntimeMailbox>, reply: PendingReply) {
        let Some(mailbox) = mailbox else { return send_all([reply]) };
        // A linear search: there are as many mailboxes as serving threads, a few.
        let known = self.0.iter_mut().find(|(other, _)| Arc::ptr_eq(&other.0, &mailbox.0));
        match known {
            Some((_, replies)) => replies.push(reply),
            None => self.0.push((mailbox, vec![reply])),
        }
    }

    /// Delivers all replies to their mailboxes.
    pub(crate) fn flush(&mut self) {
        for (mailbox, replies) in &mut self.0 {
            if !replies.is_empty() {
                mailbox.deliver(replies);
            }
        }
    }

    /// Sends what is left in the mailboxes and drops them. Called while the writer is idle: a
    /// runtime that is no longer run, but whose handle a waiter uses, would never dispatch its
    /// replies.
    pub(crate) fn flush_undelivered(&mut self) {
        for (mailbox, _) in self.0.drain(..) {
            let left = mem::take(&mut mailbox.lock().replies);
            send_all(left);
        }
    }
}

#[cfg(test)]
mod tests {
    use std::sync::mpsc;

    use semel_core::Epoch;
    use tokio::runtime::Builder;

    use super::*;

    fn reply(number: u64) -> (PendingReply, oneshot::Receiver<Result<SqliteReply, StoreError>>) {
        let (sender, receiver) = oneshot::channel();
        ((sender, Ok(SqliteReply::Epoch(Epoch(number)))), receiver)
    }

    fn number(result: &Result<SqliteReply, StoreError>) -> u64 {
        let Ok(SqliteReply::Epoch(Epoch(number))) = result else { panic!("unexpected reply") };
        *number
    }

    #[test]
    fn a_batch_is_dispatched_on_the_runtime_of_its_waiters() {
        let (mailboxes, taken) = mpsc::channel();
        let (receivers, waiting) = mpsc::channel();
        let waiter = std::thread::spawn(move || {
            let runtime = Builder::new_current_thread().build().unwrap();
            runtime.block_on(async move {
                let mailbox = RuntimeMailbox::current().unwrap();
                // Lets the dispatcher start.
                tokio::task::yield_now().await;
                mailboxes.send(mailbox).unwrap();
                let receivers: Vec<oneshot::Receiver<_>> = waiting.recv().unwrap();
                let mut sum = 0;
                for receiver in receivers {
                    sum += number(&receiver.await.unwrap());
                }
                sum
            })
        });
        let mailbox = taken.recv().unwrap();
        let (replies, waits): (Vec<_>, Vec<_>) = (1..=60).map(reply).unzip();
        receivers.send(waits).unwrap();
        let mut batch = ReplyBatch::default();
        for reply in replies {
            batch.push(Some(mailbox.clone()), reply);
        }
        batch.flush();
        assert_eq!(waiter.join().unwrap(), 60 * 61 / 2);
    }

    #[test]
    fn replies_to_a_runtime_that_never_ran_are_sent_at_once() {
        let runtime = Builder::new_current_thread().build().unwrap();
        let mailbox = {
            let _inside = runtime.enter();
            RuntimeMailbox::current().unwrap()
        };
        let (reply, mut receiver) = reply(7);
        let mut batch = ReplyBatch::default();
        batch.push(Some(mailbox), reply);
        batch.flush();
        assert_eq!(number(&receiver.try_recv().unwrap()), 7);
    }

    #[test]
    fn replies_to_a_runtime_that_stopped_running_are_sent_by_flush_undelivered() {
        let runtime = Builder::new_current_thread().build().unwrap();
        let mailbox = runtime.block_on(async {
            let mailbox = RuntimeMailbox::current().unwrap();
            tokio::task::yield_now().await;
            mailbox
        });
        let (reply, mut receiver) = reply(7);
        let mut batch = ReplyBatch::default();
        batch.push(Some(mailbox), reply);
        batch.flush();
        assert!(receiver.try_recv().is_err(), "the dispatcher has not run");
        batch.flush_undelivered();
        assert_eq!(number(&receiver.try_recv().unwrap()), 7);
    }

    #[test]
    fn undelivered_replies_are_sent_when_a_runtime_ends() {
        let runtime = Builder::new_current_thread().build().unwrap();
        let mailbox = runtime.block_on(async {
            let mailbox = RuntimeMailbox::current().unwrap();
            tokio::task::yield_now().await;
            mailbox
        });
        let (first, mut before) = reply(1);
        mailbox.deliver(&mut vec![first]);
        assert!(before.try_recv().is_err(), "the dispatcher has not run");
        drop(runtime);
        assert_eq!(number(&before.try_recv().unwrap()), 1);
        let (second, mut after) = reply(2);
        mailbox.deliver(&mut vec![second]);
        assert_eq!(number(&after.try_recv().unwrap()), 2);
    }

    #[test]
    fn each_runtime_has_one_mailbox() {
        let same = |one: &RuntimeMailbox, other: &RuntimeMailbox| Arc::ptr_eq(&one.0, &other.0);
        let runtimes = [(); 2].map(|()| Builder::new_current_thread().build().unwrap());
        let mailboxes: Vec<_> = runtimes
            .iter()
            .map(|runtime| {
                runtime.block_on(async {
                    let mailbox = RuntimeMailbox::current().unwrap();
                    assert!(same(&mailbox, &RuntimeMailbox::current().unwrap()));
                    mailbox
                })
            })
            .collect();
        assert!(!same(&mailboxes[0], &mailboxes[1]));
        assert!(RuntimeMailbox::current().is_none(), "there is no runtime here");
    }
}
