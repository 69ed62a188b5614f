//! Requests whose bodies are still arriving, shared fairly among their senders.
//!
//! A request is admitted here before its caller is known: only its head has arrived. So the limit
//! is not per caller, and a full table refuses no request. A new request evicts the body that has
//! been idle the longest, of the connection with the most bodies, of the peer with the most. A
//! client that sends heads without bodies evicts its own; below the limit no sender is limited.

use std::{
    cmp::Reverse,
    collections::{BTreeMap, BTreeSet, HashMap, hash_map},
    future::Future,
    net::{IpAddr, Ipv6Addr},
    pin::Pin,
    sync::{
        Arc, Mutex, MutexGuard, PoisonError,
        atomic::{AtomicU64, Ordering},
    },
    task::{Context, Poll, ready},
    time::Duration,
};

use tokio::{sync::oneshot, time::Instant};

/// Progress is stored at most this often: a body that arrives fast is not the next to be evicted.
const PROGRESS_EVERY: Duration = Duration::from_millis(50);

/// The sender of a request, as far as its connection shows. It decides whose share the request
/// takes.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Sender {
    peer: Option<IpAddr>,
    connection: u64,
}

impl Sender {
    /// A sender with this address and connection number. IPv6 addresses are grouped by /64, the
    /// usual allocation of one host.
    #[must_use]
    pub const fn new(address: IpAddr, connection: u64) -> Self {
        let peer = match address.to_canonical() {
            IpAddr::V4(address) => IpAddr::V4(address),
            IpAddr::V6(address) => IpAddr::V6(Ipv6Addr::from_bits(address.to_bits() >> 64 << 64)),
        };
        Self { peer: Some(peer), connection }
    }

    /// The client at this address that sends on the same connection, through a proxy.
    #[must_use]
    pub const fn with_address(self, address: IpAddr) -> Self {
        Self::new(address, self.connection)
    }

    /// The address that its connections share; for IPv6, the network. `None` for
    /// [`Sender::default`], which is unknown.
    #[must_use]
    pub const fn peer(&self) -> Option<IpAddr> {
        self.peer
    }
}

/// The bodies that are arriving.
#[derive(Debug)]
pub(crate) struct Arrivals {
    max: usize,
    evicted: AtomicU64,
    table: Mutex<ArrivalTable>,
}

/// The admission of an arriving body, from [`Semel::admit`](crate::Semel::admit). Dropping it ends
/// the admission.
#[derive(Debug)]
#[must_use]
pub struct Arrival {
    arrivals: Arc<Arrivals>,
    id: u64,
    noted: Instant,
    /// Whether a part of the body has arrived.
    begun: bool,
    /// `None` once evicted.
    evicted: Option<oneshot::Receiver<()>>,
}

#[derive(Debug, Default)]
struct ArrivalTable {
    /// A logical clock: a smaller value has been idle for longer.
    now: u64,
    bodies: HashMap<u64, ArrivingBody>,
    peers: Ranked<Option<IpAddr>, Ranked<u64, IdleBodies>>,
    /// Bodies of which a part has arrived, by peer and by their last progress.
    begun: BTreeSet<(Option<IpAddr>, u64, u64)>,
}

#[derive(Debug)]
struct ArrivingBody {
    sender: Sender,
    /// When it last made progress.
    progress: u64,
    evict: oneshot::Sender<()>,
}

/// The bodies of one connection, by when they last made progress.
#[derive(Debug, Default)]
struct IdleBodies(BTreeMap<u64, u64>);

/// Groups in the order of eviction: the largest first, among equals the one with the body that has
/// been idle the longest.
#[derive(Debug)]
struct Ranked<K, G> {
    count: usize,
    groups: HashMap<K, G>,
    ranking: BTreeSet<(GroupRank, K)>,
}

type GroupRank = (Reverse<usize>, u64);

/// A group that can be ranked.
trait HasRank: Default {
    /// `None` if it is empty.
    fn rank(&self) -> Option<GroupRank>;
}

