//! Work on large bodies, away from the threads that serve connections.
//!
//! Decoding and canonicalising one mebibyte takes about ten milliseconds, during which a serving
//! thread would answer no other client. Half of the cores at most do such work, so that a flood of
//! large bodies delays large bodies and nothing else. Peers take turns, so that a flood delays the
//! large bodies of its own address.
//!
//! A body that waits counts as arriving: when too many do, it is evicted as they are.

use std::{
    collections::{HashMap, VecDeque},
    future::{Future, poll_fn},
    net::IpAddr,
    pin::pin,
    sync::{Arc, LazyLock, Mutex, MutexGuard, PoisonError},
    task::Poll,
    thread,
};

use http::HeaderMap;
use semel::{Arrival, core::Problem};
use tokio::{sync::oneshot, task::spawn_blocking};

use crate::{content_coding::ContentCoding, refusal::RequestRefusal};

/// A compressed body is offloaded if it can decode to more than this.
const DECODED_BYTES: usize = 64 * 1024;

/// Any other body is offloaded if it is longer than this: fingerprinting it takes a millisecond.
const PLAIN_BYTES: usize = 256 * 1024;

/// The queue of this process.
static QUEUE: LazyLock<Arc<OffloadQueue>> = LazyLock::new(|| {
    let cores = thread::available_parallelism().map_or(1, |cores| cores.get());
    OffloadQueue::new((cores / 2).max(1))
});

/// Whether the work on a body is too much for a serving thread.
pub(crate) fn needs_offload(headers: &HeaderMap, body: &[u8]) -> bool {
    let coding = ContentCoding::of(headers);
    let is_coded = coding.is_decoded();
    body.len() > PLAIN_BYTES || (is_coded && coding.decoded_bytes_max(body.len()) > DECODED_BYTES)
}

/// Does the work of a peer on another thread. An `arrival` counts until it has ended; if it is
/// evicted before the work begins, the request is refused.
pub(crate) async fn run<T: Send + 'static>(
    peer: Option<IpAddr>,
    arrival: Option<Arrival>,
    work: impl FnOnce() -> T + Send + 'static,
) -> Result<T, RequestRefusal> {
    run_in(&QUEUE, peer, arrival, work).await
}

async fn run_in<T: Send + 'static>(
    queue: &Arc<OffloadQueue>,
    peer: Option<IpAddr>,
    mut arrival: Option<Arrival>,
    work: impl FnOnce() -> T + Send + 'static,
) -> Result<T, RequestRefusal> {
    let mut acquired = pin!(queue.acquire(peer));
    let permit = poll_fn(|context| {
        if let Poll::Ready(permit) = acquired.as_mut().poll(context) {
            return Poll::Ready(permit);
        }
        match &mut arrival {
            Some(arrival) => arrival.poll_evicted(context).map(|()| None),
            None => Poll::Pending,
        }
    });
    let Some(permit) = permit.await else { return Err(evicted()) };
    let done = spawn_blocking(move || {
        // The permit is held until the work has ended, even if its client is gone.
        let _permit = permit;
        work()
    });
    done.await.map_err(|_| stopped())
}

/// Who may do such work, and who waits for it. Peers take turns.
#[derive(Debug)]
struct OffloadQueue(Mutex<OffloadState>);

#[derive(Debug)]
struct OffloadState {
    free: usize,
    waiting: HashMap<Option<IpAddr>, VecDeque<oneshot::Sender<OffloadPermit>>>,
    /// The peers that wait, the next one first.
    turns: VecDeque<Option<IpAddr>>,
}

/// Permission to work. Dropping it lets the next one work.
#[derive(Debug)]
struct OffloadPermit(Arc<OffloadQueue>);

impl OffloadQueue {
    fn new(permits: usize) -> Arc<Self> {
        let (waiting, turns) = Default::default();
        Arc::new(Self(Mutex::new(OffloadState { free: permits, waiting, turns })))
    }

    /// Always a permit: the queue outlives its waiters.
    async fn acquire(self: &Arc<Self>, peer: Option<IpAddr>) -> Option<OffloadPermit> {
        let granted = {
            let mut state = self.lock();
            if state.free > 0 {
                state.free -= 1;
                return Some(OffloadPermit(Arc::clone(self)));
            }
            let (grant, granted) = oneshot::channel();
            let OffloadState { waiting, turns, .. } = &mut *state;
            let queue = waiting.entry(peer).or_default();
            if queue.is_empty() {
                turns.push_back(peer);
            }
            queue.push_back(grant);
            granted
        };
        granted.await.ok()
    }

    fn lock(&self) -> MutexGuard<'_, OffloadState> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl OffloadState {
    /// The next that waits, of the peer whose turn it is. Those that were given up are skipped.
    fn next(&mut self) -> Option<oneshot::Sender<OffloadPermit>> {
        loop {
            let peer = self.turns.pop_front()?;
            let Some(queue) = self.waiting.get_mut(&peer) else { continue };
            let next = std::iter::from_fn(|| queue.pop_front()).find(|next| !next.is_closed());
            if queue.is_empty() {
                self.waiting.remove(&peer);
            } else {
                self.turns.push_back(peer);
            }
            if next.is_some() {
                return next;
            }
        }
    }
}

impl Drop for OffloadPermit {
    fn drop(&mut self) {
        let next = {
            let mut state = self.0.lock();
            let next = state.next();
            if next.is_none() {
                state.free += 1;
            }
            next
        };
        if let Some(next) = next {
            // If it was given up meanwhile, the permit is dropped here and passed on.
            let _ = next.send(Self(Arc::clone(&self.0)));
        }
    }
}

/// Too many bodies arrive or wait.
fn evicted() -> RequestRefusal {
    let detail = "too many large bodies wait to be read; nothing was done";
    RequestRefusal::detailed(Problem::TooManyInFlight, detail)
}

