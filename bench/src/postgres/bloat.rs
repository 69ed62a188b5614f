//! What the table and its indexes occupy over many cycles of filling and sweeping.
//!
//! Records are made through the store with a retention of seconds, and swept when it is over. Hours
//! become seconds here, and so does the period in which the server looks for something to vacuum.

use std::{sync::Arc, time::Duration};

use async_trait::async_trait;
use semel_core::{Answer, Claim, Fence, Store as _};
use semel_postgres::PostgresStore;

use crate::{
    load::{self, Subject},
    postgres::server::PostgresServer,
    report::{Report, Target},
    settings::{Settings, progress, progress_end},
};

const PART: &str = "postgres.bloat";
const SCHEMA: &str = "bloat";

/// Long enough that no completion restarts it, which happens after half of it.
const RETENTION: Duration = Duration::from_secs(5);

/// Where sizes have settled: from here on they may grow no further.
const SETTLED: usize = 3;

/// The store, with records that are soon to be swept.
struct Brief(Arc<PostgresStore>);

#[async_trait]
impl Subject for Brief {
    async fn claim(&self, claim: &Claim) -> anyhow::Result<Fence> {
        let mut brief = claim.clone();
        brief.retention = RETENTION;
        Subject::claim(&*self.0, &brief).await
    }

    async fn complete(&self, claim: &Claim, fence: Fence, answer: &Answer) -> anyhow::Result<()> {
        Subject::complete(&*self.0, claim, fence, answer).await
    }
}

pub(crate) async fn run(settings: &Settings, report: &mut Report) -> anyhow::Result<()> {
    let server = PostgresServer::start();
    let store = Arc::new(server.store(SCHEMA).await?);
    let subject: Arc<dyn Subject> = Arc::new(Brief(store.clone()));
    let (cycles, count) = settings.or_quick((12, 50_000), (4, 2_000));
    let (mut tables, mut indexes) = (Vec::new(), Vec::new());
    for cycle in 1..=cycles {
        progress(&format!("{PART}: cycle {cycle} of {cycles}"));
        load::fill(&subject, count, |_| ()).await?;
        tokio::time::sleep(RETENTION).await;
        while store.sweep(500).await?.more {}
        let sizes = server.sizes(SCHEMA)?;
        tables.push(sizes.table_megabytes);
        indexes.push(sizes.index_megabytes);
    }
    progress_end();
    for (name, sizes) in [("table", &tables), ("indexes", &indexes)] {
        report.line(PART, format!("{name}, {cycles} cycles of {count} records"), "MB", sizes);
        let (early, late) = sizes.split_at(SETTLED.min(sizes.len()));
        let most = |sizes: &[f64]| sizes.iter().copied().fold(f64::NAN, f64::max);
        let what = format!("{name}, the largest after cycle {SETTLED} / until then");
        report.judge(PART, what, "x", &[most(late) / most(early)], Target::AtMost(1.25));
    }
    Ok(())
}
