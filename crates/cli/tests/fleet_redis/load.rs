//! Clients who repeat everything on every gateway, and an operator who makes them wrong.

use std::{
    net::SocketAddr,
    sync::{
        Arc,
        atomic::{AtomicBool, AtomicUsize, Ordering},
    },
    time::Duration,
};

use semel::core::{Caller, Key, RecordId, Resolution, Resolved, StateName, Store};
use tokio::{
    task::JoinSet,
    time::{Instant, sleep},
};

use crate::common::{Gateway, ORDER, TEST_TIMEOUT, TestResponse, charge, send, wait_until};

/// How long an operator's act may go unnoticed.
const FOLLOWED: Duration = Duration::from_secs(1);

/// How many clients there are.
const CLIENTS: usize = 9;

/// What was answered, and how often its key had to run for that.
pub(crate) struct Known {
    pub(crate) key: String,
    pub(crate) answer: TestResponse,
    pub(crate) runs: usize,
}

/// Clients at work.
pub(crate) struct Load {
    clients: JoinSet<Vec<Known>>,
    shared: Arc<Shared>,
}

struct Shared {
    gateways: Vec<SocketAddr>,
    answered: AtomicUsize,
    ended: AtomicBool,
}

impl Load {
    /// Starts clients, and an operator who works on the store itself.
    pub(crate) async fn start(gateways: &[Gateway], store: Arc<dyn Store>) -> Self {
        let shared = Arc::new(Shared {
            gateways: gateways.iter().map(Gateway::address).collect(),
            answered: AtomicUsize::new(0),
            ended: AtomicBool::new(false),
        });
        shared.ask(0, "first").await;
        let first = store.list(&Default::default()).await.unwrap().items.remove(0);
        let mut clients = JoinSet::new();
        for number in 0..CLIENTS {
            clients.spawn(work(number, Arc::clone(&shared)));
        }
        clients.spawn(operate(store, first.id, Arc::clone(&shared)));
        Self { clients, shared }
    }

    /// Waits until so many more requests have their answer.
    pub(crate) async fn goes_on(&self, more: usize) {
        let answered = || self.shared.answered.load(Ordering::SeqCst);
        let goal = answered() + more;
        wait_until(|| answered() >= goal).await;
    }

    /// Lets every client finish what it is at.
    pub(crate) async fn end(self) -> Vec<Known> {
        self.shared.ended.store(true, Ordering::SeqCst);
        self.clients.join_all().await.into_iter().flatten().collect()
    }
}

impl Shared {
    /// The answer of one gateway, however often it says "not now": it must not say so for long.
    async fn ask(&self, gateway: usize, key: &str) -> TestResponse {
        let address = self.gateways[gateway % self.gateways.len()];
        let end = Instant::now() + TEST_TIMEOUT;
        loop {
            let answer = send(address, charge(key, ORDER)).await;
            match answer.status.as_u16() {
                201 => {
                    self.answered.fetch_add(1, Ordering::SeqCst);
                    return answer;
                }
                409 | 423 | 503 | 504 if Instant::now() < end => {}
                _ => panic!("{key}: {answer:?}"),
            }
            sleep(Duration::from_millis(20)).await;
        }
    }

    /// Every gateway gives this answer again.
    async fn repeats(&self, key: &str, first: &TestResponse) {
        for gateway in 0..self.gateways.len() {
            self.ask(gateway, key).await.assert_replay_of(first);
        }
    }

    fn is_over(&self) -> bool {
        self.ended.load(Ordering::SeqCst)
    }
}

/// A client: key after key, each repeated on every gateway, and an older one after it. Every third
/// is sent to two gateways at once.
async fn work(number: usize, shared: Arc<Shared>) -> Vec<Known> {
    let mut known: Vec<Known> = Vec::new();
    for round in 0.. {
        let key = format!("{number}-{round}");
        let at = number + round;
        let answer = if round % 3 == 0 {
            let both = (shared.ask(at, &key), shared.ask(at + 1, &key));
            let (one, two) = tokio::join!(both.0, both.1);
            assert_eq!((one.status, &one.body), (two.status, &two.body), "{key}");
            // Whichever ran it is the first one.
            if one.is_replayed() { two } else { one }
        } else {
            shared.ask(at, &key).await
        };
        shared.repeats(&key, &answer).await;
        known.push(Known { key, answer, runs: 1 });
        let older = &known[(round * 7) % known.len()];
        shared.ask(at + 2, &older.key).await.assert_replay_of(&older.answer);
        if shared.is_over() {
            break;
        }
    }
    known
}

/// An operator: key after key is answered, forgotten, and, once that must have been followed, run
/// again. From then on only the new answer is true.
async fn operate(store: Arc<dyn Store>, like: RecordId, shared: Arc<Shared>) -> Vec<Known> {
    let mut known = Vec::new();
    for round in 0.. {
        let key = format!("act-{round}");
        let id = RecordId::new(like.scope.clone(), Caller::anonymous(), Key::new(&key).unwrap());
        let wrong = shared.ask(round, &key).await;
        shared.repeats(&key, &wrong).await;
        let seen = store.get(&id).await.unwrap().expect("a record");
        let forget = Resolution::Deleted(StateName::Completed);
        let result = store.resolve(&id, seen.fence, &forget).await.unwrap();
        assert_eq!(result, Resolved::Applied);
        sleep(FOLLOWED).await;
        let answer = shared.ask(round + 1, &key).await;
        assert_ne!(answer.body, wrong.body, "{key} was forgotten, and is still replayed");
        shared.repeats(&key, &answer).await;
        known.push(Known { key, answer, runs: 2 });
        if shared.is_over() {
            break;
        }
    }
    for Known { key, answer, .. } in &known {
        shared.repeats(key, answer).await;
    }
    known
}
