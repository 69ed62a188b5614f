//! Who waits for a change of which record, here and elsewhere.
//!
//! Gateways talk on one channel. One whose client waits names the record there; one that ends what
//! a gateway waits for says so. Nothing is said of records that nobody waits for. What is said may
//! get lost, so a watch ends by itself before long.

use std::{
    collections::HashMap,
    sync::{
        Mutex, MutexGuard, PoisonError,
        atomic::{AtomicBool, Ordering},
    },
    time::Duration,
};

use tokio::{sync::oneshot, time::Instant};

use crate::entry::{NAME_BYTES, Name};

/// How long a record counts as waited for after somebody said so.
const WANTED: Duration = Duration::from_secs(3);

/// How many records may be waited for, here and elsewhere.
const RECORDS_MAX: usize = 10_000;

const VERSION: u8 = 1;
const AWAITED: u8 = b'w';
const CHANGED: u8 = b'c';

/// How many names one message has at most.
pub(crate) const NAMES_MAX: usize = 256;

/// What gateways say to each other.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Message {
    /// Somebody waits for these records.
    Awaited(Vec<Name>),
    /// These records have changed.
    Changed(Vec<Name>),
}

impl Message {
    pub(crate) fn write(&self) -> Vec<u8> {
        let (kind, names) = match self {
            Self::Awaited(names) => (AWAITED, names),
            Self::Changed(names) => (CHANGED, names),
        };
        let mut out = Vec::with_capacity(2 + names.len() * NAME_BYTES);
        out.extend([VERSION, kind]);
        out.extend(names.as_flattened());
        out
    }

    /// What was said; `None` if it cannot be understood.
    pub(crate) fn read(bytes: &[u8]) -> Option<Self> {
        let ([VERSION, kind], names) = bytes.split_first_chunk()? else { return None };
        let (names, rest) = names.as_chunks();
        if !rest.is_empty() || names.len() > NAMES_MAX {
            return None;
        }
        match *kind {
            AWAITED => Some(Self::Awaited(names.to_vec())),
            CHANGED => Some(Self::Changed(names.to_vec())),
            _ => None,
        }
    }
}

#[derive(Debug, Default)]
pub(crate) struct Wakes {
    /// Whom to wake here.
    here: Mutex<HashMap<Name, Vec<oneshot::Sender<()>>>>,
    wanted: Mutex<Wanted>,
    /// Whether there are any of those, for all who end a record that nobody waits for.
    any: AtomicBool,
}

/// Which records somebody waits for, anywhere, and until when that counts.
#[derive(Debug, Default)]
struct Wanted {
    records: HashMap<Name, Instant>,
    /// When those that do not count any more were last put away.
    tidied: Option<Instant>,
}

impl Wanted {
    fn tidy(&mut self, now: Instant) {
        self.records.retain(|_, until| now < *until);
        self.tidied = Some(now);
    }
}

impl Wakes {
    /// Ends when the record changes; `None` when too many wait already.
    pub(crate) fn wait(&self, name: Name) -> Option<oneshot::Receiver<()>> {
        let (waker, woken) = oneshot::channel();
        let mut here = self.here();
        if here.len() >= RECORDS_MAX && !here.contains_key(&name) {
            return None;
        }
        here.entry(name).or_default().push(waker);
        Some(woken)
    }

    /// Somebody who waited has gone.
    pub(crate) fn leave(&self, name: &Name) {
        let mut here = self.here();
        if let Some(wakers) = here.get_mut(name) {
            wakers.retain(|waker| !waker.is_closed());
            if wakers.is_empty() {
                here.remove(name);
            }
        }
    }

    /// Lets everybody go who waits here: nobody can tell them any more.
    pub(crate) fn let_go(&self) {
        self.here().clear();
    }

    /// Somebody waits for these records.
    pub(crate) fn want(&self, names: &[Name], now: Instant) {
        let mut wanted = self.wanted();
        if wanted.records.len().saturating_add(names.len()) > RECORDS_MAX {
            wanted.tidy(now);
        }
        let room = RECORDS_MAX.saturating_sub(wanted.records.len());
        wanted.records.extend(names.iter().take(room).map(|name| (*name, now + WANTED)));
        self.any.store(true, Ordering::Relaxed);
    }

    /// Whether anybody waits for anything.
    pub(crate) fn any(&self) -> bool {
        self.any.load(Ordering::Relaxed)
    }

