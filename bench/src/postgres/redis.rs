//! Redis in front of PostgreSQL: what it saves where keys are replayed on other gateways, and what
//! it costs where nothing is replayed.
//!
//! Three engines, like those of three gateways, each with its own store and cache, share one
//! database. In the first load every key is executed on one of them and, a little later, replayed
//! once on each of the three; in the second, every key is new.

use std::{
    collections::VecDeque,
    sync::Arc,
    time::{Duration, Instant},
};

use anyhow::{Context as _, bail, ensure};
use semel::{
    Outcome, Semel,
    core::{Caller, Key, Store},
};
use semel_redis::{Options, RedisCache};
use semel_testkit::{
    flaky_store::{FlakyStore, StoreCall},
    servers::Redis,
};
use tokio::task::JoinSet;

use crate::{
    machine,
    measure::{as_f64, median, ratios, turns},
    postgres::server::PostgresServer,
    random::Random,
    report::{Report, Target},
    settings::{Settings, progress, progress_end},
};

const PART: &str = "postgres.redis";

const GATEWAYS: usize = 3;
const CONCURRENCY: usize = 64;

/// After how many more of its keys a client sends one again: tens of milliseconds later.
const LAG: usize = 16;

const NAMES: [&str; 2] = ["with Redis", "without"];

/// Three engines on one database.
struct Fleet {
    gateways: Vec<Semel>,
    /// Their stores, which count what reaches PostgreSQL.
    counted: Vec<FlakyStore>,
}

/// What a load does to its keys.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum KeyUse {
    New,
    Replayed,
}

/// What one measurement gave.
#[derive(Clone, Copy, Debug)]
struct CacheMeasurement {
    /// Keys that were executed.
    keys: f64,
    replays: f64,
    /// Claims and lookups that reached PostgreSQL.
    asked: f64,
    /// Processor time of everything: engines, load, PostgreSQL and Redis.
    micros: f64,
}

impl Fleet {
    async fn start(
        server: &PostgresServer,
        schema: &str,
        redis: Option<&Redis>,
    ) -> anyhow::Result<Self> {
        let mut fleet = Self { gateways: Vec::new(), counted: Vec::new() };
        for _ in 0..GATEWAYS {
            let counted = FlakyStore::new(server.store(schema).await?);
            fleet.counted.push(counted.clone());
            let store: Arc<dyn Store> = match redis {
                Some(redis) => {
                    let options = Options::parse(&redis.url())?;
                    Arc::new(RedisCache::connect(Arc::new(counted), options).await?)
                }
                None => Arc::new(counted),
            };
            fleet.gateways.push(Semel::builder_on(store).build());
        }
        Ok(fleet)
    }

    fn asked(&self) -> u64 {
        let of_one =
            |store: &FlakyStore| store.count(StoreCall::Claim) + store.count(StoreCall::Get);
        self.counted.iter().map(of_one).sum()
    }

    /// Keeps the fleet busy until `length` is over.
    async fn drive(&self, keys: KeyUse, length: Duration) -> anyhow::Result<CacheMeasurement> {
        let end = Instant::now() + length;
        let (asked, micros) = (self.asked(), machine::family_micros()?);
        let mut clients = JoinSet::new();
        for first in 0..CONCURRENCY {
            let gateways = self.gateways.clone();
            clients.spawn(Client::new(gateways)?.run(first, keys, end));
        }
        let mut cell = CacheMeasurement { keys: 0.0, replays: 0.0, asked: 0.0, micros: 0.0 };
        while let Some(client) = clients.join_next().await {
            let (keys, replays) = client.context("a client stopped")??;
            cell.keys += as_f64(keys);
            cell.replays += as_f64(replays);
        }
        cell.asked = as_f64(usize::try_from(self.asked() - asked)?);
        cell.micros = machine::family_micros()? - micros;
        Ok(cell)
    }
}

/// One client after the other sends a request and waits for its answer.
struct Client {
    gateways: Vec<Semel>,
    random: Random,
    caller: Caller,
}

impl Client {
    fn new(gateways: Vec<Semel>) -> anyhow::Result<Self> {
        Ok(Self { gateways, random: Random::new(), caller: Caller::new("merchant-71")? })
    }

    /// How many keys were executed and how many requests replayed.
    async fn run(
        mut self,
        first: usize,
        keys: KeyUse,
        end: Instant,
    ) -> anyhow::Result<(usize, usize)> {
        let mut sent = VecDeque::new();
        let mut replays = 0;
        for at in 0.. {
            let key = self.random.key();
            let key = Key::new(str::from_utf8(&key)?)?;
            self.execute(first + at, key.clone()).await?;
            if keys == KeyUse::Replayed {
                sent.push_front(key);
                for turn in 1..=GATEWAYS {
                    if let Some(key) = sent.get(turn * LAG) {
                        self.replay(first + at + turn, key.clone()).await?;
                        replays += 1;
                    }
                }
                sent.truncate(GATEWAYS * LAG + 1);
            }
            if Instant::now() >= end {
                return Ok((at + 1, replays));
            }
        }
        bail!("the numbers have run out")
    }