impl HasRank for IdleBodies {
    fn rank(&self) -> Option<GroupRank> {
        let (progress, _) = self.0.first_key_value()?;
        Some((Reverse(self.0.len()), *progress))
    }
}

impl<K: Ord, G: HasRank> HasRank for Ranked<K, G> {
    fn rank(&self) -> Option<GroupRank> {
        let oldest = self.ranking.iter().map(|((_, progress), _)| *progress).next()?;
        Some((Reverse(self.count), oldest))
    }
}

impl<K, G> Default for Ranked<K, G> {
    fn default() -> Self {
        Self { count: 0, groups: HashMap::new(), ranking: BTreeSet::new() }
    }
}

impl<K: Copy + Ord + std::hash::Hash, G: HasRank> Ranked<K, G> {
    /// Changes a group and its rank.
    fn change(&mut self, key: K, change: impl FnOnce(&mut G)) {
        let mut group = match self.groups.entry(key) {
            hash_map::Entry::Occupied(group) => group,
            hash_map::Entry::Vacant(vacant) => vacant.insert_entry(G::default()),
        };
        let before = group.get().rank();
        change(group.get_mut());
        let after = group.get().rank();
        if let Some(rank) = before {
            self.ranking.remove(&(rank, key));
            self.count -= rank.0.0;
        }
        match after {
            Some(rank) => {
                self.ranking.insert((rank, key));
                self.count += rank.0.0;
            }
            None => drop(group.remove()),
        }
    }

    /// The group to evict from.
    fn first(&self) -> Option<&G> {
        let (_, key) = self.ranking.first()?;
        self.groups.get(key)
    }
}

impl ArrivalTable {
    fn insert(&mut self, id: u64, sender: Sender, evict: oneshot::Sender<()>) {
        let progress = self.tick();
        self.bodies.insert(id, ArrivingBody { sender, progress, evict });
        self.change(sender, |idle| {
            idle.0.insert(progress, id);
        });
    }

    fn remove(&mut self, id: u64) -> Option<oneshot::Sender<()>> {
        let ArrivingBody { sender, progress, evict } = self.bodies.remove(&id)?;
        self.begun.remove(&(sender.peer, progress, id));
        self.change(sender, |idle| {
            idle.0.remove(&progress);
        });
        Some(evict)
    }

    fn progress(&mut self, id: u64) {
        let now = self.tick();
        let Some(body) = self.bodies.get_mut(&id) else { return };
        let (sender, before) = (body.sender, std::mem::replace(&mut body.progress, now));
        self.begun.remove(&(sender.peer, before, id));
        self.begun.insert((sender.peer, now, id));
        self.change(sender, |idle| {
            idle.0.remove(&before);
            idle.0.insert(now, id);
        });
    }

    /// The body of this peer that has been idle the longest, of those of which a part has come.
    fn idlest_of(&self, peer: Option<IpAddr>) -> Option<u64> {
        let (of, _, id) = self.begun.range((peer, 0, 0)..).next()?;
        (*of == peer).then_some(*id)
    }

    /// The body that is evicted next.
    fn first(&self) -> Option<u64> {
        let idle = self.peers.first()?.first()?;
        idle.0.first_key_value().map(|(_, id)| *id)
    }

    fn change(&mut self, sender: Sender, change: impl FnOnce(&mut IdleBodies)) {
        self.peers.change(sender.peer, |peer| peer.change(sender.connection, change));
    }

    const fn tick(&mut self) -> u64 {
        self.now += 1;
        self.now
    }
}

impl Arrivals {
    pub(crate) fn new(max: usize) -> Self {
        Self { max, evicted: AtomicU64::new(0), table: Mutex::default() }
    }

