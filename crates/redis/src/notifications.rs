//! Change notifications between gateways.
//!
//! Gateways publish on one channel. A gateway with a waiting client announces the awaited record; a
//! gateway that ends an awaited operation announces the change. Records that are not awaited cause
//! no messages. Messages may get lost, so a watch has a timeout.

use std::{
    collections::HashMap,
    sync::{
        Mutex, MutexGuard, PoisonError,
        atomic::{AtomicBool, Ordering},
    },
    time::Duration,
};

use tokio::{sync::oneshot, time::Instant};

use crate::entry::{NAME_BYTES, RecordName};

/// How long a record counts as awaited after an announcement.
const AWAITED_TTL: Duration = Duration::from_secs(3);

/// How many records may be awaited, locally and by other gateways.
const RECORDS_MAX: usize = 10_000;

const VERSION: u8 = 1;
const AWAITED: u8 = b'w';
const CHANGED: u8 = b'c';

/// The maximum number of names in one message.
pub(crate) const NAMES_MAX: usize = 256;

/// A message between gateways.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum GatewayMessage {
    /// These records are awaited.
    Awaited(Vec<RecordName>),
    /// These records have changed.
    Changed(Vec<RecordName>),
}

impl GatewayMessage {
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

    /// Parses a message; `None` if it is malformed.
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
pub(crate) struct ChangeNotifications {
    /// The local waiters.
    local: Mutex<HashMap<RecordName, Vec<oneshot::Sender<()>>>>,
    awaited: Mutex<AwaitedNames>,
    /// Whether any record is awaited, without a lock: most records that end are not.
    any_awaited: AtomicBool,
}

/// The records that any gateway awaits, and until when.
#[derive(Debug, Default)]
struct AwaitedNames {
    records: HashMap<RecordName, Instant>,
    /// When expired records were last removed.
    pruned_at: Option<Instant>,
}

impl AwaitedNames {
    fn prune(&mut self, now: Instant) {
        self.records.retain(|_, until| now < *until);
        self.pruned_at = Some(now);
    }
}

impl ChangeNotifications {
    /// Adds a waiter, woken when the record changes; `None` when there are too many.
    pub(crate) fn wait(&self, name: RecordName) -> Option<oneshot::Receiver<()>> {
        let (waker, woken) = oneshot::channel();
        let mut local = self.local();
        if local.len() >= RECORDS_MAX && !local.contains_key(&name) {
            return None;
        }
        local.entry(name).or_default().push(waker);
        Some(woken)
    }

    /// Removes the waiters that are gone.
    pub(crate) fn remove_closed(&self, name: &RecordName) {
        let mut local = self.local();
        if let Some(wakers) = local.get_mut(name) {
            wakers.retain(|waker| !waker.is_closed());
            if wakers.is_empty() {
                local.remove(name);
            }
        }
    }

    /// Wakes all local waiters: no more messages arrive.
    pub(crate) fn wake_all(&self) {
        self.local().clear();
    }

    /// These records are awaited.
    pub(crate) fn add_awaited(&self, names: &[RecordName], now: Instant) {
        let mut awaited = self.awaited();
        if awaited.records.len().saturating_add(names.len()) > RECORDS_MAX {
            awaited.prune(now);
        }
        let room = RECORDS_MAX.saturating_sub(awaited.records.len());
        awaited.records.extend(names.iter().take(room).map(|name| (*name, now + AWAITED_TTL)));
        self.any_awaited.store(true, Ordering::Relaxed);
    }

    /// Whether any record is awaited.
    pub(crate) fn any_awaited(&self) -> bool {
        self.any_awaited.load(Ordering::Relaxed)
    }

    /// A record has changed. Wakes its local waiters, and returns whether another gateway may await
    /// it.
    pub(crate) fn on_changed(&self, name: &RecordName, now: Instant) -> bool {
        self.local().remove(name);
        let mut awaited = self.awaited();
        let alive = awaited.records.remove(name).is_some_and(|until| now < until);
        if awaited.pruned_at.is_none_or(|pruned_at| pruned_at + AWAITED_TTL <= now) {
            awaited.prune(now);
        }
        if awaited.records.is_empty() {
            self.any_awaited.store(false, Ordering::Relaxed);
        }
        alive
    }

