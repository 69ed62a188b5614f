//! What two velocity limits cost: the same store with and without them, on SQLite and PostgreSQL.

use std::{sync::Arc, time::Duration};

use anyhow::{bail, ensure};
use async_trait::async_trait;
use semel_core::{
    Answer, Claim, ClaimLimits, Claimed, Fence, Fenced, Finish, Limit, Store,
    limit::{Counted, LimitKey},
};
use semel_sqlite::SqliteStore;

use crate::{
    load::{StoreLoad, Subject, drive},
    measure::{ratios, turns},
    postgres::server::PostgresServer,
    report::{Report, Target},
    settings::{Settings, progress, progress_end},
    sqlite::files,
};

const CONCURRENCY: usize = 64;

/// How many values each limit sees: as many cards or addresses.
const VALUES: u64 = 100_000;

/// Windows after which a value may run again; more than a value needs in a measurement.
const WINDOW: Duration = Duration::from_secs(60);
const MAX: u16 = 1000;

/// A store whose claims have two limits.
struct Limited<S>(S);

/// The limits of a claim, by values that follow from its key.
fn limits(claim: &Claim) -> anyhow::Result<ClaimLimits> {
    let bytes = claim.fingerprint.as_bytes();
    let limit = |number: u8, from: usize| {
        let bytes = bytes.iter().skip(from).take(8);
        let value = bytes.fold(0_u64, |value, byte| value << 8 | u64::from(*byte)) % VALUES;
        let mut key = [number; 16];
        key[8..].copy_from_slice(&value.to_be_bytes());
        Limit::new(LimitKey::from_bytes(key), MAX, WINDOW)
    };
    let mut declined = limit(2, 9);
    declined.counted = Counted::Declined;
    Ok(ClaimLimits::new([limit(1, 1), declined])?)
}

#[async_trait]
impl<S: Store> Subject for Limited<S> {
    async fn claim(&self, claim: &Claim) -> anyhow::Result<Fence> {
        let mut claim = claim.clone();
        claim.limits = limits(&claim)?;
        match self.0.claim(&claim).await? {
            Claimed::Granted(grant) => Ok(grant.fence),
            Claimed::Occupied(occupied) => bail!("a new key is not granted: {occupied:?}"),
        }
    }

    async fn complete(&self, claim: &Claim, fence: Fence, answer: &Answer) -> anyhow::Result<()> {
        let finish = Finish::complete(answer.clone()).with_limits(&limits(claim)?, None);
        let fenced = self.0.finish(&claim.id, claim.claimant(fence), &finish).await?;
        ensure!(fenced == Fenced::Applied, "an answer was not taken");
        Ok(())
    }
}

pub(crate) async fn run(settings: &Settings, report: &mut Report) -> anyhow::Result<()> {
    if settings.wants("velocity.sqlite") {
        let folder = files::scratch_folder(settings)?;
        let open = |name: &str| SqliteStore::open(folder.path().join(name));
        let subjects: [Arc<dyn Subject>; 2] =
            [Arc::new(open("plain.db")?), Arc::new(Limited(open("limited.db")?))];
        compare("velocity.sqlite", &subjects, Target::AtLeast(0.85), settings, report).await?;
    }
    if settings.wants("velocity.postgres") {
        let server = PostgresServer::start();
        let subjects: [Arc<dyn Subject>; 2] = [
            Arc::new(server.store("plain").await?),
            Arc::new(Limited(server.store("limited").await?)),
        ];
        compare("velocity.postgres", &subjects, Target::AtLeast(0.75), settings, report).await?;
    }
    Ok(())
}

async fn compare(
    part: &'static str,
    subjects: &[Arc<dyn Subject>; 2],
    target: Target,
    settings: &Settings,
    report: &mut Report,
) -> anyhow::Result<()> {
    let (warm_up, length) = settings.cell();
    let load = StoreLoad { concurrency: CONCURRENCY, warm_up, length };
    let (rounds, mut units) = (settings.rounds(), [Vec::new(), Vec::new()]);
    for round in 0..rounds {
        progress(&format!("{part}: round {} of {rounds}", round + 1));
        for at in turns(round, subjects.len()) {
            units[at].push(drive(&subjects[at], load).await?.units_per_second);
        }
    }
    progress_end();
    let [plain, limited] = &units;
    report.line(part, "without limits".to_owned(), "units/s", plain);
    report.line(part, "two limits".to_owned(), "units/s", limited);
    let ratio = ratios(limited, plain);
    report.judge(part, "two limits / without".to_owned(), "x", &ratio, target);
    report.note(format!(
        "A unit is a durable claim and a durable completion. Each claim has two limits, one of \
         executions and one of declines, each by one of {VALUES} values. {CONCURRENCY} units are \
         under way. This is the store alone, without HTTP."
    ));
    Ok(())
}
