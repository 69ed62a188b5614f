//! The queue of requests for the next batch to Redis: everything that came during the last batch.
//!
//! It is bounded, and closed while Redis is out of use: a refused lookup finds nothing, and a
//! refused command is dropped.

use std::{
    mem,
    sync::{
        Mutex, MutexGuard, PoisonError,
        atomic::{AtomicBool, Ordering},
    },
};

use bytes::Bytes;
use tokio::{
    sync::{Notify, oneshot},
    time::Instant,
};

use crate::entry::RecordName;

/// How many lookups may wait. Further requests go to the store.
const LOOKUPS_WAITING_MAX: usize = 256;

/// How many commands may wait, and their bytes.
const COMMANDS_MAX: usize = 4096;
const COMMAND_BYTES_MAX: usize = 1 << 20;

/// A lookup of the entry under a name.
#[derive(Debug)]
pub(crate) struct PendingLookup {
    pub(crate) name: RecordName,
    pub(crate) reply: oneshot::Sender<Option<Bytes>>,
}

/// A write or a message for Redis.
#[derive(Debug)]
pub(crate) enum CacheCommand {
    /// Write an entry with a TTL in milliseconds; a hint does not replace an entry.
    Put { name: RecordName, entry: Vec<u8>, millis: u64, hint: bool },
    /// Remove an entry.
    Remove(RecordName),
    /// Announce to all gateways that a record is awaited, and confirm to the sender.
    Await(RecordName, Option<oneshot::Sender<()>>),
    /// Announce to all gateways that a record has changed.
    Changed(RecordName),
}

/// The requests of one pipeline.
#[derive(Debug, Default)]
pub(crate) struct RequestBatch {
    pub(crate) lookups: Vec<PendingLookup>,
    pub(crate) commands: Vec<CacheCommand>,
    /// When the first lookup was queued.
    pub(crate) first_lookup_at: Option<Instant>,
}

#[derive(Debug, Default)]
pub(crate) struct RequestQueue {
    queued: Mutex<QueuedRequests>,
    notify: Notify,
    /// A copy of `QueuedRequests::open` that needs no lock.
    open: AtomicBool,
}

#[derive(Debug, Default)]
struct QueuedRequests {
    open: bool,
    next: RequestBatch,
    command_bytes: usize,
}

impl RequestQueue {
    pub(crate) fn is_open(&self) -> bool {
        self.open.load(Ordering::Relaxed)
    }

    pub(crate) fn open(&self) {
        self.lock().open = true;
        self.open.store(true, Ordering::Relaxed);
    }

    /// Refuses new requests. Waiting lookups find nothing.
    pub(crate) fn close(&self) {
        self.open.store(false, Ordering::Relaxed);
        *self.lock() = QueuedRequests::default();
    }

    /// Looks up the entry under a name, if the queue accepts it.
    pub(crate) async fn lookup(&self, name: RecordName) -> Option<Bytes> {
        let answer = self.enqueue_lookup(name)?;
        self.notify.notify_one();
        answer.await.ok().flatten()
    }

    fn enqueue_lookup(&self, name: RecordName) -> Option<oneshot::Receiver<Option<Bytes>>> {
        let mut queued = self.lock();
        if !queued.open || queued.next.lookups.len() >= LOOKUPS_WAITING_MAX {
            return None;
        }
        let (reply, answer) = oneshot::channel();
        queued.next.first_lookup_at.get_or_insert_with(Instant::now);
        queued.next.lookups.push(PendingLookup { name, reply });
        Some(answer)
    }

    /// Queues a command. Returns whether there was room.
    pub(crate) fn push(&self, command: CacheCommand) -> bool {
        let bytes = if let CacheCommand::Put { entry, .. } = &command { entry.len() } else { 0 };
        let mut queued = self.lock();
        let bytes = queued.command_bytes.saturating_add(bytes);
        let room = queued.next.commands.len() < COMMANDS_MAX && bytes <= COMMAND_BYTES_MAX;
        if !queued.open || !room {
            return false;
        }
        queued.command_bytes = bytes;
        queued.next.commands.push(command);
        drop(queued);
        self.notify.notify_one();
        true
    }