    /// A record has changed. Those who wait here are woken; whether somebody may wait elsewhere.
    pub(crate) fn changed(&self, name: &Name, now: Instant) -> bool {
        self.here().remove(name);
        let mut wanted = self.wanted();
        let alive = wanted.records.remove(name).is_some_and(|until| now < until);
        if wanted.tidied.is_none_or(|tidied| tidied + WANTED <= now) {
            wanted.tidy(now);
        }
        if wanted.records.is_empty() {
            self.any.store(false, Ordering::Relaxed);
        }
        alive
    }

    /// What another gateway has said.
    pub(crate) fn hear(&self, message: &Message, now: Instant) {
        match message {
            Message::Awaited(names) => self.want(names, now),
            Message::Changed(names) => {
                let mut here = self.here();
                for name in names {
                    here.remove(name);
                }
            }
        }
    }

    fn here(&self) -> MutexGuard<'_, HashMap<Name, Vec<oneshot::Sender<()>>>> {
        self.here.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn wanted(&self) -> MutexGuard<'_, Wanted> {
        self.wanted.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const ONE: Name = [1; 16];
    const TWO: Name = [2; 16];

    #[test]
    fn a_message_is_read_back() {
        for message in [Message::Awaited(vec![ONE]), Message::Changed(vec![ONE, TWO])] {
            assert_eq!(Message::read(&message.write()), Some(message));
        }
    }

    #[test]
    fn what_is_no_message_is_not_understood() {
        let mut long = Message::Changed(vec![ONE; NAMES_MAX + 1]).write();
        assert_eq!(Message::read(&long), None);
        long.truncate(20);
        assert_eq!(Message::read(&long), None, "half a name");
        for bytes in [&b""[..], &[VERSION], &[9, CHANGED], &[VERSION, b'x']] {
            assert_eq!(Message::read(bytes), None);
        }
    }

    #[test]
    fn those_who_wait_here_are_woken_by_a_change_here_or_elsewhere() {
        let (wakes, now) = (Wakes::default(), Instant::now());
        let (mut one, mut two) = (wakes.wait(ONE).unwrap(), wakes.wait(TWO).unwrap());
        wakes.changed(&ONE, now);
        assert!(one.try_recv() != Err(oneshot::error::TryRecvError::Empty));
        assert_eq!(two.try_recv(), Err(oneshot::error::TryRecvError::Empty));
        wakes.hear(&Message::Changed(vec![TWO]), now);
        assert_eq!(two.try_recv(), Err(oneshot::error::TryRecvError::Closed));
    }

    #[test]
    fn only_what_somebody_waits_for_is_told_and_only_once() {
        let (wakes, now) = (Wakes::default(), Instant::now());
        assert!(!wakes.any());
        wakes.hear(&Message::Awaited(vec![ONE]), now);
        assert!(wakes.any());
        assert!(!wakes.changed(&TWO, now));
        assert!(wakes.changed(&ONE, now));
        assert!(!wakes.changed(&ONE, now));
        assert!(!wakes.any());
    }

    #[test]
    fn a_wish_is_forgotten_after_a_while() {
        let (wakes, now) = (Wakes::default(), Instant::now());
        wakes.want(&[ONE], now);
        assert!(!wakes.changed(&ONE, now + WANTED));
        wakes.want(&[ONE], now);
        assert!(!wakes.changed(&TWO, now + 2 * WANTED));
        assert!(!wakes.any(), "and with it the trouble that it makes");
    }

    #[test]
    fn whoever_leaves_leaves_nothing() {
        let wakes = Wakes::default();
        let (one, other) = (wakes.wait(ONE).unwrap(), wakes.wait(ONE).unwrap());
        drop(one);
        wakes.leave(&ONE);
        assert_eq!(wakes.here().len(), 1);
        drop(other);
        wakes.leave(&ONE);
        assert!(wakes.here().is_empty());
    }

    #[test]
    fn both_tables_are_bounded() {
        let (wakes, now) = (Wakes::default(), Instant::now());
        let name = |number: usize| u128::try_from(number).unwrap().to_be_bytes();
        let mut waiting = Vec::new();
        for number in 0..2 * RECORDS_MAX {
            wakes.want(&[name(number)], now);
            waiting.extend(wakes.wait(name(number)));
        }
        assert_eq!((waiting.len(), wakes.wanted().records.len()), (RECORDS_MAX, RECORDS_MAX));
        wakes.want(&[ONE], now + WANTED);
        assert_eq!(wakes.wanted().records.len(), 1, "what is too old makes room");
    }
}