    /// Admits a body, evicting another one if the table is full. `None` if the limit is zero.
    pub(crate) fn admit(self: &Arc<Self>, sender: Sender) -> Option<Arrival> {
        if self.max == 0 {
            return None;
        }
        let (evict, evicted) = oneshot::channel();
        let mut table = self.lock();
        let first = if table.bodies.len() < self.max { None } else { table.first() };
        let victim = first.and_then(|id| table.remove(id));
        let id = table.tick();
        table.insert(id, sender, evict);
        drop(table);
        if let Some(victim) = victim {
            self.evicted.fetch_add(1, Ordering::Relaxed);
            // A body that has just ended does not receive it.
            let _ = victim.send(());
        }
        Some(Arrival {
            arrivals: Arc::clone(self),
            id,
            noted: Instant::now(),
            begun: false,
            evicted: Some(evicted),
        })
    }

    /// Evicts a body that takes memory of this peer; false if there is none.
    pub(crate) fn evict_idlest_of(&self, sender: Sender) -> bool {
        let mut places = self.lock();
        let idlest = places.idlest_of(sender.peer);
        let Some(victim) = idlest.and_then(|id| places.remove(id)) else { return false };
        drop(places);
        self.evicted.fetch_add(1, Ordering::Relaxed);
        let _ = victim.send(());
        true
    }

    pub(crate) fn count(&self) -> usize {
        self.lock().bodies.len()
    }

    /// How many were evicted so far.
    pub(crate) fn evicted(&self) -> u64 {
        self.evicted.load(Ordering::Relaxed)
    }

    fn lock(&self) -> MutexGuard<'_, ArrivalTable> {
        self.table.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Arrival {
    /// Reports that a part of the body has arrived.
    pub fn progress(&mut self) {
        let now = Instant::now();
        if !self.begun || now.duration_since(self.noted) >= PROGRESS_EVERY {
            (self.begun, self.noted) = (true, now);
            self.arrivals.lock().progress(self.id);
        }
    }

    /// Ready once this body was evicted, and from then on; the rest of it must not be read.
    pub fn poll_evicted(&mut self, context: &mut Context<'_>) -> Poll<()> {
        if let Some(evicted) = &mut self.evicted {
            // The sender is dropped only together with its entry.
            let _ = ready!(Pin::new(evicted).poll(context));
            self.evicted = None;
        }
        Poll::Ready(())
    }
}

impl Drop for Arrival {
    fn drop(&mut self) {
        self.arrivals.lock().remove(self.id);
    }
}

#[cfg(test)]
mod tests {
    use std::{net::Ipv4Addr, task::Waker};

    use super::*;

    fn sender(peer: u8, connection: u64) -> Sender {
        Sender::new(Ipv4Addr::new(192, 0, 2, peer).into(), connection)
    }

    fn is_evicted(arrival: &mut Arrival) -> bool {
        arrival.poll_evicted(&mut Context::from_waker(Waker::noop())).is_ready()
    }

    fn which(arrivals: &mut [Arrival]) -> Vec<usize> {
        let evicted = arrivals.iter_mut().map(is_evicted).enumerate();
        evicted.filter(|(_, evicted)| *evicted).map(|(index, _)| index).collect()
    }

    #[test]
    fn a_full_table_evicts_from_the_peer_and_connection_with_the_most() {
        let arrivals = Arc::new(Arrivals::new(6));
        let senders = [(1, 1), (2, 2), (2, 3), (2, 3), (3, 4), (3, 5)];
        let admit = |(peer, connection)| arrivals.admit(sender(peer, connection)).unwrap();
        let mut admitted: Vec<_> = senders.map(admit).into();
        assert_eq!(which(&mut admitted), Vec::<usize>::new());
        admitted.push(admit((1, 9)));
        assert_eq!(which(&mut admitted), [2], "peer 2 has the most, and connection 3 of its own");
        admitted.push(admit((2, 2)));
        assert_eq!(which(&mut admitted), [0, 2], "all are equal: the one that is idle the longest");
        admitted.push(admit((2, 2)));
        assert_eq!(which(&mut admitted), [0, 1, 2], "the peer with the most evicts its own");
        assert_eq!((arrivals.count(), arrivals.evicted()), (6, 3));
        drop(admitted);
        let left = arrivals.lock();
        assert!(left.bodies.is_empty() && left.peers.groups.is_empty());
        assert!(left.peers.ranking.is_empty() && left.peers.count == 0);
    }

