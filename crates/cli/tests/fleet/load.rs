//! Load that keeps a ledger: clients who try until they know, and what must be true of all that
//! they were given.

use std::{
    collections::{BTreeMap, BTreeSet},
    net::SocketAddr,
    sync::{
        Arc, Mutex,
        atomic::{AtomicBool, Ordering},
    },
    time::Duration,
};

use tokio::{
    task::JoinSet,
    time::{Instant, sleep},
};

use crate::common::{
    Client, Gateway, ORDER, ReceivedRequest, Reply, TEST_TIMEOUT, TestResponse, Upstream, charge,
    send, wait_until,
};

/// How long a client tries before it leaves a key to an operator.
const SETTLED_WITHIN: Duration = Duration::from_secs(10);

/// The answers that clients got, by key.
type Ledger = BTreeMap<String, TestResponse>;

/// How many clients there are. Each has a partner that works on the same keys at the same time.
const CLIENTS: usize = 24;

/// An upstream that refuses the first run of every other key, so that it is released: it says that
/// nothing happened, which its 503 alone does not. The second takes so long that a release which
/// comes again meets it.
pub(crate) async fn upstream() -> Upstream {
    Upstream::start(|request| {
        let refused = || Reply::new(503, "later").header("idempotency-outcome", "retry");
        let reply = if is_kept(request) { Reply::created(request) } else { refused() };
        reply.after(Duration::from_millis(if request.run > 1 { 400 } else { 15 }))
    })
    .await
}

/// Whether this run counts as having happened.
fn is_kept(request: &ReceivedRequest) -> bool {
    request.run > 1 || !request.key().ends_with(['1', '3', '5', '7', '9'])
}

/// Clients at work.
pub(crate) struct Load {
    clients: JoinSet<()>,
    shared: Arc<Shared>,
}

#[derive(Default)]
struct Shared {
    ledger: Mutex<Ledger>,
    ended: AtomicBool,
}

impl Load {
    /// Starts clients that send to all of these gateways.
    pub(crate) fn start(gateways: &[Gateway]) -> Self {
        let addresses: Vec<SocketAddr> = gateways.iter().map(Gateway::address).collect();
        let shared: Arc<Shared> = Arc::default();
        let mut clients = JoinSet::new();
        for number in 0..CLIENTS {
            clients.spawn(work(number, addresses.clone(), Arc::clone(&shared)));
        }
        Self { clients, shared }
    }

    /// Waits until so many more keys have their answer.
    pub(crate) async fn goes_on(&self, more: usize) {
        let known = || self.shared.ledger.lock().unwrap().len();
        let goal = known() + more;
        wait_until(|| known() >= goal).await;
    }

    /// Lets every client finish what it is at.
    pub(crate) async fn end(self) -> Ledger {
        self.shared.ended.store(true, Ordering::SeqCst);
        self.clients.join_all().await;
        self.shared.ledger.lock().unwrap().clone()
    }
}

/// One client: key after key, each until it has its answer, trying one gateway after the other.
async fn work(number: usize, addresses: Vec<SocketAddr>, shared: Arc<Shared>) {
    for round in 0.. {
        let key = format!("{}-{round}", number / 2);
        let end = Instant::now() + SETTLED_WITHIN;
        for turn in 0.. {
            let address = addresses[(number + round + turn) % addresses.len()];
            let answered = shared.hear(&key, &send(address, charge(&key, ORDER)).await);
            if answered || Instant::now() > end {
                break;
            }
            sleep(Duration::from_millis(10 * u64::try_from(turn.min(20)).unwrap())).await;
        }
        if shared.ended.load(Ordering::SeqCst) {
            return;
        }
    }
}

impl Shared {
    /// Writes an answer down. What is not the upstream's has to mean "not known" or "not now".
    fn hear(&self, key: &str, answer: &TestResponse) -> bool {
        match answer.status.as_u16() {
            201 => {
                let new = || answer.clone();
                let known =
                    self.ledger.lock().unwrap().entry(key.to_owned()).or_insert_with(new).clone();
                assert_eq!((known.status, &known.body), (answer.status, &answer.body), "{key}");
                true
            }
            409 | 423 | 503 | 504 => false,
            _ => panic!("{key}: {answer:?}"),
        }
    }
}

/// Looks that nothing ran twice, and that everything which was answered is answered the same by
/// this gateway. It has to be one that knows only what the store knows.
pub(crate) async fn holds(ledger: &Ledger, upstream: &Upstream, fresh: &Gateway) {
    let mut kept: BTreeMap<String, Vec<ReceivedRequest>> = BTreeMap::new();
    let mut client = fresh.connect().await;
    let keys: BTreeSet<String> =
        upstream.requests().iter().map(|request| request.key().to_owned()).collect();
    for key in keys {
        let answer = settled(&mut client, &key).await;
        if let Some(known) = ledger.get(&key) {
            answer.assert_replay_of(known);
        }
    }
    for request in upstream.requests() {
        if is_kept(&request) {
            kept.entry(request.key().to_owned()).or_default().push(request);
        }
    }
    for (key, runs) in &kept {
        assert_eq!(runs.len(), 1, "{key} ran more than once: {runs:#?}");
    }
    for (key, answer) in ledger {
        let number = kept[key][0].number;
        assert_eq!(answer.text(), format!("{{\"key\": \"{key}\", \"charge\": {number}}}\n"));
    }
    let (answered, ran) = (ledger.len(), kept.len());
    eprintln!("{answered} keys answered, {ran} ran, each once");
}

/// An answer that is more than "not now".
async fn settled(client: &mut Client, key: &str) -> TestResponse {
    let end = Instant::now() + TEST_TIMEOUT;
    loop {
        let answer = client.send(charge(key, ORDER)).await;
        if answer.status.as_u16() != 503 || Instant::now() > end {
            return answer;
        }
        sleep(Duration::from_millis(20)).await;
    }
}
