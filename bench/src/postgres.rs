//! The PostgreSQL store. Each part is a separate file and can be run alone; each starts its own
//! server, which ends with it.

mod bloat;
mod filled;
mod redis;
pub(crate) mod server;
mod sweep;
mod throughput;
mod usual;

use crate::{report::Report, settings::Settings};

pub(crate) async fn run(settings: &Settings, report: &mut Report) -> anyhow::Result<()> {
    throughput::run(settings, report).await?;
    if settings.wants("postgres.filled") {
        filled::run(settings, report).await?;
    }
    if settings.wants("postgres.sweep") {
        sweep::run(settings, report).await?;
    }
    if settings.wants("postgres.bloat") {
        bloat::run(settings, report).await?;
    }
    if settings.wants("postgres.redis") {
        redis::run(settings, report).await?;
    }
    Ok(())
}
