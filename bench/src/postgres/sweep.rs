//! Claim latency while a million expired records are swept.

use std::{sync::Arc, time::Duration};

use crate::{
    postgres::server::{Age, PostgresServer},
    report::{Report, Target},
    settings::Settings,
    sweeping::{self, Pace},
};

const PART: &str = "postgres.sweep";
const SCHEMA: &str = "sweep";

/// The pace of the engine: after each batch it rests four times as long as the batch took.
const PACE: Pace =
    Pace { batch: 500, rest: |took| took.saturating_mul(4).max(Duration::from_millis(5)) };

pub(crate) async fn run(settings: &Settings, report: &mut Report) -> anyhow::Result<()> {
    let server = PostgresServer::start();
    let expired = settings.or_quick(1_000_000, 100_000);
    let store = Arc::new(server.store(SCHEMA).await?);
    server.fill(SCHEMA, expired, Age::Expired);
    let target = Target::Below(2.5);
    sweeping::measure(settings, report, PART, (&store, expired), PACE, target).await
}