/// The runtime is shutting down.
fn stopped() -> RequestRefusal {
    RequestRefusal::detailed(Problem::TooManyInFlight, "the server is stopping; nothing was done")
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use axum::{Router, body::Body, routing::post};
    use http::{HeaderValue, Request, header};
    use semel::{MemoryStore, Semel, Sender, core::Scope};
    use tokio::{task::yield_now, time::timeout};
    use tower_service::Service as _;

    use super::*;
    use crate::{Callers, DeadlineRule, IdempotencyLayer};

    fn peer(last: u8) -> Option<IpAddr> {
        Some([192, 0, 2, last].into())
    }

    #[test]
    fn only_bodies_that_can_be_large_leave_their_thread() {
        let coded = |coding: &'static str| {
            let mut headers = HeaderMap::new();
            headers.insert(header::CONTENT_ENCODING, HeaderValue::from_static(coding));
            headers
        };
        let body = vec![0; PLAIN_BYTES + 1];
        for (headers, length, costly) in [
            (HeaderMap::new(), PLAIN_BYTES, false),
            (HeaderMap::new(), PLAIN_BYTES + 1, true),
            (coded("br"), PLAIN_BYTES, false),
            (coded("gzip"), 600, false),
            (coded("gzip"), 700, true),
            (coded("deflate"), 700, true),
        ] {
            assert_eq!(needs_offload(&headers, &body[..length]), costly, "{headers:?} {length}");
        }
    }

    #[tokio::test]
    async fn the_thread_that_serves_goes_on_meanwhile() {
        let (sender, receiver) = std::sync::mpsc::channel();
        let serving = thread::current().id();
        let work = run(None, None, move || {
            // Ends only after the serving thread has done something else.
            receiver.recv().unwrap();
            thread::current().id()
        });
        let other = async move { sender.send(()).unwrap() };
        let (worked_on, ()) = tokio::join!(work, other);
        assert_ne!(worked_on.unwrap(), serving);
    }

    #[tokio::test]
    async fn a_request_waits_for_the_work_of_others_until_its_deadline() {
        let threads = thread::available_parallelism().map_or(1, |cores| cores.get());
        let busy = (0..threads).map(|_| {
            let (open, opened) = std::sync::mpsc::channel::<()>();
            let work = move || {
                let _ = opened.recv();
            };
            (open, tokio::spawn(run(None, None, work)))
        });
        let busy: Vec<_> = busy.collect();
        yield_now().await;
        let semel = Semel::new(MemoryStore::new());
        let layer = IdempotencyLayer::new(&semel, Scope::new("s").unwrap(), Callers::anonymous());
        let layer = layer.deadline(DeadlineRule::default());
        let mut app = Router::new().route("/", post(async || "")).layer(layer);
        let request = Request::post("/")
            .header("idempotency-key", "k")
            .header("x-request-timeout-ms", "50")
            .body(Body::from(vec![b'x'; PLAIN_BYTES + 1]))
            .unwrap();
        let answer = timeout(Duration::from_secs(30), app.call(request)).await;
        let answer = answer.expect("it waits on").unwrap();
        assert_eq!(answer.status(), 504);
        assert_eq!(answer.headers()["x-should-retry"], "false");
        for (open, work) in busy {
            drop(open);
            assert!(work.await.unwrap().is_ok());
        }
    }

    #[tokio::test]
    async fn a_flood_of_one_peer_delays_another_peer_by_one_body() {
        let queue = OffloadQueue::new(1);
        let permit = queue.acquire(peer(1)).await;
        let order = Arc::<Mutex<Vec<u8>>>::default();
        let spawn = |last: u8| {
            let (queue, order) = (Arc::clone(&queue), Arc::clone(&order));
            let work = move || order.lock().unwrap().push(last);
            tokio::spawn(async move { run_in(&queue, peer(last), None, work).await.is_ok() })
        };
        let mut all: Vec<_> = (0..20).map(|_| spawn(1)).collect();
        yield_now().await;
        all.extend([spawn(2), spawn(3)]);
        yield_now().await;
        // What a client has given up is not waited for.
        all.remove(0).abort();
        yield_now().await;
        drop(permit);
        for one in all {
            assert!(one.await.unwrap());
        }
        let order = order.lock().unwrap().clone();
        assert_eq!((order.len(), &order[..4]), (21, &[1, 2, 3, 1][..]));
        let state = queue.lock();
        assert!(state.free == 1 && state.waiting.is_empty() && state.turns.is_empty());
    }

    #[tokio::test]
    async fn a_body_that_waits_counts_as_arriving_and_is_evicted_like_one() {
        let queue = OffloadQueue::new(1);
        let permit = queue.acquire(peer(1)).await;
        let semel = Semel::builder(MemoryStore::new()).in_flight_max(2).build();
        let spawn = |last: u8| {
            let sender = Sender::new([192, 0, 2, last].into(), 1);
            let arrival = Some(semel.admit(sender).unwrap());
            let queue = Arc::clone(&queue);
            tokio::spawn(async move {
                let done = run_in(&queue, sender.peer(), arrival, || ()).await;
                done.map_err(|refusal| refusal.problem)
            })
        };
        let waiting = [spawn(1), spawn(1), spawn(2)];
        assert_eq!((semel.arriving(), semel.evicted()), (2, 1));
        let [first, second, other] = waiting;
        assert_eq!(first.await.unwrap(), Err(Problem::TooManyInFlight), "of the peer with two");
        drop(permit);
        assert_eq!((second.await.unwrap(), other.await.unwrap()), (Ok(()), Ok(())));
        assert_eq!(semel.arriving(), 0);
    }
}
