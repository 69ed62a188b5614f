//! The wire to the database fails again and again, for each gateway on its own.

use std::time::Duration;

use semel_testkit::{seed, servers, torture, wire::Proxy};
use tokio::time::{Instant, sleep};

use crate::{
    harness,
    load::{self, Load},
};

#[tokio::test]
async fn torture_of_the_wire_to_the_database_runs_nothing_twice() {
    let time = Duration::from_secs(if torture() { 300 } else { 10 });
    let seed = seed();
    eprintln!("to repeat it: SEMEL_SEED={seed}");
    let postgres = servers::postgres();
    let database = postgres.fresh_database();
    let wires: Vec<Proxy> = (0..3).map(|_| Proxy::start(postgres.port())).collect();
    let urls = wires.iter().map(Proxy::port);
    let urls = urls.map(|port| format!("postgres://postgres@127.0.0.1:{port}/{database}"));
    let upstream = load::upstream().await;
    let setup = harness::hurried(&upstream);
    let mut gateways = harness::start(&setup, &urls.collect::<Vec<_>>()).await;
    let load = Load::start(&gateways);
    load.goes_on(50).await;

    harm(&wires, seed, time).await;

    load.goes_on(50).await;
    let ledger = load.end().await;
    gateways.extend(harness::start(&setup, &[postgres.url(&database)]).await);
    load::holds(&ledger, &upstream, gateways.last().unwrap()).await;
    let harmed: u64 = wires.iter().map(Proxy::harmed).sum();
    eprintln!("{harmed} pieces came to harm");
    assert!(harmed > 20, "the wire was hardly harmed: {harmed}");
    harness::stop(gateways).await;
}

/// Harms pieces at random, and now and then a whole wire. One silence lasts longer than a lease.
async fn harm(wires: &[Proxy], seed: u64, time: Duration) {
    let end = Instant::now() + time;
    for (wire, number) in wires.iter().zip(0..) {
        wire.chaos(seed.wrapping_add(number));
    }
    for round in 0.. {
        if Instant::now() > end {
            break;
        }
        let wire = &wires[round % wires.len()];
        match (round + usize::try_from(seed % 4).unwrap()) % 4 {
            0 => wire.cut(),
            1 => wire.half_close(),
            2 => {
                wire.silence(true);
                sleep(Duration::from_millis(2500)).await;
                wire.silence(false);
            }
            _ => {
                wire.delay(Duration::from_millis(50));
                sleep(Duration::from_millis(500)).await;
                wire.delay(Duration::ZERO);
            }
        }
        sleep(Duration::from_millis(300)).await;
    }
    wires.iter().for_each(Proxy::calm);
}
