//! Made-up requests, and the loop that sends them.
//!
//! A *unit* is one durable claim and one durable completion: a key like a UUID (36 characters), a
//! scope of 8 and a caller of 11 bytes, a body of 500 random bytes. A claim also says what a
//! gateway says of a request: what it is about (28 bytes) and its node (9 bytes). Nothing is ever
//! sent twice.

use std::{
    sync::{
        Arc,
        atomic::{AtomicUsize, Ordering},
    },
    time::{Duration, Instant},
};

use anyhow::{Context as _, bail, ensure};
use async_trait::async_trait;
use semel_core::{
    About, Answer, Caller, Claim, Claimed, Fence, Fenced, Fingerprint, Finish, Key, NodeName,
    OwnerToken, RecordId, Scope, Store, StoredResponse,
};
use tokio::task::JoinSet;

use crate::{
    measure::{Latencies, as_f64},
    random::Random,
};

const BODY_BYTES: usize = 500;
pub(crate) const ABOUT: &str = "POST api.example.com/charges";
pub(crate) const NODE: &str = "gateway-1";

/// The two retentions that claims have in turn; both are over after [`RETENTION_MAX`].
const RETENTIONS: [Duration; 2] = [Duration::from_hours(24), RETENTION_MAX];
pub(crate) const RETENTION_MAX: Duration = Duration::from_hours(48);

/// What can take a unit: our store, or what it is compared with.
#[async_trait]
pub(crate) trait Subject: Send + Sync {
    /// Returns once the claim is durable.
    async fn claim(&self, claim: &Claim) -> anyhow::Result<Fence>;
    /// Returns once the answer is durable.
    async fn complete(&self, claim: &Claim, fence: Fence, answer: &Answer) -> anyhow::Result<()>;
}

#[async_trait]
impl<S: Store> Subject for S {
    async fn claim(&self, claim: &Claim) -> anyhow::Result<Fence> {
        match Store::claim(self, claim).await? {
            Claimed::Granted(grant) => Ok(grant.fence),
            Claimed::Occupied(_) => bail!("a new key is occupied"),
        }
    }

    async fn complete(&self, claim: &Claim, fence: Fence, answer: &Answer) -> anyhow::Result<()> {
        let finish = Finish::complete(answer.clone());
        let fenced = self.finish(&claim.id, claim.claimant(fence), &finish).await?;
        ensure!(fenced == Fenced::Applied, "an answer was not taken");
        Ok(())
    }
}

/// Makes requests, each different from all others.
#[derive(Debug)]
pub(crate) struct Maker {
    random: Random,
    scope: Scope,
    caller: Caller,
}

impl Maker {
    pub(crate) fn new() -> anyhow::Result<Self> {
        Ok(Self {
            random: Random::new(),
            scope: Scope::new("payments")?,
            caller: Caller::new("merchant-71")?,
        })
    }

    pub(crate) fn claim(&mut self) -> anyhow::Result<Claim> {
        let key = self.random.key();
        let key = Key::new(str::from_utf8(&key)?)?;
        let mut fingerprint = [1; 33];
        self.random.fill(&mut fingerprint[1..]);
        let mut owner = [0; 16];
        self.random.fill(&mut owner);
        let [even, odd] = RETENTIONS;
        let id = RecordId::new(self.scope.clone(), self.caller.clone(), key);
        let fingerprint = Fingerprint::try_from(&fingerprint[..])?;
        let mut claim = Claim::new(id, fingerprint, OwnerToken::from_bytes(owner));
        claim.lease = Duration::from_secs(30);
        claim.retention = if self.random.number().is_multiple_of(2) { even } else { odd };
        claim.about = About::new(ABOUT);
        claim.node = NodeName::new(NODE);
        Ok(claim)
    }

    pub(crate) fn answer(&mut self) -> Answer {
        let mut body = vec![0; BODY_BYTES];
        self.random.fill(&mut body);
        let response = StoredResponse { status: 201, body: body.into(), ..Default::default() };
        Answer::response(&response)
    }
}

