//! Load that keeps a ledger: clients who try until they know, and what must be true of all that
//! they were told.

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
    Answer, Client, Gateway, ORDER, PATIENCE, Reply, Seen, Upstream, charge, send, until,
};

/// How long a client tries before it leaves a key to an operator.
const SETTLED_WITHIN: Duration = Duration::from_secs(10);

/// What the clients were told, by key.
type Ledger = BTreeMap<String, Answer>;

/// An upstream that takes its time, and that refuses the first run of some keys so that they are
/// released: it says that nothing happened.
pub(crate) async fn upstream() -> Upstream {
    Upstream::start(|seen| {
        let reply = if is_kept(seen) { Reply::created(seen) } else { Reply::new(503, "later") };
        let delay = 5 + u64::try_from(seen.number).unwrap() % 20;
        reply.after(Duration::from_millis(delay))
    })
    .await
}

/// Whether this run counts as having happened.
fn is_kept(seen: &Seen) -> bool {
    seen.run > 1 || !seen.key().ends_with('7')
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
        for number in 0..12 {
            clients.spawn(work(number, addresses.clone(), Arc::clone(&shared)));
        }
        Self { clients, shared }
    }

    /// Waits until so many more keys have their answer.
    pub(crate) async fn goes_on(&self, more: usize) {
        let known = || self.shared.ledger.lock().unwrap().len();
        let goal = known() + more;
        until(|| known() >= goal).await;
    }

    /// Lets every client finish what it is at.
    pub(crate) async fn end(self) -> Ledger {
        self.shared.ended.store(true, Ordering::SeqCst);
        self.clients.join_all().await;
        self.shared.ledger.lock().unwrap().clone()
    }
}

/// One client: key after key, each until it has its answer. Every other key is sent twice at once,
/// to two gateways.
async fn work(number: usize, addresses: Vec<SocketAddr>, shared: Arc<Shared>) {
    for round in 0.. {
        let key = format!("{number}-{round}");
        let end = Instant::now() + SETTLED_WITHIN;
        let mut tries = 0;
        while !shared.ledger.lock().unwrap().contains_key(&key) && Instant::now() < end {
            let at = |turn: usize| addresses[(number + round + tries + turn) % addresses.len()];
            if round % 2 == 0 {
                shared.hear(&key, &send(at(0), charge(&key, ORDER)).await);
            } else {
                let both = (send(at(0), charge(&key, ORDER)), send(at(1), charge(&key, ORDER)));
                let (one, two) = tokio::join!(both.0, both.1);
                shared.hear(&key, &one);
                shared.hear(&key, &two);
            }
            sleep(Duration::from_millis(10 * u64::try_from(tries.min(20)).unwrap())).await;
            tries += 1;
        }
        if shared.ended.load(Ordering::SeqCst) {
            return;
        }
    }
}

impl Shared {
    /// Writes an answer down. What is no answer of the upstream has to be one that means "not
    /// known" or "not now".
    fn hear(&self, key: &str, answer: &Answer) {
        match answer.status.as_u16() {
            201 => {
                let mut ledger = self.ledger.lock().unwrap();
                let known = ledger.entry(key.to_owned()).or_insert_with(|| answer.clone());
                assert_eq!((known.status, &known.body), (answer.status, &answer.body), "{key}");
            }
            409 | 503 | 504 => {}
            _ => panic!("{key}: {answer:?}"),
        }
    }
}

/// Looks that nothing ran twice, and that everything which was answered is answered the same by
/// this gateway. It has to be one that knows only what the store knows.
pub(crate) async fn holds(ledger: &Ledger, upstream: &Upstream, fresh: &Gateway) {
    let mut kept: BTreeMap<String, Vec<Seen>> = BTreeMap::new();
    let mut client = fresh.connect().await;
    let keys: BTreeSet<String> = upstream.seen().iter().map(|seen| seen.key().to_owned()).collect();
    for key in keys {
        let answer = settled(&mut client, &key).await;
        if let Some(known) = ledger.get(&key) {
            answer.replays(known);
        }
    }
    for seen in upstream.seen() {
        if is_kept(&seen) {
            kept.entry(seen.key().to_owned()).or_default().push(seen);
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
async fn settled(client: &mut Client, key: &str) -> Answer {
    let end = Instant::now() + PATIENCE;
    loop {
        let answer = client.send(charge(key, ORDER)).await;
        if answer.status.as_u16() != 503 || Instant::now() > end {
            return answer;
        }
        sleep(Duration::from_millis(20)).await;
    }
}
