//! How the answers of a batch get back to those who asked: one wake for each thread that waits, not
//! one for each answer.
//!
//! A task that lives on a runtime of a single thread is woken from another thread through the
//! kernel, every time. The answers to a batch of sixty would cost sixty system calls on the thread
//! that everybody waits for. So they are left at the desk of that runtime, and a task there hands
//! them out.

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

use crate::queue::Told;

/// An answer, and where its asker waits.
type Letter = (oneshot::Sender<Result<Told, StoreError>>, Result<Told, StoreError>);

/// Where answers for one runtime are left.
#[derive(Clone, Debug)]
pub(crate) struct Desk(Arc<Mutex<Tray>>);

#[derive(Debug, Default)]
struct Tray {
    letters: Vec<Letter>,
    waker: Option<Waker>,
    attended: Attended,
}

/// Whether somebody hands out what is left.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
enum Attended {
    /// Nobody has run this runtime so far, and perhaps nobody ever will.
    #[default]
    NotYet,
    Yes,
    /// The runtime has ended.
    NoMore,
}

thread_local! {
    /// The desk of the runtime that this thread last asked from.
    static HERE: RefCell<Option<(Id, Desk)>> = const { RefCell::new(None) };
}

/// The desks of all runtimes, for threads that ask for the first time: a runtime has one desk,
/// however many threads it lends.
static DESKS: Mutex<Vec<(Id, Desk)>> = Mutex::new(Vec::new());

impl Desk {
    /// The desk of the runtime that asks, if it is one of a single thread.
    pub(crate) fn here() -> Option<Self> {
        let runtime = Handle::try_current().ok()?;
        if runtime.runtime_flavor() != RuntimeFlavor::CurrentThread {
            return None;
        }
        HERE.with_borrow_mut(|here| {
            if let Some((id, desk)) = here
                && *id == runtime.id()
                && desk.is_open()
            {
                return Some(desk.clone());
            }
            let desk = Self::of(&runtime);
            *here = Some((runtime.id(), desk.clone()));
            Some(desk)
        })
    }

    /// The desk of a runtime; a new one with its clerk, if there is none.
    fn of(runtime: &Handle) -> Self {
        let mut desks = DESKS.lock().unwrap_or_else(PoisonError::into_inner);
        desks.retain(|(_, desk)| desk.is_open());
        if let Some((_, desk)) = desks.iter().find(|(id, _)| *id == runtime.id()) {
            return desk.clone();
        }
        let desk = Self(Arc::default());
        desks.push((runtime.id(), desk.clone()));
        drop(desks);
        runtime.spawn(Clerk(desk.clone()).work());
        desk
    }

    fn is_open(&self) -> bool {
        self.lock().attended != Attended::NoMore
    }

    fn lock(&self) -> MutexGuard<'_, Tray> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn leave(&self, letters: &mut Vec<Letter>) {
        let mut tray = self.lock();
        if tray.attended != Attended::Yes {
            drop(tray);
            return hand_out(letters.drain(..));
        }
        tray.letters.append(letters);
        let waker = tray.waker.take();
        drop(tray);
        if let Some(waker) = waker {
            waker.wake();
        }
    }
}

/// Hands out what is left at a desk, on the runtime that it belongs to.
struct Clerk(Desk);

impl Clerk {
    async fn work(self) {
        let mut hands = Vec::new();
        loop {
            poll_fn(|context| self.take(&mut hands, context)).await;
            hand_out(hands.drain(..));
        }
    }

    fn take(&self, hands: &mut Vec<Letter>, context: &Context<'_>) -> Poll<()> {
        let mut tray = self.0.lock();
        tray.attended = Attended::Yes;
        if tray.letters.is_empty() {
            tray.waker = Some(context.waker().clone());
            return Poll::Pending;
        }
        mem::swap(hands, &mut tray.letters);
        Poll::Ready(())
    }
}

impl Drop for Clerk {
    fn drop(&mut self) {
        let mut tray = self.0.lock();
        tray.attended = Attended::NoMore;
        let left = mem::take(&mut tray.letters);
        drop(tray);
        hand_out(left);
    }
}

fn hand_out(letters: impl IntoIterator<Item = Letter>) {
    for (reply, told) in letters {
        // An asker that has gone away is no reason to stop.
        let _ = reply.send(told);
    }
}

/// The answers of one batch, sorted by desk.
#[derive(Debug, Default)]
pub(crate) struct Outbox(Vec<(Desk, Vec<Letter>)>);

impl Outbox {
    /// Puts an answer in; one for nobody's desk goes out at once.
    pub(crate) fn put(&mut self, desk: Option<Desk>, letter: Letter) {
        let Some(desk) = desk else { return hand_out([letter]) };
        // There are as many desks as threads that serve: a few.
        let known = self.0.iter_mut().find(|(other, _)| Arc::ptr_eq(&other.0, &desk.0));
        match known {
            Some((_, letters)) => letters.push(letter),
            None => self.0.push((desk, vec![letter])),
        }
    }

