//! A memory budget in bytes for bodies and answers.
//!
//! Counts of requests do not bound memory: ten thousand small requests fit where a hundred large
//! ones do not. The budget is halved: one half is for request bodies, the other for answers, so
//! that answers which no client reads never keep a new request out.
//!
//! A peer may hold as much of a half as is still free. One peer alone gets half of it, two get a
//! third each, and some is always left for the next peer. Only an answer whose request has run may
//! take more, since it would be lost otherwise: while a quarter of its half is left, it is recorded
//! whatever its peer holds. After that it waits.

use std::{
    collections::HashMap,
    net::{IpAddr, Ipv6Addr},
    pin::pin,
    sync::{
        Arc, Mutex, MutexGuard, PoisonError, Weak,
        atomic::{AtomicUsize, Ordering},
    },
    time::Duration,
};

use bytes::Bytes;
use tokio::{sync::Notify, time::timeout};

/// How much of an answer is sure to be recorded, whatever others do while its request runs.
const ANSWER_BYTES: usize = 16 << 10;

/// The part of the half for answers that only peers within their shares may use.
const SHARED_PART: usize = 4;

/// How long a body waits for the memory of one that was evicted for it.
const FREED_TIMEOUT: Duration = Duration::from_secs(1);

/// The maximum size of request bodies and answers in memory, in bytes.
///
/// The layer counts a request against the [`PeerMemory`] in its
/// [`ClientContext`](crate::ClientContext). A request without one is not counted.
///
/// ```
/// use semel_tower::{ClientContext, MemoryBudget};
///
/// let budget = MemoryBudget::new(64 << 20);
/// let mut client = ClientContext::default();
/// client.memory = Some(budget.peer([127, 0, 0, 1].into()));
/// let request = http::Request::post("/payments").extension(client).body(())?;
/// assert_eq!(budget.used(), 0);
/// # let _ = request;
/// # Ok::<(), http::Error>(())
/// ```
#[derive(Clone, Debug)]
pub struct MemoryBudget(Arc<BudgetState>);

#[derive(Debug)]
struct BudgetState {
    bytes_max: usize,
    parts: [AtomicUsize; 2],
    peers: Mutex<HashMap<IpAddr, Weak<PeerUsage>>>,
    answers_freed: Freed,
}

/// The share of one peer in a [`MemoryBudget`], for
/// [`ClientContext::memory`](crate::ClientContext::memory).
#[derive(Clone, Debug)]
pub struct PeerMemory(Arc<PeerUsage>);

#[derive(Debug)]
struct PeerUsage {
    budget: Arc<BudgetState>,
    address: IpAddr,
    parts: [AtomicUsize; 2],
    requests_freed: Freed,
}

/// Wakes those who wait until bytes are given back. To give back takes no lock while no task waits,
/// since every request does it several times.
#[derive(Debug, Default)]
struct Freed {
    notify: Notify,
    waiting: AtomicUsize,
}

/// A task counted in [`Freed::waiting`] until this is dropped.
#[derive(Debug)]
struct FreedWaiter<'a>(&'a Freed);

/// The purpose of a reservation.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum MemoryUse {
    Requests,
    Answers,
    /// Answers from records. They can be asked for again, so a peer gets half as much for them:
    /// what is not taken of them leaves as much for its first answers.
    Replays,
}

/// Bytes that are reserved until this is dropped.
#[derive(Debug)]
pub(crate) struct Reservation {
    peer: Arc<PeerUsage>,
    part: MemoryUse,
    bytes: usize,
}

impl MemoryBudget {
    /// A budget of this many bytes.
    #[must_use]
    pub fn new(bytes_max: usize) -> Self {
        let (parts, peers, answers_freed) = Default::default();
        Self(Arc::new(BudgetState { bytes_max, parts, peers, answers_freed }))
    }

    /// How many bytes are in use.
    #[must_use]
    pub fn used(&self) -> usize {
        self.0.parts.iter().map(|part| part.load(Ordering::Relaxed)).sum()
    }