/// How hard a subject is driven, and for how long.
#[derive(Clone, Copy, Debug)]
pub(crate) struct StoreLoad {
    /// How many units are under way at any time.
    pub(crate) concurrency: usize,
    pub(crate) warm_up: Duration,
    pub(crate) length: Duration,
}

/// What one measurement gave.
#[derive(Clone, Debug, Default)]
pub(crate) struct StoreMeasurement {
    pub(crate) units_per_second: f64,
    /// How many units were done in all, those of the warm-up included.
    pub(crate) units_in_all: usize,
    /// How long claims took.
    pub(crate) claims: Latencies,
    /// How long completions took.
    pub(crate) completions: Latencies,
}

/// Keeps a subject busy and measures it.
pub(crate) async fn drive(
    subject: &Arc<dyn Subject>,
    load: StoreLoad,
) -> anyhow::Result<StoreMeasurement> {
    let begin = Instant::now() + load.warm_up;
    let end = begin + load.length;
    let mut tasks = JoinSet::new();
    for _ in 0..load.concurrency {
        let subject = Arc::clone(subject);
        let mut maker = Maker::new()?;
        tasks.spawn(async move {
            let (mut claims, mut completions) = (Latencies::default(), Latencies::default());
            for units in 1.. {
                let claim = maker.claim()?;
                let answer = maker.answer();
                let asked = Instant::now();
                let fence = subject.claim(&claim).await?;
                let claimed = asked.elapsed();
                subject.complete(&claim, fence, &answer).await?;
                let completed = asked.elapsed();
                if asked + completed >= end {
                    return Ok((claims, completions, units));
                }
                if asked >= begin {
                    claims.push(claimed);
                    completions.push(completed.saturating_sub(claimed));
                }
            }
            bail!("the numbers have run out")
        });
    }
    let mut cell = StoreMeasurement::default();
    while let Some(driven) = tasks.join_next().await {
        let (claims, completions, units) = driven.context("a driver stopped")??;
        cell.claims.append(claims);
        cell.completions.append(completions);
        cell.units_in_all += units;
    }
    cell.units_per_second = as_f64(cell.claims.len()) / load.length.as_secs_f64();
    Ok(cell)
}

/// Puts `count` finished records into a subject, as fast as it takes them.
pub(crate) async fn fill(
    subject: &Arc<dyn Subject>,
    count: usize,
    mut progress: impl FnMut(usize),
) -> anyhow::Result<()> {
    const CONCURRENCY: usize = 512;
    let begun = Arc::new(AtomicUsize::new(0));
    let mut tasks = JoinSet::new();
    for _ in 0..CONCURRENCY.min(count) {
        let (subject, begun) = (Arc::clone(subject), Arc::clone(&begun));
        let mut maker = Maker::new()?;
        tasks.spawn(async move {
            while begun.fetch_add(1, Ordering::Relaxed) < count {
                let claim = maker.claim()?;
                let fence = subject.claim(&claim).await?;
                subject.complete(&claim, fence, &maker.answer()).await?;
            }
            anyhow::Ok(())
        });
    }
    let tick = Duration::from_millis(500);
    loop {
        match tokio::time::timeout(tick, tasks.join_next()).await {
            Ok(None) => return Ok(()),
            Ok(Some(ended)) => ended.context("a filler stopped")??,
            Err(_) => progress(begun.load(Ordering::Relaxed).min(count)),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn requests_have_the_sizes_that_are_claimed() {
        let mut maker = Maker::new().unwrap();
        let claim = maker.claim().unwrap();
        assert_eq!(claim.id.key.as_str().len(), 36);
        assert_eq!(claim.id.scope.as_str().len(), 8);
        assert_eq!(claim.id.caller.as_str().len(), 11);
        assert_eq!(claim.about.as_str().len(), 28);
        assert_eq!(claim.node.as_str().len(), 9);
        assert!((500..512).contains(&maker.answer().as_bytes().len()));
        assert_ne!(claim.id, maker.claim().unwrap().id);
    }
}
