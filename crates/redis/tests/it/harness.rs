//! A fleet of caches on one store and one Redis.

use std::{
    sync::{
        Arc,
        atomic::{AtomicU64, Ordering},
    },
    time::Duration,
};

use semel::{
    MemoryStore,
    core::{
        Answer, Caller, Claim, Claimed, Fence, Fenced, Fingerprint, Finish, Grant, Key, Occupied,
        OwnerToken, RecordId, Scope, Store as _, StoredResponse,
    },
};
use semel_redis::{Options, RedisCache};
use semel_testkit::{
    flaky_store::{FlakyStore, StoreCall},
    servers::Redis,
};
use tokio::time::{Instant, sleep};

/// How long a condition may take on a busy machine.
const TEST_TIMEOUT: Duration = Duration::from_secs(60);

pub(crate) struct TestFleet {
    pub(crate) redis: Redis,
    /// The store behind, as an operator's command sees it.
    pub(crate) store: MemoryStore,
    /// The same as the fronts see it.
    pub(crate) behind: FlakyStore,
    pub(crate) fronts: Vec<RedisCache>,
}

impl TestFleet {
    /// This many fronts, all connected.
    pub(crate) async fn new(fronts: usize) -> Self {
        Self::on(Redis::start(), fronts).await
    }

    pub(crate) async fn on(redis: Redis, fronts: usize) -> Self {
        let options = Options::parse(&redis.url()).unwrap();
        Self::with(redis, fronts, &options).await
    }

    pub(crate) async fn with(redis: Redis, fronts: usize, options: &Options) -> Self {
        let store = MemoryStore::new();
        let behind = FlakyStore::new(store.clone());
        let mut fleet = Self { redis, store, behind, fronts: Vec::new() };
        for _ in 0..fronts {
            let front = RedisCache::connect(Arc::new(fleet.behind.clone()), options.clone()).await;
            fleet.fronts.push(front.unwrap());
        }
        fleet.connected(true).await;
        fleet
    }

    /// Waits until all fronts use Redis, or none does.
    pub(crate) async fn connected(&self, connected: bool) {
        let all = || self.fronts.iter().all(|front| front.counts().connected == connected);
        until("the fronts are (not) connected", async || all()).await;
    }

    /// How many claims reached the store.
    pub(crate) fn asked(&self) -> u64 {
        self.behind.count(StoreCall::Claim)
    }

    /// Runs a key on a front.
    pub(crate) async fn run(&self, front: usize, key: &str, body: &str) -> Grant {
        let claim = claim(key);
        let grant = granted(self.fronts[front].claim(&claim).await.unwrap());
        self.complete(front, &claim, grant.fence, body).await;
        grant
    }

    pub(crate) async fn complete(&self, front: usize, claim: &Claim, fence: Fence, body: &str) {
        self.finish(front, claim, fence, &Finish::complete(answer(body))).await;
    }

    /// Ends the execution that was granted to this claim.
    pub(crate) async fn finish(&self, front: usize, claim: &Claim, fence: Fence, end: &Finish) {
        let result = self.fronts[front].finish(&claim.id, claim.claimant(fence), end).await;
        assert_eq!(result.unwrap(), Fenced::Applied);
    }

    /// The result of a repeat of a key.
    pub(crate) async fn repeat(&self, front: usize, key: &str) -> Occupied {
        occupied(self.fronts[front].claim(&claim(key)).await.unwrap())
    }

    /// The same after reading the epoch, so that a slow machine does not make the epoch expire.
    pub(crate) async fn repeat_after_epoch(&self, front: usize, key: &str) -> Occupied {
        self.fronts[front].epoch().await.unwrap();
        self.repeat(front, key).await
    }

    /// Repeats a key on a front until Redis answers it, which may take a reconnection.
    pub(crate) async fn until_hit(&self, front: usize, key: &str) -> Occupied {
        let begun = Instant::now();
        loop {
            let asked = self.asked();
            let met = self.repeat_after_epoch(front, key).await;
            if self.asked() == asked {
                return met;
            }
            assert!(begun.elapsed() < TEST_TIMEOUT, "Redis never answers {key}");
            sleep(Duration::from_millis(5)).await;
        }
    }

    /// A separate connection for the test.
    pub(crate) async fn connection(&self) -> redis::aio::MultiplexedConnection {
        let client = redis::Client::open(self.redis.url()).unwrap();
        client.get_multiplexed_async_connection().await.unwrap()
    }

    /// The names of everything in Redis.
    pub(crate) async fn names(&self) -> Vec<String> {
        redis::cmd("KEYS").arg("*").query_async(&mut self.connection().await).await.unwrap()
    }

    /// Waits until there are this many entries.
    pub(crate) async fn entries(&self, number: usize) {
        until("the entries are written", async || self.names().await.len() == number).await;
    }
}

pub(crate) async fn until(what: &str, mut condition: impl AsyncFnMut() -> bool) {
    let begun = Instant::now();
    while !condition().await {
        assert!(begun.elapsed() < TEST_TIMEOUT, "timed out: {what}");
        sleep(Duration::from_millis(5)).await;
    }
}

/// A claim of this key with a new owner token.
pub(crate) fn claim(key: &str) -> Claim {
    static DRAWN: AtomicU64 = AtomicU64::new(1);
    let owner = u128::from(DRAWN.fetch_add(1, Ordering::Relaxed)).to_be_bytes();
    let (scope, caller) = (Scope::new("payments").unwrap(), Caller::new("shop").unwrap());
    let id = RecordId::new(scope, caller, Key::new(key).unwrap());
    let mut claim = Claim::new(id, fingerprint(1), OwnerToken::from_bytes(owner));
    claim.lease = Duration::from_secs(30);
    claim.retention = Duration::from_secs(3600);
    claim
}

pub(crate) fn fingerprint(number: u8) -> Fingerprint {
    let mut bytes = [number; 33];
    bytes[0] = 1;
    Fingerprint::from_bytes(&bytes).unwrap()
}

pub(crate) fn answer(body: &str) -> Answer {
    let body = body.to_owned().into();
    Answer::response(&StoredResponse { status: 201, body, ..StoredResponse::default() })
}

#[track_caller]
pub(crate) fn granted(claimed: Claimed) -> Grant {
    match claimed {
        Claimed::Granted(grant) => grant,
        Claimed::Occupied(occupied) => panic!("not granted: {occupied:?}"),
    }
}

#[track_caller]
pub(crate) fn occupied(claimed: Claimed) -> Occupied {
    match claimed {
        Claimed::Occupied(occupied) => occupied,
        Claimed::Granted(grant) => panic!("granted: {grant:?}"),
    }
}

/// Whether it is a replay of this body.
#[track_caller]
pub(crate) fn assert_replays(met: &Occupied, body: &str) {
    let Occupied::Completed { answer: replayed, .. } = met else {
        panic!("{met:?} is no replay of {body}")
    };
    assert_eq!(*replayed, answer(body));
}