    /// The size of the budget in bytes.
    #[must_use]
    pub fn bytes_max(&self) -> usize {
        self.0.bytes_max
    }

    /// The share of a peer. All connections from one address share it; for IPv6, all from one /64
    /// network, since a client usually has one.
    #[must_use]
    pub fn peer(&self, address: IpAddr) -> PeerMemory {
        self.0.peer(address)
    }
}

fn network(address: IpAddr) -> IpAddr {
    match address.to_canonical() {
        IpAddr::V6(address) => {
            Ipv6Addr::from_bits(address.to_bits() & !u128::from(u64::MAX)).into()
        }
        address @ IpAddr::V4(_) => address,
    }
}

impl BudgetState {
    fn peer(self: &Arc<Self>, address: IpAddr) -> PeerMemory {
        let address = network(address);
        let mut peers = self.peers();
        if let Some(peer) = peers.get(&address).and_then(Weak::upgrade) {
            return PeerMemory(peer);
        }
        let budget = Arc::clone(self);
        let peer = Arc::new(PeerUsage {
            budget,
            address,
            parts: Default::default(),
            requests_freed: Freed::default(),
        });
        peers.insert(address, Arc::downgrade(&peer));
        PeerMemory(peer)
    }

    fn peers(&self) -> MutexGuard<'_, HashMap<IpAddr, Weak<PeerUsage>>> {
        self.peers.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Drop for PeerUsage {
    fn drop(&mut self) {
        let mut peers = self.budget.peers();
        // Another connection from this address may have created a new entry.
        if peers.get(&self.address).is_some_and(|peer| peer.strong_count() == 0) {
            peers.remove(&self.address);
        }
    }
}

impl Freed {
    /// Wakes all who wait. The counts of bytes and of waiting tasks are written and read in one
    /// order by all threads: who gives back sees the task, or the task sees the bytes.
    fn wake(&self) {
        if self.waiting.load(Ordering::SeqCst) > 0 {
            self.notify.notify_waiters();
        }
    }

    /// Counts a task that will look for bytes, and wait if there are none.
    fn wait(&self) -> FreedWaiter<'_> {
        self.waiting.fetch_add(1, Ordering::SeqCst);
        FreedWaiter(self)
    }
}

impl Drop for FreedWaiter<'_> {
    fn drop(&mut self) {
        self.0.waiting.fetch_sub(1, Ordering::SeqCst);
    }
}

impl PeerUsage {
    /// Takes bytes, all or none. Those of an answer that `has_run` may exceed the share.
    fn take(&self, part: MemoryUse, bytes: usize, has_run: bool) -> bool {
        let (all, own) = (of(&self.budget.parts, part), of(&self.parts, part));
        let bytes_max = self.budget.bytes_max / 2;
        let own_before = own.fetch_add(bytes, Ordering::SeqCst);
        // How many times as much as the peer holds stays free.
        let left = if part == MemoryUse::Replays { 3 } else { 1 };
        let fits = |used: usize| {
            let used = used.checked_add(bytes).filter(|used| *used <= bytes_max)?;
            let own = own_before.saturating_add(bytes).saturating_mul(left);
            let overdrawn = has_run && used <= bytes_max - bytes_max / SHARED_PART;
            (overdrawn || own <= bytes_max - used).then_some(used)
        };
        let taken = all.fetch_update(Ordering::SeqCst, Ordering::SeqCst, fits).is_ok();
        if !taken {
            own.fetch_sub(bytes, Ordering::SeqCst);
        }
        taken
    }

    fn give_back(&self, part: MemoryUse, bytes: usize) {
        if bytes == 0 {
            return;
        }
        of(&self.parts, part).fetch_sub(bytes, Ordering::SeqCst);
        of(&self.budget.parts, part).fetch_sub(bytes, Ordering::SeqCst);
        match part {
            MemoryUse::Requests => self.requests_freed.wake(),
            MemoryUse::Answers | MemoryUse::Replays => self.budget.answers_freed.wake(),
        }
    }
}