    #[test]
    fn a_body_that_makes_progress_is_not_evicted() {
        let arrivals = Arc::new(Arrivals::new(3));
        let mut admitted: Vec<_> =
            (0..3).map(|connection| arrivals.admit(sender(1, connection)).unwrap()).collect();
        admitted[0].noted -= PROGRESS_EVERY;
        admitted[0].progress();
        admitted.push(arrivals.admit(sender(1, 7)).unwrap());
        assert_eq!(which(&mut admitted), [1]);
    }

    #[test]
    fn a_peer_without_memory_gives_its_idlest_body_of_those_that_hold_some() {
        let arrivals = Arc::new(Arrivals::new(9));
        let senders = [(1, 1), (1, 2), (1, 2), (2, 3)];
        let admit = |(peer, connection)| arrivals.admit(sender(peer, connection)).unwrap();
        let mut admitted: Vec<_> = senders.map(admit).into();
        assert!(!arrivals.evict_idlest_of(sender(1, 9)), "heads hold nothing");
        for index in [3, 2, 1] {
            admitted[index].progress();
        }
        assert!(arrivals.evict_idlest_of(sender(1, 9)));
        assert_eq!(which(&mut admitted), [2]);
        assert!(arrivals.evict_idlest_of(sender(1, 1)));
        assert_eq!(which(&mut admitted), [1, 2], "the connection does not matter");
        assert!(!arrivals.evict_idlest_of(sender(1, 9)), "another peer gives nothing");
        assert_eq!(arrivals.evicted(), 2);
        drop(admitted);
        assert!(arrivals.lock().begun.is_empty());
    }

    #[test]
    fn a_peer_of_ipv6_is_its_network() {
        let one = Sender::new("2001:db8:0:1::1".parse().unwrap(), 1);
        let two = Sender::new("2001:db8:0:1:ffff::2".parse().unwrap(), 1);
        assert_eq!(one, two);
        assert_ne!(one, Sender::new("2001:db8:0:2::1".parse().unwrap(), 1));
        let mapped = Sender::new("::ffff:192.0.2.1".parse().unwrap(), 1);
        assert_eq!(mapped, sender(1, 1));
    }

    #[test]
    fn a_limit_of_zero_admits_none() {
        assert!(Arc::new(Arrivals::new(0)).admit(Sender::default()).is_none());
    }

    /// Random arrivals, progress and ends leave consistent counts.
    #[test]
    fn counts_stay_consistent_under_random_operations() {
        let arrivals = Arc::new(Arrivals::new(20));
        let mut admitted = Vec::new();
        let mut random = 7_u64;
        for _ in 0..20_000 {
            random = random.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1);
            let dice = random >> 33;
            match dice % 4 {
                0 | 1 => {
                    let peer = u8::try_from(dice / 4 % 3).unwrap();
                    admitted.push(arrivals.admit(sender(peer, dice / 64 % 4)).unwrap());
                }
                2 if !admitted.is_empty() => {
                    let index = usize::try_from(dice / 4).unwrap() % admitted.len();
                    drop(admitted.swap_remove(index));
                }
                _ => {
                    if let Some(arrival) = admitted.last_mut() {
                        arrival.noted -= PROGRESS_EVERY;
                        arrival.progress();
                    }
                }
            }
            admitted.retain_mut(|arrival| !is_evicted(arrival));
            let inside = arrivals.lock();
            assert!(admitted.len() == inside.bodies.len() && admitted.len() <= 20);
            assert_eq!(inside.peers.count, admitted.len());
            let begun = admitted.iter().filter(|arrival| arrival.begun).count();
            assert_eq!(inside.begun.len(), begun);
            let sums = inside.peers.groups.values().map(|peer| peer.count);
            assert_eq!(sums.sum::<usize>(), admitted.len());
        }
        assert!(arrivals.evicted() > 1000);
    }
}
