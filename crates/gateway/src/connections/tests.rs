//! Which connection is evicted.

use super::*;

fn connections(max: usize) -> Arc<Connections> {
    Connections::new(max, &Metrics::new([]))
}

#[test]
fn each_connection_of_a_trusted_proxy_counts_as_one_clients() {
    let proxies = TrustedProxies::Listed(vec!["192.0.2.9".parse().unwrap()]);
    let connections = connections(8);
    connections.set_proxies(proxies);
    let mut permits = Vec::from([9, 9, 9, 9, 9, 9, 1, 1].map(|peer| open(&connections, peer)));
    assert!(connections.evict());
    assert_eq!(evicted(&permits), [6], "the client that has two loses one before the proxy");
    drop(permits.remove(6));
    assert!(connections.evict());
    assert_eq!(evicted(&permits), [0], "among those with one, the longest idle");
    let busy: Vec<_> = permits[1..6].iter().map(|permit| permit.connection().begin()).collect();
    assert!(busy.iter().all(Option::is_some));
}

#[test]
fn a_trusted_proxy_may_have_every_connection_busy() {
    let connections = connections(8);
    connections.set_proxies(TrustedProxies::All);
    let permits = [1; 8].map(|peer| open(&connections, peer));
    let busy = permits.each_ref().map(|permit| permit.connection().begin());
    assert!(busy.iter().all(Option::is_some));
}

fn open(connections: &Arc<Connections>, peer: u8) -> ConnectionPermit {
    connections.try_admit(([192, 0, 2, peer], 1).into()).expect("a permit is left")
}

fn evicted(permits: &[ConnectionPermit]) -> Vec<usize> {
    let evicted = permits.iter().map(|permit| permit.connection().is_evicted()).enumerate();
    evicted.filter(|(_, evicted)| *evicted).map(|(index, _)| index).collect()
}

#[test]
fn the_longest_idle_connection_of_the_peer_with_the_most_is_evicted() {
    let connections = connections(5);
    let permits = [1, 2, 2, 2, 3].map(|peer| open(&connections, peer));
    assert!(connections.try_admit(([192, 0, 2, 3], 1).into()).is_none());
    permits[1].connection().touch();
    assert!(connections.evict());
    assert_eq!(evicted(&permits), [2]);
    assert!(permits[2].connection().begin().is_none(), "no request starts on it");
}

#[test]
fn a_connection_in_use_stays_and_one_that_waits_for_a_body_is_evicted() {
    let connections = connections(2);
    let permits = [1, 2].map(|peer| open(&connections, peer));
    let requests = permits.each_ref().map(|permit| permit.connection().begin().unwrap());
    assert!(!connections.evict());
    let mut body = AwaitedBody::new(Arc::clone(permits[1].connection()));
    body.start_waiting();
    let second = permits[1].connection().begin();
    assert!(!connections.evict(), "its other request does not wait");
    drop(second);
    assert!(connections.evict());
    assert_eq!(evicted(&permits), [1]);
    drop((body, requests));
    assert_eq!(permits[0].connection().requests.load(Ordering::Relaxed), 0);
}

#[test]
fn a_candidate_that_was_used_since_the_ranking_stays() {
    let connections = connections(64);
    let permits: Vec<_> = (0..64).map(|_| open(&connections, 1)).collect();
    assert!(connections.evict());
    assert_eq!(lock(&connections.candidates).len(), 3, "one ranking finds several");
    permits[1].connection().touch();
    drop(permits[2].connection().begin());
    let _in_use = permits[3].connection().begin();
    assert!(connections.evict());
    assert_eq!(evicted(&permits), [0, 4]);
}

#[tokio::test(start_paused = true)]
async fn an_idle_tunnel_is_evicted_after_idle_connections() {
    let connections = connections(3);
    let mut permits = vec![open(&connections, 1), open(&connections, 1)];
    let _tunnels = [0, 1].map(|index: usize| Tunnel::new(permits[index].connection()));
    assert!(!connections.evict(), "both have just been opened");
    tokio::time::advance(TUNNEL_IDLE_MIN).await;
    permits[0].connection().touch();
    permits.push(open(&connections, 1));
    assert!(connections.evict());
    assert_eq!(evicted(&permits), [2]);
    assert!(connections.evict());
    assert_eq!(evicted(&permits), [1, 2]);
    assert!(!connections.evict(), "the other has just been used");
}