const fn of(parts: &[AtomicUsize; 2], part: MemoryUse) -> &AtomicUsize {
    let [requests, answers] = parts;
    match part {
        MemoryUse::Requests => requests,
        MemoryUse::Answers | MemoryUse::Replays => answers,
    }
}

impl PeerMemory {
    /// The share of another address in the same budget: of a client behind a proxy, for example.
    #[must_use]
    pub fn of_address(&self, address: IpAddr) -> Self {
        self.0.budget.peer(address)
    }

    /// An empty reservation, to grow.
    pub(crate) fn reservation(&self, part: MemoryUse) -> Reservation {
        Reservation { peer: Arc::clone(&self.0), part, bytes: 0 }
    }

    /// Reserves bytes; `None` if this peer's share is exhausted.
    pub(crate) fn reserve(&self, part: MemoryUse, bytes: usize) -> Option<Reservation> {
        let mut reservation = self.reservation(part);
        reservation.grow_to(bytes).then_some(reservation)
    }

    /// Reserves memory for an answer of up to `max` bytes whose request has not run yet. `None` if
    /// there is no room for one: then the request is refused, since it would run and its answer
    /// could not be recorded.
    ///
    /// There must be room for all of the answer, or for a quarter of what one peer gets. No more
    /// than [`ANSWER_BYTES`] of it stay reserved while the request runs, since most answers are
    /// small, and thousands may run at once.
    pub(crate) fn reserve_answer(&self, max: usize) -> Option<Reservation> {
        let room = max.min(self.0.budget.bytes_max / 16);
        let mut reservation = self.reserve(MemoryUse::Answers, room)?;
        reservation.shrink_to(ANSWER_BYTES);
        Some(reservation)
    }
}

impl Reservation {
    /// Grows the reservation to this size if it is smaller; false if the share is exhausted, and
    /// then nothing has changed.
    pub(crate) fn grow_to(&mut self, bytes: usize) -> bool {
        let more = bytes.saturating_sub(self.bytes);
        let grown = more == 0 || self.peer.take(self.part, more, false);
        if grown {
            self.bytes = self.bytes.max(bytes);
        }
        grown
    }

    /// Whether the reservation covers so many bytes. That of a request body grows for it. That of
    /// an answer does not: it grows [in one step](Self::grow_for_answer), since answers that held
    /// parts would wait for each other.
    pub(crate) fn covers(&mut self, bytes: usize) -> bool {
        match self.part {
            MemoryUse::Requests => self.grow_to(bytes),
            MemoryUse::Answers | MemoryUse::Replays => bytes <= self.bytes,
        }
    }

    /// How large an answer can be recorded at all.
    pub(crate) fn answer_bytes_max(&self) -> usize {
        let bytes_max = self.peer.budget.bytes_max / 2;
        bytes_max - bytes_max / SHARED_PART
    }

    /// Grows the reservation to the size of an answer whose request has run. Waits for room at most
    /// so long; false if there is none.
    pub(crate) async fn grow_for_answer(&mut self, bytes: usize, wait_max: Duration) -> bool {
        if bytes > self.answer_bytes_max() {
            return false;
        }
        let more = bytes.saturating_sub(self.bytes);
        let grown = more == 0
            || self.peer.take(self.part, more, true)
            || timeout(wait_max, self.take_for_answer(more)).await.is_ok();
        if grown {
            self.bytes = self.bytes.max(bytes);
        }
        grown
    }

    /// Takes bytes of an answer once enough are free.
    async fn take_for_answer(&self, bytes: usize) {
        let freed = &self.peer.budget.answers_freed;
        let _waiter = freed.wait();
        loop {
            let mut notified = pin!(freed.notify.notified());
            // What is given back from here on is noticed.
            notified.as_mut().enable();
            if self.peer.take(self.part, bytes, true) {
                return;
            }
            notified.await;
        }
    }