    async fn execute(&mut self, gateway: usize, key: Key) -> anyhow::Result<()> {
        let mut noise = [0; 125];
        self.random.fill(&mut noise);
        // Four digits for each.
        let answer: String = noise.iter().map(|byte| format!("{byte:04x}")).collect();
        let operation = move |_| async move { Ok(answer) };
        let outcome = self.send(gateway, key).run(operation).await?;
        ensure!(matches!(outcome, Outcome::Ran(_)), "a new key was not executed: {outcome:?}");
        Ok(())
    }

    async fn replay(&self, gateway: usize, key: Key) -> anyhow::Result<()> {
        let operation = |_| async { Ok(String::new()) };
        let outcome = self.send(gateway, key).run(operation).await?;
        let Outcome::Replayed(answer) = outcome else {
            bail!("a repeat was not replayed: {outcome:?}");
        };
        ensure!(answer.len() == 500, "another answer was replayed");
        Ok(())
    }

    fn send(&self, gateway: usize, key: Key) -> semel::Once {
        self.gateways[gateway % GATEWAYS].once("payments", self.caller.clone(), key)
    }
}

/// What was seen of each fleet, round by round.
#[derive(Debug, Default)]
struct FleetSamples {
    replayed: Vec<CacheMeasurement>,
    new: Vec<CacheMeasurement>,
}

impl FleetSamples {
    /// Reads of PostgreSQL per replay: every execution has asked once.
    fn reads(&self) -> Vec<f64> {
        self.replayed.iter().map(|cell| (cell.asked - cell.keys) / cell.replays).collect()
    }

    fn new_micros(&self) -> Vec<f64> {
        self.new.iter().map(|cell| cell.micros / cell.keys).collect()
    }

    /// What a replay costs: what is left of the first load when its executions are taken off.
    fn replay_micros(&self) -> Vec<f64> {
        let new = median(&self.new_micros());
        let replay = |cell: &CacheMeasurement| (cell.micros - cell.keys * new) / cell.replays;
        self.replayed.iter().map(replay).collect()
    }
}

pub(crate) async fn run(settings: &Settings, report: &mut Report) -> anyhow::Result<()> {
    let server = PostgresServer::start();
    let redis = Redis::start();
    let fleets = [
        Fleet::start(&server, "with_redis", Some(&redis)).await?,
        Fleet::start(&server, "without", None).await?,
    ];
    let (warm_up, length) = settings.cell();
    let mut seen = [FleetSamples::default(), FleetSamples::default()];
    let rounds = settings.rounds();
    // One load after the other: what the one leaves behind, in the database and in what a cache has
    // learnt, is not the cost of the other.
    for (keys, named) in [(KeyUse::New, "new keys"), (KeyUse::Replayed, "replays")] {
        for round in 0..rounds {
            progress(&format!("{PART}: {named}, round {} of {rounds}", round + 1));
            for at in turns(round, fleets.len()) {
                fleets[at].drive(keys, warm_up * 3).await?;
                let cell = fleets[at].drive(keys, length).await?;
                match keys {
                    KeyUse::Replayed => seen[at].replayed.push(cell),
                    KeyUse::New => seen[at].new.push(cell),
                }
            }
        }
    }
    progress_end();
    add(report, &seen);
    Ok(())
}

fn add(report: &mut Report, seen: &[FleetSamples; 2]) {
    for (name, seen) in NAMES.iter().zip(seen) {
        report.line(PART, format!("{name}: reads per replay"), "reads", &seen.reads());
        report.line(PART, format!("{name}: CPU per replay"), "µs", &seen.replay_micros());
        report.line(PART, format!("{name}: CPU per new key"), "µs", &seen.new_micros());
    }
    let [with, without] = seen;
    let ratio = |of: fn(&FleetSamples) -> Vec<f64>| ratios(&of(with), &of(without));
    let third = Target::AtMost(1.0 / 3.0);
    report.judge(PART, "reads per replay, with / without", "x", &ratio(FleetSamples::reads), third);
    let falls = Target::Below(1.0);
    report.judge(
        PART,
        "CPU per replay, with / without",
        "x",
        &ratio(FleetSamples::replay_micros),
        falls,
    );
    let little = Target::AtMost(1.1);
    report.judge(
        PART,
        "CPU per new key, with / without",
        "x",
        &ratio(FleetSamples::new_micros),
        little,
    );
    report.note(
        "Each of three engines has a store and a cache of its own on one database. A key is \
         executed on one and replayed once on every one of the three, tens of milliseconds apart; \
         a read is a claim or a look that reaches PostgreSQL for a replay. CPU is that of \
         everything: engines, load, PostgreSQL and Redis.",
    );
}