#[tokio::test(start_paused = true)]
async fn tunnels_above_the_share_of_a_peer_are_evicted_however_new_they_are() {
    let connections = connections(16);
    let mut permits: Vec<_> = (0..15).map(|_| open(&connections, 1)).collect();
    let tunnels = permits.iter().map(|permit| Tunnel::new(permit.connection()));
    let _tunnels: Vec<_> = tunnels.collect();
    permits.push(open(&connections, 2));
    tokio::time::advance(TUNNEL_IDLE_MIN / 2).await;
    assert!(connections.evict());
    assert_eq!(evicted(&permits), [0], "the other peer keeps its idle connection");
}

#[tokio::test]
async fn a_new_connection_gets_the_permit_of_the_evicted_one() {
    let connections = connections(1);
    let permit = open(&connections, 1);
    let connection = Arc::clone(permit.connection());
    let task = tokio::spawn(async move {
        std::future::pending::<()>().await;
        drop(permit);
    });
    connection.set_task(task.abort_handle());
    let next = connections.admit(([192, 0, 2, 2], 1).into()).await;
    assert!(task.await.unwrap_err().is_cancelled());
    assert_eq!(connections.count(), 1);
    drop(next);
    connections.wait_all_closed().await;
    assert_eq!(connections.count(), 0);
}

#[test]
fn a_candidate_that_has_closed_is_passed_over() {
    let connections = connections(64);
    let permits: Vec<_> = (0..64).map(|_| open(&connections, 1)).collect();
    assert!(connections.evict());
    assert_eq!(lock(&connections.candidates).len(), 3, "one look finds several");
    drop(permits);
    let permits: Vec<_> = (0..64).map(|_| open(&connections, 1)).collect();
    assert!(connections.evict());
    assert_eq!(evicted(&permits).len(), 1, "an open connection has to go");
}

#[test]
fn the_requests_of_one_peer_leave_an_eighth_of_the_places_to_others() {
    let connections = connections(16);
    let mut permits: Vec<_> = (0..16).map(|_| open(&connections, 1)).collect();
    let mut requests: Vec<_> = permits.iter().map(|permit| permit.connection().begin()).collect();
    assert_eq!(requests.iter().flatten().count(), 14);
    assert!(permits[0].connection().begin().is_some(), "its place is taken already");
    assert!(connections.evict(), "what may not begin waits");
    let gone = evicted(&permits);
    assert!(gone == [14] || gone == [15], "{gone:?}");
    drop(permits.remove(gone[0]));
    permits.push(open(&connections, 2));
    assert!(permits[15].connection().begin().is_some(), "another peer has its own share");
    requests[0] = None;
    let again = permits[14].connection().begin();
    assert!(again.is_some(), "one has ended");
    assert!(permits[0].connection().begin().is_none());
    let mut body = AwaitedBody::new(Arc::clone(permits[1].connection()));
    body.start_waiting();
    assert!(permits[0].connection().begin().is_some(), "one can be closed instead");
    drop((body, again, requests));
    for permit in &permits {
        assert_eq!(permit.connection().busy.count.load(Ordering::Relaxed), 0);
    }
    drop(permits);
    assert!(lock(&connections.peers).is_empty());
}

#[test]
fn a_peer_has_as_many_streams_as_it_leaves_free() {
    let connections = connections(16);
    connections.set_proxies(TrustedProxies::Listed(vec!["192.0.2.9".parse().unwrap()]));
    let permits = [1, 1, 2, 9].map(|peer| open(&connections, peer));
    let opened = |permit: usize, tries: usize| -> Vec<OpenStream> {
        (0..tries).filter_map(|_| permits[permit].connection().open_stream()).collect()
    };
    let first = opened(0, 300);
    let second = opened(1, 300);
    assert_eq!((first.len(), second.len()), (300, 200), "half of all for one peer");
    let other = opened(2, 300);
    assert_eq!(other.len(), 250, "half of the rest for the next");
    assert_eq!(opened(3, 300).len(), 125, "a proxy leaves an eighth");
    drop((first, second));
    assert_eq!(opened(3, 1000).len(), 625);
    drop(other);
    for permit in &permits {
        assert_eq!(permit.connection().busy.streams.load(Ordering::Relaxed), 0);
    }
    assert_eq!(connections.streams.count.load(Ordering::Relaxed), 0);
}

#[test]
fn few_places_are_not_shared() {
    let connections = connections(7);
    let permits: Vec<_> = (0..7).map(|_| open(&connections, 1)).collect();
    let requests: Vec<_> = permits.iter().map(|permit| permit.connection().begin()).collect();
    assert!(requests.iter().all(Option::is_some));
}