    /// Handles a message of another gateway.
    pub(crate) fn on_message(&self, message: &GatewayMessage, now: Instant) {
        match message {
            GatewayMessage::Awaited(names) => self.add_awaited(names, now),
            GatewayMessage::Changed(names) => {
                let mut local = self.local();
                for name in names {
                    local.remove(name);
                }
            }
        }
    }

    fn local(&self) -> MutexGuard<'_, HashMap<RecordName, Vec<oneshot::Sender<()>>>> {
        self.local.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn awaited(&self) -> MutexGuard<'_, AwaitedNames> {
        self.awaited.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const ONE: RecordName = [1; 16];
    const TWO: RecordName = [2; 16];

    #[test]
    fn a_message_is_read_back() {
        for message in [GatewayMessage::Awaited(vec![ONE]), GatewayMessage::Changed(vec![ONE, TWO])]
        {
            assert_eq!(GatewayMessage::read(&message.write()), Some(message));
        }
    }

    #[test]
    fn a_malformed_message_is_refused() {
        let mut long = GatewayMessage::Changed(vec![ONE; NAMES_MAX + 1]).write();
        assert_eq!(GatewayMessage::read(&long), None);
        long.truncate(20);
        assert_eq!(GatewayMessage::read(&long), None, "half a name");
        for bytes in [&b""[..], &[VERSION], &[9, CHANGED], &[VERSION, b'x']] {
            assert_eq!(GatewayMessage::read(bytes), None);
        }
    }

    #[test]
    fn local_waiters_are_woken_by_a_local_or_remote_change() {
        let (notifications, now) = (ChangeNotifications::default(), Instant::now());
        let (mut one, mut two) =
            (notifications.wait(ONE).unwrap(), notifications.wait(TWO).unwrap());
        notifications.on_changed(&ONE, now);
        assert!(one.try_recv() != Err(oneshot::error::TryRecvError::Empty));
        assert_eq!(two.try_recv(), Err(oneshot::error::TryRecvError::Empty));
        notifications.on_message(&GatewayMessage::Changed(vec![TWO]), now);
        assert_eq!(two.try_recv(), Err(oneshot::error::TryRecvError::Closed));
    }

    #[test]
    fn only_an_awaited_record_is_announced_and_only_once() {
        let (notifications, now) = (ChangeNotifications::default(), Instant::now());
        assert!(!notifications.any_awaited());
        notifications.on_message(&GatewayMessage::Awaited(vec![ONE]), now);
        assert!(notifications.any_awaited());
        assert!(!notifications.on_changed(&TWO, now));
        assert!(notifications.on_changed(&ONE, now));
        assert!(!notifications.on_changed(&ONE, now));
        assert!(!notifications.any_awaited());
    }

    #[test]
    fn an_awaited_record_is_forgotten_after_its_ttl() {
        let (notifications, now) = (ChangeNotifications::default(), Instant::now());
        notifications.add_awaited(&[ONE], now);
        assert!(!notifications.on_changed(&ONE, now + AWAITED_TTL));
        notifications.add_awaited(&[ONE], now);
        assert!(!notifications.on_changed(&TWO, now + 2 * AWAITED_TTL));
        assert!(!notifications.any_awaited(), "no message is sent for it");
    }

    #[test]
    fn a_closed_waiter_is_removed() {
        let notifications = ChangeNotifications::default();
        let (one, other) = (notifications.wait(ONE).unwrap(), notifications.wait(ONE).unwrap());
        drop(one);
        notifications.remove_closed(&ONE);
        assert_eq!(notifications.local().len(), 1);
        drop(other);
        notifications.remove_closed(&ONE);
        assert!(notifications.local().is_empty());
    }

    #[test]
    fn both_tables_are_bounded() {
        let (notifications, now) = (ChangeNotifications::default(), Instant::now());
        let name = |number: usize| u128::try_from(number).unwrap().to_be_bytes();
        let mut waiting = Vec::new();
        for number in 0..2 * RECORDS_MAX {
            notifications.add_awaited(&[name(number)], now);
            waiting.extend(notifications.wait(name(number)));
        }
        assert_eq!(
            (waiting.len(), notifications.awaited().records.len()),
            (RECORDS_MAX, RECORDS_MAX)
        );
        notifications.add_awaited(&[ONE], now + AWAITED_TTL);
        assert_eq!(notifications.awaited().records.len(), 1, "expired entries make room");
    }
}