    /// The same, where others can be made to give bytes back: `evict` does that, and says whether
    /// there was one.
    pub(crate) async fn grow_by_eviction(
        &mut self,
        bytes: usize,
        evict: &(dyn Fn() -> bool + Sync),
    ) -> bool {
        if self.grow_to(bytes) {
            return true;
        }
        let peer = Arc::clone(&self.peer);
        let _waiter = peer.requests_freed.wait();
        loop {
            let mut notified = pin!(peer.requests_freed.notify.notified());
            // What is given back from here on is noticed.
            notified.as_mut().enable();
            if self.grow_to(bytes) {
                return true;
            }
            if !evict() || timeout(FREED_TIMEOUT, notified).await.is_err() {
                return false;
            }
        }
    }

    fn shrink_to(&mut self, bytes: usize) {
        let unused = self.bytes.saturating_sub(bytes);
        self.peer.give_back(self.part, unused);
        self.bytes -= unused;
    }

    /// The same bytes, which keep this reservation while any part of them is in use.
    pub(crate) fn hold(mut self, bytes: Bytes) -> Bytes {
        if bytes.is_empty() {
            return bytes;
        }
        self.shrink_to(bytes.len());
        Bytes::from_owner(ReservedBytes { bytes, _reservation: self })
    }
}

impl Drop for Reservation {
    fn drop(&mut self) {
        self.peer.give_back(self.part, self.bytes);
    }
}

/// Bytes with their reservation.
struct ReservedBytes {
    bytes: Bytes,
    _reservation: Reservation,
}

