//! Kills a service repeatedly while clients pay and retry.

use std::{
    collections::BTreeMap,
    env,
    net::SocketAddr,
    process::Command,
    sync::{
        Arc,
        atomic::{AtomicBool, Ordering},
    },
    time::Duration,
};

use semel_testkit::http::TestResponse;
use tokio::{
    join,
    sync::watch,
    task::{JoinSet, spawn_blocking},
    time::{Instant, sleep},
};

use crate::{client::pay, support::Service};

const CLIENTS: usize = 16;

/// Timeout of a payment.
const PAYMENT_TIMEOUT: Duration = Duration::from_secs(120);

fn kills() -> u32 {
    if env::var_os("SEMEL_TORTURE").is_some() { 200 } else { 12 }
}

/// The number of kills and the answers that clients received.
#[derive(Debug)]
pub(crate) struct KillReport {
    pub(crate) kills: u32,
    /// The answer to each key that got 201.
    pub(crate) paid: BTreeMap<String, TestResponse>,
}

/// Starts a service, lets clients pay, and kills it repeatedly.
pub(crate) async fn kill_repeatedly(command: impl Fn() -> Command) -> KillReport {
    let start = |mut command: Command| spawn_blocking(move || Service::start(&mut command));
    let mut service = start(command()).await.unwrap();
    let (address_tx, address) = watch::channel(service.address);
    let stop = Arc::new(AtomicBool::new(false));
    let mut clients = JoinSet::new();
    for client in 0..CLIENTS {
        clients.spawn(pay_on(client, address.clone(), Arc::clone(&stop)));
    }
    let kills = kills();
    for kill in 0..kills {
        // Between the start of the process and well into its work.
        sleep(Duration::from_millis(u64::from(20 + kill * 37 % 180))).await;
        // A drop kills the service with SIGKILL.
        drop(service);
        service = start(command()).await.unwrap();
        address_tx.send_replace(service.address);
    }
    stop.store(true, Ordering::Relaxed);
    let paid = clients.join_all().await.into_iter().flatten().collect();
    KillReport { kills, paid }
}

/// Pays one key after the other, each until it gets 201; from two places at once,
/// as a client does whose first request seems to hang.
async fn pay_on(
    client: usize,
    address: watch::Receiver<SocketAddr>,
    stop: Arc<AtomicBool>,
) -> Vec<(String, TestResponse)> {
    let mut paid = Vec::new();
    while !stop.load(Ordering::Relaxed) {
        let key = format!("client-{client}-{}", paid.len());
        let (answer, other) = join!(until_paid(&key, &address), until_paid(&key, &address));
        assert_eq!(answer.body, other.body, "{key}");
        paid.push((key, answer));
    }
    paid
}

async fn until_paid(key: &str, address: &watch::Receiver<SocketAddr>) -> TestResponse {
    let begun = Instant::now();
    loop {
        let to = *address.borrow();
        match pay(to, key, 4900).await {
            Some(answer) if answer.status == 201 => return answer,
            Some(answer) => {
                let again = [409, 500, 503, 504].contains(&answer.status.as_u16());
                assert!(again, "{key} gets {answer:?}");
            }
            None => {}
        }
        assert!(begun.elapsed() < PAYMENT_TIMEOUT, "{key} is never paid");
        sleep(Duration::from_millis(10)).await;
    }
}

impl KillReport {
    /// Every answer that was given is given again.
    pub(crate) async fn assert_replayed(&self, command: impl Fn() -> Command) {
        let mut command = command();
        let service = spawn_blocking(move || Service::start(&mut command)).await.unwrap();
        for (key, first) in &self.paid {
            let again = pay(service.address, key, 4900).await.unwrap();
            again.assert_replay_of(first);
        }
    }
}