    /// Leaves everything at its desk.
    pub(crate) fn deliver(&mut self) {
        for (desk, letters) in &mut self.0 {
            if !letters.is_empty() {
                desk.leave(letters);
            }
        }
    }

    /// Hands out what still lies at a desk, and forgets desks. For moments of leisure: a runtime
    /// that somebody has stopped to run, but waits on with its handle, would never see its answers.
    pub(crate) fn tidy(&mut self) {
        for (desk, _) in self.0.drain(..) {
            let left = mem::take(&mut desk.lock().letters);
            hand_out(left);
        }
    }
}

#[cfg(test)]
mod tests {
    use std::sync::mpsc;

    use semel_core::Epoch;
    use tokio::runtime::Builder;

    use super::*;

    fn letter(number: u64) -> (Letter, oneshot::Receiver<Result<Told, StoreError>>) {
        let (reply, receiver) = oneshot::channel();
        ((reply, Ok(Told::Epoch(Epoch(number)))), receiver)
    }

    fn number(told: &Result<Told, StoreError>) -> u64 {
        let Ok(Told::Epoch(Epoch(number))) = told else { panic!("something else was said") };
        *number
    }

    #[test]
    fn a_batch_is_handed_out_on_the_runtime_that_asked() {
        let (desks, taken) = mpsc::channel();
        let (receivers, waiting) = mpsc::channel();
        let asker = std::thread::spawn(move || {
            let runtime = Builder::new_current_thread().build().unwrap();
            runtime.block_on(async move {
                let desk = Desk::here().unwrap();
                // Whoever waits lets the clerk come to its desk.
                tokio::task::yield_now().await;
                desks.send(desk).unwrap();
                let receivers: Vec<oneshot::Receiver<_>> = waiting.recv().unwrap();
                let mut sum = 0;
                for receiver in receivers {
                    sum += number(&receiver.await.unwrap());
                }
                sum
            })
        });
        let desk = taken.recv().unwrap();
        let (letters, waits): (Vec<_>, Vec<_>) = (1..=60).map(letter).unzip();
        receivers.send(waits).unwrap();
        let mut outbox = Outbox::default();
        for letter in letters {
            outbox.put(Some(desk.clone()), letter);
        }
        outbox.deliver();
        assert_eq!(asker.join().unwrap(), 60 * 61 / 2);
    }

    #[test]
    fn a_runtime_that_nobody_runs_gets_its_answers_at_once() {
        let runtime = Builder::new_current_thread().build().unwrap();
        let desk = {
            let _inside = runtime.enter();
            Desk::here().unwrap()
        };
        let (letter, mut receiver) = letter(7);
        let mut outbox = Outbox::default();
        outbox.put(Some(desk), letter);
        outbox.deliver();
        assert_eq!(number(&receiver.try_recv().unwrap()), 7);
    }

    #[test]
    fn a_runtime_that_nobody_runs_any_more_gets_its_answers_a_little_later() {
        let runtime = Builder::new_current_thread().build().unwrap();
        let desk = runtime.block_on(async {
            let desk = Desk::here().unwrap();
            tokio::task::yield_now().await;
            desk
        });
        let (letter, mut receiver) = letter(7);
        let mut outbox = Outbox::default();
        outbox.put(Some(desk), letter);
        outbox.deliver();
        assert!(receiver.try_recv().is_err(), "the clerk has not run");
        outbox.tidy();
        assert_eq!(number(&receiver.try_recv().unwrap()), 7);
    }

    #[test]
    fn what_is_left_when_a_runtime_ends_is_handed_out() {
        let runtime = Builder::new_current_thread().build().unwrap();
        let desk = runtime.block_on(async {
            let desk = Desk::here().unwrap();
            tokio::task::yield_now().await;
            desk
        });
        let (first, mut before) = letter(1);
        desk.leave(&mut vec![first]);
        assert!(before.try_recv().is_err(), "the clerk has not run");
        drop(runtime);
        assert_eq!(number(&before.try_recv().unwrap()), 1);
        let (second, mut after) = letter(2);
        desk.leave(&mut vec![second]);
        assert_eq!(number(&after.try_recv().unwrap()), 2);
    }

    #[test]
    fn each_runtime_has_a_desk_of_its_own_and_keeps_it() {
        let same = |one: &Desk, other: &Desk| Arc::ptr_eq(&one.0, &other.0);
        let runtimes = [(); 2].map(|()| Builder::new_current_thread().build().unwrap());
        let desks: Vec<_> = runtimes
            .iter()
            .map(|runtime| {
                runtime.block_on(async {
                    let desk = Desk::here().unwrap();
                    assert!(same(&desk, &Desk::here().unwrap()));
                    desk
                })
            })
            .collect();
        assert!(!same(&desks[0], &desks[1]));
        assert!(Desk::here().is_none(), "there is no runtime here");
    }
}