    /// Announces to all gateways that a record is awaited. Returns whether it was sent.
    pub(crate) async fn announce(&self, name: RecordName) -> bool {
        let (sender, answer) = oneshot::channel();
        self.push(CacheCommand::Await(name, Some(sender)));
        answer.await.is_ok()
    }

    /// Waits until there is something to send, and takes all of it.
    pub(crate) async fn next(&self) -> RequestBatch {
        loop {
            if let Some(batch) = self.take() {
                return batch;
            }
            self.notify.notified().await;
        }
    }

    fn take(&self) -> Option<RequestBatch> {
        let mut queued = self.lock();
        if queued.next.lookups.is_empty() && queued.next.commands.is_empty() {
            return None;
        }
        queued.command_bytes = 0;
        Some(mem::take(&mut queued.next))
    }

    fn lock(&self) -> MutexGuard<'_, QueuedRequests> {
        self.queued.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const NAME: RecordName = [1; 16];

    #[tokio::test]
    async fn waiting_requests_are_sent_together() {
        let requests = RequestQueue::default();
        requests.open();
        let lookups = async {
            tokio::join!(requests.lookup(NAME), requests.lookup([2; 16]), requests.lookup([3; 16]))
        };
        let serve = async {
            requests.push(CacheCommand::Remove(NAME));
            let batch = requests.next().await;
            let count = (batch.lookups.len(), batch.commands.len());
            for lookup in batch.lookups {
                let _ = lookup.reply.send(Some(Bytes::copy_from_slice(&lookup.name)));
            }
            count
        };
        let ((one, two, _), count) = tokio::join!(lookups, serve);
        assert_eq!(count, (3, 1));
        assert_eq!((one.as_deref(), two.as_deref()), (Some(&NAME[..]), Some(&[2; 16][..])));
    }

    #[tokio::test]
    async fn a_closed_queue_accepts_nothing() {
        let requests = RequestQueue::default();
        assert_eq!(requests.lookup(NAME).await, None);
        requests.push(CacheCommand::Remove(NAME));
        assert!(!requests.announce(NAME).await);
        requests.open();
        let close = async { requests.close() };
        let (looked, announced, ()) =
            tokio::join!(requests.lookup(NAME), requests.announce(NAME), close);
        assert_eq!((looked, announced), (None, false), "waiters are released");
        assert!(requests.lock().next.commands.is_empty());
    }

    #[tokio::test]
    async fn commands_are_bounded_in_number_and_in_bytes() {
        let requests = RequestQueue::default();
        requests.open();
        for _ in 0..2 * COMMANDS_MAX {
            requests.push(CacheCommand::Changed(NAME));
        }
        assert_eq!(requests.next().await.commands.len(), COMMANDS_MAX);
        for _ in 0..100 {
            let entry = vec![0; 64 << 10];
            requests.push(CacheCommand::Put { name: NAME, entry, millis: 1, hint: false });
        }
        assert_eq!(requests.next().await.commands.len(), 16);
        requests.push(CacheCommand::Changed(NAME));
        assert_eq!(requests.next().await.commands.len(), 1, "there is room again");
    }

    #[tokio::test]
    async fn lookups_are_bounded() {
        let requests = RequestQueue::default();
        requests.open();
        let mut waiting = Vec::new();
        for _ in 0..LOOKUPS_WAITING_MAX {
            let mut lookup = Box::pin(requests.lookup(NAME));
            let pending = std::future::poll_fn(|context| {
                std::task::Poll::Ready(lookup.as_mut().poll(context).is_pending())
            });
            assert!(pending.await);
            waiting.push(lookup);
        }
        assert_eq!(requests.lookup(NAME).await, None);
    }
}