impl AsRef<[u8]> for ReservedBytes {
    fn as_ref(&self) -> &[u8] {
        &self.bytes
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const REQUESTS: MemoryUse = MemoryUse::Requests;

    fn peer(budget: &MemoryBudget, last: u8) -> PeerMemory {
        budget.peer([10, 0, 0, last].into())
    }

    /// Takes single bytes until the share of a peer is exhausted.
    fn take_all(peer: &PeerMemory, part: MemoryUse) -> Vec<Reservation> {
        std::iter::from_fn(|| peer.reserve(part, 1)).collect()
    }

    #[test]
    fn a_reservation_counts_until_it_is_dropped() {
        let budget = MemoryBudget::new(1000);
        let peer = peer(&budget, 1);
        let mut first = peer.reserve(REQUESTS, 100).unwrap();
        assert!(first.grow_to(200) && first.grow_to(50));
        assert_eq!(budget.used(), 200);
        assert!(!first.grow_to(251), "half of the part for requests");
        assert_eq!(budget.used(), 200);
        drop(first);
        assert_eq!(budget.used(), 0);
    }

    #[test]
    fn held_bytes_count_until_their_last_slice_is_gone() {
        let budget = MemoryBudget::new(1000);
        let reservation = peer(&budget, 1).reserve(MemoryUse::Answers, 100).unwrap();
        let data = Bytes::from(vec![7; 60]);
        let held = reservation.hold(data.clone());
        assert_eq!((budget.used(), held.as_ptr()), (60, data.as_ptr()), "no copy, no more");
        let slice = held.slice(10..20);
        drop(held);
        assert_eq!(budget.used(), 60);
        drop(slice);
        assert_eq!(budget.used(), 0);
    }

    #[test]
    fn no_number_of_peers_takes_what_the_next_one_needs() {
        let budget = MemoryBudget::new(24_000);
        let mut held = Vec::new();
        for number in 1..=4 {
            held.push(take_all(&peer(&budget, number), REQUESTS));
            let innocent = peer(&budget, 200).reserve(REQUESTS, 100);
            assert!(innocent.is_some(), "{number} peers took everything");
        }
        assert_eq!(held[0].len(), 6000, "half of the part");
        assert!(budget.used() < 12_000);
    }

    #[test]
    fn answers_that_are_not_taken_leave_the_part_of_requests_alone() {
        let budget = MemoryBudget::new(24_000);
        let (hog, innocent) = (peer(&budget, 1), peer(&budget, 2));
        let answers = take_all(&hog, MemoryUse::Answers);
        assert!(hog.reserve_answer(1000).is_none());
        assert!(innocent.reserve_answer(1000).is_some());
        assert!(hog.reserve(REQUESTS, 6000).is_some());
        drop(answers);
        assert!(hog.reserve_answer(1000).is_some());
    }

    #[tokio::test(start_paused = true)]
    async fn an_answer_that_has_run_takes_what_is_free_and_waits_for_the_rest() {
        let budget = MemoryBudget::new(64 << 20);
        let (hog, innocent) = (peer(&budget, 1), peer(&budget, 2));
        let wait = Duration::from_secs(60);
        let mut running: Vec<_> = (0..40).map(|_| hog.reserve_answer(1 << 20).unwrap()).collect();
        let mut full = Vec::new();
        while let Some(mut one) = running.pop() {
            if !one.grow_for_answer(1 << 20, Duration::ZERO).await {
                running.push(one);
                break;
            }
            full.push(one);
        }
        assert_eq!(full.len(), 23, "24 MiB of 32, less what runs");
        assert!(hog.reserve_answer(1 << 20).is_none(), "its share is exceeded");
        let mut other = innocent.reserve_answer(1 << 20).unwrap();
        assert!(other.grow_for_answer(1 << 20, Duration::ZERO).await, "another peer has room");
        drop(other);
        // None is lost as long as those before it are taken.
        for mut one in running {
            let (grown, ()) = tokio::join!(one.grow_for_answer(1 << 20, wait), async {
                tokio::task::yield_now().await;
                drop(full.remove(0));
            });
            assert!(grown);
            full.push(one);
        }
        drop(full);
        assert_eq!(budget.used(), 0);
    }

    #[test]
    fn replays_leave_room_for_first_answers_and_those_for_what_runs() {
        let budget = MemoryBudget::new(64 << 20);
        let peer = peer(&budget, 1);
        let replays: Vec<_> =
            std::iter::from_fn(|| peer.reserve(MemoryUse::Replays, 1 << 20)).collect();
        assert_eq!(replays.len(), 8, "half of the share of one peer");
        let mut running = peer.reserve_answer(1 << 20).unwrap();
        assert_eq!(budget.used(), (8 << 20) + ANSWER_BYTES);
        let large: Vec<_> =
            std::iter::from_fn(|| peer.reserve(MemoryUse::Answers, 1 << 20)).collect();
        assert_eq!(large.len(), 7);
        assert!(peer.reserve_answer(1 << 20).is_none(), "there is no room for all of it");
        assert!(running.grow_to(ANSWER_BYTES), "what runs has its part");
        drop((large, replays, running));
        assert_eq!(budget.used(), 0);
    }

    #[test]
    fn connections_of_one_address_share_and_leave_nothing_behind() {
        let budget = MemoryBudget::new(1000);
        let [one, same] = [peer(&budget, 1), budget.peer("::ffff:10.0.0.1".parse().unwrap())];
        assert!(Arc::ptr_eq(&one.0, &same.0));
        let networks = ["2001:db8::1", "2001:db8::2:3", "2001:db8:0:1::1"];
        let [a, b, c] = networks.map(|address| budget.peer(address.parse().unwrap()));
        assert!(Arc::ptr_eq(&a.0, &b.0) && !Arc::ptr_eq(&a.0, &c.0));
        let reservation = one.reserve(REQUESTS, 10).unwrap();
        drop((one, same, a, b, c));
        assert_eq!(budget.0.peers().len(), 1, "it still holds bytes");
        drop(reservation);
        assert!(budget.0.peers().is_empty());
    }

    #[test]
    fn the_limit_holds_while_many_threads_reserve() {
        let budget = MemoryBudget::new(2000);
        std::thread::scope(|scope| {
            for number in 0..4 {
                let budget = &budget;
                scope.spawn(move || {
                    let peer = peer(budget, number);
                    for round in 0..20_000 {
                        let reservation = peer.reserve(REQUESTS, round % 300);
                        assert!(budget.used() <= 1000);
                        drop(reservation);
                    }
                });
            }
        });
        assert_eq!(budget.used(), 0);
    }
}
