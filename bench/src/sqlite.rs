//! The embedded store. Each part is a separate file and can be run alone.

pub(crate) mod files;
mod filled;
mod open;
pub(crate) mod size;
mod sweep;
mod throughput;

use crate::{report::Report, settings::Settings};

pub(crate) async fn run(settings: &Settings, report: &mut Report) -> anyhow::Result<()> {
    if settings.wants("sqlite.throughput") {
        throughput::run(settings, report).await?;
    }
    if settings.wants("sqlite.filled") {
        filled::run(settings, report).await?;
    }
    if settings.wants("sqlite.sweep") {
        sweep::run(settings, report).await?;
    }
    if settings.wants("sqlite.size") {
        size::run(settings, report).await?;
    }
    if settings.wants("sqlite.open") {
        open::run(settings, report).await?;
    }
    Ok(())
}
