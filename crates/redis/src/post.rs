//! What goes to Redis with the next turn: everything that came while the last one was under way.
//!
//! It is bounded, and takes nothing while Redis is out: a look that is not taken says nothing, and
//! a note that is not taken is lost.

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

use crate::entry::Name;

/// How many looks may wait. Whoever comes later asks the store.
const LOOKS_MAX: usize = 256;

/// How many notes may wait, and their bytes.
const NOTES_MAX: usize = 4096;
const NOTE_BYTES_MAX: usize = 1 << 20;

/// Somebody who wants to know what is written under a name.
#[derive(Debug)]
pub(crate) struct Look {
    pub(crate) name: Name,
    pub(crate) reply: oneshot::Sender<Option<Bytes>>,
}

/// Something to tell Redis.
#[derive(Debug)]
pub(crate) enum Note {
    /// Write this under a name for so many milliseconds; a hint gives way to what is there.
    Put { name: Name, entry: Vec<u8>, millis: u64, hint: bool },
    /// Remove what is written under a name.
    Remove(Name),
    /// Tell all gateways that somebody waits for a record, and the teller when that is done.
    Await(Name, Option<oneshot::Sender<()>>),
    /// Tell all gateways that a record has changed.
    Changed(Name),
}

/// What is sent in one turn.
#[derive(Debug, Default)]
pub(crate) struct Batch {
    pub(crate) looks: Vec<Look>,
    pub(crate) notes: Vec<Note>,
    /// When the first look came.
    pub(crate) since: Option<Instant>,
}

#[derive(Debug, Default)]
pub(crate) struct Post {
    inbox: Mutex<Inbox>,
    bell: Notify,
    /// What the inbox says, for those who need not look twice.
    open: AtomicBool,
}

#[derive(Debug, Default)]
struct Inbox {
    open: bool,
    next: Batch,
    note_bytes: usize,
}

impl Post {
    pub(crate) fn is_open(&self) -> bool {
        self.open.load(Ordering::Relaxed)
    }

    pub(crate) fn open(&self) {
        self.lock().open = true;
        self.open.store(true, Ordering::Relaxed);
    }

    /// Takes nothing any more. Whoever waits for an answer gets none.
    pub(crate) fn close(&self) {
        self.open.store(false, Ordering::Relaxed);
        *self.lock() = Inbox::default();
    }

    /// What is written under a name, if that can be learned soon.
    pub(crate) async fn look(&self, name: Name) -> Option<Bytes> {
        let answer = self.enter(name)?;
        self.bell.notify_one();
        answer.await.ok().flatten()
    }

    fn enter(&self, name: Name) -> Option<oneshot::Receiver<Option<Bytes>>> {
        let mut inbox = self.lock();
        if !inbox.open || inbox.next.looks.len() >= LOOKS_MAX {
            return None;
        }
        let (reply, answer) = oneshot::channel();
        inbox.next.since.get_or_insert_with(Instant::now);
        inbox.next.looks.push(Look { name, reply });
        Some(answer)
    }

    /// Leaves a note; whether there was room.
    pub(crate) fn note(&self, note: Note) -> bool {
        let bytes = if let Note::Put { entry, .. } = &note { entry.len() } else { 0 };
        let mut inbox = self.lock();
        let bytes = inbox.note_bytes.saturating_add(bytes);
        let room = inbox.next.notes.len() < NOTES_MAX && bytes <= NOTE_BYTES_MAX;
        if !inbox.open || !room {
            return false;
        }
        inbox.note_bytes = bytes;
        inbox.next.notes.push(note);
        drop(inbox);
        self.bell.notify_one();
        true
    }

    /// Tells all gateways that somebody waits, and whether that could be told.
    pub(crate) async fn announce(&self, name: Name) -> bool {
        let (told, answer) = oneshot::channel();
        self.note(Note::Await(name, Some(told)));
        answer.await.is_ok()
    }

    /// Waits until there is something to send, and takes all of it.
    pub(crate) async fn next(&self) -> Batch {
        loop {
            if let Some(batch) = self.take() {
                return batch;
            }
            self.bell.notified().await;
        }
    }

    fn take(&self) -> Option<Batch> {
        let mut inbox = self.lock();
        if inbox.next.looks.is_empty() && inbox.next.notes.is_empty() {
            return None;
        }
        inbox.note_bytes = 0;
        Some(mem::take(&mut inbox.next))
    }

    fn lock(&self) -> MutexGuard<'_, Inbox> {
        self.inbox.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const NAME: Name = [1; 16];

    #[tokio::test]
    async fn everything_that_waits_goes_together() {
        let post = Post::default();
        post.open();
        let looks = async { tokio::join!(post.look(NAME), post.look([2; 16]), post.look([3; 16])) };
        let serve = async {
            post.note(Note::Remove(NAME));
            let batch = post.next().await;
            let count = (batch.looks.len(), batch.notes.len());
            for look in batch.looks {
                let _ = look.reply.send(Some(Bytes::copy_from_slice(&look.name)));
            }
            count
        };
        let ((one, two, _), count) = tokio::join!(looks, serve);
        assert_eq!(count, (3, 1));
        assert_eq!((one.as_deref(), two.as_deref()), (Some(&NAME[..]), Some(&[2; 16][..])));
    }

    #[tokio::test]
    async fn nothing_is_taken_while_it_is_closed() {
        let post = Post::default();
        assert_eq!(post.look(NAME).await, None);
        post.note(Note::Remove(NAME));
        assert!(!post.announce(NAME).await);
        post.open();
        let close = async { post.close() };
        let (looked, announced, ()) = tokio::join!(post.look(NAME), post.announce(NAME), close);
        assert_eq!((looked, announced), (None, false), "those who wait are let go");
        assert!(post.lock().next.notes.is_empty());
    }

    #[tokio::test]
    async fn notes_are_bounded_in_number_and_in_bytes() {
        let post = Post::default();
        post.open();
        for _ in 0..2 * NOTES_MAX {
            post.note(Note::Changed(NAME));
        }
        assert_eq!(post.next().await.notes.len(), NOTES_MAX);
        for _ in 0..100 {
            let entry = vec![0; 64 << 10];
            post.note(Note::Put { name: NAME, entry, millis: 1, hint: false });
        }
        assert_eq!(post.next().await.notes.len(), 16);
        post.note(Note::Changed(NAME));
        assert_eq!(post.next().await.notes.len(), 1, "there is room again");
    }

    #[tokio::test]
    async fn looks_are_bounded() {
        let post = Post::default();
        post.open();
        let mut waiting = Vec::new();
        for _ in 0..LOOKS_MAX {
            let mut look = Box::pin(post.look(NAME));
            let pending = std::future::poll_fn(|context| {
                std::task::Poll::Ready(look.as_mut().poll(context).is_pending())
            });
            assert!(pending.await);
            waiting.push(look);
        }
        assert_eq!(post.look(NAME).await, None);
    }
}
